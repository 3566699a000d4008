//! What must be so when every balancer has said what it needs and nothing is left to do: each group
//! has the members that are wanted, silent sources have expired, and no drain is older than its
//! deadline.

use fsm::{
    CapacityGroup, Instance, InstancePool, InstanceState, State, limits::HARD_STOP_MS,
    pool::Behavior,
};

use super::super::{
    capacity::{self, Strength},
    ending::is_held_back,
};

/// Looks of a leader may come so late, ms.
const SLACK_MS: u64 = 30_000;

/// What is not so in the groups of a pool.
pub(super) fn judge(truth: &State, pool: &InstancePool, now: u64, found: &mut Vec<String>) {
    for row in truth.capacity_sources().iter() {
        if row.expired_at == 0 && row.expires_at + SLACK_MS < now {
            found.push(format!("capacity-silent: {} is silent and counts", row.name));
        }
    }
    if pool.paused.is_some() || truth.mass_loss().is_some() {
        return;
    }
    // What a person has set aside stays until that person is done.
    let rows = truth.instances().iter().filter(|row| row.pool == pool.name);
    for row in rows.filter(|row| !truth.is_set_aside(row)) {
        drains(row, pool, now, found);
    }
    for group in pool.groups.values() {
        let wanted = capacity::wanted(truth, group);
        let desired = capacity::desired(truth, group);
        if desired == wanted {
            size((truth, now), pool, group, wanted, found);
        } else {
            let name = &group.name;
            found.push(format!("capacity-decision: {name} is to give {desired}, not {wanted}"));
        }
    }
}

/// A drain ends by its deadline, and who is of no declared group drains.
fn drains(row: &Instance, pool: &InstancePool, now: u64, found: &mut Vec<String>) {
    let is_out = row.state == InstanceState::ShuttingDown || row.behavior == Behavior::Hold;
    let Some(member) = row.member.as_ref().filter(|_| !is_out) else { return };
    let id = row.id;
    match member.drain {
        Some(drain) if drain.deadline_at + HARD_STOP_MS + SLACK_MS < now => {
            found.push(format!("capacity-drain: {id} is past the deadline of its drain"));
        }
        Some(_) => found.push(format!("capacity: {id} drains")),
        None if !pool.groups.contains_key(&member.group) => {
            found.push(format!("capacity-deleted: the group of {id} is gone, it stays"));
        }
        None => {}
    }
}

/// A group has what it wants, as far as there is room, and nothing that it could do without.
fn size(
    (truth, now): (&State, u64),
    pool: &InstancePool,
    group: &CapacityGroup,
    wanted: u64,
    found: &mut Vec<String>,
) {
    let name = &group.name;
    let Strength { amount, count } = capacity::strength(truth, group);
    let rows = || truth.instances().iter().filter(|row| row.pool == pool.name);
    let requested = rows().filter(|row| row.state == InstanceState::Requested).count();
    let creates = pool.max_concurrent_creates as usize;
    let is_free = !is_held_back(truth, pool, now) && (creates == 0 || requested < creates);
    let has_room = rows().count() < pool.max as usize && is_free;
    if (amount < wanted || count < group.min) && count < group.max && has_room {
        found.push(format!("capacity-lack: {name} gives {amount} of {wanted} with {count}"));
    }
    let each = rows().filter(|row| row.group() == Some(name));
    let each = each.filter_map(|row| capacity::given(truth, group, row));
    let is_much = amount.saturating_sub(wanted) >= group.unit || wanted == 0;
    let mut spare = each.filter(|each| amount - each >= wanted);
    if is_much && count > group.min && spare.next().is_some() {
        found.push(format!("capacity-excess: {name} gives {amount}, {wanted} is wanted"));
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        InstanceId,
        capacity::{Member, MoveMembers},
        testing::{self, Driver},
    };

    use super::*;

    /// A pool with a group that wants 12,000 MB, and two members that serve.
    fn settled() -> (Driver, [InstanceId; 2]) {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |pool| {
            // A member gives a unit.
            let web = CapacityGroup { unit: 8_192, ..testing::capacity_group("web") };
            pool.groups.insert("web".into(), web.into());
        });
        driver.require("lb1", 1, &[("web", 12_000)]);
        driver.decide("web", 12_000);
        let ids = ["a", "b"].map(|name| member(&mut driver, name));
        (driver, ids)
    }

    fn member(driver: &mut Driver, name: &str) -> InstanceId {
        let mut intent = driver.intent("gpu", "small");
        intent.group = Some("web".into());
        let id = intent.id;
        let command = driver.request("gpu", vec![intent]);
        driver.accept(command);
        driver.made(id);
        let command = driver.register_as(name, testing::proof(id));
        driver.accept(command);
        driver.sync(name);
        driver.readiness(name, fsm::node::Readiness::Ok);
        id
    }

    /// A member drains that the group can do without.
    fn drain(driver: &mut Driver, id: InstanceId) {
        let target = driver.state.capacity_targets().get(&"web".into());
        let decision = target.and_then(|row| row.decision).expect("it is decided");
        let (drain, take_back) = (vec![id], Vec::new());
        let (group, decision_index) = ("web".into(), decision.index);
        let evaluation_ids = Vec::new();
        let moves = MoveMembers { group, decision_index, drain, take_back, evaluation_ids };
        driver.accept(moves.into());
    }

    fn found(driver: &Driver, later_ms: u64) -> Vec<String> {
        let state = &driver.state;
        let pool = state.instance_pools().get(&"gpu".into()).expect("it is there");
        let mut found = Vec::new();
        judge(state, pool, state.at() + later_ms, &mut found);
        found.into_iter().map(|one| one.split(':').next().unwrap_or("").to_owned()).collect()
    }

    fn given(driver: &Driver) -> u64 {
        capacity::strength(&driver.state, &testing::capacity_group("web")).amount
    }

    #[test]
    fn missing_and_surplus_members_are_found() {
        let (mut driver, _) = settled();
        let each = given(&driver) / 2;
        for (seq, need, what) in [
            (2, 2 * each, &[][..]),
            (3, 2 * each + 1, &["capacity-lack"]),
            (4, each, &["capacity-excess"]),
            (5, 0, &["capacity-excess"]),
        ] {
            driver.require("lb1", seq, &[("web", need)]);
            assert_eq!(found(&driver, 0), ["capacity-decision"], "{need}");
            driver.decide("web", need);
            assert_eq!(found(&driver, 0), what, "{need}");
        }
    }

    #[test]
    fn silent_sources_and_drains_without_end_are_found() {
        let (mut driver, [id, _]) = settled();
        driver.require("lb1", 2, &[("web", 4_096)]);
        driver.decide("web", 4_096);
        drain(&mut driver, id);
        assert_eq!(found(&driver, 0), ["capacity"], "it drains");
        let late_ms = testing::capacity_group("web").drain_ms + HARD_STOP_MS + SLACK_MS;
        assert_eq!(found(&driver, late_ms), ["capacity-silent", "capacity"], "it may drain yet");
        assert_eq!(found(&driver, late_ms + 1), ["capacity-silent", "capacity-drain"]);
        let member = Some(Member { group: "api".into(), drain: None, place: None });
        let row = Instance { member, ..driver.instance_row(id).clone() };
        testing::put(&mut driver.state, &row);
        assert_eq!(found(&driver, 0), ["capacity-deleted"]);
    }
}
