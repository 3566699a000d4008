# A service: two copies of a small web server, each on a port the scheduler picks.
# Run it with:    quorate job run examples/web.hcl
# Then find it:   quorate job status web
job "web" {
  datacenters = ["dc1"]
  type        = "service"

  update {
    max_parallel     = 1
    min_healthy_time = "2s"
    healthy_deadline = "1m"
  }

  group "web" {
    count = 2

    network {
      port "http" {}
    }

    restart {
      attempts = 3
      interval = "1m"
      delay    = "2s"
      mode     = "delay"
    }

    task "server" {
      driver = "raw_exec"

      config {
        # The agent publishes the path of its own executable, so the example needs nothing else installed.
        command = "${attr.unique.quorate.binary}"
        args    = ["demo-web"]
      }

      resources {
        cpu    = 50
        memory = 32
      }

      kill_timeout = "5s"
    }
  }
}
