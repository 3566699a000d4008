//! What the disk can do: a loop of append + fdatasync, with two more such loops on the same disk,
//! as three servers have it.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::measure::Latencies;

/// What the log writes for one bench write: a 300 to 600 byte record, padded to sectors.
const RECORD_BYTES: usize = 1_024;
const LOOPS: usize = 3;
/// Size of the file that is filled with zeros before, as the log's segments are.
const FILLED_BYTES: u64 = 16 << 20;

/// Latencies of one loop while the others run.
#[derive(Debug, Default)]
pub(super) struct Baseline {
    /// Appends to a file that grows.
    pub(super) append: Latencies,
    /// Writes behind each other into a file of zeros.
    pub(super) filled: Latencies,
}

impl Baseline {
    pub(super) fn merge(&mut self, other: &Self) {
        self.append.merge(&other.append);
        self.filled.merge(&other.filled);
    }
}

/// Runs both kinds of loops in a folder, half of the time each.
pub(super) async fn measure(directory: PathBuf, time: Duration) -> anyhow::Result<Baseline> {
    Ok(tokio::task::spawn_blocking(move || -> io::Result<Baseline> {
        Ok(Baseline {
            append: loops(&directory, time / 2, append)?,
            filled: loops(&directory, time / 2, fill_and_write)?,
        })
    })
    .await??)
}

type Loop = fn(&Path, Duration) -> io::Result<Latencies>;

fn loops(directory: &Path, time: Duration, run: Loop) -> io::Result<Latencies> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..LOOPS)
            .map(|number| {
                let name = format!("quorate-bench-fsync-{}-{number}", std::process::id());
                let path = directory.join(name);
                scope.spawn(move || {
                    let result = run(&path, time);
                    std::fs::remove_file(&path).and(result)
                })
            })
            .collect();
        let mut merged = Latencies::default();
        for thread in threads {
            let latencies = thread.join().map_err(|_| io::Error::other("a loop panicked"))??;
            merged.merge(&latencies);
        }
        Ok(merged)
    })
}

fn append(path: &Path, time: Duration) -> io::Result<Latencies> {
    let mut file = File::create_new(path)?;
    timed(time, |record| {
        file.write_all(record)?;
        file.sync_data()
    })
}

fn fill_and_write(path: &Path, time: Duration) -> io::Result<Latencies> {
    let file = File::create_new(path)?;
    let zeros = vec![0; 1 << 20];
    for offset in (0..FILLED_BYTES).step_by(zeros.len()) {
        file.write_all_at(&zeros, offset)?;
    }
    file.sync_all()?;
    let mut offset = 0;
    timed(time, |record| {
        file.write_all_at(record, offset)?;
        offset = (offset + record.len() as u64) % FILLED_BYTES;
        file.sync_data()
    })
}

fn timed(time: Duration, mut turn: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<Latencies> {
    let record = [0x5a; RECORD_BYTES];
    let mut latencies = Latencies::default();
    let begin = Instant::now();
    while begin.elapsed() < time {
        let turn_begin = Instant::now();
        turn(&record)?;
        latencies.add(turn_begin.elapsed());
    }
    Ok(latencies)
}
