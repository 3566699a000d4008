//! Where a value of a JSON job file stands. Owns a scan of text that has been parsed before, so it
//! checks nothing; it never copies values.

use std::ops::Range;

use super::places::Step;

/// The place of what the steps below the job lead to, or of the nearest value around it.
pub(super) fn locate(source: &str, steps: &[Step]) -> Range<usize> {
    let mut scan = Scan { source, at: 0 };
    scan.skip_space();
    let whole = scan.at;
    if !scan.member(|name| name == "Job") {
        scan.at = whole;
    }
    let mut found = scan.at;
    for step in steps {
        let is_there = match step {
            Step::Name(name) => scan.member(|key| key.eq_ignore_ascii_case(name)),
            Step::Key(name) => scan.member(|key| key == name),
            Step::Index(index) => scan.element(*index),
        };
        if !is_there {
            break;
        }
        found = scan.at;
    }
    let mut end = Scan { source, at: found };
    end.skip_value();
    found..end.at
}

struct Scan<'s> {
    source: &'s str,
    at: usize,
}

impl Scan<'_> {
    fn byte(&self) -> Option<u8> {
        self.source.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.byte().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Behind the string that begins here.
    fn skip_string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.byte() {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                return;
            }
        }
    }

    fn skip_value(&mut self) {
        let mut open = 0_usize;
        while let Some(byte) = self.byte() {
            match byte {
                b'"' => self.skip_string(),
                b'{' | b'[' => {
                    open += 1;
                    self.at += 1;
                }
                b'}' | b']' if open > 0 => {
                    open -= 1;
                    self.at += 1;
                }
                b',' | b'}' | b']' if open == 0 => return,
                _ => self.at += 1,
            }
            if open == 0 && matches!(byte, b'"' | b'}' | b']') {
                return;
            }
        }
    }

    /// To the value of the member that is called so, if this is an object with one.
    fn member(&mut self, is_it: impl Fn(&str) -> bool) -> bool {
        if self.byte() != Some(b'{') {
            return false;
        }
        self.at += 1;
        loop {
            self.skip_space();
            if self.byte() != Some(b'"') {
                return false;
            }
            let start = self.at;
            self.skip_string();
            let name: Option<String> =
                self.source.get(start..self.at).and_then(|name| serde_json::from_str(name).ok());
            self.skip_space();
            self.at += 1;
            self.skip_space();
            if name.is_some_and(|name| is_it(&name)) {
                return true;
            }
            self.skip_value();
            self.skip_space();
            self.at += 1;
        }
    }

    /// To an element, if this is a list with so many.
    fn element(&mut self, index: usize) -> bool {
        if self.byte() != Some(b'[') {
            return false;
        }
        self.at += 1;
        for _ in 0..index {
            self.skip_space();
            self.skip_value();
            self.skip_space();
            if self.byte() != Some(b',') {
                return false;
            }
            self.at += 1;
        }
        self.skip_space();
        self.byte() != Some(b']')
    }
}

#[cfg(test)]
mod tests {
    use super::{Step, locate};

    #[track_caller]
    fn check(source: &str, steps: &[Step], expected: &str) {
        assert_eq!(&source[locate(source, steps)], expected, "{steps:?}");
    }

    #[test]
    fn a_value_is_found_by_its_path() {
        let source = r#"{ "Job": {"ID" : "a\"b", "TaskGroups": [ {"Count": 1}, {"count":-2,
            "Meta": {"k": "v", "Count": []}, "Empty": [], "Last": {"x": [1, 2]} } ]} }"#;
        let name = |name: &str| Step::Name(name.to_owned());
        let group = |number| [name("TaskGroups"), Step::Index(number)];
        let of_group = |number, more: &[Step]| [&group(number)[..], more].concat();
        check(source, &[name("ID")], r#""a\"b""#);
        check(source, &group(0), r#"{"Count": 1}"#);
        check(source, &of_group(0, &[name("Count")]), "1");
        check(source, &of_group(1, &[name("Count")]), "-2");
        check(source, &of_group(1, &[name("Meta"), Step::Key("k".to_owned())]), r#""v""#);
        check(source, &of_group(1, &[name("Last"), name("x"), Step::Index(1)]), "2");
        // What is not there leads to what is around it.
        check(source, &of_group(1, &[name("Empty"), Step::Index(0)]), "[]");
        check(source, &of_group(0, &[name("Meta")]), r#"{"Count": 1}"#);
        check(r#"{"ID": 7}"#, &[name("ID")], "7");
        check("{}", &[name("ID")], "{}");
        check("", &[name("ID")], "");
    }
}
