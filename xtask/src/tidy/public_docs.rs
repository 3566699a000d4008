//! docs/style.md: a public type, trait or function says what it is for. Fields and variants need no
//! words when their name says it all.
//!
//! Reads the text of formatted files: an item is public when its line begins with `pub `, or when
//! it is a function of a public trait. Attributes may stand between the comment and the item.

use super::{Repository, is_test_file};

/// What may stand between `pub` and the word that says what the item is.
const QUALIFIERS: [&str; 4] = ["const ", "async ", "unsafe ", "extern \"C\" "];
/// Items that need a comment.
const ITEMS: [&str; 6] = ["struct ", "enum ", "union ", "trait ", "type ", "fn "];

/// Public items without a comment. Tests and generated code are left out.
pub(super) fn check(repository: &Repository) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in repository.with_ending("rs").filter(|(path, _)| !is_test_file(path)) {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        findings.extend(
            undocumented(text)
                .into_iter()
                .map(|(line, name)| format!("{path}:{line}: `{name}` is public and has no docs")),
        );
    }
    findings
}

/// Line and name of each public item without a comment.
fn undocumented(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut documented = false;
    // In an attribute of several lines.
    let mut inside_attribute = false;
    // The line that closes the public trait around the current line.
    let mut trait_end: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        if trait_end.as_deref() == Some(line) {
            trait_end = None;
        }
        if code.starts_with("///") || code.starts_with("#[doc") {
            documented = true;
            continue;
        }
        if inside_attribute || code.starts_with("#[") {
            inside_attribute = !code.ends_with(']');
            continue;
        }
        let public = code.strip_prefix("pub ").or_else(|| trait_end.as_ref().map(|_| code));
        if let Some(name) = public.and_then(item_name)
            && !documented
        {
            found.push((number + 1, name.to_owned()));
        }
        if code.starts_with("pub trait ") && code.ends_with('{') {
            let indent = &line[..line.len() - code.len()];
            trait_end = Some(format!("{indent}}}"));
        }
        documented = false;
    }
    found
}

fn item_name(code: &str) -> Option<&str> {
    let mut rest = code;
    while let Some(after) = QUALIFIERS.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = after;
    }
    let rest = ITEMS.iter().find_map(|word| rest.strip_prefix(word))?;
    rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::undocumented;

    fn names(text: &str) -> Vec<String> {
        undocumented(text).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn types_traits_and_functions_need_docs() {
        let text = "pub struct A;\npub enum B {}\npub trait C {\n    fn d(&self);\n}\npub const fn e() {}\n";
        assert_eq!(names(text), ["A", "B", "C", "d", "e"]);
    }

    #[test]
    fn fields_variants_and_private_items_do_not() {
        let text = "/// What a job is.\npub struct A {\n    pub name: u8,\n}\nstruct B;\npub(crate) fn c() {}\n\
                    /// A trait.\npub trait D {\n    /// Does it.\n    fn e(&self);\n}\nfn f() {}\n";
        assert_eq!(names(text), Vec::<String>::new());
    }

    #[test]
    fn attributes_may_stand_between() {
        let text = "/// A.\n#[derive(\n    Clone,\n)]\n#[repr(u8)]\npub enum A {}\n#[derive(Clone)]\npub enum B {}\n";
        assert_eq!(names(text), ["B"]);
    }
}
