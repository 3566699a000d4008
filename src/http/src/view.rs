//! Nomad's JSON shapes: exact names, `[]` for empty lists, ids as UUID text, times in nanoseconds
//! or RFC 3339 as Nomad has them.
//!
//! Must never return a node's secret, and never read anything but the state it is given.

mod allocation;
mod capacity;
mod deployment;
mod evaluation;
mod job;
mod member;
mod node;
mod node_state;
mod placement;
mod pool;
mod scaling;
mod settings;
mod task_event;

pub(crate) use allocation::*;
pub(crate) use capacity::*;
pub(crate) use deployment::*;
pub(crate) use evaluation::*;
pub(crate) use job::*;
pub(crate) use member::*;
pub(crate) use node::*;
pub(crate) use node_state::*;
pub(crate) use placement::*;
pub(crate) use pool::*;
pub(crate) use scaling::*;
pub(crate) use settings::*;

use std::{collections::BTreeMap, fmt::Display};

use fsm::Text;
use serde_json::{Map, Value};

/// An id as text; empty when there is none, as Nomad has it.
fn id_or_empty(id: Option<impl Display>) -> Value {
    id.map_or_else(|| Value::from(""), |id| Value::from(id.to_string()))
}

/// An id as text; empty when there is none, as Nomad has it.
fn id_or_none(id: Option<impl Display>) -> String {
    id.map_or_else(String::new, |id| id.to_string())
}

/// A map of counts; none, which is null, when nothing is in it.
fn counts_or_none(map: &BTreeMap<Text, u32>) -> Option<BTreeMap<String, u32>> {
    (!map.is_empty()).then(|| map.iter().map(|(key, count)| (key.to_string(), *count)).collect())
}

/// A text.
fn text(text: &Text) -> Value {
    Value::from(&**text)
}

/// A list; none, which is null, when nothing is in it, as Nomad has lists that were never filled.
pub(super) fn some_unless_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// A list; null when nothing is in it, as Nomad has lists that were never filled.
pub(super) fn list_or_null(list: Vec<Value>) -> Value {
    if list.is_empty() { Value::Null } else { list.into() }
}

/// A map; null when nothing is in it, as Nomad has maps that were never filled.
pub(super) fn map_or_null(map: Value) -> Value {
    if map.as_object().is_some_and(Map::is_empty) { Value::Null } else { map }
}

/// A map of texts.
fn texts(map: &BTreeMap<Text, Text>) -> BTreeMap<String, String> {
    map.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// A map of texts.
fn text_map(map: &BTreeMap<Text, Text>) -> Value {
    map.iter().map(|(key, value)| (key.to_string(), text(value))).collect::<Map<_, _>>().into()
}
