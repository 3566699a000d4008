//! Versions for the `version` (lenient) and `semver` (strict) operands, and requirements on them.
//!
//! Lenient: any number of numeric parts, an optional `v`, a pre-release after `-`, `~` or directly. A requirement without a pre-release
//! is not met by a pre-release (so `>= 1.0` refuses `1.1-beta`). Strict: three parts, pre-releases are ordered as Semantic Versioning 2.0 says.

use std::cmp::Ordering;

/// A lenient version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lenient {
    parts: Vec<u64>,
    pre_release: String,
}

impl Lenient {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split_once('+').map_or(text, |(version, _build)| version);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let parts =
            numbers.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let pre_release = rest.strip_prefix(['-', '~']).unwrap_or(rest);
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '~' | '_');
        if !pre_release.chars().all(legal) || (pre_release.is_empty() && !rest.is_empty()) {
            return None;
        }
        Some(Self { parts, pre_release: pre_release.to_owned() })
    }

    fn part(&self, position: usize) -> u64 {
        self.parts.get(position).copied().unwrap_or(0)
    }

    fn compare_numbers(&self, other: &Self) -> Ordering {
        let length = self.parts.len().max(other.parts.len());
        (0..length)
            .map(|position| self.part(position).cmp(&other.part(position)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.compare_numbers(other)
            .then_with(|| compare_pre_releases(&self.pre_release, &other.pre_release))
    }

    /// Whether this version may be compared with `limit` by an ordering operator.
    fn pre_release_allows(&self, limit: &Self) -> bool {
        self.pre_release.is_empty()
            || (!limit.pre_release.is_empty() && self.compare_numbers(limit).is_eq())
    }
}

fn compare_pre_releases(left: &str, right: &str) -> Ordering {
    match (left.is_empty(), right.is_empty()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => {
            let (mut left, mut right) = (left.split('.'), right.split('.'));
            loop {
                match (left.next(), right.next()) {
                    (None, None) => return Ordering::Equal,
                    (None, Some(_)) => return Ordering::Less,
                    (Some(_), None) => return Ordering::Greater,
                    (Some(a), Some(b)) => {
                        let order = match (a.parse::<u64>(), b.parse::<u64>()) {
                            (Ok(a), Ok(b)) => a.cmp(&b),
                            (Ok(_), Err(_)) => Ordering::Less,
                            (Err(_), Ok(_)) => Ordering::Greater,
                            (Err(_), Err(_)) => a.cmp(b),
                        };
                        if order.is_ne() {
                            return order;
                        }
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// `~>`: at least, and the same in all but the last part given.
    Pessimistic,
}

impl Comparison {
    fn split(text: &str) -> (Self, &str) {
        let text = text.trim();
        for (sign, comparison) in [
            ("~>", Self::Pessimistic),
            (">=", Self::GreaterOrEqual),
            ("<=", Self::LessOrEqual),
            ("!=", Self::NotEqual),
            ("==", Self::Equal),
            (">", Self::Greater),
            ("<", Self::Less),
            ("=", Self::Equal),
        ] {
            if let Some(rest) = text.strip_prefix(sign) {
                return (comparison, rest.trim());
            }
        }
        (Self::Equal, text)
    }

    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual | Self::Pessimistic => order.is_ge(),
        }
    }
}

/// A comma-separated list of comparisons with lenient versions, all of which must hold.
#[derive(Debug)]
pub(crate) struct LenientRequirement(Vec<(Comparison, Lenient)>);

impl LenientRequirement {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.split(',')
            .map(|part| {
                let (comparison, version) = Comparison::split(part);
                Some((comparison, Lenient::parse(version)?))
            })
            .collect::<Option<Vec<_>>>()
            .map(Self)
    }

    pub(crate) fn met_by(&self, version: &str) -> bool {
        let Some(version) = Lenient::parse(version) else { return false };
        self.0.iter().all(|(comparison, limit)| {
            let holds = comparison.holds(version.compare(limit));
            match comparison {
                Comparison::Equal | Comparison::NotEqual => holds,
                Comparison::Less
                | Comparison::LessOrEqual
                | Comparison::Greater
                | Comparison::GreaterOrEqual => holds && version.pre_release_allows(limit),
                Comparison::Pessimistic => {
                    let fixed = limit.parts.len().saturating_sub(1);
                    holds
                        && version.pre_release_allows(limit)
                        && limit.pre_release.is_empty() == version.pre_release.is_empty()
                        && (0..fixed).all(|part| version.part(part) == limit.part(part))
                }
            }
        })
    }
}

/// A comma-separated list of comparisons with strict versions, all of which must hold.
#[derive(Debug)]
pub(crate) struct StrictRequirement(Vec<(Comparison, semver::Version)>);

impl StrictRequirement {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.split(',')
            .map(|part| {
                let (comparison, version) = Comparison::split(part);
                if comparison == Comparison::Pessimistic {
                    return None;
                }
                Some((comparison, parse_strict(version)?))
            })
            .collect::<Option<Vec<_>>>()
            .map(Self)
    }

    pub(crate) fn met_by(&self, version: &str) -> bool {
        parse_strict(version).is_some_and(|version| {
            self.0.iter().all(|(comparison, limit)| comparison.holds(version.cmp_precedence(limit)))
        })
    }
}

fn parse_strict(text: &str) -> Option<semver::Version> {
    let text = text.trim();
    semver::Version::parse(text.strip_prefix('v').unwrap_or(text)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lenient(requirement: &str, version: &str) -> bool {
        LenientRequirement::parse(requirement).is_some_and(|parsed| parsed.met_by(version))
    }

    fn strict(requirement: &str, version: &str) -> bool {
        StrictRequirement::parse(requirement).is_some_and(|parsed| parsed.met_by(version))
    }

    /// F5.
    #[test]
    fn lenient_versions_compare_number_by_number() {
        for (requirement, version, met) in [
            (">= 1.0, < 2.0", "1.7.3", true),
            (">= 1.0, < 2.0", "2.0.0", false),
            ("1.2", "1.2.0", true),
            ("= 1.2", "v1.2", true),
            ("!= 1.2", "1.2.1", true),
            ("> 1.9", "1.10", true),
            ("~> 1.2", "1.9", true),
            ("~> 1.2", "2.0", false),
            ("~> 1.2.3", "1.2.9", true),
            ("~> 1.2.3", "1.3.0", false),
            (">= 0.6.1", "1.3.0-beta1", false),
            (">= 1.3.0-alpha", "1.3.0-beta1", true),
            ("< 1.3.0", "1.3.0-beta1", false),
            ("= 4.15.0-42-generic", "4.15.0-42-generic", true),
            (">= 1", "not a version", false),
            ("nonsense", "1.0", false),
            ("", "1.0", false),
        ] {
            assert_eq!(lenient(requirement, version), met, "{version} {requirement}");
        }
    }

    /// F5.
    #[test]
    fn strict_versions_order_pre_releases_and_refuse_sloppy_ones() {
        for (requirement, version, met) in [
            (">= 0.6.1", "1.3.0-beta1", true),
            ("< 1.3.0", "1.3.0-beta1", true),
            ("> 1.0.0-alpha.1", "1.0.0-alpha.2", true),
            ("1.0.0", "1.0.0+build7", true),
            (">= 1.0.0", "1.0", false),
            ("~> 1.0.0", "1.0.1", false),
        ] {
            assert_eq!(strict(requirement, version), met, "{version} {requirement}");
        }
    }
}
