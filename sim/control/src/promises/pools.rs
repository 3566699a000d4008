//! What a leader owes to instances at each of its looks: nothing ends by time before it is warm,
//! and whatever is past its deadline is ended.

use std::collections::BTreeMap;

use fsm::{
    Command, InstanceId, InstanceState, State,
    command::PoolCommand,
    pool::{Behavior, ShutDownInstance, ShutdownCause},
};

use leader::limits::{HEARTBEAT_GRACE_MS, HEARTBEAT_TTL_MS_MIN};

/// Until a leader judges by time, ms.
pub(crate) const WARM_UP_MS: u64 = 2 * HEARTBEAT_TTL_MS_MIN + HEARTBEAT_GRACE_MS;

/// What is past its deadline is asked to end within this time, also when a command was lost, ms.
const LATE_MS: u64 = 15_000;

/// What one leadership was seen to do.
#[derive(Default)]
pub(crate) struct PoolPromises {
    /// Instances past their deadline: since when, or since their end was asked for last.
    late: BTreeMap<InstanceId, u64>,
}

impl PoolPromises {
    /// A leader that began at `began` looked at a state, and wants to propose these.
    pub(crate) fn looked(
        &mut self,
        now: u64,
        began: u64,
        state: &State,
        commands: &[Command],
    ) -> Vec<String> {
        let warm_at = began + WARM_UP_MS;
        let ends = commands.iter().filter_map(|command| {
            let Command::Pool(PoolCommand::ShutDownInstance(one)) = command else { return None };
            Some(one)
        });
        let ends: Vec<&ShutDownInstance> = ends.collect();
        let mut found = Vec::new();
        for one in ends.iter().filter(|one| now < warm_at && is_by_time(one.cause)) {
            let (id, cause) = (one.id, one.cause.name());
            let early = warm_at - now;
            found.push(format!("pool-warm-up: {id} is shut down ({cause}) {early} ms too early"));
        }
        let is_late = |row: &fsm::Instance| match row.state {
            InstanceState::Requested | InstanceState::Booting => {
                row.deadline_at <= now && row.behavior != Behavior::Hold && now >= warm_at
            }
            InstanceState::Bound | InstanceState::ShuttingDown => false,
        };
        let late: Vec<_> =
            state.instances().iter().filter(|row| is_late(row)).map(|row| row.id).collect();
        self.late.retain(|id, _| late.contains(id));
        for id in late {
            let since = self.late.entry(id).or_insert(now);
            if ends.iter().any(|one| one.id == id) {
                *since = now;
            } else if now - *since > LATE_MS {
                found.push(format!("pool-deadline: {id} is past its deadline, and nobody ends it"));
            }
        }
        found
    }
}

/// It ends for the time that passed, or because it is too much.
fn is_by_time(cause: ShutdownCause) -> bool {
    match cause {
        ShutdownCause::Idle
        | ShutdownCause::Shrink
        | ShutdownCause::Expired
        | ShutdownCause::BootFailed
        | ShutdownCause::ProbeFailed => true,
        ShutdownCause::Drained
        | ShutdownCause::Released
        | ShutdownCause::Unknown
        | ShutdownCause::Operator => false,
    }
}

#[cfg(test)]
mod tests {
    use fsm::testing::Driver;

    use super::*;

    /// An instance of which the provider says nothing, and the time at which it should be bound.
    fn requested() -> (Driver, InstanceId, u64) {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |pool| pool.boot_timeout_ms = 60_000);
        let id = driver.request_instance("gpu", "small");
        let deadline_at = driver.instance_row(id).deadline_at;
        (driver, id, deadline_at)
    }

    fn end(id: InstanceId, cause: ShutdownCause) -> Command {
        let (reason, by, evaluation_ids) = ("".into(), "".into(), Vec::new());
        Command::from(ShutDownInstance { id, cause, reason, by, evaluation_ids })
    }

    #[test]
    fn an_intent_that_is_past_its_deadline_is_ended() {
        let (mut driver, id, at) = requested();
        let began = at - WARM_UP_MS;
        let ends = [end(id, ShutdownCause::Expired)];
        for (asked, is_late) in [(&ends[..], false), (&[], true)] {
            let mut promises = PoolPromises::default();
            let mut look = |now, commands| promises.looked(now, began, &driver.state, commands);
            assert_eq!(look(at - 1, &[]), [] as [&str; 0]);
            assert_eq!(look(at, &[]), [] as [&str; 0]);
            let late = look(at + LATE_MS + 1, asked);
            assert_eq!(late.iter().any(|one| one.starts_with("pool-deadline")), is_late);
        }
        driver.behave(id, Behavior::Hold);
        let mut promises = PoolPromises::default();
        for now in [at, at + 2 * LATE_MS] {
            assert_eq!(promises.looked(now, began, &driver.state, &[]), [] as [&str; 0]);
        }
    }

    #[test]
    fn nothing_ends_by_time_before_a_leader_is_warm() {
        let (driver, id, began) = requested();
        let look = |now, cause| {
            let found =
                PoolPromises::default().looked(now, began, &driver.state, &[end(id, cause)]);
            found.iter().any(|one| one.starts_with("pool-warm-up"))
        };
        assert!(look(began + WARM_UP_MS - 1, ShutdownCause::Idle));
        assert!(!look(began + WARM_UP_MS - 1, ShutdownCause::Drained), "that is no matter of time");
        assert!(!look(began + WARM_UP_MS, ShutdownCause::Idle));
    }
}
