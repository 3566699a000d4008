//! The whole pipeline (clients, history, checker) against a small HTTP register server: a good one must pass,
//! and each deliberately broken one must be caught.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::checker::{Verdict, final_workload, linearizable, stats};
use crate::store::Readiness;

/// What is wrong with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The second server answers reads from a copy that is refreshed now and then.
    StaleReads,
    /// Some writes are acknowledged and not kept.
    LostWrites,
    /// The version is compared before the lock is taken.
    BlindCas,
    /// Some writes are kept although the answer says that nothing was done.
    FalseFailures,
}

#[derive(Default)]
struct Registers {
    jobs: BTreeMap<String, (Value, u64)>,
    index: u64,
    requests: u64,
    writes: u64,
    copy: BTreeMap<String, (Value, u64)>,
}

/// Two addresses of one register server with this bug; some connections break off before or after the work.
fn serve(bug: Bug) -> Vec<Target> {
    let registers = Arc::new(Mutex::new(Registers::default()));
    (0..2)
        .map(|number| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let http = listener.local_addr().unwrap();
            let registers = Arc::clone(&registers);
            std::thread::spawn(move || {
                for socket in listener.incoming() {
                    let (socket, registers) = (socket.unwrap(), Arc::clone(&registers));
                    std::thread::spawn(move || converse(&socket, number, &registers, bug));
                }
            });
            Target { name: format!("n{}", number + 1), http }
        })
        .collect()
}

fn converse(
    socket: &TcpStream,
    number: usize,
    registers: &Mutex<Registers>,
    bug: Bug,
) -> Option<()> {
    let mut reader = BufReader::new(socket);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let (method, path) = line.split_once(' ')?;
        let (method, path) = (method.to_owned(), path.split(' ').next()?.to_owned());
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line).ok()?;
            let (name, value) = line.split_once(':').unwrap_or(("", ""));
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (status, answer) = if method == "GET" {
            read(&path, number, registers, bug)
        } else {
            let body: Value = serde_json::from_slice(&body).ok()?;
            if line_breaks(registers) {
                return None;
            }
            let answer = register(&body, registers, bug);
            if line_breaks(registers) {
                return None;
            }
            answer
        };
        let mut writer = socket;
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", answer.len());
        writer.write_all((head + &answer).as_bytes()).ok()?;
    }
}

/// One request in 23 sees its connection broken.
fn line_breaks(registers: &Mutex<Registers>) -> bool {
    let mut registers = registers.lock().unwrap();
    registers.requests += 1;
    registers.requests.is_multiple_of(23)
}

fn read(path: &str, number: usize, registers: &Mutex<Registers>, bug: Bug) -> (u16, String) {
    let mut registers = registers.lock().unwrap();
    registers.requests += 1;
    if registers.requests.is_multiple_of(40) {
        registers.copy = registers.jobs.clone();
    }
    let stale = bug == Bug::StaleReads && number == 1;
    let jobs = if stale { &registers.copy } else { &registers.jobs };
    match jobs.get(path.trim_start_matches("/v1/job/")) {
        Some((meta, version)) => {
            (200, json!({"Meta": meta, "JobModifyIndex": version}).to_string())
        }
        None => (404, "job not found".to_owned()),
    }
}

fn register(body: &Value, registers: &Mutex<Registers>, bug: Bug) -> (u16, String) {
    let id = body["Job"]["ID"].as_str().unwrap().to_owned();
    let enforced = body["EnforceIndex"].as_bool().unwrap_or(false);
    let stored = |registers: &Registers| registers.jobs.get(&id).map_or(0, |(_, version)| *version);
    let early = stored(&registers.lock().unwrap());
    std::thread::sleep(Duration::from_millis(2));
    let mut registers = registers.lock().unwrap();
    let version = if bug == Bug::BlindCas { early } else { stored(&registers) };
    if enforced && body["JobModifyIndex"] != version {
        let text = format!(
            "Enforcing job modify index {}: job exists with conflicting job modify index: {version}",
            body["JobModifyIndex"]
        );
        return (500, text);
    }
    registers.index += 3;
    registers.writes += 1;
    let index = registers.index;
    let odd = registers.writes.is_multiple_of(10);
    if bug != Bug::LostWrites || !odd {
        registers.jobs.insert(id, (body["Job"]["Meta"].clone(), index));
    }
    if bug == Bug::FalseFailures && odd {
        return (500, "No cluster leader: the write was not proposed".to_owned());
    }
    (200, json!({"EvalID": "", "JobModifyIndex": index}).to_string())
}

fn run(bug: Bug) -> Vec<Op> {
    let targets = serve(bug);
    let recorder = Recorder::in_memory();
    let load = Load { concurrency: 8, rate: 1_000.0, timeout: Duration::from_secs(5), seed: 42 };
    let clients = Clients::new(&targets, load, 100, &recorder);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..load.concurrency {
            let (clients, stop) = (&clients, &stop);
            scope.spawn(move || clients.work(number, stop));
        }
        let enough = Instant::now() + Duration::from_secs(30);
        while recorder.progress()[0] < 800 && Instant::now() < enough {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
    });
    clients.last_phase(Instant::now() + Duration::from_secs(10));
    recorder.snapshot().0
}

fn judge(history: &[Op]) -> linearizable::Report {
    linearizable::check(history, Duration::from_mins(1)).unwrap()
}

#[test]
fn a_good_server_passes_although_connections_break() {
    let history = run(Bug::None);
    let report = judge(&history);
    assert_eq!(report.valid, Verdict::True, "{report:#?}");
    let stats = stats::check(&history);
    assert_eq!(stats.valid, Verdict::True, "{stats:#?}");
    assert!(stats.total.info > 5, "broken connections are seen: {stats:?}");
    assert!(stats.by_function["cas"].fail > 5, "conflicts are seen: {stats:?}");
    let served = final_workload::check(&history, Readiness::Milliseconds(0)).unwrap();
    assert_eq!(served.valid, Verdict::True, "{served:?}");
}

#[test]
fn every_broken_server_is_caught() {
    for bug in [Bug::StaleReads, Bug::LostWrites, Bug::BlindCas, Bug::FalseFailures] {
        let report = judge(&run(bug));
        assert_eq!(report.valid, Verdict::False, "{bug:?}: {report:#?}");
        let example = report.counterexamples.first().unwrap();
        assert!((2..=14).contains(&example.entries.len()), "{bug:?}: {example:#?}");
        if bug == Bug::FalseFailures {
            assert!(example.explanation.contains("certainly not written"), "{example:#?}");
        }
    }
}

#[test]
fn a_process_number_is_never_used_again_after_an_info() {
    let history = run(Bug::None);
    let mut retired = std::collections::BTreeSet::new();
    for op in &history {
        assert!(!retired.contains(&op.process), "{op:?}");
        if op.kind == Kind::Info {
            retired.insert(op.process);
        }
    }
    assert!(!retired.is_empty());
}
