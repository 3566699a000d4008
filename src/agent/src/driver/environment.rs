//! Builds the environment of a task: Nomad's variables, then the task's own, with `${…}` replaced.
//! From the agent's environment a task gets only the few variables that a program on this host
//! needs.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    allocation::{
        spec::{AllocationSpec, TaskSpec},
        state::AllocationDirectory,
    },
    driver::interpolate::{Names, Room, TooLong},
    machine::address::with_port,
};

/// The variables of the agent's environment that a task on the host gets.
const HOST_VARIABLES: [&str; 7] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ"];

/// The names for a task: its whole environment, other spellings of it, and the node's properties.
///
/// Meta may refer to the variables set before it and to the node. A task's own variables may refer
/// to meta too. Neither may refer to its own kind.
///
/// The result can be many times larger than the job's texts. So it is built when a task starts, for
/// a few tasks at a time, and is not kept.
pub(crate) fn names(
    spec: &AllocationSpec,
    task: &TaskSpec,
    directory: &AllocationDirectory,
    node: &Arc<BTreeMap<String, String>>,
    room: &mut Room,
) -> Result<Names, TooLong> {
    let mut env = host_variables();
    // The node's region is used first. A job without a region has `global`, and servers with
    // another region name would refuse requests for that.
    let region = node.get("node.region").unwrap_or(&spec.region);
    identity(spec, task, region, &mut env);
    let own = directory.task(&task.name);
    let mut set = |key: &str, value: String| env.insert(key.to_owned(), value);
    set("NOMAD_ALLOC_DIR", directory.shared().display().to_string());
    set("NOMAD_TASK_DIR", own.join("local").display().to_string());
    set("NOMAD_SECRETS_DIR", own.join("secrets").display().to_string());
    set("TMPDIR", own.join("tmp").display().to_string());
    let mut names = Names { env, spellings: BTreeMap::new(), node: Arc::clone(node) };
    publish(ports(spec), &mut names);
    // A task's own meta overrides the group's.
    let of_group = spec.meta.iter().filter(|(key, _)| !task.meta.contains_key(*key));
    let meta = expanded(of_group.chain(&task.meta), &names, room)?;
    publish(meta_variables(&meta), &mut names);
    let mut own = Names::default();
    publish(expanded(task.env.iter(), &names, room)?, &mut own);
    names.env.extend(own.env);
    names.spellings.extend(own.spellings);
    Ok(names)
}

fn expanded<'a>(
    pairs: impl Iterator<Item = (&'a String, &'a String)>,
    names: &Names,
    room: &mut Room,
) -> Result<BTreeMap<String, String>, TooLong> {
    let mut pair = |text: &str| names.expand(text, room);
    pairs.map(|(key, value)| Ok((pair(key)?, pair(value)?))).collect()
}

/// Adds variables to the environment, under names that are legal there. Characters that are not
/// legal become `_`. If that gives a name that is taken, the variable keeps the job's spelling.
/// `NOMAD_META_a.b` keeps its dot, as in Nomad. If `NOMAD_META_a_b` is free, it is set too, because
/// shells cannot read a name with a dot.
fn publish(variables: BTreeMap<String, String>, names: &mut Names) {
    let mut env = BTreeMap::new();
    let (fitting, others): (Vec<_>, Vec<_>) =
        variables.iter().partition(|(key, _)| clean(key, true) == **key);
    for (key, value) in fitting {
        env.insert(key.clone(), value.clone());
    }
    for (key, value) in others {
        let cleaned = clean(key, true);
        match env.get(&cleaned) {
            None => drop(env.insert(cleaned, value.clone())),
            Some(other) if other != value && !key.contains('=') => {
                env.insert(key.clone(), value.clone());
            }
            Some(_) => {}
        }
    }
    for (key, value) in &variables {
        env.entry(clean(key, false)).or_insert_with(|| value.clone());
    }
    names.env.extend(env);
    names.spellings.extend(variables);
}

/// Meta as variables: each key as it is written, and in capitals. If both give one name, the key as
/// written wins.
fn meta_variables(meta: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let named = |(key, value): (String, &String)| (format!("NOMAD_META_{key}"), value.clone());
    let capitals = meta.iter().map(|(key, value)| (key.to_uppercase(), value));
    let written = meta.iter().map(|(key, value)| (key.clone(), value));
    capitals.chain(written).map(named).collect()
}

fn host_variables() -> BTreeMap<String, String> {
    let mut env: BTreeMap<_, _> = HOST_VARIABLES
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), std::env::var(key).ok()?)))
        .collect();
    env.entry("PATH".to_owned()).or_insert_with(|| {
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()
    });
    env
}

fn identity(
    spec: &AllocationSpec,
    task: &TaskSpec,
    region: &str,
    env: &mut BTreeMap<String, String>,
) {
    let mut set = |key: &str, value: String| {
        if !value.is_empty() {
            env.insert(format!("NOMAD_{key}"), value);
        }
    };
    let id = spec.id.to_string();
    set("SHORT_ALLOC_ID", id.chars().take(8).collect());
    set("ALLOC_ID", id);
    set("ALLOC_NAME", spec.name.clone());
    set("ALLOC_INDEX", spec.name_index.to_string());
    set("TASK_NAME", task.name.clone());
    set("GROUP_NAME", spec.group.clone());
    set("JOB_ID", spec.job_id.clone());
    set("JOB_NAME", spec.job_name.clone());
    set("JOB_PARENT_ID", spec.job_parent_id.clone());
    set("NAMESPACE", spec.namespace.clone());
    set("REGION", region.to_owned());
    set("DC", spec.datacenter.clone());
    set("CPU_LIMIT", task.cpu_mhz.to_string());
    set("MEMORY_LIMIT", task.memory_mb.to_string());
    // `memory_max` is not set, or unlimited.
    if ![0, fsm::job::TaskResources::UNLIMITED].contains(&task.memory_max_mb) {
        set("MEMORY_MAX_LIMIT", task.memory_max_mb.to_string());
    }
}

fn ports(spec: &AllocationSpec) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for port in &spec.ports {
        let label = &port.label;
        let mut set =
            |kind: &str, value: String| out.insert(format!("NOMAD_{kind}_{label}"), value);
        set("PORT", port.to.to_string());
        set("ALLOC_PORT", port.to.to_string());
        set("HOST_PORT", port.value.to_string());
        set("IP", spec.address.clone());
        set("HOST_IP", spec.address.clone());
        let address = with_port(&spec.address, port.value);
        set("ADDR", address.clone());
        set("HOST_ADDR", address);
    }
    out
}

/// Replaces each character that is not legal in a variable's name by `_`.
fn clean(key: &str, with_dots: bool) -> String {
    let fits = |place: usize, c: char| {
        let letter = c.is_ascii_alphabetic() || c == '_' || (with_dots && c == '.');
        letter || (place > 0 && c.is_ascii_digit())
    };
    key.chars().enumerate().map(|(place, c)| if fits(place, c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// The names for the first task.
    fn names_of(
        spec: &AllocationSpec,
        directory: &AllocationDirectory,
        node: &Arc<BTreeMap<String, String>>,
    ) -> Names {
        let room = &mut Room::default();
        names(spec, &spec.tasks[0], directory, node, room).expect("short texts")
    }

    #[test]
    fn a_task_has_the_meta_of_its_group_and_its_own_goes_over_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (state, _) = crate::allocation::state::StateDirectory::open(directory.path())
            .expect("a state directory");
        let mut both = testing::message([3; 16], "web", &["a", "b"]);
        let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        both.meta = [("owner", "job"), ("team", "group")].map(pair).into();
        both.tasks[0].meta = [("team", "task")].map(pair).into();
        let spec = AllocationSpec::parse(both).expect("a valid message");
        let (directory, node) = (state.allocation(spec.id), Arc::default());
        for (task, team) in spec.tasks.iter().zip(["task", "group"]) {
            let names = names(&spec, task, &directory, &node, &mut Room::default());
            let env = names.expect("short texts").env;
            let of = |key: &str| env.get(key).map(String::as_str);
            assert_eq!((of("NOMAD_META_team"), of("NOMAD_META_owner")), (Some(team), Some("job")));
        }
    }

    /// The meta of a group with many tasks is stored once, however large it is.
    #[test]
    fn meta_that_a_group_gives_to_all_its_tasks_is_kept_once() {
        let names: Vec<String> = (0..400).map(|n| format!("t{n}")).collect();
        let tasks: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut message = testing::message([3; 16], "web", &tasks);
        message.meta.insert("big".to_owned(), "m".repeat(800 << 10));
        let spec = AllocationSpec::parse(message).expect("a valid message");
        let stored = serde_json::to_vec(&spec).expect("a specification");
        assert!(stored.len() < 2 << 20, "{} bytes", stored.len());
    }

    #[test]
    fn a_task_sees_itself_its_ports_and_its_meta() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (state, _) = crate::allocation::state::StateDirectory::open(directory.path())
            .expect("a state directory");
        let mut message = testing::message([3; 16], "web", &["server"]);
        message.address = "10.0.0.1".to_owned();
        message.ports.push(proto::v1::Port { label: "http-1".to_owned(), value: 8080, to: 80 });
        message.tasks[0].meta.insert("own.er".to_owned(), "ann".to_owned());
        message.tasks[0]
            .env
            .insert("URL".to_owned(), "http://${NOMAD_ADDR_http_1}/${NODE}".to_owned());
        let spec = AllocationSpec::parse(message).expect("a valid message");
        let names = names_of(&spec, &state.allocation(spec.id), &Arc::default());
        for (key, value) in [
            ("NOMAD_PORT_http_1", "80"),
            ("NOMAD_ALLOC_PORT_http_1", "80"),
            ("NOMAD_HOST_PORT_http_1", "8080"),
            ("NOMAD_HOST_IP_http_1", "10.0.0.1"),
            ("NOMAD_ADDR_http_1", "10.0.0.1:8080"),
            ("NOMAD_META_OWN_ER", "ann"),
            ("NOMAD_META_own_er", "ann"),
            ("NOMAD_TASK_NAME", "server"),
            ("NOMAD_JOB_ID", "web"),
            ("URL", "http://10.0.0.1:8080/${NODE}"),
        ] {
            assert_eq!(names.env.get(key).map(String::as_str), Some(value), "{key}");
        }
        assert!(names.env["NOMAD_TASK_DIR"].ends_with("/server/local"), "{:?}", names.env);
    }

    #[test]
    fn the_region_is_that_of_the_node() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (state, _) = crate::allocation::state::StateDirectory::open(directory.path())
            .expect("a state directory");
        let mut message = testing::message([3; 16], "web", &["server"]);
        "global".clone_into(&mut message.region);
        let spec = AllocationSpec::parse(message).expect("a valid message");
        let node = Arc::new(BTreeMap::from([("node.region".to_owned(), "eu".to_owned())]));
        let names = names_of(&spec, &state.allocation(spec.id), &node);
        assert_eq!(names.env["NOMAD_REGION"], "eu");
        let expanded = names.expand("${NOMAD_REGION} ${node.region}", &mut Room::default());
        assert_eq!(expanded.as_deref(), Ok("eu eu"));
    }

    #[test]
    fn an_address_of_ipv6_stands_in_brackets_beside_its_port() {
        let mut message = testing::message([3; 16], "web", &["server"]);
        message.address = "fd00::1".to_owned();
        message.ports.push(proto::v1::Port { label: "http".to_owned(), value: 8080, to: 0 });
        let spec = AllocationSpec::parse(message).expect("a valid message");
        let env = ports(&spec);
        for (key, value) in [
            ("NOMAD_IP_http", "fd00::1"),
            ("NOMAD_ADDR_http", "[fd00::1]:8080"),
            ("NOMAD_HOST_ADDR_http", "[fd00::1]:8080"),
        ] {
            assert_eq!(env.get(key).map(String::as_str), Some(value), "{key}");
        }
    }

    /// Two keys never share a variable unless they are equal but for case; each reference finds its
    /// own.
    #[test]
    fn meta_keys_that_differ_stay_different() {
        let meta = |keys: &[&str]| -> BTreeMap<String, String> {
            keys.iter().map(|key| ((*key).to_owned(), format!("of {key}"))).collect()
        };
        for (keys, expected) in [
            (&["a.b", "A-B"][..], &[("a.b", "a.b"), ("A.B", "a.b"), ("A_B", "A-B")][..]),
            (&["a-b", "a_b"], &[("a_b", "a_b"), ("A_B", "a_b"), ("a-b", "a-b"), ("A-B", "a-b")]),
            (&["a", "A"], &[("a", "a"), ("A", "A")]),
            (&["a.b"], &[("a.b", "a.b"), ("a_b", "a.b"), ("A.B", "a.b"), ("A_B", "a.b")]),
            (&["x-1"], &[("x_1", "x-1"), ("X_1", "x-1")]),
        ] {
            let mut names = Names::default();
            publish(meta_variables(&meta(keys)), &mut names);
            for (key, of) in expected {
                let found = names.env.get(&format!("NOMAD_META_{key}"));
                assert_eq!(found, Some(&format!("of {of}")), "{keys:?}: {key} in {names:?}");
            }
            for key in keys {
                let text = format!("${{NOMAD_META_{key}}}");
                let expanded = names.expand(&text, &mut Room::default());
                assert_eq!(expanded, Ok(format!("of {key}")), "{keys:?}");
            }
        }
    }

    /// `job validate` warns of names that no task has, so it must know every name that a task has.
    #[test]
    fn every_variable_is_known_where_jobs_are_judged() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (state, _) = crate::allocation::state::StateDirectory::open(directory.path())
            .expect("a state directory");
        let mut message = testing::message([3; 16], "web", &["server"]);
        "web".clone_into(&mut message.job_parent_id);
        "dc1".clone_into(&mut message.datacenter);
        "global".clone_into(&mut message.region);
        message.ports.push(proto::v1::Port { label: "a-b".to_owned(), value: 8080, to: 80 });
        message.tasks[0].memory_max_mb = 7;
        message.tasks[0].meta.insert("x-y.z".to_owned(), "1".to_owned());
        let spec = AllocationSpec::parse(message).expect("a valid message");
        let names = names_of(&spec, &state.allocation(spec.id), &Arc::default());
        let all: Vec<_> = names.env.keys().chain(names.spellings.keys()).collect();
        assert!(all.len() > 35, "{all:?}");
        let args: Vec<_> = all.iter().map(|name| format!("${{{name}}}")).collect();
        let job = serde_json::json!({"ID": "j", "TaskGroups": [{
            "Name": "g",
            "Networks": [{"DynamicPorts": [{"Label": "a-b"}]}],
            "Tasks": [{
                "Name": "t", "Driver": "raw_exec", "Meta": {"x-y.z": "1"},
                "Config": {"command": "x", "args": args},
            }],
        }]});
        let warnings = jobspec::to_spec(&job).expect("a valid job").warnings;
        assert_eq!(warnings, Vec::<String>::new());
    }
}
