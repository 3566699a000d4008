//! The budget of work: what each operation may cost, and what each row may take of memory, held
//! against `budget.txt` by `cargo test`.
//!
//! ```text
//!  operations ─► server (real, simulated) ─► its log ─► replay, counted ─┐
//!                       └► entries, passes ──────────────────────────────┼─► file ◄─► budget.txt
//!  memory: a thousand rows of each kind ─────────────────────────────────┘
//! ```
//!
//! A test binary of its own, because it counts what it allocates. No clock is read: the same sources
//! give the same figures on any machine.

mod allocations;
mod file;
mod memory;
mod operations;
mod replay;
mod server;

use std::{fs, path::Path};

use file::{Budget, Table};
use operations::Operation;
use replay::{Replay, Work};
use server::{Logged, Server};

const COLUMNS: [&str; 8] = [
    "entries",
    "rows",
    "bytes",
    "passes",
    "leading allocs",
    "leading bytes",
    "applying allocs",
    "applying bytes",
];

/// What all operations come to.
fn operations_measured() -> Table {
    let (operations, log, digest) = server::simulate(async {
        let (server, operations) = operations::run(Server::start().await).await;
        let (log, digest) = server.log();
        (operations, log, digest)
    });
    let mut measured: Vec<(&str, Vec<Vec<u64>>)> = Vec::new();
    let mut log = log.iter();
    let mut replay = Replay::new();
    for operation in &operations {
        go_on(&mut replay, &mut log, operation.after);
        replay.take_work();
        go_on(&mut replay, &mut log, operation.upto);
        if let Some((node, incarnation)) = operation.heard {
            replay.hear(node, incarnation);
        }
        let figures = figures(operation, replay.take_work());
        match measured.iter_mut().find(|(name, _)| *name == operation.name) {
            Some((_, rounds)) => rounds.push(figures),
            None => measured.push((operation.name, vec![figures])),
        }
    }
    go_on(&mut replay, &mut log, u64::MAX);
    assert_eq!(replay.digest(), digest, "the replay has another state than the server");
    let mut table = Table::new("operation", &COLUMNS);
    table.rows =
        measured.into_iter().map(|(name, rounds)| (name.to_owned(), medians(rounds))).collect();
    table
}

/// The middle one of each column.
fn medians(rounds: Vec<Vec<u64>>) -> Vec<u64> {
    let of_column = |column| {
        let mut figures: Vec<u64> = rounds.iter().map(|round| round[column]).collect();
        figures.sort_unstable();
        figures[figures.len() / 2]
    };
    (0..COLUMNS.len()).map(of_column).collect()
}

/// Replays the log up to an index.
fn go_on<'a>(replay: &mut Replay, log: &mut (impl Iterator<Item = &'a Logged> + Clone), upto: u64) {
    while log.clone().next().is_some_and(|entry| entry.index <= upto) {
        log.next().into_iter().for_each(|entry| replay.go_on(entry));
    }
}

fn figures(operation: &Operation, work: Work) -> Vec<u64> {
    let Work { entries, rows, bytes, leading, applying } = work;
    let passes = operation.passes;
    vec![entries, rows, bytes, passes, leading.count, leading.bytes, applying.count, applying.bytes]
}

fn memory_measured() -> Table {
    let mut table = Table::new("a row in memory", &["live bytes"]);
    let rows = memory::measure().into_iter();
    table.rows = rows.map(|(name, bytes)| (name.to_owned(), vec![bytes])).collect();
    table
}

#[test]
fn the_budget_is_kept() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/budget/budget.txt");
    let text = fs::read_to_string(&path).expect("the budget is readable");
    let mut budget = Budget::parse(&text).unwrap_or_else(|why| panic!("budget.txt: {why}"));
    let measured = [operations_measured(), memory_measured()];
    if std::env::var_os("UPDATE").is_some() {
        budget = budget.update(&measured);
        fs::write(&path, budget.to_string()).expect("the budget is writable");
    }
    let wrong = budget.check(&measured);
    assert!(
        wrong.is_empty(),
        "the budget of work is not kept:\n  {}\n\
         Win back what rose. If it is worth its cost, or something fell:\n  {}\n\
         writes tests/budget/budget.txt; what rose then has a line there that wants a reason \
         (docs/testing.md).",
        wrong.join("\n  "),
        file::COMMAND,
    );
}
