//! Replaces `${…}` in a job's texts: environment, meta, driver configuration, user. An unknown name
//! stays as it is written, so that a shell's own `${X}` in an argument survives.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

/// How many bytes the texts of one task may have together after replacement. It is more than the
/// kernel passes on to a program.
const EXPANDED_BYTES_MAX: usize = 4 << 20;

/// How many more bytes the texts of one task may have.
#[derive(Debug)]
pub(crate) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(EXPANDED_BYTES_MAX)
    }
}

/// The texts became too long: a short text can refer to a long value many times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "with their references replaced the texts of the task have more than {EXPANDED_BYTES_MAX} bytes"
)]
pub(crate) struct TooLong;

/// The names that `${…}` may use, with their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// The task's environment: `${NOMAD_…}`, `${env["X"]}`, and any variable by its bare name.
    pub(crate) env: BTreeMap<String, String>,
    /// Names as the job spells them, if a variable's name in the environment differs:
    /// `NOMAD_PORT_a-b`.
    pub(crate) spellings: BTreeMap<String, String>,
    /// The node's properties: `node.unique.id`, `attr.…`, `meta.…`.
    pub(crate) node: Arc<BTreeMap<String, String>>,
}

impl Names {
    /// Replaces every known `${name}`. A `${` inside another one begins a new name; the outer one
    /// is left as text. So the text is read only once, in linear time.
    pub(crate) fn expand(&self, text: &str, room: &mut Room) -> Result<String, TooLong> {
        let mut out = String::new();
        let mut push = |part: &str| {
            room.0 = room.0.checked_sub(part.len()).ok_or(TooLong)?;
            out.push_str(part);
            Ok(())
        };
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            push(before)?;
            let until = after.find("${").unwrap_or(after.len());
            let closed = after[..until].split_once('}');
            let found = closed.and_then(|(name, _)| Some((name, self.find(name.trim())?)));
            if let Some((name, value)) = found {
                push(value)?;
                rest = after[name.len()..].strip_prefix('}').unwrap_or_default();
            } else {
                push("${")?;
                rest = after;
            }
        }
        push(rest)?;
        Ok(out)
    }

    /// Replaces every known `${name}` in all values of a driver's configuration. Keys are left
    /// alone.
    pub(crate) fn expand_all(&self, value: &mut Value, room: &mut Room) -> Result<(), TooLong> {
        match value {
            Value::String(text) if text.contains("${") => *text = self.expand(text, room)?,
            Value::Array(items) => {
                items.iter_mut().try_for_each(|item| self.expand_all(item, room))?;
            }
            Value::Object(map) => {
                map.values_mut().try_for_each(|item| self.expand_all(item, room))?;
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<&str> {
        let quoted = name.strip_prefix("env[").and_then(|name| name.strip_suffix(']'));
        let of_env = |key: &str| self.env.get(key).or_else(|| self.spellings.get(key));
        let value = match quoted {
            Some(key) => of_env(key.trim_matches('"')),
            None => of_env(name).or_else(|| self.node.get(name)),
        };
        value.map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_replaced_and_others_stay() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let names = Names {
            env: [pair("NOMAD_PORT_web", "8080"), pair("MINE", "m")].into(),
            spellings: [pair("NOMAD_PORT_a-b", "81")].into(),
            node: Arc::new(
                [pair("node.unique.name", "n1"), pair("attr.kernel.name", "linux")].into(),
            ),
        };
        for (text, expected) in [
            ("port ${NOMAD_PORT_web}!", "port 8080!"),
            ("${env[\"MINE\"]}-${MINE}", "m-m"),
            ("${NOMAD_PORT_a-b} ${env[\"NOMAD_PORT_a-b\"]}", "81 81"),
            ("${node.unique.name} ${attr.kernel.name}", "n1 linux"),
            ("${UNKNOWN} $HOME ${", "${UNKNOWN} $HOME ${"),
            ("${a${MINE}", "${am"),
            ("", ""),
        ] {
            let expanded = names.expand(text, &mut Room::default());
            assert_eq!(expanded.as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_short_text_does_not_become_any_length() {
        let pair = |key: &str, value: String| (key.to_owned(), value);
        let names = Names {
            env: [pair("LONG", "x".repeat(EXPANDED_BYTES_MAX / 2))].into(),
            ..Names::default()
        };
        let mut room = Room::default();
        assert_eq!(names.expand("${LONG}${LONG}", &mut room).map(|text| text.len()), Ok(4 << 20));
        assert_eq!(names.expand("y", &mut room), Err(TooLong), "it is that of all texts together");
        assert_eq!(names.expand("${LONG}", &mut Room(100)), Err(TooLong));
        let mut config = serde_json::json!({"args": ["${LONG}", ["${LONG}"], {"a": "${LONG}"}]});
        assert_eq!(names.expand_all(&mut config, &mut Room::default()), Err(TooLong));
    }

    /// These texts once took time quadratic in their length.
    #[test]
    fn a_text_that_opens_and_never_closes_is_read_once() {
        let names = Names::default();
        for text in ["${".repeat(500_000), format!("{}}}", "${".repeat(500_000))] {
            let started = std::time::Instant::now();
            assert_eq!(names.expand(&text, &mut Room::default()).as_deref(), Ok(text.as_str()));
            assert!(started.elapsed() < std::time::Duration::from_secs(5));
        }
    }
}
