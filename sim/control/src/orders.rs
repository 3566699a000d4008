//! What an operator tells the workers of a server at run time, at any step: to take some kinds of
//! evaluations, or none (`PUT /v1/agent/schedulers/config`). It ends every wait for work; what is
//! leased is finished.

use fsm::JobKind;

use crate::{
    coverage::Event,
    world::{Server, World},
};

impl Server {
    /// The kinds that its workers take; none: they are paused.
    pub(crate) fn kinds_taken(&self) -> Vec<JobKind> {
        JobKind::ALL.into_iter().filter(|kind| !self.left_out.contains(kind)).collect()
    }
}

impl World {
    /// Before a step: sometimes the workers of a server get other orders.
    pub(crate) fn order_workers(&mut self) {
        if !self.chance.percent(self.extra.orders) {
            return;
        }
        let server = self.chance.index(self.servers.len());
        let mut left_out = JobKind::ALL.to_vec();
        match self.chance.below(4) {
            0 | 1 => left_out.clear(),
            2 => {}
            _ => left_out.retain(|_| self.chance.percent(50)),
        }
        self.coverage.count(Event::WorkersOrdered);
        self.trace(|| format!("the workers of server {server} leave out {left_out:?}"));
        self.servers[server].left_out = left_out;
        self.end_waits_for_work(server);
    }

    /// All workers take everything.
    pub(crate) fn let_all_work(&mut self) {
        for server in 0..self.servers.len() {
            self.servers[server].left_out.clear();
            self.end_waits_for_work(server);
        }
    }
}
