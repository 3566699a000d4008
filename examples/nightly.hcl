# A nightly job: each run is a job of its own, a child of this one.
# Run it with:    quorate job run examples/nightly.hcl
# Start it now:   quorate job periodic force nightly
job "nightly" {
  datacenters = ["dc1"]
  type        = "batch"

  periodic {
    crons            = ["30 2 * * *"]
    time_zone        = "Europe/Berlin"
    prohibit_overlap = true # one that still runs keeps the next from starting
  }

  group "report" {
    task "report" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo report of $(date); sleep 2"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
