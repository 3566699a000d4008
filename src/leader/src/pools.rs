//! Instance pools: the machine of package `elastic` among the others. Beside effects and time it
//! takes the answers of providers; its calls wait in it until the server makes them.

use std::collections::BTreeMap;

use elastic::{
    CallId, Fleet, FleetConfig,
    call::{Answer, Call, ProviderError},
};
use fsm::{Command, Effect, Index, State, Text};

use crate::machine::{Ids, Machine, Report, Stepped};

/// Lines of log that wait for a step.
const REPORTS_MAX: usize = 100;

/// The pools of one leadership.
#[derive(Debug)]
pub(crate) struct Pools {
    fleet: Fleet,
    /// For the log.
    reports: Vec<Report>,
}

impl Pools {
    pub(crate) fn new(config: FleetConfig, providers: &BTreeMap<Text, usize>) -> Self {
        let fleet = Fleet::new(config, providers.clone());
        Self { fleet, reports: Vec::new() }
    }

    pub(crate) fn next_call(&mut self) -> Option<(CallId, Call)> {
        self.fleet.next_call()
    }

    pub(crate) fn answered(
        &mut self,
        now: u64,
        state: &State,
        id: CallId,
        answer: Result<Answer, ProviderError>,
    ) -> Vec<Command> {
        self.fleet.answered(now, state, id, answer)
    }
}

impl Machine for Pools {
    fn restore(&mut self, now: u64, state: &State) {
        self.fleet.restore(now, state);
    }

    fn take(&mut self, _now: u64, state: &State, _index: Index, effect: &Effect) {
        self.fleet.take(state, effect);
        if let Effect::CapacityExpired { source, ttl_ms } = effect
            && self.reports.len() < REPORTS_MAX
        {
            let (source, ttl_ms) = (source.clone(), *ttl_ms);
            self.reports.push(Report::SourceSilent { source, ttl_ms });
        }
    }

    fn step(&mut self, now: u64, state: &State, ids: &mut Ids<'_>, stepped: &mut Stepped) {
        stepped.commands.extend(self.fleet.step(now, state, &mut *ids));
        stepped.reports.extend(self.fleet.take_steps().into_iter().map(Report::Instance));
        stepped.reports.append(&mut self.reports);
    }

    fn next_deadline(&self) -> Option<u64> {
        self.fleet.next_deadline()
    }

    fn gauges(&self, now: u64, put: &mut dyn FnMut(&str, u64)) {
        self.fleet.gauges(now, put);
    }
}

#[cfg(test)]
mod tests {
    use fsm::testing::{Driver, capacity_group};

    use super::*;

    fn step(pools: &mut Pools, driver: &Driver) -> Stepped {
        let mut stepped = Stepped::default();
        pools.step(driver.now, &driver.state, &mut || [1; 16], &mut stepped);
        stepped
    }

    /// FN-08 (a silent source is dropped once, with a line in the log).
    #[test]
    fn a_source_that_falls_silent_has_one_line_in_the_log() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |pool| {
            pool.groups.insert("web".into(), capacity_group("web").into());
        });
        driver.require("lb1", 1, &[("web", 0)]);
        let mut pools = Pools::new(FleetConfig::default(), &BTreeMap::new());
        pools.restore(driver.now, &driver.state);
        let mut lines = Vec::new();
        for second in 0..60 {
            driver.at_seconds(second);
            let stepped = step(&mut pools, &driver);
            lines.extend(stepped.reports);
            for command in stepped.commands {
                let applied = driver.commit(command);
                for effect in &applied.effects {
                    pools.take(driver.now, &driver.state, applied.index, effect);
                }
            }
        }
        assert_eq!(lines, [Report::SourceSilent { source: "lb1".into(), ttl_ms: 10_000 }]);
        let line = lines[0].line();
        assert!(line.is_warning);
        assert_eq!((line.detail, line.count), (Some("lb1"), Some(10_000)));
    }
}
