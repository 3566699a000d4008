//! The file of the budget, `tests/budget/budget.txt`: what may be used, and why more than once.
//!
//! ```text
//!  operation | rows | bytes       a table: what each may use. Lowered here, never raised
//!  place 1   | 5    | 3900
//!
//!  raised  | column | to | because
//!  place 1 | rows   | 6  | why it is worth that
//! ```
//!
//! The figures of a table only ever fall: `UPDATE=1` takes a lower one over, and writes a higher one
//! as a line under `raised`, which is refused until somebody has written a reason into it. So a
//! figure that rose keeps its reason for as long as it is above what it was.

use std::{collections::BTreeMap, fmt::Write as _};

/// Percent by which what is measured may differ from its figure.
const TOLERANCE_PERCENT: u64 = 5;
/// Columns that are counted in whole things, of which one more is told.
const EXACT: [&str; 3] = ["entries", "rows", "passes"];
/// Words of a reason.
const REASON_WORDS_MIN: usize = 3;
const RAISED: &str = "raised";
/// Stands where a reason is to be written.
const MISSING: char = '?';
pub(crate) const COMMAND: &str = "UPDATE=1 cargo test -p quorate --test budget";

/// Named figures under named columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Table {
    /// What its rows are.
    pub(crate) of: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<(String, Vec<u64>)>,
}

impl Table {
    pub(crate) fn new(of: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { of: of.to_owned(), columns, rows: Vec::new() }
    }

    fn figure(&self, name: &str, column: &str) -> Option<u64> {
        let at = self.columns.iter().position(|one| one == column)?;
        let (_, figures) = self.rows.iter().find(|(one, _)| one == name)?;
        figures.get(at).copied()
    }

    fn cells(&self) -> impl Iterator<Item = ((&str, &str), u64)> {
        self.rows.iter().flat_map(move |(name, figures)| {
            let columns = self.columns.iter().map(String::as_str);
            columns.zip(figures).map(move |(column, figure)| ((name.as_str(), column), *figure))
        })
    }
}

/// A figure that rose, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Raise {
    to: u64,
    because: String,
}

/// The whole file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Budget {
    /// The comment at its top.
    comment: String,
    tables: Vec<Table>,
    /// By name and column.
    raised: BTreeMap<(String, String), Raise>,
}

/// How something measured stands to its figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Kept,
    Rose,
    Fell,
}

fn standing(column: &str, figure: u64, measured: u64) -> Standing {
    let slack = if EXACT.contains(&column) { 0 } else { figure * TOLERANCE_PERCENT / 100 };
    if measured > figure + slack {
        Standing::Rose
    } else if measured + slack < figure {
        Standing::Fell
    } else {
        Standing::Kept
    }
}

fn split(line: &str) -> Vec<String> {
    line.split('|').map(|cell| cell.trim().to_owned()).collect()
}

impl Budget {
    /// Reads the file; an error names the line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut budget = Self::default();
        for block in text.split("\n\n").filter(|block| !block.trim().is_empty()) {
            let mut lines = block.lines().filter(|line| !line.is_empty());
            let Some(first) = lines.next() else { continue };
            if first.starts_with('#') {
                block.trim().clone_into(&mut budget.comment);
            } else if split(first)[0] == RAISED {
                for line in lines {
                    budget.parse_raise(line)?;
                }
            } else {
                let mut header = split(first).into_iter();
                let of = header.next().unwrap_or_default();
                let mut table = Table { of, columns: header.collect(), rows: Vec::new() };
                for line in lines {
                    table.rows.push(parse_row(line, table.columns.len())?);
                }
                budget.tables.push(table);
            }
        }
        Ok(budget)
    }

    fn parse_raise(&mut self, line: &str) -> Result<(), String> {
        let cells = split(line);
        let [name, column, to, because] = &cells[..] else {
            return Err(format!("`{line}`: a raise has a name, a column, a figure and a reason"));
        };
        let to = to.parse().map_err(|_| format!("`{line}`: `{to}` is not a number"))?;
        let raise = Raise { to, because: because.clone() };
        if self.raised.insert((name.clone(), column.clone()), raise).is_some() {
            return Err(format!("`{line}`: a second raise of the same figure"));
        }
        Ok(())
    }

    fn figure(&self, name: &str, column: &str) -> Option<u64> {
        self.tables.iter().find_map(|table| table.figure(name, column))
    }

    fn allowed(&self, name: &str, column: &str) -> Option<u64> {
        let raise = self.raised.get(&(name.to_owned(), column.to_owned()));
        raise.map(|raise| raise.to).or_else(|| self.figure(name, column))
    }

    /// What is wrong with what was measured, by this budget; nothing: it is kept.
    pub(crate) fn check(&self, measured: &[Table]) -> Vec<String> {
        let mut wrong = Vec::new();
        let cells = || measured.iter().flat_map(Table::cells);
        for ((name, column), now) in cells() {
            let Some(was) = self.allowed(name, column) else {
                wrong.push(format!("{name}: {column}: {now}, and the budget has no figure for it"));
                continue;
            };
            let percent = |by: u64| by * 100 / was.max(1);
            match standing(column, was, now) {
                Standing::Kept => {}
                Standing::Rose => wrong.push(format!(
                    "{name}: {column} rose from {was} to {now} (+{} %)",
                    percent(now - was)
                )),
                Standing::Fell => wrong.push(format!(
                    "{name}: {column} fell from {was} to {now} (-{} %): keep what was won",
                    percent(was - now)
                )),
            }
        }
        for ((name, column), _) in self.tables.iter().flat_map(Table::cells) {
            if !cells().any(|(cell, _)| cell == (name, column)) {
                wrong.push(format!("{name}: {column} is in the budget and is not measured"));
            }
        }
        for ((name, column), raise) in &self.raised {
            let words = raise.because.split_whitespace().count();
            if words < REASON_WORDS_MIN || raise.because.starts_with(MISSING) {
                wrong.push(format!(
                    "{name}: {column} is raised to {} without a reason: write it into its line",
                    raise.to
                ));
            }
            if self.figure(name, column).is_none_or(|figure| figure >= raise.to) {
                wrong.push(format!("{name}: {column} is raised to no more than its figure"));
            }
        }
        wrong
    }

    /// The budget with what was measured: figures fall, and what rose is written as raised.
    pub(crate) fn update(&self, measured: &[Table]) -> Self {
        let mut updated = Self { comment: self.comment.clone(), ..Self::default() };
        for table in measured {
            let mut kept = Table { rows: Vec::new(), ..table.clone() };
            for (name, figures) in &table.rows {
                let columns = table.columns.iter().zip(figures);
                let figures = columns
                    .map(|(column, now)| self.update_cell(name, column, *now, &mut updated.raised));
                kept.rows.push((name.clone(), figures.collect()));
            }
            updated.tables.push(kept);
        }
        updated
    }

    /// The figure of a cell in the table; above it the raise stays, or comes.
    fn update_cell(
        &self,
        name: &str,
        column: &str,
        now: u64,
        raised: &mut BTreeMap<(String, String), Raise>,
    ) -> u64 {
        let Some(figure) = self.figure(name, column) else { return now };
        let key = (name.to_owned(), column.to_owned());
        let raise = self.raised.get(&key);
        let was = raise.map_or(figure, |raise| raise.to);
        match (standing(column, was, now), raise) {
            (Standing::Kept, raise) => {
                raised.extend(raise.map(|raise| (key, raise.clone())));
                figure
            }
            (Standing::Fell, Some(raise)) if standing(column, figure, now) == Standing::Rose => {
                raised.insert(key, Raise { to: now, ..raise.clone() });
                figure
            }
            (Standing::Fell, _) => now.min(figure),
            // A reason counts for the figure that it was given for.
            (Standing::Rose, raise) => {
                let before = raise.map(|raise| format!(" before: {}", raise.because));
                let because = format!("{MISSING}{}", before.unwrap_or_default());
                raised.insert(key, Raise { to: now, because });
                figure
            }
        }
    }
}

fn parse_row(line: &str, columns: usize) -> Result<(String, Vec<u64>), String> {
    let mut cells = split(line).into_iter();
    let name = cells.next().unwrap_or_default();
    let figures: Result<Vec<u64>, _> = cells.map(|cell| cell.parse()).collect();
    let figures = figures.map_err(|_| format!("`{line}`: its figures are not all numbers"))?;
    if figures.len() != columns {
        return Err(format!("`{line}`: {} figures for {columns} columns", figures.len()));
    }
    Ok((name, figures))
}

/// Lines of cells, one under the other: the first column and the last from the left, figures from
/// the right.
fn aligned(lines: &[Vec<String>], texts: &[usize]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
            if texts.contains(&at) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let cells: Vec<String> = cells.collect();
        out.push_str(cells.join(" | ").trim_end());
        out.push('\n');
    }
    out
}

impl std::fmt::Display for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = format!("{}\n", self.comment);
        for table in &self.tables {
            let header = [std::slice::from_ref(&table.of), &table.columns].concat();
            let rows = table.rows.iter().map(|(name, figures)| {
                let figures = figures.iter().map(u64::to_string);
                [name.clone()].into_iter().chain(figures).collect()
            });
            let lines: Vec<Vec<String>> = [header].into_iter().chain(rows).collect();
            write!(out, "\n{}", aligned(&lines, &[0]))?;
        }
        let header = [RAISED, "column", "to", "because"].map(str::to_owned).to_vec();
        let raised = self.raised.iter().map(|((name, column), Raise { to, because })| {
            vec![name.clone(), column.clone(), to.to_string(), because.clone()]
        });
        let lines: Vec<Vec<String>> = [header].into_iter().chain(raised).collect();
        write!(out, "\n{}", aligned(&lines, &[0, 1, 3]))?;
        f.write_str(&out)
    }
}

#[cfg(test)]
mod tests;
