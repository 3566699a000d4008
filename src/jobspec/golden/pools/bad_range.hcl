pool "gpu" {
  provider = "local"
  min      = 4
  max      = 3

  type "a b" {
    cpu    = 1
    memory = 1
  }
}
