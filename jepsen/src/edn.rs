//! Reading histories that other programs wrote.
//!
//! Owns three foreign forms: JSON lines with the keys of our own, EDN (Jepsen, Knossos, Elle: one map per operation, one after the other, in vectors
//! or as `:history` of a test, tagged or not) and the log lines of Knossos' and Porcupine's corpora
//! (`… 3 :invoke :write 5`). Keywords become strings, sets lists; a process may have any name. Unknown faults
//! and what Jepsen's generator notes for itself are left out; what is no operation besides is an error, because
//! a history that is judged in part is not judged. Our own extra keys are read where they are. Never judges.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use crate::history::{Function, Kind, Op, Process};

/// Values within values; what is deeper is no history.
const DEPTH_MAX: u32 = 100;

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
    ensure!(reader.at == text.len(), "byte {}: closes what nothing has opened", reader.at);
    let mut builder = Builder::default();
    for map in &maps {
        builder.push(map)?;
    }
    Ok(builder.ops)
}

/// A history of JSON lines. Where they are numbered none may be missing, and where they tell the time it does not run backwards.
fn from_json_lines(text: &str) -> Result<Vec<Op>> {
    let mut builder = Builder::default();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (due, (number, line)) in (0_u64..).zip(lines) {
        let place = || format!("line {}", number + 1);
        let map: Value = serde_json::from_str(line).with_context(place)?;
        let index = map.get("index").and_then(Value::as_u64).unwrap_or(due);
        ensure!(index == due, "{}: index {index} where {due} is due", place());
        let (before, time) = (builder.ops.last(), map.get("time").and_then(Value::as_u64));
        let is_later = before.is_none_or(|before| time.is_none_or(|time| before.time <= time));
        ensure!(is_later, "{}: time runs backwards", place());
        let known = builder.ops.len();
        builder.push(&map).with_context(place)?;
        // The faults of another program have a number, too.
        builder.ops[known..].iter_mut().for_each(|op| op.index = due);
    }
    Ok(builder.ops)
}

/// Takes the operations out of vectors and of a test that holds its history.
fn flatten(mut value: Value, maps: &mut Vec<Value>) {
    if let Value::Array(items) = value {
        for item in items {
            flatten(item, maps);
        }
    } else if value.get("type").is_none()
        && let Some(history) = value.get_mut("history")
    {
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
        let Some([process, kind, f, value]) = operation(line).with_context(place)? else {
            continue;
        };
        let process = process.trim_start_matches(':');
        if process == "nemesis" {
            continue;
        }
        let process = process
            .parse::<u64>()
            .with_context(|| format!("{process:?} is no number of a process"))
            .with_context(place)?;
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

/// The first word, and what follows it.
fn cut(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

/// The process, the type, the function and the value of a line that tells an operation. One in which a keyword follows a number is meant to be one.
fn operation(line: &str) -> Result<Option<[&str; 4]>> {
    let (mut process, mut rest) = ("", line);
    loop {
        let (word, after) = cut(rest);
        if word.is_empty() {
            return Ok(None);
        }
        let is_meant = process.parse::<u64>().is_ok();
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
    started: BTreeMap<u64, Value>,
    /// Numbers of processes that have names.
    named: BTreeMap<String, u64>,
}

impl Builder {
    fn push(&mut self, map: &Value) -> Result<()> {
        let index = self.ops.len() as u64;
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
        let mut value = field("value").clone();
        if let Process::Client(number) = process {
            if kind == Kind::Invoke {
                self.started.insert(number, value.clone());
            } else if kind != Kind::Ok
                // A drain that broke off tells what it has taken out.
                && !(function == Function::Drain && value.is_array())
                && let Some(started) = self.started.get(&number)
            {
                // The value of a failed operation may be the reason of the failure.
                value = started.clone();
            }
        }
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

    /// The number of a process. Names, and the lack of one, count down from the top, where no number of a client is.
    fn client(&mut self, name: &Value) -> u64 {
        let next = u64::MAX - self.named.len() as u64;
        let named = || *self.named.entry(name.to_string()).or_insert(next);
        name.as_u64().unwrap_or_else(named)
    }
}

/// Whether it is a list of appends and reads.
fn is_transaction(value: &Value) -> bool {
    let is_step = |step: &Value| matches!(step[0].as_str(), Some("append" | "r"));
    value.as_array().is_some_and(|steps| steps.iter().all(is_step))
}

/// Reads one EDN value after the other.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Reader<'a> {
    fn of(text: &'a str) -> Self {
        Self { text: text.as_bytes(), at: 0, depth: 0 }
    }

    /// The next value; none at the end, and before a bracket that closes.
    fn next(&mut self) -> Result<Option<Value>> {
        ensure!(self.depth < DEPTH_MAX, "byte {}: more than {DEPTH_MAX} levels deep", self.at);
        self.depth += 1;
        let value = self.value();
        self.depth -= 1;
        value
    }

    fn value(&mut self) -> Result<Option<Value>> {
        loop {
            self.skip_blank();
            let Some(byte) = self.text.get(self.at).copied() else { return Ok(None) };
            if matches!(byte, b']' | b'}' | b')') {
                return Ok(None);
            }
            self.at += 1;
            return Ok(Some(match byte {
                b'[' | b'(' => Value::Array(self.items(if byte == b'[' { b']' } else { b')' })?),
                b'{' => self.map()?,
                b'"' => Value::String(self.string()?),
                b'\\' => {
                    // A character: whatever comes next, a bracket included.
                    let start = self.at - 1;
                    self.at = (self.at + 1).min(self.text.len());
                    self.word();
                    String::from_utf8_lossy(&self.text[start..self.at]).into()
                }
                b'#' => match self.text.get(self.at) {
                    Some(b'{') => {
                        self.at += 1;
                        Value::Array(self.items(b'}')?)
                    }
                    Some(b'_') => {
                        self.at += 1;
                        self.next()?.context("nothing follows #_")?;
                        continue;
                    }
                    // `##NaN` and the like.
                    Some(b'#') => {
                        self.at -= 1;
                        self.word().into()
                    }
                    Some(_) | None => {
                        self.word();
                        self.next()?.context("a tag without a value")?
                    }
                },
                _ => {
                    self.at -= 1;
                    atom(&self.word())?
                }
            }));
        }
    }

    fn skip_blank(&mut self) {
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' | b',' => self.at += 1,
                b';' => {
                    while self.text.get(self.at).is_some_and(|byte| *byte != b'\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn items(&mut self, end: u8) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        while let Some(item) = self.next()? {
            items.push(item);
        }
        ensure!(
            self.text.get(self.at) == Some(&end),
            "byte {}: expected {:?}",
            self.at,
            char::from(end)
        );
        self.at += 1;
        Ok(items)
    }

    fn map(&mut self) -> Result<Value> {
        let items = self.items(b'}')?;
        ensure!(items.len().is_multiple_of(2), "byte {}: a map with half a pair", self.at);
        let pairs = items.chunks(2).map(|pair| {
            let name = pair[0].as_str().map_or_else(|| pair[0].to_string(), str::to_owned);
            (name, pair[1].clone())
        });
        Ok(Value::Object(pairs.collect::<Map<_, _>>()))
    }

    fn string(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        loop {
            let byte = *self.text.get(self.at).context("a string without an end")?;
            self.at += 1;
            match byte {
                b'"' => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
                b'\\' => {
                    let escaped = *self.text.get(self.at).context("a string without an end")?;
                    self.at += 1;
                    match escaped {
                        b'n' => bytes.push(b'\n'),
                        b't' => bytes.push(b'\t'),
                        b'r' => bytes.push(b'\r'),
                        b'u' => {
                            let digits = self.text.get(self.at..self.at + 4);
                            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
                            let code = digits.and_then(|text| u32::from_str_radix(text, 16).ok());
                            self.at += 4;
                            let code = code.and_then(char::from_u32).unwrap_or('\u{fffd}');
                            bytes.extend(code.to_string().into_bytes());
                        }
                        other => bytes.push(other),
                    }
                }
                other => bytes.push(other),
            }
        }
    }

    fn word(&mut self) -> String {
        let start = self.at;
        let ends = |byte: &u8| {
            matches!(
                byte,
                b' ' | b'\t'
                    | b'\n'
                    | b'\r'
                    | b','
                    | b'['
                    | b']'
                    | b'{'
                    | b'}'
                    | b'('
                    | b')'
                    | b'"'
                    | b';'
            )
        };
        while self.text.get(self.at).is_some_and(|byte| !ends(byte)) {
            self.at += 1;
        }
        String::from_utf8_lossy(&self.text[start..self.at]).into_owned()
    }
}

fn atom(word: &str) -> Result<Value> {
    if let Some(keyword) = word.strip_prefix(':') {
        return Ok(keyword.into());
    }
    Ok(match word {
        "nil" => Value::Null,
        "true" => true.into(),
        "false" => false.into(),
        "" => bail!("a value is missing"),
        _ => {
            let whole = word.trim_end_matches(['N', 'M']);
            let digits = whole.trim_start_matches(['+', '-']);
            match (whole.parse::<i64>(), whole.parse::<f64>()) {
                (Ok(number), _) => number.into(),
                // As floats two large numbers could be the same.
                (Err(_), Ok(_)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => whole.into(),
                (Err(_), Ok(number)) if digits.starts_with(|c: char| c.is_ascii_digit()) => {
                    number.into()
                }
                (Err(_), Ok(_) | Err(_)) => word.into(),
            }
        }
    })
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
        let bare = r#"{"process":0,"type":"invoke","f":"read"}"#;
        assert_eq!(read(&[bare]).unwrap()[0].value, Value::Null);
        let back = end.replace("\"time\":7", "\"time\":4");
        for (lines, said) in [
            (vec![start, end], "line 2: index 2 where 1 is due"),
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
        for text in [format!("[[{}]]", op("3")), format!("{{:name \"x\" :history [{}]}}", op("3"))]
        {
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
    fn different_values_stay_different() {
        let value = |text: &str| {
            let map = format!("{{:process 0 :type :invoke :f :write :value {text}}}");
            from_edn(&map).unwrap()[0].value.clone()
        };
        assert_eq!(value("9223372036854775808"), json!("9223372036854775808"));
        assert_ne!(value("9223372036854775808"), value("9223372036854775809"));
        assert_eq!([value("nan"), value("##NaN"), value("-inf")], ["nan", "##NaN", "-inf"]);
        assert_eq!([value("-7N"), value("1.5M"), value("+3")], [json!(-7), json!(1.5), json!(3)]);
        assert_eq!(
            [value("\\( "), value("\\a "), value("\\newline ")],
            ["\\(", "\\a", "\\newline"]
        );
    }

    #[test]
    fn a_drain_that_broke_off_keeps_what_it_tells() {
        let text = "{:process 0 :type :invoke :f :drain :value nil}\n\
                    {:process 0 :type :info :f :drain :value [5]}";
        assert_eq!(from_edn(text).unwrap()[1].value, json!([5]));
    }

    #[test]
    fn what_is_no_history_is_refused() {
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
            let text = format!("{whole}INFO  jepsen.util - {text}\n");
            let error = format!("{:#}", from_log(&text).unwrap_err());
            assert!(error.starts_with("line 2: "), "{text}: {error}");
        }
        assert!(from_log(&format!("0 :invoke :write {deep}")).is_err());
        let error = read_history(Path::new("history.csv")).unwrap_err().to_string();
        assert!(error.contains(".csv") || error.contains("cannot read"), "{error}");
    }
}
