//! Things with a name, a description and metadata: namespaces and node pools are listed, shown,
//! made, changed and deleted alike.

use std::collections::BTreeMap;
use std::io::Read;

use anyhow::{Context as _, bail};
use clap::Args;
use http_api::percent::encode;
use jobspec::{self, Named};
use serde_json::{Map, Value, json};

use super::client;
use super::context::{Context, Exit, Outcome};
use super::output::{Style, fields, pairs};
use super::view::{Fields, rows};

/// Fields that a change keeps unless its flags say otherwise.
const KEPT: [&str; 3] = ["Description", "Meta", "NodeIdentityTTL"];

/// A kind of such things.
#[derive(Debug)]
pub(super) struct Kind {
    /// As in messages: `node pool`.
    pub(super) noun: &'static str,
    /// At the beginning of a message.
    pub(super) title: &'static str,
    /// Where all are listed, and where one is written.
    pub(super) list: &'static str,
    /// Where one is, less its name.
    pub(super) item: &'static str,
    /// What its files are of.
    pub(super) file: Named,
}

/// Which rows of a list are wanted.
#[derive(Debug, Args, Default)]
pub(crate) struct PageArgs {
    /// Expression that rows must match
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Rows per page
    #[arg(long, value_name = "N")]
    per_page: Option<u32>,
    /// The page that follows the one which printed this token
    #[arg(long, value_name = "TOKEN")]
    page_token: Option<String>,
}

impl PageArgs {
    /// Reads the page; what is behind it is told on standard error.
    pub(super) fn read(
        &self,
        context: &Context,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<Value> {
        let per_page = self.per_page.map(|number| number.to_string());
        let mut query = query.to_vec();
        let asked =
            [("filter", &self.filter), ("per_page", &per_page), ("next_token", &self.page_token)];
        query.extend(asked.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))));
        let (answer, next) = context.client.get_page(path, &query)?;
        if let Some(token) = next {
            let advice = format!("There are more: repeat the command with -page-token={token}");
            context.output.advice(advice);
        }
        Ok(answer)
    }
}

/// Flags of a command that lists.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(super) page: PageArgs,
    #[command(flatten)]
    pub(super) style: Style,
}

/// Flags of a command that lists what is in one.
#[derive(Debug, Args)]
pub(crate) struct MembersArgs {
    /// Its name
    pub(super) name: String,
    #[command(flatten)]
    pub(super) page: PageArgs,
    #[command(flatten)]
    pub(super) style: Style,
}

/// Flags of a command about one.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// Its name
    pub(super) name: String,
    #[command(flatten)]
    pub(super) style: Style,
}

/// Flags of `apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Its name, or a file that says all of it; - reads standard input
    #[arg(value_name = "NAME|FILE")]
    name: String,
    /// The file is JSON, whatever its name
    #[arg(long)]
    json: bool,
    /// What it is for; without: as it is
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Its metadata, in the place of all that it has; without: as it is
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,
}

impl Kind {
    /// The path of one.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{}", self.item, encode(name))
    }

    pub(super) fn list(&self, context: &Context, arguments: &ListArgs) -> Outcome {
        let columns = [("Name", "Name"), ("Description", "Description")];
        let answer = arguments.page.read(context, self.list, &[])?;
        print_rows(context, &answer, &columns, arguments.style)
    }

    pub(super) fn show(&self, context: &Context, name: &str, as_json: bool) -> Outcome {
        let answer = context.client.get(&self.path(name), &[]);
        let found = client::or_missing(answer, self.noun, name)?;
        if as_json {
            context.output.json(&found)?;
            return Ok(Exit::Success);
        }
        let meta: Vec<String> = found
            .entries("Meta")
            .into_iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect();
        let shown = [
            ("Name", found.shown("Name")),
            ("Description", found.shown("Description")),
            ("Meta", meta.join(",")),
        ];
        context.line(pairs(&shown))?;
        Ok(Exit::Success)
    }

    /// Makes one, or changes what the flags say of it.
    pub(super) fn apply(&self, context: &Context, arguments: &ApplyArgs) -> Outcome {
        let ApplyArgs { name, json, description, meta } = arguments;
        if name == "-" || *json || std::path::Path::new(name).is_file() {
            return self.apply_file(context, arguments);
        }
        let meta = meta_of(meta)?;
        let old = match context.client.get(&self.path(name), &[]) {
            Err(error) if error.is_not_found() => Value::Null,
            other => other?,
        };
        let mut body: Map<String, Value> = KEPT
            .iter()
            .filter_map(|field| Some(((*field).to_owned(), old.present(field)?.clone())))
            .collect();
        body.insert("Name".to_owned(), name.as_str().into());
        let description = description.as_deref().map(Value::from);
        let changes = [("Description", description), ("Meta", meta)].into_iter();
        body.extend(changes.filter_map(|(field, value)| Some((field.to_owned(), value?))));
        context.client.put(self.list, &[], &body.into())?;
        context.line(format!("{} \"{name}\" is applied", self.title))?;
        Ok(Exit::Success)
    }

    /// Makes what a file says.
    fn apply_file(&self, context: &Context, arguments: &ApplyArgs) -> Outcome {
        let ApplyArgs { name: file, json, description, meta } = arguments;
        if description.is_some() || !meta.is_empty() {
            bail!("-description and -meta go with a name: write them into the file");
        }
        let source = read_file(file)?;
        let path = if *json { format!("{file}.json") } else { file.clone() };
        let body = jobspec::parse_named(self.file, &path, &source)
            .map_err(|diagnostics| anyhow::anyhow!("the file cannot be used\n{diagnostics}"))?;
        context.client.put(self.list, &[], &body)?;
        let name = body.present("Name").or_else(|| body.present("name"));
        let name = name.and_then(Value::as_str).unwrap_or_default();
        context.line(format!("{} \"{name}\" is applied", self.title))?;
        Ok(Exit::Success)
    }

    pub(super) fn delete(&self, context: &Context, name: &str) -> Outcome {
        let answer = context.client.delete(&self.path(name), &[]);
        client::or_missing(answer, self.noun, name)?;
        context.line(format!("{} \"{name}\" is deleted", self.title))?;
        Ok(Exit::Success)
    }
}

fn read_file(file: &str) -> anyhow::Result<String> {
    let bytes_max = u64::try_from(jobspec::SOURCE_BYTES_MAX).unwrap_or(u64::MAX);
    let reader: Box<dyn Read> = if file == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(file).with_context(|| format!("cannot open {file}"))?)
    };
    let mut source = String::new();
    let read = reader.take(bytes_max + 1).read_to_string(&mut source);
    let bytes = read.with_context(|| format!("cannot read {file}"))?;
    if bytes > jobspec::SOURCE_BYTES_MAX {
        bail!("{file} is larger than {bytes_max} bytes");
    }
    Ok(source)
}

/// The metadata that flags give; nothing without any.
pub(super) fn meta_of(flags: &[String]) -> anyhow::Result<Option<Value>> {
    if flags.is_empty() {
        return Ok(None);
    }
    let mut meta = BTreeMap::new();
    for typed in flags {
        match typed.split_once('=') {
            Some((key, value)) => drop(meta.insert(key, value)),
            None => bail!("\"{typed}\" is no KEY=VALUE"),
        }
    }
    Ok(Some(json!(meta)))
}

/// Prints a list by (heading, field); ids are short unless `-verbose`.
pub(super) fn print_rows(
    context: &Context,
    answer: &Value,
    columns: &[(&str, &str)],
    style: Style,
) -> Outcome {
    if style.json {
        context.output.json(answer)?;
    } else {
        context.line(fields(rows(answer), columns, style))?;
    }
    Ok(Exit::Success)
}
