//! `[[provider]]`: where machines of instance pools come from.
//!
//! Only a server's file names providers: an `exec` provider is a program that the server runs, so
//! the API must not be a way to set one.

use std::collections::BTreeSet;
use std::path::PathBuf;

use server::provider::ProviderKind;

use super::{ConfigError, Document, Kind, Schema, name};

/// All keys of one table.
pub(super) const SCHEMA: Schema = &[
    ("provider.name", Kind::Text),
    ("provider.kind", Kind::Text),
    ("provider.directory", Kind::Text),
    ("provider.binary", Kind::Text),
    ("provider.command", Kind::List),
    ("provider.creates_max", Kind::Number),
];

/// Providers of one server.
const PROVIDERS_MAX: usize = 16;

/// One provider of machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderConfig {
    /// What pools call it. Invariant: unique in the file.
    pub name: String,
    /// What it is.
    pub kind: ProviderKind,
    /// Creates that it is asked for at a time.
    pub creates_max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Process,
    Exec,
}

impl ProviderConfig {
    /// All tables `[[provider]]`.
    pub(super) fn all(document: &Document) -> Result<Vec<Self>, ConfigError> {
        let tables = document.tables("provider");
        if tables.len() > PROVIDERS_MAX {
            let allowed = format!("at most {PROVIDERS_MAX} tables");
            return Err(document.invalid_value("provider", tables.len(), &allowed));
        }
        let mut names = BTreeSet::new();
        let mut found = Vec::new();
        for table in tables {
            let provider = Self::from_table(table)?;
            if !names.insert(provider.name.clone()) {
                return Err(table.invalid("provider.name", "each name at most once"));
            }
            found.push(provider);
        }
        Ok(found)
    }

    fn from_table(table: &Document) -> Result<Self, ConfigError> {
        let name = name(table, "provider.name", None)?;
        if table.text("provider.kind").is_none() {
            return Err(table.missing("provider.kind", "process, exec"));
        }
        let words = [("process", Word::Process), ("exec", Word::Exec)];
        let word = table.choice("provider.kind", &words)?;
        let of_kinds = [
            ("provider.directory", Word::Process, table.text("provider.directory").is_some()),
            ("provider.binary", Word::Process, table.text("provider.binary").is_some()),
            ("provider.command", Word::Exec, !table.list("provider.command").is_empty()),
        ];
        let is_foreign = |(_, of, set): &&(&'static str, Word, bool)| *set && *of != word;
        if let Some((key, ..)) = of_kinds.iter().find(is_foreign) {
            let kind = table.text("provider.kind").unwrap_or_default();
            return Err(table.invalid(key, &format!("no such key with provider.kind = \"{kind}\"")));
        }
        let kind = match word {
            Word::Process => process(table)?,
            Word::Exec => exec(table)?,
        };
        Ok(Self { name, kind, creates_max: creates_max(table)? })
    }
}

fn creates_max(table: &Document) -> Result<usize, ConfigError> {
    let most = fsm::limits::PROVIDER_CREATES_MAX;
    let allowed = format!("a number from 1 to {most}");
    let Some(asked) = table.number("provider.creates_max") else {
        return Ok(fsm::limits::PROVIDER_CREATES);
    };
    match usize::try_from(asked) {
        Ok(asked) if (1..=most).contains(&asked) => Ok(asked),
        Ok(_) | Err(_) => Err(table.invalid("provider.creates_max", &allowed)),
    }
}

fn process(table: &Document) -> Result<ProviderKind, ConfigError> {
    const ALLOWED: &str = "the folder of the machines' folders";
    let path = |key, allowed: &str| match table.text(key) {
        Some(text) if text.trim().is_empty() => Err(table.invalid(key, allowed)),
        text => Ok(text.map(PathBuf::from)),
    };
    let directory = path("provider.directory", ALLOWED)?;
    let directory = directory.ok_or_else(|| table.missing("provider.directory", ALLOWED))?;
    let binary = path("provider.binary", "the program quorate")?;
    Ok(ProviderKind::Process { directory, binary })
}

fn exec(table: &Document) -> Result<ProviderKind, ConfigError> {
    const ALLOWED: &str = "a list of a program and its arguments";
    let command: Vec<String> =
        table.list("provider.command").into_iter().map(str::to_owned).collect();
    match command.first().map(|program| program.trim()) {
        None => Err(table.missing("provider.command", ALLOWED)),
        Some("") => Err(table.invalid("provider.command", ALLOWED)),
        Some(_) => Ok(ProviderKind::Exec { command }),
    }
}
