//! The leader hears words of sources, and proposes what changes something.

use std::collections::BTreeMap;

use fsm::testing::{Driver, START_MS, capacity_group};

use crate::leadership::requirements::*;

const TTL_MS: u64 = 10_000;

/// A state with the group `web`, and what a leader has heard.
struct Scene {
    driver: Driver,
    heard: Heard,
}

impl Scene {
    fn new() -> Self {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |pool| {
            pool.groups = BTreeMap::from([("web".into(), capacity_group("web").into())]);
        });
        Self { driver, heard: Heard::default() }
    }

    /// Time goes on to so many ms after the start.
    fn at(&mut self, ms: u64) {
        self.driver.at_ms(ms);
    }

    fn now(&self) -> u64 {
        self.driver.now
    }

    fn judge(&mut self, word: &Requirements) -> Judged {
        self.heard.judge(&self.driver.state, self.driver.now, word)
    }

    /// What is on its way is applied.
    fn apply(&mut self, word: &Requirements) {
        self.driver.accept(SetRequirements { words: vec![word.clone()] }.into());
        let now = self.now();
        self.heard.settled(word, true, now);
    }

    /// A word that has to be proposed, and is.
    #[track_caller]
    fn change(&mut self, word: &Requirements) {
        assert_eq!(self.judge(word), Judged::Changed);
        self.apply(word);
    }

    fn late(&mut self) -> Vec<Requirements> {
        self.heard.late(&self.driver.state, self.driver.now)
    }
}

fn word(seq: u64, amount: u64) -> Requirements {
    let amounts = BTreeMap::from([("web".into(), amount)]);
    Requirements { source: "lb".into(), epoch: 1, seq, ttl_ms: None, amounts }
}

fn older_than(epoch: u64, seq: u64) -> Judged {
    Judged::Older(Rejection::StaleRequirements { name: "lb".into(), epoch, seq })
}

#[test]
fn only_what_changes_something_is_proposed() {
    let mut scene = Scene::new();
    scene.change(&word(1, 5));
    assert_eq!(scene.judge(&word(2, 5)), Judged::Repeated);
    scene.change(&word(3, 6));
    let other_time = Requirements { ttl_ms: Some(TTL_MS + 1), ..word(4, 6) };
    scene.change(&other_time);
    assert_eq!(scene.judge(&Requirements { seq: 5, ..other_time }), Judged::Repeated);
    scene.change(&word(6, 6));
    let same_time = Requirements { ttl_ms: Some(TTL_MS), ..word(7, 6) };
    assert_eq!(scene.judge(&same_time), Judged::Repeated, "as long as the group says");
    scene.change(&Requirements { amounts: BTreeMap::new(), ..word(8, 0) });
    scene.change(&Requirements { epoch: 2, ..word(1, 0) });
    let unknown = BTreeMap::from([("gone".into(), 1)]);
    let unknown = Requirements { epoch: 2, amounts: unknown, ..word(2, 0) };
    assert_eq!(scene.judge(&unknown), Judged::Changed, "apply says what is wrong with it");
}

#[test]
fn a_repetition_is_proposed_when_half_of_the_time_is_gone() {
    let mut scene = Scene::new();
    scene.change(&word(1, 5));
    scene.at(TTL_MS / 2 - 1);
    assert_eq!(scene.judge(&word(2, 5)), Judged::Repeated);
    scene.at(TTL_MS / 2);
    scene.change(&word(3, 5));
    scene.at(TTL_MS - 1);
    assert_eq!(scene.judge(&word(4, 5)), Judged::Repeated, "the time begins anew");
}

/// FN-10: also when the newer word is not in the log.
#[test]
fn an_older_word_than_one_that_was_heard_is_refused() {
    let mut scene = Scene::new();
    scene.change(&word(1, 5));
    assert_eq!(scene.judge(&word(9, 5)), Judged::Repeated);
    assert_eq!(scene.judge(&word(8, 7)), older_than(1, 9));
    assert_eq!(scene.judge(&word(9, 5)), Judged::Repeated, "the answer may have been lost");
    assert_eq!(scene.judge(&Requirements { epoch: 0, ..word(10, 5) }), older_than(1, 9));
    scene.heard = Heard::default();
    assert_eq!(scene.judge(&word(0, 5)), older_than(1, 1), "the next leader has the state");
}

/// The word before may be applied after this one was judged: then it would not be a repetition.
#[test]
fn nothing_is_a_repetition_while_another_word_is_on_its_way() {
    let mut scene = Scene::new();
    scene.change(&word(1, 5));
    assert_eq!(scene.judge(&word(2, 6)), Judged::Changed);
    assert_eq!(scene.judge(&word(3, 5)), Judged::Changed);
    scene.apply(&word(2, 6));
    assert_eq!(scene.judge(&word(4, 6)), Judged::Changed);
    scene.apply(&word(3, 5));
    scene.apply(&word(4, 6));
    assert_eq!(scene.judge(&word(5, 6)), Judged::Repeated);
}

#[test]
fn the_first_word_in_a_leadership_is_proposed() {
    let mut scene = Scene::new();
    scene.change(&word(1, 5));
    scene.heard = Heard::default();
    scene.change(&word(2, 5));
    assert_eq!(scene.judge(&word(3, 5)), Judged::Repeated);
}

/// A word without an entry would end with the one before it.
#[test]
fn a_source_that_falls_silent_after_a_repetition_has_its_whole_time() {
    let mut scene = Scene::new();
    scene.change(&word(1, 5));
    scene.at(4_000);
    assert_eq!(scene.judge(&word(2, 5)), Judged::Repeated);
    scene.at(7_499);
    assert_eq!(scene.late(), []);
    assert_eq!(scene.heard.next_due(), Some(START_MS + 7_500));
    scene.at(7_500);
    let late = scene.late();
    assert_eq!(late, [Requirements { ttl_ms: Some(6_500), ..word(2, 5) }]);
    assert_eq!(scene.late(), [], "once");
    scene.apply(&late[0]);
    let row = scene.driver.state.capacity_sources().get(&"lb".into());
    assert_eq!(row.map(|row| row.expires_at), Some(START_MS + 4_000 + TTL_MS));
    scene.at(12_500);
    assert_eq!((scene.late(), scene.heard.next_due()), (Vec::new(), None));
}

#[test]
fn a_requirement_that_the_log_has_by_then_is_not_proposed_late() {
    let mut scene = Scene::new();
    scene.change(&word(1, 5));
    scene.at(4_000);
    assert_eq!(scene.judge(&word(2, 5)), Judged::Repeated);
    scene.at(6_000);
    scene.change(&word(3, 5));
    scene.at(7_500);
    assert_eq!(scene.late(), []);
}

#[test]
fn a_source_of_which_nothing_was_taken_is_not_remembered() {
    let mut scene = Scene::new();
    let now = scene.now();
    assert_eq!(scene.judge(&word(5, 1 << 60)), Judged::Changed);
    scene.heard.settled(&word(5, 1 << 60), false, now);
    assert!(scene.heard.sources.is_empty());
    scene.change(&word(1, 5));
    assert_eq!(scene.judge(&word(7, 1 << 60)), Judged::Changed);
    scene.heard.settled(&word(7, 1 << 60), false, now);
    assert_eq!(scene.judge(&word(2, 5)), Judged::Repeated, "the refused one is no newest");
}

#[test]
fn sources_that_the_state_has_forgotten_are_forgotten() {
    let mut scene = Scene::new();
    scene.change(&word(1, 5));
    for number in 0..WAITING_MAX + 2 {
        let name = Text::from(format!("gone{number}"));
        scene.heard.sources.insert(name, Spoken { at: 1, ..Spoken::default() });
    }
    assert_eq!(scene.judge(&word(2, 5)), Judged::Repeated);
    assert_eq!(scene.heard.sources.len(), 1);
}
