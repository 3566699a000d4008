//! Shortages of this machine: open files, threads, memory, disk. During a shortage the agent
//! refuses new work, and its tasks go on.
//!
//! ```text
//!  measure.rs, each second, on a thread of its own ─┐
//!  a start, a store that failed for want of it ─────┴─► Judge ─► heartbeat.rs: the servers place nothing more here
//!                                                            ├─► node.rs: what was placed waits, and says why
//!                                                            └─► shell.rs: what fails meanwhile is not the node's fault
//! ```
//!
//! A shortage ends when the next measurement finds enough, when a start succeeds, or after
//! [`MET_HOLD`] without another failure. A shortage fails no allocation.

mod measure;

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use ground::rt::watch;

use self::measure::{Found, Kind, measure};
use crate::task::run::Fault;

/// Between two looks at the machine.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// How long work that failed for want of something keeps new work away: longer than the longest
/// pause before the same is tried again.
const MET_HOLD: Duration = Duration::from_secs(45);
/// Threads for file work that are there from the start, for the time when no more can be had.
const THREADS_KEPT: usize = 4;

/// What the machine is short of by the latest news.
pub struct Shortages {
    judge: Mutex<Judge>,
    /// In words; empty: of nothing.
    reason: watch::Sender<String>,
}

impl Default for Shortages {
    fn default() -> Self {
        Self { judge: Mutex::default(), reason: watch::Sender::new(String::new()) }
    }
}

/// Looks at the machine until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(
    #[expect(dead_code, reason = "held: its end ends the thread")] mpsc::SyncSender<()>,
);

impl Shortages {
    /// Looks at the machine from now on: at its limits, its memory, and the disk of this folder.
    pub(crate) fn watch(
        self: &Arc<Self>,
        folder: PathBuf,
        free_bytes_min: u64,
    ) -> io::Result<Watch> {
        let (leave, left) = mpsc::sync_channel(0);
        let shortages = Arc::clone(self);
        let runtime = tokio::runtime::Handle::current();
        thread::Builder::new().name("shortages".to_owned()).spawn(move || {
            loop {
                let was_short = shortages.lock().is_short_of(Kind::Threads);
                let found = measure(&folder, free_bytes_min, was_short);
                shortages.update(|judge| judge.look(Instant::now(), &found));
                if was_short && !shortages.lock().is_short_of(Kind::Threads) {
                    // File work that waits for a thread is looked at again only when more of it
                    // comes.
                    drop(runtime.spawn_blocking(|| ()));
                }
                if left.recv_timeout(LOOK_PAUSE) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Watch(leave))
    }

    /// Work of this agent failed: if that was for want of something, the machine is short of it
    /// until such work succeeds.
    pub(crate) fn met(&self, error: &io::Error) {
        if Fault::of(error) == Fault::Shortage {
            self.met_as(&error.to_string());
        }
    }

    /// Work of this agent failed for want of something.
    pub(crate) fn met_as(&self, why: &str) {
        self.update(|judge| judge.met(Instant::now(), why));
    }

    /// A task has started: whatever it takes was there.
    pub(crate) fn started(&self) {
        self.update(|judge| judge.met = None);
    }

    /// In words; empty: of nothing.
    pub fn reason(&self) -> String {
        self.reason.borrow().clone()
    }

    /// Whether the machine is short of anything.
    pub(crate) fn is_short(&self) -> bool {
        !self.reason.borrow().is_empty()
    }

    /// Whether a look at the machine says so: not only by what has failed.
    pub(crate) fn is_seen(&self) -> bool {
        !self.lock().short.is_empty()
    }

    /// Changes with the reason.
    pub(crate) fn subscribe(&self) -> watch::Receiver<String> {
        self.reason.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Judge)) {
        let mut judge = self.lock();
        change(&mut judge);
        let now = judge.reason();
        self.reason.send_if_modified(|shown| {
            if *shown == now {
                return false;
            }
            if shown.is_empty() {
                tracing::warn!(
                    reason = now,
                    "the machine is short: no new work is taken, what runs goes on"
                );
            } else if now.is_empty() {
                tracing::info!("the machine is short of nothing any more: new work is taken");
            }
            *shown = now;
            true
        });
    }
}

/// Starts the threads for file work that are kept, in the present runtime. It has to keep idle
/// threads for long.
pub(crate) fn keep_threads() {
    for _ in 0..THREADS_KEPT {
        // Long enough for the next one to need another thread.
        drop(tokio::task::spawn_blocking(|| thread::sleep(Duration::from_millis(20))));
    }
}

/// Makes a judgement of what is found; pure.
#[derive(Default)]
struct Judge {
    short: BTreeSet<Kind>,
    /// Of `short`, in words. Made when `short` changes: numbers that go up and down are no news.
    words: String,
    /// What failed for want of something, and until when that counts.
    met: Option<(String, Instant)>,
}

impl Judge {
    fn is_short_of(&self, kind: Kind) -> bool {
        self.short.contains(&kind)
    }

    /// Of what was not looked at nothing new is known.
    fn look(&mut self, now: Instant, found: &[Found]) {
        self.met.take_if(|(_, until)| now >= *until);
        let before = self.short.clone();
        for one in found {
            if one.is_short(self.is_short_of(one.kind)) {
                self.short.insert(one.kind);
            } else {
                self.short.remove(&one.kind);
            }
        }
        if self.short != before {
            let short = found.iter().filter(|one| self.short.contains(&one.kind));
            self.words = short.map(Found::words).collect::<Vec<_>>().join("; ");
        }
    }

    fn met(&mut self, now: Instant, why: &str) {
        let until = now.checked_add(MET_HOLD).unwrap_or(now);
        match &mut self.met {
            // The first words stay: each other failure would be news.
            Some((_, known)) => *known = until,
            None => self.met = Some((why.to_owned(), until)),
        }
    }

    fn reason(&self) -> String {
        let met = self.met.as_ref().map_or("", |(why, _)| why);
        let mut words = if self.words.is_empty() { met.to_owned() } else { self.words.clone() };
        words.truncate(words.floor_char_boundary(fsm::limits::NODE_REASON_BYTES_MAX));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(free: u64) -> Found {
        Found { kind: Kind::Disk, free: free << 20, least: 100 << 20, enough: 120 << 20 }
    }

    #[test]
    fn a_shortage_begins_below_the_least_and_ends_with_enough() {
        let now = Instant::now();
        let mut judge = Judge::default();
        let mut said = |free| {
            judge.look(now, &[disk(free)]);
            judge.reason()
        };
        assert_eq!(said(100), "");
        let words =
            "disk: 99 MiB left, 100 MiB are kept free: free some space below the data folder";
        assert_eq!(said(99), words);
        assert_eq!(said(5), words, "other numbers are no news");
        assert_eq!(said(119), words, "it does not come and go with each MiB");
        assert_eq!(said(120), "");
        assert_eq!(said(119), "");
    }

    #[test]
    fn a_resource_that_was_not_measured_keeps_its_verdict() {
        let now = Instant::now();
        let mut judge = Judge::default();
        judge.look(now, &[disk(9)]);
        let said = judge.reason();
        judge.look(now, &[]);
        assert_eq!(judge.reason(), said);
    }

    /// A failure counts until the same work succeeds, or for long enough that it was tried again.
    #[test]
    fn a_start_that_failed_keeps_new_work_away_for_a_while() {
        let now = Instant::now();
        let mut judge = Judge::default();
        judge.met(now, "too many open files");
        judge.met(now, "no space left");
        judge.look(now + Duration::from_secs(44), &[]);
        assert_eq!(judge.reason(), "too many open files");
        judge.met(now + Duration::from_secs(9), "no space left");
        judge.look(now + MET_HOLD, &[]);
        assert_eq!(judge.reason(), "too many open files", "it was met again");
        judge.look(now + Duration::from_secs(9) + MET_HOLD, &[]);
        assert_eq!(judge.reason(), "");
    }

    #[test]
    fn only_shortages_count_and_a_start_ends_them() {
        let shortages = Shortages::default();
        shortages.met(&io::Error::from(rustix::io::Errno::IO));
        assert!(!shortages.is_short());
        shortages.met(&io::Error::from(rustix::io::Errno::MFILE));
        assert!(shortages.is_short());
        let told = shortages.subscribe();
        assert!(!told.borrow().is_empty());
        shortages.started();
        assert!(!shortages.is_short() && told.borrow().is_empty());
    }
}
