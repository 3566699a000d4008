pool "gpu" {
  provider = "local"
  max      = 3

  type "small" {
    cpu    = 1000
    memory = 512
  }
  capacity {
    unti        = 4096
    max         = 10
    drain       = 50
    predictor   = ["identity"]
    headroom    = 20
    member_port = 8080

    peak {
      windows = "5m"
    }
  }
  capacity "web" {
    headroom "x" {
      percent = 20
    }
  }
}
