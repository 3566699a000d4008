//! What must be so when the cloud keeps its word and nothing is left to do: every machine has its
//! row and every row its machine, what idles is gone, and what waits waits for a reason.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Evaluation, EvaluationStatus, Instance, InstancePool, InstanceState, JobKind, Liveness, Node,
    State, TaskGroup, pool::Behavior, testing,
};

use super::{POOL, PROVIDER, Pools};
use crate::{
    cluster::Cluster,
    invariants::needs::{self, is_live},
};

/// Looks of a leader may come so late, ms.
const SLACK_MS: u64 = 30_000;

/// What of the pool is not as it has to be in the end; while there is anything, the quiet goes
/// on.
pub(super) fn unsettled(pools: &Pools, cluster: &Cluster) -> Vec<String> {
    let mut found = Vec::new();
    if pools.is_busy() {
        found.push("pool: the cloud has something to do".to_owned());
    }
    let truth = cluster.log.truth();
    let ending = Ending { truth, now: cluster.leaders_now() };
    ending.machines(pools, &mut found);
    for row in truth.instances().iter() {
        found.extend(ending.unsettled(row).map(|why| format!("pool: {} {why}", row.id)));
    }
    if let Some(pool) = truth.instance_pools().get(&POOL.into()) {
        ending.size(pool, &mut found);
        ending.demand(pool, &mut found);
    }
    found
}

struct Ending<'a> {
    truth: &'a State,
    /// Log time as the leader stamps it.
    now: u64,
}

impl Ending<'_> {
    /// Made less ended = machines = rows, one to one, and none twice for an intent.
    fn machines(&self, pools: &Pools, found: &mut Vec<String>) {
        let cloud = &pools.cloud;
        let there = cloud.machines().count() as u64;
        let rows = self.truth.instances().iter().filter(|row| &*row.provider == PROVIDER);
        let rows = rows.filter(|row| !is_waiting(row)).count() as u64;
        if cloud.made() - cloud.ended() != there || there != rows {
            let (made, ended) = (cloud.made(), cloud.ended());
            found.push(format!(
                "pool-count: {made} made, {ended} ended, {there} are there, {rows} have rows"
            ));
        }
        let mut owners = BTreeMap::new();
        for row in self.truth.instances().iter().filter(|row| !row.provider_id.is_empty()) {
            owners.insert(&row.provider_id, row.id);
        }
        // Of one whose answer was lost and which has no tags, only its agent tells.
        let is_bound = |key| {
            let row = self.truth.instances().get(key);
            row.is_some_and(|row| row.provider_id.is_empty() && row.state == InstanceState::Bound)
        };
        let mut keys = BTreeSet::new();
        for machine in cloud.machines() {
            let id = &machine.described.provider_id;
            if !owners.contains_key(id) && !is_bound(&machine.create.key) {
                found.push(format!("pool-leak: no row stands for machine {id}"));
            }
            if !keys.insert(machine.create.key) {
                let key = machine.create.key;
                found.push(format!("pool-twice: two machines are there for intent {key}"));
            }
        }
        for (id, owner) in owners {
            if cloud.machine(id).is_none() {
                found.push(format!("pool-lost: {owner} has no machine {id}"));
            }
        }
    }

    /// Why an instance cannot stay as it is.
    fn unsettled(&self, row: &Instance) -> Option<&'static str> {
        if row.behavior == Behavior::Hold && row.state != InstanceState::ShuttingDown {
            return None;
        }
        let node = row.node.and_then(|node| self.truth.nodes().get(&node));
        let is_lost = |node| self.truth.mass_loss().is_some_and(|loss| loss.nodes.contains(&node));
        match row.state {
            InstanceState::Requested => Some("is being made"),
            InstanceState::Booting => Some("boots"),
            InstanceState::ShuttingDown => Some("is being destroyed"),
            InstanceState::Bound if row.node.is_some_and(is_lost) => None,
            // A person has it back when that person says so.
            InstanceState::Bound if self.truth.is_set_aside(row) => None,
            // A member's drain has a deadline, which a pool that is paused lets pass.
            InstanceState::Bound if row.member_drain().is_some() => None,
            InstanceState::Bound => {
                let is_ready = node.is_some_and(|node| node.liveness == Liveness::Ready);
                (row.behavior == Behavior::Drain && self.is_empty(row))
                    .then_some("drains and is empty")
                    .or_else(|| (!is_ready).then_some("has a node that is not there"))
            }
        }
    }

    /// Nothing is to run there, or runs still, but what runs on every node.
    fn is_empty(&self, row: &Instance) -> bool {
        let mut rows = self.truth.allocations().iter().filter(|one| Some(one.node) == row.node);
        !rows.any(|one| {
            (is_live(one) || !needs::has_ended(one)) && !self.truth.is_of_system_job(one)
        })
    }

    /// A pool is no larger than it may be, and what idles goes.
    fn size(&self, pool: &InstancePool, found: &mut Vec<String>) {
        if pool.paused.is_some() || self.truth.mass_loss().is_some() {
            return;
        }
        let rows = || self.truth.instances().iter().filter(|row| row.pool == pool.name);
        // One that drains stays for as long as something on it has nowhere to go.
        let stays = |row: &Instance| match row.behavior {
            Behavior::Run => self.truth.is_set_aside(row),
            Behavior::Drain => !self.is_empty(row) || self.truth.is_set_aside(row),
            Behavior::Hold => true,
        };
        let count = rows().filter(|row| !stays(row)).count();
        let max = pool.max as usize;
        if count > max {
            found.push(format!("pool-max: {count} instances are there, {max} may be"));
        }
        let running = rows().filter(|row| row.behavior == Behavior::Run).count();
        let idle = rows().filter(|row| !stays(row)).find(|row| {
            let node = row.node.and_then(|node| self.truth.nodes().get(&node));
            let since = row.last_busy_at.max(row.bound_at);
            let since = since.max(node.map_or(0, |node| node.liveness_at));
            // Members of capacity groups drain first.
            row.is_open()
                && row.member.is_none()
                && self.is_empty(row)
                && since + pool.idle_timeout_ms + SLACK_MS < self.now
        });
        if let Some(row) = idle.filter(|_| running > pool.min as usize) {
            found.push(format!("pool-idle: {} is idle and stays", row.id));
        }
        let is_short = running < (pool.min as usize).min(self.room(pool));
        if is_short && !is_held_back(self.truth, pool, self.now) {
            found.push(format!("pool-min: {running} instances run, {} are to", pool.min));
        }
    }

    /// How many instances that run the pool has room for.
    fn room(&self, pool: &InstancePool) -> usize {
        let rows = self.truth.instances().iter().filter(|row| row.pool == pool.name);
        let others = rows.filter(|row| row.behavior != Behavior::Run).count();
        (pool.max as usize).saturating_sub(others)
    }

    /// No job waits for a machine that could be made.
    fn demand(&self, pool: &InstancePool, found: &mut Vec<String>) {
        let count = self.truth.instance_count(&pool.name);
        let blocked = self.truth.evaluations().iter();
        let blocked = blocked.filter(|row| row.status == EvaluationStatus::Blocked);
        let blocked: Vec<_> = blocked.collect();
        for row in blocked.iter().filter(|row| !row.kind.is_per_node()) {
            // Nothing is left to happen: whoever is told that it will has another reason to wait.
            let why = elastic::why::evaluation(self.truth, self.now, row);
            if let Some(why) = why.iter().find(|why| why.contains("is about to")) {
                found.push(format!("pool-why: {} waits and is told: {why}", row.job));
            }
        }
        if pool.paused.is_some() || count >= pool.max as usize || self.truth.mass_loss().is_some() {
            return;
        }
        if is_held_back(self.truth, pool, self.now) {
            return;
        }
        for row in blocked {
            if self.would_help(pool, row) {
                let job = &row.job;
                found.push(format!("pool-demand: {job} waits, and a machine would help it"));
            }
        }
    }

    /// Some machine that nobody has tried, and that did not fail lately, would take what an evaluation could not place.
    fn would_help(&self, pool: &InstancePool, row: &Evaluation) -> bool {
        let job = self.truth.jobs().get(&row.job).filter(|job| !job.stop);
        let Some(job) = job else { return false };
        let Some(spec) = self.truth.current_spec(job) else { return false };
        let tried = self.truth.unhelped_by(&row.job, job.job_modify_index, self.truth.at());
        if spec.node_pool != pool.name || spec.kind.is_per_node() || row.node.is_some() {
            return false;
        }
        // Who may have only so many in a datacenter has them there.
        if needs::most_in_datacenter(spec).is_some() || spec.all_at_once {
            return false;
        }
        let missing = |name| row.queued.get(name).copied().unwrap_or(0) > 0;
        spec.groups.iter().filter(|group| missing(&group.name)).any(|group| {
            pool.types.values().any(|kind| {
                let mut node = template();
                node.description = std::sync::Arc::new(kind.description(&pool.name));
                let is_tried = tried.is_some_and(|row| row.types.contains(&kind.name))
                    || self.truth.backoff_on(pool, &kind.name, self.now).is_some();
                let fits = self.room_for_others(&node).into_iter().zip(needs::ask_of(group));
                let taken = self.ports_of_system_jobs(&node);
                !is_tried
                    && static_ports(group).all(|port| !taken.contains(&port))
                    && fits.into_iter().all(|((_, room), (_, ask))| ask <= room)
                    && needs::suits(spec, group, &node).is_ok()
            })
        })
    }

    /// Groups that run on a node as on every one that suits them.
    fn system_groups<'b>(&'b self, node: &'b Node) -> impl Iterator<Item = &'b TaskGroup> {
        let jobs = self.truth.jobs().iter().filter(|job| job.kind == JobKind::System && !job.stop);
        let specs = jobs.filter_map(|job| self.truth.current_spec(job));
        let groups = specs.flat_map(|spec| spec.groups.iter().map(move |group| (spec, group)));
        let groups = groups.filter(|(spec, group)| needs::suits(spec, group, node).is_ok());
        groups.map(|(_, group)| group)
    }

    fn ports_of_system_jobs(&self, node: &Node) -> BTreeSet<u16> {
        self.system_groups(node).flat_map(static_ports).collect()
    }

    /// What the jobs that run on every node leave of one.
    fn room_for_others(&self, node: &Node) -> needs::Amounts {
        let mut room = needs::room_of(node);
        for group in self.system_groups(node) {
            for ((_, left), (_, ask)) in room.iter_mut().zip(needs::ask_of(group)) {
                *left = left.saturating_sub(ask);
            }
        }
        room
    }
}

fn static_ports(group: &TaskGroup) -> impl Iterator<Item = u16> {
    let ports = group.network.iter().flat_map(|network| &network.ports);
    ports.map(|port| port.value).filter(|port| *port != 0)
}

/// What failed before, or was made lately, lets a pool make no machine at all now.
pub(crate) fn is_held_back(truth: &State, pool: &InstancePool, now: u64) -> bool {
    let Some(history) = truth.pool_histories().get(&pool.name) else { return false };
    let most = pool.max_creates_per_hour;
    let is_probing = history.protected_since > 0 && truth.unproven_of(&pool.name) > 0;
    let mut kinds = pool.types.keys();
    let all_failed = kinds.all(|kind| truth.backoff_on(pool, kind, now).is_some());
    is_probing || all_failed || (most > 0 && history.asked_lately(now) >= most)
}

/// A row that no machine stands for yet: an operator holds it.
fn is_waiting(row: &Instance) -> bool {
    row.state == InstanceState::Requested
}

/// A node, of which the description is to be replaced.
fn template() -> Node {
    let mut driver = testing::Driver::default();
    driver.register_node("template");
    driver.node_row("template").clone()
}

#[cfg(test)]
mod tests {
    use elastic::{
        call::{Answer, Create, Machine, Operation, Tags},
        fake::Fault,
    };
    use fsm::{InstanceId, testing::Driver};

    use super::*;

    /// A pool with one instance that is bound to node `a`, and its machine at the cloud.
    fn settled() -> (Driver, InstanceId, Pools) {
        let mut driver = Driver::default();
        driver.instance_pool(POOL, |pool| pool.provider = PROVIDER.into());
        let id = driver.instance(POOL, "small", "a");
        driver.sync("a");
        driver.readiness("a", fsm::node::Readiness::Ok);
        let mut pools = Pools::calm_one();
        let machine = make(&mut pools, &driver, id, &[]);
        let mut row = driver.instance_row(id).clone();
        row.provider_id = machine.provider_id;
        testing::put(&mut driver.state, &row);
        (driver, id, pools)
    }

    fn make(pools: &mut Pools, driver: &Driver, id: InstanceId, faults: &[Fault]) -> Machine {
        let kind = (*driver.instance_row(id).kind).clone();
        let (token, pool, tags) = ([1; 16], POOL.into(), Tags::new());
        let create = Create { key: id, token, pool, kind, tags };
        match pools.cloud.call(&Operation::Create(Box::new(create)), faults) {
            Ok(Answer::Created(machine)) => machine,
            other => panic!("{other:?}"),
        }
    }

    fn found(driver: &Driver, pools: &Pools, later_ms: u64) -> Vec<String> {
        let ending = Ending { truth: &driver.state, now: driver.state.at() + later_ms };
        let mut found = Vec::new();
        ending.machines(pools, &mut found);
        let pool = driver.state.instance_pools().get(&POOL.into()).expect("it is there");
        ending.size(pool, &mut found);
        ending.demand(pool, &mut found);
        found.into_iter().map(|one| one.split(':').next().unwrap_or("").to_owned()).collect()
    }

    #[test]
    fn machines_without_rows_twice_made_and_lost_are_found() {
        let (driver, id, mut pools) = settled();
        assert_eq!(found(&driver, &pools, 0), [] as [&str; 0]);
        let second = make(&mut pools, &driver, id, &[Fault::IgnoresKey]);
        assert_eq!(found(&driver, &pools, 0), ["pool-count", "pool-leak", "pool-twice"]);
        pools.cloud.end(&second.provider_id);
        let first = driver.instance_row(id).provider_id.clone();
        pools.cloud.end(&first);
        assert_eq!(found(&driver, &pools, 0), ["pool-count", "pool-lost"]);
    }

    #[test]
    fn instances_that_idle_too_long_or_are_too_many_are_found() {
        let (mut driver, id, pools) = settled();
        let patience_ms = 60_000 + SLACK_MS;
        assert_eq!(found(&driver, &pools, patience_ms), [] as [&str; 0]);
        assert_eq!(found(&driver, &pools, patience_ms + 1), ["pool-idle"]);
        driver.instance_pool(POOL, |pool| {
            pool.provider = PROVIDER.into();
            pool.max = 0;
        });
        assert_eq!(found(&driver, &pools, 0), ["pool-max"]);
        driver.behave(id, Behavior::Hold);
        assert_eq!(found(&driver, &pools, patience_ms + 1), [] as [&str; 0]);
    }

    #[test]
    fn a_pool_below_its_min_and_a_job_that_a_machine_would_help_are_found() {
        let (mut driver, _, pools) = settled();
        driver.instance_pool(POOL, |pool| {
            pool.provider = PROVIDER.into();
            pool.min = 2;
        });
        assert_eq!(found(&driver, &pools, 0), ["pool-min"]);
        driver.instance_pool(POOL, |pool| pool.provider = PROVIDER.into());
        let mut spec = testing::job("web", fsm::JobKind::Service, 1);
        spec.node_pool = POOL.into();
        let evaluation = driver.register_job(spec);
        let mut row = driver.evaluation(evaluation).clone();
        row.status = EvaluationStatus::Blocked;
        row.queued = [(testing::GROUP.into(), 1)].into();
        testing::put(&mut driver.state, &row);
        assert_eq!(found(&driver, &pools, 0), ["pool-why", "pool-demand"]);
    }
}
