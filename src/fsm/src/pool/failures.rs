//! What comes of machines that were asked for: they serve, or their boot fails and is remembered.

use super::{
    Backoff, BootFailure, Instance, InstancePool, LimitClass, LimitScope, PoolHistory,
    history::pause_ms,
};
use crate::{
    apply::Turn,
    command::Rejection,
    id::{InstanceId, Text},
    limits,
    node::{Liveness, clip},
    plant::{Plant, is_planted},
};

impl Turn<'_> {
    pub(super) fn history(&self, pool: &Text) -> PoolHistory {
        let known = self.state.pool_histories.get(pool).map(|row| (**row).clone());
        known.unwrap_or_else(|| PoolHistory { pool: pool.clone(), ..PoolHistory::default() })
    }

    pub(super) fn put_history(&mut self, mut row: PoolHistory) {
        row.modify_index = self.index;
        self.state.pool_histories.put(row, self.changes);
    }

    /// Whether the pool's past lets it ask for a machine of a type now.
    pub(super) fn check_history(&self, pool: &InstancePool, kind: &Text) -> Result<(), Rejection> {
        let invalid = |why: String| Err(Rejection::Invalid(why.into()));
        let Some(history) = self.state.pool_histories.get(&pool.name) else { return Ok(()) };
        let most = pool.max_creates_per_hour;
        if most > 0 && history.asked_lately(self.at) >= most {
            return invalid(format!("pool \"{}\" has made its {most} of an hour", pool.name));
        }
        if is_planted(Plant::BackoffForgotten) {
            return Ok(());
        }
        if let Some(backoff) = self.state.backoff_on(pool, kind, self.at) {
            return invalid(format!("type \"{kind}\" failed: {}", backoff.last.name()));
        }
        if history.protected_since > 0 && self.state.unproven_of(&pool.name) > 0 {
            return invalid(format!("pool \"{}\" makes one instance at a time", pool.name));
        }
        Ok(())
    }

    /// What is known of types that are not in the pool any more, or not as they were: nothing. A
    /// file that is applied again as it is changes nothing of it.
    pub(super) fn forget_changed_types(&mut self, old: &InstancePool, new: &InstancePool) {
        let Some(known) = self.state.pool_histories.get(&new.name) else { return };
        let is_same = |kind: &Text| old.types.get(kind) == new.types.get(kind);
        if old.types == new.types && old.protect_after == new.protect_after {
            return;
        }
        let mut history = (**known).clone();
        history.types.retain(|kind, _| is_same(kind));
        (history.in_a_row, history.last, history.protected_since) = (0, None, 0);
        self.put_history(history);
    }

    /// Counts a create that is about to be asked for.
    pub(super) fn count_create(&mut self, pool: &Text) {
        let mut history = self.history(pool);
        history.count(self.at);
        self.put_history(history);
    }

    /// A create was refused: nothing was made.
    pub(super) fn create_refused(&mut self, row: &Instance) {
        if !self.state.pool_histories.contains(&row.pool) {
            return;
        }
        let mut history = self.history(&row.pool);
        history.take_out(row.requested_at);
        self.put_history(history);
    }

    /// A machine did not come to serve. The caller stores its row. Once for each machine. One whose
    /// type has changed or went since says nothing of the types that the pool has now.
    pub(super) fn boot_failed(&mut self, row: &mut Instance, how: BootFailure, detail: &Text) {
        let pool = self.state.instance_pools.get(&row.pool).cloned();
        let Some(pool) = pool.filter(|_| row.failed_at == 0) else { return };
        row.failed_at = self.at;
        let kind = &row.kind.name;
        if pool.types.get(kind) != Some(&row.kind) {
            return;
        }
        let mut history = self.history(&pool.name);
        self.count_in_a_row(&mut history, &pool, row, how);
        let known = history.types.remove(kind);
        let backoff = self.raised(&pool, row, known, how, detail);
        history.types.insert(kind.clone(), backoff);
        self.put_history(history);
    }

    fn count_in_a_row(
        &self,
        history: &mut PoolHistory,
        pool: &InstancePool,
        row: &Instance,
        how: BootFailure,
    ) {
        if row.requested_at <= history.proven_at {
            return;
        }
        let is_same = history.last == Some(how);
        history.in_a_row = if is_same { history.in_a_row.saturating_add(1) } else { 1 };
        history.last = Some(how);
        let is_enough = pool.protect_after > 0 && history.in_a_row >= pool.protect_after;
        if is_enough && history.protected_since == 0 {
            history.protected_since = self.at;
        }
    }

    /// The backoff of a type after one more failure. Those of one burst, which were asked for
    /// before the last one that counted was known, count once.
    fn raised(
        &self,
        pool: &InstancePool,
        row: &Instance,
        known: Option<Backoff>,
        how: BootFailure,
        detail: &Text,
    ) -> Backoff {
        let is_over =
            |old: &Backoff| self.state.has_run(pool, &row.kind.name, old.counted_at, self.at);
        let known = known.filter(|old| !is_over(old));
        let mut backoff = known.unwrap_or(Backoff {
            level: 0,
            until: 0,
            counted_at: 0,
            failures: 0,
            last: how,
            detail: "".into(),
            scope: "".into(),
        });
        backoff.failures = backoff.failures.saturating_add(1);
        (backoff.last, backoff.detail, backoff.scope) = (how, clip(detail), row.scope.clone());
        if backoff.level == 0 || row.requested_at > backoff.counted_at {
            backoff.level = backoff.level.saturating_add(1).min(limits::BACKOFF_LEVEL_MAX);
            backoff.counted_at = self.at;
            backoff.until = self.at.saturating_add(backoff.pause_ms());
        }
        backoff
    }

    /// The node of an instance is ready: the first time, its boot has succeeded.
    pub(crate) fn instance_ready(&mut self, id: InstanceId) {
        self.take_place(id);
        let Ok(mut row) = self.instance(id) else { return };
        if row.ready_at > 0 {
            return;
        }
        (row.ready_at, row.failed_at) = (self.at, 0);
        let (name, kind, asked_at) = (row.pool.clone(), row.kind.name.clone(), row.requested_at);
        self.put_instance(row);
        if !self.state.pool_histories.contains(&name) {
            return;
        }
        let mut history = self.history(&name);
        history.proven_at = history.proven_at.max(asked_at);
        (history.in_a_row, history.last, history.protected_since) = (0, None, 0);
        if let Some(mut backoff) = history.types.remove(&kind)
            && backoff.level > 1
        {
            backoff.level = backoff.level.saturating_sub(1);
            let sooner = self.at.saturating_add(backoff.pause_ms());
            backoff.until = backoff.until.min(sooner);
            history.types.insert(kind, backoff);
        }
        self.put_history(history);
    }

    /// The node of an instance is not ready, for a reason that waiting does not end.
    pub(crate) fn instance_not_ready(&mut self, id: InstanceId, why: &Text) {
        let Ok(mut row) = self.instance(id) else { return };
        if row.is_unproven() {
            self.boot_failed(&mut row, BootFailure::NotReady, why);
            self.put_instance(row);
        }
    }

    /// An instance goes: if it has served for long enough, failures from before it count no more.
    pub(super) fn instance_ran(&mut self, row: &Instance) {
        let Some(pool) = self.state.instance_pools.get(&row.pool) else { return };
        if !row.has_served_for(pool.backoff_reset_ms, self.at) {
            return;
        }
        let Some(known) = self.state.pool_histories.get(&row.pool) else { return };
        let backoff = known.types.get(&row.kind.name);
        if backoff.is_some_and(|backoff| row.requested_at > backoff.counted_at) {
            let mut history = (**known).clone();
            history.types.remove(&row.kind.name);
            self.put_history(history);
        }
    }

    /// A machine that was there is gone by itself. One that had served for long is the provider's
    /// to take, and no failed boot.
    pub(super) fn instance_vanished(&mut self, row: &Instance) {
        if row.shutdown.is_none() && (row.ready_at == 0 || self.fell_early(row)) {
            let detail = "no list of its provider has it any more".into();
            self.boot_failed(&mut row.clone(), BootFailure::Vanished, &detail);
        }
    }

    /// It came to serve, and did not for as long as ends a backoff.
    pub(super) fn fell_early(&self, row: &Instance) -> bool {
        // A list that shows what is known writes nothing, so that no list tells when it went.
        let node = row.node.and_then(|node| self.state.nodes.get(&node));
        let silent = node.filter(|node| match node.liveness {
            Liveness::Down | Liveness::Disconnected => true,
            Liveness::Initializing | Liveness::Ready => false,
        });
        let went_at = silent.map_or(self.at, |node| node.missed_at);
        let pool = self.state.instance_pools.get(&row.pool);
        let is_served = pool.is_none_or(|pool| row.has_served_for(pool.backoff_reset_ms, went_at));
        row.ready_at > 0 && row.failed_at == 0 && !is_served
    }

    /// A person says that what was wrong is put right: everything is tried at once.
    pub(super) fn forgive(&mut self, pool: &Text) {
        if self.state.pool_histories.contains(pool) {
            let mut history = self.history(pool);
            history.types.clear();
            (history.in_a_row, history.last, history.protected_since) = (0, None, 0);
            self.put_history(history);
        }
        self.remove_limits(pool);
    }

    pub(super) fn remove_limits(&mut self, pool: &Text) {
        let limits = self.state.provider_limits.iter().filter(|row| row.pool == *pool);
        for scope in limits.map(|row| row.scope.clone()).collect::<Vec<_>>() {
            self.state.provider_limits.remove(&(pool.clone(), scope), self.changes);
        }
    }

    /// How long a refusal holds: as long as its provider says, or by its class; a lack of capacity
    /// of which the provider does not say how long it lasts is asked about with doubled pauses.
    /// Answers with the refusal's level.
    pub(super) fn limit_ms(
        &self,
        pool: &Text,
        scope: &LimitScope,
        class: LimitClass,
        for_ms: Option<u64>,
        asked_at: u64,
    ) -> (u64, u32) {
        if class != LimitClass::NoCapacity {
            return (for_ms.unwrap_or(limits::REFUSAL_MS), 0);
        }
        let old = self.state.provider_limits.get(&(pool.clone(), scope.clone()));
        let old = old.filter(|old| {
            let forgotten_at = old.until.saturating_add(limits::BOOT_BACKOFF_MS_MAX);
            old.class == class && forgotten_at > self.at
        });
        let level = old.map_or(1, |old| {
            let is_burst = asked_at <= old.since;
            let raised = old.level.saturating_add(u32::from(!is_burst));
            raised.clamp(1, limits::BACKOFF_LEVEL_MAX)
        });
        (for_ms.unwrap_or_else(|| pause_ms(level, limits::NO_CAPACITY_MS_MAX)), level)
    }
}
