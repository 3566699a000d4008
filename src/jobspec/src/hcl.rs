//! HCL job files by the tables of `schema.rs`. Owns the walk over blocks and the messages for what
//! does not belong where it stands; reports all mistakes of a file at once. Recursion is bounded by
//! the parser (64 levels), so no input overflows the stack.

use std::{collections::BTreeSet, ops::Range};

use hcl::edit::{
    Decorated, Ident, Span,
    expr::Expression,
    structure::{Attribute, Block, Body, Structure},
};
use serde_json::{Map, Value};

use super::{
    coerce::{text_values, typed},
    diagnostic::Sink,
    expression, quotes,
    schema::{self, CONDITION_SHORT_FORMS, Finish, Label, Shape, TASK_SCALING},
    suggest::did_you_mean,
};

/// `=` and `:` signs of a file. The parser compares each key of a map with all before it, which
/// this keeps below a second.
const ASSIGNMENTS_MAX: usize = 20_000;
/// What Nomad allows at the top of a file and this program does not read yet.
const TOP_LEVEL_UNSUPPORTED: [&str; 3] = ["variable", "variables", "locals"];

/// What a file holds, or `None` after messages.
pub(super) fn body(source: &str, sink: &mut Sink<'_>) -> Option<Body> {
    if source.bytes().filter(|byte| matches!(byte, b'=' | b':')).count() > ASSIGNMENTS_MAX {
        let message = format!(
            "the file has more than {ASSIGNMENTS_MAX} `=` and `:` signs: split the job or move large texts out of it"
        );
        sink.error(0..0, message);
        return None;
    }
    match hcl::edit::parser::parse_body(source) {
        Ok(body) => Some(body),
        Err(error) => {
            let at = error.location().offset();
            if let Some((quote, message)) = quotes::unclosed(source) {
                sink.error(quote..quote + 1, message);
                return None;
            }
            let hint =
                if error.message().contains("expected `}`") { " (is a `}` missing?)" } else { "" };
            sink.error(at..at, format!("syntax error: {}{hint}", error.message()));
            None
        }
    }
}

/// The job in a file, or `None` after messages.
pub(super) fn parse(source: &str, sink: &mut Sink<'_>) -> Option<Value> {
    let body = body(source, sink)?;
    let mut jobs = Vec::new();
    for structure in &body {
        match structure {
            Structure::Attribute(attribute) => {
                let name = attribute.key.as_str();
                let message = format!("attribute \"{name}\" outside a block: move it into `job \"…\" {{ }}`");
                sink.error(place(&attribute.key), message);
            }
            Structure::Block(block) => match block.ident.as_str() {
                "job" => jobs.push(block),
                name if TOP_LEVEL_UNSUPPORTED.contains(&name) => sink.error(
                    place(&block.ident),
                    format!("`{name}` blocks are not supported yet: write the values where they are used"),
                ),
                name => {
                    let hint = did_you_mean(name, ["job"]);
                    let hint = hint.unwrap_or_else(|| "a file holds one `job` block".to_owned());
                    sink.error(place(&block.ident), format!("unknown block \"{name}\": {hint}"));
                }
            },
        }
    }
    match jobs.as_slice() {
        [] => {
            sink.error(0..0, "no job found: a file holds one block `job \"name\" { … }`");
            None
        }
        [job] => Some(Value::Object(walk(job, "job", &schema::JOB, sink))),
        [_, second, ..] => {
            let message = "a second `job` block: put each job into a file of its own";
            sink.error(place(&second.ident), message);
            None
        }
    }
}

pub(super) fn place(ident: &Decorated<Ident>) -> Range<usize> {
    ident.span().unwrap_or(0..0)
}

/// A block that is being read.
struct Reading<'b> {
    /// As messages call it: `task "web"`.
    title: String,
    table: &'static schema::Block,
    out: Map<String, Value>,
    /// Name and place of what was read, to find what is given twice.
    seen: Vec<&'b str>,
}

/// How a name was written.
#[derive(Clone, Copy)]
enum Written {
    Block,
    Attribute,
}

/// Reads one block by its table.
pub(super) fn walk(
    block: &Block,
    name: &str,
    table: &'static schema::Block,
    sink: &mut Sink<'_>,
) -> Map<String, Value> {
    let mut out = Map::new();
    let title = read_label(block, name, table, &mut out, sink);
    let mut reading = Reading { title, table, out, seen: Vec::new() };
    for structure in &block.body {
        match structure {
            Structure::Attribute(attribute) => read_attribute(attribute, &mut reading, sink),
            Structure::Block(child) => read_block(child, &mut reading, sink),
        }
    }
    for attribute in table.attributes.iter().filter(|attribute| attribute.required) {
        if !reading.seen.contains(&attribute.name) {
            let message =
                format!("{} needs the attribute \"{}\": add it", reading.title, attribute.name);
            sink.error(place(&block.ident), message);
        }
    }
    finish(reading.out, table.finish, block, sink)
}

fn read_label(
    block: &Block,
    name: &str,
    table: &schema::Block,
    out: &mut Map<String, Value>,
    sink: &mut Sink<'_>,
) -> String {
    match (&table.label, block.labels.as_slice()) {
        (Label::None, []) => name.to_owned(),
        (Label::None, [_, ..]) => {
            sink.error(place(&block.ident), format!("\"{name}\" takes no label: remove it"));
            name.to_owned()
        }
        (Label::Field(field), [label]) => {
            out.insert((*field).to_owned(), Value::String(label.as_str().to_owned()));
            format!("{name} \"{}\"", label.as_str())
        }
        (Label::Field(_), labels) => {
            let count = labels.len();
            sink.error(
                place(&block.ident),
                format!("\"{name}\" takes exactly one label, this one has {count}: write `{name} \"…\" {{`"),
            );
            name.to_owned()
        }
    }
}

fn read_attribute<'b>(attribute: &'b Attribute, reading: &mut Reading<'b>, sink: &mut Sink<'_>) {
    let name = attribute.key.as_str();
    let span = place(&attribute.key);
    if let Some(known) = reading.table.attributes.iter().find(|known| known.name == name) {
        reading.seen.push(name);
        let Some(value) = expression::value(&attribute.value, &span, sink) else { return };
        if value.is_null() {
            return;
        }
        match typed(value, known.kind) {
            Ok(value) => {
                reading.out.insert(known.field.to_owned(), value);
            }
            Err(wanted) => {
                let at = attribute.value.span().unwrap_or(span);
                sink.error(at, format!("\"{name}\" in {}: {wanted}", reading.title));
            }
        }
        return;
    }
    let child = reading.table.blocks.iter().find(|known| known.name == name);
    match child.map(|child| (child, &child.shape)) {
        Some((child, Shape::TextMap | Shape::Free)) => {
            let Expression::Object(_) = &attribute.value else {
                let message =
                    format!("\"{name}\" must be a block or a map: write `{name} {{ … }}`");
                sink.error(attribute.value.span().unwrap_or(span), message);
                return;
            };
            let Some(Value::Object(map)) = expression::value(&attribute.value, &span, sink) else {
                return;
            };
            let map = if matches!(child.shape, Shape::TextMap) {
                text_values(map, &span, sink)
            } else {
                map
            };
            insert_once(child.field, name, Value::Object(map), span, reading, sink);
        }
        Some((_, Shape::One(_) | Shape::Many(_))) => {
            sink.error(span, format!("\"{name}\" is a block: write `{name} {{ … }}` without `=`"));
        }
        None => unknown(name, Written::Attribute, span, reading, sink),
    }
}

fn read_block<'b>(block: &'b Block, reading: &mut Reading<'b>, sink: &mut Sink<'_>) {
    let name = block.ident.as_str();
    let span = place(&block.ident);
    let Some(child) = reading.table.blocks.iter().find(|child| child.name == name) else {
        if reading.table.attributes.iter().any(|attribute| attribute.name == name) {
            sink.error(span, format!("\"{name}\" is an attribute: write `{name} = …`"));
        } else {
            unknown(name, Written::Block, span, reading, sink);
        }
        return;
    };
    let value = match &child.shape {
        Shape::Many(table) => {
            let value = walk(block, name, table, sink);
            let list = reading.out.entry(child.field).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = list {
                list.push(Value::Object(value));
            }
            return;
        }
        Shape::One(table) => Some(walk(block, name, table, sink)),
        Shape::TextMap => {
            no_labels(block, name, sink);
            free_body(&block.body, false, sink).map(|map| text_values(map, &span, sink))
        }
        Shape::Free => {
            no_labels(block, name, sink);
            free_body(&block.body, true, sink)
        }
    };
    if let Some(value) = value {
        insert_once(child.field, name, Value::Object(value), span, reading, sink);
    }
}

fn insert_once<'b>(
    field: &str,
    name: &'b str,
    value: Value,
    span: Range<usize>,
    reading: &mut Reading<'b>,
    sink: &mut Sink<'_>,
) {
    if reading.out.insert(field.to_owned(), value).is_some() {
        let message = format!("{} has more than one \"{name}\": merge them", reading.title);
        sink.error(span, message);
    }
    reading.seen.push(name);
}

fn no_labels(block: &Block, name: &str, sink: &mut Sink<'_>) {
    if !block.labels.is_empty() {
        sink.error(place(&block.ident), format!("\"{name}\" takes no label: remove it"));
    }
}

fn unknown(
    name: &str,
    what: Written,
    span: Range<usize>,
    reading: &Reading<'_>,
    sink: &mut Sink<'_>,
) {
    let title = &reading.title;
    if sink.is_full() {
        sink.omit();
        return;
    }
    if name == "dynamic" {
        let message = "`dynamic` blocks are not supported yet: write each block out";
        sink.error(span, message);
        return;
    }
    if reading.table.unsupported.contains(&name) {
        let message = match what {
            Written::Block if name == "scaling" => format!("{title}: {TASK_SCALING}"),
            Written::Block => format!(
                "{title}: {name} blocks are not supported yet: remove the block or run this job elsewhere"
            ),
            Written::Attribute => format!(
                "{title}: \"{name}\" is not supported yet: remove it or run this job elsewhere"
            ),
        };
        sink.error(span, message);
        return;
    }
    let hint = did_you_mean(name, reading.table.names()).unwrap_or_else(|| {
        let names: Vec<_> = reading.table.names().collect();
        format!("allowed are {}", names.join(", "))
    });
    let what = match what {
        Written::Block => "block",
        Written::Attribute => "attribute",
    };
    sink.error(span, format!("unknown {what} \"{name}\" in {title}: {hint}"));
}

/// A body with free names: attributes as they are, nested blocks as lists of objects, as drivers
/// expect them.
fn free_body(body: &Body, blocks_allowed: bool, sink: &mut Sink<'_>) -> Option<Map<String, Value>> {
    let mut out = Map::new();
    let mut whole = true;
    let attributes: BTreeSet<&str> =
        body.attributes().map(|attribute| attribute.key.as_str()).collect();
    for structure in body {
        match structure {
            Structure::Attribute(attribute) => {
                let span = place(&attribute.key);
                match expression::value(&attribute.value, &span, sink) {
                    Some(value) => drop(out.insert(attribute.key.as_str().to_owned(), value)),
                    None => whole = false,
                }
            }
            Structure::Block(block) if attributes.contains(block.ident.as_str()) => {
                let name = block.ident.as_str();
                let message = format!("\"{name}\" is both an attribute and a block: keep one");
                sink.error(place(&block.ident), message);
                whole = false;
            }
            Structure::Block(block) if blocks_allowed && block.ident.as_str() != "dynamic" => {
                whole &= free_block(block, &mut out, sink);
            }
            Structure::Block(block) => {
                let name = block.ident.as_str();
                let message = if name == "dynamic" {
                    "`dynamic` blocks are not supported yet: write each block out".to_owned()
                } else {
                    format!("block \"{name}\" where only texts are allowed: write `{name} = \"…\"`")
                };
                sink.error(place(&block.ident), message);
                whole = false;
            }
        }
    }
    whole.then_some(out)
}

fn free_block(block: &Block, out: &mut Map<String, Value>, sink: &mut Sink<'_>) -> bool {
    let name = block.ident.as_str();
    let Some(body) = free_body(&block.body, true, sink) else { return false };
    let mut value = Value::Object(body);
    for label in block.labels.iter().rev() {
        let labelled = Map::from_iter([(label.as_str().to_owned(), Value::Array(vec![value]))]);
        value = Value::Object(labelled);
    }
    if let Value::Array(list) = out.entry(name).or_insert_with(|| Value::Array(Vec::new())) {
        list.push(value);
    }
    true
}

fn finish(
    mut out: Map<String, Value>,
    step: Finish,
    block: &Block,
    sink: &mut Sink<'_>,
) -> Map<String, Value> {
    match step {
        Finish::None => {}
        Finish::Condition => finish_condition(&mut out, place(&block.ident), sink),
        Finish::Network => {
            if out.contains_key("MBits") {
                let message = "\"mbits\" has no effect: bandwidth is not scheduled, remove it";
                sink.warning(place(&block.ident), message);
            }
            finish_network(&mut out);
        }
        Finish::Task => finish_task(&mut out),
        Finish::Job => finish_job(&mut out),
    }
    out
}

fn finish_condition(out: &mut Map<String, Value>, span: Range<usize>, sink: &mut Sink<'_>) {
    let mut operands: Vec<(&str, Value)> = Vec::new();
    for name in CONDITION_SHORT_FORMS.into_iter().chain(["distinct_hosts", "distinct_property"]) {
        if let Some(value) = out.remove(&format!("~{name}")) {
            operands.push((name, value));
        }
    }
    let Some((name, value)) = operands.pop() else { return };
    let explicit =
        out.get("Operand").and_then(Value::as_str).is_some_and(|operand| operand != name);
    if !operands.is_empty() || explicit {
        sink.error(
            span,
            format!("\"{name}\" and another operator in one block: write one block each"),
        );
        return;
    }
    out.insert("Operand".to_owned(), name.into());
    match (name, value) {
        ("distinct_hosts", value) => {
            out.insert("RTarget".to_owned(), value.to_string().into());
        }
        ("distinct_property", value) => {
            out.insert("LTarget".to_owned(), value);
        }
        (_, value) => {
            out.insert("RTarget".to_owned(), value);
        }
    }
}

fn finish_network(out: &mut Map<String, Value>) {
    let Some(Value::Array(ports)) = out.remove("~Ports") else { return };
    let (reserved, dynamic): (Vec<_>, Vec<_>) =
        ports.into_iter().partition(|port| port.get("Value").is_some());
    for (field, ports) in [("ReservedPorts", reserved), ("DynamicPorts", dynamic)] {
        if !ports.is_empty() {
            out.insert(field.to_owned(), Value::Array(ports));
        }
    }
}

fn finish_task(out: &mut Map<String, Value>) {
    let Some(Value::Array(identities)) = out.remove("~Identities") else { return };
    let is_own = |identity: &Value| {
        let name = identity.get("Name").and_then(Value::as_str).unwrap_or_default();
        name.is_empty() || name == "default"
    };
    let (own, others): (Vec<_>, Vec<_>) = identities.into_iter().partition(is_own);
    // A second one is refused where names are judged.
    let mut own = own.into_iter();
    if let Some(first) = own.next() {
        out.insert("Identity".to_owned(), first);
    }
    let others: Vec<_> = own.chain(others).collect();
    if !others.is_empty() {
        out.insert("Identities".to_owned(), Value::Array(others));
    }
}

fn finish_job(out: &mut Map<String, Value>) {
    if let Some(Value::Array(tasks)) = out.remove("~Tasks") {
        let groups = out.entry("TaskGroups").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(groups) = groups {
            groups.extend(tasks.into_iter().map(|task| {
                let name = task.get("Name").cloned().unwrap_or(Value::Null);
                serde_json::json!({"Name": name, "Count": 1, "Tasks": [task]})
            }));
        }
    }
    if !out.contains_key("Name")
        && let Some(id) = out.get("ID").cloned()
    {
        out.insert("Name".to_owned(), id);
    }
}
