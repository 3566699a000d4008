pool "gpu" {
  provider               = "local"
  min                    = 1
  max                    = 3
  price_factor           = 1.25
  idle_timeout           = "1m30s"
  boot_timeout           = "5m"
  probe_timeout          = "2m"
  max_concurrent_creates = 2

  type "small" {
    provider_type = "t1"
    cpu           = 1000
    memory        = 512
    disk          = 1024
    price         = 0.0525
    preemptible   = true
    quota_group   = "vcpu"
    image         = "base"

    node {
      datacenter = "dc2"
      class      = "cheap"
      drivers    = ["raw_exec"]

      attributes = { "kernel.name" = "linux" }
      meta {
        rack = "r1"
      }
    }
  }

  type "t3.large" {
    cpu    = 4000
    memory = 8192
    price  = 1
  }

  capacity "web" {
    dimension       = "cpu_mhz"
    unit            = 1000
    min             = 1
    max             = 3
    predictor       = "headroom"
    step            = 5
    step_interval   = "2s"
    drain           = "10s"
    busy            = "allocations"
    hard            = true
    cooldown_up     = "1s"
    cooldown_down   = "30s"
    requirement_ttl = "5s"
    member_port     = 8081

    headroom {
      percent = 20
    }
  }

  capacity "api" {
    unit        = 4096
    max         = 10
    member_port = 8080

    peak {
      window = "5m"
    }
  }
}
