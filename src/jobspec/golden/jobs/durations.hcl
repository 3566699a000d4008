job "web" {
  update {
    min_healthy_time = 3
    healthy_deadline = 300000000000
  }
  group "g" {
    shutdown_delay = 5000
    task "t" {
      driver       = "raw_exec"
      kill_timeout = 30
      config {
        command = "/bin/true"
      }
    }
  }
}
