//! The shapes of network partitions: which flows between servers are blocked.
//!
//! Pure: given the servers, the leaders and a random stream it names flows; it never touches the network.

use std::collections::BTreeSet;

use crate::random::Random;

/// A shape; every one blocks at least one flow of a cluster of three or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One random server is alone.
    One,
    /// A random minority and the majority.
    Halves,
    /// Every server hears a majority, no two of them the same (three servers: one link is cut).
    MajoritiesRing,
    /// Each leader is alone.
    Primaries,
    /// One server hears nobody and is heard by all.
    AsymmetricIn,
    /// One server hears all and is heard by nobody.
    AsymmetricOut,
}

impl Shape {
    /// All shapes.
    pub(crate) const ALL: [Self; 6] = [
        Self::One,
        Self::Halves,
        Self::MajoritiesRing,
        Self::Primaries,
        Self::AsymmetricIn,
        Self::AsymmetricOut,
    ];

    /// Its name in the history.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Halves => "halves",
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
            Self::One | Self::Halves | Self::MajoritiesRing | Self::Primaries => false,
        }
    }

    /// The flows `(from, to)` to block; none if there is no leader to single out.
    pub(crate) fn blocked(
        self,
        servers: usize,
        leaders: &[usize],
        random: &mut Random,
    ) -> Vec<(usize, usize)> {
        let mut order: Vec<usize> = (0..servers).collect();
        random.shuffle(&mut order);
        let place = |server: usize| {
            order.iter().position(|other| *other == server).expect("the order holds every server")
        };
        // Asymmetric faults hurt most at the leader: half of them go there.
        let victim = if !leaders.is_empty() && random.below(2) == 0 {
            random.choose(leaders)
        } else {
            order[0]
        };
        let minority: BTreeSet<usize> = match self {
            Self::One => BTreeSet::from([order[0]]),
            Self::Halves => order[..servers.div_ceil(2) - 1].iter().copied().collect(),
            Self::Primaries => leaders.iter().copied().collect(),
            Self::MajoritiesRing | Self::AsymmetricIn | Self::AsymmetricOut => BTreeSet::new(),
        };
        let blocks = |from: usize, to: usize| match self {
            Self::One | Self::Halves => minority.contains(&from) != minority.contains(&to),
            Self::Primaries => minority.contains(&from) || minority.contains(&to),
            Self::MajoritiesRing => {
                let distance = place(from).abs_diff(place(to));
                // Three servers in a ring are all neighbours, so there the ring is a line.
                let around = if servers == 3 { distance } else { distance.min(servers - distance) };
                around > servers.div_ceil(2) / 2
            }
            Self::AsymmetricIn => to == victim,
            Self::AsymmetricOut => from == victim,
        };
        (0..servers)
            .flat_map(|from| (0..servers).map(move |to| (from, to)))
            .filter(|(from, to)| from != to && blocks(*from, *to))
            .collect()
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
            let mut random = Random::stream(seed, 0);
            for servers in [3, 5] {
                let leader = random.below(servers);
                let mut draw = |shape: Shape| shape.blocked(servers, &[leader], &mut random);
                let mut one = company(servers, &draw(Shape::One));
                one.sort_unstable();
                assert_eq!(one[0], 1);
                assert!(one[1..].iter().all(|count| *count == servers - 1));

                let mut halves = company(servers, &draw(Shape::Halves));
                halves.sort_unstable();
                assert_eq!(halves[servers - 1], servers / 2 + 1);
                assert_eq!(halves[0], servers / 2);

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
    fn primaries_without_a_leader_block_nothing() {
        let mut random = Random::stream(1, 0);
        assert_eq!(Shape::Primaries.blocked(3, &[], &mut random), []);
        assert!(!Shape::AsymmetricIn.blocked(3, &[], &mut random).is_empty());
    }
}
