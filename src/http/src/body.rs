//! Reads the JSON of a request, on servers and agents alike. A value of a wrong type is an error
//! that names its place (`Job.Priority: expected …`); it is never replaced by a default.
//!
//! Names match as in Go's decoder: exactly, or else ignoring case. Null means absent; a null in a
//! list is left out, and in a map of texts it becomes the empty text.

use calendar::parse_go_duration;
use fsm::{Text, limits};
use jobspec::suggest::did_you_mean;
use serde_json::{Map, Value};

/// Who acts when the client of this API does not say.
const OPERATOR: &str = "operator";

/// What is wrong with a body.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongBody(String);

/// One object of a request's body, and where it stands.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    object: Option<&'a Map<String, Value>>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The body itself; null is an empty object.
    pub(crate) fn of(body: &'a Value) -> Result<Self, WrongBody> {
        Self::at(body, String::new())
    }

    fn at(value: &'a Value, path: String) -> Result<Self, WrongBody> {
        match value {
            Value::Null => Ok(Self { object: None, path }),
            Value::Object(object) => Ok(Self { object: Some(object), path }),
            other @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                let place = if path.is_empty() { "request body".to_owned() } else { path };
                Err(wrong_type(&place, "an object", other))
            }
        }
    }

    /// The value of a field, unless it is absent or null.
    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        let object = self.object?;
        let found = object.get(name).or_else(|| {
            object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        })?;
        (!found.is_null()).then_some(found)
    }

    /// The path of a field, for messages.
    pub(crate) fn place(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A nested object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Self>, WrongBody> {
        self.value(name).map(|value| Self::at(value, self.place(name))).transpose()
    }

    /// A list of objects.
    pub(crate) fn objects(&self, name: &str) -> Result<Option<Vec<Self>>, WrongBody> {
        let Some(list) = self.typed(name, "a list", Value::as_array)? else { return Ok(None) };
        let list = list.iter().filter(|value| !value.is_null());
        let at = |(position, value)| Self::at(value, format!("{}[{position}]", self.place(name)));
        list.enumerate().map(at).collect::<Result<_, _>>().map(Some)
    }

    /// Names and values of this object.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.object.into_iter().flatten()
    }

    /// Refuses names that are not among these.
    pub(crate) fn known(&self, names: &[&'static str]) -> Result<(), WrongBody> {
        let is_known = |asked: &str| names.iter().any(|name| name.eq_ignore_ascii_case(asked));
        let Some((asked, _)) = self.entries().find(|(asked, _)| !is_known(asked)) else {
            return Ok(());
        };
        let hint = did_you_mean(asked, names.iter().copied());
        let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
        let shown: String = asked.chars().take(64).collect();
        Err(WrongBody(format!("{}: unknown key{hint}", self.place(&shown))))
    }

    /// A text.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, WrongBody> {
        self.typed(name, "a text", Value::as_str)
    }

    /// A line for people that a node's row keeps; empty when there is none.
    pub(crate) fn note(&self, name: &str) -> Result<Text, WrongBody> {
        let text = self.text(name)?.unwrap_or("").trim();
        let (bytes, max) = (text.len(), limits::NODE_REASON_BYTES_MAX);
        let place = self.place(name);
        if bytes > max {
            return Err(WrongBody(format!("{place} has {bytes} bytes, at most {max} may be")));
        }
        if text.contains(char::is_control) {
            return Err(WrongBody(format!("{place} must be one line without control characters")));
        }
        Ok(text.into())
    }

    /// Who acts, as the client says; nothing verifies it.
    pub(crate) fn actor(&self) -> Result<Text, WrongBody> {
        let actor = self.note("Actor")?;
        Ok(if actor.is_empty() { OPERATOR.into() } else { actor })
    }

    /// A truth value.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, WrongBody> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// A number that is not negative.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, WrongBody> {
        self.typed(name, "a whole number that is not negative", Value::as_u64)
    }

    /// Nanoseconds, or a Go duration as text; may be negative.
    pub(crate) fn nanoseconds(&self, name: &str) -> Result<Option<i64>, WrongBody> {
        let parse = |value: &Value| match value {
            Value::String(text) => {
                let (sign, text) = match text.strip_prefix('-') {
                    Some(rest) => (-1, rest),
                    None => (1, text.as_str()),
                };
                let nanoseconds = i64::try_from(parse_go_duration(text)?.as_nanos()).ok()?;
                Some(sign * nanoseconds)
            }
            Value::Number(number) => number.as_i64(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        };
        let Some(value) = self.value(name) else { return Ok(None) };
        match parse(value) {
            Some(nanoseconds) => Ok(Some(nanoseconds)),
            None => {
                Err(wrong_type(&self.place(name), "a duration (nanoseconds or \"1h30m\")", value))
            }
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, WrongBody> {
        let texts = |value: &'a Value| {
            let items = value.as_array()?.iter().filter(|item| !item.is_null());
            items.map(Value::as_str).collect()
        };
        self.typed(name, "a list of texts", texts)
    }

    /// A map of texts.
    pub(crate) fn text_map(&self, name: &str) -> Result<Vec<(&'a str, &'a str)>, WrongBody> {
        let Some(map) = self.object(name)? else { return Ok(Vec::new()) };
        map.entries()
            .map(|(key, value)| match value.as_str() {
                Some(text) => Ok((key.as_str(), text)),
                None if value.is_null() => Ok((key.as_str(), "")),
                None => Err(wrong_type(&map.place(key), "a text", value)),
            })
            .collect()
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WrongBody> {
        let Some(value) = self.value(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong_type(&self.place(name), expected, value))
    }
}

fn wrong_type(place: &str, expected: &str, found: &Value) -> WrongBody {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => {
            let short: String = text.chars().take(40).collect();
            format!("the text \"{short}\"")
        }
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    WrongBody(format!("{place}: expected {expected}, found {found}"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn names_match_in_any_case_and_nulls_say_nothing() {
        let body = json!({
            "taskNAME": "a", "ALL": true, "names": [null, "x"], "Map": {"a": null, "b": "c"},
            "objects": [null, {"n": 1}], "none": null,
        });
        let fields = Fields::of(&body).unwrap();
        assert_eq!(fields.text("TaskName").unwrap(), Some("a"));
        assert!(fields.flag("All").unwrap());
        assert_eq!(fields.texts("Names").unwrap().unwrap(), ["x"]);
        assert_eq!(fields.text_map("Map").unwrap(), [("a", ""), ("b", "c")]);
        let objects = fields.objects("Objects").unwrap().unwrap();
        assert_eq!(objects.len(), 1);
        assert_eq!(objects[0].number("N").unwrap(), Some(1));
        assert_eq!(fields.text("None").unwrap(), None);
        let wrong = fields.text("All").unwrap_err().to_string();
        assert_eq!(wrong, "All: expected a text, found true");
    }
}
