//! A job's diff as text, laid out as Nomad's: fields and objects of the job, its groups and their
//! tasks, with `+` for what is added, `-` deleted, `+/-` edited. What is added or deleted as a
//! whole is a line, unless all is asked for.

use serde_json::Value;

use crate::{
    cli::table::{GREEN, RED, RESET, YELLOW, escaped},
    cli::view::{Fields, texts},
};

/// How a diff is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiffStyle {
    /// Colours, for a terminal.
    pub(super) colour: bool,
    /// Also what a group or task that comes or goes consists of.
    pub(super) verbose: bool,
}

/// The lines of a `JobDiff`: of the job, and of each group with an empty line behind it.
pub(super) fn lines(diff: &Value, style: DiffStyle) -> String {
    let mut text = Text { style, lines: Vec::new() };
    let groups = diff.items("TaskGroups");
    let what = format!("Job: \"{}\"", diff.text("ID"));
    text.line(Place { indent: 0, width: 0 }, diff.text("Type"), &what, &[]);
    let place = Place { indent: 0, width: widest(parts(diff).chain(groups)) };
    text.details(place, diff);
    for group in groups {
        text.group(place, group);
        text.lines.push(String::new());
    }
    text.lines.join("\n")
}

/// The sign of a change with the space behind it, and its colour.
fn sign(change: &str) -> (&'static str, &'static str) {
    match change {
        "Added" => ("+ ", GREEN),
        "Deleted" => ("- ", RED),
        "Edited" => ("+/- ", YELLOW),
        _ => ("", ""),
    }
}

/// The longest sign of what stands below one line: the texts behind the signs begin in one column.
fn widest<'a>(parts: impl Iterator<Item = &'a Value>) -> usize {
    parts.map(|part| sign(part.text("Type")).0.len()).max().unwrap_or(0)
}

fn parts(of: &Value) -> impl Iterator<Item = &Value> {
    of.items("Fields").iter().chain(of.items("Objects"))
}

/// Where lines of one level stand.
#[derive(Clone, Copy)]
struct Place {
    /// Spaces before the signs.
    indent: usize,
    /// To which the signs are filled up.
    width: usize,
}

impl Place {
    /// The indent of what stands below a line here that has this change.
    fn below(self, change: &str) -> usize {
        self.indent + self.width.saturating_sub(sign(change).0.len()) + 2
    }
}

struct Text {
    style: DiffStyle,
    lines: Vec<String>,
}

impl Text {
    fn line(&mut self, place: Place, change: &str, what: &str, annotations: &[&str]) {
        let (sign, colour) = sign(change);
        let mut line = " ".repeat(place.indent);
        if self.style.colour && !colour.is_empty() {
            line.push_str(colour);
            line.push_str(sign.trim_end());
            line.push_str(RESET);
            line.push(' ');
        } else {
            line.push_str(sign);
        }
        line.push_str(&" ".repeat(place.width.saturating_sub(sign.len())));
        line.push_str(&escaped(what));
        if !annotations.is_empty() {
            line.push_str(" (");
            line.push_str(&escaped(&annotations.join(", ")));
            line.push(')');
        }
        self.lines.push(line);
    }

    fn group(&mut self, place: Place, group: &Value) {
        let updates: Vec<String> = group
            .entries("Updates")
            .into_iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let updates: Vec<&str> = updates.iter().map(String::as_str).collect();
        let what = format!("Task Group: \"{}\"", group.text("Name"));
        let change = group.text("Type");
        self.line(place, change, &what, &updates);
        let tasks = group.items("Tasks");
        let width = widest(parts(group).chain(tasks));
        let below = Place { indent: place.below(change), width };
        self.details(below, group);
        for task in tasks {
            let what = format!("Task: \"{}\"", task.text("Name"));
            let annotations = texts(task.items("Annotations"));
            self.line(below, task.text("Type"), &what, &annotations);
            self.details(Place { indent: below.indent + 2, width: widest(parts(task)) }, task);
        }
    }

    fn details(&mut self, place: Place, of: &Value) {
        if of.text("Type") == "Edited" || self.style.verbose {
            self.parts(place, of);
        }
    }

    /// Fields, then objects in braces; of an object that was edited also what stays.
    fn parts(&mut self, place: Place, of: &Value) {
        let fields = of.items("Fields");
        let longest = fields.iter().map(|field| field.text("Name").chars().count()).max();
        for field in fields {
            let name = format!("{}:", field.text("Name"));
            let width = longest.unwrap_or(0) + 1;
            let (old, new) = (field.text("Old"), field.text("New"));
            let value = match field.text("Type") {
                "Added" => format!("\"{new}\""),
                "Edited" => format!("\"{old}\" => \"{new}\""),
                _ => format!("\"{old}\""),
            };
            let annotations = texts(field.items("Annotations"));
            self.line(place, field.text("Type"), &format!("{name:width$} {value}"), &annotations);
        }
        for object in of.items("Objects") {
            let change = object.text("Type");
            self.line(place, change, &format!("{} {{", object.text("Name")), &[]);
            let below = Place { indent: place.below(change), width: widest(parts(object)) };
            self.parts(below, object);
            self.lines.push(format!("{}}}", " ".repeat(place.indent + place.width)));
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    fn diff() -> Value {
        json!({
            "Type": "Edited", "ID": "web",
            "Fields": [
                { "Type": "Edited", "Name": "Priority", "Old": "50", "New": "70" },
                { "Type": "Added", "Name": "Meta[owner]", "Old": "", "New": "ops" },
            ],
            "Objects": [],
            "TaskGroups": [{
                "Type": "Edited", "Name": "web", "Updates": { "create": 1, "ignore": 2 },
                "Fields": [{
                    "Type": "Edited", "Name": "Count", "Old": "2", "New": "3",
                    "Annotations": ["forces create"],
                }],
                "Objects": [{
                    "Type": "Edited", "Name": "RestartPolicy",
                    "Fields": [
                        { "Type": "Deleted", "Name": "Mode", "Old": "fail", "New": "" },
                        { "Type": "None", "Name": "Attempts", "Old": "2", "New": "2" },
                    ],
                }],
                "Tasks": [{ "Type": "None", "Name": "server" }],
            }],
        })
    }

    #[test]
    fn a_diff_is_written_as_nomad_writes_it() {
        let text = lines(&diff(), DiffStyle { colour: false, verbose: false });
        assert_eq!(
            text,
            "+/- Job: \"web\"
+/- Priority:    \"50\" => \"70\"
+   Meta[owner]: \"ops\"
+/- Task Group: \"web\" (1 create, 2 ignore)
  +/- Count: \"2\" => \"3\" (forces create)
  +/- RestartPolicy {
    - Mode:     \"fail\"
      Attempts: \"2\"
      }
      Task: \"server\"
"
        );
    }

    #[test]
    fn a_new_job_is_a_line_for_each_of_its_parts() {
        let mut new = diff();
        for path in ["", "/TaskGroups/0", "/TaskGroups/0/Tasks/0"] {
            new.pointer_mut(path).unwrap()["Type"] = "Added".into();
        }
        let text = lines(&new, DiffStyle { colour: false, verbose: false });
        assert_eq!(
            text,
            "+ Job: \"web\"\n+   Task Group: \"web\" (1 create, 2 ignore)\n    +   Task: \"server\"\n"
        );
    }

    #[test]
    fn a_name_cannot_paint() {
        let mut hostile = diff();
        hostile["Fields"][0]["New"] = "\u{1b}[2J".into();
        hostile["TaskGroups"][0]["Name"] = "\u{202e}web".into();
        let text = lines(&hostile, DiffStyle { colour: false, verbose: false });
        assert!(text.contains("\\u{1b}[2J") && text.contains("\\u{202e}web"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
    }

    #[test]
    fn a_terminal_gets_colours_and_nothing_else_does() {
        let text = lines(&diff(), DiffStyle { colour: true, verbose: false });
        assert!(text.starts_with("\u{1b}[33m+/-\u{1b}[0m Job"), "{text}");
        assert!(text.contains("\u{1b}[32m+\u{1b}[0m   Meta"), "{text}");
    }
}
