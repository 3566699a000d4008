pool "gpu" {
  provider     = "local"
  min          = 4
  max          = 20000
  price_factor = 0.5
  idle_timeout = "0s"
  boot_timeout = "9000h"

  type "small" {
    cpu    = 0
    memory = 512
    price  = -1
  }
  type "small" {
    cpu    = 1000
    memory = 1099511627777
    price  = 0.00000001
    quota_group = ""
  }
}
