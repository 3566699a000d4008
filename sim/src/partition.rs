//! Shapes of partitions: which links between servers are cut.
//!
//! Pure: it names links and cuts none. Invariant: however a shape comes out, drawing it takes three numbers, so that a seed keeps the rest of its
//! meaning.

use chance::Dice;

/// What is cut; `from` and `to` are ends of one direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// This one against the rest.
    Alone(usize),
    /// Two sides: a bit for each server.
    Sides(u64),
    /// Two sides, and one that sees both.
    Bridge { sides: u64, middle: usize },
    /// Each of so many sees its neighbours only, and of five nobody the same majority.
    Ring(usize),
    /// These two of three; the third sees both.
    Pair(usize, usize),
    /// The first of these two of three is not heard by the second.
    OneWay(usize, usize),
}

impl Shape {
    /// A shape for so many servers; `server` is the one that may be alone.
    pub(crate) fn draw(dice: &mut Dice, count: usize, server: usize) -> Self {
        let sides = dice.bits();
        let middle = dice.index(count);
        match dice.below(5) {
            0 | 1 => Self::Alone(server),
            2 => Self::Sides(sides),
            3 => Self::Bridge { sides, middle },
            // Three in a ring are all neighbours: one link is cut instead. The two highest bits say in which directions, and name no side.
            _ if count == 3 => {
                let (one, other) = ((middle + 1) % count, (middle + 2) % count);
                match sides >> 62 {
                    0 | 1 => Self::Pair(one, other),
                    2 => Self::OneWay(one, other),
                    _ => Self::OneWay(other, one),
                }
            }
            _ => Self::Ring(count),
        }
    }

    /// Whether what one server sends another is lost.
    pub(crate) fn cuts(self, from: usize, to: usize) -> bool {
        match self {
            Self::Alone(server) => (from == server) != (to == server),
            Self::Sides(sides) => side(sides, from) != side(sides, to),
            Self::Bridge { sides, middle } => {
                from != middle && to != middle && side(sides, from) != side(sides, to)
            }
            Self::Ring(count) => {
                let distance = from.abs_diff(to);
                distance.min(count - distance) > 1
            }
            Self::Pair(one, other) => [(one, other), (other, one)].contains(&(from, to)),
            Self::OneWay(unheard, deaf) => (from, to) == (unheard, deaf),
        }
    }

    /// What happens, as the coverage counts it.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Alone(_) => "a server was cut off from all others",
            Self::Sides(_) => "the servers fell into two sides",
            Self::Bridge { .. } => "two sides saw each other through one server only",
            Self::Ring(_) => "each server saw its neighbours in a ring only",
            Self::Pair(..) => "two of three servers did not see each other",
            Self::OneWay(..) => "one of three servers did not hear another",
        }
    }
}

fn side(sides: u64, server: usize) -> bool {
    (sides >> server) & 1 == 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::coverage::REQUIRED;

    /// The texts of the shapes that cut something, in many draws.
    fn cutting(count: usize) -> BTreeSet<&'static str> {
        let mut dice = Dice::named(1, "partition");
        let shapes = (0..1_000_usize).map(|draw| Shape::draw(&mut dice, count, draw % count));
        let cutting = shapes.filter(|shape| {
            (0..count).any(|from| (0..count).any(|to| from != to && shape.cuts(from, to)))
        });
        cutting.map(Shape::text).collect()
    }

    #[test]
    fn every_shape_is_drawn_and_cuts_something() {
        let (three, five) = (cutting(3), cutting(5));
        assert_eq!((three.len(), five.len()), (5, 4), "{three:?} {five:?}");
        assert!(three.union(&five).all(|text| REQUIRED.contains(text)));
        assert_eq!(three.union(&five).count(), 6);
        assert_eq!(cutting(1).len(), 0);
    }

    #[test]
    fn of_three_servers_a_cut_link_leaves_one_that_sees_both() {
        let pair = Shape::Pair(0, 2);
        assert!(pair.cuts(0, 2) && pair.cuts(2, 0));
        assert!(!pair.cuts(0, 1) && !pair.cuts(2, 1));
        let one_way = Shape::OneWay(2, 0);
        assert!(one_way.cuts(2, 0) && !one_way.cuts(0, 2));
    }

    #[test]
    fn every_shape_takes_three_numbers() {
        let mut dice = Dice::named(7, "partition");
        for _ in 0..100 {
            let mut reference = dice.clone();
            Shape::draw(&mut dice, 3, 0);
            for _ in 0..3 {
                reference.bits();
            }
            assert_eq!(dice.clone().bits(), reference.bits());
        }
    }
}
