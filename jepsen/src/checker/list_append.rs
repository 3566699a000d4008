//! Are transactions of appends and reads strictly serializable?
//!
//! After Elle: appended values are unique, so every read of a list tells which transactions came before it,
//! and the longest read of a list tells the order of its versions. From that follow the edges of
//! [`super::cycles`]; with the order within processes and real time, any cycle disproves strict
//! serializability. Besides cycles: reads of what was never committed (G1a) or of the middle of a transaction
//! (G1b), a transaction that does not see its own steps, or whose appends are shown in another order, lists
//! that are no prefixes of each other, values shown twice or never appended. An acknowledged append that no
//! read shows must be behind the last version read; if that read started after it, real time closes the
//! cycle, so a lost append is found as well. The same goes for the other appends of an unanswered transaction
//! of which one was seen: it took effect, as a whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::Verdict;
use super::cycles::{Cycle, Graph, Reason};
use super::judgement::Judgement;
use super::pairs::{Pair, pairs};
use crate::history::{Function, Op};

/// A step of a transaction; lists by our own number.
#[derive(Clone, Debug)]
enum Step {
    Append(usize, i64),
    /// `None` if the transaction has no answer.
    Read(usize, Option<Vec<i64>>),
}

struct Transaction<'a> {
    pair: Pair<'a>,
    steps: Vec<Step>,
}

impl Transaction<'_> {
    fn is_acknowledged(&self) -> bool {
        self.pair.answer().is_some()
    }

    /// The last value it appended to this list.
    fn last_append(&self, list: usize) -> Option<i64> {
        self.steps.iter().rev().find_map(|step| match step {
            Step::Append(other, value) if *other == list => Some(*value),
            Step::Append(..) | Step::Read(..) => None,
        })
    }
}

/// What is known of one list.
#[derive(Default)]
struct List {
    name: String,
    /// Who appended a value.
    writers: HashMap<i64, usize>,
    /// The longest read.
    versions: Vec<i64>,
    longest: Option<usize>,
}

/// A read of a list without what its own transaction had appended before.
struct External {
    transaction: usize,
    list: usize,
    values: Vec<i64>,
}

/// The analysis of one history.
struct Analysis<'a> {
    transactions: Vec<Transaction<'a>>,
    lists: Vec<List>,
    reads: Vec<External>,
    anomalies: BTreeMap<String, usize>,
    judgement: Judgement,
}

/// Judges a history of `txn`.
pub(crate) fn check(history: &[Op]) -> Result<Judgement> {
    let started = Instant::now();
    let mut analysis = Analysis::of(history)?;
    analysis.judge_each();
    analysis.judge_lists();
    analysis.judge_own_order();
    let graph = analysis.graph();
    for cycle in graph.cycles() {
        analysis.judge_cycle(&cycle);
    }
    let Analysis { transactions, lists, reads, anomalies, mut judgement } = analysis;
    let acknowledged = transactions.iter().filter(|one| one.is_acknowledged()).count();
    judgement.summary = format!(
        "{} transactions, {acknowledged} acknowledged, {} lists, {} reads",
        transactions.len(),
        lists.len(),
        reads.len()
    );
    for (name, count) in &anomalies {
        write!(judgement.summary, "; {name} {count}").expect("writing to a string cannot fail");
    }
    judgement.details = json!({"acknowledged": acknowledged, "anomalies": anomalies});
    if reads.is_empty() && judgement.valid == Verdict::True {
        judgement.lacks("nothing was ever read");
    }
    judgement.elapsed_ms = started.elapsed().as_millis();
    Ok(judgement)
}

impl<'a> Analysis<'a> {
    fn of(history: &'a [Op]) -> Result<Self> {
        let pairs = pairs(history)?;
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let mut lists: Vec<List> = Vec::new();
        let mut transactions = Vec::with_capacity(pairs.len());
        for pair in &pairs {
            let start = pair.start;
            ensure!(
                start.f == Function::Txn,
                "entry {}: a list cannot {}",
                start.index,
                start.f.keyword()
            );
            let mut number = |name: &Value| {
                let name = name.to_string();
                *numbers.entry(name).or_insert_with_key(|name| {
                    lists.push(List { name: name.clone(), ..List::default() });
                    lists.len() - 1
                })
            };
            let steps = steps(pair, &mut number)?;
            for step in &steps {
                if let Step::Append(list, value) = step {
                    let again = lists[*list].writers.insert(*value, transactions.len());
                    ensure!(
                        again.is_none(),
                        "entry {}: {value} is appended to list {} a second time",
                        start.index,
                        lists[*list].name
                    );
                }
            }
            transactions.push(Transaction { pair: *pair, steps });
        }
        let judgement = Judgement::new("list-append", transactions.len());
        Ok(Self { transactions, lists, reads: Vec::new(), anomalies: BTreeMap::new(), judgement })
    }

    fn note(&mut self, name: &str, title: &str, transactions: impl IntoIterator<Item = usize>) {
        *self.anomalies.entry(name.to_owned()).or_default() += 1;
        let entries: Vec<Op> = transactions
            .into_iter()
            .flat_map(|number| self.transactions[number].pair.entries())
            .collect();
        self.judgement.violated(format!("{name}: {title}"), entries);
    }

    /// Each transaction by itself: what it reads fits what it did before; where its reads come from.
    fn judge_each(&mut self) {
        for number in 0..self.transactions.len() {
            // What is known of a list within the transaction: its whole content, or its end.
            let mut whole: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
            let mut own: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
            for step in self.transactions[number].steps.clone() {
                match step {
                    Step::Append(list, value) => {
                        own.entry(list).or_default().push(value);
                        if let Some(known) = whole.get_mut(&list) {
                            known.push(value);
                        }
                    }
                    Step::Read(_, None) => {}
                    Step::Read(list, Some(values)) => {
                        let appended = own.get(&list).cloned().unwrap_or_default();
                        let fits = match whole.get(&list) {
                            Some(known) => *known == values,
                            None => values.ends_with(&appended),
                        };
                        if !fits {
                            let name = &self.lists[list].name;
                            let title = format!(
                                "a transaction's read of list {name} does not show its own steps"
                            );
                            self.note("internal", &title, [number]);
                        } else if !whole.contains_key(&list) {
                            let external = values[..values.len() - appended.len()].to_vec();
                            self.reads.push(External {
                                transaction: number,
                                list,
                                values: external,
                            });
                        }
                        whole.insert(list, values);
                    }
                }
            }
            for (list, values) in whole {
                self.learn_versions(number, list, values);
            }
        }
    }

    /// Takes the content of a list as a transaction left it.
    fn learn_versions(&mut self, number: usize, list: usize, values: Vec<i64>) {
        let known = &self.lists[list];
        if known.longest.is_some() && known.versions.starts_with(&values) {
            return;
        }
        let distinct: BTreeSet<i64> = values.iter().copied().collect();
        if distinct.len() < values.len() {
            let title = format!("list {} shows a value twice", known.name);
            self.note("duplicate-elements", &title, [number]);
        } else if known.longest.is_none() || values.len() > known.versions.len() {
            self.lists[list].versions = values;
            self.lists[list].longest = Some(number);
        }
    }

    /// Each list over all transactions.
    fn judge_lists(&mut self) {
        // Positions of versions that were told of already: once is enough.
        let mut told: BTreeSet<(usize, usize)> = BTreeSet::new();
        let bad: Vec<Vec<usize>> = self.lists.iter().map(|list| self.bad_versions(list)).collect();
        for position in 0..self.reads.len() {
            let (read_by, list) = (self.reads[position].transaction, self.reads[position].list);
            let values = &self.reads[position].values;
            let newest = values.last().copied();
            if self.lists[list].versions.starts_with(values) {
                let length = values.len();
                for version in bad[list].iter().filter(|version| **version < length) {
                    if told.insert((list, *version)) {
                        self.judge_origin(read_by, list, self.lists[list].versions[*version]);
                    }
                }
            } else {
                for value in values.clone() {
                    self.judge_origin(read_by, list, value);
                }
                let longest = self.lists[list].longest;
                let name = &self.lists[list].name;
                let title = format!("reads of list {name} are not prefixes of each other");
                self.note("incompatible-order", &title, longest.into_iter().chain([read_by]));
            }
            let writer = newest.and_then(|value| self.lists[list].writers.get(&value).copied());
            if let (Some(value), Some(writer)) = (newest, writer)
                && writer != read_by
                && self.transactions[writer].last_append(list) != Some(value)
            {
                let name = &self.lists[list].name;
                let title =
                    format!("list {name} ends with {value}, in the middle of a transaction");
                self.note("G1b", &title, [writer, read_by]);
            }
        }
    }

    /// The appends of one transaction to a list stand there in the order of its steps. Only neighbours are looked at: with another's append
    /// between them they make a cycle.
    fn judge_own_order(&mut self) {
        let mut turned = Vec::new();
        for (number, list) in self.lists.iter().enumerate() {
            for two in list.versions.windows(2) {
                let writer = list.writers.get(&two[0]);
                if writer.is_some() && writer == list.writers.get(&two[1]) {
                    turned.extend(writer.map(|writer| (number, *writer, two[0], two[1])));
                }
            }
        }
        for (number, writer, first, second) in turned {
            let appends = self.transactions[writer].steps.iter().filter_map(|step| match step {
                Step::Append(list, value) if *list == number => Some(*value),
                Step::Append(..) | Step::Read(..) => None,
            });
            if appends.take_while(|value| *value != second).all(|value| value != first) {
                let name = &self.lists[number].name;
                let title = format!(
                    "list {name} shows {first} before {second}, which one transaction appended after it"
                );
                let reader = self.lists[number].longest;
                self.note("turned-around", &title, reader.into_iter().chain([writer]));
            }
        }
    }

    /// Positions of versions that nobody appended, or a transaction that failed.
    fn bad_versions(&self, list: &List) -> Vec<usize> {
        let good = |value: &i64| {
            let writer = list.writers.get(value);
            writer.is_some_and(|writer| !self.transactions[*writer].pair.failed())
        };
        (0..list.versions.len()).filter(|version| !good(&list.versions[*version])).collect()
    }

    /// Whether a value that a transaction read can have been there.
    fn judge_origin(&mut self, reader: usize, list: usize, value: i64) {
        let name = self.lists[list].name.clone();
        match self.lists[list].writers.get(&value).copied() {
            None => {
                let title = format!("list {name} shows {value}, which nobody appended");
                self.note("unwritten", &title, [reader]);
            }
            Some(writer) if self.transactions[writer].pair.failed() => {
                let title =
                    format!("list {name} shows {value} of a transaction that certainly failed");
                self.note("G1a", &title, [writer, reader]);
            }
            Some(_) => {}
        }
    }

    /// Which transactions took effect for certain: they were acknowledged, or did not fail and were seen.
    fn effective(&self) -> Vec<bool> {
        let mut effective: Vec<bool> =
            self.transactions.iter().map(Transaction::is_acknowledged).collect();
        for list in &self.lists {
            for writer in list.versions.iter().filter_map(|value| list.writers.get(value)) {
                effective[*writer] |= !self.transactions[*writer].pair.failed();
            }
        }
        effective
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new(self.transactions.len());
        let effective = self.effective();
        let mut readers: Vec<Vec<&External>> = self.lists.iter().map(|_| Vec::new()).collect();
        for read in &self.reads {
            readers[read.list].push(read);
        }
        for (number, list) in self.lists.iter().enumerate() {
            list_edges(&mut graph, (number, list), &readers[number], &effective);
        }
        self.time_edges(&mut graph);
        graph
    }

    /// The order within each process, and of what had ended before something else started. Of those that
    /// had ended only the latest are linked: the others come before one of these.
    fn time_edges(&self, graph: &mut Graph) {
        let mut events: Vec<(u64, usize, bool)> = Vec::new();
        let mut latest = BTreeMap::new();
        for (number, transaction) in self.transactions.iter().enumerate() {
            if transaction.pair.failed() {
                continue;
            }
            let start = transaction.pair.start;
            events.push((start.index, number, false));
            // One without an answer may still take effect when its process has gone on.
            if let Some(before) = latest.get(&start.process) {
                graph.add(*before, number, Reason::Process, usize::MAX);
            }
            if transaction.is_acknowledged() {
                latest.insert(start.process, number);
            }
            events.extend(transaction.pair.answer().map(|answer| (answer.index, number, true)));
        }
        events.sort_unstable();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.transactions.len()];
        let mut ended: Vec<usize> = Vec::new();
        for (_, number, is_end) in events {
            if is_end {
                let old = &before[number];
                ended.retain(|other| !old.contains(other));
                ended.push(number);
            } else {
                for other in &ended {
                    graph.add(*other, number, Reason::Realtime, usize::MAX);
                }
                before[number].clone_from(&ended);
            }
        }
    }

    fn judge_cycle(&mut self, cycle: &Cycle) {
        let text: Vec<String> = cycle
            .steps
            .iter()
            .map(|(number, edge)| {
                let entry = self.transactions[*number].pair.start.index;
                match self.lists.get(edge.label) {
                    Some(list) => {
                        format!("{entry} -{} of list {}->", edge.reason.name(), list.name)
                    }
                    None => format!("{entry} -{}->", edge.reason.name()),
                }
            })
            .collect();
        let first =
            cycle.steps.first().map(|(number, _)| self.transactions[*number].pair.start.index);
        let title = format!("{} {}", text.join(" "), first.unwrap_or(0));
        let members: Vec<usize> = cycle.steps.iter().map(|(number, _)| *number).collect();
        self.note(&cycle.name, &title, members);
    }
}

/// The edges that a list's versions and reads make. `effective`: by transaction, whether it took effect for certain.
fn list_edges(
    graph: &mut Graph,
    (number, list): (usize, &List),
    readers: &[&External],
    effective: &[bool],
) {
    let writers: Vec<Option<usize>> =
        list.versions.iter().map(|value| list.writers.get(value).copied()).collect();
    for window in writers.windows(2) {
        if let [Some(before), Some(after)] = window {
            graph.add(*before, *after, Reason::WriteWrite, number);
        }
    }
    // Appends that took effect behind the last version anyone saw.
    let seen: BTreeSet<i64> = list.versions.iter().copied().collect();
    let mut unseen: Vec<usize> = list
        .writers
        .iter()
        .filter(|(value, writer)| !seen.contains(value) && effective[**writer])
        .map(|(_, writer)| *writer)
        .collect();
    unseen.sort_unstable();
    unseen.dedup();
    if let Some(Some(last)) = writers.last() {
        for writer in &unseen {
            graph.add(*last, *writer, Reason::WriteWrite, number);
        }
    }
    // As many reads as appends may be here, of a list that went stale for good.
    let behind = graph.share(&unseen, Reason::ReadWrite, number);
    for read in readers.iter().filter(|read| list.versions.starts_with(&read.values)) {
        let length = read.values.len();
        if let Some(Some(writer)) = length.checked_sub(1).map(|last| writers[last]) {
            graph.add(writer, read.transaction, Reason::WriteRead, number);
        }
        match writers.get(length) {
            Some(Some(next)) => graph.add(read.transaction, *next, Reason::ReadWrite, number),
            Some(None) => {}
            None => graph.add_shared(read.transaction, behind),
        }
    }
}

/// The steps of a transaction, with its reads if it was answered.
fn steps(pair: &Pair<'_>, number: &mut impl FnMut(&Value) -> usize) -> Result<Vec<Step>> {
    let op = pair.answer().unwrap_or(pair.start);
    let bad = || format!("entry {}: {} is not a transaction", op.index, op.value);
    let mut steps = Vec::new();
    for step in op.value.as_array().with_context(bad)? {
        let (name, list, value) = match step.as_array().map(Vec::as_slice) {
            Some([name, list, value]) => (name, list, value),
            // A read that was not answered may do without the place of the answer.
            Some([name, list]) if name == "r" && pair.answer().is_none() => {
                (name, list, &Value::Null)
            }
            Some(_) | None => bail!(bad()),
        };
        let list = number(list);
        match (name.as_str(), value) {
            (Some("append"), value) => {
                steps.push(Step::Append(list, value.as_i64().with_context(bad)?));
            }
            (Some("r"), Value::Null) => {
                let nothing = pair.answer().map(|_| Vec::new());
                steps.push(Step::Read(list, nothing));
            }
            (Some("r"), Value::Array(values)) => {
                let values: Option<Vec<i64>> = values.iter().map(Value::as_i64).collect();
                steps.push(Step::Read(list, Some(values.with_context(bad)?)));
            }
            (Some(_) | None, _) => bail!(bad()),
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::history::{Kind, Process};

    /// Every read misses every append: that is no reason to keep an edge for each two.
    #[test]
    fn a_list_that_went_stale_takes_no_square_of_memory() {
        let mut history = Vec::new();
        for number in 0..300_i64 {
            for step in [json!(["append", 1, number]), json!(["r", 1, []])] {
                for kind in [Kind::Invoke, Kind::Ok] {
                    let op = Op::new(Process::Client(0), kind, Function::Txn, json!([step]));
                    history.push(Op { index: history.len() as u64, ..op });
                }
            }
        }
        let mut analysis = Analysis::of(&history).unwrap();
        analysis.judge_each();
        let kept = analysis.graph().kept();
        assert!(kept < 10 * history.len(), "{kept}");
        let judgement = check(&history).unwrap();
        assert_eq!(judgement.valid, Verdict::False, "{judgement:#?}");
    }
}
