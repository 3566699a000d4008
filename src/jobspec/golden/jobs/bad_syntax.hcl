job "web" {
  group "g" {
    task "t" {
      driver = "mock"
  }
}
