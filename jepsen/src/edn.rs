//! Reading histories that other programs wrote.
//!
//! Owns two foreign forms: EDN (Jepsen, Knossos, Elle: one map per operation, one after the other or in one
//! vector, tagged or not) and the log lines of Knossos' and Porcupine's corpora (`… 3 :invoke :write 5`).
//! Keywords become strings, sets lists; unknown faults are left out. Our own extra keys are read where they
//! are. Never judges.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use crate::history::{Function, Kind, Op, Process, read_jsonl};

/// Reads a history by the form its name tells: `.edn`, `.jsonl`, `.log` or `.txt`.
pub(crate) fn read_history(path: &Path) -> Result<Vec<Op>> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    if extension == Some("jsonl") {
        return read_jsonl(path);
    }
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let history = match extension {
        Some("edn") => from_edn(&text),
        Some("log" | "txt") => from_log(&text),
        Some(_) | None => {
            bail!("{}: a history's name ends with .edn, .jsonl, .log or .txt", path.display())
        }
    };
    history.with_context(|| format!("{} is not a history", path.display()))
}

/// A history in EDN.
pub(crate) fn from_edn(text: &str) -> Result<Vec<Op>> {
    let mut reader = Reader { text: text.as_bytes(), at: 0 };
    let mut maps = Vec::new();
    while let Some(value) = reader.next()? {
        if let Value::Array(items) = value {
            maps.extend(items);
        } else {
            maps.push(value);
        }
    }
    let mut builder = Builder::default();
    for map in &maps {
        builder.push(map)?;
    }
    Ok(builder.ops)
}

/// A history of log lines; lines without a process and a type are left out.
pub(crate) fn from_log(text: &str) -> Result<Vec<Op>> {
    let mut builder = Builder::default();
    for (number, line) in text.lines().enumerate() {
        let Some((process, rest)) = line.split_once("\t:").or_else(|| line.split_once(" :")) else {
            continue;
        };
        let process = process.rsplit([' ', '\t']).next().unwrap_or("");
        let Ok(process) = process.trim_start_matches(':').parse::<u64>() else { continue };
        let place = || format!("line {}", number + 1);
        let mut words = rest.splitn(3, [' ', '\t']);
        let (kind, f) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let mut reader = Reader { text: words.next().unwrap_or("").as_bytes(), at: 0 };
        let value = reader.next().with_context(place)?.unwrap_or(Value::Null);
        let f = f.trim().trim_start_matches(':');
        let map = json!({"process": process, "type": kind.trim(), "f": f, "value": value});
        builder.push(&map).with_context(place)?;
    }
    ensure!(!builder.ops.is_empty(), "no line tells an operation");
    Ok(builder.ops)
}

/// Numbers operations, and gives processes that are no numbers one.
#[derive(Default)]
struct Builder {
    ops: Vec<Op>,
    started: BTreeMap<u64, Value>,
}

impl Builder {
    fn push(&mut self, map: &Value) -> Result<()> {
        let index = self.ops.len() as u64;
        let field = |name: &str| map.get(name).unwrap_or(&Value::Null);
        let function = serde_json::from_value::<Function>(field("f").clone());
        let (process, function) = match (field("process").as_u64(), function) {
            (Some(number), Ok(function)) => (Process::Client(number), function),
            (Some(_), Err(_)) => {
                bail!("entry {index}: {} is no function of a known model", field("f"))
            }
            (None, Ok(function)) if field("process") == "nemesis" => (Process::Nemesis, function),
            // The faults of another program, or that program itself.
            (None, _) => return Ok(()),
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
}

/// Reads one EDN value after the other.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// The next value, if there is one.
    fn next(&mut self) -> Result<Option<Value>> {
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
                b'#' => match self.text.get(self.at) {
                    Some(b'{') => {
                        self.at += 1;
                        Value::Array(self.items(b'}')?)
                    }
                    Some(b'_') => {
                        self.at += 1;
                        self.next()?;
                        continue;
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
            match (whole.parse::<i64>(), whole.parse::<f64>()) {
                (Ok(number), _) => number.into(),
                (Err(_), Ok(number)) => number.into(),
                (Err(_), Err(_)) => word.into(),
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
    fn what_is_no_history_is_refused() {
        for text in ["[{:process 0 :type :invoke", "{:process 0 :type :maybe :f :read}", "{:a}"] {
            assert!(from_edn(text).is_err(), "{text}");
        }
        assert!(from_log("nothing here").is_err());
        let error = read_history(Path::new("history.csv")).unwrap_err().to_string();
        assert!(error.contains(".csv") || error.contains("cannot read"), "{error}");
    }
}
