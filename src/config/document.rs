//! A flat view of one configuration: dotted key → value and origin, checked against a schema. A
//! list of tables (`[[provider]]`) is a view of its own for each table.
//!
//! Owns the layering (a later layer replaces a value of an earlier one), the detection of unknown
//! keys with a suggestion, and types. Must never interpret a value: what a value means is the
//! business of the typed configurations.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::{ENVIRONMENT_PREFIX, Flag, Sources};

/// What a key may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A whole number that is not negative.
    Number,
    /// A number from 0 to 1.
    Fraction,
    /// `true` or `false`.
    Flag,
    /// A list of texts.
    List,
    /// A table of texts with free keys.
    Map,
    /// Tables with these keys, `[[key]]`; only in a file. Their dotted keys begin with that of the
    /// list.
    Tables(Schema),
}

impl Kind {
    fn allowed(self) -> &'static str {
        match self {
            Self::Text => "a text in quotes",
            Self::Number => "a whole number, 0 or more",
            Self::Fraction => "a number from 0 to 1",
            Self::Flag => "true or false",
            Self::List => "a list of texts, for example [\"127.0.0.1:4647\"]",
            Self::Map => "a table of texts",
            Self::Tables(_) => {
                "a list of tables, in the file, each under its name in double brackets"
            }
        }
    }

    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_str(),
            Self::Number => value.as_integer().is_some_and(|number| number >= 0),
            Self::Fraction => {
                fraction(value).is_some_and(|fraction| (0.0..=1.0).contains(&fraction))
            }
            Self::Flag => value.is_bool(),
            Self::List => value.as_array().is_some_and(|items| items.iter().all(Value::is_str)),
            Self::Map => value.as_table().is_some_and(|items| items.values().all(Value::is_str)),
            Self::Tables(_) => {
                value.as_array().is_some_and(|items| items.iter().all(Value::is_table))
            }
        }
    }

    /// Reads a value typed in a variable or flag.
    fn parse(self, text: &str) -> Option<Value> {
        match self {
            Self::Text => Some(Value::String(text.to_owned())),
            Self::Number => {
                text.trim().replace('_', "").parse().ok().filter(|n| *n >= 0).map(Value::Integer)
            }
            Self::Fraction => text.trim().parse().ok().map(Value::Float),
            Self::Flag => text.trim().parse().ok().map(Value::Boolean),
            Self::List if text.trim_start().starts_with('[') => parse_toml_value(text),
            Self::List => Some(Value::Array(
                text.split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(|item| Value::String(item.to_owned()))
                    .collect(),
            )),
            Self::Map if text.trim_start().starts_with('{') => parse_toml_value(text),
            Self::Map => text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| {
                    let (key, value) = item.split_once('=')?;
                    Some((key.trim().to_owned(), Value::String(value.trim().to_owned())))
                })
                .collect::<Option<Table>>()
                .map(Value::Table),
            Self::Tables(_) => None,
        }
    }
}

/// A number that may be written as a whole one.
fn fraction(value: &Value) -> Option<f64> {
    let whole = |number: i64| i32::try_from(number).ok().map(f64::from);
    value.as_float().or_else(|| value.as_integer().and_then(whole))
}

fn parse_toml_value(text: &str) -> Option<Value> {
    format!("value = {text}").parse::<Table>().ok()?.remove("value")
}

/// The dotted keys a configuration may have.
pub type Schema = &'static [(&'static str, Kind)];

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of the configuration file.
    File {
        /// The file as named.
        path: String,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
    /// Nowhere: the key was not set.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(formatter, "{path}:{line}"),
            Self::Variable(name) => write!(formatter, "variable {name}"),
            Self::Flag(name) => write!(formatter, "flag {name}"),
            Self::Default => formatter.write_str("configuration"),
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file as named.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {message}")]
    Syntax {
        /// File and line.
        origin: Origin,
        /// What the parser expected.
        message: String,
    },
    /// A key that does not exist.
    #[error("{origin}: unknown key {key}{}", suggestion.as_ref().map_or(String::new(), |known| format!("; did you mean {known}?")))]
    UnknownKey {
        /// Where it was set.
        origin: Origin,
        /// The dotted key.
        key: String,
        /// The nearest known key, if one is near.
        suggestion: Option<String>,
    },
    /// A key without which the process cannot start.
    #[error(
        "{key} is not set; set it to {allowed} (in the file, as {}, or by a flag)",
        variable_of(key)
    )]
    Missing {
        /// The dotted key.
        key: String,
        /// What it may hold.
        allowed: String,
    },
    /// A value that is not allowed.
    #[error("{origin}: {key} is {value}; allowed: {allowed}")]
    Invalid {
        /// Where it was set.
        origin: Origin,
        /// The dotted key.
        key: String,
        /// The value as written.
        value: String,
        /// What is allowed.
        allowed: String,
    },
}

fn variable_of(key: &str) -> String {
    format!("{ENVIRONMENT_PREFIX}{}", key.to_uppercase().replace('.', "__"))
}

/// All values of one configuration, each with its origin.
#[derive(Debug, Clone)]
pub struct Document {
    schema: Schema,
    /// Invariant: every key is in `schema` and its value has the kind written there.
    values: BTreeMap<&'static str, (Value, Origin)>,
    /// Of keys whose kind is [`Kind::Tables`], in the order of the file.
    tables: BTreeMap<&'static str, Vec<Document>>,
    /// Of a table in a list: where it begins.
    table_origin: Option<Origin>,
}

impl Document {
    /// Reads all layers.
    pub fn load(schema: Schema, sources: &Sources) -> Result<Self, ConfigError> {
        let mut document = Self::empty(schema, None);
        if let Some(path) = &sources.file {
            let source = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            document.add_file(path, &source)?;
        }
        for (name, value) in &sources.environment {
            document.add_variable(name, value)?;
        }
        for flag in &sources.flags {
            document.add_flag(flag)?;
        }
        Ok(document)
    }

    fn empty(schema: Schema, table_origin: Option<Origin>) -> Self {
        Self { schema, values: BTreeMap::new(), tables: BTreeMap::new(), table_origin }
    }

    /// Adds the text of a TOML file; `path` is for messages.
    pub fn add_file(&mut self, path: &Path, source: &str) -> Result<(), ConfigError> {
        let syntax = |error: &toml::de::Error| ConfigError::Syntax {
            origin: origin_at(path, source, error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        };
        let spans = DeTable::parse(source).map_err(|error| syntax(&error))?;
        let table: Table = source.parse().map_err(|error| syntax(&error))?;
        let file = FileText { path, source };
        self.add_table(&file, "", spans.get_ref(), &table)
    }

    fn add_table(
        &mut self,
        file: &FileText<'_>,
        prefix: &str,
        spans: &DeTable<'_>,
        table: &Table,
    ) -> Result<(), ConfigError> {
        for (key_span, value_span) in spans {
            let segment: &str = key_span.get_ref();
            let key = join(prefix, segment);
            let origin = file.origin(key_span);
            let Some(value) = table.get(segment) else { continue };
            if let Some((known, kind)) = find(self.schema, &key) {
                self.insert(known, kind, value.clone(), origin)?;
                if let Kind::Tables(schema) = kind {
                    let tables = tables_of(file, (known, schema), value_span.get_ref(), value)?;
                    self.tables.insert(known, tables);
                }
            } else if let Some(inner) = value_span.get_ref().as_table()
                && let Some(inner_table) = value.as_table()
                && is_section(self.schema, &key)
            {
                self.add_table(file, &key, inner, inner_table)?;
            } else if is_section(self.schema, &key) {
                return Err(ConfigError::Invalid {
                    origin,
                    value: value.to_string(),
                    allowed: format!("a table: [{key}]"),
                    key,
                });
            } else {
                return Err(unknown(self.schema, key, origin));
            }
        }
        Ok(())
    }

    fn add_variable(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let Some(rest) = name.strip_prefix(ENVIRONMENT_PREFIX) else { return Ok(()) };
        let key = rest.to_lowercase().replace("__", ".");
        self.add_text(&key, text, Origin::Variable(name.to_owned()))
    }

    fn add_flag(&mut self, flag: &Flag) -> Result<(), ConfigError> {
        self.add_text(flag.key, &flag.value, Origin::Flag(flag.name))
    }

    fn add_text(&mut self, key: &str, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let Some((known, kind)) = find(self.schema, key) else {
            return Err(unknown(self.schema, key.to_owned(), origin));
        };
        match kind.parse(text) {
            Some(value) => self.insert(known, kind, value, origin),
            None => Err(ConfigError::Invalid {
                origin,
                key: key.to_owned(),
                value: format!("{text:?}"),
                allowed: kind.allowed().to_owned(),
            }),
        }
    }

    fn insert(
        &mut self,
        key: &'static str,
        kind: Kind,
        value: Value,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        if !kind.accepts(&value) {
            return Err(ConfigError::Invalid {
                origin,
                key: key.to_owned(),
                value: value.to_string(),
                allowed: kind.allowed().to_owned(),
            });
        }
        self.values.insert(key, (value, origin));
        Ok(())
    }

    fn value(&self, key: &str) -> Option<&Value> {
        debug_assert!(find(self.schema, key).is_some(), "key {key} is not in the schema");
        self.values.get(key).map(|(value, _)| value)
    }

    /// A text, if set.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.value(key).and_then(Value::as_str)
    }

    /// A number, if set.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.value(key).and_then(Value::as_integer).and_then(|number| u64::try_from(number).ok())
    }

    /// A number within bounds, or the default.
    pub fn number_within(
        &self,
        key: &str,
        default: u64,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, ConfigError> {
        let number = self.number(key).unwrap_or(default);
        if bounds.contains(&number) {
            return Ok(number);
        }
        Err(self.invalid(key, &format!("{} to {}", bounds.start(), bounds.end())))
    }

    /// A fraction in thousandths, rounded to the nearest, or the default.
    pub fn thousandths(&self, key: &str, default: u32) -> u32 {
        // Invariant of the document: 0 to 1.
        let thousandths =
            |fraction: f64| (0..=1_000).find(|n| f64::from(*n) + 0.5 > fraction * 1_000.0);
        self.value(key).and_then(fraction).and_then(thousandths).unwrap_or(default)
    }

    /// A flag, if set.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.value(key).and_then(Value::as_bool)
    }

    /// The texts of a list; empty if not set.
    pub fn list(&self, key: &str) -> Vec<&str> {
        self.value(key)
            .and_then(Value::as_array)
            .map(|items| items.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default()
    }

    /// The pairs of a table of texts, sorted; empty if not set.
    pub fn map(&self, key: &str) -> Vec<(String, String)> {
        self.value(key)
            .and_then(Value::as_table)
            .map(|items| {
                items
                    .iter()
                    .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                    .collect()
            })
            .unwrap_or_default()
    }

    /// The tables of a list of tables, in the order of the file; empty if not set.
    pub fn tables(&self, key: &str) -> &[Self] {
        debug_assert!(find(self.schema, key).is_some(), "key {key} is not in the schema");
        self.tables.get(key).map_or(&[], Vec::as_slice)
    }

    /// One of a few words; the first is the default.
    pub fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let wanted = self.text(key).unwrap_or(choices[0].0);
        choices.iter().find(|(word, _)| *word == wanted).map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.invalid(key, &words.join(", "))
        })
    }

    /// Where a key was set.
    pub fn origin(&self, key: &str) -> Origin {
        let whole = || self.table_origin.clone().unwrap_or(Origin::Default);
        self.values.get(key).map_or_else(whole, |(_, origin)| origin.clone())
    }

    /// The error for a value that is not allowed.
    pub fn invalid(&self, key: &str, allowed: &str) -> ConfigError {
        let value = self.value(key).map_or_else(|| "not set".to_owned(), Value::to_string);
        ConfigError::Invalid {
            origin: self.origin(key),
            key: key.to_owned(),
            value,
            allowed: allowed.to_owned(),
        }
    }

    /// The error for one element of a list or table, or for a derived value.
    pub fn invalid_value(&self, key: &str, value: impl fmt::Display, allowed: &str) -> ConfigError {
        ConfigError::Invalid {
            origin: self.origin(key),
            key: key.to_owned(),
            value: format!("\"{value}\""),
            allowed: allowed.to_owned(),
        }
    }

    /// The error for a key that must be set.
    pub fn missing(&self, key: &str, allowed: &str) -> ConfigError {
        debug_assert!(find(self.schema, key).is_some(), "key {key} is not in the schema");
        // No variable or flag sets a key of a table in a list.
        if self.table_origin.is_some() {
            return self.invalid(key, allowed);
        }
        ConfigError::Missing { key: key.to_owned(), allowed: allowed.to_owned() }
    }
}

/// Each table of the list `key` as a document of its own.
fn tables_of(
    file: &FileText<'_>,
    (key, schema): (&'static str, Schema),
    spans: &DeValue<'_>,
    value: &Value,
) -> Result<Vec<Document>, ConfigError> {
    let mut tables = Vec::new();
    let values = value.as_array().into_iter().flatten();
    for (span, value) in spans.as_array().into_iter().flatten().zip(values) {
        let mut table = Document::empty(schema, Some(file.origin(span)));
        if let (Some(inner), Some(value)) = (span.get_ref().as_table(), value.as_table()) {
            table.add_table(file, key, inner, value)?;
        }
        tables.push(table);
    }
    Ok(tables)
}

struct FileText<'a> {
    path: &'a Path,
    source: &'a str,
}

impl FileText<'_> {
    fn origin<T>(&self, spanned: &Spanned<T>) -> Origin {
        origin_at(self.path, self.source, spanned.span().start)
    }
}

fn origin_at(path: &Path, source: &str, offset: usize) -> Origin {
    let before = source.as_bytes().iter().take(offset);
    let line = 1 + before.filter(|byte| **byte == b'\n').count();
    Origin::File { path: path.display().to_string(), line }
}

fn join(prefix: &str, segment: &str) -> String {
    if prefix.is_empty() { segment.to_owned() } else { format!("{prefix}.{segment}") }
}

fn find(schema: Schema, key: &str) -> Option<(&'static str, Kind)> {
    schema.iter().find(|(known, _)| *known == key).copied()
}

fn is_section(schema: Schema, key: &str) -> bool {
    schema
        .iter()
        .any(|(known, _)| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
}

fn unknown(schema: Schema, key: String, origin: Origin) -> ConfigError {
    let suggestion = nearest(schema, &key);
    ConfigError::UnknownKey { origin, key, suggestion }
}

/// The known key or section nearest to `key`: in the same section first, then the same last word
/// elsewhere.
fn nearest(schema: Schema, key: &str) -> Option<String> {
    let depth = key.split('.').count();
    let distance_max = (key.len() / 3).clamp(1, 6);
    let at_depth = |known: &str| known.split('.').take(depth).collect::<Vec<_>>().join(".");
    let near = schema
        .iter()
        .map(|(known, _)| at_depth(known))
        .map(|known| (edit_distance(&known, key), known))
        .filter(|(distance, _)| *distance <= distance_max)
        .min();
    let word = key.rsplit('.').next().unwrap_or(key);
    let elsewhere = || {
        let same_word = |known: &&str| known.rsplit('.').next() == Some(word);
        schema.iter().map(|(known, _)| *known).find(same_word).map(str::to_owned)
    };
    elsewhere().or(near.map(|(_, known)| known))
}

/// Levenshtein distance by bytes.
fn edit_distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, left_byte) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right_byte) in right.bytes().enumerate() {
            let replaced = diagonal + usize::from(left_byte != right_byte);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}
