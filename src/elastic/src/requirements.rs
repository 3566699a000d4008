//! The sources of requirements, watched by time: which fell silent, and which a new leader has not
//! heard yet.
//!
//! A source is found silent when its word has lost its validity, and never sooner than its time to
//! live after the leadership began: until then words may have been lost with the old leader. No
//! group shrinks while one of its sources is not heard.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{CapacitySource, Command, State, Text, capacity::ExpireRequirements, limits};

/// What was proposed is proposed again after this time if the state still asks for it, ms.
const ASK_AGAIN_MS: u64 = 5_000;
/// Sources in one entry.
const SOURCES_MAX: usize = 1_000;

/// The sources of one leadership.
#[derive(Default, Debug)]
pub(crate) struct Sources {
    /// None: no leadership yet.
    began_at: Option<u64>,
    /// When each source is looked at next.
    due: BTreeMap<Text, u64>,
    by_time: BTreeSet<(u64, Text)>,
    /// Until when each source that has not spoken since the leadership began is waited for.
    unheard: BTreeMap<Text, u64>,
}

impl Sources {
    /// Takes all sources over from the state.
    pub(crate) fn restore(&mut self, now: u64, state: &State) {
        let is_first = self.began_at.is_none();
        self.began_at.get_or_insert(now);
        (self.due, self.by_time) = (BTreeMap::new(), BTreeSet::new());
        for row in state.capacity_sources().iter() {
            if is_first && row.expired_at == 0 {
                self.unheard.insert(row.name.clone(), now.saturating_add(row.ttl_ms));
            }
            self.watch(row);
        }
        let sources = state.capacity_sources();
        self.unheard.retain(|name, _| sources.get(name).is_some_and(|row| is_unheard(state, row)));
    }

    /// A source spoke, expired or was forgotten.
    pub(crate) fn changed(&mut self, state: &State, name: &Text) {
        match state.capacity_sources().get(name) {
            Some(row) => {
                if !is_unheard(state, row) {
                    self.unheard.remove(name);
                }
                self.watch(row);
            }
            None => {
                self.unheard.remove(name);
                self.set_due(name, None);
            }
        }
    }

    fn watch(&mut self, row: &CapacitySource) {
        let began_at = self.began_at.unwrap_or(0);
        let at = if row.expired_at > 0 {
            row.expired_at.saturating_add(limits::CAPACITY_KEPT_MS)
        } else {
            row.expires_at.max(began_at.saturating_add(row.ttl_ms))
        };
        self.set_due(&row.name, Some(at));
    }

    fn set_due(&mut self, name: &Text, at: Option<u64>) {
        let old = match at {
            Some(at) => self.due.insert(name.clone(), at),
            None => self.due.remove(name),
        };
        if let Some(old) = old {
            self.by_time.remove(&(old, name.clone()));
        }
        if let Some(at) = at {
            self.by_time.insert((at, name.clone()));
        }
    }

    /// The command that takes silent sources out, if there are any.
    pub(crate) fn step(&mut self, now: u64) -> Option<Command> {
        self.unheard.retain(|_, until| *until > now);
        let due = self.by_time.iter().take_while(|(at, _)| *at <= now).take(SOURCES_MAX);
        let sources: Vec<Text> = due.map(|(_, name)| name.clone()).collect();
        for name in &sources {
            self.set_due(name, Some(now.saturating_add(ASK_AGAIN_MS)));
        }
        let command = ExpireRequirements { sources, groups: Vec::new() };
        (!command.sources.is_empty()).then(|| command.into())
    }

    /// When to step next.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// When the last source of a group that has not spoken since the leadership began is waited for
    /// no more; none: every source has spoken.
    pub(crate) fn unheard_until(&self, now: u64, state: &State, group: &Text) -> Option<u64> {
        let of_group = self.unheard.iter().filter(|(name, _)| {
            let row = state.capacity_sources().get(*name);
            row.is_some_and(|row| row.amounts.contains_key(group))
        });
        of_group.map(|(_, until)| *until).max().filter(|until| *until > now)
    }
}

/// Whether the leader waits for a source: it has neither spoken in the leader's term nor expired.
/// The time of its word does not tell: that of a leadership begins at the last entry before it.
pub(crate) fn is_unheard(state: &State, row: &CapacitySource) -> bool {
    row.heard_term != state.term() && row.expired_at == 0
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use fsm::testing::{Driver, Interruption, START_MS, capacity_group};

    use super::*;
    use fsm::command::CapacityCommand;

    fn with_source(ttl_ms: u64) -> Driver {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |pool| {
            let web = fsm::CapacityGroup { requirement_ttl_ms: ttl_ms, ..capacity_group("web") };
            pool.groups.insert("web".into(), web.into());
        });
        driver.require("lb1", 1, &[("web", 5)]);
        driver
    }

    fn names(command: Option<Command>) -> Vec<Text> {
        let Some(Command::Capacity(CapacityCommand::ExpireRequirements(command))) = command else {
            return Vec::new();
        };
        command.sources
    }

    /// FN-08 (a silent source is found when its time is over; once).
    #[test]
    fn a_silent_source_is_found_once() {
        let mut driver = with_source(10_000);
        let mut sources = Sources::default();
        sources.restore(START_MS, &driver.state);
        assert_eq!(sources.next_deadline(), Some(START_MS + 10_000));
        assert_eq!(names(sources.step(START_MS + 9_999)), Vec::<Text>::new());
        driver.at_seconds(5);
        driver.require("lb1", 2, &[("web", 5)]);
        sources.changed(&driver.state, &"lb1".into());
        assert_eq!(names(sources.step(START_MS + 14_999)), Vec::<Text>::new());
        driver.at_seconds(15);
        let command = sources.step(driver.now);
        assert_eq!(names(command.clone()), ["lb1".into()]);
        assert_eq!(names(sources.step(driver.now + 1)), Vec::<Text>::new(), "it was asked for");
        driver.accept(command.unwrap());
        sources.changed(&driver.state, &"lb1".into());
        assert_eq!(sources.next_deadline(), Some(driver.now + limits::CAPACITY_KEPT_MS));
    }

    /// FN-22 (a new leader waits for every source, at most for its time; and finds none silent
    /// before).
    #[test]
    fn a_new_leader_gives_every_source_its_time_anew() {
        let mut driver = with_source(10_000);
        driver.require("lb2", 1, &[("web", 5)]);
        let took_over = START_MS + 60_000;
        driver.interrupt(Interruption::NewLeader);
        let mut sources = Sources::default();
        sources.restore(took_over, &driver.state);
        let until = |sources: &Sources, state: &State, now: u64| {
            sources.unheard_until(now, state, &"web".into())
        };
        assert_eq!(names(sources.step(took_over)), Vec::<Text>::new());
        assert_eq!(until(&sources, &driver.state, took_over), Some(took_over + 10_000));
        assert_eq!(sources.unheard_until(took_over, &driver.state, &"api".into()), None);
        driver.now = took_over + 3_000;
        driver.require("lb1", 2, &[("web", 5)]);
        sources.changed(&driver.state, &"lb1".into());
        assert!(until(&sources, &driver.state, driver.now).is_some(), "lb2 has not spoken");
        driver.require("lb2", 2, &[("web", 5)]);
        sources.changed(&driver.state, &"lb2".into());
        assert_eq!(until(&sources, &driver.state, driver.now), None);

        driver.interrupt(Interruption::NewLeader);
        let mut sources = Sources::default();
        sources.restore(took_over + 100_000, &driver.state);
        let end = took_over + 110_000;
        assert!(until(&sources, &driver.state, end - 1).is_some());
        assert_eq!(until(&sources, &driver.state, end), None);
        assert_eq!(names(sources.step(end)), ["lb1".into(), "lb2".into()]);
    }

    /// The words of a leadership are told from those before it by the term: its time may begin with
    /// that of the last entry.
    #[test]
    fn a_source_that_speaks_in_the_moment_of_an_election_is_heard() {
        let mut driver = with_source(10_000);
        driver.interrupt(Interruption::NewLeader);
        let mut sources = Sources::default();
        sources.restore(START_MS, &driver.state);
        let until = |sources: &Sources, state: &State| {
            sources.unheard_until(START_MS, state, &"web".into())
        };
        assert!(until(&sources, &driver.state).is_some(), "it spoke to the leader before");
        driver.require("lb1", 2, &[("web", 5)]);
        sources.changed(&driver.state, &"lb1".into());
        assert_eq!(until(&sources, &driver.state), None);
    }
}
