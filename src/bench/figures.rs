//! The figures by which two programs are compared, read from the JSON that their `bench` printed.
//!
//! Must only read what programs have always printed, and nothing that one of the two may print
//! differently: else a comparison with an older program would compare two things. So processor time
//! is the sum of what each server said of itself before and after, divided here.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{
    arguments::LoadCommand,
    cluster::Operations,
    dispatch::{self, over_before_last},
    schedule,
};

/// One figure of one run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) value: f64,
}

/// Where a figure stands in a report: its name, its unit, a JSON pointer, and what to multiply by.
type Place = (&'static str, &'static str, &'static str, f64);

const WRITES: [Place; 3] = [
    ("writes per second", "/s", "/writes_per_second", 1.0),
    ("latency p50", "ms", "/latency/p50_us", 1e-3),
    ("latency p99", "ms", "/latency/p99_us", 1e-3),
];
const READS: [Place; 3] = [
    ("reads per second", "/s", "/reads_per_second", 1.0),
    ("latency p50", "ms", "/latency/p50_us", 1e-3),
    ("latency p99", "ms", "/latency/p99_us", 1e-3),
];
const SCHEDULE: [Place; 5] = [
    ("placements per second", "/s", "/placements_per_second", 1.0),
    ("evaluation p50", "ms", "/evaluations/p50_us", 1e-3),
    ("evaluation p99", "ms", "/evaluations/p99_us", 1e-3),
    ("all running after", "s", "/all_running_after", 1.0),
    ("resident growth per allocation", "bytes", "/resident_growth_per_allocation", 1.0),
];
const DISPATCH: [Place; 3] = [
    ("children made and over per second", "/s", "/children_made_and_over", 1.0),
    ("dispatch p50 with few children", "ms", "/dispatch_with_few_children/p50_us", 1e-3),
    ("dispatch p99 with few children", "ms", "/dispatch_with_few_children/p99_us", 1e-3),
];

/// The figures of a report, processor time first. One that the report lacks is left out, but it
/// must have processor time.
pub(super) fn read(load: &LoadCommand, report: &Value) -> anyhow::Result<Vec<Figure>> {
    let figure = |name: &str, unit, value| Figure { name: name.to_owned(), unit, value };
    let done = operations(load, report).context("the report does not say what was done")?;
    let cpu_ms: f64 = servers(report, "cpu_ms").iter().sum();
    let us = done.each(cpu_ms * 1e3).filter(|us| *us > 0.0);
    let us = us.context("the report has no processor time of servers, or the load is too small")?;
    let mut figures = vec![figure(&format!("processor time per {}", done.name), "µs", us)];
    let places: &[Place] = match load {
        LoadCommand::Writes(_) => &WRITES,
        LoadCommand::Reads(_) => &READS,
        LoadCommand::Schedule(_) => &SCHEDULE,
        LoadCommand::Dispatch(_) => &DISPATCH,
    };
    for (name, unit, pointer, factor) in places {
        let value = report.pointer(pointer).and_then(number);
        figures.extend(value.map(|value| figure(name, unit, value * factor)));
    }
    if let LoadCommand::Dispatch(arguments) = load {
        let key = format!("dispatch_with_{}_children_over", over_before_last(arguments));
        for (quantile, field) in [("p50", "p50_us"), ("p99", "p99_us")] {
            let name = format!("dispatch {quantile} with many children over");
            let value = report[&key][field].as_f64();
            figures.extend(value.map(|us| figure(&name, "ms", us * 1e-3)));
        }
    }
    let resident = mean(&servers(report, "resident_mib"));
    figures.extend(resident.map(|mib| figure("resident memory of a server", "MiB", mib)));
    // Every server has the same log, but may have been asked a moment earlier or later.
    let entries = servers(report, "log_entries").into_iter().reduce(f64::max);
    let each = entries.and_then(|entries| done.each(entries * 1e3));
    let name = format!("log entries per 1,000 {}", done.names);
    figures.extend(each.map(|each| figure(&name, "entries", each)));
    Ok(figures)
}

/// What the load was, where its flags say so, and else what was acknowledged.
fn operations(load: &LoadCommand, report: &Value) -> Option<Operations> {
    let acknowledged = || report["latency"]["count"].as_u64();
    match load {
        LoadCommand::Writes(_) => acknowledged().map(Operations::writes),
        LoadCommand::Reads(_) => acknowledged().map(Operations::reads),
        LoadCommand::Schedule(arguments) => Some(schedule::operations(arguments)),
        LoadCommand::Dispatch(arguments) => Some(dispatch::operations(arguments)),
    }
}

/// This field of each server.
fn servers(report: &Value, field: &str) -> Vec<f64> {
    let servers = report["servers"].as_array().map_or(&[][..], Vec::as_slice);
    servers.iter().filter_map(|server| server[field].as_f64()).collect()
}

/// A number, or the mean of the numbers of all servers.
fn number(value: &Value) -> Option<f64> {
    let of_servers = || value.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>();
    value.as_f64().or_else(|| mean(&of_servers()?))
}

fn mean(values: &[f64]) -> Option<f64> {
    let count = u32::try_from(values.len()).ok().filter(|count| *count > 0)?;
    Some(values.iter().sum::<f64>() / f64::from(count))
}

/// The JSON that a program printed.
pub(super) fn parse(printed: &str) -> anyhow::Result<Value> {
    let report: Value = serde_json::from_str(printed).context("it printed no JSON")?;
    ensure!(report.is_object(), "it printed no report");
    Ok(report)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        load: LoadCommand,
    }

    fn read_line(line: &str, report: &Value) -> anyhow::Result<Vec<(String, String)>> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let figures = read(&Line::try_parse_from(words).unwrap().load, report)?;
        let told = |figure: Figure| (figure.name, format!("{:.3} {}", figure.value, figure.unit));
        Ok(figures.into_iter().map(told).collect())
    }

    fn check(line: &str, report: &Value, expected: &[(&str, &str)]) {
        let figures = read_line(line, report).unwrap();
        let figures: Vec<(&str, &str)> =
            figures.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(figures, expected);
    }

    /// The fields of a server as the first programs printed them.
    fn servers(cpu_ms: [f64; 3], entries: f64) -> Value {
        let server = |cpu_ms: f64| {
            json!({
                "name": "server-1", "leads": false, "log_entries": entries, "log_syncs": 10.0,
                "log_mib": 1.0, "cpu_ms": cpu_ms, "disk_lag_groups": 0.0, "resident_mib": 80.0,
            })
        };
        cpu_ms.map(server).into_iter().collect()
    }

    #[test]
    fn writes_and_reads_are_divided_by_what_was_acknowledged() {
        let latency = json!({ "count": 10_000, "p50_us": 1_500, "p99_us": 20_000 });
        let report = json!({
            "writes_per_second": 5_000.0, "reads_per_second": 5_000.0, "latency": latency,
            "servers": servers([800.0, 400.0, 300.0], 10_010.0),
        });
        let expected = |one: &str, rate: &'static str, entries: &str| {
            vec![
                (format!("processor time per {one}"), "150.000 µs"),
                (format!("{one}s per second"), rate),
                ("latency p50".to_owned(), "1.500 ms"),
                ("latency p99".to_owned(), "20.000 ms"),
                ("resident memory of a server".to_owned(), "80.000 MiB"),
                (entries.to_owned(), "1001.000 entries"),
            ]
        };
        for one in ["write", "read"] {
            let entries = format!("log entries per 1,000 {one}s");
            let expected = expected(one, "5000.000 /s", &entries);
            let expected: Vec<(&str, &str)> =
                expected.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            check(&format!("{one}s"), &report, &expected);
        }
    }

    #[test]
    fn placements_are_divided_by_what_was_asked_for() {
        let report = json!({
            "scheduled": "4 jobs × 25 = 100 allocations on 12 nodes",
            "placements_per_second": 500.0, "all_running_after": 0.8,
            "evaluations": { "count": 4, "p50_us": 30_000, "p99_us": 90_000 },
            "resident_growth_per_allocation": [4_000.0, 5_000.0, 6_000.0],
            "servers": servers([20.0, 10.0, 10.0], 6.0),
        });
        check(
            "schedule --jobs 4 --count 25",
            &report,
            &[
                ("processor time per allocation", "400.000 µs"),
                ("placements per second", "500.000 /s"),
                ("evaluation p50", "30.000 ms"),
                ("evaluation p99", "90.000 ms"),
                ("all running after", "0.800 s"),
                ("resident growth per allocation", "5000.000 bytes"),
                ("resident memory of a server", "80.000 MiB"),
                ("log entries per 1,000 allocations", "60.000 entries"),
            ],
        );
    }

    #[test]
    fn dispatches_are_those_of_both_measurements_and_between() {
        let report = json!({
            "children_made_and_over": 700.0,
            "dispatch_with_few_children": { "p50_us": 2_000, "p99_us": 3_000 },
            "dispatch_with_950_children_over": { "p50_us": 2_200, "p99_us": 3_300 },
            "servers": servers([500.0, 250.0, 250.0], 2_000.0),
        });
        check(
            "dispatch --children 850 --singles 50",
            &report,
            &[
                ("processor time per dispatch", "1000.000 µs"),
                ("children made and over per second", "700.000 /s"),
                ("dispatch p50 with few children", "2.000 ms"),
                ("dispatch p99 with few children", "3.000 ms"),
                ("dispatch p50 with many children over", "2.200 ms"),
                ("dispatch p99 with many children over", "3.300 ms"),
                ("resident memory of a server", "80.000 MiB"),
                ("log entries per 1,000 dispatches", "2000.000 entries"),
            ],
        );
    }

    #[test]
    fn figures_that_a_report_lacks_are_left_out_but_for_processor_time() {
        let report = json!({ "servers": [{ "cpu_ms": 10.0 }], "placements_per_second": null });
        check(
            "schedule --jobs 1 --count 10",
            &report,
            &[("processor time per allocation", "1000.000 µs")],
        );
        for (line, report) in [
            ("schedule", json!({})),
            ("schedule", json!({ "servers": servers([0.0; 3], 1.0) })),
            ("writes", json!({ "servers": servers([10.0; 3], 1.0) })),
            ("reads", json!({ "servers": servers([10.0; 3], 1.0), "latency": { "count": 0 } })),
        ] {
            assert!(read_line(line, &report).is_err(), "{line} {report}");
        }
    }

    #[test]
    fn an_output_without_a_report_is_refused() {
        for printed in ["", "nothing", "[1]", "{"] {
            assert!(parse(printed).is_err(), "{printed}");
        }
        assert_eq!(parse("{ \"a\": 1 }\n").unwrap()["a"], 1);
    }
}
