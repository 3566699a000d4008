//! Faults of links: partitions, delay, loss, black holes.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use super::{NAP, Outcome, Turn};
use crate::{
    partition::{Cut, Shape},
    proxy::{Delay, Flow, Loss, Met, Switchboard},
};

/// The turns of a flapping partition.
const FLAP: Duration = Duration::from_millis(200);
/// How long a broken link may take to be met by bytes; heartbeats come ten times a second.
const MET_TIMEOUT: Duration = Duration::from_secs(3);
const MILD: Delay = Delay { from: Duration::from_millis(40), to: Duration::from_millis(60) };
const WILD: Delay = Delay { from: Duration::from_millis(100), to: Duration::from_millis(900) };
/// Ten pieces of a hundred wait for a retransmission, one breaks its connection.
const LOSS: Loss = Loss {
    stall_percent: 10,
    stall: Delay { from: Duration::from_millis(200), to: Duration::from_millis(800) },
    reset_percent: 1,
};

/// What links between servers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkFault {
    Slow,
    Lossy,
    Silent,
}

impl Turn<'_> {
    pub(super) fn strike_partition(&mut self) -> Result<bool> {
        let flaps = self.cluster().network().flaps();
        let shape = self.random.choose(&Shape::ALL);
        let draw = self.random.index(5);
        let how = if draw == 0 && flaps {
            Flow::Flapping(FLAP)
        } else if draw <= 2 && !shape.one_way() {
            Flow::Cut
        } else {
            Flow::Held
        };
        self.announce(shape.name());
        let outcome = self.cut(shape, how)?;
        Ok(self.conclude(outcome))
    }

    pub(super) fn cut(&mut self, shape: Shape, how: Flow) -> Result<Outcome> {
        let leaders = self.leaders();
        let Cut { flows, isolated } = shape.draw(self.servers(), &leaders, &mut self.random);
        if flows.is_empty() {
            return Ok(Outcome::Skipped("no leader is known".to_owned()));
        }
        let at = self.now();
        self.cluster().network().block(&flows, how)?;
        let arrows: Vec<String> = flows
            .iter()
            .map(|(from, to)| format!("{}->{}", self.name(*from), self.name(*to)))
            .collect();
        // A server that does not go through its links cannot be cut off; that must not look like a fault.
        let end = Instant::now() + MET_TIMEOUT;
        while !self.cluster().network().bites(&flows)? {
            let proxied = self.cluster().network().board().is_some();
            if proxied || Instant::now() >= end || (self.halt)() {
                let text = format!("no byte ever came by on {}", arrows.join(", "));
                return Ok(Outcome::Indeterminate(text));
            }
            std::thread::sleep(NAP);
        }
        let how = match how {
            Flow::Cut => "cut",
            Flow::Held => "held",
            Flow::Flapping(_) => "flapping",
            Flow::Open => unreachable!("a partition blocks"),
        };
        let mut details = self.details(shape.name(), &isolated, &leaders, at);
        details["how"] = how.into();
        details["flows"] = arrows.into();
        Ok(Outcome::Installed(details))
    }

    pub(super) fn strike_links(&mut self, fault: LinkFault) -> bool {
        let shape =
            self.random.choose(&[Shape::One, Shape::Halves, Shape::Primaries, Shape::Thirds]);
        self.announce(shape.name());
        let leaders = self.leaders();
        let Cut { flows, isolated } = shape.draw(self.servers(), &leaders, &mut self.random);
        let outcome = if flows.is_empty() {
            Outcome::Skipped("no leader is known".to_owned())
        } else {
            let at = self.now();
            let delay = self.random.choose(&[MILD, WILD]);
            let before = self.apply(fault, &flows, delay);
            if self.await_met(fault, before) {
                let mut details = self.details(shape.name(), &isolated, &leaders, at);
                if fault == LinkFault::Slow {
                    details["milliseconds"] = json!([
                        delay.from.as_secs_f64() * 1_000.0,
                        delay.to.as_secs_f64() * 1_000.0
                    ]);
                }
                Outcome::Installed(details)
            } else {
                Outcome::Indeterminate("no byte met it in time".to_owned())
            }
        };
        self.conclude(outcome)
    }

    /// Breaks these flows in the way of the class; returns what had been met before.
    fn apply(&self, fault: LinkFault, flows: &[(usize, usize)], delay: Delay) -> Met {
        let cluster = self.cluster();
        let board = board(&cluster);
        let before = board.met();
        match fault {
            LinkFault::Slow => board.delay(flows, delay),
            LinkFault::Lossy => board.lose(flows, LOSS),
            LinkFault::Silent => board.swallow(flows),
        }
        before
    }

    /// Waits until bytes have met the fault.
    fn await_met(&self, fault: LinkFault, before: Met) -> bool {
        let end = Instant::now() + MET_TIMEOUT;
        loop {
            let met = board(&self.cluster()).met();
            let more = match fault {
                LinkFault::Slow => met.delayed > before.delayed,
                LinkFault::Lossy => met.lost > before.lost,
                LinkFault::Silent => met.swallowed > before.swallowed,
            };
            if more || Instant::now() >= end || (self.halt)() {
                return more;
            }
            std::thread::sleep(NAP);
        }
    }

    pub(super) fn relieve_partition(&mut self) -> Result<()> {
        self.cluster().network().block(&[], Flow::Open)?;
        self.relieved(json!(null));
        Ok(())
    }

    pub(super) fn relieve_links(&mut self, fault: LinkFault) {
        let proxied = self.cluster().network().board().is_some();
        if proxied {
            self.apply(fault, &[], MILD);
        }
        self.relieved(json!(null));
    }
}

fn board(cluster: &crate::cluster::Cluster) -> &Switchboard {
    cluster.network().board().expect("the class is only selected where links are proxies")
}
