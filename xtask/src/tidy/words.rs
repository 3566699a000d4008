//! docs/style.md, "Words": a comment can be read beside its code, and a name means one thing.
//!
//! Reads the text of formatted files. A drawing (a fenced block in a comment) may be wider than a
//! sentence; a table in a comment is no drawing.

use std::collections::BTreeMap;

use super::{Repository, is_test_file};

/// Columns of a comment.
const COLUMNS_MAX: usize = 100;
/// Columns of a drawing in a comment.
const DRAWING_COLUMNS_MAX: usize = 160;

/// How the parts fit, for whoever is new here.
const ARCHITECTURE: &str = "ARCHITECTURE.md";
const ARCHITECTURE_COLUMNS_MAX: usize = 120;
/// What the bugs have taught; git has the diary.
const LESSONS: &str = "jepsen/LESSONS.md";
const LESSONS_LINES_MAX: usize = 200;

/// Comments of `src/` that are too wide.
pub(super) fn comment_width(repository: &Repository) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in repository.with_ending("rs").filter(|(path, _)| path.starts_with("src/")) {
        let mut is_drawing = false;
        for (number, line) in text.lines().enumerate() {
            let code = line.trim_start();
            if !code.starts_with("//") {
                is_drawing = false;
                continue;
            }
            is_drawing ^= code.contains("```");
            let max = if is_drawing { DRAWING_COLUMNS_MAX } else { COLUMNS_MAX };
            let columns = line.chars().count();
            if columns > max {
                let number = number + 1;
                findings.push(format!(
                    "{path}:{number}: a comment of {columns} columns, {max} are allowed"
                ));
            }
        }
    }
    findings
}

/// Public types of one name in one package.
pub(super) fn type_names(repository: &Repository) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for (path, text) in repository.with_ending("rs").filter(|(path, _)| !is_test_file(path)) {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = type_name(line) {
                places
                    .entry((package(path), name))
                    .or_default()
                    .push(format!("{path}:{}", number + 1));
            }
        }
    }
    places
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|((_, name), places)| {
            format!("{}: `{name}` is also {}", places[0], places[1..].join(", "))
        })
        .collect()
}

/// The folder of a file's package.
fn package(path: &str) -> &str {
    path.split_once("/src/").map_or("", |(package, _)| package)
}

/// The name of the public type that a line begins.
fn type_name(line: &str) -> Option<&str> {
    let item = line.strip_prefix("pub ")?;
    let rest = ["struct ", "enum ", "union ", "trait ", "type "]
        .into_iter()
        .find_map(|kind| item.strip_prefix(kind))?;
    rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

/// Documents that have grown too wide or too long to be read. The list of arrows is read by a machine.
pub(super) fn documents(repository: &Repository) -> Vec<String> {
    let mut findings = Vec::new();
    if let Some(text) = repository.files.get(ARCHITECTURE) {
        let mut is_list = false;
        for (number, line) in text.lines().enumerate() {
            is_list = if line.starts_with("```") { line == "```arrows" } else { is_list };
            let columns = line.chars().count();
            if columns > ARCHITECTURE_COLUMNS_MAX && !is_list {
                findings
                    .push(format!("{ARCHITECTURE}:{}: a line of {columns} columns", number + 1));
            }
        }
    }
    let lessons = repository.files.get(LESSONS).map_or(0, |text| text.lines().count());
    if lessons > LESSONS_LINES_MAX {
        findings.push(format!("{LESSONS}: {lessons} lines, {LESSONS_LINES_MAX} are allowed"));
    }
    findings
}
