//! Messages about a file, each at a place in it. Owns how they look; never decides what is wrong.

use std::{fmt, ops::Range};

use super::MESSAGES_MAX;

/// Characters of a source line that are shown.
const LINE_CHARS_MAX: usize = 160;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used; something in it has no effect.
    Warning,
}

/// One message about one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// The file as the caller named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong and what to do.
    pub message: String,
    /// The source line, cut to a bounded length.
    pub source_line: String,
    /// Characters from `column` on that the message is about, at least 1.
    pub width: usize,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        writeln!(f, "{severity}: {}", self.message)?;
        writeln!(f, "{margin}--> {}:{}:{}", self.file, self.line, self.column)?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{number} | {}", self.source_line)?;
        let shown = self.source_line.chars().count();
        let start = (self.column - 1).min(shown);
        let padding: String = self
            .source_line
            .chars()
            .take(start)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let width = self.width.min(shown.saturating_sub(start)).max(1);
        writeln!(f, "{margin} | {padding}{}", "^".repeat(width))
    }
}

/// What is wrong with a file, in the order of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    omitted: usize,
}

impl Diagnostics {
    /// The messages.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether the file cannot be used.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

impl<'d> IntoIterator for &'d Diagnostics {
    type Item = &'d Diagnostic;
    type IntoIter = std::slice::Iter<'d, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, diagnostic) in self.list.iter().enumerate() {
            if position > 0 {
                writeln!(f)?;
            }
            write!(f, "{diagnostic}")?;
        }
        if self.omitted > 0 {
            writeln!(f, "\nand {} more messages", self.omitted)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// Collects messages about one file.
pub(super) struct Sink<'s> {
    path: &'s str,
    source: &'s str,
    found: Vec<(Range<usize>, Severity, String)>,
    omitted: usize,
}

impl<'s> Sink<'s> {
    pub(super) fn new(path: &'s str, source: &'s str) -> Self {
        Self { path, source, found: Vec::new(), omitted: 0 }
    }

    /// The source text of a span; empty when the span is not one of this source.
    pub(super) fn text(&self, span: Range<usize>) -> &'s str {
        self.source.get(span).unwrap_or_default()
    }

    pub(super) fn error(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.push(span, Severity::Error, message.into());
    }

    pub(super) fn warning(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.push(span, Severity::Warning, message.into());
    }

    /// Whether the file cannot be used.
    pub(super) fn has_errors(&self) -> bool {
        self.found.iter().any(|(_, severity, _)| *severity == Severity::Error)
    }

    /// Whether a further error would only be counted: what is expensive to say need not be made up.
    pub(super) fn is_full(&self) -> bool {
        // An error must be kept even when warnings filled the list.
        self.found.len() >= MESSAGES_MAX
            && self.found.iter().any(|(_, kept, _)| *kept == Severity::Error)
    }

    /// Counts a message for which there is no room.
    pub(super) fn omit(&mut self) {
        self.omitted += 1;
    }

    fn push(&mut self, span: Range<usize>, severity: Severity, message: String) {
        if self.found.len() >= MESSAGES_MAX {
            self.omit();
            if severity == Severity::Warning || self.is_full() {
                return;
            }
            self.found.pop();
        }
        self.found.push((span, severity, message));
    }

    /// Byte offset of a line and column (bytes), both from 1.
    pub(super) fn offset(&self, line: usize, column: usize) -> usize {
        let start: usize =
            self.source.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
        let mut at = (start + column.saturating_sub(1)).min(self.source.len());
        while !self.source.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    /// The messages, in the order of the file.
    pub(super) fn finish(self) -> Diagnostics {
        let Self { path, source, mut found, omitted } = self;
        found.sort_by_key(|(span, severity, _)| (span.start, *severity));
        let list = found
            .into_iter()
            .map(|(span, severity, message)| locate(path, source, span, severity, message))
            .collect();
        Diagnostics { list, omitted }
    }
}

fn locate(
    path: &str,
    source: &str,
    span: Range<usize>,
    severity: Severity,
    message: String,
) -> Diagnostic {
    let start = span.start.min(source.len());
    let before = source.get(..start).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |position| position + 1);
    let line_text = source.get(line_start..).unwrap_or_default().lines().next().unwrap_or_default();
    let spanned = source.get(span).unwrap_or_default().lines().next().unwrap_or_default();
    Diagnostic {
        severity,
        file: path.to_owned(),
        line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
        column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
        message,
        source_line: line_text.chars().take(LINE_CHARS_MAX).collect(),
        width: spanned.chars().count().max(1),
    }
}
