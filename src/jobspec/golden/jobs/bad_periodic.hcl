job "nightly" {
  type = "batch"
  periodic {
    cron = 5
    chron = "@daily"
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
    }
  }
}
