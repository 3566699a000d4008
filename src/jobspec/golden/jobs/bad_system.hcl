job "s" {
  type = "system"
  affinity {
    attribute = "${meta.a}"
    value     = "b"
  }
  reschedule {
    attempts = 1
  }
  migrate {
    max_parallel = 1
  }
  parameterized {}
  group "g" {
    count = 2
    spread { attribute = "${node.datacenter}" }
    task "t" { driver = "mock" }
  }
}
