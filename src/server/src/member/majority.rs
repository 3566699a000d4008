//! Says in the log, once each time, that a majority of the servers is lost, and that it is back.
//!
//! Whether it is lost is [`Contact::is_majority_lost`]; every other view asks that too, so that
//! none lags behind the log.

use std::{sync::Arc, time::Duration};

use ground::rt::{self, Instant, watch};

use crate::member::contact::Contact;

/// Between two looks while the majority is lost.
const LOOK: Duration = Duration::from_millis(50);
/// A server that has started says only after this time that it hears no majority: the others may be
/// starting too.
const STARTING: Duration = Duration::from_secs(5);

/// Watches until the server stops.
pub(crate) async fn run(contact: Arc<Contact>, mut stop: watch::Receiver<bool>) {
    let begun = Instant::now();
    let mut watch = Watch::default();
    loop {
        let silence = contact.last_contact();
        let lost = contact.is_majority_lost();
        let census = contact.census();
        let touch = if contact.knows_leader() {
            Touch::Heard
        } else if lost && census.voters > 0 {
            Touch::Lost(silence)
        } else {
            // An election, or a server that is no member of a cluster yet.
            Touch::Unclear
        };
        match watch.see(touch, begun.elapsed()) {
            Some(News::Lost) => {
                tracing::warn!(
                    silent_ms = silence.as_millis(),
                    voters = census.voters,
                    answering = census.alive,
                    needed = census.majority(),
                    led = contact.leads().is_some(),
                    "no majority of the servers answers: nothing can be written, and reads are stale, until {} of them run and reach each other",
                    census.majority()
                );
            }
            Some(News::Back(away)) => {
                tracing::info!(
                    away_ms = away.as_millis(),
                    "a majority of the servers answers again"
                );
            }
            None => {}
        }
        // Nothing can be lost before the silence is long enough.
        let pause = contact.majority_silence_max().saturating_sub(silence);
        let pause = if lost { LOOK } else { pause + Duration::from_millis(1) };
        if rt::timeout(pause, rt::until_true(&mut stop)).await.is_ok() {
            return;
        }
    }
}

/// What a server knows of a majority at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    /// There is a leader, and a majority answers it.
    Heard,
    /// None has answered for so long.
    Lost(Duration),
    Unclear,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Lost,
    /// After so long without it.
    Back(Duration),
}

/// What was said last.
#[derive(Debug, Default)]
struct Watch {
    /// A majority was heard since the start.
    was_heard: bool,
    /// It was said to be lost, and has been silent for so long.
    lost: Option<Duration>,
}

impl Watch {
    /// What there is to say, on a server that started `up` ago.
    fn see(&mut self, touch: Touch, up: Duration) -> Option<News> {
        match touch {
            Touch::Unclear => None,
            Touch::Heard => {
                self.was_heard = true;
                self.lost.take().map(News::Back)
            }
            Touch::Lost(silence) => {
                let is_new = self.lost.is_none() && (self.was_heard || up >= STARTING);
                if is_new || self.lost.is_some() {
                    self.lost = Some(silence);
                }
                is_new.then_some(News::Lost)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_said_once_and_so_is_its_end() {
        let s = Duration::from_secs;
        let mut watch = Watch::default();
        assert_eq!(watch.see(Touch::Unclear, s(0)), None);
        assert_eq!(watch.see(Touch::Lost(s(2)), s(2)), None, "it has just started");
        assert_eq!(
            watch.see(Touch::Lost(s(5)), s(5)),
            Some(News::Lost),
            "it may be alone for ever"
        );
        assert_eq!(watch.see(Touch::Lost(s(9)), s(9)), None);
        assert_eq!(watch.see(Touch::Unclear, s(10)), None, "an election is under way");
        assert_eq!(watch.see(Touch::Heard, s(10)), Some(News::Back(s(9))));
        assert_eq!(watch.see(Touch::Heard, s(11)), None);
        assert_eq!(watch.see(Touch::Lost(s(2)), s(13)), Some(News::Lost));
        assert_eq!(watch.see(Touch::Heard, s(14)), Some(News::Back(s(2))));
        let mut watch = Watch::default();
        assert_eq!(watch.see(Touch::Heard, s(1)), None);
        assert_eq!(watch.see(Touch::Lost(s(2)), s(3)), Some(News::Lost), "it had been heard");
    }
}
