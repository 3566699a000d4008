job "web" {
  dattacenters = ["dc1"]
  groop "g" {}
  group "a" {
    cuont = 3
    task "t" {
      drivr = "raw_exec"
      resorces {
        cpu = 1
      }
      resources {
        cpus = 1
      }
      frobnicate = true
    }
  }
}
