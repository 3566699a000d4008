# A system job: one copy on every eligible node, for as long as the node is there.
# Run it with:  quorate job run examples/system.hcl
job "watch" {
  datacenters = ["dc1"]
  type        = "system"

  group "watch" {
    task "load" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "while true; do uptime; sleep 10; done"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
