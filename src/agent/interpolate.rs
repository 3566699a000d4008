//! `${…}` in what a job says: environment, meta, driver configuration, user. What is not known stays as it is written, so that a
//! shell's own `${X}` in an argument survives.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

/// The names that can be used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// The task's environment: `${NOMAD_…}`, `${env["X"]}`, and any variable by its bare name.
    pub(crate) env: BTreeMap<String, String>,
    /// Names as the job spells them, where the environment has another spelling: `NOMAD_PORT_a-b`.
    pub(crate) spellings: BTreeMap<String, String>,
    /// The node's: `node.unique.id`, `attr.…`, `meta.…`.
    pub(crate) node: Arc<BTreeMap<String, String>>,
}

impl Names {
    /// Replaces every known `${name}`.
    pub(crate) fn expand(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            out.push_str(before);
            let Some((name, later)) = after.split_once('}') else {
                out.push_str("${");
                rest = after;
                continue;
            };
            if let Some(value) = self.find(name.trim()) {
                out.push_str(value);
                rest = later;
            } else {
                out.push_str("${");
                rest = after;
            }
        }
        out.push_str(rest);
        out
    }

    /// Replaces every known `${name}` in all texts of a driver's configuration. Keys stay.
    pub(crate) fn expand_all(&self, value: &mut Value) {
        match value {
            Value::String(text) if text.contains("${") => *text = self.expand(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.expand_all(item)),
            Value::Object(map) => map.values_mut().for_each(|item| self.expand_all(item)),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
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
            assert_eq!(names.expand(text), expected, "{text}");
        }
    }
}
