//! Streams of allocations as servers push them: what each has said, and whether that is what its server knows.
//!
//! Looked at where a stream leaves its server, so that neither the network nor what agents make of it matters.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use fsm::{AllocationId, ClientStatus, Index, Liveness, NodeId, State};
use ground::rt::{self, Instant};
use proto::v1 as pb;

use crate::{
    verdict,
    world::{World, name},
};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// How long a stream may be silent about what its server knows: to make a message takes no virtual time.
const SILENT_MAX: Duration = Duration::from_secs(2);

/// What a stream said of an allocation last.
#[derive(Clone, Copy, Debug)]
struct Said {
    index: Index,
    run: bool,
    may_start: bool,
}

struct Open {
    /// Number of the server that pushes.
    server: u64,
    node: NodeId,
    incarnation: u64,
    since: Instant,
    /// None before its first message.
    said: Option<BTreeMap<AllocationId, Said>>,
    /// What it should have said, and since when that is known.
    unsaid: Option<(String, Instant)>,
}

#[derive(Default)]
struct Streams {
    opened: u64,
    open: BTreeMap<u64, Open>,
}

thread_local! {
    static STREAMS: RefCell<Streams> = RefCell::default();
}

/// I14: a registration is a write, so its index is above all that was known when it was asked for. It is the least that the agent's streams have to show: below it
/// a server that lags would be believed, and what it does not know yet taken for gone.
pub(crate) fn registered(agent: &str, known: Index, index: Index) {
    if index <= known {
        verdict::fail(format!(
            "I14: {agent} registered at index {index}, and {known} was known before it began"
        ));
    }
}

/// A stream that is open.
pub(crate) struct Stream(u64);

impl Stream {
    /// Begins with a request to the server of this number.
    pub(crate) fn open(server: u64, request: &pb::StreamAllocationsRequest) -> Self {
        let open = Open {
            server,
            node: NodeId::from_slice(&request.node_id).unwrap_or_default(),
            incarnation: request.incarnation,
            since: Instant::now(),
            said: None,
            unsaid: None,
        };
        STREAMS.with_borrow_mut(|streams| {
            streams.opened += 1;
            streams.open.insert(streams.opened, open);
            Self(streams.opened)
        })
    }

    /// A message leaves.
    pub(crate) fn says(&self, batch: &pb::AllocationBatch) {
        STREAMS.with_borrow_mut(|streams| {
            let Some(open) = streams.open.get_mut(&self.0) else { return };
            let said = open.said.get_or_insert_default();
            for one in &batch.allocations {
                let news = Said {
                    index: one.modify_index,
                    run: one.run,
                    may_start: one.task_starts_allowed,
                };
                said.insert(AllocationId::from_slice(&one.id).unwrap_or_default(), news);
            }
        });
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        STREAMS.with_borrow_mut(|streams| streams.open.remove(&self.0));
    }
}

/// How many streams a server, by its number, has kept open since then.
pub(crate) fn open_since(server: u64, since: Instant) -> usize {
    STREAMS.with_borrow(|streams| {
        streams.open.values().filter(|open| open.server == server && open.since <= since).count()
    })
}

/// What a stream has yet to say of what is in this state, if anything: that something is to run, or is not any more, or may be started now.
fn unsaid(state: &State, open: &Open) -> Option<String> {
    let node = state.nodes().get(&open.node).filter(|row| row.incarnation == open.incarnation)?;
    let said = open.said.as_ref()?;
    let unsaid = state.allocations_of_node(open.node).find_map(|row| {
        let what = match said.get(&row.id) {
            // What has ended otherwise its agent has told.
            _ if row.client.is_terminal() && row.client != ClientStatus::Lost => return None,
            None if row.client.is_terminal() => return None,
            Some(said) if row.client.is_terminal() => said.run.then_some("was given up")?,
            None => "is new",
            Some(said) if said.run != row.is_live() => "is wanted, or not, as it was not before",
            Some(said) if said.index < row.server_modify_index => "has changed",
            Some(said) => {
                let may_start = node.liveness != Liveness::Down;
                (may_start && !said.may_start).then_some("may be started")?
            }
        };
        Some(format!("{} {} {what}", row.name(), row.id))
    })?;
    Some(format!("I49: of {} its stream does not say that {unsaid}", node.description.name))
}

/// Looks at all streams, for as long as the run lasts.
pub(crate) async fn watch(world: World) {
    loop {
        rt::sleep(LOOK).await;
        for server in 0..world.count() {
            let Some(core) = world.core(server) else { continue };
            let state = core.cell.load();
            let still = |since| world.stood_still(server, since);
            for what in look(core.id, &state, still) {
                verdict::fail(format!("{what} ({})", name(server)));
            }
        }
    }
}

/// What the streams of a server have kept to themselves for too long. `still`: whether the server stood still at some time since then.
fn look(server: u64, state: &State, still: impl Fn(Instant) -> bool) -> Vec<String> {
    let now = Instant::now();
    let mut found = Vec::new();
    STREAMS.with_borrow_mut(|streams| {
        for open in streams.open.values_mut().filter(|open| open.server == server) {
            let before = open.unsaid.take();
            let Some(what) = unsaid(state, open) else { continue };
            let since = match before {
                Some((same, since)) if same == what && !still(since) => since,
                _ => now,
            };
            if now.duration_since(since) >= SILENT_MAX {
                found.push(what.clone());
            }
            open.unsaid = Some((what, since));
        }
    });
    found
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use fsm::{
        JobKind,
        testing::{self, Driver},
    };

    use super::*;

    /// Says what the server would of this allocation.
    fn say(stream: &Stream, driver: &Driver, id: AllocationId, may_start: bool) {
        let row = driver.state.allocations().get(&id).unwrap();
        stream.says(&pb::AllocationBatch {
            allocations: vec![pb::Allocation {
                id: id.0.to_vec().into(),
                modify_index: row.server_modify_index,
                run: row.is_live(),
                task_starts_allowed: may_start,
                ..pb::Allocation::default()
            }],
            ..pb::AllocationBatch::default()
        });
    }

    #[test]
    fn i14_a_registration_that_is_older_than_what_was_known_is_found() {
        registered("a1", 7, 8);
        assert_eq!(verdict::failures(), Vec::<String>::new());
        registered("a1", 7, 7);
        assert!(verdict::failures()[0].contains("I14"));
    }

    #[tokio::test(start_paused = true)]
    async fn i49_a_stream_that_keeps_to_itself_what_its_server_knows_is_found() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        driver.register_job(testing::job("web", JobKind::Service, 1));
        let id = driver.place("web", 0, node);
        let request = pb::StreamAllocationsRequest {
            node_id: node.0.to_vec().into(),
            incarnation: driver.node_row("n1").incarnation,
            index_min: 0,
        };
        let stream = Stream::open(7, &request);
        let late = SILENT_MAX * 2;
        let after = |driver: &Driver| {
            assert_eq!(look(7, &driver.state, |_| false), Vec::<String>::new(), "at once");
            let state = driver.state.clone();
            async move {
                rt::sleep(late).await;
                look(7, &state, |_| false)
            }
        };
        assert_eq!(after(&driver).await, Vec::<String>::new(), "it has yet to begin");
        stream.says(&pb::AllocationBatch { complete: true, ..pb::AllocationBatch::default() });
        let found = after(&driver).await;
        assert!(found.len() == 1 && found[0].contains("is new"), "{found:?}");
        assert_eq!(look(7, &driver.state, |_| true), Vec::<String>::new(), "it stood still");
        say(&stream, &driver, id, false);
        let found = after(&driver).await;
        assert!(found[0].contains("may be started"), "{found:?}");
        say(&stream, &driver, id, true);
        assert_eq!(after(&driver).await, Vec::<String>::new());

        driver.liveness("n1", Liveness::Down);
        let evaluation = driver.evaluate_job("web");
        driver.commit_plan(driver.plan(evaluation).stopping(id, Some(ClientStatus::Lost)));
        let found = after(&driver).await;
        assert!(found[0].contains("was given up"), "{found:?}");
        say(&stream, &driver, id, true);
        assert_eq!(after(&driver).await, Vec::<String>::new());
        assert_eq!(open_since(7, Instant::now()), 1);
        drop(stream);
        assert_eq!(open_since(7, Instant::now()), 0);
    }
}
