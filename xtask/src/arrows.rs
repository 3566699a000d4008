//! The arrows between the folders of `src/`, and of `sim/control`: which folder may use which.
//!
//! ARCHITECTURE.md holds the list, in its block of the language `arrows`. A line is
//! `folder -> folder folder`; `folder (tests) -> folder` allows more to the folder's tests. Every
//! folder, single file and package of `src/` has a line, and `sim/control`. What stands in a folder
//! or package may have a line too, as `folder/room`: the folder's own line is then about the rest
//! of it. The check fails on
//!
//! - a use that is not listed, with its place and the arrow's name;
//! - a listed arrow that nothing uses;
//! - a circle among the listed arrows (arrows of tests do not count);
//! - a folder without a line, and a line without a folder.
//!
//! Must never look at comments or strings: a path in a comment is no dependency.

mod code;

use std::collections::{BTreeMap, BTreeSet};

use self::code::{Package, Use, uses};
use crate::tidy::Repository;

/// Where the list is.
const LIST: &str = "ARCHITECTURE.md";
/// What its block begins with.
const FENCE: &str = "```arrows";

/// The heading of the packages that do no I/O.
const WITHOUT_IO: &str = "# packages without I/O";

/// Packages outside of `src/` whose arrows are checked too, by their folder.
const OUTSIDE: [&str; 1] = ["sim/control"];

/// Names of folders, by the folder that may use them.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// What is allowed.
#[derive(Debug, Default)]
struct List {
    arrows: Arrows,
    /// What tests may use besides.
    of_tests: Arrows,
}

/// Every use between folders that the list does not allow, and what is wrong with the list.
pub(crate) fn check(repository: &Repository) -> Vec<String> {
    let Some(text) = repository.files.get(LIST) else { return vec![format!("{LIST} is missing")] };
    let files = repository.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    let files: Vec<_> = files.filter(|(path, _)| is_source(path)).collect();
    findings(text, &files, &packages(repository))
}

/// The packages below the heading of those that do no I/O.
pub(crate) fn without_io(repository: &Repository) -> BTreeSet<String> {
    let text = repository.files.get(LIST).map_or("", String::as_str);
    let below = text.split_once(WITHOUT_IO).map_or("", |(_, below)| below);
    let lines = below.lines().skip(1).take_while(|line| line.contains("->"));
    let names = lines.filter_map(|line| line.split_once("->")).map(|(name, _)| name.trim());
    // A room of a package is not one.
    let packages = names.filter(|name| !name.ends_with("(tests)") && !name.contains('/'));
    packages.map(str::to_owned).collect()
}

/// Folders that are packages of their own: others name them without `crate::`.
fn packages(repository: &Repository) -> Vec<Package> {
    let packages = repository.files.iter().filter_map(|(path, text)| {
        let folder = path.strip_suffix("/Cargo.toml")?;
        let is_outside = OUTSIDE.contains(&folder);
        let folder = if is_outside { folder } else { folder.strip_prefix("src/")? };
        let name = text.lines().find_map(|line| line.strip_prefix("name = "))?;
        let library = name.trim_matches('"').replace('-', "_");
        Some(Package { folder: folder.to_owned(), library })
    });
    packages.collect()
}

fn is_source(path: &str) -> bool {
    folder_and_rest(path).is_some() && path.strip_suffix(".rs").is_some()
}

/// The folder of a path by its name in the list, and the path from there; none: it is not checked.
fn folder_and_rest(path: &str) -> Option<(&str, &str)> {
    let outside = OUTSIDE.iter().find_map(|folder| {
        let rest = path.strip_prefix(folder)?.strip_prefix('/')?;
        Some((*folder, rest))
    });
    outside.or_else(|| {
        let path = path.strip_prefix("src/")?;
        Some(path.split_once('/').unwrap_or((path, "")))
    })
}

/// Where a folder is, for people.
fn place_of_folder(folder: &str) -> String {
    if OUTSIDE.contains(&folder) { folder.to_owned() } else { format!("src/{folder}") }
}

fn findings(text: &str, files: &[(&str, &str)], packages: &[Package]) -> Vec<String> {
    let list = match List::parse(text) {
        Ok(list) => list,
        Err(findings) => return findings,
    };
    let folders: BTreeSet<&str> = files.iter().filter_map(|(path, _)| folder(path)).collect();
    let mut found = list.names(&folders, files);
    found.extend(list.circle());
    let tests = test_files(files);
    let mut unused = list.all();
    for (path, text) in files {
        let Some(from) = list.place(path) else { continue };
        for one in uses(path, text, packages) {
            let to = list.place_of(&one);
            if to == from {
                continue;
            }
            if !folders.contains(one.folder.as_str()) {
                // A name at the top of the crate that is no folder: `crate::CONSTANT`.
                continue;
            }
            let in_test = one.in_test || is_below(path, &tests);
            let wrong = list.judge((path, one.line), (&from, &to), in_test, &mut unused);
            // Two names of one folder on one line are one finding.
            found.extend(wrong.filter(|wrong| found.last() != Some(wrong)));
        }
    }
    found.extend(
        unused.into_iter().map(|arrow| {
            format!("{LIST}: nothing uses the arrow `{arrow}`: take it out of the list")
        }),
    );
    found
}

/// The folder, single file or package that a file belongs to; none for `lib.rs` of the root
/// package, which only names them.
fn folder(path: &str) -> Option<&str> {
    let (first, _) = folder_and_rest(path)?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (name != "lib").then_some(name)
}

/// The room of a file in its folder or package: `raft/storage` of `src/raft/src/storage/lock.rs`,
/// `cli/job` of `src/cli/job/run.rs`.
fn room(path: &str) -> Option<String> {
    let (folder, rest) = folder_and_rest(path)?;
    let inside = rest.strip_prefix("src/").unwrap_or(rest);
    let name = inside.split('/').next().filter(|name| !name.is_empty())?;
    Some(format!("{folder}/{}", name.strip_suffix(".rs").unwrap_or(name)))
}

impl List {
    fn parse(text: &str) -> Result<Self, Vec<String>> {
        let mut list = Self::default();
        let mut wrong = Vec::new();
        let mut inside = false;
        let mut blocks = 0_usize;
        for (number, line) in text.lines().enumerate() {
            if !inside {
                inside = line.trim() == FENCE;
                blocks += usize::from(inside);
                continue;
            }
            if line.trim() == "```" {
                inside = false;
                continue;
            }
            if line.trim().is_empty() || line.trim().starts_with('#') {
                continue;
            }
            if let Err(why) = list.take(line) {
                wrong.push(format!("{LIST}:{}: {why}", number + 1));
            }
        }
        if blocks != 1 {
            wrong.push(format!(
                "{LIST}: {blocks} blocks that begin with {FENCE}, there must be one"
            ));
        }
        if wrong.is_empty() { Ok(list) } else { Err(wrong) }
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        let (from, to) = line
            .split_once("->")
            .ok_or_else(|| format!("`{}` is not `folder -> folder …`", line.trim()))?;
        let from = from.trim();
        let (name, arrows) = match from.strip_suffix("(tests)") {
            Some(name) => (name.trim(), &mut self.of_tests),
            None => (from, &mut self.arrows),
        };
        let to: BTreeSet<String> = to.split_whitespace().map(str::to_owned).collect();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(format!("`{from}` is no folder"));
        }
        if arrows.insert(name.to_owned(), to).is_some() {
            return Err(format!("`{from}` has two lines"));
        }
        Ok(())
    }

    /// The folder of a file, or its room where that has a line.
    fn place(&self, path: &str) -> Option<String> {
        let room = room(path).filter(|room| self.arrows.contains_key(room));
        room.or_else(|| folder(path).map(str::to_owned))
    }

    /// What is used: a room where that has a line, or the folder.
    fn place_of(&self, one: &Use) -> String {
        let room = one.room.as_ref().map(|room| format!("{}/{room}", one.folder));
        let room = room.filter(|room| self.arrows.contains_key(room));
        room.unwrap_or_else(|| one.folder.clone())
    }

    /// Folders without a line, and names in the list that are neither folder nor room.
    fn names(&self, folders: &BTreeSet<&str>, files: &[(&str, &str)]) -> Vec<String> {
        let rooms: BTreeSet<String> = files.iter().filter_map(|(path, _)| room(path)).collect();
        let missing = folders.iter().filter(|folder| !self.arrows.contains_key(**folder));
        let missing =
            missing.map(|folder| format!("{} has no line in {LIST}", place_of_folder(folder)));
        let sides = self.arrows.iter().chain(&self.of_tests);
        let named: BTreeSet<&str> =
            sides.flat_map(|(from, to)| to.iter().chain([from])).map(String::as_str).collect();
        let is_known = |name: &&str| folders.contains(name) || rooms.contains(*name);
        let unknown = named.into_iter().filter(|name| !is_known(name));
        let unknown = unknown.map(|name| format!("{LIST}: `{name}` is no folder that is checked"));
        missing.chain(unknown).collect()
    }

    /// Every arrow by its name.
    fn all(&self) -> BTreeSet<String> {
        let flat = |arrows: &Arrows, in_test| -> Vec<String> {
            let pairs = arrows.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
            pairs.map(|(from, to)| arrow(from, to, in_test)).collect()
        };
        flat(&self.arrows, false).into_iter().chain(flat(&self.of_tests, true)).collect()
    }

    fn allows(arrows: &Arrows, from: &str, to: &str) -> bool {
        arrows.get(from).is_some_and(|all| all.contains(to))
    }

    /// What is wrong with one use. An allowed use takes its arrow out of `unused`.
    fn judge(
        &self,
        (path, line): (&str, usize),
        (from, to): (&str, &str),
        in_test: bool,
        unused: &mut BTreeSet<String>,
    ) -> Option<String> {
        if in_test && Self::allows(&self.of_tests, from, to) {
            unused.remove(&arrow(from, to, true));
            return None;
        }
        if Self::allows(&self.arrows, from, to) {
            if !in_test {
                unused.remove(&arrow(from, to, false));
            }
            return None;
        }
        let name = arrow(from, to, in_test);
        Some(format!("{path}:{line}: the arrow `{name}` is not in {LIST}"))
    }

    /// A circle, if there is one.
    fn circle(&self) -> Option<String> {
        let mut done = BTreeSet::new();
        self.arrows.keys().find_map(|from| self.circle_from(from, &mut Vec::new(), &mut done))
    }

    fn circle_from<'a>(
        &'a self,
        from: &'a str,
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Option<String> {
        if let Some(begin) = path.iter().position(|name| *name == from) {
            let circle: Vec<&str> = path[begin..].iter().copied().chain([from]).collect();
            return Some(format!("{LIST}: the arrows make a circle: {}", circle.join(" -> ")));
        }
        if !done.insert(from) {
            return None;
        }
        path.push(from);
        let next = self.arrows.get(from).into_iter().flatten();
        let found = next.into_iter().find_map(|to| self.circle_from(to, path, done));
        path.pop();
        found
    }
}

fn arrow(from: &str, to: &str, in_test: bool) -> String {
    if in_test { format!("{from} (tests) -> {to}") } else { format!("{from} -> {to}") }
}

/// Files and folders that are compiled for tests only, as paths without `.rs`.
fn test_files(files: &[(&str, &str)]) -> BTreeSet<String> {
    let modules = files.iter().flat_map(|(path, text)| {
        let inside = code::children(path);
        code::test_modules(text).into_iter().map(move |name| format!("{inside}/{name}"))
    });
    modules.collect()
}

fn is_below(path: &str, tests: &BTreeSet<String>) -> bool {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    tests.iter().any(|test| path.strip_prefix(test.as_str()).is_some_and(is_boundary))
}

fn is_boundary(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

#[cfg(test)]
mod tests;
