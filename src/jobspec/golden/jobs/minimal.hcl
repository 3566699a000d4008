job "m" { 
  group "g" {
    task "t" {
      driver = "mock"
    }
  }
}
