pool "gpu" {
  provider = "local"
  max      = 3

  type "a b" {
    cpu    = 1
    memory = 1
  }
}
