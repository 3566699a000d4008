//! The alerts of `docs/alerts.yml`: each metric that they name is there, each fires on its fault and none on a healthy cluster
//! (`tests/alerts/rules_test.yml`, by `promtool`), and a real Prometheus wakes somebody when a majority is lost. Where neither of the two is
//! installed (Debian's package prometheus) their tests are skipped by name.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::harness::{Client, Cluster, Options, PATIENCE, wait_until};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rules() -> String {
    fs::read_to_string(root().join("docs/alerts.yml")).unwrap()
}

fn is_installed(program: &str) -> bool {
    let mut version = Command::new(program);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    let found = version.status().is_ok();
    if !found {
        eprintln!("skipped: {program} is not installed (Debian's package prometheus)");
    }
    found
}

/// A mistyped name makes an alert that never fires.
#[test]
fn every_metric_that_an_alert_names_is_there() {
    let cluster = Cluster::start(Options::new(3));
    let _agent = cluster.agent("agent", None);
    let rules = rules();
    let words = rules.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("nomad_")).collect();
    assert!(named.len() > 10, "{named:?}");
    wait_until("every metric is there", PATIENCE, || {
        let texts: Vec<String> = cluster
            .all()
            .into_iter()
            .map(|one| cluster.client(one).get("/v1/metrics?format=prometheus").text)
            .collect();
        let is_there = |name: &&str| {
            let head = format!("# TYPE {name} ");
            texts.iter().any(|text| text.contains(&head))
        };
        named.iter().all(is_there)
    });
}

#[test]
fn each_alert_fires_on_its_fault_and_none_on_a_healthy_cluster() {
    if !is_installed("promtool") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let test = fs::read_to_string(root().join("tests/alerts/rules_test.yml")).unwrap();
    let rules = root().join("docs/alerts.yml").display().to_string();
    let file = directory.path().join("rules_test.yml");
    fs::write(&file, test.replace("rule_files: [ALERTS]", &format!("rule_files: [{rules}]")))
        .unwrap();
    for arguments in [["check", "rules", &rules], ["test", "rules", file.to_str().unwrap()]] {
        let output = Command::new("promtool").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// A Prometheus of its own, killed with the drop.
struct Prometheus {
    child: Child,
    client: Client,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Prometheus {
    /// Scrapes and judges each second; what an alert waits for is two seconds here, so that the test need not wait for minutes.
    fn start(directory: &Path, cluster: &Cluster) -> Self {
        let quick: String = rules()
            .lines()
            .map(|line| match line.split_once("for: ") {
                Some((before, _)) if before.trim().is_empty() => format!("{before}for: 2s\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        fs::write(directory.join("alerts.yml"), quick).unwrap();
        let targets: Vec<String> =
            cluster.all().into_iter().map(|one| format!("'{}'", cluster.http(one))).collect();
        let config = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\nrule_files: [alerts.yml]\nscrape_configs:\n  - job_name: quorate\n    metrics_path: /v1/metrics\n    params: {{ format: [prometheus] }}\n    static_configs: [{{ targets: [{}] }}]\n",
            targets.join(", ")
        );
        let file: PathBuf = directory.join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let port = launch::Port::reserve().unwrap();
        let address = port.address();
        let log = fs::File::create(directory.join("prometheus.log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let client = Client::new(address, Duration::from_secs(10));
        Self { child, client }
    }

    /// The alerts that fire; none: it does not answer yet.
    fn firing(&self) -> Option<BTreeSet<String>> {
        let answer = self.client.try_get("/api/v1/alerts").ok()?.json;
        let alerts = answer["data"]["alerts"].as_array()?;
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        let name = |alert: &Value| Some(alert["labels"]["alertname"].as_str()?.to_owned());
        firing.map(name).collect()
    }

    /// Whether every rule has been judged on the metrics of all servers.
    fn has_judged(&self) -> bool {
        // For six seconds: longer than an alert waits here.
        let query = "/api/v1/query?query=sum(count_over_time(up%5B6s%5D))%20%3E%3D%2015%20and%20sum(min_over_time(up%5B6s%5D))%20%3D%3D%203%20and%20sum(nomad_raft_is_leader)%20%3D%3D%201";
        let Ok(answer) = self.client.try_get(query) else { return false };
        let is_up = answer.json["data"]["result"].as_array().is_some_and(|found| !found.is_empty());
        let Ok(answer) = self.client.try_get("/api/v1/rules") else { return false };
        let rules = &answer.json["data"]["groups"][0]["rules"];
        is_up
            && rules.as_array().is_some_and(|rules| rules.iter().all(|rule| rule["health"] == "ok"))
    }
}

/// Alerts that a fault must not wait for, and those that a small test machine and its disk may have of themselves.
const OF_THE_MACHINE: [&str; 1] = ["QuorateDiskFillsUp"];

#[test]
fn a_lost_majority_wakes_somebody() {
    if !is_installed("prometheus") {
        return;
    }
    let mut cluster = Cluster::start(Options::new(3));
    let directory = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::start(directory.path(), &cluster);
    let none_fires = |prometheus: &Prometheus| {
        let firing = prometheus.firing();
        firing.is_some_and(|all| all.iter().all(|name| OF_THE_MACHINE.contains(&&**name)))
    };
    wait_until("Prometheus has judged a healthy cluster", PATIENCE, || {
        prometheus.has_judged() && none_fires(&prometheus)
    });
    let leader = cluster.leader();
    let others = cluster.others(&[leader]);
    cluster.kill_together(&others);
    let wanted = [
        "QuorateNoLeader",
        "QuorateServerWithoutMajority",
        "QuorateServerDown",
        "QuorateNoFailureTolerated",
    ];
    wait_until("the alerts fire", PATIENCE, || {
        prometheus.firing().is_some_and(|firing| wanted.iter().all(|name| firing.contains(*name)))
    });
    for one in &others {
        cluster.start_one(*one);
    }
    cluster.await_ready_all();
    wait_until("none fires any more", PATIENCE, || none_fires(&prometheus));
}
