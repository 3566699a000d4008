pool "gpu" {
  provder      = "local"
  max          = 3
  idle_timeot  = "1m"

  types "small" {
    cpu = 1
  }
  type "large" {
    cpu    = 1000
    memry  = 512
    node {
      driver = ["raw_exec"]
    }
  }
}
