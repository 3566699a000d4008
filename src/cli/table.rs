//! How tables, pairs and help fit a terminal. No word is broken and nothing is left out: cells are
//! wrapped at blanks, and columns that find no room beside the others follow below, with the first
//! column before them. Where no terminal is, tables stay as wide as they are.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shown for an empty cell.
const EMPTY_CELL: &str = "<none>";
/// Spaces between columns.
const GAP: usize = 2;
/// A column is not wrapped to less.
const WRAPPED_MIN: usize = 16;

/// Whether a person reads what this process prints. Set once, before anything is printed; never by
/// tests.
static FOR_A_TERMINAL: AtomicBool = AtomicBool::new(false);

/// From now on what is laid out fits the terminal.
pub(crate) fn fit_terminal() {
    FOR_A_TERMINAL.store(true, Ordering::Relaxed);
}

/// Columns of the terminal, read each time: people change them.
fn terminal_columns() -> Option<usize> {
    if !FOR_A_TERMINAL.load(Ordering::Relaxed) {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Whether a character moves the cursor, hides, or turns round what stands beside it.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

/// Text with everything that could deceive the reader written out, except line breaks and tabs.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    escaped_unless(text, |c| matches!(c, '\n' | '\t'))
}

/// As [`escaped`], line breaks and tabs too: a name cannot make up a row.
pub(crate) fn escaped_line(text: &str) -> Cow<'_, str> {
    escaped_unless(text, |_| false)
}

fn escaped_unless(text: &str, is_kept: fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| is_hidden(c) && !is_kept(c)) {
        return text.into();
    }
    let shown = |c: char| {
        if is_hidden(c) && !is_kept(c) { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(shown).collect::<String>().into()
}

/// Colours of a terminal.
pub(crate) const RESET: &str = "\u{1b}[0m";
pub(crate) const GREEN: &str = "\u{1b}[32m";
pub(crate) const RED: &str = "\u{1b}[31m";
pub(crate) const YELLOW: &str = "\u{1b}[33m";

/// As [`escaped`], but for the colours above.
pub(crate) fn escaped_but_colours(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        let (before, from) = rest.split_at(at);
        out.push_str(&escaped(before));
        let colour = [RESET, GREEN, RED, YELLOW].into_iter().find(|one| from.starts_with(one));
        let length = colour.map_or(1, str::len);
        out.push_str(&colour.map_or_else(|| escaped(&from[..length]), Cow::Borrowed));
        rest = &from[length..];
    }
    out.push_str(&escaped(rest));
    out
}

/// JSON with everything that could deceive the reader as JSON's own escapes: the same values.
pub(crate) fn escaped_json(text: &str) -> String {
    let shown = |c: char| {
        if is_hidden(c) && c != '\n' { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
    };
    text.chars().map(shown).collect()
}

/// A table: columns two spaces apart, as wide as their widest cell where there is room.
pub(crate) fn table(headers: &[&str], rows: &[Vec<String>]) -> String {
    table_within(headers, rows, terminal_columns())
}

fn table_within(headers: &[&str], rows: &[Vec<String>], room: Option<usize>) -> String {
    let shown = |cell: &String| match cell.as_str() {
        "" => EMPTY_CELL.to_owned(),
        cell => escaped_line(cell).into_owned(),
    };
    let mut lines: Vec<Vec<String>> = vec![headers.iter().map(|&head| head.to_owned()).collect()];
    lines.extend(rows.iter().map(|row| row.iter().map(shown).collect()));
    let columns: Vec<Column> = (0..headers.len()).map(|at| Column::of(&lines, at)).collect();
    let whole: usize = columns.iter().map(|column| column.width + GAP).sum();
    match room {
        Some(room) if whole > room + GAP => {
            let parts = side_by_side(&columns, room);
            let drawn = parts.iter().map(|part| draw(&lines, part, &wrapped(&columns, part, room)));
            drawn.collect::<Vec<_>>().join("\n\n")
        }
        _ => {
            let all: Vec<usize> = (0..columns.len()).collect();
            let widths: Vec<usize> = columns.iter().map(|column| column.width).collect();
            draw(&lines, &all, &widths)
        }
    }
}

/// How wide a column is, and at least has to be.
#[derive(Clone, Copy)]
struct Column {
    width: usize,
    /// Its longest word, and not so little that a sentence becomes a pillar.
    width_min: usize,
}

impl Column {
    fn of(lines: &[Vec<String>], at: usize) -> Self {
        let cells = || lines.iter().filter_map(|line| line.get(at));
        let width = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let words = cells().flat_map(|cell| words(cell));
        let word = words.map(|word| word.trim_end().chars().count()).max().unwrap_or(0);
        Self { width, width_min: word.max(width.min(WRAPPED_MIN)) }
    }
}

/// The columns that go beside each other; each part but the first begins with the first column
/// again.
fn side_by_side(columns: &[Column], room: usize) -> Vec<Vec<usize>> {
    let mut parts = vec![Vec::new()];
    let mut used = 0;
    for (at, column) in columns.iter().enumerate() {
        let part = parts.last_mut().expect("there is always one part");
        // The first column alone says nothing.
        if part.len() < 2 || used + column.width_min <= room {
            part.push(at);
            used += column.width_min + GAP;
        } else {
            parts.push(vec![0, at]);
            used = columns[0].width_min + column.width_min + 2 * GAP;
        }
    }
    parts
}

/// The widths of some columns, the widest made narrower until they fit.
fn wrapped(columns: &[Column], part: &[usize], room: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = part.iter().map(|&at| columns[at].width).collect();
    loop {
        let used = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let excess = used.saturating_sub(room);
        let spare = |place: usize| widths[place].saturating_sub(columns[part[place]].width_min);
        let widest = (0..widths.len()).filter(|&place| spare(place) > 0);
        let Some(widest) = widest.max_by_key(|&place| widths[place]).filter(|_| excess > 0) else {
            return widths;
        };
        // Not below the next widest at once, so that the room is shared.
        let next = (0..widths.len()).filter(|&place| place != widest).map(|place| widths[place]);
        let above = widths[widest].saturating_sub(next.max().unwrap_or(0)).max(1);
        widths[widest] -= excess.min(spare(widest)).min(above);
    }
}

fn draw(lines: &[Vec<String>], part: &[usize], widths: &[usize]) -> String {
    let mut drawn = Vec::new();
    for line in lines {
        let cells: Vec<Vec<String>> = part
            .iter()
            .zip(widths)
            .map(|(&at, &width)| line.get(at).map_or_else(Vec::new, |cell| wrap(cell, width)))
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        for row in 0..height {
            let cell = |cells: &Vec<String>| cells.get(row).cloned().unwrap_or_default();
            let texts = cells.iter().zip(widths).map(|(cells, &width)| {
                let text = cell(cells);
                format!("{text:<width$}")
            });
            drawn.push(texts.collect::<Vec<_>>().join("  ").trim_end().to_owned());
        }
    }
    drawn.join("\n")
}

/// Text in lines of at most so many characters, no word of it broken: a longer one has a line of
/// its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines = Vec::new();
    let (mut line, mut used) = (String::new(), 0);
    for word in words(text) {
        let length = word.trim_end_matches(' ').chars().count();
        if used > 0 && used + length > width {
            lines.push(std::mem::take(&mut line).trim_end().to_owned());
            used = 0;
        }
        line.push_str(word);
        used += word.chars().count();
    }
    lines.push(line);
    lines
}

/// Where text may be cut: behind blanks and commas.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive([' ', ','])
}

/// `Name = value` lines with the equals signs below each other.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    pairs_within(pairs, terminal_columns())
}

fn pairs_within(pairs: &[(&str, String)], room: Option<usize>) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let before = width + " = ".len();
    let lines = pairs.iter().map(|(name, value)| {
        let value = if value.is_empty() { EMPTY_CELL.into() } else { escaped_line(value) };
        let rest = room.map_or(usize::MAX, |room| room.saturating_sub(before).max(WRAPPED_MIN));
        let value = wrap(&value, rest).join(&format!("\n{}", " ".repeat(before)));
        format!("{name:<width$} = {value}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Help in which longer lines go on below the text that they wrap.
pub(crate) fn help(text: &str) -> String {
    help_within(text, terminal_columns())
}

fn help_within(text: &str, room: Option<usize>) -> String {
    let Some(room) = room else { return text.to_owned() };
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
        out.push_str(&help_line(body, room));
        out.push_str(end);
    }
    out
}

fn help_line(line: &str, room: usize) -> String {
    if line.chars().count() <= room {
        return line.to_owned();
    }
    let indent = line.len() - line.trim_start_matches(' ').len();
    let after = line[indent..].find("  ").map_or(indent, |at| {
        let gap = &line[indent + at..];
        line.len() - gap.trim_start_matches(' ').len()
    });
    // A text that has hardly a column of its own goes on below the beginning of the line.
    let after =
        if after + WRAPPED_MIN > room || !line.is_char_boundary(after) { indent } else { after };
    let (before, text) = line.split_at(after);
    let hang = before.chars().count();
    format!(
        "{before}{}",
        wrap(text, room - hang.min(room)).join(&format!("\n{}", " ".repeat(hang)))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn tables_are_aligned() {
        assert_eq!(
            table(
                &["ID", "Status", "Node"],
                &[row(["web", "running", ""]), row(["b", "dead", "n1"])]
            ),
            "ID   Status   Node\nweb  running  <none>\nb    dead     n1"
        );
        assert_eq!(table(&["ID"], &[]), "ID");
        assert_eq!(
            pairs(&[("ID", "web".to_owned()), ("Node Pool", String::new())]),
            "ID        = web\nNode Pool = <none>"
        );
    }

    #[test]
    fn a_table_without_room_wraps_sentences_and_then_whole_columns() {
        let rows = [row(["5b98a6ea", "waits for a node that has room", "pending"])];
        let heads = ["ID", "What It Does", "Status"];
        let whole = "ID        What It Does                    Status\n\
                     5b98a6ea  waits for a node that has room  pending";
        for room in [None, Some(200), Some(49)] {
            assert_eq!(table_within(&heads, &rows, room), whole, "{room:?}");
        }
        assert_eq!(
            table_within(&heads, &rows, Some(40)),
            "ID        What It Does           Status\n\
             5b98a6ea  waits for a node that  pending\n          has room"
        );
        assert_eq!(
            table_within(&heads, &rows, Some(30)),
            "ID        What It Does\n5b98a6ea  waits for a node\n          that has room\n\n\
             ID        Status\n5b98a6ea  pending"
        );
        // Words are never broken, however little room there is.
        let narrow = table_within(&heads, &rows, Some(1));
        for word in ["5b98a6ea", "Status", "pending"] {
            assert!(narrow.contains(word), "{narrow}");
        }
    }

    /// Whatever the cells are, each word of each stands in the table, and lines have the room
    /// unless two columns need more.
    #[test]
    fn nothing_is_lost_at_any_width() {
        let heads =
            ["Name", "Address", "Port", "Status", "Leader", "Raft Version", "Build", "Region"];
        let cells =
            ["server-1.global", "127.0.0.1", "4648", "alive", "true", "3", "0.0.1", "global"];
        let rows = [row(cells), row(["", "a b c d e f g h i j k l m", "", "x", "", "", "", "é"])];
        for room in 1..150 {
            let drawn = table_within(&heads, &rows, Some(room));
            for word in heads.iter().chain(&cells).flat_map(|cell| cell.split(' ')) {
                assert!(
                    drawn.split_whitespace().any(|found| found == word),
                    "{room} {word}: {drawn}"
                );
            }
            let widest = drawn.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(widest <= room.max(33), "{room}: {widest}\n{drawn}");
        }
    }

    #[test]
    fn values_and_help_go_on_below_themselves() {
        let value = [("Description", "one two three four five six".to_owned())];
        let expected = "Description = one two three\n              four five six";
        assert_eq!(pairs_within(&value, Some(29)), expected);
        assert_eq!(pairs_within(&value, None), "Description = one two three four five six");
        let text = "Usage: x\n\n      --address <URL>  HTTP address of any server\n  quorate up examples/web.hcl\n";
        assert_eq!(
            help_within(text, Some(40)),
            "Usage: x\n\n      --address <URL>  HTTP address of\n                       any server\n  quorate up examples/web.hcl\n"
        );
        assert_eq!(help_within(text, None), text);
        assert_eq!(help_within("one two three", Some(8)), "one two\nthree");
    }

    #[test]
    fn characters_that_could_deceive_a_reader_are_written_out() {
        let name = "a\u{1b}[2J\r\n\tb\u{9b}31m\u{7f}\u{202e}c\u{feff}";
        assert_eq!(escaped(name), "a\\u{1b}[2J\\r\n\tb\\u{9b}31m\\u{7f}\\u{202e}c\\u{feff}");
        assert!(escaped_line(name).starts_with("a\\u{1b}[2J\\r\\n\\tb"));
        assert!(matches!(escaped("käse ✓ 日本\n"), Cow::Borrowed(_)));
        let drawn = table(&["ID", "Status"], &[row(["a\nb", "dead"])]);
        assert_eq!(drawn, "ID    Status\na\\nb  dead");
        assert_eq!(pairs(&[("ID", "a\nID = b".to_owned())]), "ID = a\\nID = b");
        let json = serde_json::json!({ "name": name });
        let shown = escaped_json(&format!("{json:#}"));
        assert!(!shown.chars().any(|c| is_hidden(c) && c != '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).ok(), Some(json));
    }
}
