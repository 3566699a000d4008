//! Every deliberate bug by its names, what it breaks, and who finds it: the simulation itself in one of its tiers, or another command, which the
//! selftest can only name. Measured finds are in jepsen/PLANTED.md.
//!
//! Invariant: the names are those of `fsm::plant::TABLE`, and [`Tier::ControlPlane`] hunts exactly `Plant::PURE`; [`check`] holds the list to both.

/// A part of the simulation that runs seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// The control plane over a model log, as `sim control` runs it.
    ControlPlane,
    /// Whole servers, as `sim run` runs them.
    Servers,
}

/// Who is known to find a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finder {
    /// The simulation, in each of these tiers.
    Simulation(&'static [Tier]),
    /// These commands.
    Other(&'static str),
}

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planted {
    /// Its number in the plan of fault tests, or a word if it has none.
    pub(super) number: &'static str,
    /// Its other name.
    pub(super) word: &'static str,
    /// What it breaks.
    pub(super) what: &'static str,
    /// Who finds it.
    pub(super) finder: Finder,
}

impl Planted {
    const fn new(
        number: &'static str,
        word: &'static str,
        what: &'static str,
        finder: Finder,
    ) -> Self {
        Self { number, word, what, finder }
    }

    /// The bug of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        PLANTS.into_iter().find(|plant| plant.number == name || plant.word == name)
    }

    /// Whether this tier is known to find it.
    pub(super) fn is_found_by(self, tier: Tier) -> bool {
        match self.finder {
            Finder::Simulation(tiers) => tiers.contains(&tier),
            Finder::Other(_) => false,
        }
    }
}

const CONTROL_PLANE: Finder = Finder::Simulation(&[Tier::ControlPlane]);
const SERVERS: Finder = Finder::Simulation(&[Tier::Servers]);
const BOTH: Finder = Finder::Simulation(&[Tier::ControlPlane, Tier::Servers]);

/// All of them.
pub(super) const PLANTS: [Planted; 60] = [
    Planted::new(
        "M1",
        "skip-log-sync",
        "appended entries are acknowledged without a sync",
        SERVERS,
    ),
    Planted::new("M2", "skip-vote-sync", "a vote is acknowledged without a sync", SERVERS),
    Planted::new("M3", "ack-before-commit", "a write is answered before it is committed", SERVERS),
    Planted::new("M4", "stale-read", "a consistent read is answered from the local state", SERVERS),
    Planted::new(
        "M5",
        "lease-without-margin",
        "a leader answers reads on a lease that outlives its followers' patience",
        SERVERS,
    ),
    Planted::new("M6", "no-deduplication", "a request that comes twice takes effect twice", BOTH),
    Planted::new(
        "M7",
        "unordered-apply",
        "a change depends on an order that differs between replicas",
        CONTROL_PLANE,
    ),
    Planted::new(
        "M8",
        "clock-in-apply",
        "a change depends on the replica's own clock",
        CONTROL_PLANE,
    ),
    Planted::new(
        "M9",
        "index-before-rows",
        "the applied index is on disk before its rows",
        SERVERS,
    ),
    Planted::new(
        "M10",
        "purge-before-sync",
        "the log is purged although neither engine nor snapshot file is durable",
        SERVERS,
    ),
    Planted::new(
        "M11",
        "install-in-place",
        "a snapshot is installed over the state in use",
        SERVERS,
    ),
    Planted::new(
        "M12",
        "keep-old-plans",
        "plans of an earlier leadership stay in the queue",
        CONTROL_PLANE,
    ),
    Planted::new(
        "M13",
        "broker-not-restored",
        "a new leader does not find the pending evaluations",
        BOTH,
    ),
    Planted::new(
        "M14",
        "no-job-serialisation",
        "two evaluations of one job are worked on at a time",
        CONTROL_PLANE,
    ),
    Planted::new(
        "M15",
        "plan-not-checked",
        "plans are applied without another look at the nodes",
        CONTROL_PLANE,
    ),
    Planted::new("M16", "forget-reserved-ports", "reserved ports are given away", CONTROL_PLANE),
    Planted::new(
        "M17",
        "nack-while-queued",
        "a lease runs out while its plan is queued",
        CONTROL_PLANE,
    ),
    Planted::new("M18", "no-deadline", "a request to a peer waits for ever", SERVERS),
    Planted::new("M19", "skip-checksums", "checksums are not looked at", SERVERS),
    Planted::new("M20", "torn-tail-is-fatal", "a torn last batch is treated as damage", SERVERS),
    Planted::new(
        "M21",
        "late-registration",
        "a blocking query looks first and registers afterwards",
        Finder::Other("`cargo test -p quorate --lib published`, `jepsen selftest`"),
    ),
    Planted::new(
        "M22",
        "keep-ttl",
        "nodes' heartbeats are not given new time at a failover",
        CONTROL_PLANE,
    ),
    Planted::new(
        "M23",
        "reused-server-id",
        "a server with an empty disk takes its old number",
        SERVERS,
    ),
    Planted::new("M24", "swallow-sync-error", "a failed sync counts as done", SERVERS),
    Planted::new(
        "M25",
        "hidden-retry",
        "a write of unknown outcome is sent again as a new request",
        SERVERS,
    ),
    Planted::new(
        "diverge",
        "one-row-differs",
        "one server changes one row differently from the others",
        SERVERS,
    ),
    Planted::new("any-token", "any-token-acknowledges", "any token ends a lease", CONTROL_PLANE),
    Planted::new(
        "stale-plans",
        "stale-plans-taken",
        "a plan older than the job's last one is taken",
        CONTROL_PLANE,
    ),
    Planted::new(
        "any-epoch",
        "any-epoch-taken",
        "an entry of another leadership is taken",
        CONTROL_PLANE,
    ),
    Planted::new(
        "nothing-wakes",
        "no-capacity-gain",
        "a capacity gain wakes nothing",
        CONTROL_PLANE,
    ),
    Planted::new(
        "room-not-passed-on",
        "unused-room-is-not-offered-again",
        "room that a woken evaluation does not use is offered to nobody else",
        CONTROL_PLANE,
    ),
    Planted::new(
        "strike-per-failure",
        "no-strike-window",
        "each failure of a node is a strike",
        BOTH,
    ),
    Planted::new(
        "offline-expires",
        "reaping-forgets-offline",
        "an offline node that is reaped comes back online",
        CONTROL_PLANE,
    ),
    Planted::new(
        "reap-in-mass-loss",
        "no-mass-loss-guard",
        "nodes are reaped during a mass loss",
        BOTH,
    ),
    Planted::new(
        "affinity-kept",
        "keep-affinity-after-cool-down",
        "a node keeps its affinity key after a cool-down",
        CONTROL_PLANE,
    ),
    Planted::new(
        "call-before-commit",
        "create-before-intent",
        "a provider is asked for a machine before its intent is in the log",
        CONTROL_PLANE,
    ),
    Planted::new(
        "one-absence",
        "missing-once-is-gone",
        "an instance that one list lacks is gone",
        CONTROL_PLANE,
    ),
    Planted::new(
        "held-shut-down",
        "hold-is-forgotten",
        "a held instance is shut down",
        CONTROL_PLANE,
    ),
    Planted::new(
        "no-warm-up",
        "shrink-before-warm-up",
        "a new leader shuts instances down before it is warm",
        CONTROL_PLANE,
    ),
    Planted::new(
        "no-intent-deadline",
        "intent-without-deadline",
        "an intent has no deadline",
        CONTROL_PLANE,
    ),
    Planted::new(
        "older-sequence",
        "older-requirements-taken",
        "an older word of a source of requirements is taken",
        CONTROL_PLANE,
    ),
    Planted::new(
        "wanted-for-desired",
        "no-predictor",
        "a capacity group follows the sum in place of what is desired",
        CONTROL_PLANE,
    ),
    Planted::new(
        "drain-anew",
        "drain-deadline-moves",
        "the deadline of a member's drain is set again",
        CONTROL_PLANE,
    ),
    Planted::new(
        "vanished-counts",
        "vanished-member-counts",
        "a member that vanished still counts",
        CONTROL_PLANE,
    ),
    Planted::new(
        "batch-clocks",
        "clock-behind-a-long-first",
        "the leases of a batch run out while their worker is at the first",
        CONTROL_PLANE,
    ),
    Planted::new(
        "equal-priority",
        "preempt-an-equal",
        "an allocation is evicted for a job of the same priority",
        CONTROL_PLANE,
    ),
    Planted::new(
        "victim-without-evaluation",
        "victims-forgotten",
        "the job of an evicted allocation is not evaluated",
        CONTROL_PLANE,
    ),
    Planted::new(
        "no-second-look",
        "wake-up-alone",
        "a wait for an index ends by its wake-up alone",
        CONTROL_PLANE,
    ),
    Planted::new(
        "health-counted-twice",
        "healthy-with-each-change",
        "an allocation counts as healthy with each of its changes",
        CONTROL_PLANE,
    ),
    Planted::new(
        "promotion-forgotten",
        "promotion-without-evaluation",
        "nobody looks at a job whose canaries were promoted by themselves",
        CONTROL_PLANE,
    ),
    Planted::new(
        "unhealthy-promoted",
        "any-canary-is-healthy",
        "canaries are promoted that are not healthy",
        CONTROL_PLANE,
    ),
    Planted::new(
        "revert-loop",
        "revert-to-the-same",
        "a failed version is taken back to one that does the same",
        CONTROL_PLANE,
    ),
    Planted::new(
        "deadline-anew",
        "progress-deadline-moves",
        "a progress deadline is counted anew by each leader",
        CONTROL_PLANE,
    ),
    Planted::new(
        "launch-twice",
        "due-time-taken-again",
        "a due time of a periodic job that was dealt with is launched again",
        CONTROL_PLANE,
    ),
    Planted::new(
        "missed-never-made-up",
        "no-launch-after-an-outage",
        "a new leader begins with the due times that are still to come",
        CONTROL_PLANE,
    ),
    Planted::new(
        "dispatch-twice",
        "tokens-forgotten",
        "a dispatch that comes again under its token makes another child",
        CONTROL_PLANE,
    ),
    Planted::new(
        "queue-order-lost",
        "youngest-child-first",
        "of the children that wait the youngest starts first",
        CONTROL_PLANE,
    ),
    Planted::new(
        "backoff-forgotten",
        "failures-die-with-the-leader",
        "a new leader knows nothing of boots that failed before it",
        CONTROL_PLANE,
    ),
    Planted::new(
        "set-aside-shut-down",
        "suspended-machine-idles-out",
        "an instance whose node a person has set aside is shut down like another",
        CONTROL_PLANE,
    ),
    Planted::new(
        "place-twice",
        "two-members-of-one-place",
        "a member takes a place that another one has",
        CONTROL_PLANE,
    ),
];

/// Whether this list is that of the sources. A name that no server knows would end each run at once, and count as found.
#[cfg(feature = "plant")]
pub(super) fn check() -> anyhow::Result<()> {
    let here = PLANTS.iter().map(|plant| (plant.number, plant.word));
    let there = fsm::plant::TABLE.iter().map(|(_, number, word)| (*number, *word));
    anyhow::ensure!(here.eq(there), "the selftest's list of plants is not that of `fsm::plant`");
    let hunted = PLANTS.iter().filter(|plant| plant.is_found_by(Tier::ControlPlane));
    let pure = fsm::plant::Plant::PURE.iter().map(|plant| plant.name());
    anyhow::ensure!(
        hunted.map(|plant| plant.number).eq(pure),
        "those of the control plane are not `Plant::PURE`, in the order of the list"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_share_a_name_and_m1_to_m25_are_listed() {
        let names = PLANTS.iter().flat_map(|plant| [plant.number, plant.word]);
        let names: BTreeSet<&str> = names.collect();
        assert_eq!(names.len(), 2 * PLANTS.len());
        for number in 1..=25 {
            let name = format!("M{number}");
            assert!(Planted::named(&name).is_some_and(|plant| plant.number == name), "{name}");
        }
        assert_eq!(Planted::named("stale-read").map(|plant| plant.number), Some("M4"));
        assert_eq!(Planted::named("fire"), None);
    }

    #[cfg(feature = "plant")]
    #[test]
    fn the_list_is_that_of_the_sources() {
        assert_eq!(check().map_err(|error| error.to_string()), Ok(()));
    }
}
