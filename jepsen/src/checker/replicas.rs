//! Are the servers replicas of one another?
//!
//! What they told of themselves at the end ([`crate::replicas`]) must agree: one index has one digest (I9), and no state breaks an invariant. The servers
//! compare digests themselves while they run and stop when one differs ([`super::crash`]); this is the look from outside, of the state that is left.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Verdict;
use crate::replicas::Replicas;

/// The replicas part of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// False if two differ or an invariant is broken, unknown if they were never seen at one index.
    pub(crate) valid: Verdict,
    /// The last index at which all were seen.
    pub(crate) common_index: Option<u64>,
    /// Servers with another digest of one index.
    pub(crate) differing: Vec<String>,
    /// Broken invariants.
    pub(crate) broken: Vec<String>,
    /// Answers that did not come.
    pub(crate) silent: Vec<String>,
}

/// Compares what the servers told; nothing was asked when the last phase did not run.
pub(crate) fn check(replicas: Option<&Replicas>, nodes: usize) -> Report {
    let nothing = Replicas::default();
    let replicas = replicas.unwrap_or(&nothing);
    let mut first = BTreeMap::new();
    let mut differing = Vec::new();
    for told in &replicas.digests {
        let known = *first.entry(told.index).or_insert(told);
        if known.digest != told.digest {
            differing.push(format!(
                "index {}: {} has {}, {} has {}",
                told.index, known.node, known.digest, told.node, told.digest
            ));
        }
    }
    let common_index = replicas.common_index(nodes);
    let Replicas { broken, silent, .. } = replicas.clone();
    let bad = Verdict::unless(!differing.is_empty() || !broken.is_empty(), Verdict::False);
    let missing = Verdict::unless(common_index.is_none() || !silent.is_empty(), Verdict::Unknown);
    Report { valid: bad.max(missing), common_index, differing, broken, silent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::Told;

    fn told(node: &str, index: u64, digest: &str) -> Told {
        Told { node: node.to_owned(), index, digest: digest.to_owned() }
    }

    #[test]
    fn one_index_has_one_digest() {
        let mut replicas = Replicas {
            digests: vec![told("n1", 5, "a"), told("n2", 4, "x"), told("n2", 5, "a")],
            ..Replicas::default()
        };
        let report = check(Some(&replicas), 2);
        assert_eq!((report.valid, report.common_index), (Verdict::True, Some(5)));
        assert_eq!(check(Some(&replicas), 3).valid, Verdict::Unknown, "one was not seen there");
        assert_eq!(check(None, 2).valid, Verdict::Unknown);

        // Also where the third was never seen.
        replicas.digests.push(told("n1", 4, "y"));
        let report = check(Some(&replicas), 3);
        assert_eq!(report.valid, Verdict::False);
        assert_eq!(report.differing, ["index 4: n2 has x, n1 has y"]);
    }

    #[test]
    fn a_broken_invariant_is_a_violation_and_silence_proves_nothing() {
        let digests = vec![told("n1", 5, "a")];
        let one = || vec!["n1".to_owned()];
        let broken = Replicas { digests: digests.clone(), broken: one(), ..Replicas::default() };
        assert_eq!(check(Some(&broken), 1).valid, Verdict::False);
        let silent = Replicas { digests, silent: one(), ..Replicas::default() };
        assert_eq!(check(Some(&silent), 1).valid, Verdict::Unknown);
    }
}
