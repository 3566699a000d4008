pool "gpu" {
  provider = "local"
  max      = 3

  type "small" {
    cpu    = 1000
    memory = 512
  }
  capacity "web" {
    dimension     = "memory"
    unit          = 0
    min           = 4
    max           = 3
    predictor     = "peek"
    step          = 0
    step_interval = "0s"
    drain         = "25h"
    busy          = "deadlin"
    member_port   = 65536
  }
  capacity "web" {
    unit        = 4096
    max         = 10
    member_port = 0
    hard        = true

    headroom {
      percent = 10001
    }
    peak {
      window = "0s"
    }
  }
  capacity "both" {
    dimension   = "instances"
    unit        = 4096
    max         = 10
    predictor   = "peak"
    member_port = 8080

    headroom {
      percent = 10
    }
  }
  capacity "bare" {
    unit        = 4096
    max         = 10
    predictor   = "peak"
    member_port = 8080
  }
}
