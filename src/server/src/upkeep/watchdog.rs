//! Ends a server whose disk hangs or fails, and lets a leader hand over before.
//!
//! ```text
//!  oldest call on the log's disk:   under 2 s  nothing
//!                                   2 s        a leader hands leadership over
//!                                   5 s        the process ends
//!  a write or sync of log or state fails: the process ends at once; what the disk holds is known
//!  again after a restart
//! ```
//! A leader that cannot write still sends heartbeats, so no other server would take over by itself.
//! The watch must never touch the disk: it is a thread of its own, and the log's calls are noted by
//! their caller ([`ground::disk::watched`]).

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use ground::{
    disk::watched::DiskWatch,
    rt::{self, watch},
};
use raft::storage::{shadow::Shadow, wal::Wal};

use crate::member::{contact::Contact, lifecycle::Lifecycle};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// A leader whose disk hangs for so long hands leadership over.
const TRANSFER_AFTER: Duration = Duration::from_secs(2);
/// A server whose disk hangs for so long ends: its peers then count it as gone, and its supervisor
/// sees it end.
const END_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Advice {
    GoOn,
    HandOver,
    End,
}

/// For how long the disk has hung, as far as this process could see.
///
/// Invariant: a look adds the time since the look before it, but at most twice the interval between
/// looks. A process that was stopped or starved for ten seconds has a call that is ten seconds old
/// and no reason to blame the disk.
#[derive(Debug)]
struct Stall {
    call: Option<u64>,
    lasts: Duration,
    looked_at: rt::Instant,
}

impl Stall {
    fn new() -> Self {
        Self { call: None, lasts: Duration::ZERO, looked_at: rt::Instant::now() }
    }

    /// Takes the oldest call under way at this look.
    fn look(&mut self, call: Option<u64>) -> Duration {
        let passed = self.looked_at.elapsed().min(2 * LOOK);
        self.looked_at = rt::Instant::now();
        self.lasts =
            if call.is_some() && call == self.call { self.lasts + passed } else { Duration::ZERO };
        self.call = call;
        self.lasts
    }
}

fn advice(stall: Duration) -> Advice {
    if stall >= END_AFTER {
        Advice::End
    } else if stall >= TRANSFER_AFTER {
        Advice::HandOver
    } else {
        Advice::GoOn
    }
}

/// What the watch looks at, and what it acts on.
pub(crate) struct Watched {
    pub(crate) contact: Arc<Contact>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) wal: Wal,
    pub(crate) shadow: Shadow,
    /// The calls under way on the log's disk.
    pub(crate) log_calls: DiskWatch,
}

/// Starts the watch over the log's disk, and the task that hands leadership over when the watch
/// says so.
pub(crate) fn start(watched: Watched) -> std::io::Result<()> {
    let Watched { contact, lifecycle, wal, shadow, log_calls } = watched;
    let directory = contact.settings.data_directory.clone();
    let mut watch = Watch {
        lifecycle: Arc::downgrade(&lifecycle),
        log: directory.join("log"),
        calls: log_calls,
        stall: Stall::new(),
        hangs: watch::channel(false).0,
    };
    rt::spawn(hand_over(contact, watch.hangs.subscribe(), lifecycle.stopping()));
    rt::spawn(watch_writers(wal, shadow, lifecycle, directory));
    if rt::is_simulation() {
        rt::spawn(async move {
            while watch.look() {
                rt::sleep(LOOK).await;
            }
        });
        return Ok(());
    }
    let watch = move || {
        while watch.look() {
            std::thread::sleep(LOOK);
        }
    };
    std::thread::Builder::new().name("disk-watchdog".to_owned()).spawn(watch)?;
    Ok(())
}

/// The watch over the log's disk.
struct Watch {
    lifecycle: Weak<Lifecycle>,
    log: PathBuf,
    calls: DiskWatch,
    stall: Stall,
    /// The log's disk has not answered for a while.
    hangs: watch::Sender<bool>,
}

impl Watch {
    /// One look; false when there is nothing left to watch.
    fn look(&mut self) -> bool {
        let Some(lifecycle) = self.lifecycle.upgrade() else { return false };
        if lifecycle.is_stopping() {
            return false;
        }
        let oldest = self.calls.oldest();
        let stall = self.stall.look(oldest.map(|(number, _)| number));
        match advice(stall) {
            Advice::GoOn => {
                self.hangs.send_if_modified(std::mem::take);
            }
            Advice::HandOver => {
                self.hangs.send_if_modified(|hangs| !std::mem::replace(hangs, true));
            }
            Advice::End => {
                let what = oldest.map_or("call", |(_, what)| what);
                lifecycle.fail(format!(
                    "the disk under {} hangs: a {what} has not returned for {:.1} s. This server ends so that the others \
                     go on without it: see what is wrong with the disk, then start it again",
                    self.log.display(),
                    stall.as_secs_f64()
                ));
                return false;
            }
        }
        true
    }
}

/// Hands leadership over once for every stall, if this server leads.
async fn hand_over(
    contact: Arc<Contact>,
    mut hangs: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        rt::select! {
            biased;
            () = rt::until_true(&mut stop) => return,
            changed = hangs.changed() => if changed.is_err() { return },
        }
        if !*hangs.borrow_and_update() {
            tracing::info!("the disk answers again");
            continue;
        }
        tracing::warn!("the disk under the log has not answered for {TRANSFER_AFTER:?}");
        if contact.leads().is_none() {
            continue;
        }
        match contact.transfer(None).await {
            Ok(to) => tracing::warn!(to, "handed leadership over because the disk hangs"),
            Err(error) => tracing::warn!(%error, "leadership could not be handed over"),
        }
    }
}

/// Ends the server as soon as its log or its state cannot be written.
async fn watch_writers(wal: Wal, shadow: Shadow, lifecycle: Arc<Lifecycle>, directory: PathBuf) {
    let mut stop = lifecycle.stopping();
    let why = rt::select! {
        biased;
        () = rt::until_true(&mut stop) => return,
        why = wal.until_poisoned() => format!("the log cannot be written: {why}"),
        why = shadow.until_failed() => format!("the state on disk cannot be written: {why}"),
    };
    let directory = directory.display();
    lifecycle.fail(format!(
        "{why}. Nothing more is acknowledged and this server ends, because what {directory} holds is known again only \
         after a restart: check the disk and its free space, then start it again"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_borne_then_handed_over_then_ended() {
        let at = |ms| advice(Duration::from_millis(ms));
        assert_eq!([at(0), at(1_999)], [Advice::GoOn; 2]);
        assert_eq!([at(2_000), at(4_999)], [Advice::HandOver; 2]);
        assert_eq!([at(5_000), at(60_000)], [Advice::End; 2]);
    }

    fn back(stall: &mut Stall, duration: Duration) {
        stall.looked_at = stall.looked_at.checked_sub(duration).expect("the clock is old enough");
    }

    #[test]
    fn a_call_counts_from_look_to_look_and_only_while_it_is_the_oldest() {
        let mut stall = Stall::new();
        assert_eq!(stall.look(Some(1)), Duration::ZERO);
        back(&mut stall, LOOK);
        let first = stall.look(Some(1));
        assert!((LOOK..=2 * LOOK).contains(&first), "{first:?}");
        back(&mut stall, LOOK);
        assert!(stall.look(Some(1)) >= first + LOOK);
        assert_eq!(stall.look(Some(2)), Duration::ZERO, "another call");
        assert_eq!(stall.look(None), Duration::ZERO);
        assert_eq!(stall.look(None), Duration::ZERO, "an idle disk does not hang");
    }

    /// SIGSTOP for a minute in the middle of a sync must not look like a disk that hangs.
    #[test]
    fn a_process_that_was_stopped_does_not_blame_the_disk() {
        let mut stall = Stall::new();
        stall.look(Some(1));
        back(&mut stall, Duration::from_mins(1));
        assert!(stall.look(Some(1)) <= 2 * LOOK);
    }
}
