//! References (`${…}`) in what only the agent resolves: meta, environment, driver configuration,
//! user, services. One that no task of the group can resolve stays as it is written; this is said
//! by name and place, and never refused, since a shell's own `${X}` looks the same.

use std::collections::BTreeSet;

use fsm::{
    JobSpec, Text,
    job::{Task, TaskGroup},
};
use serde_json::Value;

use super::fields::{Report, quoted};
use crate::suggest::nearest;

/// What a task is told of itself. `CPU_CORES`, `PARENT_CGROUP`, `ALLOC_IP_…` and the like are
/// Nomad's for what is not built.
const OWN: [&str; 19] = [
    "NOMAD_ALLOC_DIR",
    "NOMAD_ALLOC_ID",
    "NOMAD_ALLOC_INDEX",
    "NOMAD_ALLOC_NAME",
    "NOMAD_CPU_LIMIT",
    "NOMAD_DC",
    "NOMAD_GROUP_NAME",
    "NOMAD_JOB_ID",
    "NOMAD_JOB_NAME",
    "NOMAD_JOB_PARENT_ID",
    "NOMAD_MEMORY_LIMIT",
    "NOMAD_MEMORY_MAX_LIMIT",
    "NOMAD_NAMESPACE",
    "NOMAD_REGION",
    "NOMAD_SECRETS_DIR",
    "NOMAD_SHORT_ALLOC_ID",
    "NOMAD_TASK_DIR",
    "NOMAD_TASK_NAME",
    "TMPDIR",
];
/// What a task has of its agent's environment.
const OF_HOST: [&str; 7] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ"];
/// What there is for each port.
const OF_PORT: [&str; 7] =
    ["PORT", "ALLOC_PORT", "HOST_PORT", "IP", "HOST_IP", "ADDR", "HOST_ADDR"];
/// What services may refer to besides, in their names.
const OF_SERVICE: [&str; 4] = ["BASE", "JOB", "TASKGROUP", "TASK"];

/// The names that a place may use.
struct Scope {
    names: BTreeSet<String>,
}

impl Scope {
    fn of_group(group: &TaskGroup) -> Self {
        let mut names: BTreeSet<String> =
            OWN.into_iter().chain(OF_HOST).map(str::to_owned).collect();
        let ports = group.network.iter().flat_map(|network| &network.ports);
        for label in ports.map(|port| &port.label) {
            let spellings = [label.to_string(), label.replace('-', "_")];
            for (kind, label) in
                OF_PORT.iter().flat_map(|kind| spellings.iter().map(move |s| (kind, s)))
            {
                names.insert(format!("NOMAD_{kind}_{label}"));
            }
        }
        Self { names }
    }

    /// With the variables that come of meta.
    fn with_meta<'k>(&self, keys: impl Iterator<Item = &'k Text>) -> Self {
        let mut names = self.names.clone();
        for key in keys {
            for key in [key.to_string(), key.to_uppercase()] {
                let with = |fits: fn(char) -> bool| -> String {
                    key.chars().map(|c| if fits(c) { c } else { '_' }).collect()
                };
                for key in [
                    with(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.'),
                    with(|c| c.is_ascii_alphanumeric() || c == '_'),
                ] {
                    names.insert(format!("NOMAD_META_{key}"));
                }
                names.insert(format!("NOMAD_META_{key}"));
            }
        }
        Self { names }
    }

    fn with(&self, more: impl IntoIterator<Item = String>) -> Self {
        Self { names: self.names.iter().cloned().chain(more).collect() }
    }

    fn knows(&self, name: &str) -> bool {
        let of_env = name.strip_prefix("env[").and_then(|name| name.strip_suffix(']'));
        if let Some(key) = of_env {
            return self.names.contains(key.trim_matches('"'));
        }
        let of_node =
            ["attr.", "meta."].iter().any(|kind| name.len() > kind.len() && name.starts_with(kind));
        of_node
            || name == "node.region"
            || scheduler::NODE_TARGETS.contains(&name)
            || self.names.contains(name)
    }

    /// Warns of the references in a text that nothing here resolves.
    fn check(&self, text: &str, at: &dyn Fn() -> String, report: &mut Report) {
        if !text.contains("${") {
            return;
        }
        let mut said = BTreeSet::new();
        for name in references(text) {
            if self.knows(name) || !said.insert(name) {
                continue;
            }
            let known = self.names.iter().map(String::as_str);
            let known = known.chain(scheduler::NODE_TARGETS).chain(["node.region"]);
            let hint = nearest(name, known).filter(|_| name.contains(['.', '_']));
            let hint = hint.map_or_else(String::new, |hint| format!("; did you mean ${{{hint}}}?"));
            let reference = quoted(&format!("${{{name}}}"));
            report.warning(format!(
                "{}: {reference} is not known and stays as it is written{hint}",
                at()
            ));
        }
    }

    fn check_value(&self, value: &Value, at: &dyn Fn() -> String, report: &mut Report) {
        match value {
            Value::String(text) => self.check(text, at, report),
            Value::Array(items) => {
                for (place, item) in items.iter().enumerate() {
                    self.check_value(item, &|| format!("{}[{place}]", at()), report);
                }
            }
            Value::Object(map) => {
                for (key, item) in map {
                    self.check_value(item, &|| format!("{}.{key}", at()), report);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// What stands between `${` and `}` and has the form of a reference. `${X:-default}` is a shell's.
fn references(text: &str) -> impl Iterator<Item = &str> {
    text.split("${").skip(1).filter_map(|rest| {
        let name = rest.split_once('}')?.0.trim();
        let inner = name.strip_prefix("env[").and_then(|name| name.strip_suffix(']'));
        let inner = inner.map_or(name, |key| key.trim_matches('"'));
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        (!inner.is_empty() && inner.chars().all(fits)).then_some(name)
    })
}

/// Warns of every reference of a job that cannot be resolved.
pub(super) fn check(spec: &JobSpec, report: &mut Report) {
    for (number, group) in spec.groups.iter().enumerate() {
        let path = format!("Job.TaskGroups[{number}]");
        let scope = Scope::of_group(group);
        if number == 0 {
            // A job's meta is seen by all groups; the first one speaks for them.
            check_map(&scope, &spec.meta, "Job.Meta", report);
        }
        check_map(&scope, &group.meta, &format!("{path}.Meta"), report);
        // A dispatch may give these keys, and a job is told what they are when it is registered.
        let declared = spec.parameterized.iter();
        let declared =
            declared.flat_map(|block| block.meta_required.iter().chain(&block.meta_optional));
        let inherited = scope.with_meta(spec.meta.keys().chain(group.meta.keys()).chain(declared));
        for (number, task) in group.tasks.iter().enumerate() {
            check_task(&scope, &inherited, task, &format!("{path}.Tasks[{number}]"), report);
        }
        check_services(&inherited, group, &path, report);
    }
}

fn check_map(
    scope: &Scope,
    map: &std::collections::BTreeMap<Text, Text>,
    path: &str,
    report: &mut Report,
) {
    for (key, value) in map {
        scope.check(key, &|| path.to_owned(), report);
        scope.check(value, &|| format!("{path}[{}]", quoted(key)), report);
    }
}

fn check_task(scope: &Scope, inherited: &Scope, task: &Task, path: &str, report: &mut Report) {
    check_map(scope, &task.meta, &format!("{path}.Meta"), report);
    let scope = inherited.with_meta(task.meta.keys());
    check_map(&scope, &task.env, &format!("{path}.Env"), report);
    let scope = scope.with(task.env.keys().map(ToString::to_string));
    scope.check(&task.user, &|| format!("{path}.User"), report);
    if task.config_json.contains("${")
        && let Ok(config) = serde_json::from_str(&task.config_json)
    {
        scope.check_value(&config, &|| format!("{path}.Config"), report);
    }
}

fn check_services(inherited: &Scope, group: &TaskGroup, path: &str, report: &mut Report) {
    let Ok(Value::Array(services)) = serde_json::from_str(&group.services_json) else { return };
    for service in services.iter().filter(|service| service.to_string().contains("${")) {
        let name = service.get("Name").and_then(Value::as_str).unwrap_or_default();
        let of = service.get("TaskName").and_then(Value::as_str).unwrap_or_default();
        let task = group.tasks.iter().find(|task| &*task.name == of);
        let mut scope = inherited.with(OF_SERVICE.map(str::to_owned));
        if let Some(task) = task {
            let env = task.env.keys().map(ToString::to_string);
            scope = scope.with_meta(task.meta.keys()).with(env);
        }
        scope.check_value(service, &|| format!("{path}.Services[{}]", quoted(name)), report);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::{Value, json};

    use crate::to_spec;

    /// A job that says `text` in one place.
    fn job(field: &str, text: &str) -> Value {
        let mut job = json!({
            "ID": "j",
            "Meta": {"of.job": "1"},
            "TaskGroups": [{
                "Name": "g",
                "Meta": {"of-group": "2"},
                "Networks": [{"DynamicPorts": [{"Label": "a-b"}]}],
                "Services": [{"Name": "s", "PortLabel": "a-b"}],
                "Tasks": [{
                    "Name": "t", "Driver": "raw_exec",
                    "Meta": {"of_task": "3"},
                    "Env": {"MINE": "4"},
                    "Config": {"command": "x"},
                }],
            }],
        });
        let (group, text) = ("/TaskGroups/0", Value::from(text));
        let (at, key, value) = match field {
            "job meta" => ("/Meta".to_owned(), "k", text),
            "group meta" => (format!("{group}/Meta"), "k", text),
            "task meta" => (format!("{group}/Tasks/0/Meta"), "k", text),
            "env" => (format!("{group}/Tasks/0/Env"), "K", text),
            "command" => (format!("{group}/Tasks/0/Config"), "command", text),
            "args" => (format!("{group}/Tasks/0/Config"), "args", json!(["-c", text])),
            "user" => (format!("{group}/Tasks/0"), "User", text),
            "service address" => (format!("{group}/Services/0"), "Address", text),
            "service tags" => (format!("{group}/Services/0"), "Tags", json!([text])),
            "service meta" => (format!("{group}/Services/0"), "Meta", json!({"k": text})),
            other => panic!("no field {other}"),
        };
        job.pointer_mut(&at).unwrap()[key] = value;
        job
    }

    const FIELDS: [(&str, &str); 10] = [
        ("job meta", "Job.Meta[\"k\"]"),
        ("group meta", "Job.TaskGroups[0].Meta[\"k\"]"),
        ("task meta", "Job.TaskGroups[0].Tasks[0].Meta[\"k\"]"),
        ("env", "Job.TaskGroups[0].Tasks[0].Env[\"K\"]"),
        ("command", "Job.TaskGroups[0].Tasks[0].Config.command"),
        ("args", "Job.TaskGroups[0].Tasks[0].Config.args[1]"),
        ("user", "Job.TaskGroups[0].Tasks[0].User"),
        ("service address", "Job.TaskGroups[0].Services[\"s\"].Address"),
        ("service tags", "Job.TaskGroups[0].Services[\"s\"].Tags[0]"),
        ("service meta", "Job.TaskGroups[0].Services[\"s\"].Meta.k"),
    ];

    /// Warnings about references, each with place and name.
    fn warnings(field: &str, text: &str) -> Vec<String> {
        let warnings = to_spec(&job(field, text)).unwrap().warnings;
        warnings.into_iter().filter(|warning| warning.contains("stays as it is written")).collect()
    }

    /// Field × kind of name: what nothing resolves is named with its place, and nothing else is.
    #[test]
    fn references_that_nothing_resolves_are_named_with_their_place() {
        for (field, place) in FIELDS {
            let is_meta = field.ends_with(" meta") && field != "service meta";
            let sees_env = !is_meta && field != "env" && !field.starts_with("service");
            for (text, is_known) in [
                ("${NOMAD_ALLOC_ID}-${NOMAD_DC}/${node.class}", true),
                ("${node.region} ${node.unique.name} ${attr.cpu.arch} ${meta.rack}", true),
                ("${NOMAD_PORT_a-b} ${NOMAD_PORT_a_b} ${NOMAD_HOST_ADDR_a-b}", true),
                ("${PATH} $${X} ${X:-1} $X {x}", false),
                ("${X:-1} $X {x} ${}", true),
                ("${NOMAD_PORT_web}", false),
                ("${NOMAD_ALLOC_UD}", false),
                ("${node.hostname}", false),
                ("${attr.}", false),
                ("${env[\"NOMAD_JOB_ID\"]}", true),
                ("${env[\"NO_SUCH\"]}", false),
                ("${NOMAD_META_of.job} ${NOMAD_META_OF_JOB} ${NOMAD_META_of-group}", !is_meta),
                ("${MINE} ${env[\"MINE\"]}", sees_env),
            ] {
                let said = warnings(field, text);
                assert_eq!(said.is_empty(), is_known, "{field} = {text}: {said:?}");
                assert!(said.iter().all(|one| one.starts_with(place)), "{field}: {said:?}");
            }
        }
        let mut dispatched = job("command", "${NOMAD_META_to} ${NOMAD_META_FROM} ${NOMAD_META_x}");
        dispatched["Type"] = "batch".into();
        dispatched["ParameterizedJob"] = json!({"MetaRequired": ["to"], "MetaOptional": ["from"]});
        let mut said = to_spec(&dispatched).unwrap().warnings;
        said.retain(|warning| warning.contains("stays as it is written"));
        assert!(said.len() == 1 && said[0].contains("NOMAD_META_x"), "{said:?}");
        let said = warnings("command", "${NOMAD_ALLOC_UD}");
        assert!(said[0].contains("\"${NOMAD_ALLOC_UD}\" is not known"), "{said:?}");
        assert!(said[0].contains("did you mean ${NOMAD_ALLOC_ID}?"), "{said:?}");
    }
}
