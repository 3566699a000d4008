//! The real node: which allocations it has, which of them wait for others to end, and which
//! directories are kept. It follows the servers' wishes and decides nothing itself. Each allocation
//! runs in its own shell.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
};

use crate::{
    allocation::{
        collected::Collected,
        runner::AllocationRunner,
        spec::{self, AllocationSpec, TaskSpec},
        state::Loaded,
    },
    executor::survivors::{Survivors, kill_allocation, survivors},
    node::shell::{Order, Ordered, Origin, Shared, Shell, View, Wish, view_of},
    session::{heartbeat::Node, status::not_running},
};
use fsm::AllocationId;
use ground::{
    rt::{self, JoinSet, mpsc, oneshot, watch},
    task::contained_task,
};
use proto::v1;
use wire::rpc::words;

/// How many orders may wait for an allocation.
const ORDERS_MAX: usize = 8;

/// The allocations of this node.
pub struct LocalNode {
    shared: Arc<Shared>,
    ended_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: BTreeMap<AllocationId, Entry>,
    /// Allocations that were received but may not start yet.
    waiting: BTreeMap<AllocationId, Waiting>,
    shells: JoinSet<()>,
    /// The agent ends and has stopped its tasks. It takes no new allocation, because nothing would
    /// stop that.
    suspended: bool,
    /// Number of the newest entry. It gives the order of age for garbage collection.
    received: u64,
    /// Allocations that may have living processes but no readable state: for each task the newest
    /// run known. They are left alone until the servers say whether they are wanted.
    strays: Survivors,
    /// Allocations that were garbage-collected.
    collected: Collected,
}

struct Entry {
    wish: watch::Sender<Wish>,
    orders: mpsc::Sender<Ordered>,
    view: Arc<Mutex<View>>,
    ports: BTreeSet<u16>,
    /// The servers no longer know the allocation. Its directory is deleted once it has ended.
    forgotten: bool,
    /// Restored from disk, and no server has sent its state of the allocation yet.
    unheard: bool,
    received: u64,
}

struct Waiting {
    spec: Arc<AllocationSpec>,
    sequence: u64,
    starts_allowed: bool,
    /// The servers have been told that it waits because the machine is short of a resource.
    is_told: bool,
}

impl Entry {
    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_terminal(&self) -> bool {
        self.view().terminal
    }

    /// Whether the allocation has ended and what prepared it is undone.
    fn is_over(&self) -> bool {
        self.view().over
    }

    fn is_stopping(&self) -> bool {
        self.view().stopping || self.wish.borrow().stop
    }
}

impl LocalNode {
    /// A node with the allocations in the state directory. Running ones go on. Suspended ones wait
    /// for the servers.
    pub(crate) fn restore(shared: Arc<Shared>, ended_max: usize) -> io::Result<Arc<Self>> {
        let loaded = shared.state.load(&shared.stages.rules)?;
        let node = Arc::new(Self { shared, ended_max, inner: Mutex::default() });
        let mut inner = node.lock();
        inner.strays = node.strays(&loaded);
        for allocation in loaded.stored {
            let booted = allocation.boot_id != node.shared.state.boot_id;
            let origin = Origin::Stored { suspended: allocation.suspended, booted };
            node.adopt(&mut inner, allocation.spec, allocation.runner, origin);
        }
        drop(inner);
        Ok(node)
    }

    /// Allocations without readable state that have, or may have, living processes. Folders that
    /// nothing can be running in are deleted.
    fn strays(&self, loaded: &Loaded) -> Survivors {
        let state = &self.shared.state;
        let known: BTreeSet<_> = loaded.stored.iter().map(|stored| stored.spec.id).collect();
        let living = survivors(&state.allocations(), &state.runs());
        let seen = living.is_ok();
        let mut living = living.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot look for processes of allocations");
            Survivors::new()
        });
        for (id, error) in &loaded.unreadable {
            living.entry(*id).or_default();
            tracing::error!(
                allocation = %id, %error,
                "what is stored of an allocation cannot be read: its processes are left alone until the servers say what is to become of it"
            );
        }
        for id in &loaded.unknown {
            if living.contains_key(id) {
                tracing::error!(
                    allocation = %id,
                    "nothing is stored of an allocation that has processes: they are left alone until the servers say what is to become of it"
                );
            } else if !seen {
                living.entry(*id).or_default();
            } else if let Err(error) = state.allocation(*id).remove() {
                // A run is stored before it is started, so without stored state nothing was
                // started.
                tracing::warn!(allocation = %id, %error, "cannot delete the folder of an allocation that nothing is stored of");
            }
        }
        living.retain(|id, _| !known.contains(id));
        living
    }

    /// Takes over an allocation of which only processes are known, now that the servers have sent
    /// its specification.
    fn take_up(&self, inner: &mut Inner, message: &v1::Allocation, found: &BTreeMap<String, u32>) {
        let Ok(spec) = AllocationSpec::parse(message.clone()) else { return };
        let directory = self.shared.state.allocation(spec.id);
        let now = self.shared.clock.now();
        let sequence = message.client_sequence;
        let mut runner = AllocationRunner::new(&spec.policy, spec.id.0, sequence, now);
        let attempt = |task: &TaskSpec| {
            found.get(&task.name).copied().max(directory.last_attempt(&task.name))
        };
        let attempts: Vec<_> = spec.tasks.iter().map(attempt).collect();
        runner.found(&attempts, &self.shared.stages.rules);
        let origin = Origin::Stored { suspended: false, booted: false };
        self.adopt(inner, Arc::new(spec), runner, origin);
    }

    /// Kills the processes of an allocation without stored state that the servers do not want, and
    /// deletes its folders. What its stages left outside them stays: without a specification nobody
    /// knows what that is.
    fn end_stray(&self, id: AllocationId) {
        let directory = self.shared.state.allocation(id);
        rt::spawn(rt::run_blocking(move || {
            match kill_allocation(&directory).and_then(|killed| Ok((killed, directory.remove()?))) {
                Ok((killed, ())) => {
                    tracing::warn!(allocation = %id, killed, "an allocation that the servers do not want was ended");
                }
                Err(error) => {
                    tracing::error!(allocation = %id, %error, "cannot end what is left of an allocation");
                }
            }
        }));
    }

    /// Calls [`Self::settle`] whenever an allocation has ended or a shortage begins or ends. Runs
    /// for ever.
    pub(crate) async fn tend(self: Arc<Self>) {
        let mut shortage = self.shared.shortages.subscribe();
        loop {
            rt::select! {
                biased;
                () = self.shared.ended.notified() => {}
                changed = shortage.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
            self.settle();
        }
    }

    /// Stops all processes, so that the next agent starts them again, and waits until they have
    /// ended.
    pub(crate) async fn suspend(&self) {
        let mut shells = {
            let mut inner = self.lock();
            inner.suspended = true;
            inner.waiting.clear();
            for entry in inner.entries.values() {
                entry.wish.send_modify(|wish| wish.suspend = true);
            }
            std::mem::take(&mut inner.shells)
        };
        while shells.join_next().await.is_some() {}
    }

    /// The view of an allocation.
    pub fn view(&self, id: AllocationId) -> Option<View> {
        self.lock().entries.get(&id).map(|entry| entry.view().clone())
    }

    /// Carries out an order and waits for its result.
    pub async fn order(&self, id: AllocationId, order: Order) -> Result<(), String> {
        self.give(id, order).await?.await.unwrap_or_else(|_| Err(nothing_runs()))
    }

    /// Gives an order to an allocation. Returns the channel on which its result will come.
    pub(crate) async fn give(
        &self,
        id: AllocationId,
        order: Order,
    ) -> Result<oneshot::Receiver<Result<(), String>>, String> {
        let orders = self.lock().entries.get(&id).map(|entry| entry.orders.clone());
        let orders = orders.ok_or_else(|| format!("Unknown allocation \"{id}\""))?;
        let (answer, answered) = oneshot::channel();
        orders.send((order, answer)).await.map_err(|_| nothing_runs())?;
        Ok(answered)
    }

    /// How many allocations have not ended, and how many there are.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.lock();
        let live = inner.entries.values().filter(|entry| !entry.is_terminal()).count();
        let waiting = inner.waiting.len();
        (live.saturating_add(waiting), inner.entries.len().saturating_add(waiting))
    }

    /// The views of all allocations, and how many more wait for their start.
    pub fn views(&self) -> (Vec<View>, usize) {
        let inner = self.lock();
        (inner.entries.values().map(|entry| entry.view().clone()).collect(), inner.waiting.len())
    }

    /// How many tasks are running now.
    pub fn running_tasks(&self) -> u64 {
        let inner = self.lock();
        let running = |entry: &Entry| {
            let view = entry.view();
            let tasks = view.status.tasks.values();
            tasks.filter(|task| task.phase() == v1::TaskPhase::Running).count() as u64
        };
        inner.entries.values().map(running).sum()
    }

    /// How many tasks this agent has ended because their allocations ran longer than
    /// `max_run_duration`.
    pub fn tasks_too_long(&self) -> u64 {
        self.shared.too_long.load(Ordering::Relaxed)
    }

    /// Deletes the files of an ended allocation, or of all, if the servers know the end. Returns
    /// how many allocations that were.
    pub fn collect(&self, of: Option<AllocationId>) -> usize {
        let collected = {
            let mut inner = self.lock();
            let ended = inner.entries.iter_mut().filter(|(id, entry)| {
                of.is_none_or(|of| of == **id)
                    && entry.is_terminal()
                    && self.is_end_known(id, entry)
            });
            ended.map(|(_, entry)| entry.forgotten = true).count()
        };
        self.settle();
        collected
    }

    /// Whether the servers know how the allocation ended.
    fn is_end_known(&self, id: &AllocationId, entry: &Entry) -> bool {
        !entry.unheard && !self.shared.outbox.is_pending(*id)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adopt(
        &self,
        inner: &mut Inner,
        spec: Arc<AllocationSpec>,
        runner: AllocationRunner,
        origin: Origin,
    ) {
        let (wish, wishes) = watch::channel(Wish::default());
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let (id, ports) = (spec.id, spec.ports.iter().map(|port| port.value).collect());
        let unheard = matches!(origin, Origin::Stored { .. });
        let view = if runner.is_over() {
            Arc::new(Mutex::new(view_of(&spec, &runner)))
        } else {
            let shared = Arc::clone(&self.shared);
            let (shell, view) = Shell::new(shared, spec, runner, (wishes, ordered));
            let shared = Arc::clone(&self.shared);
            let alone = run_alone(shared, id, Arc::clone(&view), shell.run(origin));
            rt::spawn_into(&mut inner.shells, alone);
            view
        };
        inner.received = inner.received.saturating_add(1);
        let received = inner.received;
        let entry = Entry { wish, orders, view, ports, forgotten: false, unheard, received };
        inner.entries.insert(id, entry);
    }

    fn take(&self, inner: &mut Inner, message: v1::Allocation) {
        let Some(id) = AllocationId::from_slice(&message.id) else {
            tracing::warn!("a server has sent an allocation without an id");
            return;
        };
        let known = match words::client_status(message.client_status) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(allocation = %id, %error, "an allocation is not taken");
                return;
            }
        };
        let over = known.is_terminal();
        if let Some(found) = inner.strays.remove(&id) {
            self.take_up(inner, &message, &found);
            if !inner.entries.contains_key(&id) {
                self.end_stray(id);
            }
        }
        if let Some(entry) = inner.entries.get_mut(&id) {
            entry.unheard = false;
            let spec = AllocationSpec::parse(message.clone()).ok().map(Arc::new);
            let sequence = if over { 0 } else { message.client_sequence };
            entry.wish.send_if_modified(|wish| {
                let stop = wish.stop || !message.run;
                let start = wish.start || message.run && message.task_starts_allowed;
                let changed = (stop, start) != (wish.stop, wish.start) || sequence > wish.sequence;
                let updated = spec.is_some() && wish.spec != spec;
                wish.stop = stop;
                wish.start = start;
                wish.sequence = wish.sequence.max(sequence);
                if updated {
                    wish.spec = spec;
                }
                changed || updated
            });
            return;
        }
        if let Some(status) = inner.collected.status(id) {
            if !over {
                self.answer(id, &message, status, "ended before, and its files are gone");
            }
            return;
        }
        if over || !message.run {
            inner.waiting.remove(&id);
            if !over {
                self.answer(
                    id,
                    &message,
                    v1::ClientStatus::Complete,
                    "stopped before it was started",
                );
            }
            return;
        }
        let (sequence, starts_allowed) = (message.client_sequence, message.task_starts_allowed);
        match AllocationSpec::parse(message.clone()) {
            Ok(spec) => {
                let known = inner.waiting.get(&id);
                let is_told = known.is_some_and(|known| known.is_told);
                let sequence = known.map_or(0, |known| known.sequence).max(sequence);
                let spec = Arc::new(spec);
                inner.waiting.insert(id, Waiting { spec, sequence, starts_allowed, is_told });
            }
            Err(error) => self.answer(id, &message, v1::ClientStatus::Failed, &error.to_string()),
        }
    }

    /// Reports a status for an allocation that has no shell here.
    fn answer(
        &self,
        id: AllocationId,
        message: &v1::Allocation,
        status: v1::ClientStatus,
        description: &str,
    ) {
        let report = not_running(message, status, description);
        self.shared.outbox.repeat(id, report);
    }

    fn forget(&self, inner: &mut Inner, id: AllocationId) {
        inner.waiting.remove(&id);
        if inner.strays.remove(&id).is_some() {
            self.end_stray(id);
        }
        if let Some(entry) = inner.entries.get_mut(&id) {
            entry.forgotten = true;
            entry.wish.send_modify(|wish| wish.stop = true);
        }
        self.shared.outbox.forget(id);
    }

    /// Starts allocations that need not wait any more, repeats reports that the servers did not
    /// accept, and deletes allocations that are no longer kept.
    fn settle(&self) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        self.report_ends_again(inner);
        while inner.shells.try_join_next().is_some() {}
        let shortage = self.shared.shortages.reason();
        let ready: Vec<_> = inner.waiting.keys().copied().collect();
        for id in ready {
            let Some(waiting) = inner.waiting.get_mut(&id) else { continue };
            if is_blocked(&inner.entries, waiting) {
                continue;
            }
            if !shortage.is_empty() {
                self.refuse(id, waiting, &shortage);
                continue;
            }
            if let Some(waiting) = inner.waiting.remove(&id) {
                let now = self.shared.clock.now();
                let runner =
                    AllocationRunner::new(&waiting.spec.policy, id.0, waiting.sequence, now);
                self.adopt(inner, waiting.spec, runner, Origin::New);
            }
        }
        let doomed = self.doomed(inner);
        for id in &doomed {
            if let Some(entry) = inner.entries.remove(id) {
                inner.collected.add(*id, entry.view().status.client_status());
            }
            self.shared.outbox.forget(*id);
        }
        drop(guard);
        let directories: Vec<_> =
            doomed.into_iter().map(|id| self.shared.state.allocation(id)).collect();
        if !directories.is_empty() {
            rt::spawn(rt::run_blocking(move || {
                for directory in directories {
                    if let Err(error) = directory.remove() {
                        tracing::warn!(directory = %directory.root().display(), %error, "cannot delete an allocation's directory");
                    }
                }
            }));
        }
    }

    /// Tells the servers once that an allocation cannot start yet, because the machine is short of
    /// a resource.
    fn refuse(&self, id: AllocationId, waiting: &mut Waiting, why: &str) {
        if std::mem::replace(&mut waiting.is_told, true) {
            return;
        }
        tracing::info!(allocation = %id, why, "new work is refused until the machine is short no more");
        let (policy, now) = (&waiting.spec.policy, self.shared.clock.now());
        let mut runner = AllocationRunner::new(policy, id.0, waiting.sequence, now);
        runner.waits(&format!("Waits, the machine is short: {why}"), now);
        runner.take_changed();
        waiting.sequence = runner.sequence;
        self.shared.outbox.report(id, runner.status(policy, id.0));
    }

    /// Reports an end again if the servers have a sequence number at least as high, because then
    /// they ignored the report as old. That happens when an agent could not store a status that it
    /// reported: after a restart it counts from a lower number. An ended allocation changes no
    /// more, so nothing else would raise the number.
    fn report_ends_again(&self, inner: &Inner) {
        for (id, entry) in &inner.entries {
            let known = entry.wish.borrow().sequence;
            let mut view = entry.view();
            if view.terminal && view.status.sequence <= known {
                view.status.sequence = known.saturating_add(1);
                self.shared.outbox.repeat(*id, view.status.clone());
            }
        }
    }

    /// The ended allocations to delete: those that the servers have forgotten, and the oldest
    /// beyond the limit if the servers know their ends.
    fn doomed(&self, inner: &Inner) -> Vec<AllocationId> {
        let ended = inner.entries.iter().filter(|(_, entry)| entry.is_over());
        let (forgotten, kept): (Vec<_>, Vec<_>) = ended.partition(|(_, entry)| entry.forgotten);
        let is_known = |(id, entry): &(&AllocationId, &Entry)| self.is_end_known(id, entry);
        let mut kept: Vec<_> = kept.into_iter().filter(is_known).collect();
        kept.sort_by_key(|(_, entry)| entry.received);
        let excess = kept.len().saturating_sub(self.ended_max);
        forgotten.into_iter().chain(kept.into_iter().take(excess)).map(|(id, _)| *id).collect()
    }
}

/// Runs the shell of an allocation. If it panics, only this allocation fails: its processes are
/// killed, and it is reported as failed.
async fn run_alone(
    shared: Arc<Shared>,
    id: AllocationId,
    view: Arc<Mutex<View>>,
    shell: impl Future<Output = ()>,
) {
    if rt::is_simulation() {
        return shell.await;
    }
    let Err(panic) = contained_task(shell).await else { return };
    tracing::error!(allocation = %id, panic, "QUORATE-INVARIANT: an allocation cannot be run, its processes are ended");
    let directory = shared.state.allocation(id);
    let killed = directory.clone();
    match rt::run_blocking(move || kill_allocation(&killed)).await {
        Ok(_) => {
            let spec = Arc::clone(&view.lock().unwrap_or_else(PoisonError::into_inner).spec);
            shared.stages.undo_all(&spec, &directory).await;
        }
        // The processes may still use what prepared them.
        Err(error) => {
            tracing::error!(allocation = %id, %error, "cannot end the processes of an allocation");
        }
    }
    let status = {
        let mut view = view.lock().unwrap_or_else(PoisonError::into_inner);
        (view.terminal, view.over) = (true, true);
        let status = &mut view.status;
        status.sequence = status.sequence.saturating_add(1);
        status.set_client_status(v1::ClientStatus::Failed);
        status.description = format!("the agent cannot run it: {panic}");
        for task in status.tasks.values_mut() {
            task.set_phase(v1::TaskPhase::Dead);
            task.failed = true;
        }
        status.clone()
    };
    shared.outbox.repeat(id, status);
    shared.ended.notify_one();
}

fn nothing_runs() -> String {
    "Task not running".to_owned()
}

/// Whether the allocation must wait: for another allocation to end that has one of its ports, that
/// it replaces, or that is evicted for it; or for the servers to allow its start.
fn is_blocked(entries: &BTreeMap<AllocationId, Entry>, waiting: &Waiting) -> bool {
    let by_other = entries.iter().find(|(id, entry)| {
        let shares = waiting.spec.ports.iter().any(|port| entry.ports.contains(&port.value));
        let replaced = waiting.spec.previous == Some(**id) && entry.is_stopping();
        let evicted = waiting.spec.preempted.contains(*id) && entry.is_stopping();
        // What prepared it may hold the port, too.
        (shares || replaced || evicted) && !entry.is_over()
    });
    if let Some((id, _)) = by_other {
        tracing::debug!(allocation = %waiting.spec.id, other = %id, "waits for the end of another allocation");
    } else if !waiting.starts_allowed {
        tracing::info!(allocation = %waiting.spec.id, "waits until the servers allow its tasks to start");
    }
    by_other.is_some() || !waiting.starts_allowed
}

impl Node for LocalNode {
    async fn apply(&self, batch: v1::AllocationBatch) {
        {
            let mut inner = self.lock();
            if inner.suspended {
                return;
            }
            let present = batch.complete.then(|| spec::present(&batch));
            for allocation in batch.allocations {
                self.take(&mut inner, allocation);
            }
            let mut gone: Vec<_> =
                batch.removed.iter().filter_map(|id| AllocationId::from_slice(id)).collect();
            if let Some(present) = present {
                // For the servers, an allocation outside the complete set has ended or does not
                // exist.
                for (id, entry) in inner.entries.iter_mut().filter(|(id, _)| !present.contains(id))
                {
                    entry.unheard = false;
                    if !entry.is_terminal() {
                        entry.wish.send_modify(|wish| wish.stop = true);
                        self.shared.outbox.forget(*id);
                    }
                }
                // The set leaves out ended allocations, including those that the servers gave up
                // while the machine was away. Those keep their folders up to the limit. Only
                // allocations without a shell are deleted now.
                let known = inner.waiting.keys().chain(inner.strays.keys());
                gone.extend(known.filter(|id| !present.contains(id)).copied());
            }
            for id in gone {
                self.forget(&mut inner, id);
            }
        }
        self.settle();
    }

    fn report_all(&self) {
        for (id, entry) in &self.lock().entries {
            self.shared.outbox.repeat(*id, entry.view().status.clone());
        }
    }
}

#[cfg(test)]
mod tests;
