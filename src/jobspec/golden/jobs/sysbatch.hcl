job "cleanup" {
  type = "sysbatch"
  parameterized {
    payload       = "forbidden"
    meta_required = ["path"]
    meta_optional = ["age"]
  }
  # Nomad allows a task without a group.
  task "rm" {
    driver = "raw_exec"
    config { command = "/bin/rm" }
  }
}
