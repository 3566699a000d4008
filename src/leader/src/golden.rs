//! Golden scripts: blocks of input lines, `----`, the expected output, an empty line. `#` starts a
//! comment. With `UPDATE=1` in the environment the expected output is rewritten instead of
//! compared.

#![expect(clippy::disallowed_methods, reason = "tests read their scripts")]

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

/// Runs a script of `golden/`: `step` gets each input line and answers with what to print for it,
/// nothing if empty.
pub(crate) fn run(file: &str, mut step: impl FnMut(&str) -> String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(file);
    let script = fs::read_to_string(&path).expect("the script is readable");
    let mut actual = String::new();
    for block in script.trim().split("\n\n") {
        let mut output = String::new();
        for line in block.lines().take_while(|line| *line != "----") {
            writeln!(actual, "{line}").expect("writing to a string");
            if line.starts_with('#') || line.is_empty() {
                continue;
            }
            let answer = step(line);
            if !answer.is_empty() {
                writeln!(output, "{answer}").expect("writing to a string");
            }
        }
        if !output.is_empty() {
            write!(actual, "----\n{output}").expect("writing to a string");
        }
        actual.push('\n');
    }
    let actual = format!("{}\n", actual.trim_end());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, actual).expect("the script is writable");
        return;
    }
    for (number, (found, expected)) in actual.lines().zip(script.lines()).enumerate() {
        assert_eq!(found, expected, "{}:{} (UPDATE=1 rewrites it)", path.display(), number + 1);
    }
    assert_eq!(actual, script, "{} (UPDATE=1 rewrites it)", path.display());
}

/// A line `word key=value …`.
pub(crate) struct Arguments<'a> {
    /// First word.
    pub(crate) word: &'a str,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Arguments<'a> {
    /// Splits a line.
    pub(crate) fn new(line: &'a str) -> Self {
        let mut words = line.split_whitespace();
        let word = words.next().expect("a line has a word");
        let values = words
            .map(|word| word.split_once('=').unwrap_or_else(|| panic!("`{word}` has no value")))
            .collect();
        Self { word, values }
    }

    /// The value of a key; panics if missing.
    pub(crate) fn text(&self, key: &str) -> &'a str {
        self.find(key).unwrap_or_else(|| panic!("`{}` needs {key}=", self.word))
    }

    /// The value of a key.
    pub(crate) fn find(&self, key: &str) -> Option<&'a str> {
        self.values.get(key).copied()
    }

    /// The number of a key; 0 if missing.
    pub(crate) fn number(&self, key: &str) -> u64 {
        self.find(key).map_or(0, |text| text.parse().expect("a number"))
    }
}
