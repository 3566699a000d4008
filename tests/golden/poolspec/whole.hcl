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
}
