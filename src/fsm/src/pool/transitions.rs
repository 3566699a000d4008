//! Transitions of instance pools and instances.
//!
//! Every outside effect is written ahead: a row says what is wanted before a provider is called,
//! and what came of it is an entry as well. An answer for which there is no row is a machine that
//! nobody wants: it gets a row, so that it is destroyed, and is never ignored.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Behavior, BootFailure, CreateOutcome, DeleteInstancePool, DestroyOutcome, Instance,
    InstanceOutcome, InstancePool, InstanceState, InstanceType, Intent, LimitClass, LimitPool,
    LimitScope, NoteInstance, NoteUnhelped, ObserveInstances, Pause, PauseInstancePool,
    ProviderLimit, ProviderList, RequestInstances, SeenMachine, SetInstanceBehavior,
    ShutDownInstance, Shutdown, ShutdownCause, Unhelped, UpsertInstancePool, rules::stray_id,
};
use crate::{
    allocation::Allocation,
    apply::{Outcome, Turn, not_found},
    bounds::check_room,
    capacity::{Member, Strength},
    command::{Rejection, Reply},
    effect::Effect,
    evaluation::Trigger,
    id::{EvaluationId, InstanceId, NodeId, Text},
    limits,
    node::{Drain, DrainStatus, InstanceProof, Node, NodeChange, NodeInstance, clip},
    plant::{Plant, is_planted},
    settings::{NodePool, check_name},
};

/// Who has said what a pool itself says of its instances.
pub const BY_POOL: &str = "pool";
/// Owner of the drains that are begun for an instance that drains.
const DRAIN_OWNER: &str = "instance pool";

fn invalid<T>(why: impl Into<Text>) -> Result<T, Rejection> {
    Err(Rejection::Invalid(why.into()))
}

/// What an entry's intents have taken until now.
struct Taken {
    /// By capacity group.
    strengths: BTreeMap<Text, Strength>,
    /// Price of an hour of all instances of the pool.
    price_micro: u64,
}

/// What a shutdown says of an instance that has not served.
fn failure_of(cause: ShutdownCause) -> Option<BootFailure> {
    match cause {
        ShutdownCause::Expired => Some(BootFailure::NotMade),
        ShutdownCause::BootFailed => Some(BootFailure::NotBooted),
        ShutdownCause::ProbeFailed => Some(BootFailure::NotReady),
        ShutdownCause::Idle
        | ShutdownCause::Drained
        | ShutdownCause::Shrink
        | ShutdownCause::Unknown
        | ShutdownCause::Operator
        | ShutdownCause::Released => None,
    }
}

impl Turn<'_> {
    pub(crate) fn put_instance(&mut self, mut row: Instance) {
        row.modify_index = self.index;
        self.effects.insert(Effect::Instance(row.id));
        let is_new = !self.state.instances.contains(&row.id);
        self.state.index_instance(&row, is_new);
        self.state.instances.put(row, self.changes);
    }

    pub(crate) fn instance(&self, id: InstanceId) -> Result<Instance, Rejection> {
        self.state
            .instances
            .get(&id)
            .map(|row| (**row).clone())
            .ok_or_else(|| not_found("instance"))
    }

    pub(crate) fn upsert_instance_pool(&mut self, command: &UpsertInstancePool) -> Outcome {
        let UpsertInstancePool { pool, enforce_index } = command;
        check_name("pool", &pool.name)?;
        if &*pool.name == "all" {
            return invalid("pool \"all\" stands for all nodes and has no machines of its own");
        }
        pool.check().and_then(|()| pool.check_bytes()).or_else(invalid)?;
        self.check_groups(pool)?;
        let old = self.state.instance_pools.get(&pool.name).cloned();
        if old.is_none() {
            check_room(
                "instance pools",
                self.state.instance_pools.len(),
                limits::INSTANCE_POOLS_MAX,
            )?;
        }
        let found = old.as_ref().map_or(0, |old| old.modify_index);
        if let Some(asked) = *enforce_index
            && asked != found
        {
            return Err(Rejection::IndexConflict { asked, found });
        }
        let count = self.state.instance_count(&pool.name);
        if let Some(old) = &old
            && old.provider != pool.provider
            && count > 0
        {
            let message = format!(
                "pool \"{}\" has {count} instances of provider \"{}\": drain them first",
                pool.name, old.provider
            );
            return Err(Rejection::InUse(message.into()));
        }
        if !self.state.node_pools.contains(&pool.name) {
            let fed = NodePool {
                name: pool.name.clone(),
                description: "Fed by the instance pool of this name".into(),
                create_index: self.index,
                modify_index: self.index,
                ..NodePool::default()
            };
            self.state.node_pools.put(fed, self.changes);
        }
        let mut row = (**pool).clone();
        row.create_index = old.as_ref().map_or(self.index, |old| old.create_index);
        row.paused = old.as_ref().and_then(|old| old.paused.clone());
        row.modify_index = self.index;
        let row = self.state.instance_pools.put(row, self.changes);
        self.groups_changed(old.as_deref(), Some(&row));
        self.effects.insert(Effect::InstancePool(pool.name.clone()));
        self.forget_unhelped_by(&pool.name);
        if let Some(old) = &old {
            self.forget_changed_types(old, pool);
        }
        let left: Vec<_> = self
            .state
            .instances_of(&pool.name)
            .filter(|row| !pool.types.contains_key(&row.kind.name))
            .filter(|row| row.behavior == Behavior::Run && row.shutdown.is_none())
            .cloned()
            .collect();
        for row in left {
            let reason = format!("type \"{}\" was taken out of the pool", row.kind.name);
            self.behave((*row).clone(), Behavior::Drain, BY_POOL, &reason, &[]);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn delete_instance_pool(&mut self, command: &DeleteInstancePool) -> Outcome {
        let DeleteInstancePool { name } = command;
        let old = self.state.instance_pools.get(name).cloned();
        let old = old.ok_or_else(|| not_found("instance pool"))?;
        let count = self.state.instance_count(name);
        if count > 0 {
            let message = format!(
                "pool \"{name}\" has {count} instances: apply it with min and max 0 and drain them, \
                 then delete it"
            );
            return Err(Rejection::InUse(message.into()));
        }
        self.state.instance_pools.remove(name, self.changes);
        self.groups_changed(Some(&old), None);
        self.remove_limits(name);
        self.state.pool_histories.remove(name, self.changes);
        self.forget_unhelped_by(name);
        self.effects.insert(Effect::InstancePool(name.clone()));
        Ok(Reply::Done)
    }

    fn forget_unhelped_by(&mut self, pool: &Text) {
        let rows = self.state.unhelped.iter().filter(|row| row.pool == *pool);
        for job in rows.map(|row| row.job.clone()).collect::<Vec<_>>() {
            self.state.unhelped.remove(&job, self.changes);
        }
    }

    pub(crate) fn pause_instance_pool(&mut self, command: &PauseInstancePool) -> Outcome {
        let PauseInstancePool { name, pause, by, reason } = command;
        let old = self.state.instance_pools.get(name).ok_or_else(|| not_found("instance pool"))?;
        let mut row = (**old).clone();
        if !pause {
            self.forgive(name);
        }
        row.paused = pause.then(|| Pause { by: clip(by), reason: clip(reason), at: self.at });
        // Not a change of what the pool is: what is known of jobs and types stays.
        self.state.instance_pools.put(row, self.changes);
        self.effects.insert(Effect::InstancePool(name.clone()));
        Ok(Reply::Done)
    }

    /// Takes the intents that the pool has room for, in order; refused if it has for none.
    pub(crate) fn request_instances(&mut self, command: &RequestInstances) -> Outcome {
        let RequestInstances { pool: name, pool_modify_index, intents } = command;
        let found = self.state.instance_pools.get(name).cloned();
        let pool = found.ok_or_else(|| not_found("instance pool"))?;
        if pool.modify_index != *pool_modify_index {
            let (asked, found) = (*pool_modify_index, pool.modify_index);
            return Err(Rejection::IndexConflict { asked, found });
        }
        if pool.paused.is_some() {
            return invalid("the pool is paused");
        }
        let mut refused = None;
        let mut is_any_taken = false;
        let mut taken =
            Taken { strengths: BTreeMap::new(), price_micro: self.state.price_of_pool(name) };
        for intent in intents {
            match self.request_instance(&pool, intent, &mut taken) {
                Ok(()) => is_any_taken = true,
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        // A command that was partly taken is no rejection: that would say that no row changed.
        match refused {
            Some(why) if !is_any_taken => Err(why),
            _ => Ok(Reply::Done),
        }
    }

    fn request_instance(
        &mut self,
        pool: &InstancePool,
        intent: &Intent,
        taken: &mut Taken,
    ) -> Result<(), Rejection> {
        let Intent { id, token, kind, wanted_by, group } = intent;
        let name = &pool.name;
        let room = usize::try_from(pool.max).unwrap_or(usize::MAX);
        if self.state.instance_count(name) >= room {
            return invalid(format!("pool \"{name}\" has its {} instances", pool.max));
        }
        let Some(kind) = pool.types.get(kind) else {
            return invalid(format!("pool \"{name}\" has no type \"{kind}\""));
        };
        if let Some(limit) = self.state.limit_on(name, kind, self.at) {
            return invalid(format!("{}: {}", limit.class.name(), limit.detail));
        }
        self.check_history(pool, &kind.name)?;
        let price_micro = taken.price_micro.saturating_add(kind.price_micro);
        if pool.max_price_micro > 0 && price_micro > pool.max_price_micro {
            return invalid(format!("pool \"{name}\" would cost more than it may"));
        }
        if self.state.instances.contains(id) {
            return invalid("the id of the intent is in use");
        }
        if let Some(name) = group {
            let now = taken.strengths.get(name).copied().unwrap_or_else(|| {
                pool.groups.get(name).map_or_else(Strength::default, |group| self.strength(group))
            });
            let group = self.check_intent(pool, name, now)?;
            let amount = now.amount.saturating_add(group.expected(kind));
            let count = now.count.saturating_add(1);
            taken.strengths.insert(name.clone(), Strength { amount, count });
            self.note_step(&group);
        }
        if !self.state.provider_lists.contains(&pool.provider) {
            let row = ProviderList { provider: pool.provider.clone(), epoch: 0, at: self.at };
            self.state.provider_lists.put(row, self.changes);
        }
        taken.price_micro = price_micro;
        self.count_create(name);
        let deadline_at = self.at.saturating_add(pool.boot_timeout_ms);
        self.put_instance(Instance {
            token: *token,
            wanted_by: wanted_by.clone(),
            member: group.clone().map(|group| Member { group, drain: None, place: None }),
            deadline_at,
            ..self.new_instance(*id, name, &pool.provider, Arc::clone(kind))
        });
        Ok(())
    }

    fn new_instance(
        &self,
        id: InstanceId,
        pool: &Text,
        provider: &Text,
        kind: Arc<InstanceType>,
    ) -> Instance {
        Instance {
            id,
            token: [0; 16],
            pool: pool.clone(),
            provider: provider.clone(),
            kind,
            state: InstanceState::Requested,
            behavior: Behavior::Run,
            behavior_by: "".into(),
            behavior_reason: "".into(),
            drain_deadline_at: None,
            wanted_by: None,
            member: None,
            provider_id: "".into(),
            address: "".into(),
            scope: "".into(),
            node: None,
            requested_at: self.at,
            made_at: 0,
            bound_at: 0,
            ready_at: 0,
            failed_at: 0,
            deadline_at: self.at,
            seen_at: self.at,
            missing: 0,
            last_busy_at: 0,
            last_allocation: None,
            shutdown: None,
            last_words: "".into(),
            create_index: self.index,
            modify_index: self.index,
        }
    }

    pub(crate) fn instance_outcome(&mut self, command: &InstanceOutcome) -> Outcome {
        let InstanceOutcome { id, provider, pool, kind, outcome } = command;
        match outcome {
            CreateOutcome::Made { provider_id, address, scope } => {
                let seen = SeenMachine {
                    id: *id,
                    provider_id: provider_id.clone(),
                    address: address.clone(),
                    pool: pool.clone(),
                    kind: kind.clone(),
                };
                self.see(provider, scope, &seen);
            }
            CreateOutcome::Failed { class, scope, for_ms, detail } => {
                let row = self.instance(*id)?;
                if row.state != InstanceState::Requested {
                    return invalid("the instance is not being made");
                }
                self.remove_instance(&row, &[]);
                self.create_refused(&row);
                let asked_at = row.requested_at;
                let (ms, level) = self.limit_ms(&row.pool, scope, *class, *for_ms, asked_at);
                self.put_limit(&row.pool, scope, (*class, level), ms, detail);
            }
        }
        Ok(Reply::Done)
    }

    pub(crate) fn limit_pool(&mut self, command: &LimitPool) -> Outcome {
        let LimitPool { pool, class, for_ms, detail } = command;
        if !self.state.instance_pools.contains(pool) {
            return Err(not_found("instance pool"));
        }
        self.put_limit(pool, &LimitScope::All, (*class, 0), *for_ms, detail);
        Ok(Reply::Done)
    }

    fn put_limit(
        &mut self,
        pool: &Text,
        scope: &LimitScope,
        (class, level): (LimitClass, u32),
        for_ms: u64,
        detail: &Text,
    ) {
        let is_counted = |row: &&Arc<Instance>| row.kind.is_in(scope);
        let count = self.state.instances_of(pool).filter(is_counted).count();
        let limit = ProviderLimit {
            pool: pool.clone(),
            scope: scope.clone(),
            class,
            since: self.at,
            until: self.at.saturating_add(for_ms.min(limits::PROVIDER_LIMIT_MS_MAX)),
            below: match class {
                LimitClass::Quota => u32::try_from(count).unwrap_or(u32::MAX),
                LimitClass::RateLimited | LimitClass::NoCapacity | LimitClass::Fatal => 0,
            },
            level,
            detail: clip(detail),
            modify_index: self.index,
        };
        self.state.provider_limits.put(limit, self.changes);
        self.effects.insert(Effect::InstancePool(pool.clone()));
    }

    /// A machine is there: by the answer to a create, or by a list.
    fn see(&mut self, provider: &Text, scope: &Text, seen: &SeenMachine) {
        let SeenMachine { id, provider_id, address, .. } = seen;
        let Ok(mut row) = self.instance(*id) else {
            return self.put_stray(*id, provider, scope, seen);
        };
        if !row.provider_id.is_empty() && row.provider_id != *provider_id {
            return self.put_stray(stray_id(provider, provider_id), provider, scope, seen);
        }
        if row.provider_id.is_empty()
            && let Some(holder) = self.holder(provider, provider_id)
        {
            return self.refuse_shared_machine(row, provider_id, holder);
        }
        row.provider_id = provider_id.clone();
        if !address.is_empty() {
            row.address = address.clone();
        }
        row.scope = scope.clone();
        (row.seen_at, row.missing) = (self.at, 0);
        if row.made_at == 0 {
            row.made_at = self.at;
        }
        if row.state == InstanceState::Requested {
            row.state = InstanceState::Booting;
        }
        self.put_instance(row);
    }

    /// The instance whose machine has this id.
    fn holder(&self, provider: &Text, provider_id: &Text) -> Option<InstanceId> {
        let is_it = |row: &&Arc<Instance>| {
            row.provider == *provider && row.provider_id == *provider_id && !provider_id.is_empty()
        };
        self.state.instances.iter().find(is_it).map(|row| row.id)
    }

    /// The provider gave a machine for two keys. It is the first one's, on which something may run:
    /// the second one has none, and its end must not be that of the machine.
    fn refuse_shared_machine(&mut self, mut row: Instance, provider_id: &Text, holder: InstanceId) {
        if row.state != InstanceState::Requested {
            return;
        }
        let reason: Text = format!(
            "the provider answered with machine {provider_id}, which is that of instance {holder}"
        )
        .into();
        self.boot_failed(&mut row, BootFailure::NotMade, &reason);
        row.state = InstanceState::ShuttingDown;
        row.shutdown = Some(Shutdown {
            cause: ShutdownCause::BootFailed,
            reason: clip(&reason),
            by: "".into(),
            at: self.at,
            attempts: 0,
            last_error: "".into(),
        });
        row.missing = 0;
        self.put_instance(row);
    }

    /// A machine that nobody wants is destroyed. One that an instance has is not, whatever its tags
    /// say: they are lost, and the list that shows it so may come after the answer that made it
    /// known.
    fn put_stray(&mut self, id: InstanceId, provider: &Text, scope: &Text, seen: &SeenMachine) {
        let holder = self.holder(provider, &seen.provider_id);
        if let Ok(mut known) = self.instance(holder.unwrap_or(id)) {
            (known.seen_at, known.missing) = (self.at, 0);
            return self.put_instance(known);
        }
        let pool = self.state.instance_pools.get(&seen.pool);
        let kind = pool.and_then(|pool| pool.types.get(&seen.kind)).cloned().unwrap_or_else(|| {
            Arc::new(InstanceType { name: seen.kind.clone(), ..InstanceType::default() })
        });
        let shutdown = Shutdown {
            cause: ShutdownCause::Unknown,
            reason: "no intent stands for this machine".into(),
            by: "".into(),
            at: self.at,
            attempts: 0,
            last_error: "".into(),
        };
        self.put_instance(Instance {
            state: InstanceState::ShuttingDown,
            provider_id: seen.provider_id.clone(),
            address: seen.address.clone(),
            scope: scope.clone(),
            made_at: self.at,
            shutdown: Some(shutdown),
            ..self.new_instance(id, &seen.pool, provider, kind)
        });
    }

    pub(crate) fn observe_instances(&mut self, command: &ObserveInstances) -> Outcome {
        let ObserveInstances {
            provider, epoch, scope, began_at, grace_ms, present, missing, ..
        } = command;
        let last = self.state.provider_lists.get(provider).map_or(0, |list| list.epoch);
        if *epoch <= last {
            return invalid(format!("list {epoch} of \"{provider}\" is not newer than {last}"));
        }
        let row = ProviderList { provider: provider.clone(), epoch: *epoch, at: self.at };
        self.state.provider_lists.put(row, self.changes);
        for seen in present {
            self.see(provider, scope, seen);
        }
        for id in missing {
            let Ok(mut row) = self.instance(*id) else { continue };
            let is_of_scope = row.scope == *scope || row.scope.is_empty();
            // A list shows what was there when it began, however late it is answered, and a create
            // that was given up on may be carried out still.
            let given_up_at = row.shutdown.as_ref().map_or(0, |shutdown| shutdown.at);
            let known_at = row.seen_at.max(given_up_at);
            if row.provider != *provider || !is_of_scope || known_at >= *began_at {
                continue;
            }
            row.missing = row.missing.saturating_add(1);
            let is_gone = row.missing >= limits::LISTS_MISSING_MIN
                && known_at.saturating_add(*grace_ms) <= *began_at;
            if is_gone || is_planted(Plant::OneAbsence) {
                self.instance_vanished(&row);
                self.remove_instance(&row, &command.evaluation_ids);
            } else {
                self.put_instance(row);
            }
        }
        Ok(Reply::Done)
    }

    pub(crate) fn set_instance_behavior(&mut self, command: &SetInstanceBehavior) -> Outcome {
        let SetInstanceBehavior { id, behavior, deadline_ms, by, reason, evaluation_ids } = command;
        let mut row = self.instance(*id)?;
        if row.state == InstanceState::ShuttingDown {
            return invalid("the instance is being shut down");
        }
        if deadline_ms.is_some() && *behavior != Behavior::Drain {
            return invalid("a deadline is of a drain");
        }
        row.drain_deadline_at =
            deadline_ms.map(|ms| self.at.saturating_add(ms.min(limits::NODE_LIFE_MS_MAX)));
        let made = self.behave(row, *behavior, by, reason, evaluation_ids);
        Ok(Reply::Evaluations(made))
    }

    fn behave(
        &mut self,
        mut row: Instance,
        behavior: Behavior,
        by: &str,
        reason: &str,
        ids: &[EvaluationId],
    ) -> Vec<EvaluationId> {
        row.behavior = behavior;
        row.behavior_by = clip(&by.into());
        row.behavior_reason = clip(&reason.into());
        if behavior == Behavior::Run {
            row.last_busy_at = self.at;
        }
        self.member_behaves(&mut row);
        let reason = clip(&reason.into());
        let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        self.put_service(row, &format!("Instance set to {}{why}", behavior.name()), ids)
    }

    /// Stores an instance whose behavior or drain has changed, and what that means for its node.
    pub(crate) fn put_service(
        &mut self,
        row: Instance,
        event: &str,
        ids: &[EvaluationId],
    ) -> Vec<EvaluationId> {
        let (node, is_open) = (row.node, row.is_open());
        let hard = row.member_drain().filter(|drain| drain.hard);
        let wanted = match row.behavior {
            Behavior::Drain => Some(row.drain_deadline_at),
            Behavior::Run => hard.map(|drain| Some(drain.deadline_at)),
            Behavior::Hold => None,
        };
        self.put_instance(row);
        let Some(Ok(mut node)) = node.map(|node| self.node(node)) else { return Vec::new() };
        if let Some(instance) = &mut node.instance {
            instance.open = is_open;
        }
        let is_ours = node.drain.as_ref().is_some_and(|drain| &*drain.owner == DRAIN_OWNER);
        match wanted {
            Some(deadline_at) if node.drain.is_none() => {
                let drain = Drain {
                    started_at: self.at,
                    deadline_at,
                    force: false,
                    ignore_system: false,
                    owner: DRAIN_OWNER.into(),
                    cancelable: true,
                };
                self.begin_drain(&mut node, drain, &BTreeMap::new());
            }
            Some(deadline_at) if is_ours => {
                if let Some(drain) = &mut node.drain {
                    drain.deadline_at = deadline_at;
                }
            }
            None if is_ours => {
                self.end_drain(&mut node, DrainStatus::Canceled, &BTreeMap::new());
            }
            Some(_) | None => {}
        }
        self.event(&mut node, event);
        self.put_node(node.clone());
        if node.is_schedulable() {
            self.gains.insert(node.id);
        }
        let jobs = self.jobs_of_node(&node, Trigger::NodeUpdate);
        self.evaluate(&jobs, Some(&node), ids)
    }

    pub(crate) fn shut_down_instance(&mut self, command: &ShutDownInstance) -> Outcome {
        let ShutDownInstance { id, cause, reason, by, .. } = command;
        let mut row = self.instance(*id)?;
        if row.state == InstanceState::ShuttingDown {
            return Ok(Reply::Done);
        }
        self.state.why_not_shut_down(&row, *cause)?;
        let is_lost = *cause == ShutdownCause::ProbeFailed && self.fell_early(&row);
        let unproven = failure_of(*cause).filter(|_| row.is_unproven());
        if let Some(how) = is_lost.then_some(BootFailure::Vanished).or(unproven) {
            self.boot_failed(&mut row, how, reason);
        }
        self.instance_ran(&row);
        row.state = InstanceState::ShuttingDown;
        row.shutdown = Some(Shutdown {
            cause: *cause,
            reason: clip(reason),
            by: clip(by),
            at: self.at,
            attempts: 0,
            last_error: "".into(),
        });
        // Lists that are older than this say nothing of a machine that may just have been made.
        row.missing = 0;
        let node = row.node;
        self.put_instance(row);
        if let Some(Ok(mut node)) = node.map(|node| self.node(node)) {
            if let Some(instance) = &mut node.instance {
                instance.open = false;
            }
            self.event(&mut node, &format!("Instance is shut down: {}", clip(reason)));
            self.put_node(node);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn destroy_outcome(&mut self, command: &DestroyOutcome) -> Outcome {
        let DestroyOutcome { id, provider_id, gone, error, evaluation_ids } = command;
        let mut row = self.instance(*id)?;
        if row.state != InstanceState::ShuttingDown {
            return invalid("the instance is not being shut down");
        }
        if row.provider_id != *provider_id {
            return invalid("the instance has another machine by now");
        }
        if *gone {
            let made = self.remove_instance(&row, evaluation_ids);
            return Ok(Reply::Evaluations(made));
        }
        if let Some(shutdown) = &mut row.shutdown {
            shutdown.attempts = shutdown.attempts.saturating_add(1);
            shutdown.last_error = clip(error);
        }
        self.put_instance(row);
        Ok(Reply::Done)
    }

    pub(crate) fn note_instance(&mut self, command: &NoteInstance) -> Outcome {
        let NoteInstance { id, address, words } = command;
        let mut row = self.instance(*id)?;
        row.last_words = clip(words);
        if !address.is_empty() {
            row.address = clip(address);
        }
        self.put_instance(row);
        Ok(Reply::Done)
    }

    pub(crate) fn note_unhelped(&mut self, command: &NoteUnhelped) -> Outcome {
        let NoteUnhelped { job, job_modify_index, pool, pool_modify_index, types } = command;
        let is_now =
            self.state.jobs.get(job).is_some_and(|row| row.job_modify_index == *job_modify_index);
        let pool_row = self.state.instance_pools.get(pool);
        if !is_now || pool_row.is_none_or(|row| row.modify_index != *pool_modify_index) {
            return invalid("the job or the pool has changed");
        }
        let known = self.state.found_unhelped(job, *job_modify_index);
        // Another type while the first still holds is the same trial.
        let level = known.map_or(1, |known| {
            let is_over = known.until <= self.at;
            known.level.saturating_add(u32::from(is_over)).min(limits::BACKOFF_LEVEL_MAX)
        });
        let pause_ms = limits::UNHELPED_MS
            .checked_shl(level.saturating_sub(1))
            .unwrap_or(limits::UNHELPED_MS_MAX)
            .min(limits::UNHELPED_MS_MAX);
        self.state.unhelped.put(
            Unhelped {
                until: self.at.saturating_add(pause_ms),
                level,
                job: job.clone(),
                job_modify_index: *job_modify_index,
                pool: pool.clone(),
                pool_modify_index: *pool_modify_index,
                types: types.clone(),
                at: self.at,
            },
            self.changes,
        );
        self.effects.insert(Effect::Job(job.clone()));
        Ok(Reply::Done)
    }

    /// The machine is gone: its node goes with it, and what ran there is lost.
    fn remove_instance(&mut self, row: &Instance, ids: &[EvaluationId]) -> Vec<EvaluationId> {
        self.instance_ran(row);
        self.state.instances.remove(&row.id, self.changes);
        self.state.unindex_instance(row);
        if let Some(group) = row.group() {
            self.forget_deleted(group);
            self.effects.insert(Effect::CapacityGroup(group.clone()));
        }
        self.effects.insert(Effect::Instance(row.id));
        let Some(Ok(node)) = row.node.map(|node| self.node(node)) else { return Vec::new() };
        self.announce(node.id, NodeChange::Reaped, "its machine is gone".into());
        self.forget_node(&node, "the machine of the node is gone", ids)
    }

    /// Whether a registering node is the instance that it says; the instance's row as it becomes.
    pub(crate) fn bind(
        &self,
        node: NodeId,
        known: Option<&Node>,
        pool: &Text,
        proof: InstanceProof,
    ) -> Result<Instance, Rejection> {
        let mut row = self.instance(proof.id)?;
        let other = known.and_then(|known| known.instance).filter(|other| other.id != row.id);
        if row.token != proof.token || row.token == [0; 16] {
            return invalid("the token is not that of the instance");
        }
        if row.node.is_some_and(|bound| bound != node) {
            return invalid("another node is bound to the instance");
        }
        if other.is_some() {
            return invalid("the node is bound to another instance");
        }
        if row.state == InstanceState::ShuttingDown {
            return invalid("the instance is being shut down");
        }
        if *pool != row.pool {
            return invalid(format!("the instance is of pool \"{}\", not \"{pool}\"", row.pool));
        }
        if row.node.is_none() {
            row.node = Some(node);
            row.state = InstanceState::Bound;
            (row.bound_at, row.last_busy_at) = (self.at, self.at);
        }
        (row.seen_at, row.missing) = (self.at, 0);
        Ok(row)
    }

    /// Stores what [`Self::bind`] gave, in the rows of instance and node.
    pub(crate) fn put_binding(&mut self, row: Instance, node: &mut Node) {
        node.instance = Some(NodeInstance { id: row.id, open: row.is_open() });
        self.put_instance(row);
    }

    /// Notes on the node's instance what an allocation there began or ended.
    pub(crate) fn instance_used(&mut self, old: Option<&Allocation>, new: &Allocation) {
        let Some(node) = self.state.nodes.get(&new.node) else { return };
        let Some(NodeInstance { id, .. }) = node.instance else { return };
        let Ok(mut row) = self.instance(id) else { return };
        if self.state.is_of_system_job(new) {
            return;
        }
        if old.is_none() {
            row.last_allocation = Some(new.id);
        } else if new.client.is_terminal() && !self.state.has_work(new.node) {
            row.last_busy_at = self.at;
        } else {
            return;
        }
        self.put_instance(row);
    }

    /// The job is gone.
    pub(crate) fn forget_unhelped(&mut self, job: &crate::id::JobKey) {
        if self.state.unhelped.contains(job) {
            self.state.unhelped.remove(job, self.changes);
        }
    }
}
