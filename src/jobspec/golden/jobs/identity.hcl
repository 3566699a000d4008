# What Nomad writes for a short example, with another driver.
job "example" {
  group "cache" {
    network {
      port "db" {
        to = 6379
      }
    }

    task "redis" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["600"]
      }

      identity {
        env  = true
        file = true
      }

      identity {
        name = "vault"
        aud  = ["vault.io"]
        ttl  = "1h"
      }

      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
