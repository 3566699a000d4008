# A job for the pool of examples/pool.hcl: each instance fills a machine of its own.
job "elastic" {
  type      = "service"
  node_pool = "burst"

  group "work" {
    count = 3

    task "sleep" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["infinity"]
      }

      resources {
        cpu    = 400
        memory = 200
      }
    }
  }
}
