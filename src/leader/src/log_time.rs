//! Moves log time on while nothing else does.
//!
//! A server stamps requests with log time as it knows it from the last entry. In an idle cluster
//! that grows old, and a request that is stamped too early counts as expired. So an entry that does
//! nothing comes after a minute, far below the session window.

use fsm::{Command, Effect, Index, State, upkeep::Tick};

use crate::{
    limits,
    machine::{Ids, Machine, Stepped},
};

/// When log time was moved on last.
#[derive(Default, Debug)]
pub struct LogTime {
    /// Time of the last entry, or of the last tick that was asked for, which may be lost.
    moved_at: u64,
}

impl Machine for LogTime {
    fn restore(&mut self, _now: u64, state: &State) {
        self.moved_at = self.moved_at.max(state.at());
    }

    fn take(&mut self, _now: u64, _state: &State, _index: Index, _effect: &Effect) {}

    fn step(&mut self, now: u64, state: &State, _ids: &mut Ids<'_>, stepped: &mut Stepped) {
        self.moved_at = self.moved_at.max(state.at());
        if now.saturating_sub(self.moved_at) >= limits::TICK_AFTER_MS {
            self.moved_at = now;
            stepped.commands.push(Command::from(Tick));
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        Some(self.moved_at.saturating_add(limits::TICK_AFTER_MS))
    }
}

#[cfg(test)]
mod tests {
    use fsm::state::Head;

    use super::*;

    fn state_at(at: u64) -> State {
        let mut state = State::default();
        state.load_done(Head { at, ..Head::default() });
        state
    }

    fn ticks(machine: &mut LogTime, now: u64, state: &State) -> usize {
        let mut stepped = Stepped::default();
        machine.step(now, state, &mut || [0; 16], &mut stepped);
        assert!(stepped.commands.iter().all(|command| *command == Command::from(Tick)));
        stepped.commands.len()
    }

    #[test]
    fn an_idle_cluster_ticks_once_a_minute() {
        let state = state_at(1_000);
        let mut machine = LogTime::default();
        machine.restore(1_000, &state);
        let due = 1_000 + limits::TICK_AFTER_MS;
        assert_eq!(machine.next_deadline(), Some(due));
        assert_eq!(ticks(&mut machine, due - 1, &state), 0);
        assert_eq!(ticks(&mut machine, due, &state), 1);
        assert_eq!(ticks(&mut machine, due + 1, &state), 0, "it is under way");
        assert_eq!(machine.next_deadline(), Some(due + limits::TICK_AFTER_MS));
        assert_eq!(ticks(&mut machine, due + limits::TICK_AFTER_MS, &state), 1, "it may be lost");
    }

    #[test]
    fn an_entry_moves_log_time_as_well_as_a_tick() {
        let mut machine = LogTime::default();
        machine.restore(0, &State::default());
        let moved = state_at(limits::TICK_AFTER_MS - 1);
        assert_eq!(ticks(&mut machine, limits::TICK_AFTER_MS, &moved), 0);
    }
}
