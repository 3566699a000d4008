job "web" {
  vault {}
  group "g" {
    volume "data" {
      type = "host"
    }
    scaling {
      min = 1
    }
    max_client_disconnect = "1h"
    task "t" {
      driver = "raw_exec"
      template {
        data = "x"
      }
      artifact {
        source = "http://example.com"
      }
      lifecycle {
        hook = "prestart"
      }
      resources {
        cores = 2
        device "nvidia/gpu" {}
      }
      identity {}
      scaling "cpu" {
        max = 500
      }
    }
    service {
      connect {
        sidecar_service {}
      }
    }
  }
}
