//! The unmodified `nomad` program against three servers: what it prints and how it ends. Skipped, with a line, where no `nomad` is on the `PATH`;
//! docs/testing.md says how to build one that is free to use.

use std::{fs, process::Command};

use crate::harness::{Options, PATIENCE, wait_until};

use super::Stage;

/// The program, and the servers that it talks to.
struct Nomad {
    stage: Stage,
}

impl Nomad {
    /// Three servers and an agent; `None` where the program is not installed.
    fn start() -> Option<Self> {
        let version = Command::new("nomad").arg("version").output().ok();
        if !version.is_some_and(|done| done.stdout.starts_with(b"Nomad v")) {
            eprintln!("skipped: no `nomad` on the PATH, see docs/testing.md");
            return None;
        }
        Some(Self { stage: Stage::of(Options::new(3)) })
    }

    /// What a command prints and its exit code. Each goes to another server than the one before it, by the length of its words.
    fn run(&self, line: &str) -> (i32, String) {
        let address = self.stage.cluster.http(line.len() % 3);
        let mut command = Command::new("nomad");
        command.current_dir(self.stage.cluster.directory()).args(line.split_whitespace());
        command.env("NOMAD_ADDR", format!("http://{address}")).env("no_proxy", "*");
        let done = command.output().unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    /// Runs a command that must end with `code` and print each of `wanted`; returns what it printed.
    #[track_caller]
    fn says(&self, line: &str, code: i32, wanted: &[&str]) -> String {
        let (ended, text) = self.run(line);
        assert_eq!(ended, code, "nomad {line}\n{text}");
        for part in wanted {
            assert!(text.contains(part), "nomad {line}: no {part:?} in\n{text}");
        }
        text
    }

    /// Writes a job file into the folder that the commands run in.
    fn file(&self, name: &str, text: &str) {
        fs::write(self.stage.cluster.directory().join(name), text).unwrap();
    }
}

/// A job file: what stands in the job's block, in the group's, and the script of the task.
fn job(name: &str, of_job: &str, of_group: &str, script: &str) -> String {
    format!(
        r#"job "{name}" {{
  datacenters = ["dc1"]
  {of_job}
  group "web" {{
    {of_group}
    task "main" {{
      driver = "raw_exec"
      config {{
        command = "/bin/sh"
        args    = ["-c", "{script}"]
      }}
      resources {{
        cpu    = 20
        memory = 16
      }}
    }}
  }}
}}
"#
    )
}

/// A service of three with a canary, and what its task runs.
fn service(script: &str) -> String {
    let group = r#"count = 3
    restart {
      attempts = 0
      mode     = "fail"
    }
    update {
      canary            = 1
      max_parallel      = 3
      min_healthy_time  = "100ms"
      healthy_deadline  = "20s"
      progress_deadline = "0"
      auto_revert       = true
    }"#;
    job("web", "", group, script)
}

/// Plan, run with its monitor, promote, revert, history and status of a service: the words and the codes are Nomad's.
#[test]
fn the_nomad_program_changes_a_service() {
    let Some(nomad) = Nomad::start() else { return };
    let _agent = nomad.stage.node("n1", &[]);
    nomad.file("one.hcl", &service("sleep 1000"));
    nomad.file("two.hcl", &service("sleep 1001"));
    nomad.file("bad.hcl", &service("exit 7"));

    nomad.says(
        "job plan one.hcl",
        1,
        &["+ Job: \"web\"", "(3 create)", "nomad job run -check-index 0 one.hcl"],
    );
    let plan = nomad.says(
        "job plan -verbose one.hcl",
        1,
        &["+ Dispatched: \"false\"", "+ Identity {", "+ ProgressDeadline:"],
    );
    for left_out in ["Stagger", "KillSignal", "MBits", "Migrate {", "Audience"] {
        assert!(!plan.contains(left_out), "{left_out} in\n{plan}");
    }
    nomad.says(
        "job run one.hcl",
        0,
        &["Monitoring evaluation", "Monitoring deployment", "= successful"],
    );
    nomad.says("job scaling-events web", 0, &["No events found"]);
    nomad.says("job plan one.hcl", 0, &["All tasks successfully allocated"]);
    nomad.says(
        "job run -check-index 1 two.hcl",
        1,
        &["Enforcing job modify index 1", "Job not updated"],
    );

    nomad.says(
        "job plan two.hcl",
        1,
        &["(1 canary, 3 ignore)", "\"sleep 1000\" => \"sleep 1001\""],
    );
    nomad.says("job run -detach two.hcl", 0, &["Job registration successful"]);
    nomad.says("job scale -detach web web 4", 1, &["job scaling blocked due to active deployment"]);
    wait_until("the canary is healthy", PATIENCE, || {
        let (code, text) = nomad.run("job promote -detach web");
        assert!(code == 0 || text.contains("0/1 healthy allocations"), "{text}");
        code == 0
    });
    wait_until("the deployment ends", PATIENCE, || {
        nomad.run("job deployments -latest web").1.contains("completed successfully")
    });
    nomad.says("job status web", 0, &["Promoted", "completed successfully"]);

    nomad.says("job run bad.hcl", 1, &["= failed", "rolling back to job version 1"]);
    nomad.says(
        "deployment list",
        0,
        &["Failed due to unhealthy allocations - rolling back to job version 1"],
    );
    nomad.says(
        "job history -p web",
        0,
        &["Version     = 3", "Stable      = false", "\"sleep 1001\" => \"exit 7\""],
    );

    nomad.says("job revert -detach web 0", 0, &["Evaluation ID"]);
    nomad.says("job revert -detach web 99", 1, &["not found"]);
    nomad.says("job inspect -version 4 web", 0, &["\"sleep 1000\""]);
    nomad.says("job history -json -version 3 web", 0, &["\"sleep 1001\""]);
    nomad.says("job stop -detach -purge web", 0, &[]);
    nomad.says("job status web", 1, &["No job(s) with prefix or ID \"web\" found"]);
    nomad.stage.finish();
}

/// Dispatch, forced launches and scaling, and the status of parents and children.
#[test]
fn the_nomad_program_starts_jobs_in_numbers() {
    let Some(nomad) = Nomad::start() else { return };
    let _agent = nomad.stage.node("n1", &[]);
    let parameterized = "type = \"batch\"\n  parameterized {\n    payload = \"optional\"\n    meta_required = [\"who\"]\n  }";
    nomad.file("par.hcl", &job("par", parameterized, "", "echo hello $NOMAD_META_who"));
    let periodic = "type = \"batch\"\n  periodic {\n    cron = \"0 3 * * *\"\n    time_zone = \"Europe/Berlin\"\n  }";
    nomad.file("per.hcl", &job("per", periodic, "", "true"));
    nomad.file("web.hcl", &job("web", "", "count = 1", "sleep 1000"));
    nomad.file("payload", "bytes");

    nomad.says("job run par.hcl", 0, &["Job registration successful"]);
    nomad.says("job dispatch par", 1, &["lacks required keys"]);
    nomad.says(
        "job dispatch -meta who=me par payload",
        0,
        &["Dispatched Job ID = par/dispatch-", "finished with status \"complete\""],
    );
    let line = "job dispatch -detach -idempotency-token t -meta who=me par";
    let first = nomad.says(line, 0, &["Dispatched Job ID = par/dispatch-"]);
    let again = nomad.says(line, 0, &["Dispatched Job ID = par/dispatch-"]);
    let child = |text: &str| {
        text.split_whitespace().find(|word| word.starts_with("par/")).map(str::to_owned)
    };
    assert_eq!(child(&first), child(&again));
    let parent = nomad.says("job status par", 0, &["Parameterized Job Summary", "Dispatched Jobs"]);
    assert_eq!(parent.matches("par/dispatch-").count(), 2, "{parent}");
    nomad.says(
        &format!("job status {}", child(&first).unwrap()),
        0,
        &["Idempotency Token = t", "Allocations"],
    );

    let planned = ["(1 create)", "If submitted now, next periodic launch would be at"];
    nomad.says("job plan per.hcl", 1, &planned);
    nomad.says("job run per.hcl", 0, &["Approximate next launch time", "T03:00:00"]);
    nomad.says(
        "job periodic force per",
        0,
        &["Evaluation triggered by job \"per/periodic-", "finished with status \"complete\""],
    );
    nomad.says(
        "job status per",
        0,
        &["Next Periodic Launch", "Children Job Summary", "per/periodic-"],
    );

    nomad.says("job run web.hcl", 0, &["= successful"]);
    nomad.says("job scale web web 3", 0, &["Monitoring deployment", "= successful"]);
    nomad.says("job scale -detach web nope 3", 1, &["nope not found"]);
    nomad.says(
        "job scaling-events web",
        0,
        &["Task Group  Count  PrevCount", "web         3      1"],
    );
    for job in ["web", "par", "per"] {
        nomad.says(&format!("job stop -detach -purge {job}"), 0, &[]);
    }
    nomad.stage.finish();
}
