//! The API's JSON of a job with the defaults that Nomad's clients fill in before they send it
//! (`Canonicalize` of `/v1/jobs/parse`). Owns no rule of what a valid job is: that is `convert`'s;
//! a field that is there is never changed.

use serde_json::{Map, Value, json};

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Fills in what is missing.
pub fn canonicalize(job: &mut Value) {
    let Value::Object(job) = job else { return };
    let kind = text(job, "Type").unwrap_or_else(|| "service".to_owned());
    let id = text(job, "ID").unwrap_or_default();
    fill(
        job,
        json!({
            "ID": id, "Name": id, "ParentID": "", "Namespace": "default", "Region": "global", "NodePool": "",
            "Type": kind, "Priority": 0, "AllAtOnce": false, "Datacenters": ["*"], "Stop": false, "Stable": false,
            "Status": "", "StatusDescription": "", "Version": 0, "CreateIndex": 0, "ModifyIndex": 0, "JobModifyIndex": 0,
            "ConsulToken": "", "ConsulNamespace": "", "VaultToken": "", "VaultNamespace": "", "NomadTokenID": "",
        }),
    );
    if kind == "service" {
        fill(job, json!({"Update": update_default()}));
    }
    within(job, "Update", &update_default());
    within(
        job,
        "Periodic",
        &json!({
            "Enabled": true, "Spec": "", "Specs": [], "SpecType": "cron", "ProhibitOverlap": false, "TimeZone": "UTC",
        }),
    );
    within(
        job,
        "ParameterizedJob",
        &json!({"Payload": "", "MetaRequired": null, "MetaOptional": null}),
    );
    weights(job);
    decide_attempts(job, "Reschedule");
    let inherited = Inherited {
        kind,
        update: job.get("Update").cloned(),
        reschedule: job.get("Reschedule").cloned(),
        migrate: job.get("Migrate").cloned(),
        job_name: text(job, "Name").unwrap_or_default(),
    };
    each(job, "TaskGroups", |group| canonicalize_group(group, &inherited));
}

/// What groups take from the job.
struct Inherited {
    kind: String,
    update: Option<Value>,
    reschedule: Option<Value>,
    migrate: Option<Value>,
    job_name: String,
}

fn canonicalize_group(group: &mut Map<String, Value>, inherited: &Inherited) {
    let kind = inherited.kind.as_str();
    let name = text(group, "Name").unwrap_or_default();
    let disk = json!({"Migrate": false, "SizeMB": 300, "Sticky": false});
    let min = group.get("Scaling").and_then(|scaling| scaling.get("Min")).cloned();
    let count = min.filter(|min| !min.is_null()).unwrap_or_else(|| json!(1));
    fill(
        group,
        json!({
            "Name": name, "Count": count, "PreventRescheduleOnLost": false,
            "EphemeralDisk": disk, "RestartPolicy": restart_default(kind),
        }),
    );
    let least = group.get("Count").cloned().unwrap_or_default();
    within(group, "Scaling", &json!({"Enabled": true, "Min": least, "Type": "horizontal"}));
    within(group, "EphemeralDisk", &disk);
    within(group, "RestartPolicy", &restart_default(kind));
    inherit(group, "Update", inherited.update.as_ref(), None);
    let reschedule = reschedule_default(kind);
    decide_attempts(group, "ReschedulePolicy");
    inherit(group, "ReschedulePolicy", inherited.reschedule.as_ref(), Some(&reschedule));
    if kind == "service" {
        inherit(group, "Migrate", inherited.migrate.as_ref(), Some(&migrate_default()));
    }
    weights(group);
    let service = format!("{}-{name}", inherited.job_name);
    each(group, "Services", |one| canonicalize_service(one, &service));
    let restart = group.get("RestartPolicy").cloned().unwrap_or_default();
    each(group, "Tasks", |task| {
        let own = text(task, "Name").unwrap_or_default();
        let resources = json!({"CPU": 100, "Cores": 0, "MemoryMB": 300});
        let logs = json!({"Disabled": false, "MaxFileSizeMB": 10, "MaxFiles": 10});
        fill(
            task,
            json!({
                "Name": own, "KillTimeout": 5 * SECOND, "ShutdownDelay": 0,
                "Resources": resources, "LogConfig": logs, "RestartPolicy": restart,
            }),
        );
        within(task, "Resources", &resources);
        within(task, "LogConfig", &logs);
        within(task, "RestartPolicy", &restart);
        weights(task);
        each(task, "Services", |one| canonicalize_service(one, &format!("{service}-{own}")));
    });
}

/// Fills in a service and its checks, which take from it what they do not say.
pub(super) fn canonicalize_service(service: &mut Map<String, Value>, name: &str) {
    fill_texts(
        service,
        &[
            ("Name", name),
            ("Provider", "consul"),
            ("AddressMode", "auto"),
            ("OnUpdate", "require_healthy"),
            ("Cluster", "default"),
        ],
    );
    let restart = json!({"Grace": SECOND});
    within(service, "CheckRestart", &restart);
    let of_service = service.get("CheckRestart").cloned().filter(Value::is_object);
    let on_update = text(service, "OnUpdate").unwrap_or_default();
    each(service, "Checks", |check| {
        fill_texts(check, &[("OnUpdate", &on_update)]);
        if let Some(of_service) = &of_service {
            fill(check, json!({"CheckRestart": {}}));
            // A zero says nothing here, but for a time.
            if let Some(Value::Object(own)) = check.get_mut("CheckRestart") {
                own.retain(|name, value| {
                    name == "Grace" || (*value != json!(0) && *value != json!(false))
                });
            }
            within(check, "CheckRestart", of_service);
        }
        within(check, "CheckRestart", &restart);
    });
}

/// As [`fill`], also where an empty text is: clients send one for what was not said.
fn fill_texts(object: &mut Map<String, Value>, defaults: &[(&str, &str)]) {
    for (name, value) in defaults {
        if text(object, name).is_none() {
            object.insert((*name).to_owned(), (*value).into());
        }
    }
}

fn weights(owner: &mut Map<String, Value>) {
    for list in ["Affinities", "Spreads"] {
        each(owner, list, |one| fill(one, json!({"Weight": 50})));
    }
}

fn update_default() -> Value {
    json!({
        "AutoPromote": false, "AutoRevert": false, "Canary": 0, "HealthCheck": "checks",
        "HealthyDeadline": 5 * MINUTE, "MaxParallel": 1, "MinHealthyTime": 10 * SECOND,
        "ProgressDeadline": 10 * MINUTE, "Stagger": 30 * SECOND,
    })
}

fn migrate_default() -> Value {
    json!({
        "HealthCheck": "checks", "HealthyDeadline": 5 * MINUTE, "MaxParallel": 1,
        "MinHealthyTime": 10 * SECOND,
    })
}

fn restart_default(kind: &str) -> Value {
    let is_batch = matches!(kind, "batch" | "sysbatch");
    let (attempts, interval) = if is_batch { (3, 24 * HOUR) } else { (2, 30 * MINUTE) };
    json!({
        "Attempts": attempts, "Delay": 15 * SECOND, "Interval": interval, "Mode": "fail",
        "RenderTemplates": false,
    })
}

fn reschedule_default(kind: &str) -> Value {
    let (attempts, interval, delay, function, longest, unlimited) = match kind {
        "service" => (0, 0, 30 * SECOND, "exponential", HOUR, true),
        "batch" => (1, 24 * HOUR, 5 * SECOND, "constant", 0, false),
        _ => return Value::Null,
    };
    json!({
        "Attempts": attempts, "Delay": delay, "DelayFunction": function, "Interval": interval,
        "MaxDelay": longest, "Unlimited": unlimited,
    })
}

/// Fills in fields that are missing or null.
fn fill(object: &mut Map<String, Value>, defaults: Value) {
    let Value::Object(defaults) = defaults else { return };
    for (name, value) in defaults {
        let there = object.entry(name).or_insert(Value::Null);
        if there.is_null() {
            *there = value;
        }
    }
}

/// Fills in fields of a block that is there.
fn within(owner: &mut Map<String, Value>, block: &str, defaults: &Value) {
    if let Some(Value::Object(block)) = owner.get_mut(block) {
        fill(block, defaults.clone());
    }
}

/// A block of a group over that of its job over the default.
fn inherit(
    group: &mut Map<String, Value>,
    name: &str,
    of_job: Option<&Value>,
    default: Option<&Value>,
) {
    for base in [of_job, default].into_iter().flatten().filter(|base| base.is_object()) {
        fill(group, json!({name: {}}));
        within(group, name, base);
    }
    // A group's own update is whole also where its job has none.
    if name == "Update" {
        within(group, name, &update_default());
    }
}

/// Who names a number of attempts at rescheduling wants no more of them, and who wants no end names
/// none: the default of the one does not go with the other.
fn decide_attempts(owner: &mut Map<String, Value>, block: &str) {
    let Some(Value::Object(own)) = owner.get_mut(block) else { return };
    if own.get("Attempts").and_then(Value::as_u64).is_some_and(|attempts| attempts > 0) {
        fill(own, json!({"Unlimited": false}));
    } else if own.get("Unlimited") == Some(&json!(true)) {
        fill(own, json!({"Attempts": 0}));
    }
}

fn each(
    owner: &mut Map<String, Value>,
    list: &str,
    mut change: impl FnMut(&mut Map<String, Value>),
) {
    if let Some(Value::Array(items)) = owner.get_mut(list) {
        for item in items {
            if let Value::Object(item) = item {
                change(item);
            }
        }
    }
}

fn text(object: &Map<String, Value>, name: &str) -> Option<String> {
    object.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{parse, to_spec};

    #[test]
    fn defaults_are_filled_in_and_what_is_written_stays() {
        let source = r#"
            job "j" {
              reschedule {
                delay = "10s"
              }
              group "g" {
                restart {
                  attempts = 1
                }
                task "t" {
                  driver = "mock"
                  resources {
                    cpu = 7
                  }
                  service {
                    port = "80"
                  }
                }
              }
            }"#;
        let mut job = parse("j.hcl", source).unwrap();
        canonicalize(&mut job);
        for (at, expected) in [
            ("/Name", json!("j")),
            ("/Region", json!("global")),
            ("/Datacenters", json!(["*"])),
            ("/Priority", json!(0)),
            ("/Update/Stagger", json!(30 * SECOND)),
            ("/TaskGroups/0/Count", json!(1)),
            ("/TaskGroups/0/EphemeralDisk/SizeMB", json!(300)),
            ("/TaskGroups/0/Update/HealthyDeadline", json!(5 * MINUTE)),
            ("/TaskGroups/0/Migrate/MaxParallel", json!(1)),
            ("/TaskGroups/0/ReschedulePolicy/Delay", json!(10 * SECOND)),
            ("/TaskGroups/0/ReschedulePolicy/Unlimited", json!(true)),
            ("/TaskGroups/0/RestartPolicy/Attempts", json!(1)),
            ("/TaskGroups/0/RestartPolicy/Interval", json!(30 * MINUTE)),
            ("/TaskGroups/0/Tasks/0/RestartPolicy/Attempts", json!(1)),
            ("/TaskGroups/0/Tasks/0/Resources/CPU", json!(7)),
            ("/TaskGroups/0/Tasks/0/Resources/MemoryMB", json!(300)),
            ("/TaskGroups/0/Tasks/0/LogConfig/MaxFiles", json!(10)),
            ("/TaskGroups/0/Tasks/0/KillTimeout", json!(5 * SECOND)),
            ("/TaskGroups/0/Tasks/0/Services/0/Name", json!("j-g-t")),
            ("/TaskGroups/0/Tasks/0/Services/0/OnUpdate", json!("require_healthy")),
        ] {
            assert_eq!(job.pointer(at), Some(&expected), "{at}");
        }
        let again = to_spec(&job).unwrap().spec;
        let plain = to_spec(&parse("j.hcl", source).unwrap()).unwrap().spec;
        assert_eq!((&again.groups[0].tasks[0], again.priority), (&plain.groups[0].tasks[0], 50));
        assert_eq!(again.groups[0].reschedule, plain.groups[0].reschedule);
    }

    #[test]
    fn blocks_of_parents_are_whole() {
        let with = |name: &str, block: Value| {
            let mut job = json!({"ID": "j", "Type": "batch", "TaskGroups": [
                {"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]});
            job[name] = block;
            let plain = to_spec(&job).unwrap().spec;
            canonicalize(&mut job);
            assert_eq!(to_spec(&job).unwrap().spec, plain, "{name}");
            job[name].take()
        };
        assert_eq!(
            with("Periodic", json!({"Spec": "@daily"})),
            json!({"Enabled": true, "Spec": "@daily", "Specs": [], "SpecType": "cron",
                "ProhibitOverlap": false, "TimeZone": "UTC"})
        );
        let several = with("Periodic", json!({"Specs": ["@daily"], "Enabled": false}));
        assert_eq!((&several["Spec"], &several["Enabled"]), (&json!(""), &json!(false)));
        assert_eq!(
            with("ParameterizedJob", json!({"MetaRequired": ["who"], "MaxRunning": 2})),
            json!({"Payload": "", "MetaRequired": ["who"], "MetaOptional": null, "MaxRunning": 2})
        );
    }

    /// With defaults a job of each kind still registers, and as the same job.
    #[test]
    fn a_job_with_its_defaults_is_the_same_job() {
        for kind in ["service", "batch", "system", "sysbatch"] {
            let mut job = json!({"ID": "j", "Type": kind, "TaskGroups": [
                {"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]});
            let plain = to_spec(&job).unwrap().spec;
            canonicalize(&mut job);
            let filled = to_spec(&job).unwrap_or_else(|errors| panic!("{kind}: {errors:?}")).spec;
            assert_eq!(filled, plain, "{kind}");
        }
    }
}
