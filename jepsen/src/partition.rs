//! The shapes of network partitions: which flows between servers are blocked.
//!
//! Pure: given the servers, the leaders and a random stream it names flows; it never touches the network.

use std::collections::BTreeSet;

use chance::Dice;

/// A shape; every one blocks at least one flow of a cluster of three or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One random server is alone.
    One,
    /// The leader and the majority on one side, the others on the other side.
    Majority,
    /// The leader and the minority on one side, the others on the other side.
    LeaderWithMinority,
    /// Less than a third of the servers, but one at least, on one side.
    MinorityThird,
    /// Three parts, none of which is a majority.
    Thirds,
    /// A random minority and the majority.
    Halves,
    /// Two parts that see each other only through one server in the middle, which sees all.
    Bridge,
    /// Every server hears a majority, no two of them the same (three servers: one link is cut).
    MajoritiesRing,
    /// Each leader is alone.
    Primaries,
    /// One server hears nobody and is heard by all.
    AsymmetricIn,
    /// One server hears all and is heard by nobody.
    AsymmetricOut,
}

/// What a shape came to in one draw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The flows `(from, to)` to block.
    pub(crate) flows: Vec<(usize, usize)>,
    /// Servers without a way to or from a majority, where that is one part.
    pub(crate) isolated: Vec<usize>,
}

impl Shape {
    /// All shapes.
    pub(crate) const ALL: [Self; 11] = [
        Self::One,
        Self::Majority,
        Self::LeaderWithMinority,
        Self::MinorityThird,
        Self::Thirds,
        Self::Halves,
        Self::Bridge,
        Self::MajoritiesRing,
        Self::Primaries,
        Self::AsymmetricIn,
        Self::AsymmetricOut,
    ];

    /// Its name in the history.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Majority => "majority",
            Self::LeaderWithMinority => "leader-with-minority",
            Self::MinorityThird => "minority-third",
            Self::Thirds => "thirds",
            Self::Halves => "halves",
            Self::Bridge => "bridge",
            Self::MajoritiesRing => "majorities-ring",
            Self::Primaries => "primaries",
            Self::AsymmetricIn => "asymmetric-in",
            Self::AsymmetricOut => "asymmetric-out",
        }
    }

    /// Whether it needs to block single directions, which closing connections cannot do.
    pub(crate) fn one_way(self) -> bool {
        match self {
            Self::AsymmetricIn | Self::AsymmetricOut => true,
            Self::One
            | Self::Majority
            | Self::LeaderWithMinority
            | Self::MinorityThird
            | Self::Thirds
            | Self::Halves
            | Self::Bridge
            | Self::MajoritiesRing
            | Self::Primaries => false,
        }
    }

    /// What to block; nothing if there is no leader to single out.
    pub(crate) fn draw(self, servers: usize, leaders: &[usize], random: &mut Dice) -> Cut {
        let mut order: Vec<usize> = (0..servers).collect();
        random.shuffle(&mut order);
        let minority = servers.div_ceil(2) - 1;
        let leader = (!leaders.is_empty()).then(|| random.choose(leaders));
        if let (Self::Majority | Self::LeaderWithMinority, Some(leader)) = (self, leader) {
            // The parts are cut from the front: the leader comes first, or last.
            order.retain(|server| *server != leader);
            let place = if self == Self::Majority { order.len() } else { 0 };
            order.insert(place, leader);
        }
        // Asymmetric faults hurt most at the leader: half of them go there.
        let victim = leader.filter(|_| random.index(2) == 0).unwrap_or(order[0]);
        let place = |server: usize| {
            order.iter().position(|other| *other == server).expect("the order holds every server")
        };
        let front: BTreeSet<usize> = match self {
            Self::One => order[..1].iter().copied().collect(),
            Self::MinorityThird => order[..((servers - 1) / 3).max(1)].iter().copied().collect(),
            Self::Halves => order[..minority].iter().copied().collect(),
            Self::Majority | Self::LeaderWithMinority if leader.is_none() => BTreeSet::new(),
            Self::Majority | Self::LeaderWithMinority => {
                order[..minority].iter().copied().collect()
            }
            Self::Primaries => leaders.iter().copied().collect(),
            Self::AsymmetricIn | Self::AsymmetricOut => BTreeSet::from([victim]),
            Self::MajoritiesRing | Self::Thirds | Self::Bridge => BTreeSet::new(),
        };
        let blocks = |from: usize, to: usize| match self {
            Self::One
            | Self::Majority
            | Self::LeaderWithMinority
            | Self::MinorityThird
            | Self::Halves => front.contains(&from) != front.contains(&to),
            Self::Thirds => place(from) % 3 != place(to) % 3,
            Self::Bridge => {
                let (from, to) = (place(from), place(to));
                from.min(to) < servers / 2 && from.max(to) > servers / 2
            }
            Self::Primaries => front.contains(&from) || front.contains(&to),
            Self::MajoritiesRing => {
                let distance = place(from).abs_diff(place(to));
                // Three servers in a ring are all neighbours, so there the ring is a line.
                let around = if servers == 3 { distance } else { distance.min(servers - distance) };
                around > servers.div_ceil(2) / 2
            }
            Self::AsymmetricIn => to == victim,
            Self::AsymmetricOut => from == victim,
        };
        let flows = (0..servers)
            .flat_map(|from| (0..servers).map(move |to| (from, to)))
            .filter(|(from, to)| from != to && blocks(*from, *to))
            .collect();
        Cut { flows, isolated: front.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each server the number of servers it exchanges messages with both ways, itself included.
    fn company(servers: usize, blocked: &[(usize, usize)]) -> Vec<usize> {
        let open = |from: usize, to: usize| !blocked.contains(&(from, to));
        (0..servers)
            .map(|server| {
                let with = |other: &usize| open(server, *other) && open(*other, server);
                (0..servers).filter(with).count()
            })
            .collect()
    }

    #[test]
    fn shapes_isolate_what_they_say() {
        for seed in 0..200 {
            let mut random = Dice::numbered(seed, 0);
            for servers in [3, 5] {
                let leader = random.index(servers);
                let mut draw = |shape: Shape| shape.draw(servers, &[leader], &mut random).flows;
                let mut one = company(servers, &draw(Shape::One));
                one.sort_unstable();
                assert_eq!(one[0], 1);
                assert!(one[1..].iter().all(|count| *count == servers - 1));

                let mut halves = company(servers, &draw(Shape::Halves));
                halves.sort_unstable();
                assert_eq!(halves[servers - 1], servers / 2 + 1);
                assert_eq!(halves[0], servers / 2);

                let majority = company(servers, &draw(Shape::Majority));
                assert_eq!(majority[leader], servers / 2 + 1);
                let minority = company(servers, &draw(Shape::LeaderWithMinority));
                assert_eq!(minority[leader], servers / 2);
                assert!(minority.contains(&(servers / 2 + 1)));
                let thirds = company(servers, &draw(Shape::Thirds));
                assert!(thirds.iter().all(|count| *count <= servers / 2), "{thirds:?}");
                let mut third = company(servers, &draw(Shape::MinorityThird));
                third.sort_unstable();
                assert_eq!(third[..2], [1, servers - 1]);
                let bridge = company(servers, &draw(Shape::Bridge));
                let seeing_all = bridge.iter().filter(|count| **count == servers);
                assert_eq!(seeing_all.count(), 1, "{bridge:?}");
                assert!(bridge.iter().all(|count| *count > servers / 2), "{bridge:?}");

                let ring = company(servers, &draw(Shape::MajoritiesRing));
                assert!(ring.iter().all(|count| *count > servers / 2), "{ring:?}");
                assert!(ring.iter().any(|count| *count < servers), "{ring:?}");

                assert_eq!(company(servers, &draw(Shape::Primaries))[leader], 1);
                for shape in [Shape::AsymmetricIn, Shape::AsymmetricOut] {
                    let blocked = draw(shape);
                    assert_eq!(blocked.len(), servers - 1);
                    assert!(blocked.iter().all(|(from, to)| !blocked.contains(&(*to, *from))));
                }
            }
        }
    }

    #[test]
    fn isolated_servers_are_those_cut_off() {
        let mut random = Dice::numbered(3, 0);
        let mut draw = |shape: Shape| shape.draw(5, &[4], &mut random).isolated;
        assert_eq!(draw(Shape::Primaries), [4]);
        assert!(draw(Shape::LeaderWithMinority).contains(&4));
        assert!(!draw(Shape::Majority).contains(&4));
        assert_eq!(draw(Shape::Halves).len(), 2);
        assert!(draw(Shape::Bridge).is_empty());
    }

    #[test]
    fn shapes_around_a_leader_need_one() {
        let mut random = Dice::numbered(1, 0);
        for shape in [Shape::Primaries, Shape::Majority, Shape::LeaderWithMinority] {
            assert_eq!(shape.draw(3, &[], &mut random), Cut::default());
        }
        assert!(!Shape::AsymmetricIn.draw(3, &[], &mut random).flows.is_empty());
    }
}
