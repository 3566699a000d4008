//! Tests of the configuration: shipped files, layers, suggestions, and every rule.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use ground::telemetry::{LogFormat, LogLevel};
use server::provider::ProviderKind;

use agent::{AfterTask, AgentSettings};

use super::{AgentConfig, Flag, ServerConfig, Sources};

const SERVER: &str = r#"
name = "server-1"
data_dir = "data"
[rpc]
address = "127.0.0.1:4647"
[cluster]
bootstrap_expect = ["127.0.0.1:4647", "127.0.0.1:4657", "127.0.0.1:4667"]
"#;
const AGENT: &str = "name = \"a\"\ndata_dir = \"data\"\nservers = [\"127.0.0.1:4647\"]\n";

fn server(extra: &str) -> Result<ServerConfig, String> {
    ServerConfig::parse(Path::new("s.toml"), &format!("{SERVER}{extra}"))
        .map_err(|error| error.to_string())
}

fn replaced(from: &str, to: &str) -> String {
    assert!(SERVER.contains(from), "{from}");
    ServerConfig::parse(Path::new("s.toml"), &SERVER.replace(from, to)).unwrap_err().to_string()
}

fn agent(extra: &str) -> Result<AgentSettings, String> {
    AgentConfig::parse(Path::new("a.toml"), &format!("{AGENT}{extra}"))
        .map(|config| config.settings)
        .map_err(|error| error.to_string())
}

#[track_caller]
fn check(result: Result<impl std::fmt::Debug, String>, expected: &str) {
    assert_eq!(result.unwrap_err(), expected);
}

#[test]
fn shipped_files_are_valid_and_agree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster-configs");
    let load = |path: PathBuf| {
        ServerConfig::load(&Sources { file: Some(path), ..Sources::default() }).unwrap()
    };
    for (folder, count) in [("three", 3), ("five", 5)] {
        let servers: Vec<ServerConfig> = (1..=count)
            .map(|number| load(root.join(folder).join(format!("server-{number}.toml"))))
            .collect();
        for (index, config) in servers.iter().enumerate() {
            let port = u16::try_from(4646 + 10 * index).unwrap();
            assert_eq!(config.settings.name, format!("server-{}", index + 1));
            assert_eq!(config.http_address.port(), port);
            assert_eq!(config.settings.rpc_address, format!("127.0.0.1:{}", port + 1));
            assert_eq!(config.settings.bootstrap_expect, servers[0].settings.bootstrap_expect);
            assert_eq!(config.settings.bootstrap_expect.len(), count);
            assert_eq!(config.settings.timing.heartbeat_ms, 100);
        }
        let file = Some(root.join(folder).join("agent.toml"));
        let agent = AgentConfig::load(&Sources { file, ..Sources::default() }).unwrap().settings;
        let expected = servers[0].settings.bootstrap_expect.iter().cloned();
        assert!(agent.servers.iter().cloned().eq(expected));
        assert_eq!(agent.drivers, ["raw_exec", "mock"]);
        let files = std::fs::read_dir(root.join(folder)).unwrap().count();
        assert_eq!(files, count + 1, "a file of {folder} is not tested");
    }
    assert_eq!(load(root.join("dev.toml")).settings.bootstrap_expect.len(), 1);
}

#[test]
fn defaults() {
    let config = server("").unwrap();
    assert_eq!(
        (config.settings.region.as_str(), config.settings.datacenter.as_str()),
        ("global", "dc1")
    );
    assert_eq!((config.log.level, config.log.format), (LogLevel::Info, LogFormat::Human));
    assert_eq!(config.http_address.to_string(), "127.0.0.1:4646");
    assert_eq!(config.settings.rpc_address, "127.0.0.1:4647");
    let settings = config.settings;
    assert_eq!((settings.timing.heartbeat_ms, settings.timing.election_ms_min), (100, 400));
    let leader::ServicesConfig { heartbeat, gc, .. } = settings.services;
    assert_eq!((heartbeat.ttl_ms_min, heartbeat.grace_ms), (10_000, 10_000));
    assert_eq!((gc.interval_ms, gc.evaluation_ms), (300_000, 3_600_000));
    assert_eq!(gc.children_max, 100_000);
    assert_eq!((gc.batch_evaluation_ms, gc.job_ms), (86_400_000, 14_400_000));
    assert_eq!(config.request_bytes_max, 4_194_304);
    assert!(settings.workers >= 1);

    let config = agent("").unwrap();
    assert!(config.drivers.is_empty(), "raw_exec must be asked for");
    assert_eq!(config.http_address.to_string(), "127.0.0.1:0");
    assert_eq!((config.dynamic_port_min, config.dynamic_port_max), (20_000, 32_000));
    assert_eq!((config.node_pool.as_str(), config.simulate), ("default", None));
}

#[test]
fn workers_at_the_start() {
    let section = |lines: &str| server(&format!("[scheduler]\n{lines}"));
    let scheduler = section("").unwrap().settings;
    assert_eq!((scheduler.kinds.len(), scheduler.leader_share), (4, 1_000));
    let lines = "workers = 0\nenabled = [\"sysbatch\", \"_core\", \"batch\"]\nleader_share = 0.25";
    let scheduler = section(lines).unwrap().settings;
    assert_eq!((scheduler.workers, scheduler.leader_share), (0, 250));
    assert_eq!(scheduler.kinds, [fsm::JobKind::Batch, fsm::JobKind::Sysbatch]);
    for (share, thousandths) in [("0", 0), ("1", 1_000), ("0.3333", 333), ("1.0", 1_000)] {
        let scheduler = section(&format!("leader_share = {share}")).unwrap().settings;
        assert_eq!(scheduler.leader_share, thousandths, "{share}");
    }
    for (wrong, allowed) in [
        ("workers = 257", "0 to 256"),
        ("leader_share = 1.5", "a number from 0 to 1"),
        ("leader_share = -1", "a number from 0 to 1"),
        ("enabled = [\"services\"]", "service, batch, system, sysbatch"),
        ("enabled = []", "a list with a kind; scheduler.workers = 0 pauses"),
    ] {
        let error = section(wrong).unwrap_err();
        assert!(error.ends_with(&format!("allowed: {allowed}")), "{error}");
    }
}

#[test]
fn presets_and_single_values() {
    for (preset, timings) in [
        ("default", (100, 400, 600)),
        ("lan", (50, 150, 300)),
        ("wan", (500, 2_000, 3_000)),
        ("test", (250, 1_000, 1_500)),
    ] {
        let raft = server(&format!("[raft]\npreset = \"{preset}\"")).unwrap().settings.timing;
        assert_eq!((raft.heartbeat_ms, raft.election_ms_min, raft.election_ms_max), timings);
    }
    let raft = server("[raft]\npreset = \"lan\"\nelection_max_ms = 450").unwrap().settings.timing;
    assert_eq!((raft.heartbeat_ms, raft.election_ms_min, raft.election_ms_max), (50, 150, 450));
}

#[test]
fn later_layers_win_and_are_named_in_errors() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("s.toml");
    std::fs::write(&file, SERVER).unwrap();
    let load = |environment: &[(&str, &str)], flags: Vec<Flag>| {
        let environment =
            environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        ServerConfig::load(&Sources { file: Some(file.clone()), environment, flags })
            .map_err(|error| error.to_string())
    };
    let flag = |name, key, value: &str| Flag { name, key, value: value.to_owned() };
    let environment = [
        ("QUORATE__NAME", "from-environment"),
        ("QUORATE__RAFT__HEARTBEAT_MS", "20"),
        ("QUORATE_ADDR", "http://ignored"),
        ("HOME", "/ignored"),
    ];
    let config = load(&environment, vec![]).unwrap();
    assert_eq!(
        (config.settings.name.as_str(), config.settings.timing.heartbeat_ms),
        ("from-environment", 20)
    );
    let config = load(&environment, vec![flag("--name", "name", "from-flag")]).unwrap();
    assert_eq!(config.settings.name, "from-flag");
    let expect = "127.0.0.1:4647, 127.0.0.1:1,127.0.0.1:2";
    let config = load(&[("QUORATE__CLUSTER__BOOTSTRAP_EXPECT", expect)], vec![]).unwrap();
    assert_eq!(config.settings.bootstrap_expect[1], "127.0.0.1:1");

    check(
        load(&[("QUORATE__RAFT__PRESETS", "lan")], vec![]),
        "variable QUORATE__RAFT__PRESETS: unknown key raft.presets; did you mean raft.preset?",
    );
    check(
        load(&[("QUORATE__SCHEDULER__WORKERS", "two")], vec![]),
        "variable QUORATE__SCHEDULER__WORKERS: scheduler.workers is \"two\"; allowed: a whole number, 0 or more",
    );
    check(
        load(&[], vec![flag("--raft-preset", "raft.preset", "fast")]),
        "flag --raft-preset: raft.preset is \"fast\"; allowed: default, lan, wan, test",
    );
}

#[test]
fn unknown_keys_are_errors_with_a_suggestion() {
    check(
        server("[raft]\nheartbeat_msec = 5"),
        "s.toml:9: unknown key raft.heartbeat_msec; did you mean raft.heartbeat_ms?",
    );
    check(server("[rafft]\npreset = \"lan\""), "s.toml:8: unknown key rafft; did you mean raft?");
    check(server("[completely_different]\na = 1"), "s.toml:8: unknown key completely_different");
    check(
        ServerConfig::parse(Path::new("s.toml"), "name = \"a\"\npreset = \"lan\"")
            .map_err(|error| error.to_string()),
        "s.toml:2: unknown key preset; did you mean raft.preset?",
    );
    check(
        agent("[driver]\nraw_exec = true"),
        "a.toml:4: unknown key driver; did you mean drivers?",
    );
}

#[test]
fn wrong_types_and_syntax_name_the_line() {
    check(
        server("[raft]\nheartbeat_ms = \"100\""),
        "s.toml:9: raft.heartbeat_ms is \"100\"; allowed: a whole number, 0 or more",
    );
    check(
        server("[raft]\nheartbeat_ms = -1"),
        "s.toml:9: raft.heartbeat_ms is -1; allowed: a whole number, 0 or more",
    );
    let error = ServerConfig::parse(Path::new("s.toml"), "raft = 5").unwrap_err().to_string();
    assert_eq!(error, "s.toml:1: raft is 5; allowed: a table: [raft]");
    let error = server("[raft]\npreset = ").unwrap_err();
    assert!(error.starts_with("s.toml:9: not valid TOML: "), "{error}");
    let file = Some(PathBuf::from("does-not-exist.toml"));
    let error = ServerConfig::load(&Sources { file, ..Sources::default() }).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the configuration file does-not-exist.toml");
}

#[test]
fn server_rules() {
    assert_eq!(
        replaced("data_dir = \"data\"\n", ""),
        "data_dir is not set; set it to the folder that holds this process's state (in the file, as QUORATE__DATA_DIR, or by a flag)"
    );
    for bad in ["server 1", "a/b", ""] {
        assert_eq!(
            replaced("name = \"server-1\"", &format!("name = \"{bad}\"")),
            format!(
                "s.toml:2: name is \"{bad}\"; allowed: a name without spaces, control characters, or any of /\\{{}}=,\", 1 to 128 bytes"
            )
        );
    }
    assert_eq!(
        replaced("address = \"127.0.0.1:4647\"", "address = \"localhost\""),
        "s.toml:5: rpc.address is \"localhost\"; allowed: IP-address:port to listen on, for example 127.0.0.1:4646 or [::1]:4646"
    );
    assert_eq!(
        replaced("address = \"127.0.0.1:4647\"", "address = \"0.0.0.0:4647\""),
        "s.toml:5: rpc.address is \"0.0.0.0:4647\"; allowed: an address that others can dial, or set rpc.advertise to one"
    );
    assert_eq!(
        replaced("\"127.0.0.1:4657\"", "\"127.0.0.1\""),
        "s.toml:7: cluster.bootstrap_expect is \"127.0.0.1\"; allowed: an address is host:port, for example 127.0.0.1:4647"
    );
    assert_eq!(
        replaced("\"127.0.0.1:4657\"", "\"127.0.0.1:4667\""),
        "s.toml:7: cluster.bootstrap_expect is \"127.0.0.1:4667\"; allowed: each address at most once"
    );
    let error = replaced("[\"127.0.0.1:4647\", ", "[");
    assert!(error.ends_with("own advertised address 127.0.0.1:4647"), "{error}");
    let error = replaced(", \"127.0.0.1:4667\"", "");
    assert!(error.ends_with("an odd number of servers, 1 to 9 (here 2)"), "{error}");
    check(
        server("[http]\naddress = \"127.0.0.1:4647\""),
        "s.toml:9: http.address is \"127.0.0.1:4647\"; allowed: another address than rpc.address",
    );
    for bad in ["https://127.0.0.1:4317", "127.0.0.1:4317", "http://127.0.0.1", "http://a:1/v1"] {
        check(
            server(&format!("[telemetry]\notlp_endpoint = \"{bad}\"")),
            &format!(
                "s.toml:9: telemetry.otlp_endpoint is \"{bad}\"; allowed: http://host:port of a collector that takes OTLP over gRPC, for example \
                 http://127.0.0.1:4317 (TLS is not built in)"
            ),
        );
    }
    let config = server("[telemetry]\notlp_endpoint = \"http://collector:4317\"").unwrap();
    assert_eq!(config.telemetry.otlp_endpoint, Some("collector:4317".parse().unwrap()));
}

#[test]
fn cluster_is_formed_or_joined() {
    let expect = "bootstrap_expect = [\"127.0.0.1:4647\", \"127.0.0.1:4657\", \"127.0.0.1:4667\"]";
    let error = replaced(expect, "");
    assert!(error.starts_with("cluster.bootstrap_expect is not set"), "{error}");
    check(
        server("join = [\"10.0.0.1:4647\"]"),
        "s.toml:8: cluster.join is [\"10.0.0.1:4647\"]; allowed: either cluster.bootstrap_expect or cluster.join, not both",
    );
    let error = replaced(expect, "join = [\"127.0.0.1:4647\"]");
    assert!(error.ends_with("beside our own 127.0.0.1:4647"), "{error}");
    let both = "join = [\"127.0.0.1:4647\", \"10.0.0.1:4647\"]";
    let config = ServerConfig::parse(Path::new("s.toml"), &SERVER.replace(expect, both)).unwrap();
    assert_eq!(config.settings.join.len(), 2, "one list serves all servers");
    let source = SERVER.replace(expect, "join = [\"10.0.0.1:4647\"]");
    let config = ServerConfig::parse(Path::new("s.toml"), &source).unwrap();
    assert_eq!(config.settings.join, ["10.0.0.1:4647"]);
}

#[test]
fn dial_maps_advertised_addresses() {
    let config = server("[cluster.dial]\n\"127.0.0.1:4657\" = \"127.0.0.1:9001\"").unwrap();
    let dialled: Vec<_> = config.dial.iter().map(|(of, to)| (of.as_str(), to.as_str())).collect();
    assert_eq!(dialled, [("127.0.0.1:4657", "127.0.0.1:9001")]);
    check(
        server("[cluster.dial]\n\"127.0.0.1:4657\" = \"nowhere\""),
        "s.toml:8: cluster.dial is \"nowhere\"; allowed: an address is host:port, for example 127.0.0.1:4647",
    );
}

#[test]
fn raft_timings_must_allow_elections() {
    check(
        server("[raft]\nheartbeat_ms = 300"),
        "configuration: raft.election_min_ms is \"400\"; allowed: at least twice raft.heartbeat_ms (300), so 600 or more",
    );
    check(
        server("[raft]\nelection_max_ms = 300"),
        "s.toml:9: raft.election_max_ms is \"300\"; allowed: at least raft.election_min_ms (400)",
    );
    check(
        server("[raft]\nheartbeat_ms = 0"),
        "s.toml:9: raft.heartbeat_ms is 0; allowed: 1 to 60000",
    );
}

#[test]
fn agent_rules() {
    let config = agent(
        "node_class = \"gpu\"\nsimulate = 5\n[meta]\nrack = \"r1\"\n[resources]\ncpu_mhz = 4000\n[reserved]\nmemory_mb = 256",
    )
    .unwrap();
    assert_eq!(config.meta["rack"], "r1");
    assert_eq!((config.cpu_mhz, config.reserved.memory_mb), (Some(4000), 256));
    assert_eq!(config.simulate, Some(5));
    let config = agent(
        "[readiness]\ncommand = [\"/bin/check\", \"-q\"]\nafter_task = \"always\"\n[resources]\nmax_allocations = 1",
    )
    .unwrap();
    let readiness = config.readiness.unwrap();
    assert_eq!(readiness.command, ["/bin/check", "-q"]);
    assert_eq!((readiness.interval.as_secs(), readiness.timeout.as_secs()), (5, 10));
    assert_eq!((readiness.after_task, config.allocations_max), (AfterTask::Always, 1));
    check(
        agent("[readiness]\ncommand = [\"x\"]\nafter_task = \"sometimes\""),
        "a.toml:6: readiness.after_task is \"sometimes\"; allowed: failed, never, always",
    );
    check(
        agent("[readiness]\ncommand = [\"x\"]\ntimeout_ms = 0"),
        "a.toml:6: readiness.timeout_ms is 0; allowed: 1 to 3600000",
    );
    let error = agent("[readiness]\ninterval_ms = 5").unwrap_err();
    assert!(error.starts_with("readiness.command is not set"), "{error}");
    check(
        agent("[resources]\ncpu_mhz = 0"),
        "a.toml:5: resources.cpu_mhz is 0; allowed: 1 or more; leave it out to use what the host has",
    );
    check(
        agent("[ports]\ndynamic_min = 30000\ndynamic_max = 20000"),
        "a.toml:6: ports.dynamic_max is \"20000\"; allowed: at least ports.dynamic_min (30000)",
    );
    check(agent("[meta]\nrack = 1"), "a.toml:4: meta is { rack = 1 }; allowed: a table of texts");
    let error = AgentConfig::parse(Path::new("a.toml"), "data_dir = \"d\"").unwrap_err();
    assert!(error.to_string().starts_with("servers is not set"), "{error}");
}

#[test]
fn providers_are_processes_or_programs() {
    let with = |lines: &str| server(&format!("\n[[provider]]\nname = \"p\"\n{lines}\n"));
    let exec = with("kind = \"exec\"\ncommand = [\"prog\", \"-x\"]").unwrap();
    let command = vec!["prog".to_owned(), "-x".to_owned()];
    assert_eq!(exec.providers[0].kind, ProviderKind::Exec { command });
    // Machines that do not exist are for simulations, never for a server's file.
    let fake = with("kind = \"fake\"").unwrap_err();
    assert!(fake.contains("provider.kind") && fake.contains("process, exec"), "{fake}");
    let quota = with("kind = \"exec\"\ncommand = [\"prog\"]\nquota = 3").unwrap_err();
    assert!(quota.contains("unknown key provider.quota"), "{quota}");
}
