//! Lines from a program: whole ones from its standard output, for the protocol, and the beginnings of those on its standard error, for
//! the log.

use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

use crate::rt::Instant;

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
