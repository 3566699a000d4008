//! The ways in which a job comes, and that each of them makes the same version: as its file says
//! it, with the defaults that clients fill in, as the official client sends it, and as a server has
//! printed it.
#![expect(clippy::unwrap_used, reason = "tests")]

use fsm::JobStatus;
use serde_json::{Map, Value, json};

use crate::{JobFields, canonicalize, job_json, judged, parse, to_spec};

/// A job whose blocks that nothing reads yet say much, some of it as defaults have it.
const FULL: &str = r#"
job "full" {
  group "g" {
    network {
      port "http" {}
    }
    service {
      port = "http"
      tags = ["a"]
      meta {
        k = "v"
      }
      check_restart {
        limit = 3
      }
      check {
        type     = "http"
        path     = "/"
        interval = "10s"
        timeout  = "2s"
        header {
          X = ["1"]
        }
      }
      check {
        name      = "own"
        type      = "tcp"
        interval  = "1m"
        timeout   = "2s"
        on_update = "ignore"
        check_restart {
          grace = "5s"
        }
      }
    }
    task "t" {
      driver = "mock"
      identity {
        file = true
      }
      identity {
        name = "other"
        aud  = ["x"]
        ttl  = "1h"
      }
      service {
        name      = "${JOB}-own"
        provider  = "nomad"
        port      = "http"
        on_update = "ignore_warnings"
        check {
          type     = "tcp"
          interval = "10s"
          timeout  = "2s"
        }
      }
    }
  }
}"#;

fn with_defaults(mut job: Value) -> Value {
    canonicalize(&mut job);
    job
}

/// As `GET /v1/job/ID` prints it.
fn printed(job: &Value) -> Value {
    let fields = JobFields {
        stop: false,
        status: JobStatus::Running,
        stable: true,
        version: 3,
        create_index: 7,
        modify_index: 9,
        job_modify_index: 8,
        submitted_at_ms: 1_700_000_000_000,
    };
    job_json(&to_spec(job).unwrap().spec, &fields)
}

/// Objects whose keys are the user's: a null there is a key with an empty value.
const FREE: [&str; 3] = ["Config", "Env", "Meta"];

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            let kept = kept.map(|(key, value)| {
                let is_free = FREE.contains(&key.as_str());
                (key.clone(), if is_free { value.clone() } else { without_nulls(value) })
            });
            kept.collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect::<Vec<_>>().into(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// As the official client sends it: each field of a block is there, the empty ones with their zero.
fn by_client(mut job: Value) -> Value {
    fn fill(value: &mut Value, zeros: &Value) {
        let (Value::Object(map), Value::Object(zeros)) = (value, zeros) else { return };
        for (name, zero) in zeros {
            map.entry(name).or_insert_with(|| zero.clone());
        }
    }
    fn list<'a>(owner: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
        let items = owner.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten();
        items.filter(|item| item.is_object())
    }
    let service = json!({"Id": "", "Tags": null, "CanaryTags": null, "EnableTagOverride": false,
        "PortLabel": "", "AddressMode": "", "Address": "", "Checks": null, "CheckRestart": null,
        "Connect": null, "Meta": null, "CanaryMeta": null, "TaggedAddresses": null, "TaskName": "",
        "OnUpdate": "", "Identity": null, "Provider": "", "Cluster": "", "Weights": null});
    let check = json!({"Id": "", "Name": "", "Command": "", "Args": null, "Path": "", "Protocol": "",
        "PortLabel": "", "Expose": false, "AddressMode": "", "Advertise": "", "InitialStatus": "",
        "TLSServerName": "", "TLSSkipVerify": false, "Header": null, "Method": "",
        "CheckRestart": null, "GRPCService": "", "GRPCUseTLS": false, "TaskName": "",
        "SuccessBeforePassing": 0, "FailuresBeforeCritical": 0, "FailuresBeforeWarning": 0,
        "Body": "", "OnUpdate": "", "Notes": ""});
    let restart = json!({"Limit": 0, "Grace": null, "IgnoreWarnings": false});
    let identity = json!({"Name": "", "Audience": null, "ChangeMode": "", "ChangeSignal": "",
        "Env": false, "File": false, "Filepath": "", "ServiceName": "", "TTL": 0});
    let fill_services = |owner: &mut Value| {
        for one in list(owner, "Services") {
            fill(one, &service);
            fill(&mut one["CheckRestart"], &restart);
            for one in list(one, "Checks") {
                fill(one, &check);
                fill(&mut one["CheckRestart"], &restart);
            }
        }
    };
    for group in list(&mut job, "TaskGroups") {
        fill_services(group);
        for task in list(group, "Tasks") {
            fill_services(task);
            if let Some(own) = task.get_mut("Identity") {
                fill(own, &identity);
            }
            for own in list(task, "Identities") {
                fill(own, &identity);
            }
        }
    }
    job
}

fn jobs() -> Vec<Value> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["golden/jobs", "../../examples"].map(|name| folder.join(name));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "hcl"));
    paths.sort();
    let texts = paths.iter().map(|path| std::fs::read_to_string(path).unwrap());
    let parsed = texts.chain([FULL.to_owned()]).filter_map(|text| parse("j.hcl", &text).ok());
    parsed.chain(judged::taken()).filter(|job| to_spec(job).is_ok()).collect()
}

type Way = fn(Value) -> Value;

/// Registered in each way, in turn, a job has one version: a spec that is equal to the current one
/// makes none. Each way is also tried after each other one
/// that changes what comes: what was printed may be filled in, and sent by the client.
#[test]
fn a_job_has_one_version_whatever_way_it_comes() {
    let ways: [(&str, Way); 5] = [
        ("as it is", |job| job),
        ("with defaults", with_defaults),
        ("by the client", by_client),
        ("as printed", |job| printed(&job)),
        ("without nulls", |job| without_nulls(&job)),
    ];
    let jobs = jobs();
    assert!(jobs.len() >= 100, "{} jobs", jobs.len());
    for job in jobs {
        let plain = to_spec(&job).unwrap().spec;
        for (first, one) in ways {
            for (second, other) in ways {
                let sent = other(one(job.clone()));
                let case = || format!("{first}, then {second}: {job}\n{sent}");
                let spec = to_spec(&sent).unwrap_or_else(|why| panic!("{}: {why:?}", case())).spec;
                assert_eq!(spec, plain, "{}", case());
            }
        }
    }
}
