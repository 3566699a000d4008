//! Reading values in EDN.
//!
//! Owns how a value of EDN becomes one of JSON: keywords and symbols become strings, sets sorted lists, tags and metadata
//! are left out. Never reads an operation.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::number::kept;

/// Values within values; what is deeper is no history.
const DEPTH_MAX: u32 = 100;

/// Reads one EDN value after the other.
pub(super) struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Reader<'a> {
    /// A reader at the beginning of a text.
    pub(super) fn of(text: &'a str) -> Self {
        Self { text: text.as_bytes(), at: 0, depth: 0 }
    }

    /// Refuses what is left once there is no next value: a bracket that closes.
    pub(super) fn end(&self) -> Result<()> {
        let is_end = self.at == self.text.len();
        ensure!(is_end, "byte {}: closes what nothing has opened", self.at);
        Ok(())
    }

    /// The next value; none at the end, and before a bracket that closes.
    pub(super) fn next(&mut self) -> Result<Option<Value>> {
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
                        let mut items = self.items(b'}')?;
                        // A set has no order, whatever it is written in.
                        items.sort_by_cached_key(Value::to_string);
                        Value::Array(items)
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
                b'^' => {
                    self.next()?.context("nothing follows ^")?;
                    self.next()?.context("metadata without a value")?
                }
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
                blank if is_blank(*blank) => self.at += 1,
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
                b'\\' => self.escaped(&mut bytes)?,
                other => bytes.push(other),
            }
        }
    }

    /// What a backslash begins. What is not known stays as it is written, so that it is not taken for something else.
    fn escaped(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let name = *self.text.get(self.at).context("a string without an end")?;
        self.at += 1;
        match name {
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'r' => bytes.push(b'\r'),
            b'b' => bytes.push(0x08),
            b'f' => bytes.push(0x0c),
            b'"' | b'\\' => bytes.push(name),
            _ => match (name == b'u').then(|| self.unicode()).flatten() {
                Some(character) => bytes.extend(character.to_string().into_bytes()),
                None => bytes.extend([b'\\', name]),
            },
        }
        Ok(())
    }

    /// The character of `\uNNNN`, or of the two of them that UTF-16 has for it.
    fn unicode(&mut self) -> Option<char> {
        let first = self.code_unit(self.at)?;
        let follows = self.text[self.at + 4..].starts_with(b"\\u");
        let second = follows.then(|| self.code_unit(self.at + 6)).flatten();
        let character = char::decode_utf16([first].into_iter().chain(second)).next()?.ok()?;
        self.at += if character.len_utf16() == 2 { 10 } else { 4 };
        Some(character)
    }

    /// The number of four hexadecimal digits.
    fn code_unit(&self, at: usize) -> Option<u16> {
        let digits = self.text.get(at..at + 4)?;
        let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    fn word(&mut self) -> String {
        let start = self.at;
        let ends = |byte: &u8| is_blank(*byte) || b"[]{}()\";".contains(byte);
        while self.text.get(self.at).is_some_and(|byte| !ends(byte)) {
            self.at += 1;
        }
        String::from_utf8_lossy(&self.text[start..self.at]).into_owned()
    }
}

/// What stands between values.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | b',')
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
            let whole = whole.strip_prefix('+').unwrap_or(whole);
            let is_number = whole.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
            match (whole.parse::<i64>(), whole.parse::<f64>()) {
                (Ok(number), _) => number.into(),
                (Err(_), Ok(number)) if is_number => kept(whole, number.into()),
                (Err(_), Ok(_) | Err(_)) => word.into(),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        Reader::of(text).next().unwrap().unwrap()
    }

    #[test]
    fn different_values_stay_different() {
        assert_eq!(read("9223372036854775808"), json!("9223372036854775808N"));
        assert_eq!(read("+9223372036854775808N"), json!("9223372036854775808N"));
        assert_ne!(read("9223372036854775808"), read("9223372036854775809"));
        assert_eq!(read("1.00000000000000000001M"), json!("1.00000000000000000001M"));
        assert_eq!(read("1e999"), json!("1e999M"));
        assert_eq!([read("nan"), read("##NaN"), read("-inf")], ["nan", "##NaN", "-inf"]);
        assert_eq!([read("-7N"), read("1.5M"), read("+3")], [json!(-7), json!(1.5), json!(3)]);
        assert_eq!([read("1.50"), read("-2e3")], [json!(1.5), json!(-2000.0)]);
        assert_eq!([read("\\( "), read("\\a "), read("\\newline ")], ["\\(", "\\a", "\\newline"]);
    }

    #[test]
    fn blanks_and_metadata_are_passed_over() {
        assert_eq!(
            read("\u{c}[1\u{c}\u{b}2, ^{:a [1]} ^:b :x a^b]\u{c}"),
            json!([1, 2, "x", "a^b"])
        );
        for text in ["^", "^:a", "[^:a]"] {
            assert!(Reader::of(text).next().is_err(), "{text}");
        }
    }

    #[test]
    fn sets_have_no_order() {
        assert_eq!(read("#{2 #{:b :a} 1}"), read("#{#{:a :b} 1 2}"));
        assert_eq!(read("#{2 1 2}"), json!([1, 2, 2]));
        assert_ne!(read("[1 2]"), read("[2 1]"));
    }

    #[test]
    fn escapes_are_read() {
        assert_eq!(read(r#""\"\\\n\t\r\b\f\u00e9""#), "\"\\\n\t\r\u{8}\u{c}é");
        assert_eq!(read(r#""\ud83d\ude00\ud83d\ude01""#), "😀😁");
        for unknown in [r"\q", r"\ud83d", r"\ude00\ud83d", r"\ud83d\u0041", r"\u+123", r"\u12"] {
            let text = read(&format!("\"{unknown}\""));
            let known = unknown.replace(r"\u0041", "A");
            assert_eq!(text, known, "{unknown}");
        }
    }
}
