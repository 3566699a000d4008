//! Text on a node that is printed whole, from its last lines on, and as it grows: logs and files of
//! an allocation.
//!
//! Must never change the bytes.

use std::io::Read;

use clap::Args;

use crate::cli::context::{Context, Exit, Outcome};

/// First guess of the bytes that hold the wanted lines.
const LINE_BYTES: u64 = 160;
/// Most bytes searched for the wanted lines.
const TAIL_BYTES_MAX: u64 = 64 << 20;
/// Read and printed at once.
const CHUNK_BYTES: usize = 16 << 10;
/// Lines of `-tail` without `-n`.
const LINES_DEFAULT: u64 = 10;

/// Which part of a text is printed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct EndFlags {
    /// Keep printing what is written
    #[arg(short = 'f', long = "follow")]
    follow: bool,
    /// Only the last lines
    #[arg(long)]
    tail: bool,
    /// How many lines -tail prints
    #[arg(short = 'n', value_name = "N")]
    lines: Option<u64>,
    /// Only the last bytes
    #[arg(short = 'c', value_name = "BYTES", conflicts_with_all = ["lines"])]
    bytes: Option<u64>,
    /// Accepted as in Nomad: no ids are shown
    #[arg(long, hide = true)]
    verbose: bool,
}

/// A text behind a path of the API that takes `origin`, `offset`, `follow` and `plain`.
pub(super) struct RemoteText<'a> {
    pub(super) context: &'a Context,
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
}

/// Where the text is read from.
#[derive(Clone, Copy)]
enum Place {
    Start,
    /// So many bytes before the end.
    BeforeEnd(u64),
    End,
}

impl Place {
    fn before_end(bytes: u64) -> Self {
        // No bytes before the end of a log is the beginning of its newest file to a server.
        if bytes == 0 { Self::End } else { Self::BeforeEnd(bytes) }
    }

    fn query(self) -> (&'static str, u64) {
        match self {
            Self::Start => ("start", 0),
            Self::BeforeEnd(bytes) => ("end", bytes),
            Self::End => ("start", u64::MAX),
        }
    }
}

impl RemoteText<'_> {
    /// Prints what the flags say.
    pub(super) fn print(&self, flags: EndFlags) -> Outcome {
        let lines = match (flags.tail, flags.lines, flags.bytes) {
            (_, Some(lines), _) => Some(lines),
            (true, None, None) => Some(LINES_DEFAULT),
            (true, None, Some(_)) | (false, None, _) => None,
        };
        let place = match (flags.bytes, lines) {
            (Some(bytes), _) => Place::before_end(bytes),
            (None, Some(lines)) if flags.follow => Place::before_end(self.bytes_of_last(lines)?.0),
            (None, Some(lines)) => {
                let (from_end, bytes) = self.bytes_of_last(lines)?;
                let start = bytes.len() - usize::try_from(from_end).expect("at most the length");
                self.context.output.log_or_file(&bytes[start..])?;
                return Ok(Exit::Success);
            }
            (None, None) => Place::Start,
        };
        let mut reader = self.open(place, flags.follow)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = reader.read(&mut chunk)?;
            if length == 0 {
                return Ok(Exit::Success);
            }
            self.context.output.log_or_file(&chunk[..length])?;
        }
    }

    fn open(&self, place: Place, follow: bool) -> anyhow::Result<impl Read + use<>> {
        let (origin, offset) = place.query();
        let offset = offset.to_string();
        let own = self.query.iter().map(|(name, value)| (*name, value.as_str()));
        let common = [
            ("follow", if follow { "true" } else { "false" }),
            ("plain", "true"),
            ("origin", origin),
            ("offset", offset.as_str()),
        ];
        let query: Vec<(&str, &str)> = own.chain(common).collect();
        Ok(self.context.client.stream(&self.path, &query)?)
    }

    /// How many bytes the last lines have, and bytes of the end of the text that hold them.
    fn bytes_of_last(&self, lines: u64) -> anyhow::Result<(u64, Vec<u8>)> {
        let mut window = lines.saturating_mul(LINE_BYTES).clamp(LINE_BYTES, TAIL_BYTES_MAX);
        loop {
            let mut bytes = Vec::new();
            let reader = self.open(Place::BeforeEnd(window), false)?;
            reader.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            let is_whole = length < window;
            match last_lines(&bytes, lines) {
                Some(count) => return Ok((count, bytes)),
                None if is_whole || window >= TAIL_BYTES_MAX => return Ok((length, bytes)),
                None => window = window.saturating_mul(4).min(TAIL_BYTES_MAX),
            }
        }
    }
}

/// Bytes from the start of the last `lines` lines to the end; nothing if the text has fewer line
/// breaks than it takes to know.
fn last_lines(text: &[u8], lines: u64) -> Option<u64> {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    if lines == 0 {
        return Some(0);
    }
    let nth = usize::try_from(lines - 1).ok()?;
    let breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let position = breaks.map(|(position, _)| position).nth(nth)?;
    u64::try_from(text.len() - position - 1).ok()
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn last_lines_are_counted_from_the_end() {
        assert_eq!(last_lines(b"a\nb\nc\n", 1), Some(2));
        assert_eq!(last_lines(b"a\nb\nc\n", 2), Some(4));
        assert_eq!(last_lines(b"a\nb\nc", 2), Some(3));
        assert_eq!(last_lines(b"a\nb\nc\n", 3), None);
        assert_eq!(last_lines(b"a\n", 0), Some(0));
        assert_eq!(last_lines(b"", 1), None);
    }
}
