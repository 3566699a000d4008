//! A reader that asks any server for what it has, without the leader (I13): any such state must be one that the log went through, no older than what the
//! reader names, and never older than what the same server showed before.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fsm::Index;

use crate::{client::Shared, coverage, services::CALLER, trace, verdict, world::World};
use chance::Dice;
use ground::rt::{self, Instant, watch};
use server::Core;
use wire::api::{Api, ApiError, ReadMode};

/// How long a read waits for the index that it names.
const TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE_MS_MAX: u64 = 150;
/// Servers count in whole milliseconds.
const CONTACT_SLACK: Duration = Duration::from_millis(5);

/// The reader.
pub(crate) struct Reader {
    world: World,
    shared: Shared,
    dice: Dice,
    /// The newest index it was shown.
    token: Index,
    /// By server: its life, and the newest index it showed in it.
    shown: BTreeMap<usize, (u64, Index)>,
    /// By server: when it was looked at, and how long before that it had been in touch.
    contact: BTreeMap<usize, (Instant, Duration)>,
}

impl Reader {
    /// The reader of a run.
    pub(crate) fn new(world: World, shared: Shared) -> Self {
        let dice = Dice::named(world.swarm.seed, "reader");
        Self { world, shared, dice, token: 0, shown: BTreeMap::new(), contact: BTreeMap::new() }
    }

    /// Reads until told to stop.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            self.step().await;
            let pause = Duration::from_millis(self.dice.between(1, PAUSE_MS_MAX));
            drop(rt::timeout(pause, rt::until_true(&mut stop)).await);
        }
    }

    /// However leadership comes and goes: the time since a server was in touch grows with time, no faster.
    fn look_at_contacts(&mut self) {
        let now = Instant::now();
        for server in 0..self.world.count() {
            let Some(core) = self.world.core(server) else { continue };
            let contact = core.contact.last_contact();
            let before = self.contact.insert(server, (now, contact));
            let before = before.map(|(at, said)| (now - at, said));
            verdict::note(judge_contact(server, contact, before));
        }
    }

    async fn step(&mut self) {
        self.look_at_contacts();
        let server = self.dice.index(self.world.count());
        let index_min = match self.dice.below(4) {
            0 => 0,
            1 => self.token + 1,
            _ => self.token,
        };
        let begin = Instant::now();
        let life = self.world.incarnation(server);
        let work = move |core: Arc<Core>| async move {
            core.read(&CALLER, ReadMode::Stale, index_min, TIMEOUT).await
        };
        let answer = self.world.inside(server, work).await;
        self.world.keeps_deadline(server, begin, TIMEOUT, answer.is_some(), "a stale read");
        let snapshot = match answer {
            Some(Ok(snapshot)) => snapshot,
            Some(Err(ApiError::Timeout { .. } | ApiError::NotReady(_))) | None => return,
            Some(Err(error)) => {
                verdict::fail(format!("I13: a stale read through s{server} got: {error}"));
                return;
            }
        };
        let fresh = Duration::from_millis(2 * self.world.swarm.timing.election_ms_max);
        if snapshot.known_leader && snapshot.last_contact > fresh {
            let silence = snapshot.last_contact;
            verdict::fail(format!(
                "I13: s{server} knows a leader it has not heard for {silence:?}"
            ));
        }
        let index = snapshot.state.index();
        trace::event("reader", format_args!("{index} via s{server}, {index_min} was asked for"));
        coverage::hit("a server was read without the leader");
        verdict::note(judge(server, index_min, index, life, self.shown.get(&server).copied()));
        self.shown.insert(server, (life, index));
        self.token = self.token.max(index);
        self.world.shown(server, &snapshot.state);
        self.shared.was_shown(&snapshot.state);
    }
}

/// Whether a server may say that it was in touch so long ago, having said this so long before.
fn judge_contact(
    server: usize,
    contact: Duration,
    before: Option<(Duration, Duration)>,
) -> Result<(), String> {
    match before {
        Some((since, said)) if contact > said + since + CONTACT_SLACK => Err(format!(
            "I13: s{server} was in touch {said:?} before, and {since:?} later {contact:?} before"
        )),
        Some(_) | None => Ok(()),
    }
}

/// Whether a server in this life may show this index to whoever asked for `index_min`.
fn judge(
    server: usize,
    index_min: Index,
    index: Index,
    life: u64,
    before: Option<(u64, Index)>,
) -> Result<(), String> {
    if index < index_min {
        return Err(format!("I13: s{server} showed {index} to a reader who asked for {index_min}"));
    }
    match before {
        Some((of, last)) if of == life && index < last => {
            Err(format!("I13: s{server} showed {index} after {last}"))
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i13_a_state_that_is_older_than_asked_for_or_shown_before_is_found() {
        assert_eq!(judge(0, 5, 5, 1, Some((1, 5))), Ok(()));
        assert!(judge(0, 6, 5, 1, None).is_err());
        assert!(judge(0, 0, 5, 1, Some((1, 6))).is_err());
        assert_eq!(judge(0, 0, 5, 2, Some((1, 6))), Ok(()), "it began anew");
    }

    #[test]
    fn i13_a_contact_that_ages_faster_than_time_is_found() {
        let ms = Duration::from_millis;
        assert_eq!(judge_contact(0, ms(900), Some((ms(500), ms(400)))), Ok(()));
        assert_eq!(judge_contact(0, Duration::MAX, None), Ok(()));
        assert!(judge_contact(0, ms(920), Some((ms(500), ms(400)))).is_err());
    }
}
