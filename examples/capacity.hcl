# Machines for a load balancer: it says how much capacity it needs, the group follows (docs/capacity.md).
# `quorate up` has the provider "local", whose machines are agents on this host:
#   quorate pool apply examples/capacity.hcl
#   examples/balancer.py
pool "web" {
  provider = "local"
  max      = 4

  type "node" {
    cpu    = 1000
    memory = 4096

    node {
      drivers = ["raw_exec"]
    }
  }

  capacity "web" {
    dimension       = "memory_mb"
    unit            = 4096 # what one member is expected to give
    max             = 4
    drain           = "10s"
    cooldown_down   = "5s"
    requirement_ttl = "5s"
    member_port     = 8080
  }
}
