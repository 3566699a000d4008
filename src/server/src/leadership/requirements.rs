//! What sources of capacity say, on its way into the log: on the leader only.
//!
//! ```text
//!  word ─► Heard::judge ─┬─► older: refused, with the newest that was heard
//!                        ├─► repetition: answered; no entry
//!                        └─► change ─► queue ─► one entry for the words of many sources
//! ```
//!
//! A thousand sources that repeat themselves each second cost no entry each: a repetition is
//! proposed only when half of its source's time is over. So the leader has heard more than the
//! state says; what it heard is lost with it, and sources speak again. A source that falls silent
//! after a repetition without an entry still has its whole time: the leader proposes that word
//! late, with the time that is left.
//!
//! Must never take an older word for a newer one, also when the newer one has no entry.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::{
    Command, Index, Rejection, Reply, State, Text, TimeMs,
    capacity::{CapacitySource, Requirements, SetRequirements},
    limits,
};
use ground::rt::{self, mpsc, oneshot};
use wire::api::{ApiError, Limit, Written};

use crate::leadership::services::LeaderServices;

/// How long the first word of an entry waits for others.
const GATHER: Duration = Duration::from_millis(10);
/// Size of the words in one entry, bytes, about.
const BYTES_MAX: usize = 4 << 20;
/// Words that wait for their entry.
const WAITING_MAX: usize = 16_384;
/// How long an entry may take before its outcome counts as unknown.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest pause between two looks for words that have to be proposed late.
const LOOK: Duration = Duration::from_secs(1);

type Outcome = Result<(Index, Option<Rejection>), ApiError>;

/// A word on its way.
pub(crate) struct Waiting {
    word: Requirements,
    reply: oneshot::Sender<Outcome>,
}

/// The end of the queue that entries are made from.
pub(crate) type Queue = mpsc::Receiver<Waiting>;

/// Takes words in.
pub(crate) struct Inlet {
    heard: Mutex<Heard>,
    queue: mpsc::Sender<Waiting>,
}

impl Inlet {
    /// An inlet that has heard nothing, and the queue behind it.
    pub(crate) fn new() -> (Self, Queue) {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        (Self { heard: Mutex::default(), queue }, waiting)
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the words of a command in, and waits until each is applied or known to change nothing.
    pub(crate) async fn take(
        &self,
        services: &LeaderServices,
        command: SetRequirements,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let mut index = 0;
        let mut refusals = Vec::with_capacity(command.words.len());
        let mut waits = Vec::new();
        for (position, word) in command.words.into_iter().enumerate() {
            let state = services.cell().load();
            match self.heard().judge(&state, services.now(), &word) {
                Judged::Older(rejection) => refusals.push(Some(rejection)),
                Judged::Repeated => refusals.push(None),
                Judged::Changed => {
                    refusals.push(None);
                    waits.push((position, self.submit(word)?));
                }
            }
            index = index.max(state.index());
        }
        let deadline = rt::Instant::now() + timeout;
        for (position, answer) in waits {
            let left = deadline.saturating_duration_since(rt::Instant::now());
            let answer = rt::timeout(left, answer).await;
            let answer = answer.map_err(|_| ApiError::Timeout { proposed: true })?;
            // The leadership is over, perhaps after the word was proposed.
            let (at, rejection) = answer.map_err(|_| ApiError::Unknown)??;
            index = index.max(at);
            refusals[position] = rejection;
        }
        let reply = match refusals.as_slice() {
            [None] => Reply::Done,
            [Some(rejection)] => Reply::Rejected(rejection.clone()),
            _ => Reply::Requirements(refusals),
        };
        Ok(Written { index, reply })
    }

    fn submit(&self, word: Requirements) -> Result<oneshot::Receiver<Outcome>, ApiError> {
        let (reply, answer) = oneshot::channel();
        self.queue.try_send(Waiting { word, reply }).map_err(|refused| {
            self.heard().settled(&refused.into_inner().word, false, 0);
            let limit = WAITING_MAX as u64;
            ApiError::Overloaded { what: Limit::Requirements, limit, retry_after_ms: 500 }
        })?;
        Ok(answer)
    }
}

/// Makes entries of words until the leadership is over.
pub(crate) async fn run(services: Arc<LeaderServices>, mut queue: Queue) {
    let mut stop = services.stopped();
    loop {
        let inlet = services.requirements();
        let due = inlet.heard().next_due();
        let pause = due.map_or(LOOK, |due| {
            Duration::from_millis(due.saturating_sub(services.now()).max(1)).min(LOOK)
        });
        let first = rt::select! {
            biased;
            () = rt::until_true(&mut stop) => return,
            first = queue.recv() => match first {
                Some(first) => {
                    rt::sleep(GATHER).await;
                    Some(first)
                }
                None => return,
            },
            () = rt::sleep(pause) => None,
        };
        let mut words = inlet.heard().late(&services.cell().load(), services.now());
        let mut replies: Vec<Option<oneshot::Sender<Outcome>>> =
            words.iter().map(|_| None).collect();
        let mut bytes: usize = words.iter().map(bytes_of).sum();
        let mut next = first;
        while let Some(Waiting { word, reply }) = next {
            bytes += bytes_of(&word);
            words.push(word);
            replies.push(Some(reply));
            let is_full = words.len() >= limits::CAPACITY_WORDS_MAX || bytes >= BYTES_MAX;
            next = if is_full { None } else { queue.try_recv().ok() };
        }
        if !words.is_empty() {
            rt::spawn(propose(Arc::clone(&services), words, replies));
        }
    }
}

async fn propose(
    services: Arc<LeaderServices>,
    words: Vec<Requirements>,
    replies: Vec<Option<oneshot::Sender<Outcome>>>,
) {
    let command = Command::from(SetRequirements { words: words.clone() });
    let result = services.propose(command, None, TIMEOUT).await;
    let now = services.now();
    for (position, (word, reply)) in words.iter().zip(replies).enumerate() {
        let outcome = outcome_of(&result, position);
        let is_taken = matches!(outcome, Ok((_, None)));
        services.requirements().heard().settled(word, is_taken, now);
        if let Some(reply) = reply {
            drop(reply.send(outcome));
        }
    }
}

/// What an entry says of one of its words.
fn outcome_of(result: &Result<Written, ApiError>, position: usize) -> Outcome {
    let written = result.as_ref().map_err(Clone::clone)?;
    match &written.reply {
        Reply::Requirements(refusals) => {
            Ok((written.index, refusals.get(position).cloned().flatten()))
        }
        Reply::Done => Ok((written.index, None)),
        Reply::Rejected(rejection) => Ok((written.index, Some(rejection.clone()))),
        Reply::Job { .. }
        | Reply::Node { .. }
        | Reply::Evaluations(_)
        | Reply::Plans(_)
        | Reply::Deployment { .. }
        | Reply::Dispatched(_)
        | Reply::Collected(_) => Err(ApiError::Unknown),
    }
}

/// Size of a word in an entry, about.
fn bytes_of(word: &Requirements) -> usize {
    let amounts = word.amounts.keys().map(|group| 10 + group.len());
    40 + word.source.len() + amounts.sum::<usize>()
}

/// What the leader makes of a word.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    /// Its source has said something newer.
    Older(Rejection),
    /// The state says the same, and will for a while.
    Repeated,
    /// It has to be proposed.
    Changed,
}

/// What a source said last in this leadership.
#[derive(Debug, Default)]
struct Spoken {
    /// Epoch and sequence.
    newest: (u64, u64),
    /// Log time.
    at: TimeMs,
    /// Words that are on their way into the log.
    pending: usize,
    /// When it is looked at again, as it was heard later than the state says.
    due: Option<TimeMs>,
}

/// What the sources said in this leadership.
#[derive(Debug, Default)]
struct Heard {
    sources: BTreeMap<Text, Spoken>,
    due: BTreeSet<(TimeMs, Text)>,
}

impl Heard {
    /// Judges a word; one that has to be proposed counts as on its way until it is
    /// [`Self::settled`].
    fn judge(&mut self, state: &State, now: TimeMs, word: &Requirements) -> Judged {
        self.forget(state);
        let row = state.capacity_sources().get(&word.source).map(|row| &**row);
        let of_row = row.map(|row| (row.epoch, row.seq));
        let spoken = self.sources.get_mut(&word.source);
        let newest = spoken.as_ref().map(|spoken| spoken.newest).max(of_row);
        let begins_anew = row.is_some_and(|row| row.may_begin_anew(word.epoch));
        let newest = newest.filter(|_| !begins_anew);
        if let Some((epoch, seq)) = newest.filter(|newest| (word.epoch, word.seq) < *newest) {
            let name = word.source.clone();
            return Judged::Older(Rejection::StaleRequirements { name, epoch, seq });
        }
        let Some(spoken) = spoken else {
            // The first word in a leadership shows the state that the source is there.
            let spoken = Spoken { pending: 1, ..Spoken::default() };
            self.sources.insert(word.source.clone(), spoken);
            return Judged::Changed;
        };
        let repeated = row.filter(|row| is_said_already(state, row, now, word));
        let Some(row) = repeated.filter(|_| spoken.pending == 0) else {
            spoken.pending += 1;
            return Judged::Changed;
        };
        spoken.newest = (word.epoch, word.seq);
        spoken.at = now;
        if spoken.due.is_none() {
            let due = row.heard_at.saturating_add(row.ttl_ms / 4 * 3);
            spoken.due = Some(due);
            self.due.insert((due, word.source.clone()));
        }
        Judged::Repeated
    }

    /// The entry of a word is applied, or will not be.
    fn settled(&mut self, word: &Requirements, is_taken: bool, now: TimeMs) {
        let Some(spoken) = self.sources.get_mut(&word.source) else { return };
        spoken.pending = spoken.pending.saturating_sub(1);
        if is_taken {
            spoken.newest = spoken.newest.max((word.epoch, word.seq));
            spoken.at = spoken.at.max(now);
        } else if spoken.pending == 0 && spoken.at == 0 {
            // Nothing that it said was ever taken.
            self.sources.remove(&word.source);
        }
    }

    /// Words that were heard, are not in the log, and would end before their time: each with the
    /// time that is left of it.
    fn late(&mut self, state: &State, now: TimeMs) -> Vec<Requirements> {
        let mut words = Vec::new();
        while words.len() < limits::CAPACITY_WORDS_MAX / 2
            && self.due.first().is_some_and(|(due, _)| *due <= now)
            && let Some((_, name)) = self.due.pop_first()
        {
            let Some(spoken) = self.sources.get_mut(&name) else { continue };
            spoken.due = None;
            let Some(row) = state.capacity_sources().get(&name) else { continue };
            let is_newer = spoken.newest > (row.epoch, row.seq) && spoken.at > row.heard_at;
            let ends_at = spoken.at.saturating_add(row.ttl_ms);
            if !is_newer || spoken.pending > 0 || row.expired_at != 0 || ends_at <= row.expires_at {
                continue;
            }
            spoken.pending += 1;
            words.push(Requirements {
                source: name,
                epoch: spoken.newest.0,
                seq: spoken.newest.1,
                ttl_ms: Some(ends_at.saturating_sub(now).max(1)),
                amounts: row
                    .amounts
                    .iter()
                    .map(|(group, asked)| (group.clone(), asked.amount))
                    .collect(),
            });
        }
        words
    }

    /// When [`Self::late`] has something to look at.
    fn next_due(&self) -> Option<TimeMs> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Drops sources that the state has forgotten.
    fn forget(&mut self, state: &State) {
        let most = 2 * state.capacity_sources().len() + WAITING_MAX;
        if self.sources.len() > most {
            let is_known = |name: &Text| state.capacity_sources().get(name).is_some();
            self.sources.retain(|name, spoken| spoken.pending > 0 || is_known(name));
            self.due.retain(|(_, name)| self.sources.contains_key(name));
        }
    }
}

/// Whether a word says what the state says, and the state's word holds for another half of its
/// time.
fn is_said_already(state: &State, row: &CapacitySource, now: TimeMs, word: &Requirements) -> bool {
    let is_same = |(group, amount): (&Text, &u64)| {
        let is_declared = state.capacity_group(group).is_some();
        is_declared && row.amounts.get(group).is_some_and(|asked| asked.amount == *amount)
    };
    let ttl_ms = word.ttl_ms.unwrap_or_else(|| state.requirement_ttl(&word.source, &word.amounts));
    row.epoch == word.epoch
        && row.expired_at == 0
        && row.ttl_ms == ttl_ms
        && now < row.heard_at.saturating_add(row.ttl_ms / 2)
        && row.amounts.len() == word.amounts.len()
        && word.amounts.iter().all(is_same)
}

#[cfg(test)]
mod tests;
