//! The published state: readers take a snapshot without waiting, waiters are woken by table, leader
//! services subscribe to effects.
//!
//! Invariant: a published index never goes back, and an effect is handed out only after the state
//! that it came from is published.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use fsm::{Effect, Index, NodeId, State, table::TableId};
use ground::{
    plant::{Plant, is_planted},
    rt::{Instant, Notify, timeout, watch},
};

/// Batches of effects that may wait for a subscriber; above it the subscriber is told to start
/// over.
const EFFECT_BATCHES_MAX: usize = 65_536;
/// Old states that wait to be dropped.
const REAPING_MAX: usize = 16;

/// Effects since a subscriber last asked.
#[derive(Debug, Default)]
pub struct EffectBatch {
    /// In log order.
    pub effects: Vec<(Index, Effect)>,
    /// Something was missed (overflow or an installed snapshot): derive everything from the state.
    pub reset: bool,
}

#[derive(Default)]
struct Feed {
    subscribed: u64,
    /// Invariant: true while the newest subscription exists. Effects that nobody will take are not
    /// kept.
    is_taken: bool,
    queue: VecDeque<(Index, Vec<Effect>)>,
    reset: bool,
}

/// Holds the published state.
pub struct StateCell {
    state: ArcSwap<State>,
    applied: watch::Sender<Index>,
    tables: BTreeMap<TableId, Notify>,
    feed: Mutex<Feed>,
    fed: Notify,
    nodes: Mutex<BTreeMap<NodeId, Weak<Notify>>>,
    /// Never notified.
    never: Notify,
    reaper: Option<std::sync::mpsc::SyncSender<Arc<State>>>,
}

impl StateCell {
    /// A cell that holds `state`.
    pub fn new(state: State) -> Arc<Self> {
        let applied = watch::channel(state.index()).0;
        let reaper = if ground::rt::is_simulation() { None } else { spawn_reaper() };
        Arc::new(Self {
            state: ArcSwap::from_pointee(state),
            applied,
            tables: TableId::ALL.into_iter().map(|table| (table, Notify::new())).collect(),
            feed: Mutex::default(),
            fed: Notify::new(),
            nodes: Mutex::default(),
            never: Notify::new(),
            reaper,
        })
    }

    /// The state now.
    pub fn load(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// The applied index now.
    pub fn applied(&self) -> Index {
        *self.applied.borrow()
    }

    /// Publishes a state with the effects that led to it.
    pub fn publish(&self, state: State, effects: Vec<(Index, Vec<Effect>)>, reset: bool) {
        let index = state.index();
        let changed: Vec<TableId> = {
            let old = self.state.load();
            TableId::ALL
                .into_iter()
                .filter(|table| reset || old.table_index(*table) != state.table_index(*table))
                .collect()
        };
        let nodes = nodes_of(&effects);
        {
            let mut feed = self.feed();
            let old = self.state.swap(Arc::new(state));
            self.reap(old);
            if feed.is_taken {
                feed.reset |= reset;
                feed.queue.extend(effects.into_iter().filter(|(_, list)| !list.is_empty()));
                if feed.queue.len() > EFFECT_BATCHES_MAX {
                    feed.queue.clear();
                    feed.reset = true;
                }
            }
        }
        self.applied.send_replace(index);
        self.fed.notify_waiters();
        // Looked up after the swap: a watcher that came before the swap may have seen the old
        // state, a watcher that comes later sees the new one.
        for node in self.watchers(&nodes, reset) {
            node.notify_waiters();
        }
        for table in changed {
            if let Some(notify) = self.tables.get(&table) {
                notify.notify_waiters();
            }
        }
    }

    /// Publishes a state of which nobody is told: the wake-up is lost.
    #[cfg(any(test, feature = "testing"))]
    pub fn publish_unheard(&self, state: State) {
        let index = state.index();
        self.state.store(Arc::new(state));
        self.applied.send_if_modified(|applied| {
            *applied = index;
            false
        });
    }

    /// Notified when allocations of the node, or the node itself, changed.
    pub fn watch_node(&self, node: NodeId) -> Arc<Notify> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = nodes.get(&node).and_then(Weak::upgrade) {
            return watch;
        }
        nodes.retain(|_, watch| watch.strong_count() > 0);
        let watch = Arc::new(Notify::new());
        nodes.insert(node, Arc::downgrade(&watch));
        watch
    }

    fn watchers(&self, changed: &BTreeSet<NodeId>, all: bool) -> Vec<Arc<Notify>> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if all {
            return nodes.values().filter_map(Weak::upgrade).collect();
        }
        changed.iter().filter_map(|node| nodes.get(node)?.upgrade()).collect()
    }

    fn feed(&self) -> std::sync::MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops an old state on the reaper's thread. A large state takes up to hundreds of
    /// milliseconds to drop, and neither `apply` nor an answer should wait for that.
    fn reap(&self, old: Arc<State>) {
        if let Some(reaper) = &self.reaper {
            // When the reaper is behind, the state is dropped here: that slows the writer and
            // bounds the memory.
            drop(reaper.try_send(old));
        }
    }

    /// Starts a subscription: the state, and every effect after it. An earlier subscription ends.
    pub fn subscribe(self: &Arc<Self>) -> (Arc<State>, EffectFeed) {
        let mut feed = self.feed();
        feed.subscribed += 1;
        feed.is_taken = true;
        feed.queue.clear();
        feed.reset = false;
        let number = feed.subscribed;
        (self.load(), EffectFeed { cell: Arc::clone(self), number })
    }

    /// Waits until the applied index is at least `index`; false when `wait` passed before.
    pub async fn wait_for(&self, index: Index, wait: Duration) -> bool {
        if self.applied() >= index {
            return true;
        }
        let mut applied = self.applied.subscribe();
        timeout(wait, applied.wait_for(|applied| *applied >= index))
            .await
            .is_ok_and(|seen| seen.is_ok())
    }

    /// Waits until one of the tables changed after `after`, or `wait` passed.
    pub async fn changed(&self, tables: &[TableId], after: Index, wait: Duration) {
        let deadline = Instant::now() + wait;
        loop {
            if is_planted(Plant::LateRegistration) {
                let state = self.load();
                if tables.iter().any(|table| state.table_index(*table) > after) {
                    return;
                }
                ground::rt::sleep(Duration::from_millis(1)).await;
            }
            let mut waits: Vec<_> = tables
                .iter()
                .filter_map(|table| self.tables.get(table))
                .map(|notify| Box::pin(notify.notified()))
                .collect();
            for wait in &mut waits {
                // Registered before the check, so that a change between the two wakes us.
                wait.as_mut().enable();
            }
            let state = self.load();
            let changed = tables.iter().any(|table| state.table_index(*table) > after)
                && !is_planted(Plant::LateRegistration);
            if changed {
                return;
            }
            drop(state);
            // Without tables there is nothing to hear of, and the wait lasts to its end.
            waits.push(Box::pin(self.never.notified()));
            let any = futures_util::future::select_all(waits);
            if timeout(deadline.saturating_duration_since(Instant::now()), any).await.is_err() {
                return;
            }
        }
    }
}

fn spawn_reaper() -> Option<std::sync::mpsc::SyncSender<Arc<State>>> {
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Arc<State>>(REAPING_MAX);
    let reap = move || while receiver.recv().is_ok() {};
    let spawned = std::thread::Builder::new().name("state-reaper".to_owned()).spawn(reap);
    match spawned {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "no thread for dropping old states: they are dropped in place");
            None
        }
    }
}

/// A subscription to effects.
pub struct EffectFeed {
    cell: Arc<StateCell>,
    number: u64,
}

impl EffectFeed {
    /// Waits for effects and takes all there are; none when another subscription took over.
    pub async fn next(&mut self) -> Option<EffectBatch> {
        loop {
            let more = self.cell.fed.notified();
            let mut more = std::pin::pin!(more);
            more.as_mut().enable();
            {
                let mut feed = self.cell.feed();
                if feed.subscribed != self.number {
                    return None;
                }
                if feed.reset || !feed.queue.is_empty() {
                    let effects = std::mem::take(&mut feed.queue)
                        .into_iter()
                        .flat_map(|(index, list)| list.into_iter().map(move |one| (index, one)))
                        .collect();
                    return Some(EffectBatch { effects, reset: std::mem::take(&mut feed.reset) });
                }
            }
            more.await;
        }
    }
}

impl Drop for EffectFeed {
    fn drop(&mut self) {
        let mut feed = self.cell.feed();
        if feed.subscribed == self.number {
            feed.is_taken = false;
            feed.queue = VecDeque::new();
        }
    }
}

/// The nodes that effects are about.
fn nodes_of(effects: &[(Index, Vec<Effect>)]) -> BTreeSet<NodeId> {
    let mut nodes = BTreeSet::new();
    for effect in effects.iter().flat_map(|(_, list)| list) {
        if let Effect::Node(node) | Effect::NodeAllocations(node) = effect {
            nodes.insert(*node);
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use fsm::state::Head;
    use futures_util::FutureExt;

    use super::*;
    use ground::plant::must_catch;

    fn at(index: Index, table: Option<TableId>) -> State {
        let mut state = State::default();
        let tables = table.map(|table| (table.byte(), index)).into_iter().collect();
        state.load_done(Head { index, tables, ..Head::default() });
        state
    }

    #[tokio::test]
    async fn a_waiter_is_woken_by_its_table_only() {
        let cell = StateCell::new(at(1, None));
        let other = Arc::clone(&cell);
        let waiter = tokio::spawn(async move {
            other.changed(&[TableId::Jobs], 1, Duration::from_secs(10)).await;
            other.applied()
        });
        tokio::task::yield_now().await;
        cell.publish(at(2, Some(TableId::Nodes)), vec![], false);
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished(), "a change of another table woke it");
        cell.publish(at(3, Some(TableId::Jobs)), vec![], false);
        assert_eq!(waiter.await.expect("the waiter does not panic"), 3);
        cell.changed(&[TableId::Jobs], 2, Duration::from_secs(10)).await;
    }

    /// A change between the check and the registration must not be missed.
    fn a_change_beside_a_look_is_seen() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let cell = StateCell::new(at(1, None));
            let waiter = cell.changed(&[TableId::Jobs], 1, Duration::from_hours(1));
            let change = async {
                cell.publish(at(2, Some(TableId::Jobs)), vec![], false);
            };
            // The waiter is polled first; the change comes during its first wait. A waiter that was
            // woken is done before the timeout is checked, however late that is.
            let both = futures_util::future::join(waiter, change);
            let woken = timeout(Duration::from_millis(300), both).await;
            assert!(woken.is_ok(), "it slept through the change");
        });
    }

    #[test]
    fn a_change_wakes_whoever_looked_before_it() {
        a_change_beside_a_look_is_seen();
        must_catch(Plant::LateRegistration, a_change_beside_a_look_is_seen);
    }

    #[test]
    fn a_watcher_that_comes_before_the_state_is_woken() {
        let cell = StateCell::new(at(1, None));
        let node = NodeId([7; 16]);
        // The publisher stops at the lock of the feed, before the new state is visible. On a busy
        // machine it may not have begun yet: the test holds then as well.
        let feed = cell.feed();
        let publisher = {
            let cell = Arc::clone(&cell);
            let effects = vec![(2, vec![Effect::NodeAllocations(node)])];
            std::thread::spawn(move || cell.publish(at(2, None), effects, false))
        };
        std::thread::sleep(Duration::from_millis(50));
        let watch = cell.watch_node(node);
        let mut changed = std::pin::pin!(watch.notified());
        changed.as_mut().enable();
        assert_eq!(cell.load().index(), 1);
        drop(feed);
        publisher.join().expect("the publisher does not panic");
        assert!(changed.now_or_never().is_some(), "it saw the old state and sleeps on");
    }

    /// An agent has to know of both changes.
    #[test]
    fn a_change_of_a_node_or_of_its_allocations_wakes_who_watches_it() {
        let cell = StateCell::new(at(1, None));
        let [node, other] = [7, 8].map(|byte| NodeId([byte; 16]));
        for (index, effect) in [(2, Effect::Node(node)), (3, Effect::NodeAllocations(node))] {
            let [watch, beside] = [node, other].map(|of| cell.watch_node(of));
            let mut changed = std::pin::pin!(watch.notified());
            let mut unchanged = std::pin::pin!(beside.notified());
            changed.as_mut().enable();
            unchanged.as_mut().enable();
            cell.publish(at(index, None), vec![(index, vec![effect])], false);
            assert!(changed.now_or_never().is_some(), "at {index}");
            assert!(unchanged.now_or_never().is_none(), "at {index}");
        }
    }

    #[tokio::test]
    async fn without_tables_a_waiter_waits_to_its_end() {
        let cell = StateCell::new(at(1, Some(TableId::Jobs)));
        let other = Arc::clone(&cell);
        let waiter =
            tokio::spawn(async move { other.changed(&[], 0, Duration::from_hours(1)).await });
        tokio::task::yield_now().await;
        cell.publish(at(2, Some(TableId::Jobs)), vec![], true);
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished(), "it was woken by nothing it waits for");
        waiter.abort();
        cell.changed(&[], 0, Duration::from_millis(1)).await;
    }

    #[tokio::test]
    async fn a_feed_hands_out_effects_in_order_and_ends_with_the_next_subscription() {
        let cell = StateCell::new(at(1, None));
        let (state, mut feed) = cell.subscribe();
        assert_eq!(state.index(), 1);
        let effect = Effect::SchedulerConfiguration;
        cell.publish(at(2, None), vec![(2, vec![effect.clone()])], false);
        let batch = feed.next().await.expect("still subscribed");
        assert_eq!((batch.effects, batch.reset), (vec![(2, effect)], false));
        cell.publish(at(3, None), vec![], true);
        assert!(feed.next().await.expect("still subscribed").reset);
        let (_, mut newer) = cell.subscribe();
        assert!(feed.next().await.is_none());
        cell.publish(at(4, None), vec![(4, vec![Effect::DigestMark])], false);
        assert_eq!(newer.next().await.expect("subscribed").effects.len(), 1);
    }

    /// Otherwise a server that led once would keep the effects of tens of thousands of entries.
    #[tokio::test]
    async fn effects_that_nobody_takes_any_more_are_not_kept() {
        let cell = StateCell::new(at(1, None));
        let publish = |index| {
            let effects = vec![(index, vec![Effect::SchedulerConfiguration])];
            cell.publish(at(index, None), effects, false);
        };
        let (_, feed) = cell.subscribe();
        publish(2);
        assert_eq!(cell.feed().queue.len(), 1);
        drop(feed);
        publish(3);
        assert_eq!(cell.feed().queue.len(), 0);

        let (_, older) = cell.subscribe();
        let (_, mut newer) = cell.subscribe();
        publish(4);
        drop(older);
        publish(5);
        let batch = newer.next().await.expect("the newer one stands");
        assert_eq!(batch.effects.len(), 2);
    }
}
