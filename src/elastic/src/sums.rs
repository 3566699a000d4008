//! What the members of a capacity group give, by what they do: for whoever shows a group.

use std::collections::BTreeMap;

use fsm::{State, Text, capacity::MemberPhase};

/// What the members of a group give, in its dimension.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GroupSums {
    /// Members that serve.
    pub current: u64,
    pub on_the_way: u64,
    pub draining: u64,
    /// Members in each phase; one that nobody is in counts 0.
    pub members: BTreeMap<MemberPhase, u64>,
}

impl GroupSums {
    /// The sums of a group; amounts are 0 when it is not declared any more.
    pub fn of(state: &State, name: &Text) -> Self {
        let members = MemberPhase::ALL.into_iter().map(|phase| (phase, 0)).collect();
        let mut sums = Self { members, ..Self::default() };
        let declared = state.capacity_group(name).map(|(_, group)| group);
        for row in state.members_of(name) {
            let phase = state.member_phase(row);
            let count = sums.members.entry(phase).or_default();
            *count = count.saturating_add(1);
            let Some(group) = declared else { continue };
            let sum = match phase {
                MemberPhase::Active => &mut sums.current,
                MemberPhase::Coming => &mut sums.on_the_way,
                MemberPhase::Draining => &mut sums.draining,
                MemberPhase::Away | MemberPhase::Apart | MemberPhase::Ending => continue,
            };
            let node = row.node.and_then(|node| state.nodes().get(&node));
            let given = match node {
                Some(node) if phase != MemberPhase::Coming => group.given(node),
                Some(_) | None => group.expected(&row.kind),
            };
            *sum = sum.saturating_add(given);
        }
        sums
    }

    /// Members that serve.
    pub fn active(&self) -> u64 {
        self.members.get(&MemberPhase::Active).copied().unwrap_or(0)
    }
}
