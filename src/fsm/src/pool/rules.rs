//! Questions about pools and instances that transitions, the leader and readers ask alike.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    BY_POOL, Behavior, Instance, InstancePool, InstanceState, InstanceType, LimitScope,
    ProviderLimit, Unhelped,
};
use crate::{
    command::Rejection,
    digest::row_hash,
    id::{InstanceId, JobKey, NodeId, Text, TimeMs},
    job::{SIGNALS, SIGNALS_ATTRIBUTE},
    limits,
    node::{AgentStart, Driver, NodeDescription, NodeResources},
    plant::{Plant, is_planted},
    resources::Resources,
    state::State,
};

impl InstanceType {
    /// The node that a machine of this type will be, as the pool declares it.
    pub fn description(&self, pool: &Text) -> NodeDescription {
        let driver = Driver { detected: true, healthy: true, ..Driver::default() };
        let mut attributes = self.node.attributes.clone();
        attributes.entry(SIGNALS_ATTRIBUTE.into()).or_insert_with(|| SIGNALS.join(",").into());
        for name in &self.node.drivers {
            attributes.entry(format!("driver.{name}").into()).or_insert_with(|| "1".into());
        }
        NodeDescription {
            name: self.name.clone(),
            datacenter: self.node.datacenter.clone(),
            class: self.node.class.clone(),
            pool: pool.clone(),
            attributes,
            meta: self.node.meta.clone(),
            resources: NodeResources {
                total: self.resources(),
                dynamic_port_min: 20_000,
                dynamic_port_max: 32_000,
                allocations_max: self.max_allocations,
                ..NodeResources::default()
            },
            drivers: self.node.drivers.iter().map(|name| (name.clone(), driver.clone())).collect(),
            http_address: "".into(),
            version: "".into(),
            start: AgentStart::default(),
        }
    }

    /// What tasks may use.
    pub fn resources(&self) -> Resources {
        // A type that says nothing of its disk has what its agent finds.
        let disk_mb = if self.disk_mb == 0 { limits::INSTANCE_SIZE_MAX } else { self.disk_mb };
        Resources { cpu_mhz: self.cpu, memory_mb: self.memory_mb, disk_mb }
    }

    /// Scopes of limits that stop creates of this type.
    pub fn limit_scopes(&self) -> impl Iterator<Item = LimitScope> {
        let group = (!self.quota_group.is_empty()).then(|| LimitScope::QuotaGroup {
            group: self.quota_group.clone(),
            preemptible: self.preemptible,
        });
        [LimitScope::All, LimitScope::Type(self.provider_type.clone())].into_iter().chain(group)
    }

    pub(super) fn is_in(&self, scope: &LimitScope) -> bool {
        self.limit_scopes().any(|own| own == *scope)
    }
}

impl InstancePool {
    /// Why a pool cannot be like this, in the words of its file.
    pub fn check(&self) -> Result<(), String> {
        if self.provider.is_empty() {
            return Err("a pool needs a provider".into());
        }
        if self.max > limits::INSTANCES_MAX {
            return Err(format!("max is {}, at most {}", self.max, limits::INSTANCES_MAX));
        }
        if self.min > self.max {
            return Err(format!("min ({}) is above max ({})", self.min, self.max));
        }
        if !(1_000..=1_000_000).contains(&self.price_factor_milli) {
            return Err("price_factor must be from 1 to 1000".into());
        }
        if self.max_creates_per_hour > limits::CREATES_PER_HOUR_MAX {
            let (asked, most) = (self.max_creates_per_hour, limits::CREATES_PER_HOUR_MAX);
            return Err(format!("max_creates_per_hour is {asked}, at most {most}"));
        }
        if self.max_price_micro > limits::INSTANCE_SIZE_MAX {
            let most = limits::INSTANCE_SIZE_MAX;
            return Err(format!("max_price_per_hour is above {most} millionths"));
        }
        if self.types.is_empty() || self.types.len() > limits::INSTANCE_TYPES_MAX {
            let max = limits::INSTANCE_TYPES_MAX;
            return Err(format!("a pool has from 1 to {max} types, not {}", self.types.len()));
        }
        for (name, ms) in [
            ("idle_timeout", self.idle_timeout_ms),
            ("boot_timeout", self.boot_timeout_ms),
            ("probe_timeout", self.probe_timeout_ms),
            ("backoff_reset", self.backoff_reset_ms),
        ] {
            if !(1..=limits::NODE_LIFE_MS_MAX).contains(&ms) {
                return Err(format!("{name} must be from 1 ms to a year"));
            }
        }
        for (key, kind) in &self.types {
            let name = &kind.name;
            if name != key || !is_name(name) {
                return Err(format!(
                    "type \"{name}\": its name must be 1 to 128 letters, digits, '-', '_' or '.'"
                ));
            }
            if kind.provider_type.is_empty() {
                return Err(format!("type \"{name}\" needs a provider_type"));
            }
            if kind.cpu == 0 || kind.memory_mb == 0 {
                return Err(format!("type \"{name}\" needs cpu and memory above 0"));
            }
            let largest = kind.cpu.max(kind.memory_mb).max(kind.disk_mb).max(kind.price_micro);
            if largest > limits::INSTANCE_SIZE_MAX {
                let max = limits::INSTANCE_SIZE_MAX;
                return Err(format!("type \"{name}\": {largest} is above {max}"));
            }
            if kind.node.datacenter.is_empty() {
                return Err(format!("type \"{name}\": node needs a datacenter"));
            }
        }
        for (key, group) in &self.groups {
            group.check(key)?;
        }
        Ok(())
    }
}

/// Whether a type or a capacity group may be called so.
pub(crate) fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=128).contains(&name.len()) && name.chars().all(is_allowed)
}

/// The id of a machine that no row stands for.
pub fn stray_id(provider: &str, provider_id: &str) -> InstanceId {
    InstanceId(row_hash(provider.as_bytes(), provider_id.as_bytes()).to_le_bytes())
}

impl State {
    /// Instances of a pool, by id; those on their way out included.
    pub fn instances_of<'a>(&'a self, pool: &str) -> impl Iterator<Item = &'a Arc<Instance>> {
        let ids = self.instances_by_pool.get(pool).into_iter().flatten();
        ids.filter_map(|id| self.instances.get(id))
    }

    /// How many instances a pool has; those on their way out included.
    pub fn instance_count(&self, pool: &str) -> usize {
        self.instances_by_pool.get(pool).map_or(0, imbl::OrdSet::len)
    }

    /// The limit in force at log time `at` for creates of a type; the one that lasts longest.
    pub fn limit_on(
        &self,
        pool: &Text,
        kind: &InstanceType,
        at: TimeMs,
    ) -> Option<&Arc<ProviderLimit>> {
        let scopes = kind.limit_scopes();
        let rows = scopes.filter_map(|scope| self.provider_limits.get(&(pool.clone(), scope)));
        rows.filter(|limit| self.is_in_force(limit, at)).max_by_key(|limit| limit.until)
    }

    /// Whether a limit still holds at log time `at`. Cost: the instances of its pool.
    pub fn is_in_force(&self, limit: &ProviderLimit, at: TimeMs) -> bool {
        let is_counted = |row: &&Arc<Instance>| row.kind.is_in(&limit.scope);
        at < limit.until
            && (limit.below == 0
                || self.instances_of(&limit.pool).filter(is_counted).count()
                    >= usize::try_from(limit.below).unwrap_or(usize::MAX))
    }

    /// What is known at log time `at` not to help a job as it is now, in its pool as it is now.
    pub fn unhelped_by(
        &self,
        job: &JobKey,
        job_modify_index: u64,
        at: TimeMs,
    ) -> Option<&Arc<Unhelped>> {
        self.found_unhelped(job, job_modify_index).filter(|row| at < row.until)
    }

    /// The same, also when its time is over. A row goes with any change of its pool.
    pub(super) fn found_unhelped(
        &self,
        job: &JobKey,
        job_modify_index: u64,
    ) -> Option<&Arc<Unhelped>> {
        self.unhelped.get(job).filter(|row| row.job_modify_index == job_modify_index)
    }

    /// Whether nothing runs on an instance's node but what runs on every node, or it has none.
    pub fn is_empty_instance(&self, row: &Instance) -> bool {
        row.node.is_none_or(|node| !self.has_work(node))
    }

    /// Whether something runs on a node that is not of a system job.
    pub(super) fn has_work(&self, node: NodeId) -> bool {
        self.is_busy(node)
            && self.open_allocations_of_node(node).any(|row| !self.is_of_system_job(row))
    }

    /// Whether a person has taken an instance's node out of service: only an operator ends such an
    /// instance, whatever its machine seems to be. Whoever drains the instance itself has given it
    /// up.
    pub fn is_set_aside(&self, row: &Instance) -> bool {
        let is_given_up = row.behavior == Behavior::Drain && &*row.behavior_by != BY_POOL;
        let node = row.node.and_then(|node| self.nodes.get(&node));
        let is_aside = node.is_some_and(|node| node.set_aside().is_some());
        is_aside && !is_given_up && !is_planted(Plant::SetAsideShutDown)
    }

    /// Why an instance may not be shut down for `cause` at this time.
    pub(super) fn why_not_shut_down(
        &self,
        row: &Instance,
        cause: super::ShutdownCause,
    ) -> Result<(), Rejection> {
        use super::ShutdownCause::{Drained, Idle, Operator, Released, Shrink};
        let invalid = |why: &str| Err(Rejection::Invalid(why.into()));
        if cause == Operator {
            return Ok(());
        }
        if row.behavior == Behavior::Hold && !is_planted(Plant::HeldShutDown) {
            return invalid("the instance is held");
        }
        if self.is_set_aside(row) {
            return invalid("a person has taken its node out of service");
        }
        if cause.needs_empty() && !self.is_empty_instance(row) {
            return invalid("allocations on the instance have not ended");
        }
        let is_empty = self.is_empty_instance(row);
        let is_over = row.member_drain().is_some_and(|drain| drain.is_over(is_empty, self.at()));
        if row.member.is_some() && !is_over && matches!(cause, Idle | Drained | Shrink | Released) {
            return invalid("a member of a capacity group drains before it is shut down");
        }
        if row.member.is_none() && cause == Released {
            return invalid("the instance is no member of a capacity group");
        }
        let is_lost = |node| self.mass_loss().is_some_and(|loss| loss.nodes.contains(&node));
        if row.node.is_some_and(is_lost) {
            return invalid("no instance is destroyed during a mass loss");
        }
        let is_paused =
            self.instance_pools.get(&row.pool).is_some_and(|pool| pool.paused.is_some());
        if is_paused && matches!(cause, Idle | Shrink | Released) {
            return invalid("the pool is paused");
        }
        Ok(())
    }

    /// Instances of a pool by state.
    pub fn instance_counts(&self, pool: &str) -> BTreeMap<InstanceState, u32> {
        let mut counts = BTreeMap::new();
        for row in self.instances_of(pool) {
            let count: &mut u32 = counts.entry(row.state).or_default();
            *count = count.saturating_add(1);
        }
        counts
    }
}
