job "we b/x" {
  type     = "servce"
  priority = 101
  constraint {
    attribute = "${attr.kernel.name}"
    operator  = "regxp"
    value     = "linux"
  }
  constraint {
    attribute = "${attr.kernel.name}"
    regexp    = "li(nux"
  }
  constraint {
    attribute = "${attr.kernel.version}"
    version   = "newest"
  }
  constraint {
    operator = "="
    value    = "x"
  }
  affinity {
    attribute = "${meta.a}"
    value     = "b"
    weight    = 0
  }
  spread {
    attribute = "${node.datacenter}"
    target "a" { percent = 70 }
    target "b" { percent = 60 }
  }
  update {
    min_healthy_time = "10m"
    canary           = 1
  }
  group "g" {
    count = -1
    network {
      mode = "bridge"
      port "a b" { static = 70000 }
      port "x" { static = 80 }
      port "y" { static = 80 }
    }
    ephemeral_disk { size = 5 }
    restart {
      attempts = 100
      interval = "30s"
    }
    task "t" {
      driver      = "raw_exec"
      kill_signal = "SIGTREM"
      leader      = true
      resources {
        cpu        = 0
        memory     = 5
        memory_max = 7
      }
      service { port = "nope" }
    }
    task "t" {
      driver = ""
      leader = true
      logs {
        max_files     = 0
        max_file_size = 100
      }
    }
  }
  group "g" {}
}
