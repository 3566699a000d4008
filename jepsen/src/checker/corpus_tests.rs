//! Tests of the checkers against histories with known verdicts (`corpus/`).
//!
//! A folder is a checker; a name begins with the verdict. The first line of a file is a comment; in a bad one
//! it is a part of what the checker must say.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::agent_records::Records;
use super::foreign::{Model, judge};
use super::judgement::Judgement;
use super::task_records::Tasks;
use super::{
    Verdict, allocations, capacity, elastic, evaluations, job_versions, list_append, set_full,
    watch,
};
use crate::{
    edn::read_history,
    history::{Function, Kind, Op, Process},
    task::Line,
};
use chance::Dice;

const TIME_MAX: Duration = Duration::from_mins(2);

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn judge_file(folder: &str, path: &Path) -> Judgement {
    let history = read_history(path).unwrap();
    let judgement = match folder {
        "list-append" => judge(&history, Model::ListAppend, TIME_MAX),
        "set" => judge(&history, Model::Set, TIME_MAX),
        "set-pages" => set_full::check(&history, set_full::OF_PAGES),
        "queue" => judge(&history, Model::Queue, TIME_MAX),
        "cas-register" => judge(&history, Model::CasRegister, TIME_MAX),
        "jobs" => job_versions::check(&history, TIME_MAX),
        "evaluations" => evaluations::check(&history),
        "capacity" => capacity::check(&history, TIME_MAX),
        "allocations" => allocations::check(&history, None),
        "watch" => watch::check(&history),
        "elastic" => elastic::check(&history),
        other => panic!("no checker for {other}"),
    };
    judgement.unwrap_or_else(|error| panic!("{}: {error:#}", path.display()))
}

/// Judges every file of a folder; how many were good, bad and unknown.
fn check(folder: &str) -> [usize; 3] {
    let mut counts = [0; 3];
    for entry in std::fs::read_dir(corpus().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let judgement = judge_file(folder, &path);
        let name = path.file_name().unwrap().to_str().unwrap();
        let (verdict, place) = match name.split('-').next() {
            Some("good") => (Verdict::True, 0),
            Some("bad") => (Verdict::False, 1),
            Some("unknown") => (Verdict::Unknown, 2),
            Some(_) | None => panic!("{name} does not begin with a verdict"),
        };
        assert_eq!(judgement.valid, verdict, "{name}: {judgement:#?}");
        counts[place] += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let note = text.lines().next().unwrap().strip_prefix("; ").unwrap();
        if verdict == Verdict::False {
            let said = judgement.violations.iter().any(|found| found.title.contains(note));
            assert!(said, "{name}: {note:?} is not in {:#?}", judgement.violations);
            let shown = judgement.violations.iter().all(|found| !found.entries.is_empty());
            assert!(shown, "{name}: {:#?}", judgement.violations);
        }
    }
    counts
}

#[test]
fn list_append_is_judged_as_known() {
    assert_eq!(check("list-append"), [9, 18, 1]);
}

#[test]
fn sets_are_judged_as_known() {
    assert_eq!(check("set"), [13, 11, 1]);
    assert_eq!(check("set-pages"), [1, 2, 0]);
}

#[test]
fn queues_are_judged_as_known() {
    assert_eq!(check("queue"), [10, 5, 1]);
}

#[test]
fn registers_are_judged_as_known() {
    assert_eq!(check("cas-register"), [16, 16, 0]);
}

#[test]
fn jobs_are_judged_as_known() {
    assert_eq!(check("jobs"), [7, 10, 1]);
}

#[test]
fn evaluations_are_judged_as_known() {
    assert_eq!(check("evaluations"), [5, 13, 1]);
}

#[test]
fn capacity_is_judged_as_known() {
    assert_eq!(check("capacity"), [5, 16, 2]);
}

#[test]
fn allocations_are_judged_as_known() {
    assert_eq!(check("allocations"), [2, 11, 1]);
}

#[test]
fn watches_are_judged_as_known() {
    assert_eq!(check("watch"), [10, 30, 1]);
}

#[test]
fn elastic_pools_are_judged_as_known() {
    assert_eq!(check("elastic"), [5, 12, 2]);
}

#[test]
fn agents_must_run_what_the_servers_say() {
    let path = corpus().join("allocations/good-replaced.edn");
    let history = read_history(&path).unwrap();
    let start =
        Line::Start { allocation: "2".to_owned(), agent: "a4".to_owned(), at: 0, decided: 0 };
    let held = Line::Held { allocations: BTreeSet::new() };
    let check = |running: &[&str], [twice, returned]: [&[&str]; 2], lines: &[Line]| {
        let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let (running, twice, returned) = (set(running), set(twice), set(returned));
        let records = Records { running, twice, returned, starts: 3, ..Records::default() };
        let agree = allocations::agents_agree(&history, &records.running).unwrap();
        assert_eq!(agree, set(&["2"]) == records.running);
        allocations::check(&history, Some((records, &Tasks { lines: lines.to_vec() }))).unwrap()
    };
    let lines = [start, held];
    assert_eq!(check(&["2"], [&[], &[]], &lines).valid, Verdict::True);
    // Without processes it proves nothing about them, nor without a look at the end.
    for too_few in [&lines[..1], &lines[1..]] {
        assert_eq!(check(&["2"], [&[], &[]], too_few).valid, Verdict::Unknown);
    }
    for (running, odd, said) in [
        (&["1", "2"][..], [&[][..], &[]], "1 still runs on its agent"),
        (&[], [&[], &[]], "2 runs in the servers' eyes, but not on its agent"),
        (&["2"], [&["2"], &[]], "2 ran twice at once"),
        (&["2"], [&[], &["2"]], "2 was forgotten by its agent while it ran"),
    ] {
        let judgement = check(running, odd, &lines);
        assert_eq!(judgement.valid, Verdict::False, "{said}");
        assert!(judgement.violations[0].title.contains(said), "{judgement:#?}");
    }
}

#[test]
fn every_folder_of_the_corpus_is_judged() {
    let folders: BTreeSet<String> = std::fs::read_dir(corpus())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let known = [
        "allocations",
        "capacity",
        "cas-register",
        "elastic",
        "evaluations",
        "jobs",
        "list-append",
        "queue",
        "register",
        "set",
        "set-pages",
        "watch",
    ];
    assert_eq!(folders, BTreeSet::from(known.map(str::to_owned)));
}

/// A transaction of the brute force: its steps with the answers, when it ran, and whether it must have.
#[derive(Clone, Debug)]
struct Transaction {
    steps: Vec<(usize, Result<i64, Vec<i64>>)>,
    invoked: u64,
    returned: u64,
}

/// Whether some order of the transactions explains every read and keeps real time.
fn serializable(all: &[Transaction], done: &mut Vec<usize>, lists: &[Vec<i64>]) -> bool {
    if done.len() == all.len() {
        return true;
    }
    for next in 0..all.len() {
        let overtaken = (0..all.len())
            .any(|other| !done.contains(&other) && all[other].returned < all[next].invoked);
        if done.contains(&next) || overtaken {
            continue;
        }
        let mut after = lists.to_vec();
        let fits = all[next].steps.iter().all(|(list, step)| match step {
            Ok(value) => {
                after[*list].push(*value);
                true
            }
            Err(read) => after[*list] == *read,
        });
        if fits {
            done.push(next);
            if serializable(all, done, &after) {
                return true;
            }
            done.pop();
        }
    }
    false
}

/// Transactions on two lists, good by construction, then perhaps with one read spoilt. The last one reads all.
fn random_transactions(random: &mut Dice, spoil: bool) -> Vec<Transaction> {
    let mut lists = [Vec::new(), Vec::new()];
    let mut value = 0;
    let mut all = Vec::new();
    let count = 3 + random.index(4) as u64;
    for number in 0..count {
        let mut steps = Vec::new();
        for _ in 0..=random.index(3) {
            let list = random.index(2);
            if random.index(2) == 0 {
                steps.push((list, Err(lists[list].clone())));
            } else {
                value += 1;
                lists[list].push(value);
                steps.push((list, Ok(value)));
            }
        }
        let at = 1_000 + number * 100;
        let invoked = at - random.index(250) as u64;
        all.push(Transaction { steps, invoked, returned: at + 1 + random.index(250) as u64 });
    }
    let steps = vec![(0, Err(lists[0].clone())), (1, Err(lists[1].clone()))];
    all.push(Transaction { steps, invoked: 5_000, returned: 5_001 });
    let reads: Vec<(usize, usize)> = all
        .iter()
        .enumerate()
        .flat_map(|(number, one)| {
            let reads = one.steps.iter().enumerate().filter(|(_, (_, step))| step.is_err());
            reads.map(move |(step, _)| (number, step)).collect::<Vec<_>>()
        })
        .collect();
    let (number, step) = random.choose(&reads);
    let value_count = usize::try_from(value.max(1)).unwrap();
    if spoil && let Err(read) = &mut all[number].steps[step].1 {
        match random.index(3) {
            0 => drop(read.pop()),
            1 if !read.is_empty() => drop(read.remove(0)),
            _ => read.push(1 + i64::try_from(random.index(value_count)).unwrap()),
        }
    }
    all
}

fn as_history(all: &[Transaction]) -> Vec<Op> {
    let mut events: Vec<(u64, u64, Kind)> = Vec::new();
    for (number, one) in all.iter().enumerate() {
        events.push((one.invoked, number as u64, Kind::Invoke));
        events.push((one.returned, number as u64, Kind::Ok));
    }
    events.sort_by_key(|(at, number, kind)| (*at, *kind != Kind::Invoke, *number));
    let mut history = Vec::new();
    for (index, (_, number, kind)) in events.into_iter().enumerate() {
        let steps = all[usize::try_from(number).unwrap()].steps.iter();
        let value = steps.map(|(list, step)| match step {
            Ok(value) => json!(["append", list, value]),
            Err(read) => json!(["r", list, read]),
        });
        let op = Op::new(Process::Client(number), kind, Function::Txn, value.collect());
        history.push(Op { index: index as u64, ..op });
    }
    history
}

/// What the checker calls bad, brute force must call bad; and with a last read of everything, the other way
/// round too.
#[test]
fn list_append_agrees_with_brute_force() {
    let mut verdicts = [0; 2];
    for seed in 0..4_000 {
        let mut random = Dice::numbered(seed, 0);
        let all = random_transactions(&mut random, seed % 3 > 0);
        let expected = serializable(&all, &mut Vec::new(), &[Vec::new(), Vec::new()]);
        assert!(expected || seed % 3 > 0, "seed {seed}: a good history was generated bad");
        let judgement = list_append::check(&as_history(&all)).unwrap();
        let found = judgement.valid == Verdict::True;
        assert_eq!(found, expected, "seed {seed}: {all:#?} {judgement:#?}");
        verdicts[usize::from(expected)] += 1;
    }
    assert!(verdicts.iter().all(|count| *count > 500), "both verdicts are tested: {verdicts:?}");
}

/// What one call on a register with few values did.
#[derive(Clone, Copy, Debug)]
enum Call {
    Read(u64),
    Write(u64),
    Cas(u64, u64),
}

/// Whether some order of the calls explains every answer; those without a return may be left out.
fn linearizable(calls: &[(Call, u64, Option<u64>)], done: &mut Vec<usize>, value: u64) -> bool {
    if (0..calls.len()).all(|call| calls[call].2.is_none() || done.contains(&call)) {
        return true;
    }
    (0..calls.len()).any(|call| {
        let open = |other: &usize| !done.contains(other);
        let first = calls[call].1;
        let overtaken = |other: usize| calls[other].2.is_some_and(|returned| returned < first);
        if !open(&call) || (0..calls.len()).any(|other| open(&other) && overtaken(other)) {
            return false;
        }
        let after = match calls[call].0 {
            Call::Read(seen) => (seen == value).then_some(value),
            Call::Write(new) => Some(new),
            Call::Cas(old, new) => (old == value).then_some(new),
        };
        after.is_some_and(|after| {
            done.push(call);
            let fits = linearizable(calls, done, after);
            done.pop();
            fits
        })
    })
}

/// Registers whose values are not unique, where a call that changes nothing now may be needed later.
#[test]
fn registers_with_equal_values_agree_with_brute_force() {
    let mut verdicts = [0; 2];
    for seed in 0..6_000 {
        let mut random = Dice::numbered(seed, 1);
        let mut value = 1;
        let mut calls = Vec::new();
        let mut history: Vec<(u64, Op)> = Vec::new();
        let draw = |random: &mut Dice| 1 + random.index(2) as u64;
        for number in 0..4 + random.index(4) as u64 {
            let guess = draw(&mut random);
            let call = match random.index(3) {
                0 if seed % 2 == 0 => Call::Read(value),
                0 => Call::Read(guess),
                1 => Call::Write(guess),
                _ => Call::Cas(value, draw(&mut random)),
            };
            if let Call::Write(new) | Call::Cas(_, new) = call {
                value = new;
            }
            let at = 1_000 + number * 1_000;
            let invoked = at - random.index(100) as u64 * 10 * number.min(1) - number;
            let returned = at + 1 + random.index(300) as u64 * 10;
            let answered = matches!(call, Call::Read(_)) || random.index(4) > 0;
            let (f, old, new) = match call {
                Call::Read(seen) => (Function::Read, json!(null), json!(seen)),
                Call::Write(new) => (Function::Write, json!(new), json!(new)),
                Call::Cas(old, new) => (Function::Cas, json!([old, new]), json!([old, new])),
            };
            let process = Process::Client(number);
            history.push((invoked, Op::new(process, Kind::Invoke, f, old)));
            let end = if answered { Kind::Ok } else { Kind::Info };
            history.push((returned, Op::new(process, end, f, new)));
            calls.push((call, invoked, answered.then_some(returned)));
        }
        history.sort_by_key(|(at, op)| (*at, op.kind != Kind::Invoke));
        let ops = history.into_iter().zip(0..).map(|((_, op), index)| Op { index, ..op });
        let mut ops: Vec<Op> = ops.collect();
        let first = Process::Client(99);
        let write = |kind| Op::new(first, kind, Function::Write, json!(1));
        ops.splice(0..0, [write(Kind::Invoke), write(Kind::Ok)]);
        ops.iter_mut().zip(0..).for_each(|(op, index)| op.index = index);
        let expected = linearizable(&calls, &mut Vec::new(), 1);
        let judgement = judge(&ops, Model::CasRegister, TIME_MAX).unwrap();
        let found = judgement.valid == Verdict::True;
        assert_eq!(found, expected, "seed {seed}: {calls:#?} {judgement:#?}");
        verdicts[usize::from(expected)] += 1;
    }
    assert!(verdicts.iter().all(|count| *count > 500), "both verdicts are tested: {verdicts:?}");
}
