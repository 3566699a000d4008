//! The stream of a node's allocations: the whole set once, then what changes, from the local state.
//!
//! Must never build more than the next message: every allocation in a message has a copy of its
//! job's meta, environment and configuration, and a node has thousands of allocations.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use fsm::{
    Allocation, AllocationId, ClientStatus, Index, JobSpec, Liveness, NodeId, State, TaskGroup,
    Text,
    job::{HealthCheck, RestartPolicy},
};
use ground::{caller::Caller, rt::mpsc};
use prost::Message;
use proto::v1 as pb;
use tonic::Status;
use wire::{
    api::{AgentApi, ReadMode},
    rpc::words,
};

use super::state_that_knows;

/// How long a stream waits for the state that its node has already seen on another server.
const CATCH_UP: Duration = Duration::from_secs(2);
/// Time between two checks whether this server is still in touch.
const TOUCH_CHECK: Duration = Duration::from_secs(1);
/// Allocations in one message.
const BATCH_MAX: usize = 500;
/// Size of the allocations in one message, bytes; a single one may exceed it. Agents take 64 MiB.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// What an agent was told about an allocation.
#[derive(Clone, Copy)]
struct Told {
    modify_index: Index,
    starts_allowed: bool,
}

impl Told {
    /// Whether the agent need not be told `now`. It need not be told either that starts are no
    /// longer allowed: an allocation that was started goes on.
    fn covers(self, now: Self) -> bool {
        self.modify_index == now.modify_index && (self.starts_allowed || !now.starts_allowed)
    }
}

/// Sends the whole set once, then every change. Never sends a state older than the node was shown
/// before. Ends when the agent goes away or registers another incarnation, and when this server
/// loses touch with the others: the agent would miss what the others decide.
pub(super) async fn push_allocations(
    api: &dyn AgentApi,
    caller: &Caller,
    node: NodeId,
    request: &pb::StreamAllocationsRequest,
    sender: &mpsc::Sender<Result<pb::AllocationBatch, Status>>,
) -> Result<(), Status> {
    let mut stop = api.stopping();
    let out_of_touch = || Status::unavailable("this server has lost touch with the others");
    if !api.is_in_touch() {
        return Err(out_of_touch());
    }
    if !api.published().wait_for(request.index_min, CATCH_UP).await {
        // This server lags, or no server has that index: they were restored from an older copy.
        let now = api.read(caller, ReadMode::Linearizable, 0, CATCH_UP).await?;
        if now.state.index() < request.index_min {
            let message = "the node was shown what the servers do not have any more";
            return Err(Status::not_found(message));
        }
    }
    let mut sent = BTreeMap::new();
    let mut complete = true;
    let watch = api.published().watch_node(node);
    loop {
        let changed = watch.notified();
        let mut changed = std::pin::pin!(changed);
        changed.as_mut().enable();
        let state = state_that_knows(api, caller, node, request.incarnation).await?;
        let row = state.nodes().get(&node).ok_or_else(|| Status::not_found("node not found"))?;
        let row = Arc::clone(row);
        let mut news = batches(&state, &row, &mut sent, &mut complete);
        let oversubscription = state.scheduler_configuration().memory_oversubscription;
        drop(state);
        let message = |(one, spec): &(Arc<Allocation>, Arc<JobSpec>)| {
            allocation(one, spec, &row, oversubscription)
        };
        while let Some(batch) = news.next_batch(message) {
            if sender.send(Ok(batch)).await.is_err() {
                return Ok(());
            }
        }
        // A quiet stream waits here for long and must not hold the rows.
        drop((row, news));
        loop {
            ground::rt::select! {
                biased;
                () = ground::rt::until_true(&mut stop) => return Err(Status::unavailable("the server is stopping")),
                () = sender.closed() => return Ok(()),
                () = &mut changed => break,
                () = ground::rt::sleep(TOUCH_CHECK) => if !api.is_in_touch() {
                    return Err(out_of_touch());
                },
            }
        }
    }
}

/// Rows in messages of a bounded size, made one at a time.
struct Batches<T> {
    /// The next message, still without its allocations; `None` after the last message.
    next: Option<pb::AllocationBatch>,
    /// Rows that are not sent yet, in order.
    rows: VecDeque<T>,
}

impl<T> Batches<T> {
    /// The next message, with as many rows as fit. Only the first one lists the removed
    /// allocations, so that no allocation starts beside the one that it replaces.
    fn next_batch(
        &mut self,
        allocation: impl Fn(&T) -> pb::Allocation,
    ) -> Option<pb::AllocationBatch> {
        let mut batch = self.next.take()?;
        let mut bytes = 0;
        while let Some(row) = self.rows.front() {
            let one = allocation(row);
            let more = one.encoded_len();
            let is_full = batch.allocations.len() >= BATCH_MAX || bytes + more > BATCH_BYTES_MAX;
            if is_full && !batch.allocations.is_empty() {
                // The allocation that does not fit is made again for the next message.
                let index = batch.index;
                self.next = Some(pb::AllocationBatch { index, ..pb::AllocationBatch::default() });
                break;
            }
            bytes += more;
            batch.allocations.push(one);
            self.rows.pop_front();
        }
        Some(batch)
    }
}

/// What the agent was not told yet. The rows are shared with the state, not copied.
fn batches(
    state: &State,
    node: &fsm::Node,
    sent: &mut BTreeMap<AllocationId, Told>,
    complete: &mut bool,
) -> Batches<(Arc<Allocation>, Arc<JobSpec>)> {
    let starts_allowed = may_start(node);
    let mut news = Vec::new();
    let mut present = BTreeSet::new();
    // A node keeps far more that has ended: nothing here goes over that.
    for row in state.open_allocations_of_node(node.id) {
        present.insert(row.id);
        let told = Told { modify_index: row.server_modify_index, starts_allowed };
        if sent.get(&row.id).is_some_and(|before| before.covers(told)) {
            continue;
        }
        let Some(spec) = state.allocation_spec(row) else { continue };
        sent.insert(row.id, told);
        news.push((Arc::clone(row), Arc::clone(spec)));
    }
    for id in sent.keys().filter(|id| !present.contains(id)) {
        // The servers declared it lost while the node was silent, and it may still run: the agent
        // is told once. Every other end was reported by the agent itself.
        let lost = state.allocations().get(id).filter(|row| row.client == ClientStatus::Lost);
        if let Some(row) = lost
            && let Some(spec) = state.allocation_spec(row)
        {
            news.push((Arc::clone(row), Arc::clone(spec)));
        }
    }
    // Ends before starts: an allocation that waits for another to end has to know that it ends.
    news.sort_by_key(|(row, _)| row.is_live());
    // An allocation that ended is not removed: the agent keeps its logs until it collects them
    // itself. An allocation that is gone from the state is removed.
    let gone: Vec<AllocationId> =
        sent.keys().filter(|id| !state.allocations().contains(id)).copied().collect();
    for id in &gone {
        sent.remove(id);
    }
    sent.retain(|id, _| present.contains(id));
    let complete = std::mem::take(complete);
    let is_said = complete || !news.is_empty() || !gone.is_empty();
    let next = is_said.then(|| pb::AllocationBatch {
        index: state.index(),
        complete,
        removed: gone.iter().map(|id| id.0.to_vec().into()).collect(),
        present: news
            .iter()
            .filter(|_| complete)
            .map(|(row, _)| row.id.0.to_vec().into())
            .collect(),
        allocations: Vec::new(),
    });
    Batches { next, rows: news.into() }
}

/// A node that is down is about to lose its allocations: it starts nothing until the servers have
/// heard from it again.
fn may_start(node: &fsm::Node) -> bool {
    node.liveness != Liveness::Down
}

fn restart(policy: RestartPolicy) -> pb::RestartPolicy {
    pb::RestartPolicy {
        attempts: policy.attempts,
        interval_ms: policy.interval_ms,
        delay_ms: policy.delay_ms,
        fail: policy.fail,
    }
}

fn strings(maps: &[&BTreeMap<Text, Text>]) -> BTreeMap<String, String> {
    let pairs = maps.iter().flat_map(|map| map.iter());
    pairs.map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn allocation(
    row: &Allocation,
    spec: &JobSpec,
    node: &fsm::Node,
    oversubscription: bool,
) -> pb::Allocation {
    let group = spec.group(&row.group);
    let tasks = group.map(|group| group.tasks.as_slice()).unwrap_or_default();
    let update = group.and_then(|group| group.update);
    let wants_payload = tasks.iter().any(|task| !task.dispatch_payload.is_empty());
    let payload = spec.dispatch.as_ref().filter(|_| wants_payload).map(|row| row.payload.clone());
    // A person says it of the others.
    let is_watched = update.is_some_and(|update| update.health_check != HealthCheck::Manual);
    let watched = row.deployment.filter(|_| is_watched);
    let delay_ms = |ms: u64| if row.transition.no_shutdown_delay { 0 } else { ms };
    pb::Allocation {
        id: row.id.0.to_vec().into(),
        namespace: row.job.namespace.to_string(),
        job_id: row.job.id.to_string(),
        job_name: spec.name.to_string(),
        job_kind: words::job_kind_to_pb(spec.kind).into(),
        job_version: row.job_version,
        group: row.group.to_string(),
        name: row.name(),
        name_index: row.name_index,
        run: row.is_live(),
        modify_index: row.server_modify_index,
        tasks: tasks
            .iter()
            .map(|task| pb::Task {
                name: task.name.to_string(),
                driver: task.driver.to_string(),
                user: task.user.to_string(),
                config_json: task.config_json.to_string(),
                env: strings(&[&task.env]),
                meta: strings(&[&task.meta]),
                cpu_mhz: task.resources.cpu_mhz,
                memory_mb: task.resources.memory_mb,
                memory_max_mb: task.resources.memory_mb_max_given(oversubscription),
                cores: 0,
                kill_timeout_ms: task.kill_timeout_ms,
                kill_signal: task.kill_signal.to_string(),
                leader: task.leader,
                shutdown_delay_ms: delay_ms(task.shutdown_delay_ms),
                restart: Some(restart(task.restart)),
                log_files_max: task.logs.files_max,
                log_file_mb_max: task.logs.file_mb_max,
                logs_disabled: task.logs.disabled,
                dispatch_payload: task.dispatch_payload.to_string(),
            })
            .collect(),
        ports: row
            .ports
            .iter()
            .map(|port| pb::Port {
                label: port.label.to_string(),
                value: u32::from(port.value),
                to: u32::from(port.to),
            })
            .collect(),
        address: node.description.resources.address.to_string(),
        restart: group.map(|group| restart(group.restart)),
        disk_mb: group.map_or(0, |group| group.disk_mb),
        shutdown_delay_ms: group.map_or(0, |group| delay_ms(group.shutdown_delay_ms)),
        max_run_ms: group.map_or(0, |group| group.max_run_ms),
        region: spec.region.to_string(),
        payload: payload.unwrap_or_default().into(),
        datacenter: node.description.datacenter.to_string(),
        job_parent_id: row.job.parent().unwrap_or_default().to_owned(),
        preempted_ids: row.preempted.iter().map(|id| id.0.to_vec().into()).collect(),
        previous_id: row.previous.map(|id| id.0.to_vec()).unwrap_or_default().into(),
        eval_id: row.evaluation.0.to_vec().into(),
        meta: meta_of(spec, group),
        client_status: words::client_status_to_pb(row.client).into(),
        client_sequence: row.client_sequence,
        task_starts_allowed: may_start(node),
        deployment_id: watched.map(|own| own.id.0.to_vec()).unwrap_or_default().into(),
        healthy_ms_min: update.map_or(0, |update| update.healthy_ms_min),
        healthy_deadline_ms: update.map_or(0, |update| update.healthy_deadline_ms),
    }
}

/// The meta of a job under that of its group, with what a dispatch may have given and did not.
fn meta_of(spec: &JobSpec, group: Option<&TaskGroup>) -> BTreeMap<String, String> {
    let mut meta = strings(&[&spec.meta, group.map_or(&spec.meta, |group| &group.meta)]);
    for key in spec.meta_left_out() {
        meta.entry(key.to_string()).or_default();
    }
    meta
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use fsm::{
        JobKind,
        job::{DispatchJob, Dispatched, Parameterized},
        testing::{self, Driver},
    };

    use super::*;

    /// What the stream of a node sends.
    fn messages(
        driver: &Driver,
        sent: &mut BTreeMap<AllocationId, Told>,
        complete: &mut bool,
    ) -> Vec<pb::AllocationBatch> {
        let node = driver.node_row("n1");
        let batches = batches(&driver.state, node, sent, complete);
        all(batches, |(row, spec)| allocation(row, spec, node, false))
    }

    fn all<T>(
        mut batches: Batches<T>,
        allocation: impl Fn(&T) -> pb::Allocation,
    ) -> Vec<pb::AllocationBatch> {
        std::iter::from_fn(|| batches.next_batch(&allocation)).collect()
    }

    fn sized(bytes: usize) -> pb::Allocation {
        pb::Allocation { name: "x".repeat(bytes), ..Default::default() }
    }

    /// What the next messages say of each allocation: whether it is to run, and its status.
    fn news(
        driver: &Driver,
        sent: &mut BTreeMap<AllocationId, Told>,
        complete: &mut bool,
    ) -> Vec<(bool, ClientStatus)> {
        let all = messages(driver, sent, complete).into_iter().flat_map(|batch| batch.allocations);
        let status = |one: &pb::Allocation| words::client_status(one.client_status).ok();
        all.filter_map(|one| Some((one.run, status(&one)?))).collect()
    }

    fn lengths(batches: &[pb::AllocationBatch]) -> Vec<usize> {
        batches.iter().map(|batch| batch.allocations.len()).collect()
    }

    #[test]
    fn memory_beyond_what_is_reserved_is_given_where_oversubscription_is_on() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        let mut job = testing::job("web", JobKind::Service, 1);
        job.groups[0].tasks[0].resources.memory_mb_max = 999;
        driver.register_job(job);
        let id = driver.place("web", 0, node);
        let row = driver.state.allocations().get(&id).expect("it is there");
        let spec = driver.state.allocation_spec(row).expect("it has a job");
        for (oversubscription, given) in [(false, 0), (true, 999)] {
            let message = allocation(row, spec, driver.node_row("n1"), oversubscription);
            assert_eq!(message.tasks[0].memory_max_mb, given);
        }
    }

    #[test]
    fn an_agent_that_was_silent_hears_once_what_was_given_up_meanwhile() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        driver.register_job(testing::job("web", JobKind::Service, 2));
        let [first, second] = [0, 1].map(|number| driver.run("web", number, node));
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        let running = (true, ClientStatus::Running);
        assert_eq!(news(&driver, &mut sent, &mut complete), [running, running]);

        driver.liveness("n1", Liveness::Down);
        let evaluation = driver.evaluate_job("web");
        let lost = Some(ClientStatus::Lost);
        driver.commit_plan(driver.plan(evaluation).stopping(first, lost).stopping(second, lost));
        driver.liveness("n1", Liveness::Initializing);
        let given_up = (false, ClientStatus::Lost);
        assert_eq!(news(&driver, &mut sent, &mut complete), [given_up, given_up]);
        assert_eq!(news(&driver, &mut sent, &mut complete), []);
        // A new stream was never told of these allocations: its whole set leaves them out.
        assert_eq!(news(&driver, &mut BTreeMap::new(), &mut true), []);
    }

    #[test]
    fn an_allocation_reported_as_ended_is_not_sent_back() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        driver.register_job(testing::job("work", JobKind::Batch, 1));
        let id = driver.run("work", 0, node);
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        assert_eq!(news(&driver, &mut sent, &mut complete).len(), 1);
        driver.report(id, ClientStatus::Complete);
        assert_eq!(news(&driver, &mut sent, &mut complete), []);
        assert_eq!(sent.len(), 0);
    }

    #[test]
    fn an_allocation_held_back_while_its_node_was_down_is_sent_again_when_it_may_start() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        driver.register_job(testing::job("web", JobKind::Service, 1));
        driver.place("web", 0, node);
        driver.liveness("n1", Liveness::Down);
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        let mut starts = |driver: &Driver| -> Vec<bool> {
            let batches = messages(driver, &mut sent, &mut complete);
            let all = batches.iter().flat_map(|batch| &batch.allocations);
            all.map(|one| one.task_starts_allowed).collect()
        };
        let nothing = Vec::<bool>::new();
        assert_eq!(starts(&driver), [false]);
        assert_eq!(starts(&driver), nothing);
        driver.liveness("n1", Liveness::Initializing);
        assert_eq!(starts(&driver), [true]);
        driver.liveness("n1", Liveness::Down);
        assert_eq!(starts(&driver), nothing, "what was started goes on");
        driver.liveness("n1", Liveness::Initializing);
        assert_eq!(starts(&driver), nothing);
    }

    #[test]
    fn a_large_set_takes_several_messages_of_which_the_first_names_all_of_it() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        let mut large = testing::job("web", JobKind::Service, 8);
        large.meta.insert("large".into(), "x".repeat(700_000).into());
        driver.register_job(large);
        let ids: BTreeSet<_> = (0..8).map(|number| driver.place("web", number, node)).collect();
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        let batches = messages(&driver, &mut sent, &mut complete);
        assert_eq!(lengths(&batches), [5, 3]);
        let [first, second] = batches.as_slice() else { unreachable!("two lengths") };
        assert!(first.complete && !second.complete);
        assert_eq!(first.index, second.index);
        let named: BTreeSet<_> =
            first.present.iter().filter_map(|id| AllocationId::from_slice(id)).collect();
        assert_eq!(named, ids);
        assert_eq!(second.present.len(), 0);
        let said = batches.iter().flat_map(|batch| &batch.allocations);
        let said: BTreeSet<_> = said.filter_map(|one| AllocationId::from_slice(&one.id)).collect();
        assert_eq!(said, ids);
        assert_eq!(messages(&driver, &mut sent, &mut complete), []);
    }

    #[test]
    fn a_message_is_bounded_by_bytes_and_by_count_and_holds_at_least_one() {
        let split_up = |allocations: Vec<pb::Allocation>| {
            let removed = vec![vec![1; 16].into()];
            let next = Some(pb::AllocationBatch { index: 7, removed, ..Default::default() });
            let rows = VecDeque::from(allocations);
            let batches = all(Batches { next, rows }, pb::Allocation::clone);
            assert!(batches.iter().all(|batch| batch.index == 7 && !batch.complete));
            let removed: Vec<_> = batches.iter().map(|batch| batch.removed.len()).collect();
            assert_eq!(
                (removed[0], removed.iter().sum::<usize>()),
                (1, 1),
                "said once, at the beginning"
            );
            lengths(&batches)
        };
        assert_eq!(split_up(Vec::new()), [0]);
        assert_eq!(split_up(vec![sized(1); BATCH_MAX + 1]), [BATCH_MAX, 1]);
        assert_eq!(split_up(vec![sized(1_500_000); 5]), [2, 2, 1]);
        let too_large = sized(BATCH_BYTES_MAX + 1);
        assert_eq!(split_up(vec![sized(1), too_large, sized(1), sized(1)]), [1, 1, 2]);
    }

    #[test]
    fn a_message_is_made_when_it_is_asked_for_and_no_more_than_it_takes() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        let mut large = testing::job("web", JobKind::Service, 8);
        large.meta.insert("large".into(), "x".repeat(700_000).into());
        driver.register_job(large);
        for number in 0..8 {
            driver.place("web", number, node);
        }
        let row = driver.node_row("n1");
        let mut batches = batches(&driver.state, row, &mut BTreeMap::new(), &mut true);
        let made = Cell::new(0_usize);
        let build = |(one, spec): &(Arc<Allocation>, Arc<JobSpec>)| {
            made.set(made.get() + 1);
            allocation(one, spec, row, false)
        };
        let mut said = Vec::new();
        while let Some(batch) = batches.next_batch(build) {
            said.push((batch.allocations.len(), made.take()));
        }
        assert_eq!(said, [(5, 6), (3, 3)], "of those made one at most does not fit");
    }

    #[test]
    fn ends_are_sent_before_starts() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        driver.register_job(testing::job("web", JobKind::Service, 2));
        // Rows are ordered by id, and this one has a lower id than the one that ends.
        let placement = driver.placement(testing::GROUP, 1, node);
        let (starts, ends) = (placement.id, driver.run("web", 0, node));
        let (mut sent, mut complete) = (BTreeMap::new(), true);
        assert_eq!(news(&driver, &mut sent, &mut complete).len(), 1);
        let evaluation = driver.evaluate_job("web");
        driver.commit_plan(driver.plan(evaluation).with(placement).stopping(ends, None));
        let batches = messages(&driver, &mut sent, &mut complete);
        let said = batches.iter().flat_map(|batch| &batch.allocations);
        let said: Vec<_> = said.map(|one| (AllocationId::from_slice(&one.id), one.run)).collect();
        assert_eq!(said, [(Some(ends), false), (Some(starts), true)]);
    }

    #[test]
    fn meta_of_job_and_group_is_sent_once_and_not_with_every_task() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        let mut spec = testing::job("web", JobKind::Service, 1);
        let pair = |(key, value): (&str, &str)| (Text::from(key), Text::from(value));
        spec.meta = [("a", "job"), ("b", "job"), ("c", "job")].map(pair).into();
        spec.groups[0].meta = [("b", "group"), ("c", "group")].map(pair).into();
        spec.groups[0].tasks[0].meta.insert("c".into(), "task".into());
        driver.register_job(spec);
        driver.place("web", 0, node);
        let batches = messages(&driver, &mut BTreeMap::new(), &mut true);
        let one = &batches[0].allocations[0];
        let shown = |meta: &BTreeMap<String, String>| -> Vec<String> {
            meta.iter().map(|(key, value)| format!("{key}={value}")).collect()
        };
        assert_eq!(shown(&one.meta), ["a=job", "b=group", "c=group"]);
        assert_eq!(shown(&one.tasks[0].meta), ["c=task"]);
    }

    /// A key that a dispatch may give is there for the tasks of each child, empty where it was left
    /// out.
    #[test]
    fn meta_that_a_dispatch_left_out_is_empty() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        let block = Parameterized {
            payload: "optional".into(),
            meta_optional: ["given", "out", "of_group"].map(Text::from).into(),
            ..Parameterized::default()
        };
        let mut spec = testing::job("t", JobKind::Batch, 1);
        spec.parameterized = Some(block);
        spec.groups[0].meta.insert("of_group".into(), "1".into());
        let evaluation = driver.evaluation_id();
        driver.accept(testing::register(spec, evaluation));
        let child = Dispatched {
            id: "t/dispatch-1700000000-00000001".into(),
            payload: Vec::new(),
            meta: [("given".into(), "2".into())].into(),
            priority: None,
            token: "".into(),
            evaluation: driver.evaluation_id(),
        };
        let command = DispatchJob { parent: testing::job_key("t"), children: vec![child] };
        driver.accept(command.into());
        driver.place("t/dispatch-1700000000-00000001", 0, node);
        let batches = messages(&driver, &mut BTreeMap::new(), &mut true);
        let meta = &batches[0].allocations[0].meta;
        let shown = ["given", "out", "of_group"].map(|key| meta.get(key).map(String::as_str));
        assert_eq!(shown, [Some("2"), Some(""), Some("1")]);
    }
}
