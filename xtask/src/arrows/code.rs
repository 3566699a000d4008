//! Paths in Rust source: which folders of the crate a file names, in `use` and in expressions.
//!
//! Reads tokens, not a syntax tree: a path begins with `crate`, `self`, `super`, the name of the
//! library or of a package, and may end in groups.

use super::folder_and_rest;

/// A path that leads to a folder.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Use {
    /// The folder, single file or package.
    pub(super) folder: String,
    /// The name below it.
    pub(super) room: Option<String>,
    /// The line on which its name stands.
    pub(super) line: usize,
    /// It stands in code that is compiled for tests only.
    pub(super) in_test: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// A folder that is a package.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Package {
    pub(super) folder: String,
    /// By which others name it in paths.
    pub(super) library: String,
}

impl Package {
    fn contains(&self, path: &str) -> bool {
        folder_and_rest(path).is_some_and(|(folder, _)| folder == self.folder)
    }
}

fn package<'a>(packages: &'a [Package], library: &str) -> Option<&'a Package> {
    packages.iter().find(|package| package.library == library)
}

/// The library's name, by which `main.rs` uses it.
const LIBRARY: &str = "quorate";

/// Every use of a folder in a file, that of its own included.
pub(super) fn uses(path: &str, text: &str, packages: &[Package]) -> Vec<Use> {
    let tokens = tokens(text);
    let tests = test_ranges(&tokens);
    // A module of this file hides a package of its name, and so does one that it brings in.
    let modules = tokens.windows(2).filter(|pair| pair[0].text == "mod");
    let modules = modules.map(|pair| pair[1].text).chain(brought_in(&tokens));
    let modules: Vec<&str> = modules.collect();
    let hidden = |one: &&Package| !modules.contains(&one.library.as_str());
    let packages: Vec<Package> = packages.iter().filter(hidden).cloned().collect();
    let packages = packages.as_slice();
    let outside = module_of(path);
    // Inside a package `crate` is that package.
    let own = packages.iter().find(|one| one.contains(path));
    let mut inline: Vec<(&str, usize)> = Vec::new();
    let mut depth = 0_usize;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inline.retain(|(_, opened)| *opened < depth + 1);
            }
            "mod" if text_at(&tokens, at + 2) == "{" => {
                inline.push((text_at(&tokens, at + 1), depth + 1));
            }
            _ => {}
        }
        if !begins_path(&tokens, at, packages) {
            // What stands in the braces of another crate's path is named from there.
            let is_path = is_word(token.text) && text_at(&tokens, at + 1) == "::";
            at = if is_path { paths_from(&tokens, at).1 } else { at + 1 };
            continue;
        }
        let in_test = tests.iter().any(|range| range.contains(&at));
        let (paths, next) = paths_from(&tokens, at);
        for path in paths {
            let mut module: Vec<&str> = outside.iter().map(String::as_str).collect();
            module.extend(inline.iter().map(|(name, _)| *name));
            if let Some(Named { names, line }) = named(&path, &module, packages) {
                let first = path[0].text;
                let (folder, room) = match (package(packages, first), own) {
                    (Some(other), _) => (other.folder.as_str(), names.get(1)),
                    (None, Some(own)) => (own.folder.as_str(), names.first()),
                    (None, None) => (names[0], names.get(1)),
                };
                let (folder, room) = (folder.to_owned(), room.map(|name| (*name).to_owned()));
                let one = Use { folder, room, line, in_test };
                if !found.contains(&one) {
                    found.push(one);
                }
            }
        }
        at = next;
    }
    found
}

/// The names of modules in files of their own that are compiled for tests only.
pub(super) fn test_modules(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let ranges = test_ranges(&tokens);
    let names = ranges.into_iter().filter_map(|range| {
        let at = range.clone().find(|at| tokens[*at].text == "mod")?;
        (text_at(&tokens, at + 2) == ";").then(|| text_at(&tokens, at + 1).to_owned())
    });
    names.collect()
}

/// The folder in which the modules of a file are.
pub(super) fn children(path: &str) -> &str {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    match path.strip_suffix(".rs") {
        Some(module) if !is_root(path) => module,
        Some(_) | None => folder,
    }
}

fn is_root(path: &str) -> bool {
    ["/mod.rs", "/lib.rs", "/main.rs"].iter().any(|end| path.ends_with(end))
}

/// The module of a file, from the crate's root.
fn module_of(path: &str) -> Vec<String> {
    let inside = path.rsplit_once("src/").map_or(path, |(_, inside)| inside);
    let folder = if is_root(&format!("/{inside}")) {
        inside.rsplit_once('/').map_or("", |(folder, _)| folder)
    } else {
        inside.strip_suffix(".rs").unwrap_or(inside)
    };
    folder.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn text_at<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    tokens.get(at).map_or("", |token| token.text)
}

fn begins_path(tokens: &[Token<'_>], at: usize, packages: &[Package]) -> bool {
    let word = text_at(tokens, at);
    let is_root = matches!(word, "crate" | "self" | "super") || word == LIBRARY;
    let goes_on = text_at(tokens, at + 1) == "::";
    let before = at.checked_sub(1).map_or("", |before| text_at(tokens, before));
    (is_root || package(packages, word).is_some()) && goes_on && !matches!(before, "::" | ".")
}

/// The last names of the crate's own paths behind `use`.
fn brought_in<'a>(tokens: &[Token<'a>]) -> impl Iterator<Item = &'a str> {
    let starts = (1..tokens.len()).filter(|at| text_at(tokens, at - 1) == "use");
    let own = starts.filter(|at| begins_path(tokens, *at, &[]));
    own.flat_map(|at| paths_from(tokens, at).0).filter_map(|path| {
        let (last, before) = path.split_last()?;
        // `control::{self}` brings `control` in.
        let name = if last.text == "self" { before.last()? } else { last };
        Some(name.text)
    })
}

/// All paths of the tree that begins here, and where it ends.
fn paths_from<'a>(tokens: &[Token<'a>], at: usize) -> (Vec<Vec<Token<'a>>>, usize) {
    let mut path = vec![tokens[at]];
    let mut at = at + 1;
    while text_at(tokens, at) == "::" {
        at += 1;
        if text_at(tokens, at) == "{" {
            let (ends, next) = group(tokens, at + 1);
            let join = |end: Vec<Token<'a>>| path.iter().copied().chain(end).collect();
            return (ends.into_iter().map(join).collect(), next);
        }
        let Some(token) = tokens.get(at).filter(|token| is_word(token.text)) else { break };
        path.push(*token);
        at += 1;
    }
    (vec![path], at)
}

/// The paths between the braces of a group, and where it ends.
fn group<'a>(tokens: &[Token<'a>], mut at: usize) -> (Vec<Vec<Token<'a>>>, usize) {
    let mut paths = Vec::new();
    while let Some(token) = tokens.get(at) {
        if token.text == "}" {
            return (paths, at + 1);
        }
        // What stands behind `as` is a new name, no path.
        let is_alias = at > 0 && text_at(tokens, at - 1) == "as";
        if is_word(token.text) && token.text != "as" && !is_alias {
            let (more, next) = paths_from(tokens, at);
            paths.extend(more);
            at = next;
        } else {
            at += 1;
        }
    }
    (paths, at)
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// What a path names, from the top of the crate; never empty.
struct Named<'a> {
    names: Vec<&'a str>,
    /// Of the name that a reader looks for: the first that is written.
    line: usize,
}

/// What a path names: from the top of the crate, or of a package with its name.
fn named<'a>(path: &[Token<'a>], module: &[&'a str], packages: &[Package]) -> Option<Named<'a>> {
    let (first, mut rest) = path.split_first()?;
    if package(packages, first.text).is_some() {
        let names = path.iter().map(|token| token.text).collect();
        return Some(Named { names, line: first.line });
    }
    let mut left = match first.text {
        "self" => module.len(),
        "super" => module.len().checked_sub(1)?,
        // The library, or the crate itself.
        _ => 0,
    };
    while let Some((next, after)) = rest.split_first() {
        if next.text != "super" {
            break;
        }
        left = left.checked_sub(1)?;
        rest = after;
    }
    let written = rest.first()?;
    let names = module[..left].iter().copied().chain(rest.iter().map(|token| token.text));
    Some(Named { names: names.collect(), line: written.line })
}

/// Where code for tests stands: from `#[cfg(test)]` to the end of the item below it.
fn test_ranges(tokens: &[Token<'_>]) -> Vec<std::ops::Range<usize>> {
    const CFG: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let begins = |at: &usize| CFG.iter().enumerate().all(|(n, t)| text_at(tokens, at + n) == *t);
    let starts = (0..tokens.len()).filter(begins);
    starts.map(|at| at..item_end(tokens, at + CFG.len())).collect()
}

/// The end of an item: its `;`, or the end of its first block, beyond its attributes.
fn item_end(tokens: &[Token<'_>], from: usize) -> usize {
    let mut depth = 0_usize;
    for at in from..tokens.len() {
        match text_at(tokens, at) {
            "{" | "(" | "[" => depth += 1,
            closing @ ("}" | ")" | "]") => {
                depth = depth.saturating_sub(1);
                if depth == 0 && closing == "}" {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Words, `::` and single signs of a source text; comments, strings and characters are left out.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = first.is_alphanumeric() || first == '_';
        let length = if let Some(length) = skipped(rest) {
            length
        } else if is_word {
            rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        if skipped(rest).is_none() && !first.is_whitespace() {
            found.push(Token { text: token, line });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    found
}

/// The length of the comment, string or character that a text begins with.
fn skipped(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    let prefix = text.find(|c: char| !matches!(c, 'b' | 'r' | 'c')).filter(|at| *at <= 2)?;
    let body = &text[prefix..];
    if text[..prefix].contains('r') && body.starts_with(['"', '#']) {
        return raw_string(body).map(|length| prefix + length);
    }
    if body.starts_with('"') {
        return Some(prefix + quoted(body));
    }
    character(body).filter(|_| prefix <= 1).map(|length| prefix + length)
}

/// Comments nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.find(|c: char| c != '#')?;
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(text.len(), |at| hashes + 1 + at + end.len()))
}

fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// A character, not a lifetime.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    if let Some(escape) = inside.strip_prefix('\\') {
        let first = escape.chars().next()?.len_utf8();
        return Some(2 + first + escape[first..].find('\'')? + 1);
    }
    let first = inside.chars().next()?.len_utf8();
    inside[first..].starts_with('\'').then_some(1 + first + 1)
}
