//! Which steps of a schedule are taken.

use std::{collections::BTreeSet, fmt, str::FromStr};

use crate::schedule::STEPS;

/// The steps of a schedule that are taken, written as `0-17,40,44-50`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Steps(BTreeSet<u32>);

impl Default for Steps {
    fn default() -> Self {
        Self((0..STEPS).collect())
    }
}

impl Steps {
    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// None.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that are left when so many are cut out from a place on.
    pub(crate) fn without(&self, from: usize, count: usize) -> Self {
        let kept =
            self.0.iter().enumerate().filter(|(place, _)| !(from..from + count).contains(place));
        Self(kept.map(|(_, step)| *step).collect())
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |word: &str| {
            word.parse::<u32>().map_err(|_| {
                format!("steps are numbers and ranges such as `0-17,40`, not {word:?}")
            })
        };
        let mut steps = BTreeSet::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            steps.extend(number(first)?..=number(last)?);
        }
        Ok(Self(steps))
    }
}
