datacenters = ["dc1"]
jobs "x" {}
plugin "y" {}
