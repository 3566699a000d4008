job "nightly" {
  type = "batch"
  periodic {
    crons            = ["0 3 * * sat", "@daily"]
    time_zone        = "Europe/Berlin"
    prohibit_overlap = true
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "true"
      }
    }
  }
}
