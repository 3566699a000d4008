//! The only place that prints: lines, tables, JSON, and a block of lines that is drawn anew when it
//! changes.
//!
//! Names come from other people: a control character in one is shown as an escape, whatever prints
//! it. Only logs and files are as they are, by [`Output::log_or_file`], which nothing else may call
//! (`cargo xtask tidy`).
//!
//! Results go to standard output, advice and errors to standard error. Must never panic on a closed
//! pipe: a failed write is an `io::Error` that ends the command quietly (`quorate job status |
//! head`).

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;

use serde_json::Value;

use super::table::{escaped, escaped_but_colours, escaped_json, escaped_line, fit_terminal, help};
pub(crate) use super::table::{pairs, table};
use super::view::Fields;

const KIB: f64 = 1024.0;
const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
/// Digits of an id shown without `-verbose`.
const SHORT_ID_BYTES: usize = 8;
const UUID_BYTES: usize = 36;

/// A table of rows by (heading, field); UUIDs are short unless `-verbose`.
pub(crate) fn fields(rows: &[Value], columns: &[(&str, &str)], style: Style) -> String {
    // A job's id is a name, and is never cut.
    let is_job = |row: &Value, field: &str| field == "JobID" || row.present("JobSummary").is_some();
    let cell = |row: &Value, field: &str| match row.text(field) {
        id if field.ends_with("ID") && id.len() == UUID_BYTES && !is_job(row, field) => {
            style.id(id)
        }
        _ => row.shown(field),
    };
    let line = |row: &Value| columns.iter().map(|(_, field)| cell(row, field)).collect();
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    table(&heads, &lines)
}

/// A table of rows by (heading, cell).
pub(crate) fn listed<T>(rows: &[T], columns: &[(&str, Cell<'_, T>)]) -> String {
    let line = |row: &T| columns.iter().map(|(_, cell)| cell(row)).collect();
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    table(&heads, &lines)
}

/// What a column shows of a row.
pub(crate) type Cell<'a, T> = &'a dyn Fn(&T) -> String;

/// Where a command prints.
#[derive(Debug)]
pub(crate) struct Output {
    sink: Mutex<Sink>,
    terminal: bool,
    /// Lines of the block that [`Output::block`] drew last and that are still the last ones on the
    /// terminal.
    block_lines: Mutex<usize>,
}

#[derive(Debug)]
enum Sink {
    Process,
    #[cfg(test)]
    Memory {
        out: Vec<u8>,
        err: Vec<u8>,
    },
}

impl Output {
    /// Prints to this process's standard streams.
    pub(crate) fn process() -> Self {
        let terminal = io::stdout().is_terminal();
        if terminal {
            fit_terminal();
        }
        Self { sink: Mutex::new(Sink::Process), terminal, block_lines: Mutex::new(0) }
    }

    /// Keeps what is printed.
    #[cfg(test)]
    pub(crate) fn memory(terminal: bool) -> Self {
        let sink = Mutex::new(Sink::Memory { out: Vec::new(), err: Vec::new() });
        Self { sink, terminal, block_lines: Mutex::new(0) }
    }

    /// What was printed to (standard output, standard error).
    #[cfg(test)]
    pub(crate) fn printed(&self) -> (String, String) {
        match &*self.sink() {
            Sink::Process => (String::new(), String::new()),
            Sink::Memory { out, err } => (
                String::from_utf8_lossy(out).into_owned(),
                String::from_utf8_lossy(err).into_owned(),
            ),
        }
    }

    /// A person reads this as it comes.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    fn sink(&self) -> std::sync::MutexGuard<'_, Sink> {
        self.sink.lock().expect("no thread panics while it prints")
    }

    /// Prints text and a line break.
    pub(crate) fn line(&self, text: impl AsRef<str>) -> io::Result<()> {
        self.write(format!("{}\n", escaped(text.as_ref())).as_bytes())
    }

    /// As [`Self::line`], of a text with colours: these stay.
    pub(crate) fn painted(&self, text: &str) -> io::Result<()> {
        self.write(format!("{}\n", escaped_but_colours(text)).as_bytes())
    }

    /// Prints help.
    pub(crate) fn help(&self, text: &str) -> io::Result<()> {
        self.write(help(&escaped(text)).as_bytes())
    }

    /// Prints a text that others may have written and a program may read: as it is, unless a person
    /// does.
    pub(crate) fn document(&self, text: &[u8]) -> io::Result<()> {
        if !self.terminal {
            return self.write(text);
        }
        self.write(escaped(&String::from_utf8_lossy(text)).as_bytes())
    }

    /// Prints a failure, with its causes.
    pub(crate) fn error(&self, error: &anyhow::Error) {
        self.advice(format!("Error: {}", chain(error)));
    }

    /// Prints JSON, indented.
    pub(crate) fn json(&self, value: &Value) -> io::Result<()> {
        self.write(format!("{}\n", escaped_json(&format!("{value:#}"))).as_bytes())
    }

    /// Prints what a task has written, as it is.
    pub(crate) fn log_or_file(&self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match &mut *self.sink() {
            Sink::Process => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes)?;
                stdout.flush()
            }
            #[cfg(test)]
            Sink::Memory { out, .. } => out.write_all(bytes),
        }
    }

    /// Prints a line of advice or an error to standard error; nobody reading it is not an error.
    pub(crate) fn advice(&self, text: impl AsRef<str>) {
        let text = escaped(text.as_ref());
        match &mut *self.sink() {
            Sink::Process => writeln!(io::stderr().lock(), "{text}").ok(),
            #[cfg(test)]
            Sink::Memory { err, .. } => writeln!(err, "{text}").ok(),
        };
    }

    /// Draws a block of lines in the place of the last one. Only for terminals.
    pub(crate) fn block(&self, lines: &[String]) -> io::Result<()> {
        self.clear_block()?;
        // Without line wrap a long line stays one line, so that the count below is what the cursor
        // goes up.
        let shown: Vec<_> = lines.iter().map(|line| escaped_line(line)).collect();
        let text = format!("\x1b[?7l{}\n\x1b[?7h", shown.join("\n"));
        self.write(text.as_bytes())?;
        *self.block_lines.lock().expect("no thread panics while it prints") = lines.len();
        Ok(())
    }

    /// Removes the block, so that a line can be printed in its place.
    pub(crate) fn clear_block(&self) -> io::Result<()> {
        let mut drawn = self.block_lines.lock().expect("no thread panics while it prints");
        if self.terminal && *drawn > 0 {
            // From the first column, which the cursor has left where the terminal shows a key that
            // was pressed (`^C`).
            self.write(format!("\r\x1b[{}A\x1b[J", *drawn).as_bytes())?;
        }
        *drawn = 0;
        Ok(())
    }
}

/// How the answer of a read is shown.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Style {
    /// Print the API's JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show whole ids and all details
    #[arg(long)]
    pub(crate) verbose: bool,
}

impl Style {
    /// An id, short unless `-verbose`.
    pub(crate) fn id(self, id: &str) -> String {
        if self.verbose { id.to_owned() } else { short_id(id) }
    }
}

/// The first eight characters of an id.
pub(crate) fn short_id(id: &str) -> String {
    id.chars().take(SHORT_ID_BYTES).collect()
}

/// `12 KiB`; one digit behind the point below ten.
#[expect(clippy::cast_precision_loss, reason = "sizes are shown to two digits")]
pub(crate) fn readable_bytes(bytes: i64) -> String {
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= KIB && unit + 1 < UNITS.len() {
        size /= KIB;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && size < 10.0);
    format!("{size:.digits$} {}", UNITS[unit])
}

/// Whether nobody reads what is printed any more.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its causes, without repeating a cause that the text already ends with.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::{Output, readable_bytes};

    #[test]
    fn block_is_redrawn_in_place_on_a_terminal() {
        let output = Output::memory(true);
        output.block(&["a".to_owned(), "b".to_owned()]).unwrap();
        output.block(&["c".to_owned()]).unwrap();
        output.clear_block().unwrap();
        output.line("event").unwrap();
        assert_eq!(
            output.printed().0,
            "\x1b[?7la\nb\n\x1b[?7h\r\x1b[2A\x1b[J\x1b[?7lc\n\x1b[?7h\r\x1b[1A\x1b[Jevent\n"
        );
    }

    /// Whatever a command prints, and on whichever stream, nothing of it moves the cursor; only
    /// logs and files are as they are.
    #[test]
    fn no_way_but_that_of_logs_and_files_prints_what_others_have_written_as_it_is() {
        const HOSTILE: &str = "a\u{1b}[2J\u{1b}]0;b\u{7}\r\u{8}\u{9b}31m\u{7f}\u{202e}\u{1b}[31mc";
        let kept = |c: char| c == '\n' || c == '\t' || !super::super::table::is_hidden(c);
        for terminal in [false, true] {
            let output = Output::memory(terminal);
            output.line(HOSTILE).unwrap();
            output.help(HOSTILE).unwrap();
            output.json(&serde_json::json!({ HOSTILE: [HOSTILE] })).unwrap();
            output.advice(HOSTILE);
            let (out, err) = output.printed();
            assert!(out.chars().all(kept) && err.chars().all(kept), "{out:?} {err:?}");
            let output = Output::memory(terminal);
            output.painted(HOSTILE).unwrap();
            let painted = output.printed().0.replace("\u{1b}[31m", "");
            assert!(painted.chars().all(kept), "{painted:?}");
            let output = Output::memory(terminal);
            output.document(HOSTILE.as_bytes()).unwrap();
            assert_eq!(output.printed().0.chars().all(kept), terminal);
            let output = Output::memory(terminal);
            output.log_or_file(HOSTILE.as_bytes()).unwrap();
            assert_eq!(output.printed().0, HOSTILE);
        }
        let output = Output::memory(true);
        output.block(&[HOSTILE.to_owned(), "a\nb".to_owned()]).unwrap();
        let block = output.printed().0;
        assert_eq!((block.matches('\u{1b}').count(), block.lines().count()), (2, 3), "{block:?}");
    }

    #[test]
    fn sizes_have_two_digits() {
        for (bytes, text) in
            [(0, "0 B"), (9, "9 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (20 << 20, "20 MiB")]
        {
            assert_eq!(readable_bytes(bytes), text);
        }
    }
}
