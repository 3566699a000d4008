//! Proposes the end of a mass loss when most of its nodes are back, or when it lasted too long, and
//! says when one begins and ends. The state decides both; see `fsm::node::MassLoss`.
//!
//! While a mass loss lasts it looks once a second, at the cost of its nodes.

use fsm::{Effect, Index, State, command::Command, node::EndMassLoss};

use crate::{
    limits,
    machine::{Ids, Machine, Report, Stepped},
};

/// The watch over a mass loss.
#[derive(Default, Debug)]
pub(crate) struct MassLossWatch {
    /// A leader that takes over says nothing of a mass loss that was there before.
    has_begun: bool,
    /// Create index of the mass loss that is known.
    known: Option<Index>,
    /// None: there is no mass loss.
    look_at: Option<u64>,
    /// At most an end and a begin for each entry since the last step.
    reports: Vec<Report>,
}

impl MassLossWatch {
    /// Compares the state with what is known, and says what is new.
    fn follow(&mut self, now: u64, state: &State) {
        let last = state.mass_losses().get(&());
        let current = state.mass_loss().map(|loss| loss.create_index);
        if current == self.known {
            return;
        }
        if self.known.is_some() {
            // A loss that began meanwhile has taken the place of the row that says how this ended.
            let ended = last.filter(|loss| self.known == Some(loss.create_index));
            let by = ended.and_then(|loss| loss.end.as_ref()).map(|end| end.by.clone());
            self.reports.push(Report::MassLossEnded { by: by.unwrap_or_default() });
        }
        if let Some(loss) = state.mass_loss() {
            self.reports.push(Report::MassLossBegan { nodes: loss.nodes.len() as u64 });
        }
        (self.known, self.look_at) = (current, current.map(|_| now));
    }
}

impl Machine for MassLossWatch {
    fn restore(&mut self, now: u64, state: &State) {
        self.follow(now, state);
        if !self.has_begun {
            self.has_begun = true;
            self.reports.clear();
        }
    }

    fn take(&mut self, now: u64, state: &State, _index: Index, effect: &Effect) {
        if *effect == Effect::MassLoss {
            self.follow(now, state);
        }
    }

    fn step(&mut self, now: u64, state: &State, _ids: &mut Ids<'_>, stepped: &mut Stepped) {
        stepped.reports.append(&mut self.reports);
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        let Some(loss) = state.mass_loss() else {
            self.look_at = None;
            return;
        };
        let pause_ms = if state.is_mass_loss_over(loss, now) {
            stepped.commands.push(Command::from(EndMassLoss { by: None }));
            limits::DUE_RETRY_MS
        } else {
            limits::MASS_LOSS_LOOK_MS
        };
        self.look_at = Some(now.saturating_add(pause_ms));
    }

    fn next_deadline(&self) -> Option<u64> {
        if self.reports.is_empty() { self.look_at } else { Some(0) }
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        Liveness,
        node::{MassLoss, MassLossEnd, Node},
        testing::put,
    };

    use super::*;
    use crate::testing::{node, state_of_nodes};

    fn down(name: &str) -> Node {
        Node { liveness: Liveness::Down, ..node(name) }
    }

    fn state(nodes: [Node; 4], end: Option<MassLossEnd>) -> State {
        let ids = nodes.iter().map(|node| node.id).collect();
        let mut state = state_of_nodes(nodes);
        let (create_index, modify_index) = (7, 7);
        put(&mut state, &MassLoss { since: 0, nodes: ids, end, create_index, modify_index });
        state
    }

    fn step(machine: &mut MassLossWatch, now: u64, state: &State) -> Stepped {
        let mut stepped = Stepped::default();
        machine.step(now, state, &mut || [0; 16], &mut stepped);
        stepped
    }

    /// It looks each second, proposes the end when fewer than half are down, and again after a
    /// pause while the state does not have it.
    #[test]
    fn the_end_is_proposed_when_most_nodes_are_back() {
        let lost = state([down("a"), down("b"), down("c"), node("d")], None);
        let mut machine = MassLossWatch::default();
        machine.take(100, &lost, 7, &Effect::MassLoss);
        let stepped = step(&mut machine, 100, &lost);
        assert_eq!(stepped.reports, [Report::MassLossBegan { nodes: 4 }]);
        assert_eq!(stepped.commands, []);
        assert_eq!(machine.next_deadline(), Some(1_100));
        let half = state([down("a"), down("b"), node("c"), node("d")], None);
        assert_eq!(step(&mut machine, 1_100, &half).commands, []);
        let back = state([down("a"), node("b"), node("c"), node("d")], None);
        assert_eq!(step(&mut machine, 1_200, &back).commands, [], "not before the second is over");
        let end = Command::from(EndMassLoss { by: None });
        assert_eq!(step(&mut machine, 2_100, &back).commands, std::slice::from_ref(&end));
        assert_eq!(step(&mut machine, 3_100, &back).commands, []);
        let again = 2_100 + limits::DUE_RETRY_MS;
        assert_eq!(step(&mut machine, again, &back).commands, [end]);
        let by = "alice@web1".into();
        let over =
            state([down("a"), node("b"), node("c"), node("d")], Some(MassLossEnd { at: 9, by }));
        machine.take(again, &over, 8, &Effect::MassLoss);
        let ended = Report::MassLossEnded { by: "alice@web1".into() };
        assert_eq!(step(&mut machine, again, &over).reports, [ended]);
        assert_eq!(machine.next_deadline(), None);
    }

    /// A new leader finds a mass loss in the state, and says nothing of it. When effects were
    /// missed later on, what is new is said.
    #[test]
    fn a_new_leader_goes_on_with_it() {
        let back = state([down("a"), node("b"), node("c"), node("d")], None);
        let mut machine = MassLossWatch::default();
        machine.restore(50, &back);
        let stepped = step(&mut machine, 50, &back);
        assert_eq!((stepped.reports.len(), stepped.commands.len()), (0, 1));
        let mut machine = MassLossWatch::default();
        machine.restore(50, &State::default());
        assert_eq!(machine.next_deadline(), None);
        machine.restore(60, &back);
        assert_eq!(step(&mut machine, 60, &back).reports, [Report::MassLossBegan { nodes: 4 }]);
        machine.restore(70, &back);
        assert_eq!(step(&mut machine, 70, &back).reports, []);
        machine.restore(80, &State::default());
        let ended = Report::MassLossEnded { by: "".into() };
        assert_eq!(step(&mut machine, 80, &State::default()).reports, [ended]);
    }
}
