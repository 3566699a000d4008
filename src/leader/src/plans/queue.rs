//! Plans that wait for the applier: higher priority first, first come first served inside a
//! priority, bounded by count and bytes.
//!
//! A plan that cannot be looked at yet is parked, so that it holds up none behind it. It counts as
//! waiting, and comes back to its own place.
//!
//! The queue never answers a plan itself: what it refuses or flushes goes back to the caller, who
//! holds the way to the worker.
//!
//! Invariant: `bytes` is the sum over the queued and the parked plans, and `arrivals` holds the
//! sequence numbers of both.

use std::{cmp::Reverse, collections::BTreeMap};

use fsm::Index;

use crate::limits;

/// Why a plan was not queued, or is not queued any more. The first and the last text are Nomad's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanQueueError {
    /// This server is not the leader, or not yet.
    #[error("plan queue is disabled")]
    Disabled,
    /// Too much waits already; the worker tries again later.
    #[error("plan queue is full")]
    Full,
    /// The queue was disabled while the plan waited.
    #[error("plan queue flushed")]
    Flushed,
}

/// A plan that was not queued, given back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused<P> {
    pub plan: P,
    pub error: PlanQueueError,
}

/// Bounds of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanQueueLimits {
    pub plans_max: usize,
    /// Bound of the encoded size of all plans. An empty queue takes a larger plan too, so that none
    /// is ever stuck.
    pub bytes_max: usize,
}

impl Default for PlanQueueLimits {
    fn default() -> Self {
        Self { plans_max: limits::PLANS_MAX, bytes_max: limits::PLAN_BYTES_MAX }
    }
}

#[derive(Debug)]
struct Queued<P> {
    plan: P,
    bytes: usize,
}

/// Higher priority first, then the order of arrival.
type Place = (Reverse<u16>, u64);

/// The plan queue. Starts disabled.
#[derive(Debug)]
pub struct PlanQueue<P> {
    limits: PlanQueueLimits,
    enabled: bool,
    bytes: usize,
    sequence: u64,
    queued: BTreeMap<Place, Queued<P>>,
    /// Until an index is there.
    parked: BTreeMap<(Index, Place), Queued<P>>,
    arrivals: BTreeMap<u64, u64>,
}

impl<P> PlanQueue<P> {
    /// An empty, disabled queue.
    pub fn new(limits: PlanQueueLimits) -> Self {
        Self {
            limits,
            enabled: false,
            bytes: 0,
            sequence: 0,
            queued: BTreeMap::new(),
            parked: BTreeMap::new(),
            arrivals: BTreeMap::new(),
        }
    }

    /// Lets plans in.
    pub fn enable(&mut self) {
        self.enabled = true;
    }

    /// Lets no more plans in and gives back those that wait, in order; they fail with
    /// [`PlanQueueError::Flushed`].
    #[must_use = "each flushed plan has a worker waiting for an answer"]
    pub fn disable(&mut self) -> Vec<P> {
        self.enabled = false;
        self.bytes = 0;
        self.arrivals.clear();
        self.unpark(Index::MAX);
        std::mem::take(&mut self.queued).into_values().map(|queued| queued.plan).collect()
    }

    /// Whether plans are let in.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Queues a plan of that encoded size, or gives it back.
    pub fn enqueue(
        &mut self,
        now: u64,
        priority: u16,
        bytes: usize,
        plan: P,
    ) -> Result<(), Refused<P>> {
        if !self.enabled {
            return Err(Refused { plan, error: PlanQueueError::Disabled });
        }
        let bytes_after = self.bytes.saturating_add(bytes);
        let too_many = self.depth() >= self.limits.plans_max;
        if too_many || (bytes_after > self.limits.bytes_max && self.depth() > 0) {
            return Err(Refused { plan, error: PlanQueueError::Full });
        }
        self.bytes = bytes_after;
        self.sequence += 1;
        self.queued.insert((Reverse(priority), self.sequence), Queued { plan, bytes });
        self.arrivals.insert(self.sequence, now);
        Ok(())
    }

    /// The plan to apply next.
    pub fn dequeue(&mut self) -> Option<P> {
        let ((_, sequence), queued) = self.queued.pop_first()?;
        self.arrivals.remove(&sequence);
        self.bytes -= queued.bytes;
        Some(queued.plan)
    }

    /// Sets the next plan aside until `index` is there ([`Self::unpark`]).
    pub fn park(&mut self, index: Index) {
        if let Some((place, queued)) = self.queued.pop_first() {
            self.parked.insert((index, place), queued);
        }
    }

    /// Gives parked plans their places back, up to those of `index`.
    pub fn unpark(&mut self, index: Index) {
        while let Some(first) = self.parked.first_entry().filter(|first| first.key().0 <= index) {
            let ((_, place), queued) = first.remove_entry();
            self.queued.insert(place, queued);
        }
    }

    /// The lowest index that a parked plan waits for.
    pub fn parked_until(&self) -> Option<Index> {
        Some(self.parked.first_key_value()?.0.0)
    }

    /// The plan that [`Self::dequeue`] would give.
    pub fn peek(&self) -> Option<&P> {
        Some(&self.queued.first_key_value()?.1.plan)
    }

    /// The size of the plan that [`Self::dequeue`] would give: whether it still fits the entry
    /// being built.
    pub fn next_bytes(&self) -> Option<usize> {
        Some(self.queued.first_key_value()?.1.bytes)
    }

    /// Number of plans that wait, parked ones too.
    pub fn depth(&self) -> usize {
        self.queued.len() + self.parked.len()
    }

    /// Encoded size of the plans that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How long the oldest plan has waited, ms; 0 when empty.
    pub fn oldest_age_ms(&self, now: u64) -> u64 {
        self.arrivals.first_key_value().map_or(0, |(_, arrived)| now.saturating_sub(*arrived))
    }
}

impl<P> Default for PlanQueue<P> {
    fn default() -> Self {
        Self::new(PlanQueueLimits::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, Arguments};

    /// Higher priority first, first come first served inside one, the texts of errors, the bounds.
    #[test]
    fn golden_plan_queue() {
        let limits = PlanQueueLimits { plans_max: 4, bytes_max: 100 };
        let mut queue: PlanQueue<String> = PlanQueue::new(limits);
        golden::run("plan_queue.txt", |line| step(&mut queue, &Arguments::new(line)));
    }

    fn step(queue: &mut PlanQueue<String>, line: &Arguments<'_>) -> String {
        match line.word {
            "enable" => {
                queue.enable();
                "enabled".into()
            }
            "disable" => {
                let plans = queue.disable();
                format!("flushed [{}]: {}", plans.join(" "), PlanQueueError::Flushed)
            }
            "enqueue" => {
                let priority = u16::try_from(line.number("priority")).expect("a priority");
                let bytes = usize::try_from(line.number("bytes")).expect("a size");
                match queue.enqueue(line.number("now"), priority, bytes, line.text("plan").into()) {
                    Ok(()) => "queued".into(),
                    Err(refused) => format!("refused {}: {}", refused.plan, refused.error),
                }
            }
            "dequeue" => queue.dequeue().unwrap_or_else(|| "nothing".into()),
            "park" => {
                queue.park(line.number("index"));
                format!("until {:?}", queue.parked_until())
            }
            "unpark" => {
                queue.unpark(line.number("index"));
                format!("until {:?}", queue.parked_until())
            }
            "stats" => format!(
                "depth={} bytes={} next_bytes={:?} oldest={}",
                queue.depth(),
                queue.bytes(),
                queue.next_bytes(),
                queue.oldest_age_ms(line.number("now"))
            ),
            other => panic!("unknown command `{other}`"),
        }
    }
}
