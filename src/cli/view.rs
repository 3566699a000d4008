//! Reading API answers: as a type of `shapes`, or field by field, where absent and `null` read as
//! empty.

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An answer as the type that it should have; what it lacks is empty.
pub(crate) fn shape<T: DeserializeOwned>(answer: &Value) -> anyhow::Result<T> {
    T::deserialize(answer)
        .context("the server's answer is not understood: is it of another version?")
}

/// Fields of a JSON object by name.
pub(crate) trait Fields {
    /// A text; empty if absent.
    fn text(&self, name: &str) -> &str;
    /// A whole number; 0 if absent.
    fn number(&self, name: &str) -> i64;
    /// A flag; false if absent.
    fn flag(&self, name: &str) -> bool;
    /// A list; empty if absent.
    fn items(&self, name: &str) -> &[Value];
    /// The pairs of an object, sorted by key; empty if absent.
    fn entries(&self, name: &str) -> Vec<(&str, &Value)>;
    /// Any field that is present and not null.
    fn present(&self, name: &str) -> Option<&Value>;
    /// The text of any scalar.
    fn shown(&self, name: &str) -> String;
}

impl Fields for Value {
    fn text(&self, name: &str) -> &str {
        self.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, name: &str) -> i64 {
        self.get(name).and_then(Value::as_i64).unwrap_or_default()
    }

    fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    fn items(&self, name: &str) -> &[Value] {
        self.get(name).map(rows).unwrap_or_default()
    }

    fn entries(&self, name: &str) -> Vec<(&str, &Value)> {
        self.get(name)
            .and_then(Value::as_object)
            .map(|map| map.iter().map(|(key, value)| (key.as_str(), value)).collect())
            .unwrap_or_default()
    }

    fn present(&self, name: &str) -> Option<&Value> {
        self.get(name).filter(|value| !value.is_null())
    }

    fn shown(&self, name: &str) -> String {
        match self.present(name) {
            None => String::new(),
            Some(value) => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        }
    }
}

/// The elements of a list answer; empty for anything else.
pub(crate) fn rows(answer: &Value) -> &[Value] {
    answer.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Moves the elements out of a list answer.
pub(crate) fn into_rows(answer: Value) -> Vec<Value> {
    if let Value::Array(items) = answer { items } else { Vec::new() }
}

/// A list answer, what was made last in front.
pub(crate) fn newest_first(mut answer: Value) -> Value {
    if let Value::Array(items) = &mut answer {
        items.sort_by_key(|item| std::cmp::Reverse(item.number("CreateIndex")));
    }
    answer
}

/// The texts of a list.
pub(crate) fn texts(items: &[Value]) -> Vec<&str> {
    items.iter().filter_map(Value::as_str).collect()
}
