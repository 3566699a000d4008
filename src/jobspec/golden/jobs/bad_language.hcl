variable "count" {
  default = 1
}

locals {
  x = 1
}

job "web" {
  name = upper("web")
  meta {
    a = var.image
    b = "${var.image}:latest"
    c = local.x
    d = "${file("x")}"
    e = 1 + 2
    f = true ? "a" : "b"
    g = "%{ if true }x%{ endif }"
    h = [for x in ["a"] : x]
    i = attr.kernel.name
    j = "${1 + 2}"
    k = "${~ attr.x ~}"
    l = "${attr.x}" 
    m = "${env["HOME"]}"
    n = !true
  }
  dynamic "group" {
    for_each = ["a"]
    content {}
  }
  group "g" {
    task "t" {
      driver = "mock"
      config {
        dynamic "mount" {
          for_each = []
        }
      }
    }
  }
}
