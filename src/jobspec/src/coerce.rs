//! Values of HCL as the kinds that the tables of `schema.rs` ask for. Owns HCL's conversions
//! between text, numbers and booleans; loses nothing: what does not convert exactly is refused.

use std::ops::Range;

use serde_json::{Map, Value};

use super::{diagnostic::Sink, schema::Kind};
use calendar::duration;

/// The value as the kind asks for it, or what is wanted.
pub(super) fn typed(value: Value, kind: Kind) -> Result<Value, String> {
    let found = show(&value);
    match kind {
        Kind::Text => scalar_text(value)
            .map(Value::String)
            .ok_or_else(|| format!("expected a text, found {found}")),
        Kind::Integer => integer(&value)
            .map(Value::from)
            .ok_or_else(|| format!("expected a whole number, found {found}")),
        Kind::Boolean => scalar_text(value)
            .and_then(|text| text.parse().ok())
            .map(Value::Bool)
            .ok_or_else(|| format!("expected true or false, found {found}")),
        Kind::Duration => match value.as_str() {
            Some(text) => duration::parse(text).map(Value::from),
            None => integer(&value)
                .map(Value::from)
                .ok_or_else(|| format!("expected a duration such as \"30s\", found {found}")),
        },
        Kind::Milliseconds => {
            let Some(text) = value.as_str() else {
                return Err(format!("expected a duration such as \"30s\", found {found}"));
            };
            let nanoseconds = duration::parse(text)?;
            if nanoseconds < 0 || nanoseconds % 1_000_000 != 0 {
                return Err(format!("expected whole milliseconds, not negative; found {found}"));
            }
            Ok(Value::from(nanoseconds / 1_000_000))
        }
        Kind::Decimal => value
            .as_f64()
            .or_else(|| value.as_str()?.parse().ok())
            .filter(|number| number.is_finite())
            .map(Value::from)
            .ok_or_else(|| format!("expected a number, found {found}")),
        Kind::TextList => {
            let Value::Array(items) = value else {
                return Err(format!("expected a list such as [\"a\", \"b\"], found {found}"));
            };
            let texts: Option<Vec<_>> =
                items.into_iter().map(|item| scalar_text(item).map(Value::String)).collect();
            texts.map(Value::Array).ok_or_else(|| "expected a list of texts".to_owned())
        }
    }
}

fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

fn scalar_text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("\"{}\"", text.chars().take(40).collect::<String>()),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

/// The map with all values as text; null is absent.
pub(super) fn text_values(
    map: Map<String, Value>,
    span: &Range<usize>,
    sink: &mut Sink<'_>,
) -> Map<String, Value> {
    let mut out = Map::new();
    for (key, value) in map {
        if value.is_null() {
            continue;
        }
        let found = show(&value);
        if let Some(text) = scalar_text(value) {
            out.insert(key, Value::String(text));
        } else {
            sink.error(span.clone(), format!("\"{key}\": expected a text, found {found}"));
        }
    }
    out
}
