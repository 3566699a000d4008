# Machines that come when jobs wait and go when they idle. `quorate up` has the provider "local", whose machines are agents on this host:
#   quorate pool apply examples/pool.hcl
#   quorate job run examples/elastic.hcl
pool "burst" {
  provider     = "local"
  max          = 3
  idle_timeout = "10s"

  type "small" {
    cpu    = 500
    memory = 256

    node {
      drivers = ["raw_exec"]
    }
  }
}
