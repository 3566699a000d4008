//! The history: every operation of clients and nemeses, in the order in which the harness saw it.
//!
//! Owns the operation record, its file forms (EDN as Jepsen's tools read it, JSON lines with the same
//! keys, and Jepsen's short lines for people) and the recorder. The recorder stamps index and time under one lock, so index order *is*
//! real-time order; checkers rely on that. It must never drop, reorder or rewrite an operation, and each
//! line reaches the file before the call returns, so that a run that is cut short keeps its history.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fault::FaultFunction;

/// Who performed an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub(crate) enum Process {
    /// A logical client; a new number is taken after each `info`.
    Client(u64),
    /// The fault injector.
    Nemesis,
}

impl From<Process> for Value {
    fn from(process: Process) -> Self {
        match process {
            Process::Client(number) => number.into(),
            Process::Nemesis => "nemesis".into(),
        }
    }
}

impl TryFrom<Value> for Process {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        if value == "nemesis" {
            return Ok(Self::Nemesis);
        }
        value
            .as_u64()
            .map(Self::Client)
            .ok_or_else(|| format!("process is a number or \"nemesis\", not {value}"))
    }
}

/// Whether an entry opens or closes an operation, and how it closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// The operation starts.
    Invoke,
    /// It happened.
    Ok,
    /// It certainly did not happen.
    Fail,
    /// Nobody knows (clients), or both ends of a fault (nemesis).
    Info,
}

impl Kind {
    fn keyword(self) -> &'static str {
        match self {
            Self::Invoke => "invoke",
            Self::Ok => "ok",
            Self::Fail => "fail",
            Self::Info => "info",
        }
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Function {
    /// Read one register.
    Read,
    /// Write one register, whatever it holds.
    Write,
    /// Write one register if it still has the version read before.
    Cas,
    /// Put one element into a set.
    Add,
    /// Run micro-operations on lists as one step.
    Txn,
    /// Put one element into a queue.
    Enqueue,
    /// Take one element out of a queue.
    Dequeue,
    /// Tell every element that came out of a queue.
    Drain,
    /// Ask for one more evaluation of a job.
    Evaluate,
    /// Give a job a number of allocations.
    Scale,
    /// Stop a job.
    Stop,
    /// Stop a job and forget it.
    Purge,
    /// Read the versions of a job.
    Versions,
    /// Read what is newer than an index, and wait for it.
    Watch,
    /// Drain a node.
    DrainNode,
    /// End a node's drain.
    RestoreNode,
    /// Let a node take allocations, or not.
    MarkNode,
    /// Create or change an instance pool.
    ApplyPool,
    /// Let an instance run, hold it, or drain it.
    SetBehavior,
    /// Shut an instance down.
    ShutDownInstance,
    /// The agents of instances that live, by the kernel's word.
    Machines,
    /// SIGKILL an agent process.
    KillAgent,
    /// SIGTERM to an agent process.
    StopAgent,
    /// Start an agent process again that was killed or stopped.
    StartAgent,
    /// SIGSTOP an agent process.
    PauseAgent,
    /// SIGCONT an agent process.
    ResumeAgent,
    /// The beginning or the end of a fault.
    #[serde(untagged)]
    Fault(FaultFunction),
}

impl Function {
    /// The name used in files and reports.
    pub(crate) fn keyword(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Cas => "cas",
            Self::Add => "add",
            Self::Txn => "txn",
            Self::Enqueue => "enqueue",
            Self::Dequeue => "dequeue",
            Self::Drain => "drain",
            Self::Evaluate => "evaluate",
            Self::Scale => "scale",
            Self::Stop => "stop",
            Self::Purge => "purge",
            Self::Versions => "versions",
            Self::Watch => "watch",
            Self::DrainNode => "drain-node",
            Self::RestoreNode => "restore-node",
            Self::MarkNode => "mark-node",
            Self::ApplyPool => "apply-pool",
            Self::SetBehavior => "set-behavior",
            Self::ShutDownInstance => "shut-down-instance",
            Self::Machines => "machines",
            Self::KillAgent => "kill-agent",
            Self::StopAgent => "stop-agent",
            Self::StartAgent => "start-agent",
            Self::PauseAgent => "pause-agent",
            Self::ResumeAgent => "resume-agent",
            Self::Fault(function) => function.keyword(),
        }
    }
}

/// One entry of the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Op {
    /// Dense position, from 0; set by the recorder.
    pub(crate) index: u64,
    /// Nanoseconds since the start of the run, monotonic; set by the recorder.
    pub(crate) time: u64,
    /// Who.
    pub(crate) process: Process,
    /// Which end, and the outcome.
    #[serde(rename = "type")]
    pub(crate) kind: Kind,
    /// What.
    pub(crate) f: Function,
    /// Clients: as the workload says, with several keys `[key, value]`. Nemesis: free form.
    pub(crate) value: Value,
    /// The version the answer carried (0 = the register does not exist).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u64>,
    /// The version a `cas` demands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expected: Option<u64>,
    /// The server asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// Why it failed, or why nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// What else the answer carried and a checker needs, as the workload says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Value>,
    /// Whether it belongs to the last phase, after every fault was healed.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub(crate) last_phase: bool,
}

impl Op {
    /// An entry that is not yet recorded.
    pub(crate) fn new(process: Process, kind: Kind, f: Function, value: Value) -> Self {
        Self {
            index: 0,
            time: 0,
            process,
            kind,
            f,
            value,
            version: None,
            expected: None,
            node: None,
            error: None,
            detail: None,
            last_phase: false,
        }
    }

    /// The entry as one line of EDN.
    pub(crate) fn to_edn(&self) -> String {
        let process = match self.process {
            Process::Client(number) => number.to_string(),
            Process::Nemesis => ":nemesis".to_owned(),
        };
        let mut line = format!(
            "{{:index {}, :time {}, :process {process}, :type :{}, :f :{}, :value {}",
            self.index,
            self.time,
            self.kind.keyword(),
            self.f.keyword(),
            self.edn_value()
        );
        let mut field = |name: &str, value: String| {
            write!(line, ", :{name} {value}").expect("writing to a string cannot fail");
        };
        if let Some(version) = self.version {
            field("version", version.to_string());
        }
        if let Some(expected) = self.expected {
            field("expected", expected.to_string());
        }
        if let Some(node) = &self.node {
            field("node", edn_string(node));
        }
        if let Some(error) = &self.error {
            field("error", edn_string(error));
        }
        if let Some(detail) = &self.detail {
            field("detail", edn(detail));
        }
        if self.last_phase {
            field("final", "true".to_owned());
        }
        line.push('}');
        line
    }

    /// The entry as Jepsen's `history.txt` has it: process, type, function, value, and the error if there is one, between tabs.
    pub(crate) fn to_text(&self) -> String {
        let process = match self.process {
            Process::Client(number) => number.to_string(),
            Process::Nemesis => ":nemesis".to_owned(),
        };
        let (kind, f, value) = (self.kind.keyword(), self.f.keyword(), self.edn_value());
        match &self.error {
            None => format!("{process}\t:{kind}\t:{f}\t{value}"),
            Some(error) => format!("{process}\t:{kind}\t:{f}\t{value}\t{}", edn_string(error)),
        }
    }

    fn edn_value(&self) -> String {
        if self.f == Function::Txn { edn_txn(&self.value) } else { edn(&self.value) }
    }

    /// The entry as a short line for people.
    pub(crate) fn describe(&self) -> String {
        let process = match self.process {
            Process::Client(number) => format!("process {number:<4}"),
            Process::Nemesis => "nemesis     ".to_owned(),
        };
        let mut line = format!(
            "{:>7}  {:>9}.{:03} ms  {process}  {:<6}  {:<5}  {}",
            self.index,
            self.time / 1_000_000,
            self.time / 1_000 % 1_000,
            self.kind.keyword(),
            self.f.keyword(),
            self.value
        );
        if let Some(expected) = self.expected {
            write!(line, "  expects version {expected}").expect("writing to a string cannot fail");
        }
        if let Some(version) = self.version {
            write!(line, "  version {version}").expect("writing to a string cannot fail");
        }
        if let Some(node) = &self.node {
            write!(line, "  on {node}").expect("writing to a string cannot fail");
        }
        if let Some(error) = &self.error {
            write!(line, "  ({error})").expect("writing to a string cannot fail");
        }
        line
    }
}

/// A value as EDN; names of fields become keywords, or strings if no keyword can be called so.
pub(crate) fn edn(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => edn_string(text),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(edn).collect::<Vec<_>>().join(" "))
        }
        Value::Object(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, value)| format!("{} {}", edn_name(name), edn(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

fn edn_name(name: &str) -> String {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "-_?!.".contains(character);
    let is_keyword =
        name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.chars().all(is_plain);
    if is_keyword { format!(":{name}") } else { edn_string(name) }
}

/// The micro-operations of a transaction; their names are keywords, as Elle wants them.
fn edn_txn(value: &Value) -> String {
    let steps = value.as_array().into_iter().flatten().map(|step| {
        match step.as_array().map(Vec::as_slice) {
            Some([Value::String(name), rest @ ..]) => {
                let rest: Vec<String> = rest.iter().map(edn).collect();
                format!("[:{name} {}]", rest.join(" "))
            }
            Some(_) | None => edn(step),
        }
    });
    format!("[{}]", steps.collect::<Vec<_>>().join(" "))
}

/// EDN strings know `\t \r \n \\ \"` and `\uNNNN`; other control characters take the last form.
fn edn_string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            control if control.is_control() => {
                write!(quoted, "\\u{:04x}", u32::from(control))
                    .expect("writing to a string cannot fail");
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

/// Stamps operations and writes them down; shared by every client thread and the nemesis.
pub(crate) struct Recorder {
    started: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    ops: Vec<Op>,
    files: Option<Files>,
    write_error: Option<String>,
}

struct Files {
    json: File,
    edn: File,
    text: File,
}

impl Recorder {
    /// A recorder that keeps the history in memory only.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Self {
        Self::with_files(None)
    }

    /// A recorder that also writes `history.jsonl`, `history.edn` and `history.txt` in `directory`.
    pub(crate) fn create(directory: &Path) -> Result<Self> {
        let open = |name: &str| {
            let path = directory.join(name);
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))
        };
        let files = Files {
            json: open("history.jsonl")?,
            edn: open("history.edn")?,
            text: open("history.txt")?,
        };
        Ok(Self::with_files(Some(files)))
    }

    fn with_files(files: Option<Files>) -> Self {
        let inner = Inner { ops: Vec::new(), files, write_error: None };
        Self { started: Instant::now(), inner: Mutex::new(inner) }
    }

    /// Appends one entry, with its index and time filled in.
    pub(crate) fn record(&self, mut op: Op) {
        let mut inner = self.lock();
        op.index = inner.ops.len() as u64;
        op.time = u64::try_from(self.started.elapsed().as_nanos())
            .expect("a run is shorter than 584 years");
        if let Some(files) = &mut inner.files
            && let Err(error) = files.append(&op)
        {
            inner.write_error.get_or_insert(format!("cannot write the history: {error}"));
        }
        inner.ops.push(op);
    }

    /// Nanoseconds since the start of the run.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).expect("a run is shorter than 584 years")
    }

    /// Counts of client completions so far: ok, fail, info.
    pub(crate) fn progress(&self) -> [usize; 3] {
        let inner = self.lock();
        let mut counts = [0; 3];
        for op in inner.ops.iter().filter(|op| op.process != Process::Nemesis) {
            match op.kind {
                Kind::Invoke => {}
                Kind::Ok => counts[0] += 1,
                Kind::Fail => counts[1] += 1,
                Kind::Info => counts[2] += 1,
            }
        }
        counts
    }

    /// What the nemesis did from this index on, and the index to ask from next time.
    pub(crate) fn nemesis_since(&self, index: usize) -> (Vec<Op>, usize) {
        let inner = self.lock();
        let new = inner.ops[index.min(inner.ops.len())..].iter();
        (new.filter(|op| op.process == Process::Nemesis).cloned().collect(), inner.ops.len())
    }

    /// Everything recorded so far, and the first error of writing it to disk.
    pub(crate) fn snapshot(&self) -> (Vec<Op>, Option<String>) {
        let inner = self.lock();
        (inner.ops.clone(), inner.write_error.clone())
    }

    /// A panic of another thread cannot leave the list half changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    fn append(&mut self, op: &Op) -> std::io::Result<()> {
        let mut json = serde_json::to_string(op)?;
        json.push('\n');
        self.json.write_all(json.as_bytes())?;
        let mut edn = op.to_edn();
        edn.push('\n');
        self.edn.write_all(edn.as_bytes())?;
        let mut text = op.to_text();
        text.push('\n');
        self.text.write_all(text.as_bytes())
    }
}

/// Reads a `history.jsonl`; refuses one whose indexes are not dense or whose time runs backwards. A last line that was
/// cut, because the harness died while it wrote, is left out; the second part says so.
pub(crate) fn read_jsonl(path: &Path) -> Result<(Vec<Op>, Option<String>)> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut ops: Vec<Op> = Vec::new();
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let place = || format!("{}, line {}", path.display(), number + 1);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let op: Op = match serde_json::from_slice(line) {
            Ok(op) => op,
            // What is JSON and no operation was not cut.
            Err(error) if !line.ends_with(b"\n") && !error.is_data() => {
                let cut = format!("line {} of the history was cut and is left out", number + 1);
                return Ok((ops, Some(cut)));
            }
            Err(error) => return Err(error).with_context(place),
        };
        ensure!(
            op.index == ops.len() as u64,
            "{}: index {} where {} is due",
            place(),
            op.index,
            ops.len()
        );
        if let Some(previous) = ops.last() {
            ensure!(previous.time <= op.time, "{}: time runs backwards", place());
        }
        ops.push(op);
    }
    Ok((ops, None))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn edn_is_what_jepsen_writes() {
        let mut op =
            Op::new(Process::Client(3), Kind::Invoke, Function::Cas, json!([7, [null, 2]]));
        op.index = 12;
        op.time = 3_291_485_317;
        assert_eq!(
            op.to_edn(),
            "{:index 12, :time 3291485317, :process 3, :type :invoke, :f :cas, :value [7 [nil 2]]}"
        );
        let transaction = json!([["r", 3, [1, 2]], ["append", 3, 4]]);
        let op = Op::new(Process::Client(0), Kind::Ok, Function::Txn, transaction);
        assert!(op.to_edn().ends_with(":f :txn, :value [[:r 3 [1 2]] [:append 3 4]]}"));
        let mut op = Op::new(
            Process::Nemesis,
            Kind::Info,
            Function::Fault(FaultFunction::StartPartition),
            json!({"outcome": "installed", "nodes": ["n1"]}),
        );
        op.error = Some("a \"quoted\"\n\u{1}line".to_owned());
        assert_eq!(
            op.to_edn(),
            "{:index 0, :time 0, :process :nemesis, :type :info, :f :start-partition, :value \
             {:nodes [\"n1\"], :outcome \"installed\"}, :error \"a \\\"quoted\\\"\\n\\u0001line\"}"
        );
    }

    #[test]
    fn recorded_history_reads_back_equal() {
        let directory = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(directory.path()).unwrap();
        for kind in [Kind::Invoke, Kind::Ok] {
            let mut op = Op::new(Process::Client(0), kind, Function::Read, json!([1, null]));
            op.version = (kind == Kind::Ok).then_some(0);
            op.last_phase = true;
            recorder.record(op);
        }
        recorder.record(Op::new(
            Process::Nemesis,
            Kind::Info,
            Function::Fault(FaultFunction::Kill),
            json!("one"),
        ));
        let (ops, error) = recorder.snapshot();
        assert_eq!(error, None);
        assert_eq!(recorder.progress(), [1, 0, 0]);
        assert_eq!(read_jsonl(&directory.path().join("history.jsonl")).unwrap(), (ops, None));
        let edn = std::fs::read_to_string(directory.path().join("history.edn")).unwrap();
        assert_eq!(edn.lines().count(), 3);
        assert!(edn.contains(":version 0, :final true}"), "{edn}");
        let text = std::fs::read_to_string(directory.path().join("history.txt")).unwrap();
        assert_eq!(
            text,
            "0\t:invoke\t:read\t[1 nil]\n0\t:ok\t:read\t[1 nil]\n:nemesis\t:info\t:kill\t\"one\"\n"
        );
    }

    #[test]
    fn lines_for_people_are_those_of_knossos() {
        let directory = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(directory.path()).unwrap();
        let invoked =
            Op::new(Process::Client(3), Kind::Invoke, Function::Write, json!([1, "a\tb"]));
        recorder.record(invoked.clone());
        let error = Some("503:\nno\tleader".to_owned());
        recorder.record(Op { kind: Kind::Info, error, ..invoked });
        let transaction = json!([["r", 3, [1, 2]]]);
        recorder.record(Op::new(Process::Client(4), Kind::Ok, Function::Txn, transaction));
        let path = directory.path().join("history.txt");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("\t[1 \"a\\tb\"]\t\"503:\\nno\\tleader\"\n"), "{text}");
        assert!(text.ends_with("4\t:ok\t:txn\t[[:r 3 [1 2]]]\n"), "{text}");
        let read = crate::edn::read_history(&path).unwrap();
        let plain = |op: &Op| (op.process, op.kind, op.f, op.value.clone());
        let written: Vec<_> = recorder.snapshot().0.iter().map(plain).collect();
        assert_eq!(read.iter().map(plain).collect::<Vec<_>>(), written);
    }

    #[test]
    fn names_that_are_no_keywords_stay_strings() {
        let value = json!({"disk-full": 1, "0f": 2, "a b": 3, "": null, "p99_ms": [true]});
        assert_eq!(edn(&value), "{\"\" nil, \"0f\" 2, \"a b\" 3, :disk-full 1, :p99_ms [true]}");
    }

    #[test]
    fn damaged_histories_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.jsonl");
        let line =
            r#"{"index":1,"time":5,"process":0,"type":"invoke","f":"read","value":[1,null]}"#;
        std::fs::write(&path, line).unwrap();
        let error = read_jsonl(&path).unwrap_err().to_string();
        assert!(error.contains("line 1: index 1 where 0 is due"), "{error}");
        std::fs::write(&path, line.replace("0,\"type", "\"me\",\"type")).unwrap();
        let error = format!("{:#}", read_jsonl(&path).unwrap_err());
        assert!(error.contains("process is a number or \"nemesis\""), "{error}");
        // Only the last line can have been cut.
        let whole = line.replace("\"index\":1", "\"index\":0");
        for cut in [&line[..1], &line[..40], &line[..line.len() - 1]] {
            std::fs::write(&path, format!("{whole}\n{cut}")).unwrap();
            let (ops, said) = read_jsonl(&path).unwrap();
            assert_eq!(
                (ops.len(), said.unwrap()),
                (1, "line 2 of the history was cut and is left out".to_owned())
            );
            std::fs::write(&path, format!("{whole}\n{cut}\n")).unwrap();
            let error = format!("{:#}", read_jsonl(&path).unwrap_err());
            assert!(error.contains("line 2: "), "{error}");
        }
    }
}
