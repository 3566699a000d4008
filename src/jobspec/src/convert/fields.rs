//! Reading one JSON object of the API: typed fields, each at most once; the rest is ignored with a
//! warning. Owns the leniency of the API (null is absent, names in any case, `10.0` is 10,
//! durations as text); never gives a field a default.

use std::collections::{BTreeMap, BTreeSet};

use fsm::Text;
use serde_json::{Map, Value};

use calendar::duration;

use crate::{MESSAGES_MAX, suggest::did_you_mean};

use super::FieldError;

/// Characters of a user's text that a message repeats.
const SHOWN_CHARS_MAX: usize = 64;

/// What a conversion has to say so far.
#[derive(Default)]
pub(super) struct Report {
    pub(super) errors: Vec<FieldError>,
    pub(super) warnings: Vec<String>,
    /// Regular expressions that were judged: each is compiled once, and there is a bound on how
    /// many.
    pub(super) patterns: BTreeSet<String>,
}

impl Report {
    /// Whether further errors are dropped: what is expensive to find or to say need not be looked
    /// for.
    pub(super) fn is_full(&self) -> bool {
        self.errors.len() >= MESSAGES_MAX
    }

    pub(super) fn error(&mut self, path: impl Into<String>, message: impl Into<String>) {
        if !self.is_full() {
            self.errors.push(FieldError { path: path.into(), message: message.into() });
        }
    }

    pub(super) fn warning(&mut self, message: impl Into<String>) {
        if self.warnings.len() < MESSAGES_MAX {
            self.warnings.push(message.into());
        }
    }
}

/// An object that is being read.
pub(super) struct Fields<'v> {
    pub(super) path: String,
    map: &'v Map<String, Value>,
    known: Vec<&'static str>,
}

impl<'v> Fields<'v> {
    /// The object at `path`, or `None` after an error.
    pub(super) fn new(value: &'v Value, path: String, report: &mut Report) -> Option<Self> {
        let Value::Object(map) = value else {
            report.error(path, format!("expected an object, found {}", show(value)));
            return None;
        };
        Some(Self { path, map, known: Vec::new() })
    }

    /// Path of a field of this object.
    pub(super) fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// The value of a field; null is absent.
    pub(super) fn value(&mut self, name: &'static str) -> Option<&'v Value> {
        self.known.push(name);
        let in_any_case = || {
            let mut entries = self.map.iter();
            entries.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        };
        self.map.get(name).or_else(in_any_case).filter(|value| !value.is_null())
    }

    /// Fields that may be present and mean nothing.
    pub(super) fn ignore(&mut self, names: &[&'static str]) {
        self.known.extend_from_slice(names);
    }

    /// A text field.
    pub(super) fn text(&mut self, name: &'static str, report: &mut Report) -> Option<&'v str> {
        let value = self.value(name)?;
        self.typed(name, value.as_str(), value, "a text", report)
    }

    /// A text field that is absent when empty.
    pub(super) fn text_filled(
        &mut self,
        name: &'static str,
        report: &mut Report,
    ) -> Option<&'v str> {
        self.text(name, report).filter(|text| !text.is_empty())
    }

    /// A whole number.
    pub(super) fn integer(&mut self, name: &'static str, report: &mut Report) -> Option<i64> {
        let value = self.value(name)?;
        self.typed(name, integer(value), value, "a whole number", report)
    }

    /// A whole number in a range.
    pub(super) fn integer_in(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<i64>,
        report: &mut Report,
    ) -> Option<i64> {
        let number = self.integer(name, report)?;
        if !range.contains(&number) {
            let message =
                format!("must be between {} and {}, is {number}", range.start(), range.end());
            report.error(self.at(name), message);
            return None;
        }
        Some(number)
    }

    /// A whole number from `low` to the most that `T` holds.
    pub(super) fn count<T: TryFrom<i64>>(
        &mut self,
        name: &'static str,
        low: i64,
        report: &mut Report,
    ) -> Option<T> {
        let number = self.integer(name, report)?;
        let fits = T::try_from(number).ok().filter(|_| number >= low);
        if fits.is_none() {
            let message = if number < low {
                format!("must be at least {low}, is {number}")
            } else {
                format!("{number} is too large")
            };
            report.error(self.at(name), message);
        }
        fits
    }

    /// A boolean.
    pub(super) fn boolean(&mut self, name: &'static str, report: &mut Report) -> Option<bool> {
        let value = self.value(name)?;
        self.typed(name, value.as_bool(), value, "true or false", report)
    }

    /// A duration (integer nanoseconds, or text such as `30s`) in ms, rounded up.
    pub(super) fn duration_ms(&mut self, name: &'static str, report: &mut Report) -> Option<u64> {
        let value = self.value(name)?;
        let nanoseconds = if let Value::String(text) = value {
            match duration::parse(text) {
                Ok(nanoseconds) => nanoseconds,
                Err(message) => {
                    report.error(self.at(name), message);
                    return None;
                }
            }
        } else {
            let wanted = "a duration (nanoseconds, or a text such as \"30s\")";
            let nanoseconds = self.typed(name, integer(value), value, wanted, report)?;
            warn_of_nanoseconds(nanoseconds, &self.at(name), report);
            nanoseconds
        };
        let Ok(nanoseconds) = u64::try_from(nanoseconds) else {
            report.error(self.at(name), "must not be negative");
            return None;
        };
        Some(nanoseconds.div_ceil(1_000_000))
    }

    /// A list; absent is empty, and a null in it is left out.
    pub(super) fn list(
        &mut self,
        name: &'static str,
        report: &mut Report,
    ) -> Vec<(String, &'v Value)> {
        let Some(value) = self.value(name) else { return Vec::new() };
        let path = self.at(name);
        self.typed(name, value.as_array(), value, "a list", report)
            .map(|items| {
                items
                    .iter()
                    .enumerate()
                    .filter(|(_, item)| !item.is_null())
                    .map(|(position, item)| (format!("{path}[{position}]"), item))
                    .collect()
            })
            .unwrap_or_default()
    }

    /// A list of texts; absent is empty.
    pub(super) fn texts(&mut self, name: &'static str, report: &mut Report) -> Vec<Text> {
        let mut out = Vec::new();
        for (path, item) in self.list(name, report) {
            match item.as_str() {
                Some(text) => out.push(Text::from(text)),
                None => report.error(path, format!("expected a text, found {}", show(item))),
            }
        }
        out
    }

    /// A map of texts; absent is empty, and a null in it is the empty text.
    pub(super) fn text_map(
        &mut self,
        name: &'static str,
        report: &mut Report,
    ) -> BTreeMap<Text, Text> {
        let Some(value) = self.value(name) else { return BTreeMap::new() };
        let Some(map) = self.typed(name, value.as_object(), value, "an object", report) else {
            return BTreeMap::new();
        };
        let mut out = BTreeMap::new();
        for (key, item) in map {
            let path = || format!("{}[{}]", self.at(name), quoted(key));
            let text = if item.is_null() { Some("") } else { item.as_str() };
            let Some(text) = text else {
                let message = format!("expected a text, found {}: put it in quotes", show(item));
                report.error(path(), message);
                continue;
            };
            if key.is_empty() || key.contains('\0') {
                report.error(path(), "the key is empty or has a NUL character: rename it");
            } else if text.contains('\0') {
                report.error(path(), "the value has a NUL character: remove it");
            } else {
                out.insert(Text::from(key.as_str()), Text::from(text));
            }
        }
        out
    }

    /// A nested object.
    pub(super) fn object(&mut self, name: &'static str, report: &mut Report) -> Option<Fields<'v>> {
        let value = self.value(name)?;
        Fields::new(value, self.at(name), report)
    }

    /// Refuses a field that is set and not built yet: `owner: what are not supported yet`.
    pub(super) fn refuse(
        &mut self,
        name: &'static str,
        owner: &str,
        what: &str,
        report: &mut Report,
    ) {
        if self.value(name).is_some_and(|value| !is_empty(value)) {
            let message =
                format!("{owner}: {what} not supported yet: remove it or run this job elsewhere");
            report.error(self.at(name), message);
        }
    }

    /// Warns of every field that was not asked for: newer clients send fields that are not known
    /// here.
    pub(super) fn finish(self, report: &mut Report) {
        for (key, value) in self.map {
            if report.warnings.len() >= MESSAGES_MAX {
                return;
            }
            if self.known.iter().any(|name| name.eq_ignore_ascii_case(key)) {
                continue;
            }
            let hint = did_you_mean(key, self.known.iter().copied());
            // A null under a name that is no slip says nothing.
            if value.is_null() && hint.is_none() {
                continue;
            }
            let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
            let key: String = key.chars().take(SHOWN_CHARS_MAX).collect();
            report.warning(format!("{}.{key}: unknown field, it is ignored{hint}", self.path));
        }
    }

    fn typed<T>(
        &self,
        name: &str,
        read: Option<T>,
        value: &Value,
        wanted: &str,
        report: &mut Report,
    ) -> Option<T> {
        if read.is_none() {
            report.error(self.at(name), format!("expected {wanted}, found {}", show(value)));
        }
        read
    }
}

/// Warns of a number of nanoseconds below a millisecond: whoever wrote it will have meant seconds
/// or milliseconds.
pub(super) fn warn_of_nanoseconds(nanoseconds: i64, path: &str, report: &mut Report) {
    if (1..1_000_000).contains(&nanoseconds) {
        report.warning(format!(
            "{path}: is {nanoseconds} ns: a number without a unit counts nanoseconds, write a text such as \"3s\""
        ));
    }
}

/// A whole number, also when written as a float.
fn integer(value: &Value) -> Option<i64> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    value.as_i64().or_else(|| {
        let float = value.as_f64()?;
        let whole = float.fract() == 0.0 && float.abs() <= EXACT_MAX;
        if whole { format!("{float:.0}").parse().ok() } else { None }
    })
}

/// Whether a value says nothing: null, false, 0, an empty text, or a list or object of nothing
/// else.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
    }
}

/// A user's text, cut and in quotes.
pub(super) fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    format!("\"{}\"", cut.escape_debug())
}

/// A value as messages show it.
pub(super) fn show(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
