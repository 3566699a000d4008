# A sysbatch job: runs once to its end on every eligible node.
# Run it with:  quorate job run examples/sysbatch.hcl
job "inventory" {
  datacenters = ["dc1"]
  type        = "sysbatch"

  group "inventory" {
    task "report" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "uname -a; df -h /; echo inventory complete"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
