//! What differs between two versions of a job, in the form of Nomad's `JobDiff`: fields, objects,
//! task groups and tasks, each added, deleted, edited or unchanged. `job history`, `job plan` and
//! whoever else shows a change read this one.
//!
//! Works on jobs as the API shows them ([`super::job_json`]), so a field that is added there is
//! compared without a line here.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::convert::SERVER_FIELDS;

/// What is compared of a job, a group or a task, and in which order it is told: Nomad's.
struct Level {
    /// Fields that are the same in all versions, are compared by themselves, or that Nomad leaves
    /// out.
    ignored: &'static [&'static str],
    /// Names of objects; others come behind.
    order: &'static [&'static str],
}

/// Beside [`SERVER_FIELDS`].
const OF_JOB: Level = Level {
    ignored: &["ID", "Update", "ParentID", "Payload", "TaskGroups", "Reschedule"],
    order: &["Datacenters", "Constraint", "Affinity", "Spread", "Periodic", "ParameterizedJob"],
};
const OF_GROUP: Level = Level {
    ignored: &["Name", "Tasks", "Migrate"],
    order: &[
        "Constraint",
        "Affinity",
        "Spread",
        "RestartPolicy",
        "ReschedulePolicy",
        "EphemeralDisk",
        "Update",
        "Network",
        "Scaling",
        "Service",
    ],
};
const OF_TASK: Level = Level {
    ignored: &["Name", "RestartPolicy"],
    order: &[
        "Constraint",
        "Affinity",
        "Config",
        "Resources",
        "LogConfig",
        "DispatchPayload",
        "Identity",
        "Identities",
    ],
};
/// The one of [`SERVER_FIELDS`] that tells jobs apart.
const TOLD: &str = "Dispatched";
/// Fields of objects that Nomad leaves out: defaults, and what a port is given later.
const OF_OBJECTS_IGNORED: [(&str, &[&str]); 4] = [
    ("Update", &["Stagger"]),
    ("Dynamic Port", &["Value"]),
    ("Network", &["Device", "CIDR", "IP"]),
    ("Identity", &["Audience"]),
];
/// Names of objects that are not those of their field.
const OBJECT_NAMES: [(&str, &str); 12] = [
    ("Constraints", "Constraint"),
    ("Affinities", "Affinity"),
    ("Spreads", "Spread"),
    ("SpreadTarget", "SpreadTarget"),
    ("Networks", "Network"),
    ("DynamicPorts", "Dynamic Port"),
    ("ReservedPorts", "Static Port"),
    ("Services", "Service"),
    ("Checks", "Check"),
    ("Templates", "Template"),
    ("Artifacts", "Artifact"),
    ("Devices", "Device"),
];

/// How a thing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    None,
    Added,
    Deleted,
    Edited,
}

impl Change {
    const fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Added => "Added",
            Self::Deleted => "Deleted",
            Self::Edited => "Edited",
        }
    }
}

/// The `JobDiff` from one job to another; none: the job does not exist. The fields that did not
/// change are shown of objects that did.
pub fn job_diff(old: Option<&Value>, new: Option<&Value>) -> Value {
    let of_server = SERVER_FIELDS.into_iter().filter(|name| *name != TOLD);
    let ignored: Vec<&str> = of_server.chain(OF_JOB.ignored.iter().copied()).collect();
    let parts = Parts::of(old, new, &ignored, OF_JOB.order);
    let groups = by_name(old, new, "TaskGroups", |old, new| {
        let parts = Parts::of(old, new, OF_GROUP.ignored, OF_GROUP.order);
        let tasks = by_name(old, new, "Tasks", |old, new| {
            let parts = Parts::of(old, new, OF_TASK.ignored, OF_TASK.order);
            let change = parts.change(old, new, &[]);
            with_annotations(parts.view(change, &[("Name", name(old, new))]))
        });
        let change = parts.change(old, new, &tasks);
        parts.view(
            change,
            &[("Name", name(old, new)), ("Tasks", tasks.into()), ("Updates", Value::Null)],
        )
    });
    let change = parts.change(old, new, &groups);
    let id = [new, old].into_iter().flatten().find_map(|job| job.get("ID")).cloned();
    parts.view(change, &[("ID", id.unwrap_or_default()), ("TaskGroups", groups.into())])
}

/// Fields and objects of one thing.
struct Parts {
    fields: Vec<Value>,
    objects: Vec<Value>,
}

impl Parts {
    fn of(old: Option<&Value>, new: Option<&Value>, ignored: &[&str], order: &[&str]) -> Self {
        let (old, new) = (entries(old), entries(new));
        let keys: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
        let mut parts = Self { fields: Vec::new(), objects: Vec::new() };
        for key in keys.into_iter().filter(|key| !ignored.contains(key)) {
            parts.compare(key, old.get(key).copied(), new.get(key).copied(), false);
        }
        parts.objects.sort_by_key(|object| {
            let place = order.iter().position(|name| object["Name"] == *name);
            place.unwrap_or(order.len())
        });
        parts
    }

    /// Compares the values of a field. Unchanged plain fields are kept with `context`.
    fn compare(&mut self, key: &str, old: Option<&Value>, new: Option<&Value>, context: bool) {
        let values = [old, new].into_iter().flatten();
        let is = |test: fn(&Value) -> bool| values.clone().any(test);
        if key == "Meta" || key == "Env" {
            let (old, new) = (entries(old), entries(new));
            let keys: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
            for inner in keys {
                let (old, new) = (old.get(inner).copied(), new.get(inner).copied());
                self.field(&format!("{key}[{inner}]"), old, new, context);
            }
        } else if key == "Config" {
            self.config(old, new);
        } else if is(Value::is_object) {
            self.objects.extend(object(object_name(key), old, new));
        } else if is(Value::is_array) {
            self.list(key, old, new);
        } else {
            self.field(key, old, new, context);
        }
    }

    fn field(&mut self, name: &str, old: Option<&Value>, new: Option<&Value>, context: bool) {
        let (before, after) = (scalar(old), scalar(new));
        let change = match (before.as_str(), after.as_str()) {
            (before, after) if before == after => Change::None,
            ("", _) => Change::Added,
            (_, "") => Change::Deleted,
            _ => Change::Edited,
        };
        // A text that is empty is there, null is not.
        let is_there = [old, new].into_iter().flatten().any(|value| !value.is_null());
        if change != Change::None || (context && is_there) {
            self.fields.push(field(name, change, &before, &after));
        }
    }

    /// A driver's config, flattened: `args[0]`, `env[KEY]`.
    fn config(&mut self, old: Option<&Value>, new: Option<&Value>) {
        let flat = |value: Option<&Value>| {
            let mut out = BTreeMap::new();
            if let Some(value) = value {
                flatten("", value, &mut out);
            }
            out
        };
        let (before, after) = (flat(old), flat(new));
        if before == after {
            return;
        }
        let mut inside = Self { fields: Vec::new(), objects: Vec::new() };
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for key in keys {
            inside.field(key, before.get(key), after.get(key), true);
        }
        let change = inside.change(some_if(!before.is_empty()), some_if(!after.is_empty()), &[]);
        self.objects.push(inside.view(change, &[("Name", "Config".into())]));
    }

    /// A list: of texts an object with what came and went, of objects one for each that did, those
    /// of the same name compared.
    fn list(&mut self, key: &str, old: Option<&Value>, new: Option<&Value>) {
        let (before, after) = (items(old), items(new));
        if before == after {
            return;
        }
        let name = object_name(key);
        if before.iter().chain(after).any(Value::is_object) {
            let key_of = |value: &Value| match value.get("Name").and_then(Value::as_str) {
                Some(name) if !name.is_empty() => name.to_owned(),
                _ => value.to_string(),
            };
            let keyed = |values: &[Value]| -> BTreeMap<String, Value> {
                values.iter().map(|value| (key_of(value), value.clone())).collect()
            };
            let (before, after) = (keyed(before), keyed(after));
            let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            let differ =
                keys.into_iter().filter_map(|key| object(name, before.get(key), after.get(key)));
            let mut differ: Vec<Value> = differ.collect();
            differ.sort_by_key(place_of_object);
            self.objects.extend(differ);
            return;
        }
        let mut inside = Self { fields: Vec::new(), objects: Vec::new() };
        for value in before.iter().filter(|value| !after.contains(value)) {
            inside.field(name, Some(value), None, true);
        }
        for value in after {
            let was = before.iter().find(|before| *before == value);
            inside.field(name, was, Some(value), true);
        }
        // The same in another order is no change.
        if inside.fields.iter().any(|field| field["Type"] != "None") {
            let change =
                inside.change(some_if(!before.is_empty()), some_if(!after.is_empty()), &[]);
            self.objects.push(inside.view(change, &[("Name", name.into())]));
        }
    }

    /// How the thing itself changed, by whether it was and is there and by what is inside.
    fn change(&self, old: Option<&Value>, new: Option<&Value>, inside: &[Value]) -> Change {
        match (old, new) {
            (None, None) => Change::None,
            (None, Some(_)) => Change::Added,
            (Some(_), None) => Change::Deleted,
            (Some(_), Some(_)) => {
                let all = self.fields.iter().chain(&self.objects).chain(inside);
                let same = all.into_iter().all(|part| part["Type"] == "None");
                if same { Change::None } else { Change::Edited }
            }
        }
    }

    fn view(self, change: Change, more: &[(&str, Value)]) -> Value {
        let mut object = Map::new();
        object.insert("Type".to_owned(), change.name().into());
        // Null where nothing differs.
        let or_null = |list: Vec<Value>| (!list.is_empty()).then_some(list);
        object.insert("Fields".to_owned(), or_null(self.fields).into());
        object.insert("Objects".to_owned(), or_null(self.objects).into());
        object.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        object.into()
    }
}

/// An object that differs.
fn object(name: &str, old: Option<&Value>, new: Option<&Value>) -> Option<Value> {
    let (old, new) = (old.filter(|v| !v.is_null()), new.filter(|v| !v.is_null()));
    if old == new {
        return None;
    }
    let (before, after) = (entries(old), entries(new));
    let keys: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let mut parts = Parts { fields: Vec::new(), objects: Vec::new() };
    let ignored = OF_OBJECTS_IGNORED.iter().find(|(of, _)| *of == name);
    let ignored = ignored.map_or(&[][..], |(_, fields)| fields);
    for key in keys.into_iter().filter(|key| !ignored.contains(key)) {
        parts.compare(key, before.get(key).copied(), after.get(key).copied(), true);
    }
    let change = parts.change(old, new, &[]);
    (change != Change::None).then(|| parts.view(change, &[("Name", name.into())]))
}

/// Where one of several objects of a name stands: first what was edited, then what came, then what
/// went; of those what has fewer fields.
fn place_of_object(object: &Value) -> (usize, usize, String) {
    let changes = [Change::Edited, Change::Added, Change::Deleted, Change::None];
    let change = changes.iter().position(|change| object["Type"] == change.name());
    let fields = items(object.get("Fields"));
    let text = |field: &Value| {
        let part = |name: &str| field[name].as_str().unwrap_or_default().to_owned();
        format!("{}\0{}\0{}\0", part("Name"), part("Old"), part("New"))
    };
    (change.unwrap_or(changes.len()), fields.len(), fields.iter().map(text).collect())
}

/// Compares the named elements of a list, also those that are the same.
fn by_name(
    old: Option<&Value>,
    new: Option<&Value>,
    list: &str,
    diff: impl Fn(Option<&Value>, Option<&Value>) -> Value,
) -> Vec<Value> {
    let elements_of = |job: Option<&Value>| -> BTreeMap<String, Value> {
        let elements = items(job.and_then(|job| job.get(list)));
        let name = |value: &Value| value["Name"].as_str().unwrap_or_default().to_owned();
        elements.iter().map(|value| (name(value), value.clone())).collect()
    };
    let (before, after) = (elements_of(old), elements_of(new));
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    keys.into_iter().map(|name| diff(before.get(name), after.get(name))).collect()
}

fn name(old: Option<&Value>, new: Option<&Value>) -> Value {
    new.or(old).and_then(|value| value.get("Name")).cloned().unwrap_or_default()
}

fn with_annotations(mut diff: Value) -> Value {
    diff["Annotations"] = Value::Null;
    diff
}

fn field(name: &str, change: Change, old: &str, new: &str) -> Value {
    json!({ "Type": change.name(), "Name": name, "Old": old, "New": new, "Annotations": null })
}

fn object_name(key: &str) -> &str {
    OBJECT_NAMES.iter().find(|(field, _)| *field == key).map_or(key, |(_, name)| name)
}

fn entries(value: Option<&Value>) -> BTreeMap<&str, &Value> {
    let object = value.and_then(Value::as_object);
    object.into_iter().flatten().map(|(key, value)| (key.as_str(), value)).collect()
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A value that is there, whatever it is.
fn some_if(there: bool) -> Option<&'static Value> {
    there.then_some(&Value::Null)
}

/// A plain value as text; null and absent are empty.
fn scalar(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn flatten(prefix: &str, value: &Value, out: &mut BTreeMap<String, Value>) {
    let inner = |key: &str| match prefix {
        "" => key.to_owned(),
        prefix => format!("{prefix}[{key}]"),
    };
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| flatten(&inner(key), value, out));
        }
        Value::Array(list) => {
            for (position, value) in list.iter().enumerate() {
                flatten(&inner(&position.to_string()), value, out);
            }
        }
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.insert(prefix.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Value {
        json!({
            "ID": "web", "Name": "web", "Priority": 50, "Version": 3, "Status": "running",
            "Datacenters": ["dc1"], "Meta": { "owner": "ops" }, "Stop": false,
            "Constraints": [{ "LTarget": "${attr.kernel.name}", "RTarget": "linux", "Operand": "=" }],
            "TaskGroups": [{
                "Name": "web", "Count": 2,
                "RestartPolicy": { "Attempts": 2, "Mode": "fail" },
                "Tasks": [{
                    "Name": "server", "Driver": "raw_exec",
                    "Config": { "command": "/bin/sleep", "args": ["1"] },
                    "Env": null, "Resources": { "CPU": 100, "MemoryMB": 64 },
                }],
            }],
        })
    }

    fn shown(parts: &Value) -> Vec<String> {
        let of = |part: &Value| {
            format!("{} {}: {} => {}", part["Type"], part["Name"], part["Old"], part["New"])
                .replace('"', "")
        };
        parts.as_array().into_iter().flatten().map(of).collect()
    }

    #[test]
    fn the_same_job_differs_in_nothing() {
        let mut other = job();
        other["Version"] = 4.into();
        other["Status"] = "dead".into();
        // Only the current version says when it was due last.
        other["PeriodicLaunches"] = json!({ "LastDue": 1, "Missed": 0, "Overlapped": 0 });
        let diff = job_diff(Some(&job()), Some(&other));
        assert_eq!(diff["Type"], "None");
        assert_eq!(diff["Fields"], Value::Null);
        assert_eq!(diff["TaskGroups"][0]["Type"], "None");
        assert_eq!(diff["TaskGroups"][0]["Tasks"][0]["Type"], "None");
    }

    #[test]
    fn each_kind_of_change_is_named_where_it_is() {
        let mut new = job();
        new["Priority"] = 70.into();
        new["Meta"] = json!({ "owner": "dev", "new": "1" });
        new["Datacenters"] = json!(["dc2", "dc1"]);
        new["Constraints"] = json!([]);
        new["TaskGroups"][0]["Count"] = 3.into();
        new["TaskGroups"][0]["RestartPolicy"]["Attempts"] = 5.into();
        new["TaskGroups"][0]["Tasks"][0]["Config"]["args"] = json!(["1", "2"]);
        new["TaskGroups"][0]["Tasks"][0]["Env"] = json!({ "A": "b" });
        let diff = job_diff(Some(&job()), Some(&new));
        assert_eq!(diff["Type"], "Edited");
        assert_eq!(diff["ID"], "web");
        assert_eq!(
            shown(&diff["Fields"]),
            [
                "Added Meta[new]:  => 1",
                "Edited Meta[owner]: ops => dev",
                "Edited Priority: 50 => 70"
            ]
        );
        let objects = &diff["Objects"];
        assert_eq!(objects[1]["Name"], "Constraint");
        assert_eq!(objects[1]["Type"], "Deleted");
        assert_eq!(objects[0]["Name"], "Datacenters");
        assert_eq!(
            shown(&objects[0]["Fields"]),
            ["Added Datacenters:  => dc2", "None Datacenters: dc1 => dc1"]
        );
        let group = &diff["TaskGroups"][0];
        assert_eq!(shown(&group["Fields"]), ["Edited Count: 2 => 3"]);
        assert_eq!(
            shown(&group["Objects"][0]["Fields"]),
            ["Edited Attempts: 2 => 5", "None Mode: fail => fail"]
        );
        let task = &group["Tasks"][0];
        assert_eq!(shown(&task["Fields"]), ["Added Env[A]:  => b"]);
        assert_eq!(
            shown(&task["Objects"][0]["Fields"]),
            [
                "None args[0]: 1 => 1",
                "Added args[1]:  => 2",
                "None command: /bin/sleep => /bin/sleep"
            ]
        );
    }

    #[test]
    fn groups_and_tasks_come_and_go_by_name() {
        let mut new = job();
        new["TaskGroups"][0]["Name"] = "api".into();
        let diff = job_diff(Some(&job()), Some(&new));
        let changes: Vec<_> = items(diff.get("TaskGroups"))
            .iter()
            .map(|group| {
                (group["Name"].clone(), group["Type"].clone(), group["Tasks"][0]["Type"].clone())
            })
            .collect();
        assert_eq!(
            changes,
            [
                ("api".into(), "Added".into(), "Added".into()),
                ("web".into(), "Deleted".into(), "Deleted".into())
            ]
        );
        let first = job_diff(None, Some(&job()));
        assert_eq!(first["Type"], "Added");
        assert!(shown(&first["Fields"]).contains(&"Added Priority:  => 50".to_owned()));
        assert_eq!(first["TaskGroups"][0]["Tasks"][0]["Objects"][0]["Type"], "Added");
    }

    #[test]
    fn another_order_of_a_list_is_no_change() {
        let (mut old, mut new) = (job(), job());
        old["Datacenters"] = json!(["a", "b"]);
        new["Datacenters"] = json!(["b", "a"]);
        assert_eq!(job_diff(Some(&old), Some(&new))["Type"], "None");
    }
}
