//! Machines whose agent is a script in shell, in folders of temporary directories.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{os::unix::fs::PermissionsExt as _, process::Child};

use fsm::{
    Text,
    pool::{DeclaredNode, InstanceType},
};

use super::*;
use crate::config::{AgentConfig, Sources};

/// A provider in a directory of its own. What it has started ends with it.
struct Host {
    provider: ProcessProvider,
    root: tempfile::TempDir,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.provider.end_all(Duration::from_mins(1)).unwrap();
    }
}

impl Host {
    /// Its agents run a script.
    fn new(script: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let binary = root.path().join("agent.sh");
        fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let machines = root.path().join("machines");
        let provider = ProcessProvider::open(&machines, Some(binary)).unwrap();
        Self { provider, root }
    }

    fn ask(&self, operation: &Operation) -> Outcome {
        let (servers, time_left) = (vec!["10.0.0.1:4647".to_owned()], Duration::from_mins(1));
        let known = std::collections::BTreeSet::new();
        let context = Context { cluster: "c1".into(), servers, time_left, known };
        self.provider.carry_out(operation, &context)
    }

    #[track_caller]
    fn create(&self, key: u8) -> Machine {
        match self.ask(&create(key)) {
            Ok(Answer::Created(machine)) => machine,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn describe(&self, key: u8) -> (MachineState, Text) {
        match self.ask(&describe(key, "")) {
            Ok(Answer::Described(description)) => (description.state, description.words),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn listed(&self) -> Vec<Text> {
        match self.ask(&Operation::List) {
            Ok(Answer::Listed(list)) => list.machines.into_iter().map(|m| m.provider_id).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn folder(&self, key: u8) -> Folder {
        self.provider.directory.folder(InstanceId([key; 16]))
    }

    /// How many agents of a machine live.
    fn agents(&self, key: u8) -> usize {
        let living = living(&self.provider.directory).unwrap().into_iter();
        let is_agent =
            |one: &living::Living| one.instance == InstanceId([key; 16]) && one.role == Role::Agent;
        living.filter(is_agent).count()
    }

    /// The folder of a machine that an earlier server began to make, and ended.
    fn begin(&self, key: u8) -> Folder {
        let folder = self.folder(key);
        folder.make().unwrap();
        let scope = self.provider.directory.scope().to_owned();
        let tags = with_cluster(&Tags::new(), "c1");
        folder.write_machine(&MachineFile { scope, tags }).unwrap();
        folder
    }
}

fn create(key: u8) -> Operation {
    Operation::Create(Box::new(Create {
        key: InstanceId([key; 16]),
        token: [9; 16],
        pool: "burst".into(),
        kind: InstanceType {
            cpu: 500,
            memory_mb: 256,
            node: DeclaredNode { datacenter: "dc1".into(), ..Default::default() },
            ..Default::default()
        },
        tags: Tags::new(),
    }))
}

fn describe(key: u8, provider_id: &str) -> Operation {
    Operation::Describe { instance: InstanceId([key; 16]), provider_id: provider_id.into() }
}

fn destroy(key: u8, provider_id: &str) -> Operation {
    Operation::Destroy { instance: InstanceId([key; 16]), provider_id: provider_id.into() }
}

fn set_tags(key: u8, provider_id: &str) -> Operation {
    let (instance, tags) = (InstanceId([key; 16]), Tags::new());
    Operation::SetTags { instance, provider_id: provider_id.into(), tags }
}

#[test]
fn a_machine_of_another_host_is_not_called_gone() {
    let (here, elsewhere) = (Host::new("exec sleep 1000"), Host::new("exec sleep 1000"));
    let machine = here.create(1);
    let id = &*machine.provider_id;
    assert!(id.starts_with(&format!("{}/", machine.scope)), "{id}");
    for call in [destroy(1, id), describe(1, id), set_tags(1, id)] {
        let error = elsewhere.ask(&call).unwrap_err();
        assert_eq!(error.class, ErrorClass::Transient, "{error}");
        assert!(error.detail.starts_with("the machine is one of "), "{error}");
    }
    assert!(!elsewhere.provider.directory.is_destroyed(InstanceId([1; 16])).unwrap());
    assert_eq!(here.listed(), std::slice::from_ref(&machine.provider_id));
    let gone = Ok(Answer::Destroyed(Destroyed::Gone));
    assert_eq!(here.ask(&destroy(1, id)), gone);
    assert_eq!(here.ask(&destroy(1, id)), gone, "once more");
    assert_eq!(here.ask(&destroy(1, "")), gone, "one that is known by its tag only");
}

#[test]
fn a_destroyed_machine_is_not_made_again() {
    let host = Host::new("exec sleep 1000");
    let machine = host.create(1);
    assert_eq!(host.create(1), machine, "the same key, the same machine");
    host.ask(&destroy(1, &machine.provider_id)).unwrap();
    host.ask(&destroy(2, "")).unwrap();
    for key in [1, 2] {
        let error = host.ask(&create(key)).unwrap_err();
        assert_eq!(error.class, ErrorClass::Fatal, "{error}");
    }
    assert!(host.listed().is_empty());
}

/// Until a forked child runs its own program it has the command line of its parent.
#[test]
fn a_forked_child_is_no_second_agent() {
    let host = Host::new("(sleep 1000; true) & touch \"${0%/*}/forked\"; sleep 1000; true");
    let machine = host.create(1);
    let forked = host.root.path().join("forked");
    launch::wait_for(Duration::from_mins(1), || forked.exists().then_some(())).unwrap();
    assert_eq!(host.agents(1), 1);
    // The next server finds the agent itself, not its child.
    fs::remove_file(host.folder(1).path().join("process.json")).unwrap();
    assert_eq!(host.create(1), machine);
    host.ask(&destroy(1, "")).unwrap();
    assert!(host.listed().is_empty());
}

/// What has just been started shows no command line yet.
#[test]
fn a_machine_that_begins_to_run_is_there() {
    let host = Host::new("exec sleep 1000");
    let folder = host.begin(1);
    assert_eq!(host.describe(1).0, MachineState::Booting, "its server ended too soon");
    let lock = folder.lock(Instant::now()).unwrap().unwrap();
    assert_eq!(host.describe(1), (MachineState::Booting, "it is being made".into()));
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    folder.write_process(&written(&child)).unwrap();
    drop(lock);
    assert_eq!(host.describe(1).0, MachineState::Up);
    assert_eq!(host.listed().len(), 1);
    // Nobody waits for the killed while they are looked for, and they do not count.
    host.ask(&destroy(1, "")).unwrap();
    assert!(!child.wait().unwrap().success());

    let folder = host.begin(2);
    let mut dead = Command::new("true").spawn().unwrap();
    folder.write_process(&written(&dead)).unwrap();
    dead.wait().unwrap();
    assert_eq!(host.describe(2), (MachineState::Broken, "it has no log".into()));
    assert!(host.listed().is_empty());
    assert_eq!(host.describe(3).0, MachineState::Gone);
}

fn written(child: &Child) -> ProcessFile {
    let pid = i32::try_from(child.id()).unwrap();
    let start_ticks = stat(pid).unwrap().unwrap().start_ticks;
    ProcessFile { pid, start_ticks, boot_id: boot_id().unwrap() }
}

#[test]
fn machines_have_other_ports_than_an_agent_beside_them() {
    let host = Host::new("exec sleep 1000");
    host.create(1);
    let file = host.root.path().join("beside.toml");
    fs::write(&file, "data_dir = \"/nowhere\"\nservers = [\"127.0.0.1:4647\"]\n").unwrap();
    let sources = Sources { file: Some(file), environment: Vec::new(), flags: Vec::new() };
    let beside = AgentConfig::load(&sources).unwrap().settings;
    let file = Some(host.folder(1).path().join(AGENT_CONFIG));
    let sources = Sources { file, environment: Vec::new(), flags: Vec::new() };
    let own = AgentConfig::load(&sources).unwrap().settings;
    let (lowest, highest) = (own.dynamic_port_min, own.dynamic_port_max);
    assert!(lowest >= 1_024 && lowest < highest, "{lowest} to {highest}");
    assert!(PORTS.end <= beside.dynamic_port_min, "{beside:?}");
}
