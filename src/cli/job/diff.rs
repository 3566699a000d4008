//! A job's diff as text: fields and objects of the job, its groups and their tasks, with `+` for what is added, `-` deleted, `+/-` edited. What is added
//! or deleted as a whole is a line, unless all is asked for.

use serde_json::Value;

use crate::cli::view::{Fields, texts};

/// Colours of a terminal.
const RESET: &str = "\u{1b}[0m";
const GREEN: &str = "\u{1b}[32m";
const RED: &str = "\u{1b}[31m";
const YELLOW: &str = "\u{1b}[33m";

/// How a diff is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiffStyle {
    /// Colours, for a terminal.
    pub(super) colour: bool,
    /// Also what did not change.
    pub(super) verbose: bool,
}

/// The lines of a `JobDiff`.
pub(super) fn lines(diff: &Value, style: DiffStyle) -> String {
    let mut text = Text { style, lines: Vec::new() };
    text.line(0, diff.text("Type"), &format!("Job: \"{}\"", diff.text("ID")), &[]);
    text.details(0, diff);
    for group in diff.items("TaskGroups") {
        text.group(group);
    }
    text.lines.join("\n")
}

struct Text {
    style: DiffStyle,
    lines: Vec<String>,
}

impl Text {
    fn line(&mut self, indent: usize, change: &str, what: &str, annotations: &[&str]) {
        let (sign, colour) = match change {
            "Added" => ("+  ", GREEN),
            "Deleted" => ("-  ", RED),
            "Edited" => ("+/-", YELLOW),
            _ => ("   ", ""),
        };
        let mut line = " ".repeat(indent);
        if self.style.colour && !colour.is_empty() {
            line.push_str(colour);
            line.push_str(sign);
            line.push_str(RESET);
        } else {
            line.push_str(sign);
        }
        line.push(' ');
        line.push_str(what);
        if !annotations.is_empty() {
            line.push_str(" (");
            line.push_str(&annotations.join(", "));
            line.push(')');
        }
        self.lines.push(line);
    }

    fn group(&mut self, group: &Value) {
        let updates: Vec<String> = group
            .entries("Updates")
            .into_iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let updates: Vec<&str> = updates.iter().map(String::as_str).collect();
        let what = format!("Task Group: \"{}\"", group.text("Name"));
        self.line(0, group.text("Type"), &what, &updates);
        self.details(2, group);
        for task in group.items("Tasks") {
            let what = format!("Task: \"{}\"", task.text("Name"));
            let annotations = texts(task.items("Annotations"));
            self.line(2, task.text("Type"), &what, &annotations);
            self.details(4, task);
        }
    }

    fn details(&mut self, indent: usize, of: &Value) {
        if of.text("Type") == "Edited" || self.style.verbose {
            self.parts(indent, of);
        }
    }

    /// Fields, then objects in braces.
    fn parts(&mut self, indent: usize, of: &Value) {
        let shown = |part: &&Value| part.text("Type") != "None" || self.style.verbose;
        let fields: Vec<&Value> = of.items("Fields").iter().filter(shown).collect();
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
            self.line(indent, field.text("Type"), &format!("{name:width$} {value}"), &annotations);
        }
        let objects: Vec<&Value> = of.items("Objects").iter().collect();
        for object in objects {
            self.line(indent, object.text("Type"), &format!("{} {{", object.text("Name")), &[]);
            self.parts(indent + 2, object);
            self.lines.push(format!("{}    }}", " ".repeat(indent)));
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
    -   Mode: \"fail\"
      }
      Task: \"server\""
        );
        let verbose = lines(&diff(), DiffStyle { colour: false, verbose: true });
        assert!(verbose.contains("        Attempts: \"2\""), "{verbose}");
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
            "+   Job: \"web\"\n+   Task Group: \"web\" (1 create, 2 ignore)\n  +   Task: \"server\""
        );
    }

    #[test]
    fn a_terminal_gets_colours_and_nothing_else_does() {
        let text = lines(&diff(), DiffStyle { colour: true, verbose: false });
        assert!(text.starts_with("\u{1b}[33m+/-\u{1b}[0m Job"), "{text}");
        assert!(text.contains("\u{1b}[32m+  \u{1b}[0m Meta"), "{text}");
    }
}
