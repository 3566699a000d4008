# A job for pieces of work: each `job dispatch` makes a child with its own payload and meta. At most three run at a time, the others wait in order.
# Run it with:    quorate job run examples/render.hcl
# Then:           echo "frame 1" | quorate job dispatch -meta scene=intro render -
job "render" {
  datacenters = ["dc1"]
  type        = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["scene"]
    max_running   = 3
  }

  group "render" {
    task "render" {
      driver = "raw_exec"

      dispatch_payload {
        file = "frame.txt"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo rendering $NOMAD_META_scene: $(cat local/frame.txt); sleep 3"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
