//! Is there an order of these calls that explains every answer, whatever the object is?
//!
//! Wing and Gong's search as Lowe sharpened it: the calls and returns form a linked list; a call that is
//! legal in the current state is lifted out of the list and the walk restarts at the front; at a return
//! whose call is still in the list the last choice is taken back; a configuration (set of lifted calls,
//! state) is never visited twice. It must never answer `Yes` or `No` when its budget ran out.
//!
//! A call without an answer is tried when no answered one is left to try, and of two configurations in the same state that differ in such calls only
//! the one that took fewer has everything ahead that the other has: else each of them would double the search, also where it makes no difference.
//! Of those that do the same the first is taken first: the others can do nothing that it cannot. None is taken right after one that it makes no
//! difference to have taken, such as a write after the write that it overwrites.
//!
//! A legal call that can change no state whatever may be taken at once: taking it back can never help. (One
//! that merely does not change *this* state may be needed later.) The set of lifted calls with an answer is remembered as a 128-bit sum of one random
//! number per call, the others as a bit each, so that a configuration is small in a long history too.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

use chance::Dice;

/// What the search may spend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// When to give up.
    pub(crate) deadline: Instant,
    /// How many configurations to remember before giving up.
    pub(crate) configurations_max: usize,
}

/// Why there is no answer, of what more time could help.
pub(crate) const TIME_RAN_OUT: &str = "the time for the search ran out";

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There is such an order.
    Yes,
    /// There is none.
    No,
    /// The budget ran out.
    Unknown(&'static str),
}

/// A call or its return, by the call's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The call starts.
    Call(usize),
    /// The call ends.
    Return(usize),
}

/// Calls and returns in real-time order, from the indexes of both ends; no second index = nobody knows
/// whether the call took effect.
pub(crate) fn events(calls: impl Iterator<Item = (u64, Option<u64>)>) -> Vec<Event> {
    let mut events: Vec<(u64, Event)> = Vec::new();
    for (position, (invoked, returned)) in calls.enumerate() {
        events.push((invoked, Event::Call(position)));
        events.extend(returned.map(|returned| (returned, Event::Return(position))));
    }
    events.sort_by_key(|(index, _)| *index);
    events.into_iter().map(|(_, event)| event).collect()
}

/// Searches for a legal order of `calls` calls; `step` is the state after a call, if it is legal;
/// `observes` says that a call does nothing to what others see. It may still narrow down what is known of the state.
/// `twin` is, of a call without an answer, the last one before it that does the same, if there is one.
pub(crate) fn solve<S: Clone + Eq + Hash>(
    events: &[Event],
    calls: usize,
    start: S,
    budget: &Budget,
    step: impl Fn(usize, &S) -> Option<S>,
    observes: impl Fn(usize) -> bool,
    twin: impl Fn(usize) -> Option<usize>,
) -> Outcome {
    let mut marks = Dice::numbered(0x57_47_4c, calls as u64);
    let marks: Vec<u128> =
        (0..calls).map(|_| u128::from(marks.bits()) << 64 | u128::from(marks.bits())).collect();
    let mut list = List::new(events, calls);
    let mut taken = Taken::new(&list.return_at);
    let mut lifted = 0_u128;
    let mut seen: Seen<S> = Seen::default();
    // The call and the state before it.
    let mut choices: Vec<(usize, S)> = Vec::new();
    let mut state = start;
    let mut missing = list.return_at.iter().filter(|position| position.is_some()).count();
    let mut unanswered = false;
    let mut entry = list.first();
    let mut turns = 0_u64;
    while missing > 0 {
        turns += 1;
        if turns.is_multiple_of(1024) && Instant::now() >= budget.deadline {
            return Outcome::Unknown(TIME_RAN_OUT);
        }
        let position = entry.expect("a required call is in the list together with its return");
        match events[position] {
            Event::Call(call) => {
                entry = list.after(position);
                if list.return_at[call].is_none() != unanswered {
                    continue;
                }
                if unanswered && twin(call).is_some_and(|twin| !taken.contains(twin)) {
                    continue;
                }
                let Some(next) = step(call, &state) else { continue };
                // Without an answer it need not have happened, and here it would make no difference, or the one before it makes none.
                if unanswered
                    && (next == state || spares_the_last(call, &next, &choices, &list, &step))
                {
                    continue;
                }
                // A call without an answer is in `taken` instead.
                let mark = if unanswered { 0 } else { marks[call] };
                taken.flip(call);
                if !seen.is_new((lifted ^ mark, next.clone()), &taken) {
                    taken.flip(call);
                    continue;
                }
                if seen.len > budget.configurations_max {
                    return Outcome::Unknown("the memory for the search ran out");
                }
                lifted ^= mark;
                choices.push((call, state));
                state = next;
                missing -= usize::from(list.lift(call));
                (unanswered, entry) = (false, list.first());
            }
            Event::Return(_) if !unanswered => (unanswered, entry) = (true, list.first()),
            Event::Return(_) => loop {
                let Some((call, before)) = choices.pop() else { return Outcome::No };
                // What was only seen is as well seen here as later, unless it settled what an unanswered call has done.
                let is_done = observes(call) && state == before;
                state = before;
                taken.flip(call);
                let required = list.put_back(call);
                lifted ^= if required { marks[call] } else { 0 };
                missing += usize::from(required);
                if !is_done {
                    (unanswered, entry) = (!required, list.after(list.call_at[call]));
                    break;
                }
            },
        }
    }
    Outcome::Yes
}

/// Whether the last choice need not have happened before this call, neither of which has an answer: without it the call leads to the same state.
///
/// Nothing is lost when the call is not tried here. It can be taken where the last choice was: the same answered calls are open there, hence the same
/// calls come before the first return. That configuration has the same state and answered calls and took fewer calls, so it has everything
/// ahead that the one left out has; and whatever there speaks against the call (a twin, which must be the last choice itself and would have changed
/// nothing here; no change of the state; a smaller set seen before; this rule again) points to a configuration that took fewer still. That one
/// is tried, be it later: of the configurations from which an order leads on, one with the fewest calls is therefore never left out.
fn spares_the_last<S: PartialEq>(
    call: usize,
    next: &S,
    choices: &[(usize, S)],
    list: &List,
    step: impl Fn(usize, &S) -> Option<S>,
) -> bool {
    choices.last().is_some_and(|(last, before)| {
        list.return_at[*last].is_none() && step(call, before).as_ref() == Some(next)
    })
}

/// Which of the calls without an answer were taken, a bit each.
struct Taken {
    /// The bit of each call; none for a call with an answer.
    bit: Vec<Option<usize>>,
    words: Box<[u64]>,
}

impl Taken {
    fn new(return_at: &[Option<usize>]) -> Self {
        let mut bits = 0..;
        let bit: Vec<_> =
            return_at.iter().map(|at| if at.is_none() { bits.next() } else { None }).collect();
        Self { bit, words: vec![0; bits.start.div_ceil(64)].into() }
    }

    fn contains(&self, call: usize) -> bool {
        self.bit[call].is_some_and(|bit| self.words[bit / 64] >> (bit % 64) & 1 == 1)
    }

    fn flip(&mut self, call: usize) {
        if let Some(bit) = self.bit[call] {
            self.words[bit / 64] ^= 1 << (bit % 64);
        }
    }
}

/// The configurations that were visited: for each set of answered calls and state the smallest sets of unanswered ones.
struct Seen<S> {
    visited: HashMap<(u128, S), Vec<Box<[u64]>>>,
    len: usize,
}

impl<S> Default for Seen<S> {
    fn default() -> Self {
        Self { visited: HashMap::new(), len: 0 }
    }
}

impl<S: Eq + Hash> Seen<S> {
    /// Remembers a configuration, unless it has nothing ahead that one visited before had not: the same state, and no call more to choose from.
    fn is_new(&mut self, key: (u128, S), taken: &Taken) -> bool {
        let within = |one: &[u64], other: &[u64]| one.iter().zip(other).all(|(a, b)| a & !b == 0);
        let sets = self.visited.entry(key).or_default();
        if sets.iter().any(|set| within(set, &taken.words)) {
            return false;
        }
        let before = sets.len();
        sets.retain(|set| !within(&taken.words, set));
        sets.push(taken.words.clone());
        self.len = self.len + sets.len() - before;
        true
    }
}

/// The events as a doubly linked list; position `len` is the sentinel before the first and after the last.
struct List {
    next: Vec<usize>,
    previous: Vec<usize>,
    call_at: Vec<usize>,
    return_at: Vec<Option<usize>>,
}

impl List {
    fn new(events: &[Event], calls: usize) -> Self {
        let ring = events.len() + 1;
        let mut call_at = vec![0; calls];
        let mut return_at = vec![None; calls];
        for (position, event) in events.iter().enumerate() {
            match *event {
                Event::Call(call) => call_at[call] = position,
                Event::Return(call) => return_at[call] = Some(position),
            }
        }
        Self {
            next: (0..ring).map(|position| (position + 1) % ring).collect(),
            previous: (0..ring).map(|position| (position + ring - 1) % ring).collect(),
            call_at,
            return_at,
        }
    }

    fn sentinel(&self) -> usize {
        self.next.len() - 1
    }

    fn first(&self) -> Option<usize> {
        self.after(self.sentinel())
    }

    fn after(&self, position: usize) -> Option<usize> {
        Some(self.next[position]).filter(|next| *next != self.sentinel())
    }

    /// Takes a call and its return out; tells whether it had one.
    fn lift(&mut self, call: usize) -> bool {
        self.unlink(self.call_at[call]);
        if let Some(position) = self.return_at[call] {
            self.unlink(position);
        }
        self.return_at[call].is_some()
    }

    /// Undoes the latest [`List::lift`] that is not yet undone; tells whether the call has a return.
    fn put_back(&mut self, call: usize) -> bool {
        if let Some(position) = self.return_at[call] {
            self.relink(position);
        }
        self.relink(self.call_at[call]);
        self.return_at[call].is_some()
    }

    fn unlink(&mut self, position: usize) {
        let (previous, next) = (self.previous[position], self.next[position]);
        self.next[previous] = next;
        self.previous[next] = previous;
    }

    fn relink(&mut self, position: usize) {
        let (previous, next) = (self.previous[position], self.next[position]);
        self.next[previous] = position;
        self.previous[next] = position;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Writes without an answer, then in each round an answered write and a read. The last read is of what nobody wrote, so that everything is tried.
    fn judge(
        unanswered: usize,
        rounds: usize,
        step: impl Fn(usize, &usize, bool) -> Option<usize>,
        twin: impl Fn(usize) -> Option<usize>,
    ) -> Outcome {
        let calls = unanswered + 2 * rounds;
        let times = (0..calls as u64).map(|call| (2 * call, Some(2 * call + 1)));
        let times =
            times.enumerate().map(|(call, (from, to))| (from, to.filter(|_| call >= unanswered)));
        let events = events(times);
        let is_read = |call: usize| call >= unanswered && (call - unanswered) % 2 == 1;
        let step = |call: usize, state: &usize| {
            if call == calls - 1 { None } else { step(call, state, is_read(call)) }
        };
        let deadline = Instant::now() + Duration::from_mins(1);
        let budget = Budget { deadline, configurations_max: 40_000 };
        solve(&events, calls, usize::MAX, &budget, step, is_read, twin)
    }

    /// A register without versions: what a write without an answer may do is soon overwritten, and seen by nobody.
    #[test]
    fn calls_without_an_answer_do_not_each_double_the_search() {
        // Writes of their own number, and reads of the one before.
        let step = |call: usize, state: &usize, is_read: bool| {
            if is_read { (*state == call - 1).then_some(*state) } else { Some(call) }
        };
        assert_eq!(judge(60, 20, step, |_| None), Outcome::No);
    }

    /// A switch: each read sees what was not written last, and any of the writes without an answer may have done it.
    #[test]
    fn which_of_the_calls_that_do_the_same_was_it_is_not_asked() {
        const UNANSWERED: usize = 40;
        let step = |call: usize, state: &usize, is_read: bool| {
            if is_read { (*state == 1).then_some(1) } else { Some(usize::from(call < UNANSWERED)) }
        };
        let twin = |call: usize| if call < UNANSWERED { call.checked_sub(1) } else { None };
        assert_eq!(judge(UNANSWERED, 20, step, twin), Outcome::No);
    }
}
