//! Blocks that are kept as JSON because nothing reads them yet, in one form whatever way they came:
//! a registration that says the same in other words makes no new version.
//!
//! Job files name few fields, the official client sends all, and what servers print has been filled
//! in. Defaults are put in before a block comes here, so that what is left out can only be a zero.

use fsm::Text;
use serde_json::{Map, Value};

use calendar::duration;

/// Maps whose keys and values are somebody's own.
const MAPS: [&str; 4] = ["Meta", "CanaryMeta", "TaggedAddresses", "Header"];
/// Fields that are durations, which clients write as text or as nanoseconds.
const DURATIONS: [&str; 4] = ["Interval", "Timeout", "Grace", "TTL"];

/// A block without nulls and without fields that have their type's zero, with durations in
/// nanoseconds.
pub(super) fn block(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().map(|(key, value)| (key.clone(), field(key, value)));
            Value::Object(kept.filter(|(_, value)| !is_zero(value)).collect())
        }
        Value::Array(items) => {
            items.iter().filter(|item| !item.is_null()).map(block).collect::<Vec<_>>().into()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn field(key: &str, value: &Value) -> Value {
    if MAPS.contains(&key) {
        return without_nulls(value);
    }
    let written = value.as_str().filter(|_| DURATIONS.contains(&key));
    match written.and_then(|text| duration::parse(text).ok()) {
        Some(nanoseconds) => nanoseconds.into(),
        None => block(value),
    }
}

/// The same without nulls: they say nothing.
pub(super) fn without_nulls(value: &Value) -> Value {
    let Value::Object(map) = value else { return value.clone() };
    let kept = map.iter().filter(|(_, value)| !value.is_null());
    Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// JSON with keys in order, whatever order the JSON library keeps.
pub(super) fn text(value: &Value) -> Text {
    Text::from(sorted(value).to_string())
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            let sorted: Map<String, Value> =
                entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
            Value::Object(sorted)
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
