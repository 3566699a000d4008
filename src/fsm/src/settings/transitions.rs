//! Scheduler configuration, node pools, namespaces.

use super::{
    DeleteNamespace, DeleteNodePool, SetSchedulerConfiguration, UpsertNamespace, UpsertNodePool,
};
use crate::{
    apply::{Outcome, Turn, not_found},
    bounds::{check_room, refused},
    command::{Rejection, Reply},
    effect::Effect,
    job::{JobKind, JobStatus},
    limits,
};

/// Pools that always exist.
const BUILT_IN_POOLS: [&str; 2] = ["all", "default"];

impl Turn<'_> {
    pub(crate) fn set_scheduler_configuration(
        &mut self,
        command: &SetSchedulerConfiguration,
    ) -> Outcome {
        let SetSchedulerConfiguration { ref configuration, keep_node_life, enforce_index } =
            *command;
        let old = self.state.scheduler_configuration();
        if let Some(asked) = enforce_index
            && asked != old.modify_index
        {
            return Err(Rejection::IndexConflict { asked, found: old.modify_index });
        }
        if configuration.node_limit == 0 {
            return Err(Rejection::Invalid("NodeLimitForFeasibilityChecks must be above 0".into()));
        }
        let mut row = configuration.clone();
        if keep_node_life {
            row.node_life = old.node_life;
        }
        row.node_life.check().map_err(|why| Rejection::Invalid(why.into()))?;
        row.create_index = if old.create_index == 0 { self.index } else { old.create_index };
        row.modify_index = self.index;
        let may_now = |kind: JobKind| row.preemption.allows(kind) && !old.preemption.allows(kind);
        if JobKind::ALL.into_iter().any(may_now) {
            // Whoever waits for room may evict for it now.
            let nodes = self.state.nodes.iter().filter(|node| node.is_schedulable());
            self.gains.extend(nodes.map(|node| node.id));
        }
        self.state.configurations.put(row, self.changes);
        self.effects.insert(Effect::SchedulerConfiguration);
        Ok(Reply::Done)
    }

    pub(crate) fn upsert_node_pool(&mut self, command: &UpsertNodePool) -> Outcome {
        let UpsertNodePool { pool } = command;
        check_name("node pool", &pool.name)?;
        if BUILT_IN_POOLS.contains(&&*pool.name) {
            let message = format!("node pool \"{}\" is built in and cannot be changed", pool.name);
            return Err(Rejection::Invalid(message.into()));
        }
        pool.check().map_err(refused)?;
        let old = self.state.node_pools.get(&pool.name).cloned();
        if old.is_none() {
            check_room("node pools", self.state.node_pools.len(), limits::NAMESPACES_MAX)?;
        }
        let mut row = pool.clone();
        row.create_index = old.map_or(self.index, |old| old.create_index);
        row.modify_index = self.index;
        self.state.node_pools.put(row, self.changes);
        Ok(Reply::Done)
    }

    pub(crate) fn delete_node_pool(&mut self, command: &DeleteNodePool) -> Outcome {
        let DeleteNodePool { name } = command;
        if BUILT_IN_POOLS.contains(&&**name) {
            let message = format!("node pool \"{name}\" is built in and cannot be deleted");
            return Err(Rejection::Invalid(message.into()));
        }
        if !self.state.node_pools.contains(name) {
            return Err(not_found("node pool"));
        }
        if let Some(node) = self.state.nodes.iter().find(|node| node.description.pool == *name) {
            let message = format!("node pool \"{name}\" is used by node {}", node.id);
            return Err(Rejection::InUse(message.into()));
        }
        if self.state.instance_pools.contains(name) {
            let message = format!("node pool \"{name}\" is fed by the instance pool of its name");
            return Err(Rejection::InUse(message.into()));
        }
        let used = self.state.jobs.iter().find(|job| {
            !job.stop && self.state.current_spec(job).is_some_and(|spec| spec.node_pool == *name)
        });
        if let Some(job) = used {
            let message = format!("node pool \"{name}\" is used by job \"{}\"", job.key.id);
            return Err(Rejection::InUse(message.into()));
        }
        self.state.node_pools.remove(name, self.changes);
        Ok(Reply::Done)
    }

    pub(crate) fn upsert_namespace(&mut self, command: &UpsertNamespace) -> Outcome {
        let UpsertNamespace { namespace } = command;
        check_name("namespace", &namespace.name)?;
        namespace.check().map_err(refused)?;
        let old = self.state.namespaces.get(&namespace.name).cloned();
        if old.is_none() {
            check_room("namespaces", self.state.namespaces.len(), limits::NAMESPACES_MAX)?;
        }
        let mut row = namespace.clone();
        row.create_index = old.map_or(self.index, |old| old.create_index);
        row.modify_index = self.index;
        self.state.namespaces.put(row, self.changes);
        Ok(Reply::Done)
    }

    pub(crate) fn delete_namespace(&mut self, command: &DeleteNamespace) -> Outcome {
        let DeleteNamespace { name } = command;
        if &**name == "default" {
            return Err(Rejection::Invalid("namespace \"default\" cannot be deleted".into()));
        }
        if !self.state.namespaces.contains(name) {
            return Err(not_found("namespace"));
        }
        // A finished job that runs once per node goes on with the next node.
        let used = self.state.jobs.iter().find(|job| {
            let waits_for_nodes = job.kind.is_per_node() && !job.stop;
            job.key.namespace == *name && (waits_for_nodes || job.status != JobStatus::Dead)
        });
        if let Some(job) = used {
            let message =
                format!("namespace \"{name}\" is used by job \"{}\": stop it first", job.key.id);
            return Err(Rejection::InUse(message.into()));
        }
        self.state.namespaces.remove(name, self.changes);
        Ok(Reply::Done)
    }
}

pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Rejection> {
    let ok = !name.is_empty()
        && name.len() <= limits::NAME_BYTES_MAX.min(128)
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if ok {
        return Ok(());
    }
    // The beginning is what clients of Nomad look for.
    let message = format!(
        "invalid name {name:?}. A {what} name must be 1 to 128 letters, digits, '-' or '_'"
    );
    Err(Rejection::Invalid(message.into()))
}
