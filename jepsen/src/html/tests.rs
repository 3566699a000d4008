//! Tests of the report page.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::{
    fault::FaultClass,
    history::{Function, Kind, Process},
    machine::Machine,
    store::test_record,
};

fn record() -> TestRecord {
    TestRecord {
        argv: vec!["jepsen".to_owned(), "<test>".to_owned()],
        nemesis: vec![FaultClass::Kill],
        unavailable: BTreeMap::from([(FaultClass::Clock, "no <library>".to_owned())]),
        concurrency: 2,
        machine: Machine {
            kernel: Some("6.1 <x>".to_owned()),
            cpus: Some(2),
            is_tree_dirty: Some(true),
            ..Machine::default()
        },
        faketime: Some("/lib/faketime".into()),
        ..test_record()
    }
}

fn op(time_ms: u64, process: Process, kind: Kind, f: Function, value: Value) -> Op {
    Op { time: time_ms * 1_000_000, ..Op::new(process, kind, f, value) }
}

fn client(time_ms: u64, number: u64, kind: Kind) -> Op {
    op(time_ms, Process::Client(number), kind, Function::Write, json!([0, "<x>"]))
}

fn fault(time_ms: u64, begins: bool, value: Value) -> Op {
    let function = if begins { FaultClass::Kill.begin() } else { FaultClass::Kill.end() };
    op(time_ms, Process::Nemesis, Kind::Info, Function::Fault(function), value)
}

#[test]
fn operations_and_bands_have_a_start_and_an_end() {
    let history = [
        client(0, 1, Kind::Invoke),
        client(5, 1, Kind::Ok),
        fault(10, true, json!("one")),
        fault(11, true, json!({"outcome": "installed", "at": 9_000_000, "nodes": ["n1"]})),
        client(12, 3, Kind::Invoke),
        fault(20, false, json!(null)),
        fault(21, false, json!({"nodes": []})),
        fault(30, true, json!({"outcome": "skipped", "reason": "x"})),
        client(40, 1_000_000_000, Kind::Invoke),
        client(50, 1_000_000_000, Kind::Fail),
    ];
    let events = Events::read(&history, 2);
    let seen: Vec<_> = events
        .operations
        .iter()
        .map(|operation| (operation.thread, operation.from_ms, operation.to_ms, operation.kind))
        .collect();
    assert_eq!(
        seen,
        [
            (Some(1), 0.0, 5.0, Kind::Ok),
            (Some(1), 12.0, 50.0, Kind::Invoke),
            (None, 40.0, 50.0, Kind::Fail)
        ]
    );
    assert_eq!(events.bands.len(), 1);
    assert_eq!((events.bands[0].from_ms, events.bands[0].to_ms), (9.0, 20.0));
}

#[test]
fn the_page_is_whole_escaped_and_says_what_it_leaves_out() {
    let mut history = Vec::new();
    for number in 0..12_000 {
        history.push(client(number, 0, Kind::Invoke));
        history.push(client(number, 0, if number == 5 { Kind::Info } else { Kind::Ok }));
    }
    history.push(fault(12_001, true, json!({"outcome": "installed", "aim": "<one>"})));
    let results = json!({
        "valid": false,
        "stats": {"valid": false, "text": "<b>"},
        "outages": {"kill": {"count": 2, "p50_ms": 900, "p99_ms": 1_000, "max_ms": 1_000, "without_end": 0}},
        "harness_failures": ["it <broke>"],
    });
    let page = render(&record(), &history, &results, Verdict::False);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for wanted in [
        "FAILED</span>register on 1 servers under kill",
        "jepsen &lt;test&gt;",
        "default reads, seed 7",
        "<p>kernel 6.1 &lt;x&gt;, 2 CPUs, sources with changes, faketime /lib/faketime, a snapshot per 65536 bytes",
        "text: &lt;b&gt;",
        "it &lt;broke&gt;",
        "no &lt;library&gt;",
        "kill: &lt;one&gt;",
        "<td class=\"number\">900</td>",
        "of 12000 operations are drawn",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
    assert!(!page.contains("<x>") && !page.contains("<b>"));
    let circles = page.matches("<circle").count();
    assert!((5_000..=10_000).contains(&circles), "{circles}");
    // What did not succeed is never left out before what did.
    assert!(page.contains("fill=\"#FFAA26\"/>"));
}
