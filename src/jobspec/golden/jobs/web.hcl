# A web service as most people write it.
job "web" {
  datacenters = ["dc1", "eu-*"]
  type        = "service"
  priority    = 70

  meta {
    owner = "team-a"
    tier  = 1
  }

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  constraint {
    attribute = "${attr.nomad.version}"
    version   = ">= 1.4, < 3"
  }

  update {
    max_parallel     = 2
    min_healthy_time = "15s"
    healthy_deadline = "3m"
  }

  group "frontend" {
    count = 3

    network {
      port "http" {
        to = 8080
      }
      port "admin" {
        static = 9090
      }
    }

    restart {
      attempts = 4
      interval = "10m"
      delay    = "20s"
      mode     = "delay"
    }

    service {
      name = "web"
      port = "http"
      tags = ["urlprefix-/"]
      check {
        type     = "http"
        path     = "/health"
        interval = "10s"
        timeout  = "2s"
      }
    }

    ephemeral_disk {
      size = 500
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "/bin/server"
        args    = ["-listen", ":${NOMAD_PORT_http}", "-node", "${node.unique.name}"]
      }

      env {
        PORT    = "${NOMAD_PORT_http}"
        WORKERS = 4
        DEBUG   = false
        PRICE   = "$${not a reference}"
      }

      resources {
        cpu    = 500
        memory = 256
      }

      logs {
        max_files     = 3
        max_file_size = 15
      }

      kill_timeout = "20s"
      kill_signal  = "SIGTERM"
    }
  }
}
