//! Pool files: instance pools in HCL, or in the API's JSON.
//!
//! ```text
//!  HCL  ─► tables of schema.rs ─► API JSON ┐                              ┌─► fsm::InstancePool
//!                                          ├─► values.rs (names, ranges) ─┤
//!  JSON ─────────────────────────► API JSON ┘                              └─► errors with JSON paths ─► places in the file
//! ```
//!
//! Never drops what a user wrote: an unknown name is an error with its place and the nearest name.

mod capacity;
mod values;

use std::{collections::BTreeMap, ops::Range};

use fsm::pool::InstancePool;
use hcl::edit::{
    Span,
    structure::{Block, Structure},
};
use serde_json::Value;

use super::{
    Diagnostics, SOURCE_BYTES_MAX,
    diagnostic::Sink,
    hcl::{body, place, walk},
    is_json, json_value,
    schema::{self, Label, Shape},
    suggest::did_you_mean,
};
pub use capacity::capacity_group_json;
pub use values::{instance_pool_json, instance_pool_of, price_json};

/// Where the value of each JSON path stands in the file.
type Places = BTreeMap<String, Range<usize>>;

/// The pool in a file: JSON when `path` ends in `.json` or the first character is `{`, HCL
/// otherwise.
pub fn parse_pool(path: &str, source: &str) -> Result<InstancePool, Diagnostics> {
    let mut sink = Sink::new(path, source);
    let read = if source.len() > SOURCE_BYTES_MAX {
        let bytes = source.len();
        sink.error(
            0..0,
            format!("the file is {bytes} bytes long, at most {SOURCE_BYTES_MAX} are read"),
        );
        None
    } else if is_json(path, source) {
        json_value(source, &mut sink).map(|value| (value, Keys::of(source)))
    } else {
        read_hcl(source, &mut sink)
    };
    let mut pool = None;
    if let Some((value, places)) = read
        && !sink.has_errors()
    {
        match instance_pool_of(&value, "") {
            Ok(read) if read.name.is_empty() => sink.error(0..0, "Name is required"),
            Ok(read) => pool = Some(read),
            Err(errors) => {
                for error in errors {
                    let found = place_of(&places, &error.path);
                    sink.error(found, error.to_string().trim_start_matches(": ").to_owned());
                }
            }
        }
    }
    pool.ok_or_else(|| sink.finish())
}

/// The place of a path, or of the nearest thing around it.
fn place_of(places: &Places, path: &str) -> Range<usize> {
    let mut path = path;
    loop {
        if let Some(place) = places.get(path) {
            return place.clone();
        }
        match path.rfind(['.', '[']) {
            Some(end) => path = path.get(..end).unwrap_or(""),
            None if path.is_empty() => return 0..0,
            None => path = "",
        }
    }
}

fn read_hcl(source: &str, sink: &mut Sink<'_>) -> Option<(Value, Places)> {
    let body = body(source, sink)?;
    let mut pools = Vec::new();
    for structure in &body {
        match structure {
            Structure::Attribute(attribute) => {
                let name = attribute.key.as_str();
                let message = format!(
                    "attribute \"{name}\" outside a block: move it into `pool \"…\" {{ }}`"
                );
                sink.error(place(&attribute.key), message);
            }
            Structure::Block(block) if block.ident.as_str() == "pool" => pools.push(block),
            Structure::Block(block) => {
                let name = block.ident.as_str();
                let hint = did_you_mean(name, ["pool"])
                    .unwrap_or_else(|| "a file holds one `pool` block".to_owned());
                sink.error(place(&block.ident), format!("unknown block \"{name}\": {hint}"));
            }
        }
    }
    match pools.as_slice() {
        [] => {
            sink.error(0..0, "no pool found: a file holds one block `pool \"name\" { … }`");
            None
        }
        [block] => {
            let value = Value::Object(walk(block, "pool", &schema::POOL, sink));
            let mut places = Places::new();
            find_places(block, &schema::POOL, "", &mut places);
            Some((value, places))
        }
        [_, second, ..] => {
            let message = "a second `pool` block: put each pool into a file of its own";
            sink.error(place(&second.ident), message);
            None
        }
    }
}

/// Notes where the values of a block stand.
fn find_places(block: &Block, table: &'static schema::Block, path: &str, out: &mut Places) {
    out.insert(path.to_owned(), place(&block.ident));
    let inner = |field: &str| {
        if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
    };
    if let (Label::Field(field), Some(label)) = (&table.label, block.labels.first()) {
        let span = label.span().unwrap_or_else(|| place(&block.ident));
        out.insert(inner(field), span);
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for structure in &block.body {
        match structure {
            Structure::Attribute(attribute) => {
                let name = attribute.key.as_str();
                let known = table.attributes.iter().find(|known| known.name == name);
                let child = table.blocks.iter().find(|child| child.name == name);
                let field = known.map(|known| known.field).or(child.map(|child| child.field));
                if let Some(field) = field {
                    let span = attribute.value.span().unwrap_or_else(|| place(&attribute.key));
                    out.insert(inner(field), span);
                }
            }
            Structure::Block(child) => {
                let name = child.ident.as_str();
                let Some(known) = table.blocks.iter().find(|known| known.name == name) else {
                    continue;
                };
                match &known.shape {
                    Shape::Many(table) => {
                        let count = counts.entry(known.field).or_default();
                        find_places(
                            child,
                            table,
                            &inner(&format!("{}[{count}]", known.field)),
                            out,
                        );
                        *count += 1;
                    }
                    Shape::One(table) => find_places(child, table, &inner(known.field), out),
                    Shape::TextMap | Shape::Free => {
                        out.insert(inner(known.field), place(&child.ident));
                    }
                }
            }
        }
    }
}

/// Finds the keys of a JSON text that is known to be valid.
struct Keys<'s> {
    source: &'s str,
    at: usize,
    found: Places,
}

impl<'s> Keys<'s> {
    fn of(source: &'s str) -> Places {
        let mut keys = Self { source, at: 0, found: Places::new() };
        keys.value("");
        keys.found
    }

    fn peek(&mut self) -> Option<u8> {
        let rest = self.source.as_bytes().get(self.at..)?;
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.source.as_bytes().get(self.at).copied()
    }

    /// Passes one value.
    fn value(&mut self, path: &str) {
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                while self.peek() == Some(b'"') {
                    let start = self.at;
                    self.text();
                    let span = start..self.at;
                    let name: String =
                        serde_json::from_str(self.source.get(span.clone()).unwrap_or_default())
                            .unwrap_or_default();
                    let inner = if path.is_empty() { name } else { format!("{path}.{name}") };
                    self.found.insert(inner.clone(), span);
                    self.skip(b':');
                    self.value(&inner);
                    self.skip(b',');
                }
                self.skip(b'}');
            }
            Some(b'[') => {
                self.at += 1;
                let mut position = 0;
                while self.peek().is_some_and(|byte| byte != b']') {
                    let before = self.at;
                    let inner = format!("{path}[{position}]");
                    self.found.insert(inner.clone(), before..before + 1);
                    self.value(&inner);
                    self.skip(b',');
                    position += 1;
                }
                self.skip(b']');
            }
            Some(b'"') => self.text(),
            Some(_) => {
                let rest = self.source.as_bytes().get(self.at..).unwrap_or_default();
                let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']');
                let length = rest.iter().position(is_end).unwrap_or(rest.len());
                self.at += length;
            }
            None => {}
        }
    }

    fn skip(&mut self, expected: u8) {
        if self.peek() == Some(expected) {
            self.at += 1;
        }
    }

    /// Passes a text in quotes.
    fn text(&mut self) {
        let rest = self.source.as_bytes().get(self.at + 1..).unwrap_or_default();
        let mut is_escaped = false;
        let end = rest.iter().position(|byte| {
            let is_end = *byte == b'"' && !is_escaped;
            is_escaped = *byte == b'\\' && !is_escaped;
            is_end
        });
        self.at += 2 + end.unwrap_or(rest.len());
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::{fs, path::PathBuf};

    use super::*;

    fn directory() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/pools")
    }

    /// Each file gives what stands beside it: the pool as JSON, or messages; `UPDATE=1` rewrites.
    #[test]
    fn files_give_what_stands_beside_them() {
        let mut names: Vec<String> = fs::read_dir(directory())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".expected"))
            .collect();
        names.sort();
        assert!(names.len() >= 6, "{names:?}");
        let mut wrong = Vec::new();
        for name in names {
            let source = fs::read_to_string(directory().join(&name)).unwrap();
            let found = match parse_pool(&name, &source) {
                Ok(pool) => format!("{:#}\n", Value::Object(instance_pool_json(&pool))),
                Err(diagnostics) => diagnostics.to_string(),
            };
            assert_eq!(name.starts_with("bad_"), !found.starts_with('{'), "{name}:\n{found}");
            let beside = directory().join(format!("{name}.expected"));
            if std::env::var_os("UPDATE").is_some() {
                fs::write(&beside, &found).unwrap();
            } else if fs::read_to_string(&beside).ok().as_ref() != Some(&found) {
                wrong.push(format!("--- {name}\n{found}"));
            }
        }
        assert!(wrong.is_empty(), "run with UPDATE=1 and read the difference: {wrong:?}");
    }

    /// What is shown of a pool reads back as the pool.
    #[test]
    fn the_json_of_a_pool_is_a_pool_file() {
        let source = fs::read_to_string(directory().join("whole.hcl")).unwrap();
        let pool = parse_pool("whole.hcl", &source).unwrap();
        let text = Value::Object(instance_pool_json(&pool)).to_string();
        assert_eq!(parse_pool("pool.json", &text).unwrap(), pool);
        assert_eq!((pool.price_factor_milli, pool.types["small"].price_micro), (1_250, 52_500));
    }

    /// Whatever comes in, the answer is a pool or messages.
    #[test]
    fn damaged_files_do_not_panic() {
        for name in ["whole.hcl", "whole.json"] {
            let source = fs::read_to_string(directory().join(name)).unwrap();
            for end in (0..source.len()).filter(|end| source.is_char_boundary(*end)) {
                drop(parse_pool(name, &source[..end]));
                drop(parse_pool(name, &source[end..]));
            }
        }
    }
}
