job "cache" {
  namespace = "team"
  node_pool = "large"
  region    = "global"
  spread {
    attribute = "${node.datacenter}"
    weight    = 80
    target "dc1" { percent = 70 }
    target "dc2" { percent = 30 }
  }
  affinity {
    attribute = "${meta.ssd}"
    value     = "true"
    weight    = -50
  }
  affinity {
    attribute = "${attr.cpu.arch}"
    operator  = "set_contains_any"
    value     = "amd64,arm64"
  }
  constraint { distinct_hosts = true }
  constraint {
    distinct_property = "${meta.rack}"
    value             = "2"
  }
  constraint {
    attribute = "${node.class}"
    regexp    = "^[a-z]+$"
  }
  constraint {
    attribute = "${attr.cpu.numcores}"
    operator  = ">="
    value     = 4
  }
  migrate {
    max_parallel     = 2
    min_healthy_time = "5s"
    healthy_deadline = "1m"
  }
  group "redis" {
    count = 2
    spread { attribute = "${node.unique.name}" }
    task "redis" {
      driver = "raw_exec"
      config = { command = "redis-server" }
      env    = { A = "b" }
      resources {
        cpu        = 200
        memory     = 100
        memory_max = 200
      }
      service {
        port = "6379"
      }
    }
  }
}
