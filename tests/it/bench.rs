//! The benchmarks run, check what they measured, and a cluster takes a rush of first writes.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::thread;

use serde_json::Value;

use crate::harness::{Cluster, Options, Turn, program, stored_job};

fn bench(arguments: &[&str]) -> Value {
    let _turn = Turn::take();
    let output = program().arg("bench").args(arguments).args(["--up", "--json"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The sum of what all servers took, divided by the operations.
fn check_processor_time(report: &Value, operation: &str) {
    let each = &report["processor_time_per_operation"];
    assert_eq!(each["operation"], operation, "{report}");
    let servers = report["servers"].as_array().unwrap();
    let cpu_ms: f64 = servers.iter().map(|server| server["cpu_ms"].as_f64().unwrap()).sum();
    let us = each["us"].as_f64().unwrap() * each["count"].as_f64().unwrap();
    assert!(cpu_ms > 0.0 && (us / cpu_ms / 1e3 - 1.0).abs() < 1e-9, "{report}");
}

#[test]
fn writes_are_measured_and_read_back() {
    for way in [["--ask", "leader"], ["--ask", "followers"]] {
        let short =
            ["writes", "--seconds", "2", "--warm-up", "0", "--keys", "40", "--in-flight", "16"];
        let report = bench(&[&short[..], &way].concat());
        assert!(report["writes_per_second"].as_f64().unwrap() > 0.0, "{report}");
        assert_eq!((&report["errors"], &report["conflicts"]), (&0.into(), &0.into()), "{report}");
        assert_eq!(report["servers"].as_array().unwrap().len(), 3, "{report}");
        check_processor_time(&report, "write");
    }
}

#[test]
fn reads_are_measured_on_every_server() {
    let short = ["reads", "--seconds", "2", "--warm-up", "0", "--keys", "20", "--in-flight", "6"];
    let report = bench(&short);
    assert!(report["reads_per_second"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(report["errors"], 0, "{report}");
    check_processor_time(&report, "read");
}

#[test]
fn placements_are_measured_and_recomputed() {
    let report = bench(&[
        "schedule",
        "--nodes",
        "12",
        "--jobs",
        "4",
        "--count",
        "25",
        "--ports",
        "2",
        "--timeout",
        "120",
    ]);
    assert!(report["placements_per_second"].as_f64().unwrap() > 0.0, "{report}");
    for server in 1..=3 {
        assert_eq!(report[format!("check_on_server_{server}")], 0, "{report}");
    }
    check_processor_time(&report, "allocation");
    assert_eq!(report["processor_time_per_operation"]["count"], 100, "{report}");
}

#[test]
fn dispatches_are_measured_before_and_after_others_are_over() {
    let report = bench(&[
        "dispatch",
        "--nodes",
        "10",
        "--children",
        "150",
        "--singles",
        "50",
        "--timeout",
        "120",
    ]);
    for when in ["with_few_children", "with_250_children_over"] {
        assert_eq!(report[format!("dispatch_{when}")]["count"], 50, "{report}");
        assert!(report[format!("first_page_{when}")]["p50_us"].as_u64() > Some(0), "{report}");
    }
    assert!(report["ratio_of_the_medians"].as_f64() > Some(0.0), "{report}");
    check_processor_time(&report, "dispatch");
}

/// The limit cannot be met, so that the verdict is seen too.
#[test]
fn a_program_is_compared_with_itself_in_turns() {
    let _turn = Turn::take();
    let this = program().get_program().to_owned();
    let output = program()
        .args(["bench", "compare", "--json", "--rounds", "2", "--limit", "0.000001", "--with"])
        .arg(&this)
        .args(["schedule", "--nodes", "4", "--jobs", "2", "--count", "5", "--timeout", "120"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("VIOLATION: the ratio of processor time"), "{errors}");
    let turns: Vec<&str> = errors.lines().filter(|line| line.ends_with("quorate")).collect();
    let firsts: Vec<&str> = turns.iter().filter_map(|line| line.split(':').next()).collect();
    let expected =
        ["round 1 of 2, this", "round 1 of 2, other", "round 2 of 2, other", "round 2 of 2, this"];
    assert_eq!(firsts, expected, "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in ["processor_time_per_allocation", "placements_per_second", "evaluation_p99"] {
        let row = &report[name];
        assert_eq!(row["ratios"].as_array().unwrap().len(), 2, "{name}: {report}");
        let [min, median, max] =
            ["ratio_min", "ratio_median", "ratio_max"].map(|part| row[part].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{name}: {report}");
    }
}

/// Before its first entry a cluster has no log time: writes that come together were stamped with 0, and all but the first were refused as
/// older than the session window.
#[test]
fn many_first_writes_at_once_are_all_taken() {
    let cluster = Cluster::start(Options::new(3));
    let answers: Vec<_> = thread::scope(|scope| {
        let writers: Vec<_> = (0..60)
            .map(|number| {
                let client = cluster.client(number % 3);
                scope.spawn(move || {
                    client.put("/v1/jobs", &stored_job(&format!("first-{number}"), "x"))
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    for answer in answers {
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
}
