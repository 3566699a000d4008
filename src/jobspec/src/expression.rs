//! HCL expressions that are plain values. Owns the line between what is known when a file is read
//! (refused by name, because nothing is evaluated here) and what only a node knows
//! (`${attr.kernel.name}`, `${NOMAD_PORT_http}`: kept as text), and the indentation of heredocs:
//! the parser's rule is not HCL's, so it is never used.

use std::ops::Range;

use hcl::edit::{
    Span, Spanned,
    expr::{Expression, Object, ObjectKey, Traversal, TraversalOperator},
    template::{Element, HeredocTemplate, Interpolation, Strip, Template},
};
use serde_json::{Map, Number, Value};

use super::diagnostic::Sink;

/// Names that HCL evaluates while it reads a file.
const FILE_SCOPE: [&str; 6] = ["var", "local", "each", "path", "self", "source"];

/// The value of an expression, or `None` after a message. `fallback` is the place of the message
/// when the expression has none.
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
            heredoc_text(heredoc, &span, sink).map(Value::String)
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

/// A part of a template.
enum Part<'t, 's> {
    /// Text as the parser gives it.
    Literal(&'t Spanned<String>),
    /// `${…}` as it stands in the source.
    Reference(&'s str),
}

/// The parts of a template whose interpolations are all left to the node.
fn parts<'t, 's>(
    template: &'t Template,
    fallback: &Range<usize>,
    sink: &mut Sink<'s>,
) -> Option<Vec<Part<'t, 's>>> {
    let mut out = Vec::new();
    let mut whole = true;
    for element in template {
        match element {
            Element::Literal(literal) => out.push(Part::Literal(literal)),
            Element::Interpolation(interpolation) => {
                match interpolation_text(interpolation, element, fallback, sink) {
                    Some(text) => out.push(Part::Reference(text)),
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

/// The text of a template.
fn text(template: &Template, fallback: &Range<usize>, sink: &mut Sink<'_>) -> Option<String> {
    let parts = parts(template, fallback, sink)?;
    let texts = parts.iter().map(|part| match part {
        Part::Literal(literal) => literal.value().as_str(),
        Part::Reference(text) => *text,
    });
    Some(texts.collect())
}

/// A run of a heredoc's text that ends where its line or the next interpolation does.
struct Run {
    text: String,
    /// Whether a line begins with it.
    leads: bool,
}

impl Run {
    /// Leading blanks of the line, in characters; nothing for what is in the midst of a line and
    /// for lines of only blanks.
    fn indent(&self) -> Option<usize> {
        let blank = self.text.ends_with('\n') && self.text.trim_start().is_empty();
        let counts = self.leads && !blank;
        counts.then(|| self.text.chars().take_while(|c| c.is_whitespace()).count())
    }
}

/// The text of a heredoc. Of `<<-` the indentation that all its lines share is removed; a line that
/// begins with an interpolation has none, and lines of only blanks neither count nor change (HCL's
/// `flushHeredocTemplateParts`). What the parser removed is read again from the source: it passes
/// over whole literals, and then cuts into their words.
fn heredoc_text(
    heredoc: &HeredocTemplate,
    span: &Range<usize>,
    sink: &mut Sink<'_>,
) -> Option<String> {
    if !sink.text(span.clone()).starts_with("<<-") {
        return text(&heredoc.template, span, sink);
    }
    let mut runs = Vec::new();
    let mut leads = true;
    for part in parts(&heredoc.template, span, sink)? {
        match part {
            Part::Reference(text) => {
                runs.push(Run { text: text.to_owned(), leads });
                leads = false;
            }
            Part::Literal(literal) => {
                let Some(place) = literal.span() else {
                    let message =
                        "the indentation of this text cannot be told: use `<<` instead of `<<-`";
                    sink.error(span.clone(), message);
                    return None;
                };
                for line in unescaped(sink.text(place)).split_inclusive('\n') {
                    runs.push(Run { text: line.to_owned(), leads });
                    leads = line.ends_with('\n');
                }
            }
        }
    }
    let shared = runs.iter().filter_map(Run::indent).min().unwrap_or(0);
    let mut out = String::new();
    for run in &runs {
        let removed = if run.indent().is_some() { shared } else { 0 };
        out.extend(run.text.chars().skip(removed));
    }
    Some(out)
}

/// A heredoc's text knows two escapes and no other.
fn unescaped(source: &str) -> String {
    source.replace("$${", "${").replace("%%{", "%{")
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
