//! Whether a row satisfies an expression.

use std::cell::OnceCell;

use jobspec::suggest::nearest;
use scheduler::{Budget, Pattern};
use serde_json::{Map, Value};

use super::{Collection, ELEMENT, Expression, Names, Operator, Selector, wrong};
use crate::error::Error;

/// A row that is looked at.
pub(super) struct Row<'a> {
    shown: &'a Value,
    whole: Option<&'a dyn Fn() -> Value>,
    made: OnceCell<Value>,
    budget: &'a Budget,
}

/// The names that hold at a place of an expression, from the inside out.
pub(super) struct Scope<'s> {
    names: [(Option<&'s str>, &'s Value); 2],
    outer: Option<&'s Scope<'s>>,
}

impl Default for Scope<'_> {
    fn default() -> Self {
        Self { names: [(None, &Value::Null); 2], outer: None }
    }
}

impl<'s> Scope<'s> {
    fn find(&self, name: &str) -> Option<&'s Value> {
        let here = self.names.iter().find(|(known, _)| *known == Some(name));
        here.map(|(_, value)| *value).or_else(|| self.outer?.find(name))
    }
}

impl<'a> Row<'a> {
    pub(super) fn new(
        shown: &'a Value,
        whole: Option<&'a dyn Fn() -> Value>,
        budget: &'a Budget,
    ) -> Self {
        Self { shown, whole, made: OnceCell::new(), budget }
    }

    pub(super) fn satisfies(
        &self,
        expression: &Expression,
        scope: &Scope<'_>,
    ) -> Result<bool, Error> {
        Ok(match expression {
            Expression::And(left, right) => {
                self.satisfies(left, scope)? && self.satisfies(right, scope)?
            }
            Expression::Or(left, right) => {
                self.satisfies(left, scope)? || self.satisfies(right, scope)?
            }
            Expression::Not(inside) => !self.satisfies(inside, scope)?,
            Expression::Match(selector, operator) => {
                // What a list shows in place of a block (`Periodic` of a job: whether there is one)
                // is never nil.
                let of_block = matches!(operator, Operator::IsNil | Operator::IsNotNil);
                let found = self.find(selector, scope, of_block)?;
                matches(found, operator, self.budget)
                    .map_err(|what| wrong(selector.column, what))?
            }
            Expression::Collection(collection) => self.looks_inside(collection, scope)?,
        })
    }

    /// Whether any or all elements satisfy what is between the braces: of what is not there, all
    /// do.
    fn looks_inside(&self, collection: &Collection, scope: &Scope<'_>) -> Result<bool, Error> {
        let Collection { every, selector, names, inside } = collection;
        let found = self.find(selector, scope, false)?;
        let (elements, is_map): (Vec<(Value, &Value)>, bool) = match found {
            None | Some(Value::Null) => return Ok(*every),
            Some(Value::Array(list)) => {
                (list.iter().enumerate().map(|(at, v)| (Value::from(at), v)).collect(), false)
            }
            Some(Value::Object(map)) => {
                (map.iter().map(|(k, v)| (Value::from(k.as_str()), v)).collect(), true)
            }
            Some(value @ (Value::Bool(_) | Value::Number(_) | Value::String(_))) => {
                let what = format!("{} holds nothing to look at, a list or map does", kind(value));
                return Err(wrong(selector.column, what));
            }
        };
        for (key, value) in &elements {
            self.budget.charge(ELEMENT).map_err(|_| {
                wrong(selector.column, "it looks at too much: ask for fewer lists in lists")
            })?;
            let (of_key, of_value) = match names {
                Names::One(name) if is_map => (name.as_deref(), None),
                Names::One(name) => (None, name.as_deref()),
                Names::KeyAndValue(of_key, of_value) => (of_key.as_deref(), of_value.as_deref()),
            };
            let inner = Scope { names: [(of_key, key), (of_value, *value)], outer: Some(scope) };
            if self.satisfies(inside, &inner)? != *every {
                return Ok(!every);
            }
        }
        Ok(*every)
    }

    /// The value that a selector names; none where a map or list has nothing of that name.
    fn find<'s>(
        &'s self,
        selector: &Selector,
        scope: &'s Scope<'_>,
        in_whole: bool,
    ) -> Result<Option<&'s Value>, Error> {
        let Some((field, rest)) = selector.path.split_first() else { return Ok(None) };
        let of_whole = || in_whole.then(|| self.whole()?.get(field)).flatten();
        let found = scope.find(field).or_else(of_whole).or_else(|| self.field(field));
        let Some(mut value) = found else {
            return Err(wrong(selector.column, self.unknown(field)));
        };
        for part in rest {
            let inside = match value {
                Value::Object(object) => object.get(part),
                Value::Array(list) => {
                    let position: usize = part.parse().map_err(|_| {
                        wrong(selector.column, format!("a list has positions, not `{part}`: write the position of an element, from 0"))
                    })?;
                    list.get(position)
                }
                Value::Null => None,
                Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                    let text = format!("{} has no parts, and `{part}` asks for one", kind(value));
                    return Err(wrong(selector.column, text));
                }
            };
            let Some(inside) = inside else { return Ok(None) };
            value = inside;
        }
        Ok(Some(value))
    }

    fn field(&self, name: &str) -> Option<&Value> {
        // A list has null for what it was not asked to show.
        let shown = self.shown.get(name);
        let told = shown.filter(|value| !value.is_null());
        told.or_else(|| self.whole()?.get(name)).or(shown)
    }

    fn whole(&self) -> Option<&Value> {
        let whole = self.whole?;
        Some(self.made.get_or_init(whole))
    }

    /// The error about a field that does not exist, with the nearest that does.
    fn unknown(&self, name: &str) -> String {
        let fields = [Some(self.shown), self.whole()];
        let known = fields.into_iter().flatten().filter_map(Value::as_object).flat_map(Map::keys);
        let nearest = nearest(name, known.map(String::as_str));
        let nearest = nearest.map(|field| format!("; did you mean `{field}`?"));
        // In the words that Nomad's programs look for.
        format!(
            "error finding value in datum: /{name} at part 0: couldn't find key: there is no field `{name}`{}",
            nearest.unwrap_or_default()
        )
    }
}

fn matches(found: Option<&Value>, operator: &Operator, budget: &Budget) -> Result<bool, String> {
    let found = found.filter(|value| !value.is_null());
    Ok(match operator {
        Operator::Equals(expected) => found.map_or(Ok(false), |v| equals(v, expected))?,
        Operator::DoesNotEqual(expected) => !found.map_or(Ok(false), |v| equals(v, expected))?,
        Operator::Contains(item) => found.map_or(Ok(false), |v| contains(v, item))?,
        Operator::DoesNotContain(item) => !found.map_or(Ok(false), |v| contains(v, item))?,
        Operator::Matches(pattern) => found.map_or(Ok(false), |v| fits(v, pattern, budget))?,
        Operator::DoesNotMatch(pattern) => {
            !found.map_or(Ok(false), |v| fits(v, pattern, budget))?
        }
        Operator::IsEmpty => found.map_or(Ok(true), is_empty)?,
        Operator::IsNotEmpty => !found.map_or(Ok(true), is_empty)?,
        Operator::IsNil => found.is_none(),
        Operator::IsNotNil => found.is_some(),
    })
}

fn equals(value: &Value, expected: &str) -> Result<bool, String> {
    match value {
        Value::String(text) => Ok(text == expected),
        Value::Bool(value) => match expected {
            "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(*value),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(!*value),
            _ => Err(format!("this field is true or false, not `{expected}`")),
        },
        Value::Number(number) if number.is_f64() => expected
            .parse::<f64>()
            .map(|expected| number.as_f64() == Some(expected))
            .map_err(|_| format!("this field is a number, not `{expected}`")),
        Value::Number(number) => expected
            .parse::<i128>()
            .map(|expected| {
                number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
                    == Some(expected)
            })
            .map_err(|_| format!("this field is a whole number, not `{expected}`")),
        Value::Null => Ok(false),
        Value::Array(_) | Value::Object(_) => {
            Err(format!("{} cannot be compared: use `in` or `is empty`", kind(value)))
        }
    }
}

fn contains(value: &Value, item: &str) -> Result<bool, String> {
    match value {
        Value::String(text) => Ok(text.contains(item)),
        Value::Object(map) => Ok(map.contains_key(item)),
        Value::Array(list) => {
            for element in list {
                if element.is_object() || element.is_array() {
                    return Err(
                        "this list holds objects: look at them with `any` or `all`, or select one by its position".to_owned()
                    );
                }
                if equals(element, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Null => Ok(false),
        Value::Bool(_) | Value::Number(_) => {
            Err(format!("{} holds nothing: use `==`", kind(value)))
        }
    }
}

fn fits(value: &Value, pattern: &Pattern, budget: &Budget) -> Result<bool, String> {
    match value {
        Value::String(text) => pattern.is_match(text, budget).map_err(|spent| spent.to_string()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(format!("{} cannot be matched: only a text can", kind(value)))
        }
    }
}

fn is_empty(value: &Value) -> Result<bool, String> {
    match value {
        Value::String(text) => Ok(text.is_empty()),
        Value::Array(list) => Ok(list.is_empty()),
        Value::Object(map) => Ok(map.is_empty()),
        Value::Null => Ok(true),
        Value::Bool(_) | Value::Number(_) => {
            Err(format!("{} is never empty: use `==`", kind(value)))
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
