//! The trace of a run: one line per event with its virtual time. Two runs of a seed give the same bytes; nothing that differs between processes
//! (addresses, wall time, map order of a hash table) may get in.

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    fs::File,
    io::{BufWriter, Write as _},
    path::Path,
};

use ground::rt;

/// FNV-1a, 64 bits.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

struct Trace {
    line: String,
    events: u64,
    hash: u64,
    file: Option<BufWriter<File>>,
}

thread_local! {
    static TRACE: RefCell<Trace> =
        const { RefCell::new(Trace { line: String::new(), events: 0, hash: 0, file: None }) };
}

/// Writes the trace to a file from now on.
pub(crate) fn write_to(path: &Path) -> std::io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    TRACE.with_borrow_mut(|trace| trace.file = Some(file));
    Ok(())
}

/// Notes what happened to whom.
pub(crate) fn event(who: &str, what: fmt::Arguments<'_>) {
    let at = rt::simulated_elapsed();
    TRACE.with_borrow_mut(|trace| {
        let mut line = std::mem::take(&mut trace.line);
        line.clear();
        let (seconds, micros) = (at.as_secs(), at.subsec_micros());
        writeln!(line, "{seconds}.{micros:06} {who} {what}").expect("a string takes any text");
        trace.events += 1;
        trace.hash = trace.hash.rotate_left(5) ^ hash(line.as_bytes());
        if let Some(file) = &mut trace.file {
            file.write_all(line.as_bytes()).expect("the trace file can be written");
        }
        trace.line = line;
    });
}

/// Ends the trace: its events and their hash.
pub(crate) fn finish() -> std::io::Result<(u64, u64)> {
    TRACE.with_borrow_mut(|trace| {
        if let Some(file) = &mut trace.file {
            file.flush()?;
        }
        Ok((trace.events, trace.hash))
    })
}
