//! What tasks and agents did, against what the servers had shown by then.
//!
//! Reads the journal of the run's tasks ([`crate::task`]), whose times are those of the history, and owns the rules for both kinds of
//! nodes: an agent that begins knows what was decided before it began; a real task starts once, in one place, not beside one that has its fixed port, and
//! not after the servers have shown its end; it is gone when they do, and nobody ends it while it is to run (I49). An agent that is told to end may end its
//! tasks, and the next one starts them again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::agent_records::Records;
use super::judgement::Judgement;
use super::views::View;
use crate::{
    history::{Function, Op, Process},
    task::Line,
    workload::snapshot::Allocation,
};

/// A file's time is that of a tick of the kernel's clock (10 ms at most) and looks earlier than it was.
const TICK_NS: u64 = 20_000_000;

/// What the tasks of a run wrote down.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    /// Every line, in order.
    pub(crate) lines: Vec<Line>,
}

/// Reads a journal.
pub(crate) fn read(path: &Path) -> Result<Tasks> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().map(|line| {
        serde_json::from_str(line).with_context(|| format!("no line of a task: {line}"))
    });
    Ok(Tasks { lines: lines.collect::<Result<_>>()? })
}

impl Tasks {
    /// Tasks that began.
    pub(crate) fn starts(&self) -> usize {
        self.lines.iter().filter(|line| matches!(line, Line::Start { .. })).count()
    }

    /// Whether it was noted at the end which tasks live.
    pub(crate) fn tell_the_end(&self) -> bool {
        self.lines.iter().any(|line| matches!(line, Line::Held { .. }))
    }

    /// Takes what the tasks say about the end, and about starts beside one that lives, into the records of all agents.
    pub(crate) fn add_to(&self, records: &mut Records) {
        records.starts += self.starts();
        for line in &self.lines {
            match line {
                Line::Twice { allocation } => drop(records.twice.insert(allocation.clone())),
                Line::Held { allocations } => records.running.extend(allocations.iter().cloned()),
                Line::Start { .. } | Line::Port { .. } | Line::End { .. } => {}
            }
        }
    }
}

/// What the reads showed of each allocation.
struct Shown<'a> {
    /// The first read that showed it as not to run, or ended.
    unwanted: BTreeMap<&'a str, &'a View<'a>>,
    /// The first that showed it ended by its agent's word.
    ended: BTreeMap<&'a str, &'a View<'a>>,
    /// The one that began last of those that showed it as to run, and not ended.
    wanted: BTreeMap<&'a str, &'a View<'a>>,
}

impl<'a> Shown<'a> {
    /// `views` in order of their end.
    fn new(views: &'a [View<'a>]) -> Self {
        let mut shown =
            Self { unwanted: BTreeMap::new(), ended: BTreeMap::new(), wanted: BTreeMap::new() };
        for view in views {
            for allocation in &view.snapshot.allocations {
                let id = allocation.id.as_str();
                if allocation.desired != "run" || allocation.has_ended() {
                    shown.unwanted.entry(id).or_insert(view);
                }
                if is_reported(allocation) {
                    shown.ended.entry(id).or_insert(view);
                }
                if allocation.is_live() {
                    let last = shown.wanted.entry(id).or_insert(view);
                    if last.pair.start.time < view.pair.start.time {
                        *last = view;
                    }
                }
            }
        }
        shown
    }

    /// A read that shows the allocation, if there is one.
    fn evidence(&self, id: &str) -> Vec<Op> {
        let view = self.unwanted.get(id).or_else(|| self.wanted.get(id));
        view.map_or_else(Vec::new, |view| view.only(|found| found.id == id))
    }
}

/// Ended because its agent said so; servers call it lost when there is none to say it.
fn is_reported(allocation: &Allocation) -> bool {
    matches!(allocation.client.as_str(), "complete" | "failed")
}

/// When each agent was started again: the beginnings of those operations, in order.
fn begins(history: &[Op]) -> BTreeMap<&str, Vec<u64>> {
    let mut begins: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let starts =
        history.iter().filter(|op| op.process == Process::Nemesis && op.f == Function::StartAgent);
    for op in starts {
        // Its end has an object for a value.
        if let Some(agent) = op.value.as_str() {
            begins.entry(agent).or_default().push(op.time);
        }
    }
    begins
}

/// When agents were told to end, until they were started again.
struct Stops<'a>(BTreeMap<&'a str, Vec<(u64, u64)>>);

impl<'a> Stops<'a> {
    fn new(history: &'a [Op]) -> Self {
        let mut stops: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
        for op in history.iter().filter(|op| op.process == Process::Nemesis) {
            let Some(agent) = op.value.as_str() else { continue };
            let of_agent = stops.entry(agent).or_default();
            if op.f == Function::StopAgent {
                of_agent.push((op.time, u64::MAX));
            } else if op.f == Function::StartAgent
                && let Some((_, end)) = of_agent.last_mut().filter(|(_, end)| *end == u64::MAX)
            {
                *end = op.time;
            }
        }
        Self(stops)
    }

    /// Whether this agent was about to end, or had ended, at that time.
    fn covers(&self, agent: &str, at: u64) -> bool {
        let of_agent = self.0.get(agent).map_or(&[][..], Vec::as_slice);
        of_agent.iter().any(|(begin, end)| (*begin..*end).contains(&at))
    }
}

/// A task's last start, and whether it was ended with its agent since.
struct Run<'a> {
    agent: &'a str,
    at: u64,
    is_suspended: bool,
}

/// Judges what agents wrote down of what they simulate, and what tasks wrote down of themselves.
pub(crate) fn judge(
    history: &[Op],
    (records, tasks): (&Records, &Tasks),
    views: &[View<'_>],
    judgement: &mut Judgement,
) {
    let (shown, begins) = (Shown::new(views), begins(history));
    for (agent, life, id) in &records.lives {
        // The first start is not in the history.
        let begin = life.checked_sub(2).and_then(|again| begins.get(agent.as_str())?.get(again));
        if let (Some(begin), Some(view)) = (begin, shown.unwanted.get(id.as_str()))
            && view.answer.time < *begin
        {
            let title = format!(
                "allocation {id} ran on {agent}, which began {} ms after it was seen not to be wanted any more",
                milliseconds(*begin, view.answer.time)
            );
            judgement.violated(title, shown.evidence(id));
        }
    }
    let stops = Stops::new(history);
    let mut runs: BTreeMap<&str, Run<'_>> = BTreeMap::new();
    for line in &tasks.lines {
        let (id, problem) = match line {
            Line::Start { allocation, agent, at, decided } => {
                let begins = begins.get(agent.as_str()).map_or(&[][..], Vec::as_slice);
                let before = runs.insert(allocation, Run { agent, at: *at, is_suspended: false });
                let before = before.filter(|run| !run.is_suspended).map(|run| run.at);
                (allocation, wrong_start(&shown, allocation, (*at, *decided), begins, before))
            }
            Line::End { allocation, at } => {
                let run = runs.get_mut(allocation.as_str());
                let is_suspended = run.is_some_and(|run| {
                    run.is_suspended = stops.covers(run.agent, *at);
                    run.is_suspended
                });
                (allocation, wrong_end(&shown, allocation, *at, is_suspended))
            }
            Line::Port { allocation, agent } => {
                let problem = format!("began on {agent} while another there had its port");
                (allocation, Some(problem))
            }
            // These are judged with the records of all agents.
            Line::Twice { .. } | Line::Held { .. } => continue,
        };
        if let Some(problem) = problem {
            judgement.violated(format!("allocation {id} {problem}"), shown.evidence(id));
        }
    }
}

fn wrong_start(
    shown: &Shown<'_>,
    id: &str,
    (at, decided): (u64, u64),
    begins: &[u64],
    started: Option<u64>,
) -> Option<String> {
    if let Some(before) = started {
        let after = milliseconds(at, before);
        return Some(format!("was started again after {after} ms, and nothing had ended it"));
    }
    if let Some(view) = shown.ended.get(id)
        && view.answer.time < at
    {
        let after = milliseconds(at, view.answer.time);
        return Some(format!("was started {after} ms after the servers had shown its end"));
    }
    let begin = begins.iter().rfind(|begin| **begin <= decided)?;
    let view = shown.unwanted.get(id)?;
    (view.answer.time < *begin && decided >= begin + TICK_NS).then(|| {
        let after = milliseconds(*begin, view.answer.time);
        format!("was started by an agent that began {after} ms after it was seen not to be wanted any more")
    })
}

fn wrong_end(shown: &Shown<'_>, id: &str, at: u64, is_suspended: bool) -> Option<String> {
    if let Some(view) = shown.ended.get(id)
        && view.answer.time < at
    {
        let after = milliseconds(at, view.answer.time);
        return Some(format!("still ran {after} ms after the servers had shown its end"));
    }
    let wanted = shown.wanted.get(id).filter(|_| !is_suspended);
    let view = wanted.filter(|view| view.pair.start.time > at)?;
    let after = milliseconds(view.pair.start.time, at);
    Some(format!("was ended, and is to run as the servers say {after} ms later"))
}

fn milliseconds(later: u64, earlier: u64) -> u64 {
    later.saturating_sub(earlier) / 1_000_000
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::{checker::Verdict, checker::views::views, history::Kind};

    const SECOND: u64 = 1_000_000_000;

    /// Allocation `x` is to run at 2 s and at 4 s, is to stop at 6 s, and has ended at 10 s; agent `a1` begins anew at 8 s.
    fn history() -> Vec<Op> {
        let mut history = Vec::new();
        let mut add = |second: u64, process, kind, f, value| {
            let mut op = Op::new(process, kind, f, value);
            (op.index, op.time) = (history.len() as u64, second * SECOND);
            history.push(op);
        };
        for (at, desired, client) in [
            (2, "run", "pending"),
            (4, "run", "running"),
            (6, "stop", "running"),
            (10, "stop", "complete"),
        ] {
            if at == 10 {
                add(8, Process::Nemesis, Kind::Info, Function::StartAgent, json!("a1"));
                add(
                    8,
                    Process::Nemesis,
                    Kind::Info,
                    Function::StartAgent,
                    json!({"outcome": "installed"}),
                );
            }
            let allocation = json!({
                "id": "x", "name": "r.group[0]", "job": "r", "node": "n", "desired": desired, "client": client,
                "version": 0, "cpu": 1, "memory": 1, "create": 1, "modify": at,
            });
            let value = json!({"index": at, "nodes": [], "allocations": [allocation]});
            add(at, Process::Client(0), Kind::Invoke, Function::Read, json!(null));
            add(at, Process::Client(0), Kind::Ok, Function::Read, value);
        }
        history
    }

    fn judged(records: &Records, lines: Vec<Line>) -> Judgement {
        judged_with(&[], records, lines)
    }

    /// With these besides, done to agent `a1` at so many tenths of a second.
    fn judged_with(more: &[(u64, Function)], records: &Records, lines: Vec<Line>) -> Judgement {
        let mut history = history();
        for (tenths, f) in more {
            let mut op = Op::new(Process::Nemesis, Kind::Info, *f, json!("a1"));
            op.time = tenths * SECOND / 10;
            history.push(op);
        }
        history.sort_by_key(|op| op.time);
        for (index, op) in (0..).zip(&mut history) {
            op.index = index;
        }
        let (_, views) = views(&history).unwrap();
        let mut judgement = Judgement::new("tasks", 0);
        judge(&history, (records, &Tasks { lines }), &views, &mut judgement);
        judgement
    }

    /// Tenths of a second.
    fn start(at: u64, decided: u64) -> Line {
        let [at, decided] = [at, decided].map(|tenths| tenths * SECOND / 10);
        Line::Start { allocation: "x".to_owned(), agent: "a1".to_owned(), at, decided }
    }

    fn port() -> Line {
        Line::Port { allocation: "x".to_owned(), agent: "a1".to_owned() }
    }

    fn end(at: u64) -> Line {
        Line::End { allocation: "x".to_owned(), at: at * SECOND / 10 }
    }

    #[test]
    fn tasks_do_what_the_servers_said() {
        let none = Records::default();
        for lines in [
            vec![start(15, 14), end(70)],
            // The agent had not heard of it yet.
            vec![start(65, 64), end(70)],
            vec![start(75, 74)],
            // It was decided by the agent of before, as far as the kernel's ticks tell.
            vec![start(82, 80)],
        ] {
            let judgement = judged(&none, lines);
            assert_eq!(judgement.valid, Verdict::True, "{judgement:#?}");
        }
        for (lines, said) in [
            (vec![start(15, 14), start(30, 29)], "was started again after 1500 ms"),
            (vec![start(105, 74)], "was started 500 ms after the servers had shown its end"),
            (
                vec![start(85, 84)],
                "by an agent that began 2000 ms after it was seen not to be wanted",
            ),
            (vec![start(15, 14), end(105)], "still ran 500 ms after the servers had shown its end"),
            (vec![start(15, 14), end(35)], "is to run as the servers say 500 ms later"),
            (vec![start(15, 14), port()], "began on a1 while another there had its port"),
        ] {
            let judgement = judged(&none, lines);
            assert_eq!(judgement.valid, Verdict::False, "{said}");
            assert!(judgement.violations[0].title.contains(said), "{judgement:#?}");
            assert!(!judgement.violations[0].entries.is_empty());
        }
    }

    #[test]
    fn tasks_that_end_with_their_agent_are_started_again_unless_they_are_given_up() {
        let none = Records::default();
        let (stop, begin) = ((25, Function::StopAgent), (30, Function::StartAgent));
        let lines = || vec![start(15, 14), end(27), start(32, 31)];
        let judgement = judged_with(&[stop, begin], &none, lines());
        assert_eq!(judgement.valid, Verdict::True, "{judgement:#?}");
        for (more, lines, said) in [
            (vec![], lines(), "is to run as the servers say 1300 ms later"),
            (vec![(20, Function::KillAgent), (26, Function::StartAgent)], lines(), "is to run"),
            (vec![stop, begin], vec![start(15, 14), start(32, 31)], "was started again"),
            (
                vec![(65, Function::StopAgent)],
                vec![start(15, 14), end(66), start(85, 84)],
                "by an agent that began 2000 ms after it was seen not to be wanted",
            ),
            (
                vec![(101, Function::StopAgent)],
                vec![start(15, 14), end(105)],
                "still ran 500 ms after the servers had shown its end",
            ),
        ] {
            let judgement = judged_with(&more, &none, lines);
            assert_eq!(judgement.valid, Verdict::False, "{said}");
            assert!(judgement.violations[0].title.contains(said), "{judgement:#?}");
        }
    }

    #[test]
    fn a_simulation_that_begins_knows_what_was_decided_before() {
        let lives = |life| Records {
            lives: BTreeSet::from([("a1".to_owned(), life, "x".to_owned())]),
            ..Records::default()
        };
        assert_eq!(judged(&lives(1), Vec::new()).valid, Verdict::True);
        let judgement = judged(&lives(2), Vec::new());
        let title = &judgement.violations[0].title;
        assert!(title.contains("began 2000 ms after it was seen not to be wanted"), "{title}");
    }

    #[test]
    fn a_journal_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.jsonl");
        let held = Line::Held { allocations: BTreeSet::from(["x".to_owned()]) };
        let twice = Line::Twice { allocation: "y".to_owned() };
        let lines = vec![start(1, 1), twice, port(), end(2), held];
        let text: Vec<String> =
            lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        fs::write(&path, text.join("\n")).unwrap();
        let tasks = read(&path).unwrap();
        assert_eq!(tasks.lines, lines);
        assert!(tasks.tell_the_end());
        assert!(!Tasks { lines: lines[..4].to_vec() }.tell_the_end());
        let mut records = Records::default();
        tasks.add_to(&mut records);
        let only = |id: &str| BTreeSet::from([id.to_owned()]);
        assert_eq!((records.starts, records.running, records.twice), (1, only("x"), only("y")));
        fs::write(&path, "{\"event\":\"sta").unwrap();
        assert!(read(&path).is_err());
    }
}
