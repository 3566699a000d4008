//! The environment that a task gets: Nomad's names, then the task's own, interpolated. Nothing of the agent's environment gets in
//! but the few variables that a program on this host needs.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    fingerprint::with_port,
    interpolate::Names,
    spec::{AllocationSpec, TaskSpec},
    state::AllocationDirectory,
};

/// What a program run on the host itself gets from the agent's environment.
const HOST_VARIABLES: [&str; 7] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ"];

/// The names for a task: its whole environment and the node's properties.
pub(crate) fn names(
    spec: &AllocationSpec,
    task: &TaskSpec,
    directory: &AllocationDirectory,
    node: &Arc<BTreeMap<String, String>>,
) -> Names {
    let mut env = host_variables();
    // A job that names no region says `global`: what asks for that is refused where the servers have a name of their own.
    let region = node.get("node.region").unwrap_or(&spec.region);
    identity(spec, task, region, &mut env);
    let own = directory.task(&task.name);
    let mut set = |key: &str, value: String| env.insert(key.to_owned(), value);
    set("NOMAD_ALLOC_DIR", directory.shared().display().to_string());
    set("NOMAD_TASK_DIR", own.join("local").display().to_string());
    set("NOMAD_SECRETS_DIR", own.join("secrets").display().to_string());
    set("TMPDIR", own.join("tmp").display().to_string());
    ports(spec, &mut env);
    for (key, value) in &task.meta {
        let key = clean(key);
        env.insert(format!("NOMAD_META_{}", key.to_uppercase()), value.clone());
        env.insert(format!("NOMAD_META_{key}"), value.clone());
    }
    let mut names = Names { env, node: Arc::clone(node) };
    // The task's own variables may refer to all of the above, not to each other.
    let own: Vec<_> =
        task.env.iter().map(|(key, value)| (names.expand(key), names.expand(value))).collect();
    names.env.extend(own);
    names
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
    if task.memory_max_mb > 0 {
        set("MEMORY_MAX_LIMIT", task.memory_max_mb.to_string());
    }
}

fn ports(spec: &AllocationSpec, env: &mut BTreeMap<String, String>) {
    for port in &spec.ports {
        let label = clean(&port.label);
        env.insert(format!("NOMAD_PORT_{label}"), port.to.to_string());
        env.insert(format!("NOMAD_HOST_PORT_{label}"), port.value.to_string());
        env.insert(format!("NOMAD_IP_{label}"), spec.address.clone());
        env.insert(format!("NOMAD_HOST_IP_{label}"), spec.address.clone());
        let address = with_port(&spec.address, port.value);
        env.insert(format!("NOMAD_ADDR_{label}"), address.clone());
        env.insert(format!("NOMAD_HOST_ADDR_{label}"), address);
    }
}

/// What cannot be in a variable's name becomes `_`.
fn clean(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::testing;

    #[test]
    fn a_task_sees_itself_its_ports_and_its_meta() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (state, _) =
            crate::agent::state::StateDirectory::open(directory.path()).expect("a state directory");
        let mut message = testing::message([3; 16], "web", &["server"]);
        message.address = "10.0.0.1".to_owned();
        message.ports.push(proto::v1::Port { label: "http-1".to_owned(), value: 8080, to: 80 });
        message.tasks[0].meta.insert("own.er".to_owned(), "ann".to_owned());
        message.tasks[0]
            .env
            .insert("URL".to_owned(), "http://${NOMAD_ADDR_http_1}/${NODE}".to_owned());
        let spec = AllocationSpec::parse(message).expect("a valid message");
        let names = names(&spec, &spec.tasks[0], &state.allocation(spec.id), &Arc::default());
        for (key, value) in [
            ("NOMAD_PORT_http_1", "80"),
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
        let (state, _) =
            crate::agent::state::StateDirectory::open(directory.path()).expect("a state directory");
        let mut message = testing::message([3; 16], "web", &["server"]);
        "global".clone_into(&mut message.region);
        let spec = AllocationSpec::parse(message).expect("a valid message");
        let node = Arc::new(BTreeMap::from([("node.region".to_owned(), "eu".to_owned())]));
        let names = names(&spec, &spec.tasks[0], &state.allocation(spec.id), &node);
        assert_eq!(names.env["NOMAD_REGION"], "eu");
        assert_eq!(names.expand("${NOMAD_REGION} ${node.region}"), "eu eu");
    }

    #[test]
    fn an_address_of_ipv6_stands_in_brackets_beside_its_port() {
        let mut message = testing::message([3; 16], "web", &["server"]);
        message.address = "fd00::1".to_owned();
        message.ports.push(proto::v1::Port { label: "http".to_owned(), value: 8080, to: 0 });
        let spec = AllocationSpec::parse(message).expect("a valid message");
        let mut env = BTreeMap::new();
        ports(&spec, &mut env);
        for (key, value) in [
            ("NOMAD_IP_http", "fd00::1"),
            ("NOMAD_ADDR_http", "[fd00::1]:8080"),
            ("NOMAD_HOST_ADDR_http", "[fd00::1]:8080"),
        ] {
            assert_eq!(env.get(key).map(String::as_str), Some(value), "{key}");
        }
    }
}
