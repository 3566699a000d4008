job "web" {
  datacenters = "dc1"
  priority    = "high"
  all_at_once = 3
  group "a" {
    count          = [1]
    shutdown_delay = "soon"
    network {
      port "http" { static = 1.5 }
    }
    restart = { attempts = 1 }
    count_block {}
    task "t" {
      driver = raw_exec
      kill_timeout = 30.5
      env {
        LIST = ["a"]
        deep { a = 1 }
      }
      meta = "x"
      config {
        a = 1
      }
      config {
        b = 2
      }
    }
    task {
      driver = "mock"
    }
    task "x" "y" {}
  }
  update "label" {}
  priority {}
}
