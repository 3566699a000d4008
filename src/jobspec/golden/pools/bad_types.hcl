pool "gpu" {
  provider     = ["local"]
  max          = 1.5
  idle_timeout = 60
  boot_timeout = "1500us"

  type {
    cpu    = "many"
    memory = 512
    node   = 7
  }
}
