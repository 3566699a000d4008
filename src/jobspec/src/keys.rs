//! The keys that Nomad's JSON of a job always has: what a job file does not say is null there, not
//! absent. Owns no default.

use serde_json::{Map, Value};

const JOB: &[&str] = &[
    "Region",
    "Namespace",
    "ID",
    "Name",
    "Type",
    "Priority",
    "AllAtOnce",
    "Datacenters",
    "NodePool",
    "Constraints",
    "Affinities",
    "TaskGroups",
    "Update",
    "Multiregion",
    "Spreads",
    "Periodic",
    "ParameterizedJob",
    "Reschedule",
    "Migrate",
    "Meta",
    "UI",
    "ConsulToken",
    "VaultToken",
    "Stop",
    "ParentID",
    "Payload",
    "ConsulNamespace",
    "VaultNamespace",
    "NomadTokenID",
    "Status",
    "StatusDescription",
    "Stable",
    "Version",
    "SubmitTime",
    "CreateIndex",
    "ModifyIndex",
    "JobModifyIndex",
    "VersionTag",
];
const GROUP: &[&str] = &[
    "Name",
    "Count",
    "Constraints",
    "Affinities",
    "Tasks",
    "Spreads",
    "Volumes",
    "RestartPolicy",
    "Disconnect",
    "ReschedulePolicy",
    "EphemeralDisk",
    "Update",
    "Migrate",
    "Networks",
    "Meta",
    "Services",
    "ShutdownDelay",
    "StopAfterClientDisconnect",
    "MaxClientDisconnect",
    "Scaling",
    "Consul",
    "PreventRescheduleOnLost",
];
const TASK: &[&str] = &[
    "Name",
    "Lifecycle",
    "Config",
    "Constraints",
    "Affinities",
    "Env",
    "Services",
    "Resources",
    "RestartPolicy",
    "Meta",
    "KillTimeout",
    "LogConfig",
    "Artifacts",
    "Vault",
    "Consul",
    "Templates",
    "DispatchPayload",
    "VolumeMounts",
    "CSIPluginConfig",
    "ScalingPolicies",
    "Identity",
    "Identities",
    "Actions",
    "Schedule",
];
/// What is not null in Go when nothing is said.
const TASK_TEXTS: &[&str] = &["Driver", "User", "KillSignal", "Kind"];
const RESOURCES: &[&str] = &[
    "CPU",
    "Cores",
    "MemoryMB",
    "MemoryMaxMB",
    "DiskMB",
    "Networks",
    "Devices",
    "NUMA",
    "SecretsMB",
    "IOPS",
];

/// Gives a job, its groups, tasks and resources all keys.
pub fn name_all(job: &mut Value) {
    let Value::Object(job) = job else { return };
    add(job, JOB, &Value::Null);
    add(job, &["Dispatched"], &Value::Bool(false));
    add(job, &["DispatchIdempotencyToken"], &"".into());
    for group in objects(job, "TaskGroups") {
        add(group, GROUP, &Value::Null);
        for task in objects(group, "Tasks") {
            add(task, TASK, &Value::Null);
            add(task, TASK_TEXTS, &"".into());
            add(task, &["Leader"], &Value::Bool(false));
            add(task, &["ShutdownDelay"], &0.into());
            if let Some(Value::Object(resources)) = task.get_mut("Resources") {
                add(resources, RESOURCES, &Value::Null);
            }
        }
    }
}

fn add(object: &mut Map<String, Value>, keys: &[&str], value: &Value) {
    for key in keys {
        object.entry(*key).or_insert_with(|| value.clone());
    }
}

fn objects<'v>(
    owner: &'v mut Map<String, Value>,
    list: &str,
) -> impl Iterator<Item = &'v mut Map<String, Value>> {
    let items = owner.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
    items.filter_map(Value::as_object_mut)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{parse, to_spec};

    /// What Nomad always shows is there, and says nothing to who registers it.
    #[test]
    fn all_keys_are_named_and_change_nothing() {
        let source = "job \"a\" {\n group \"g\" {\n task \"t\" {\n driver = \"mock\"\n resources {\n cpu = 5\n}\n}\n}\n}\n";
        let plain = parse("a.hcl", source).unwrap();
        let mut job = plain.clone();
        name_all(&mut job);
        assert_eq!(job["Type"], Value::Null);
        assert!(job.as_object().unwrap().contains_key("Periodic"));
        let task = &job["TaskGroups"][0]["Tasks"][0];
        assert_eq!((&task["Env"], &task["Leader"]), (&Value::Null, &Value::Bool(false)));
        assert_eq!(
            (&task["Resources"]["CPU"], &task["Resources"]["Cores"]),
            (&5.into(), &Value::Null)
        );
        let (plain, named) = (to_spec(&plain).unwrap(), to_spec(&job).unwrap());
        assert_eq!(plain.spec, named.spec);
        assert_eq!(plain.warnings, named.warnings);
    }
}
