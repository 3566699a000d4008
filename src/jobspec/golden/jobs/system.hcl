job "logs" {
  type = "system"
  datacenters = ["*"]
  update {
    stagger      = "10s"
    max_parallel = 5
  }
  group "collector" {
    task "collect" {
      driver = "raw_exec"
      config { command = "/bin/collect" }
    }
  }
}
