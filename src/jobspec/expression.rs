//! HCL expressions that are plain values. Owns the line between what is known when a file is read (refused by name, because nothing
//! is evaluated here) and what only a node knows (`${attr.kernel.name}`, `${NOMAD_PORT_http}`: kept as text).

use std::ops::Range;

use hcl::edit::{
    Span,
    expr::{Expression, Object, ObjectKey, Traversal, TraversalOperator},
    template::{Element, Interpolation, Strip, Template},
};
use serde_json::{Map, Number, Value};

use super::diagnostic::Sink;

/// Names that HCL evaluates while it reads a file.
const FILE_SCOPE: [&str; 6] = ["var", "local", "each", "path", "self", "source"];

/// The value of an expression, or `None` after a message. `fallback` is the place of the message when the expression has none.
pub(super) fn value(
    expression: &Expression,
    fallback: &Range<usize>,
    sink: &mut Sink<'_>,
) -> Option<Value> {
    let span = expression.span().unwrap_or_else(|| fallback.clone());
    let refused = |sink: &mut Sink<'_>, what: &str| {
        sink.error(span.clone(), format!("{what} not supported yet: write the value itself"));
        None
    };
    match expression {
        Expression::Null(_) => Some(Value::Null),
        Expression::Bool(value) => Some(Value::Bool(*value.value())),
        Expression::Number(number) => number_value(number.value(), &span, sink),
        Expression::String(text) => Some(Value::String(text.value().clone())),
        Expression::StringTemplate(template) => text(template, &span, sink).map(Value::String),
        Expression::HeredocTemplate(heredoc) => {
            text(&heredoc.template, &span, sink).map(Value::String)
        }
        Expression::Array(array) => {
            let values: Vec<_> = array.iter().map(|item| value(item, &span, sink)).collect();
            values.into_iter().collect::<Option<Vec<_>>>().map(Value::Array)
        }
        Expression::Object(object) => object_value(object, &span, sink).map(Value::Object),
        Expression::Parenthesis(inner) => value(inner.inner(), &span, sink),
        Expression::Variable(name) => {
            sink.error(
                span,
                format!("`{0}` is not a value: text needs quotes, write \"{0}\"", name.as_str()),
            );
            None
        }
        Expression::Traversal(traversal) => {
            bare_traversal(traversal, &span, sink);
            None
        }
        Expression::FuncCall(call) => {
            function_refused(call.name.name.as_str(), span, sink);
            None
        }
        Expression::Conditional(_) => refused(sink, "conditional expressions (`a ? b : c`) are"),
        Expression::UnaryOp(_) | Expression::BinaryOp(_) => refused(sink, "operators are"),
        Expression::ForExpr(_) => refused(sink, "`for` expressions are"),
    }
}

fn number_value(number: &hcl::Number, span: &Range<usize>, sink: &mut Sink<'_>) -> Option<Value> {
    let value = number
        .as_u64()
        .map(Number::from)
        .or_else(|| number.as_i64().map(Number::from))
        .or_else(|| number.as_f64().and_then(Number::from_f64));
    if value.is_none() {
        sink.error(span.clone(), "this number is out of range");
    }
    value.map(Value::Number)
}

fn object_value(
    object: &Object,
    span: &Range<usize>,
    sink: &mut Sink<'_>,
) -> Option<Map<String, Value>> {
    let mut out = Map::new();
    let mut whole = true;
    for (key, item) in object {
        let name = object_key(key, span, sink);
        let item = value(item.expr(), span, sink);
        match (name, item) {
            (Some(name), Some(item)) => {
                if out.insert(name.clone(), item).is_some() {
                    sink.error(
                        key.span().unwrap_or_else(|| span.clone()),
                        format!("key \"{name}\" is given twice: remove one"),
                    );
                    whole = false;
                }
            }
            _ => whole = false,
        }
    }
    whole.then_some(out)
}

fn object_key(key: &ObjectKey, fallback: &Range<usize>, sink: &mut Sink<'_>) -> Option<String> {
    match key {
        ObjectKey::Ident(name) => Some(name.as_str().to_owned()),
        ObjectKey::Expression(expression) => match value(expression, fallback, sink)? {
            Value::String(name) => Some(name),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                let span = expression.span().unwrap_or_else(|| fallback.clone());
                sink.error(span, "a key must be a name or a text");
                None
            }
        },
    }
}

/// The text of a template whose interpolations are all left to the node.
fn text(template: &Template, fallback: &Range<usize>, sink: &mut Sink<'_>) -> Option<String> {
    let mut out = String::new();
    let mut whole = true;
    for element in template {
        match element {
            Element::Literal(literal) => out.push_str(literal.value()),
            Element::Interpolation(interpolation) => {
                match interpolation_text(interpolation, element, fallback, sink) {
                    Some(text) => out.push_str(text),
                    None => whole = false,
                }
            }
            Element::Directive(_) => {
                let span = element.span().unwrap_or_else(|| fallback.clone());
                sink.error(
                    span,
                    "template directives (`%{ if … }`, `%{ for … }`) are not supported yet: write the text itself (`%%{` for a literal `%{`)",
                );
                whole = false;
            }
        }
    }
    whole.then_some(out)
}

/// The source text of `${…}` when only a node can resolve it.
fn interpolation_text<'s>(
    interpolation: &Interpolation,
    element: &Element,
    fallback: &Range<usize>,
    sink: &mut Sink<'s>,
) -> Option<&'s str> {
    let span = element.span().unwrap_or_else(|| fallback.clone());
    if interpolation.strip != Strip::None {
        sink.error(span, "strip markers (`${~ … ~}`) are not supported: remove the `~`");
        return None;
    }
    if let Expression::FuncCall(call) = &interpolation.expr {
        function_refused(call.name.name.as_str(), span, sink);
        return None;
    }
    let path = if let Expression::Traversal(traversal) = &interpolation.expr {
        is_path(traversal).then_some(&traversal.expr)
    } else {
        Some(&interpolation.expr)
    };
    let root = path.and_then(|path| path.as_variable());
    if let Some(name) = root.and_then(|name| file_scope(name.as_str())) {
        file_scope_refused(name, span, sink);
        return None;
    }
    if root.is_none() {
        sink.error(
            span,
            "only references that a node resolves, such as `${attr.kernel.name}`, are supported in a text: write the value itself (`$${` for a literal `${`)",
        );
        return None;
    }
    Some(sink.text(span))
}

/// Whether the operators only walk down names and indexes.
fn is_path(traversal: &Traversal) -> bool {
    traversal.operators.iter().all(|operator| match operator.value() {
        TraversalOperator::GetAttr(_) | TraversalOperator::LegacyIndex(_) => true,
        TraversalOperator::Index(index) => index.is_str() || index.is_number(),
        TraversalOperator::AttrSplat(_) | TraversalOperator::FullSplat(_) => false,
    })
}

fn bare_traversal(traversal: &Traversal, span: &Range<usize>, sink: &mut Sink<'_>) {
    if let Expression::Variable(name) = &traversal.expr {
        if let Some(name) = file_scope(name.as_str()) {
            file_scope_refused(name, span.clone(), sink);
        } else {
            let text = sink.text(span.clone()).trim();
            let message = format!("references need quotes: write \"${{{text}}}\"");
            sink.error(span.clone(), message);
        }
    } else {
        sink.error(span.clone(), "indexing a value is not supported yet: write the value itself");
    }
}

fn file_scope(name: &str) -> Option<&'static str> {
    FILE_SCOPE.into_iter().find(|known| *known == name)
}

fn file_scope_refused(name: &str, span: Range<usize>, sink: &mut Sink<'_>) {
    let what = match name {
        "var" => "variables (`var.…`) are",
        "local" => "locals (`local.…`) are",
        _ => {
            sink.error(span, format!("`{name}.…` is not supported yet: write the value itself"));
            return;
        }
    };
    sink.error(span, format!("{what} not supported yet: write the value itself"));
}

fn function_refused(name: &str, span: Range<usize>, sink: &mut Sink<'_>) {
    sink.error(
        span,
        format!("function `{name}` cannot be called: functions are not supported yet, write the result itself"),
    );
}
