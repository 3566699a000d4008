//! Instance pools whose machines a program makes: what it refuses, hides and forgets by its death.
//!
//! The program is the example of the documentation, which makes real agents, with moods. Files in
//! its folder say which mood it is in; it writes there what it was asked.

use std::{fs, process::Command};

use serde_json::{Value, json};

use super::{
    Stage,
    pools::{job, kind, options},
};
use crate::{
    harness::{PATIENCE, program, wait_until},
    providers::{example, has_python},
    recompute::text,
};

/// On a busy machine a job may need more than half a second to find the machine that came for it.
const IDLE_MS: u64 = 5_000;

/// Takes the place of the line of the example that carries out a call.
const CALL: &str = "return {\"result\": CALLS[call[\"call\"]](call)}";
const MOODS: &str = r#"
def moody(call):
    kind = call.get("type", {}).get("name", "-")
    refusal = read(ROOT / "refusal") if kind == "small" else b""
    with open(ROOT / "calls", "a") as calls:
        what = "refused" if refusal else call["call"]
        calls.write(f"{time.time():.3f} {os.getpid()} {what} {kind}\n")
    if refusal:
        return {"error": json.loads(refusal)}
    if call["call"] == "list" and (ROOT / "empty").exists():
        (ROOT / "empty").unlink()
        return {"result": {"scope": SCOPE, "machines": []}}
    if (ROOT / "dead").exists():  # machines are there, and their agents never start
        if call["call"] == "create":
            folder = folder_of(call["key"])
            folder.mkdir(exist_ok=True)
            write(folder, {"tags": call["tags"], "slot": -1})
            return {"result": {"provider_id": folder.name, "address": "127.0.0.1", "scope": SCOPE}}
        if call["call"] == "list":
            there = [{"provider_id": name, "address": "127.0.0.1", "tags": one["tags"]} for name, one in machines().items()]
            return {"result": {"scope": SCOPE, "machines": there}}
        if call["call"] == "describe" and (ROOT / "booting").exists():
            return {"result": {"state": "booting", "address": "127.0.0.1"}}
    deaths = int(read(ROOT / "deaths") or 0) if call["call"] == "create" else 0
    if deaths:
        (ROOT / "deaths").write_text(str(deaths - 1))
    if deaths == 2:
        os.kill(os.getpid(), signal.SIGKILL)  # nothing was made
    result = CALLS[call["call"]](call)
    if deaths == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # the machine is made, and nobody is told
    return {"result": result}

CALLS = {"#;

/// A call that the program was asked.
struct Asked {
    /// Unix time, s.
    at: f64,
    pid: u32,
    /// The call's name, or `refused`.
    call: String,
    kind: String,
}

/// Three servers whose provider is the moody program; none without Python.
fn stage() -> Option<Stage> {
    if !has_python() {
        return None;
    }
    let text = example();
    assert_eq!(text.matches(CALL).count(), 1, "the example has changed");
    assert_eq!(text.matches("\nCALLS = {").count(), 1, "the example has changed");
    let text = text.replace(CALL, "return moody(call)").replace("\nCALLS = {", MOODS);
    Some(Stage::of(options().with_program(text)))
}

impl Stage {
    /// Puts the program into a mood.
    fn mood(&self, name: &str, text: &str) {
        fs::write(self.cluster.machines_directory().join(name), text).unwrap();
    }

    fn is_in_mood(&self, name: &str) -> bool {
        self.cluster.machines_directory().join(name).exists()
    }

    fn asked(&self) -> Vec<Asked> {
        let calls = self.cluster.machines_directory().join("calls");
        let lines = fs::read_to_string(calls).unwrap_or_default();
        let asked = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let [at, pid, call, kind] = words[..] else { panic!("{line}") };
            Asked {
                at: at.parse().unwrap(),
                pid: pid.parse().unwrap(),
                call: call.to_owned(),
                kind: kind.to_owned(),
            }
        };
        lines.lines().map(asked).collect()
    }

    /// What `quorate instance why` says.
    fn why(&self, what: &str) -> String {
        let address = format!("-address=http://{}", self.cluster.http(0));
        let output = program().args(["instance", "why", &address, what]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn types(&self) -> Vec<String> {
        let mut types: Vec<String> =
            self.instances().iter().map(|row| text(row, "Type").to_owned()).collect();
        types.sort_unstable();
        types
    }
}

fn priced(name: &str, price: f64) -> Value {
    let mut kind = kind(name);
    kind["Price"] = price.into();
    kind
}

/// A quota holds for as long as the program says, and everybody is told; meanwhile a dearer type
/// goes ahead.
#[test]
fn a_type_at_quota_is_not_asked_for_until_its_time() {
    const HOLDS_S: f64 = 8.0;
    let Some(stage) = stage() else { return };
    stage.pool_that_idles(IDLE_MS, 3, json!([priced("small", 1.0), priced("big", 1.2)]));
    wait_until("the program runs", PATIENCE, || !stage.asked().is_empty());
    let refusal = json!({
        "class": "quota", "scope": "type", "retry_after_ms": HOLDS_S * 1_000.0,
        "detail": "no more small ones",
    });
    stage.mood("refusal", &refusal.to_string().replace(".0", ""));
    stage.register(&job("web", 1));
    wait_until("it is said why", PATIENCE, || {
        let why = stage.why("burst");
        why.contains("not creating type small: quota until") && why.contains("no more small ones")
    });
    stage.await_running("web", 1);
    stage.register(&job("api", 1));
    stage.await_running("api", 1);
    assert_eq!(stage.types(), ["big", "big"]);

    fs::remove_file(stage.cluster.machines_directory().join("refusal")).unwrap();
    wait_until("the quota's time is over", PATIENCE, || !stage.why("burst").contains("quota"));
    stage.register(&job("db", 1));
    stage.await_running("db", 1);
    assert_eq!(stage.types(), ["big", "big", "small"]);
    let mut asked = stage.asked();
    asked.retain(|one| one.kind == "small");
    let refused: Vec<f64> =
        asked.iter().filter(|one| one.call == "refused").map(|one| one.at).collect();
    assert!(!refused.is_empty());
    for at in refused {
        let next = asked.iter().map(|one| one.at).find(|next| *next > at).unwrap();
        assert!(next - at >= HOLDS_S, "asked again after {} s", next - at);
    }
    for name in ["web", "api", "db"] {
        stage.stop(name, true);
    }
    stage.await_empty();
    stage.finish();
}

/// A provider that loses sight of all machines for a moment.
#[test]
fn an_empty_list_costs_no_allocation() {
    let Some(stage) = stage() else { return };
    stage.pool_that_idles(IDLE_MS, 2, json!([kind("small")]));
    stage.register(&job("web", 2));
    let before = stage.await_running("web", 2);
    let machines = stage.cluster.machines();
    let lists = || stage.asked().iter().filter(|one| one.call == "list").count();
    stage.mood("empty", "");
    wait_until("nothing was listed", PATIENCE, || !stage.is_in_mood("empty"));
    let until = lists() + 3;
    wait_until("more lists have come", PATIENCE, || lists() >= until);
    let after = stage.await_running("web", 2);
    assert_eq!(super::ids(&after), super::ids(&before));
    assert_eq!(stage.cluster.machines(), machines);
    let all = stage.allocations("web");
    assert_eq!(all.len(), 2, "{all:?}");
    stage.stop("web", true);
    stage.await_empty();
    stage.finish();
}

/// It dies before it makes a machine, after it has made it and before it says so, and once while
/// the machine runs.
#[test]
fn a_killed_program_is_started_again_and_makes_no_machine_twice() {
    let Some(stage) = stage() else { return };
    stage.pool_that_idles(IDLE_MS, 3, json!([kind("small")]));
    wait_until("the program runs", PATIENCE, || !stage.asked().is_empty());
    stage.mood("deaths", "2");
    stage.register(&job("web", 1));
    stage.await_running("web", 1);
    assert_eq!((stage.instances().len(), stage.cluster.machines().len()), (1, 1));
    let creates = stage.asked().iter().filter(|one| one.call == "create").count();
    assert!(creates >= 2, "the first made nothing");
    let programs = || {
        let mut programs: Vec<u32> = stage.asked().iter().map(|one| one.pid).collect();
        programs.dedup();
        programs
    };
    wait_until("a third program goes on", PATIENCE, || programs().len() >= 3);
    let logs: String = stage.cluster.all().iter().map(|one| stage.cluster.log(*one)).collect();
    assert!(logs.contains("the program of a provider ended"), "it is said");

    let last = *programs().last().unwrap();
    let killed = Command::new("kill").args(["-9", &last.to_string()]).status().unwrap();
    assert!(killed.success());
    wait_until("another one goes on", PATIENCE, || *programs().last().unwrap() != last);
    assert_eq!((stage.instances().len(), stage.cluster.machines().len()), (1, 1));
    stage.stop("web", true);
    stage.await_empty();
    stage.finish();
}

/// A pool whose machines fail is protected, whoever leads: the next leader makes one machine at a
/// time too, though the pause is over and three are wanted, and says so. `pool resume` ends it.
#[test]
fn a_protected_pool_stays_so_under_the_next_leader() {
    let Some(mut stage) = stage() else { return };
    let pool = json!({
        "Provider": "local", "Max": 3, "IdleTimeoutMs": IDLE_MS, "ProtectAfter": 3,
        "Types": [kind("small")],
    });
    stage.client.put("/v1/instance-pool/burst", &pool).ok();
    wait_until("the program runs", PATIENCE, || !stage.asked().is_empty());
    stage.mood("dead", "");
    stage.register(&job("web", 3));
    let says = |stage: &Stage, what: &str| {
        stage.client.get("/v1/instance-pool/burst").ok()["Waits"].to_string().contains(what)
    };
    wait_until("three have failed", PATIENCE, || says(&stage, "protected since"));

    // What is made from now on neither serves nor fails.
    stage.mood("booting", "");
    let leader = stage.cluster.leader();
    stage.client = stage.cluster.client(stage.cluster.others(&[leader])[0]);
    stage.cluster.kill(leader);
    stage.cluster.start_one(leader);
    stage.cluster.await_ready_all();
    let mut most = 0;
    let mut count = || {
        let rows = stage.instances();
        let tried = rows.iter().filter(|row| text(row, "State") != "shutdown").count();
        most = most.max(tried);
        tried
    };
    wait_until("one is tried, and the pause is over", PATIENCE, || {
        count() == 1 && !says(&stage, "not creating type")
    });
    let lists = || stage.asked().iter().filter(|one| one.call == "list").count();
    let until = lists() + 3;
    wait_until("more lists have come", PATIENCE, || {
        count();
        lists() >= until
    });
    assert_eq!(most, 1, "one at a time");
    assert!(says(&stage, "protected since"));
    assert!(stage.waits_for("web").contains("so one is made at a time"));

    let leader = format!("-address=http://{}", stage.cluster.http(stage.cluster.leader()));
    let resumed = program().args(["pool", "resume", &leader, "burst"]).status().unwrap();
    assert!(resumed.success());
    wait_until("all are tried", PATIENCE, || {
        stage.instances().len() == 3 && !says(&stage, "protected since")
    });
    stage.stop("web", true);
    for mood in ["booting", "dead"] {
        fs::remove_file(stage.cluster.machines_directory().join(mood)).unwrap();
    }
    stage.await_empty();
    stage.finish();
}
