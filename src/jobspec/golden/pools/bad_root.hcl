job "gpu" {
}
max = 3
