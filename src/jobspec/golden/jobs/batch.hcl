job "report" {
  type        = "batch"
  all_at_once = true
  meta        = { "run id" = "7", env = "prod" }

  group "work" {
    count = 10

    reschedule {
      attempts       = 3
      interval       = "1h"
      delay          = "10s"
      delay_function = "exponential"
      max_delay      = "5m"
      unlimited      = false
    }

    task "crunch" {
      driver = "docker"
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          set -e
          echo "host ${attr.unique.hostname}"
          exit 0
          EOT
        ]
        mount {
          type   = "bind"
          source = "/data"
          options { readonly = true }
        }
        mount {
          type = "tmpfs"
        }
        labels = { "a.b" = 1.5, nested = { deep = [true, null, -3] } }
      }
    }

    task "watch" {
      driver         = "mock"
      leader         = true
      shutdown_delay = 1500000000
      user           = "nobody"
      restart {
        attempts = 0
        mode     = "fail"
      }
    }
  }
}
