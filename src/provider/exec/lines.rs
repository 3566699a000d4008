//! Lines from a program: whole ones from its standard output, for the protocol, and the beginnings
//! of those on its standard error, for the log.

use std::time::Duration;

use ground::rt::Instant;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

/// Longest line of a call, bytes without its end.
pub(super) const CALL_BYTES_MAX: usize = 1 << 20;
/// Longest line of a program, bytes without its end: a list of as many machines as a pool may have.
pub(super) const LINE_BYTES_MAX: usize = 32 << 20;
/// What one machine of a list may take: id and address of 256 bytes each, and tags.
const MACHINE_BYTES: usize = 3 << 10;
const _: () = assert!(fsm::limits::INSTANCES_MAX as usize * MACHINE_BYTES <= LINE_BYTES_MAX);
/// How much of a line on standard error is logged, bytes.
const LOG_LINE_BYTES_MAX: usize = 1 << 10;
/// Lines of standard error that are logged in a second.
const LOG_LINES_MAX: u32 = 20;
const LOG_PERIOD: Duration = Duration::from_secs(1);

/// Why there is no further line.
#[derive(Debug)]
pub(super) enum NoLine {
    /// Standard output was closed.
    End,
    /// It has more bytes than this.
    TooLong(usize),
    Failed(std::io::Error),
}

/// The next line, without its end. An unfinished one at the end is no line.
pub(super) async fn next(
    reader: &mut (impl AsyncBufRead + Unpin),
    bytes_max: usize,
) -> Result<Vec<u8>, NoLine> {
    let mut line = Vec::new();
    let limit = u64::try_from(bytes_max + 1).expect("a few bytes more than 32 MiB");
    reader.take(limit).read_until(b'\n', &mut line).await.map_err(NoLine::Failed)?;
    match line.pop() {
        Some(b'\n') => Ok(line),
        Some(_) if line.len() == bytes_max => Err(NoLine::TooLong(bytes_max)),
        Some(_) | None => Err(NoLine::End),
    }
}

/// A JSON object that has begun, as far as it has come.
#[derive(Default)]
struct Unfinished {
    depth: u32,
    in_text: bool,
    is_escaped: bool,
}

impl Unfinished {
    /// Whether the object ends with these bytes, or there is none.
    fn ends(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_text => self.is_escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self.depth == 0
    }
}

/// What is read as one reply.
pub(super) struct Read {
    pub(super) bytes: Vec<u8>,
    /// Lines without anything came before it.
    pub(super) after_blank: bool,
    /// It goes over several lines.
    pub(super) is_long: bool,
}

/// The next line that is not empty; with the lines behind it as long as a JSON object that begins
/// in it does not end. `is_whole` tells that a line is a reply by itself: then what began before is
/// none.
pub(super) async fn next_object(
    reader: &mut (impl AsyncBufRead + Unpin),
    bytes_max: usize,
    is_whole: impl Fn(&[u8]) -> bool,
) -> Result<Read, NoLine> {
    let mut read = Read { bytes: Vec::new(), after_blank: false, is_long: false };
    let mut unfinished = Unfinished::default();
    loop {
        let line = next(reader, bytes_max - read.bytes.len()).await?;
        if line.trim_ascii().is_empty() {
            read.after_blank = true;
            continue;
        }
        let is_first = read.bytes.is_empty();
        if !is_first && line.starts_with(b"{") && is_whole(&line) {
            return Ok(read);
        }
        read.is_long = !is_first;
        read.bytes.extend_from_slice(&line);
        let begins = read.bytes.trim_ascii_start().starts_with(b"{");
        if !begins || unfinished.ends(&line) {
            return Ok(read);
        }
        if read.bytes.len() >= bytes_max {
            return Err(NoLine::TooLong(bytes_max));
        }
        read.bytes.push(b' ');
    }
}

/// Logs what a program writes to its standard error, until it is closed.
pub(super) async fn log(provider: std::sync::Arc<str>, stderr: impl AsyncRead + Unpin) {
    let mut reader = BufReader::new(stderr);
    let (mut since, mut logged, mut unsaid) = (Instant::now(), 0, 0_u64);
    while let Some(line) = beginning(&mut reader).await {
        if since.elapsed() >= LOG_PERIOD {
            if unsaid > 0 {
                tracing::warn!(provider = &*provider, unsaid, "a provider's program wrote more");
            }
            (since, logged, unsaid) = (Instant::now(), 0, 0);
        }
        if logged == LOG_LINES_MAX {
            unsaid += 1;
            continue;
        }
        logged += 1;
        tracing::info!(provider = &*provider, line, "a provider's program wrote");
    }
}

/// The beginning of the next line; none: there is no more.
async fn beginning(reader: &mut (impl AsyncBufRead + Unpin)) -> Option<String> {
    let mut kept = Vec::new();
    let mut is_some = false;
    loop {
        let bytes = reader.fill_buf().await.ok()?;
        if bytes.is_empty() {
            return is_some.then(|| String::from_utf8_lossy(&kept).into_owned());
        }
        is_some = true;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        let room = LOG_LINE_BYTES_MAX - kept.len();
        kept.extend_from_slice(&part[..part.len().min(room)]);
        let used = end.map_or(bytes.len(), |end| end + 1);
        reader.consume(used);
        if end.is_some() {
            return Some(String::from_utf8_lossy(&kept).into_owned());
        }
    }
}
