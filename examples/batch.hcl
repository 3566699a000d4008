# A batch job: prints a few lines and ends.
# Run it with:      quorate job run examples/batch.hcl
# Read its output:  quorate alloc logs ALLOCATION   (the id is in: quorate job status batch)
job "batch" {
  datacenters = ["dc1"]
  type        = "batch"

  group "work" {
    count = 1

    restart {
      attempts = 1
      interval = "1m"
      delay    = "1s"
      mode     = "fail"
    }

    task "count" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "for i in 1 2 3; do echo \"step $i of 3\"; sleep 1; done; echo done"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
