//! Pools of a provider whose machines are on the servers' own host: refused unless there is one
//! host.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, path::Path, sync::Arc};

use fsm::{
    Command,
    pool::{DeclaredNode, InstancePool, InstanceType, UpsertInstancePool},
};
use server::{BootId, Settings, provider::ProviderKind};
use wire::api::{Api, ApiError};

use super::testing::{CALLER, PATIENCE, Servers};
use crate::{config::ProviderConfig, provider};

/// Three servers with a provider `local` of kind `process`, and what each reads of its host's boot.
fn servers(boots: [Option<BootId>; 3], machines: &Path) -> Servers {
    let directory = machines.to_owned();
    Servers::start_with(
        3,
        Box::new(move |number, settings: &mut Settings, parts| {
            let (name, directory) = ("local".to_owned(), directory.clone());
            let kind = ProviderKind::Process { directory, binary: Some("/bin/true".into()) };
            let opened = provider::open(&ProviderConfig { name, kind, creates_max: 32 }).unwrap();
            parts.providers = Arc::new(BTreeMap::from([("local".into(), opened)]));
            settings.services.providers = [("local".into(), 32)].into();
            settings.boot = boots[number];
        }),
    )
}

/// A pool that wants so many machines whatever waits.
fn pool(provider: &str, min: u32) -> Command {
    let kind = InstanceType {
        name: "small".into(),
        provider_type: "t1".into(),
        cpu: 500,
        memory_mb: 256,
        node: DeclaredNode { datacenter: "dc1".into(), ..Default::default() },
        ..Default::default()
    };
    let types = [(kind.name.clone(), Arc::new(kind))].into_iter().collect();
    let (name, provider) = ("burst".into(), provider.into());
    let pool = InstancePool {
        name,
        provider,
        min,
        max: 3,
        price_factor_milli: 1_000,
        idle_timeout_ms: 60_000,
        boot_timeout_ms: 60_000,
        probe_timeout_ms: 60_000,
        max_concurrent_creates: 0,
        max_creates_per_hour: 0,
        max_price_micro: 0,
        protect_after: 10,
        backoff_reset_ms: 600_000,
        types,
        groups: BTreeMap::new(),
        paused: None,
        create_index: 0,
        modify_index: 0,
    };
    UpsertInstancePool { pool: pool.into(), enforce_index: None }.into()
}

fn apply(servers: &Servers, server: usize, command: Command) -> Result<fsm::Reply, ApiError> {
    let core = servers.core(server);
    let written = servers.runtime().block_on(core.write(&CALLER, command, None, PATIENCE));
    written.map(|written| written.reply)
}

#[test]
fn a_pool_of_processes_is_refused_on_several_hosts() {
    let machines = tempfile::tempdir().unwrap();
    let servers = servers([Some([1; 16]), Some([1; 16]), Some([2; 16])], machines.path());
    for server in 0..3 {
        let error = apply(&servers, server, pool("local", 0)).unwrap_err();
        let ApiError::Invalid(why) = error else { panic!("{error}") };
        assert_eq!(
            why,
            "provider \"local\": its machines need one host, and the servers have several: run all servers on one host, or use a provider of kind exec (s0, s1 in boot 01010101; s2 in boot 02020202)"
        );
    }
    let other = apply(&servers, 0, pool("cloud", 0));
    assert_eq!(other, Ok(fsm::Reply::Done), "another provider is not asked for that");
}

#[test]
fn a_pool_of_processes_is_taken_on_one_host_and_not_on_an_unknown_one() {
    let machines = tempfile::tempdir().unwrap();
    let one = servers([Some([1; 16]); 3], machines.path());
    assert_eq!(apply(&one, 1, pool("local", 0)), Ok(fsm::Reply::Done));
    drop(one);
    let unknown = servers([Some([1; 16]), None, Some([1; 16])], machines.path());
    let error = apply(&unknown, 0, pool("local", 0)).unwrap_err();
    assert!(error.to_string().contains("s1 did not say where it runs: start it"), "{error}");
}

/// A pool may be older than the server that runs elsewhere.
#[test]
fn each_create_of_a_process_is_refused_on_several_hosts() {
    let machines = tempfile::tempdir().unwrap();
    let servers = servers([Some([1; 16]), Some([1; 16]), Some([2; 16])], machines.path());
    let leader = servers.leader_among(&[0, 1, 2]);
    let core = servers.core(leader);
    // The leader has to have heard where the others run.
    servers.wait("the pool is refused", || apply(&servers, leader, pool("local", 1)).err());
    let services = core.leading().unwrap();
    let proposed = services.propose(pool("local", 1), None, PATIENCE);
    servers.runtime().block_on(proposed).unwrap();
    let limit = servers.wait("the create is refused", || {
        let state = core.cell.load();
        state.provider_limits().iter().next().map(|limit| limit.detail.to_string())
    });
    assert!(
        limit.starts_with("its machines need one host, and the servers have several"),
        "{limit}"
    );
    let made = std::fs::read_dir(machines.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut made: Vec<_> = made.collect();
    made.sort_unstable();
    assert_eq!(made, ["destroyed", "ports", "scope"]);
}
