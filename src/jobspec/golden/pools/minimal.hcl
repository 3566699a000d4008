pool "gpu" {
  provider = "local"
  max      = 3

  type "small" {
    cpu    = 1000
    memory = 512
  }
}
