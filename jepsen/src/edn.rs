//! Reading histories that other programs wrote.
//!
//! Owns three foreign forms: JSON lines with the keys of our own, EDN (Jepsen, Knossos, Elle: one map per operation, one after the other, in vectors
//! or as `:history` of a test, tagged or not) and the log lines of Knossos' and Porcupine's corpora
//! (`… 3 :invoke :write 5`). Keywords become strings, sets lists; a process may have any name. Unknown faults
//! and what Jepsen's generator notes for itself are left out; what is no operation besides is an error, because
//! a history that is judged in part is not judged. Our own extra keys are read where they are. Never judges.

mod number;
mod reader;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::history::{Function, Kind, Op, Process};
use number::quote_long;
use reader::Reader;

/// Reads a history by the form its name tells: `.edn`, `.jsonl`, `.log` or `.txt`.
pub(crate) fn read_history(path: &Path) -> Result<Vec<Op>> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_start_matches('\u{feff}');
    let history = match extension {
        Some("edn") => from_edn(text),
        Some("jsonl") => from_json_lines(text),
        Some("log" | "txt") => from_log(text),
        Some(_) | None => {
            bail!("{}: a history's name ends with .edn, .jsonl, .log or .txt", path.display())
        }
    };
    history.with_context(|| format!("{} is not a history", path.display()))
}

/// A history in EDN.
pub(crate) fn from_edn(text: &str) -> Result<Vec<Op>> {
    let mut reader = Reader::of(text);
    let mut maps = Vec::new();
    while let Some(value) = reader.next()? {
        flatten(value, &mut maps);
    }
    reader.end()?;
    let mut builder = Builder::default();
    for map in &maps {
        builder.push(map)?;
    }
    Ok(builder.ops)
}

/// A history of JSON lines. Where they are numbered, from 0 or 1, none may be missing, and where they tell the time it does not run backwards.
fn from_json_lines(text: &str) -> Result<Vec<Op>> {
    let mut builder = Builder::default();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (number, line) in lines {
        let place = || format!("line {}", number + 1);
        let map: Value = serde_json::from_str(&quote_long(line)).with_context(place)?;
        let index = map.get("index").and_then(Value::as_u64);
        if (builder.entries, index) == (0, Some(1)) {
            builder.entries = 1;
        }
        let due = builder.entries;
        let index = index.unwrap_or(due);
        ensure!(index == due, "{}: index {index} where {due} is due", place());
        let (before, time) = (builder.ops.last(), map.get("time").and_then(Value::as_u64));
        let is_later = before.is_none_or(|before| time.is_none_or(|time| before.time <= time));
        ensure!(is_later, "{}: time runs backwards", place());
        builder.push(&map).with_context(place)?;
    }
    Ok(builder.ops)
}

/// Takes the operations out of vectors and of a test that holds its history.
fn flatten(mut value: Value, maps: &mut Vec<Value>) {
    // A test may have a type of its own.
    let is_operation = ["process", "f"].iter().any(|name| value.get(name).is_some());
    if let Value::Array(items) = value {
        for item in items {
            flatten(item, maps);
        }
    } else if !is_operation && let Some(history) = value.get_mut("history") {
        flatten(history.take(), maps);
    } else {
        maps.push(value);
    }
}

/// A history of log lines; lines that tell of something else are left out.
pub(crate) fn from_log(text: &str) -> Result<Vec<Op>> {
    let mut builder = Builder::default();
    for (number, line) in text.lines().enumerate() {
        let place = || format!("line {}", number + 1);
        let told = operation(line, |word| builder.knows(word)).with_context(place)?;
        let Some([word, kind, f, value]) = told else { continue };
        let process = process_of(word)
            .with_context(|| format!("{word:?} is no process"))
            .with_context(place)?;
        if process == "nemesis" {
            builder.entries += 1;
            continue;
        }
        let value = Reader::of(value).next().with_context(place)?;
        let asks = kind == "invoke" && matches!(f, "read" | "dequeue" | "drain");
        ensure!(
            value.is_some() || asks || matches!(kind, "fail" | "info"),
            "{}: the value is missing",
            place()
        );
        let map = json!({"process": process, "type": kind, "f": f, "value": value});
        builder.push(&map).with_context(place)?;
    }
    let is_empty = text.trim().is_empty();
    ensure!(is_empty || !builder.ops.is_empty(), "no line tells an operation");
    Ok(builder.ops)
}

/// A process is a number, or has a keyword for its name.
fn process_of(word: &str) -> Option<Value> {
    let name = word.trim_start_matches(':');
    match name.parse::<u64>() {
        Ok(number) => Some(number.into()),
        Err(_) if word.starts_with(':') || name == "nemesis" => Some(name.into()),
        Err(_) => None,
    }
}

/// The first word, and what follows it.
fn cut(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

/// The process, the type, the function and the value of a line that tells an operation. One in which a keyword follows a number, or the name of a
/// process that is known by now, is meant to be one.
fn operation(line: &str, is_known: impl Fn(&str) -> bool) -> Result<Option<[&str; 4]>> {
    let (mut process, mut rest) = ("", line);
    loop {
        let (word, after) = cut(rest);
        if word.is_empty() {
            return Ok(None);
        }
        let is_meant = process.parse::<u64>().is_ok() || is_known(process);
        match word.strip_prefix(':') {
            Some(kind @ ("invoke" | "ok" | "fail" | "info")) => {
                let (function, value) = cut(after);
                let Some(function) = function.strip_prefix(':') else {
                    ensure!(!is_meant, "{function:?} is no function of a known model");
                    return Ok(None);
                };
                return Ok(Some([process, kind, function, value]));
            }
            Some(_) if is_meant => bail!("{word} is no type of an operation"),
            Some(_) | None => {}
        }
        (process, rest) = (word, after);
    }
}

/// Numbers operations, and gives processes that are no numbers one.
#[derive(Default)]
struct Builder {
    ops: Vec<Op>,
    /// The number of the next entry; what is left out has one, too.
    entries: u64,
    /// Of each process the position of the last start.
    started: BTreeMap<u64, usize>,
    /// Numbers of processes that have names.
    named: BTreeMap<String, u64>,
}

impl Builder {
    fn push(&mut self, map: &Value) -> Result<()> {
        let index = self.entries;
        self.entries += 1;
        ensure!(map.is_object(), "entry {index}: {map} is no operation");
        let field = |name: &str| map.get(name).unwrap_or(&Value::Null);
        if matches!(field("type").as_str(), Some("log" | "sleep")) {
            return Ok(());
        }
        // Elle's own examples do not name it.
        let is_transaction = field("f").is_null() && is_transaction(field("value"));
        let named = || serde_json::from_value::<Function>(field("f").clone());
        let function = if is_transaction { Ok(Function::Txn) } else { named() };
        let (process, function) = match (field("process") == "nemesis", function) {
            (true, Ok(function)) => (Process::Nemesis, function),
            // The faults of another program.
            (true, Err(_)) => return Ok(()),
            (false, Ok(function)) => (Process::Client(self.client(field("process"))), function),
            (false, Err(_)) => {
                bail!("entry {index}: {} is no function of a known model", field("f"))
            }
        };
        let kind = match field("type").as_str() {
            Some("invoke") => Kind::Invoke,
            Some("ok") => Kind::Ok,
            Some("fail") => Kind::Fail,
            Some("info") => Kind::Info,
            Some(_) | None => bail!("entry {index}: {} is no type of an operation", field("type")),
        };
        let told = field("value").clone();
        let value = match process {
            Process::Client(number) => self.value_of(number, kind, function, told),
            Process::Nemesis => told,
        };
        let op = Op::new(process, kind, function, value);
        self.ops.push(Op {
            index,
            time: field("time").as_u64().unwrap_or(index),
            version: field("version").as_u64(),
            expected: field("expected").as_u64(),
            node: field("node").as_str().map(str::to_owned),
            error: field("error").as_str().map(str::to_owned),
            detail: map.get("detail").cloned(),
            last_phase: field("final") == true,
            ..op
        });
        Ok(())
    }

    /// The value of a client's entry: as told, or that of its start. A start that leaves open what the client puts in gets it from the answer.
    fn value_of(&mut self, process: u64, kind: Kind, function: Function, told: Value) -> Value {
        if kind == Kind::Invoke {
            self.started.insert(process, self.ops.len());
            return told;
        }
        let Some(at) = self.started.get(&process) else { return told };
        let start = &mut self.ops[*at];
        if kind == Kind::Ok {
            let puts = matches!(function, Function::Write | Function::Add | Function::Enqueue);
            if puts && start.f == function && leaves_open(&start.value, &told) {
                start.value.clone_from(&told);
            }
            return told;
        }
        // The value of a failed operation may be the reason of the failure; a drain that broke off tells what it has taken out.
        let tells = function == Function::Drain && told.is_array();
        if tells { told } else { start.value.clone() }
    }

    /// Whether a word of a log is the name of a process.
    fn knows(&self, word: &str) -> bool {
        process_of(word).is_some_and(|name| self.named.contains_key(&name.to_string()))
    }

    /// The number of a process. Names, and the lack of one, count down from the top, where no number of a client is.
    fn client(&mut self, name: &Value) -> u64 {
        let next = u64::MAX - self.named.len() as u64;
        let named = || *self.named.entry(name.to_string()).or_insert(next);
        name.as_u64().unwrap_or_else(named)
    }
}

/// Whether the value of a start, or that of its key, is only told by the answer.
fn leaves_open(start: &Value, told: &Value) -> bool {
    match (start.as_array().map(Vec::as_slice), told.as_array().map(Vec::as_slice)) {
        (Some([key, Value::Null]), Some([same, _])) => key == same,
        (_, _) => start.is_null(),
    }
}

/// Whether it is a list of appends and reads.
fn is_transaction(value: &Value) -> bool {
    let is_step = |step: &Value| matches!(step[0].as_str(), Some("append" | "r"));
    value.as_array().is_some_and(|steps| steps.iter().all(is_step))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn edn_of_jepsen_knossos_and_elle_is_read() {
        let lines = "{:type :invoke, :f :write, :value 3, :process 0, :time 33, :index 0}\n\
                     {:process :nemesis, :type :info, :f :start, :value \"cut {off}\"}\n\
                     ; a comment\n\
                     #jepsen.history.Op{:type :ok :f :write :value 3 :process 0, :error #{1 2N}}";
        let vector = "[{:process 0 :type :invoke :f :write :value 3} #_ :gone\n\
                      {:process 0, :type :ok, :f :write, :value 3}]";
        for text in [lines, vector] {
            let mut ops = from_edn(text).unwrap();
            ops.retain(|op| op.process == Process::Client(0));
            assert_eq!(ops.len(), 2, "{text}");
            assert_eq!((ops[0].kind, ops[1].kind), (Kind::Invoke, Kind::Ok));
            assert_eq!(ops[1].value, json!(3));
        }
        let text = "{:process 1 :type :invoke :f :txn :value [[:r :x nil] [:append \"y\" -2]]}";
        let ops = from_edn(text).unwrap();
        assert_eq!(ops[0].value, json!([["r", "x", null], ["append", "y", -2]]));
    }

    #[test]
    fn our_own_edn_reads_back() {
        let value = json!([["r", 3, [1, 2]], ["append", 3, 4]]);
        let mut op = Op::new(Process::Client(0), Kind::Invoke, Function::Txn, value.clone());
        op.error = Some("a \"quoted\"\n\u{1}line".to_owned());
        assert_eq!(from_edn(&op.to_edn()).unwrap()[0].value, value);
    }

    #[test]
    fn json_lines_of_other_programs_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.jsonl");
        let read = |lines: &[&str]| {
            std::fs::write(&path, lines.join("\n")).unwrap();
            read_history(&path)
        };
        let start = r#"{"index":0,"time":5,"process":0,"type":"invoke","f":"read","value":null}"#;
        let fault = r#"{"index":1,"time":7,"process":"nemesis","type":"info","f":"scramble"}"#;
        let end = r#"{"index":2,"time":7,"process":0,"type":"ok","f":"read","value":3}"#;
        let ops = read(&[start, fault, "", end]).unwrap();
        let indexes: Vec<u64> = ops.iter().map(|op| op.index).collect();
        assert_eq!((indexes, &ops[1].value), (vec![0, 2], &json!(3)));
        let long = end.replace(":3}", ":18446744073709551617}");
        let ops = read(&[start, fault, &long]).unwrap();
        assert_eq!(ops[1].value, "18446744073709551617N");
        let bare = r#"{"process":0,"type":"invoke","f":"read"}"#;
        assert_eq!(read(&[bare]).unwrap()[0].value, Value::Null);
        // Some count from 1.
        assert_eq!(read(&[fault, end]).unwrap()[0].index, 2);
        let back = end.replace("\"time\":7", "\"time\":4");
        for (lines, said) in [
            (vec![start, end], "line 2: index 2 where 1 is due"),
            (vec![end], "line 1: index 2 where 0 is due"),
            (vec![bare, start], "line 2: index 0 where 1 is due"),
            (vec![start, fault, &back], "line 3: time runs backwards"),
            (vec![start, fault, "", &end[..20]], "line 4"),
            (vec![start, r#"{"index":1,"process":0,"type":"okay","f":"read"}"#], "line 2"),
            (vec!["[]"], "line 1"),
        ] {
            let error = format!("{:#}", read(&lines).unwrap_err());
            assert!(error.contains(said), "{lines:?}: {error}");
        }
    }

    #[test]
    fn log_lines_are_read() {
        let text = "INFO  jepsen.util - 4\t:invoke\t:cas\t[1 4]\n\
                    INFO  jepsen.core - Worker starting\n\
                    INFO  jepsen.util - 4\t:info\t:cas\t:timed-out\n\
                    5 :invoke :read nil\n\
                    INFO  jepsen.util - :nemesis\t:info\t:start\tnil\n\
                    5 :ok :read 4\n";
        let ops = from_log(text).unwrap();
        let kinds: Vec<Kind> = ops.iter().map(|op| op.kind).collect();
        assert_eq!(kinds, [Kind::Invoke, Kind::Info, Kind::Invoke, Kind::Ok]);
        let indexes: Vec<u64> = ops.iter().map(|op| op.index).collect();
        assert_eq!(indexes, [0, 1, 2, 4]);
        assert_eq!(ops[1].value, json!([1, 4]));
        assert_eq!(ops[3].value, json!(4));
    }

    #[test]
    fn no_operation_is_passed_over() {
        let op = |process: &str| format!("{{:process {process} :type :invoke :f :read}}");
        let text = [op("0"), op(":c1"), op("-1"), op("\"a\""), op("nil"), op(":c1")].join("\n");
        let numbers: Vec<Process> =
            from_edn(&text).unwrap().into_iter().map(|op| op.process).collect();
        assert_eq!(numbers[1], numbers[5]);
        assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), 5);
        for text in [
            format!("[[{}]]", op("3")),
            format!("{{:name \"x\" :history [{}]}}", op("3")),
            format!("{{:type :test :history [{}]}}", op("3")),
        ] {
            assert_eq!(from_edn(&text).unwrap().len(), 1, "{text}");
        }
        let lines = "0 :invoke :write 5\n0  :ok    :write 5\n6 \t:invoke :read \tnil \t:hint 0\n";
        assert_eq!(from_log(lines).unwrap().len(), 3);
        let steps = "{:process 2 :type :ok :value [[:append 4 2] [:r 4 [2]]]}";
        assert_eq!(from_edn(steps).unwrap()[0].f, Function::Txn);
        let notes = "{:process 1 :type :sleep :value 5} {:process 1 :type :log :value \"x\"}";
        assert!(from_edn(notes).unwrap().is_empty());
        assert!(from_edn("").unwrap().is_empty() && from_log("\n").unwrap().is_empty());
    }

    #[test]
    fn a_value_that_only_the_answer_tells_is_the_value_of_the_start() {
        let value = |function: &str, start: &str, kind: &str, end: &str| {
            let op = |kind: &str, value: &str| {
                format!("{{:process 0 :type :{kind} :f :{function} :value {value}}}")
            };
            let ops = from_edn(&[op("invoke", start), op(kind, end)].concat()).unwrap();
            ops[0].value.clone()
        };
        for function in ["write", "add", "enqueue"] {
            assert_eq!(value(function, "nil", "ok", "3"), json!(3));
            assert_eq!(value(function, "[1 nil]", "ok", "[1 3]"), json!([1, 3]));
            assert_eq!(value(function, "[1 nil]", "ok", "[2 3]"), json!([1, null]));
            assert_eq!(value(function, "nil", "ok", "nil"), json!(null));
            assert_eq!(value(function, "4", "ok", "3"), json!(4));
            assert_eq!(value(function, "nil", "info", "3"), json!(null));
        }
        assert_eq!(value("read", "nil", "ok", "3"), json!(null));
    }

    #[test]
    fn a_drain_that_broke_off_keeps_what_it_tells() {
        let text = "{:process 0 :type :invoke :f :drain :value nil}\n\
                    {:process 0 :type :info :f :drain :value [5]}";
        assert_eq!(from_edn(text).unwrap()[1].value, json!([5]));
    }

    #[test]
    fn a_text_that_is_no_history_is_refused() {
        let deep = "[".repeat(100_000);
        let tags = "#a ".repeat(100_000);
        let good = "{:process 0 :type :invoke :f :read}";
        for text in [
            "[{:process 0 :type :invoke",
            "{:process 0 :type :maybe :f :read}",
            "{:a}",
            &format!("{good} garbage"),
            &format!("{good} ] {good}"),
            &format!("{good} [17 \"text\"]"),
            &deep,
            &tags,
        ] {
            assert!(from_edn(text).is_err(), "{}", &text[..text.len().min(80)]);
        }
        for text in [
            "nothing here",
            ":invoke :read nil",
            "0 :ok :read",
            "0 :invoke :write",
            "a :ok :read 1",
        ] {
            assert!(from_log(text).is_err(), "{text}");
        }
        // What one of them says could be what is wrong.
        let whole = "INFO  jepsen.util - 0\t:invoke\t:read\tnil\n";
        for text in ["0\t:okay\t:read\t4", "0\t:ok", "0 :ok read 4", "0\t:o"] {
            for process in ["0", ":c1"] {
                let text = format!("{whole}INFO  jepsen.util - {text}\n").replace('0', process);
                let error = format!("{:#}", from_log(&text).unwrap_err());
                assert!(error.starts_with("line 2: "), "{text}: {error}");
            }
        }
        assert!(from_log(&format!("0 :invoke :write {deep}")).is_err());
        let error = read_history(Path::new("history.csv")).unwrap_err().to_string();
        assert!(error.contains(".csv") || error.contains("cannot read"), "{error}");
    }
}
