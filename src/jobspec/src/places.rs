//! Where in a job file the field is that a message of [`super::to_spec`] is about. Servers judge
//! the JSON of a job, which knows no lines; whoever has the file looks the path up in it again, by
//! the tables that it was read with.
//!
//! A part of a path that is not found leads to the nearest block around it: a message is never
//! lost, and never at a wrong block.

use std::ops::Range;

use hcl::edit::{
    Span,
    expr::{Expression, ObjectKey},
    structure::{Block, Body},
};

use super::{
    Diagnostics, Severity,
    diagnostic::Sink,
    hcl::{body, place},
    is_json, json_places,
    schema::{self, Label, Shape},
};

/// A step of a path such as `Job.TaskGroups[0].Meta["k"]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Name(String),
    Index(usize),
    Key(String),
}

/// Messages of the form `Job.TaskGroups[0].Count: …` at their places in the file, and those that
/// have none as they are.
pub fn placed(
    path: &str,
    source: &str,
    messages: impl IntoIterator<Item = (Severity, String)>,
) -> (Diagnostics, Vec<String>) {
    let is_json = is_json(path, source);
    let file = if is_json { None } else { body(source, &mut Sink::new(path, source)) };
    let job = file.as_ref().and_then(|body| body.get_blocks("job").next());
    let mut sink = Sink::new(path, source);
    let mut others = Vec::new();
    for (severity, line) in messages {
        let found = split(&line).and_then(|(steps, message)| {
            let in_hcl = || job.map(|job| locate(job, &steps));
            let span = if is_json { Some(json_places::locate(source, &steps)) } else { in_hcl() };
            Some((span?, message))
        });
        let Some((span, message)) = found else {
            others.push(line);
            continue;
        };
        match severity {
            Severity::Error => sink.error(span, message),
            Severity::Warning => sink.warning(span, message),
        }
    }
    (sink.finish(), others)
}

/// The steps below `Job` and the message, if the line begins with a path.
fn split(line: &str) -> Option<(Vec<Step>, &str)> {
    let mut rest = line.strip_prefix("Job")?;
    let mut steps = Vec::new();
    loop {
        if let Some(message) = rest.strip_prefix(": ") {
            return Some((steps, message));
        }
        let step;
        (step, rest) = if let Some(name) = rest.strip_prefix('.') {
            let end = name.find(['.', '[', ':'])?;
            (Step::Name(name[..end].to_owned()), &name[end..])
        } else if let Some(quoted) = rest.strip_prefix("[\"") {
            let end = quoted.find("\"]")?;
            (Step::Key(quoted[..end].to_owned()), &quoted[end + 2..])
        } else {
            let (number, behind) = rest.strip_prefix('[')?.split_once(']')?;
            (Step::Index(number.parse().ok()?), behind)
        };
        steps.push(step);
    }
}

/// What a part of a path has led to.
#[derive(Clone, Copy)]
enum Here<'b> {
    Block(&'b Block, &'static schema::Block),
    /// The group of a task that stands outside of one.
    GroupOf(&'b Block, &'static schema::Block),
    /// A block with free names.
    Free(&'b Body),
    Value(&'b Expression),
}

fn locate(job: &Block, steps: &[Step]) -> Range<usize> {
    let mut span = place(&job.ident);
    let mut here = Here::Block(job, &schema::JOB);
    let mut steps = steps;
    while let Some((found, at, behind)) = next(here, steps) {
        span = at.unwrap_or(span);
        (here, steps) = match found {
            Some(found) => (found, behind),
            None => return span,
        };
    }
    span
}

/// What the first of the steps leads to, its place, and the steps behind it.
type Found<'b, 's> = (Option<Here<'b>>, Option<Range<usize>>, &'s [Step]);

fn next<'b, 's>(here: Here<'b>, steps: &'s [Step]) -> Option<Found<'b, 's>> {
    let (first, behind) = steps.split_first()?;
    match (here, first) {
        (Here::Block(block, table), Step::Name(field)) => in_block(block, table, field, behind),
        (Here::GroupOf(task, table), Step::Name(field)) if field == "Tasks" => {
            let behind = behind.split_first().map_or(behind, |(_, behind)| behind);
            Some((Some(Here::Block(task, table)), Some(place(&task.ident)), behind))
        }
        (Here::Free(body), Step::Name(key) | Step::Key(key)) => {
            if let Some(attribute) = body.get_attribute(key) {
                let at = place(&attribute.key);
                return Some((Some(Here::Value(&attribute.value)), Some(at), behind));
            }
            let block = body.blocks().find(|block| block.ident.as_str() == key)?;
            Some((Some(Here::Free(&block.body)), Some(place(&block.ident)), behind))
        }
        (Here::Value(Expression::Array(array)), Step::Index(index)) => {
            let item = array.get(*index)?;
            Some((Some(Here::Value(item)), item.span(), behind))
        }
        (Here::Value(Expression::Object(object)), Step::Name(key) | Step::Key(key)) => {
            let is_it = |name: &ObjectKey| match name {
                ObjectKey::Ident(name) => name.as_str() == key,
                ObjectKey::Expression(Expression::String(name)) => name.value() == key,
                ObjectKey::Expression(_) => false,
            };
            let (_, value) = object.iter().find(|(name, _)| is_it(name))?;
            Some((Some(Here::Value(value.expr())), value.expr().span(), behind))
        }
        (Here::Block(..) | Here::GroupOf(..) | Here::Free(_) | Here::Value(_), _) => None,
    }
}

fn in_block<'b, 's>(
    block: &'b Block,
    table: &'static schema::Block,
    field: &str,
    behind: &'s [Step],
) -> Option<Found<'b, 's>> {
    if matches!(table.label, Label::Field(name) if name == field)
        && let Some(label) = block.labels.first()
    {
        return Some((None, label.span(), behind));
    }
    let mut named = table.attributes.iter().filter(|attribute| attribute.field == field);
    let attribute = named.find_map(|known| block.body.get_attribute(known.name));
    if let Some(attribute) = attribute {
        return Some((Some(Here::Value(&attribute.value)), attribute.value.span(), behind));
    }
    if matches!(field, "RTarget" | "LTarget" | "Operand") {
        // Of a short form (`regexp = "…"`).
        let mut short = table.attributes.iter().filter(|known| known.field.starts_with('~'));
        let attribute = short.find_map(|known| block.body.get_attribute(known.name))?;
        return Some((None, attribute.value.span(), behind));
    }
    child(block, table, field, behind)
}

/// The nested block, or the one of several, that a field came from.
fn child<'b, 's>(
    block: &'b Block,
    table: &'static schema::Block,
    field: &str,
    behind: &'s [Step],
) -> Option<Found<'b, 's>> {
    // As `finish` in `hcl.rs` has renamed it.
    let written = match field {
        "ReservedPorts" | "DynamicPorts" => "~Ports",
        "Identity" | "Identities" => "~Identities",
        other => other,
    };
    let known = table.blocks.iter().find(|known| known.field == written)?;
    let mut blocks = block.body.get_blocks(known.name);
    match &known.shape {
        Shape::One(inner) => {
            let found = blocks.next()?;
            Some((Some(Here::Block(found, inner)), Some(place(&found.ident)), behind))
        }
        Shape::TextMap | Shape::Free => {
            if let Some(found) = blocks.next() {
                return Some((Some(Here::Free(&found.body)), Some(place(&found.ident)), behind));
            }
            let attribute = block.body.get_attribute(known.name)?;
            let at = Some(place(&attribute.key));
            Some((Some(Here::Value(&attribute.value)), at, behind))
        }
        Shape::Many(inner) => {
            let (step, after) = behind.split_first()?;
            let is_of_kind = |found: &&Block| match field {
                "ReservedPorts" => found.body.has_attribute("static"),
                "DynamicPorts" => !found.body.has_attribute("static"),
                _ => true,
            };
            let mut blocks: Vec<&Block> = blocks.filter(is_of_kind).collect();
            let groups = blocks.len();
            let outside = table.blocks.iter().find(|known| known.field == "~Tasks");
            let outside = outside.filter(|_| field == "TaskGroups");
            blocks.extend(outside.into_iter().flat_map(|known| block.body.get_blocks(known.name)));
            let number = match step {
                Step::Index(index) => *index,
                Step::Key(name) | Step::Name(name) => {
                    let is_it = |found: &&Block| {
                        found.labels.first().is_some_and(|label| label.as_str() == name)
                            || found.body.get_attribute("name").is_some_and(
                                |attribute| matches!(&attribute.value, Expression::String(text) if text.value() == name),
                            )
                    };
                    blocks.iter().position(is_it)?
                }
            };
            let found = *blocks.get(number)?;
            let at = Some(place(&found.ident));
            match outside.map(|known| &known.shape) {
                Some(Shape::Many(task)) if number >= groups => {
                    Some((Some(Here::GroupOf(found, task)), at, after))
                }
                _ => Some((Some(Here::Block(found, inner)), at, after)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::{Severity, placed};

    const FILE: &str = r#"job "web" {
  type = "service"
  meta {
    owner = "${x}"
  }
  constraint {
    attribute = "${attr.kernel.name}"
    regexp    = "("
  }
  group "a" {
    count = 1
  }
  group "b" {
    count = -2
    meta  = { "k" = "v" }
    network {
      port "one" {}
      port "two" {
        static = 80
      }
      port "three" {}
    }
    service {
      name    = "first"
      address = "${y}"
    }
    update {
      min_healthy_time = 3
    }
    task "t" {
      driver = "raw_exec"
      config {
        comand = "x"
        args   = ["a", "b"]
        nested {
          x = 1
        }
      }
    }
  }
  task "alone" {
    driver = "mock"
    config {
      run_for = "soon"
    }
  }
}
"#;

    /// The message about `path` is at the line and column where `text` stands in [`FILE`].
    #[track_caller]
    fn check(path: &str, text: &str) {
        let line = format!("{path}: is wrong");
        let (found, others) = placed("web.hcl", FILE, [(Severity::Error, line)]);
        assert!(others.is_empty(), "{others:?}");
        let found = found.iter().next().unwrap();
        assert_eq!(found.message, "is wrong");
        let lines: Vec<&str> = FILE.lines().collect();
        let at: String = lines[found.line - 1].chars().skip(found.column - 1).collect();
        assert!(at.starts_with(text), "{path}: line {} from {at:?}", found.line);
    }

    #[test]
    fn a_path_leads_to_its_place_in_the_file() {
        check("Job", "job");
        check("Job.ID", "\"web\"");
        check("Job.Type", "\"service\"");
        check("Job.Meta[\"owner\"]", "owner");
        check("Job.Constraints[0].RTarget", "\"(\"");
        check("Job.TaskGroups[1].Name", "\"b\"");
        check("Job.TaskGroups[1].Count", "-2");
        check("Job.TaskGroups[1].Meta[\"k\"]", "\"v\"");
        check("Job.TaskGroups[1].Networks[0].ReservedPorts[0].Value", "80");
        check("Job.TaskGroups[1].Networks[0].DynamicPorts[1].Label", "\"three\"");
        check("Job.TaskGroups[1].Services[\"first\"].Address", "\"${y}\"");
        check("Job.TaskGroups[1].Services[0].Name", "\"first\"");
        check("Job.TaskGroups[1].Update.MinHealthyTime", "3");
        check("Job.TaskGroups[1].Tasks[0].Driver", "\"raw_exec\"");
        check("Job.TaskGroups[1].Tasks[0].Config", "config");
        check("Job.TaskGroups[1].Tasks[0].Config.comand", "comand");
        check("Job.TaskGroups[1].Tasks[0].Config.args[1]", "\"b\"");
        check("Job.TaskGroups[1].Tasks[0].Config.nested", "nested");
        check("Job.TaskGroups[2].Tasks[0].Config.run_for", "run_for");
    }

    #[test]
    fn a_missing_value_is_shown_at_the_block_around_it() {
        check("Job.Priority", "job");
        check("Job.TaskGroups[0].Update.Stagger", "group \"a\"");
        check("Job.TaskGroups[1].Tasks[0].Resources.CPU", "task \"t\"");
        check("Job.TaskGroups[1].Tasks[7].Name", "group \"b\"");
        check("Job.TaskGroups[9].Name", "job");
        check("Job.TaskGroups[2].Count", "task \"alone\"");
        check("Job.TaskGroups[1].Tasks[0].Config.args[9]", "args");
    }

    #[test]
    fn a_message_without_a_place_stays_as_it_is() {
        for line in ["namespace \"x\" does not exist", "Job", "Job.Meta[", "Jobs: x"] {
            let (found, others) = placed("web.hcl", FILE, [(Severity::Warning, line.to_owned())]);
            assert!(found.is_empty() && others == [line], "{line}");
        }
        let line = "Job.ID: x".to_owned();
        let source = "{\n  \"Job\": {\n    \"ID\": 7}}";
        let (found, others) = placed("web.json", source, [(Severity::Error, line)]);
        let found: Vec<_> = found.iter().map(|one| (one.line, one.column)).collect();
        assert!(found == [(3, 11)] && others.is_empty(), "{found:?}");
    }
}
