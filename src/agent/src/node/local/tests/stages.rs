//! Stages on a node: agents that are killed in each of them, what waits for an undo, and what ends
//! a stage that takes long.

use std::{
    collections::BTreeSet,
    fs,
    io::{Error, ErrorKind},
    path::PathBuf,
};

use futures_util::{FutureExt, future::BoxFuture};
use serde_json::Value;
use tokio::task::yield_now;

use super::*;
use crate::{
    allocation::{
        preparation::{Again, Scope},
        state::StateError,
    },
    stage::{Abandoned, Stage, StageContext, StageEntry, StageError, Undo},
    task::{action::StageId, run::Fault},
};

const ID: AllocationId = AllocationId([1; 16]);
const TASKS: [&str; 2] = ["a", "b"];
/// Two stages of the allocation and three of each task leave a file.
const FILES: usize = 2 + 3 * TASKS.len();

/// A point in the work of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Point {
    stage: &'static str,
    task: Option<usize>,
    is_undo: bool,
    /// Before the work, or when it is done and the agent has not heard of that.
    is_before: bool,
}

/// What the stages of a test and the test share.
#[derive(Default)]
struct Probe {
    /// Stands for the machine outside the allocation's directory.
    outside: PathBuf,
    /// A stage that comes to this point waits there.
    stop_at: Mutex<Option<Point>>,
    reached: Notify,
    released: Notify,
    /// What was called, in order: stage, task, and "prepare", "again" or "undo".
    calls: Mutex<Vec<(&'static str, Option<usize>, &'static str)>>,
}

impl Probe {
    fn new(outside: PathBuf, stop_at: Option<Point>) -> &'static Self {
        let probe = Self { outside, stop_at: Mutex::new(stop_at), ..Self::default() };
        Box::leak(Box::new(probe))
    }

    fn calls(&self, undos: bool) -> Vec<(&'static str, Option<usize>, &'static str)> {
        let calls = self.calls.lock().unwrap().clone();
        calls.into_iter().filter(|(_, _, what)| (*what == "undo") == undos).collect()
    }

    async fn pass(&self, point: Point) {
        let is_here = *self.stop_at.lock().unwrap() == Some(point);
        if is_here {
            self.reached.notify_one();
            self.released.notified().await;
        }
    }

    /// The list of the agent with these stages of its own, each of which waits where it should, and
    /// further ones that leave something outside.
    fn stages(&'static self) -> Stages {
        let own = Stages::all();
        let count = u8::try_from(own.rules.names().len()).unwrap();
        let own = (0..count).map(|stage| *own.entry(StageId(stage)));
        let outside = |name, scope, again| {
            let work: &'static Outside = Box::leak(Box::new(Outside { name, probe: self }));
            let (stage, undo) = (work as &dyn Stage, Some(work as &dyn Undo));
            StageEntry { name, scope, again, undo, failure: "cannot prepare it", stage }
        };
        let others = [
            outside("network", Scope::Allocation, Again::AfterBoot),
            outside("volume", Scope::Allocation, Again::Never),
            outside("mount", Scope::Task, Again::Never),
            outside("device", Scope::Task, Again::AfterBoot),
            outside("watch", Scope::Task, Again::AfterAgent),
        ];
        let all = own.chain(others).map(|entry| {
            let probed: &'static Probed = Box::leak(Box::new(Probed { entry, probe: self }));
            let undo = entry.undo.map(|_| probed as &dyn Undo);
            StageEntry { stage: probed, undo, ..entry }
        });
        Stages::of(Box::leak(all.collect()))
    }
}

/// A stage that leaves a file outside the directory.
struct Outside {
    name: &'static str,
    probe: &'static Probe,
}

impl Outside {
    fn file(&self, context: &StageContext) -> PathBuf {
        let task = context.place.map_or("", |_| &context.task().name);
        self.probe.outside.join(format!("{} {} {task}", context.spec.id, self.name))
    }
}

impl Stage for Outside {
    fn prepare<'a>(
        &'a self,
        context: &'a StageContext,
        again: bool,
        _abandoned: Abandoned,
    ) -> BoxFuture<'a, Result<(), StageError>> {
        async move { Ok(fs::write(self.file(context), if again { "again" } else { "new" })?) }
            .boxed()
    }
}

impl Undo for Outside {
    fn undo<'a>(&'a self, context: &'a StageContext) -> BoxFuture<'a, io::Result<()>> {
        async move {
            match fs::remove_file(self.file(context)) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed,
            }
        }
        .boxed()
    }
}

/// A stage with points at which it waits.
struct Probed {
    entry: StageEntry,
    probe: &'static Probe,
}

impl Stage for Probed {
    fn prepare<'a>(
        &'a self,
        context: &'a StageContext,
        again: bool,
        mut abandoned: Abandoned,
    ) -> BoxFuture<'a, Result<(), StageError>> {
        let Self { entry, probe } = self;
        let (stage, task) = (entry.name, context.place);
        let what = if again { "again" } else { "prepare" };
        let point = move |is_before| Point { stage, task, is_undo: false, is_before };
        async move {
            probe.calls.lock().unwrap().push((stage, task, what));
            rt::select! {
                biased;
                () = probe.pass(point(true)) => {}
                () = &mut abandoned => {
                    let why = "no longer wanted".to_owned();
                    return Err(StageError { why, fault: Fault::Task });
                }
            }
            entry.stage.prepare(context, again, abandoned).await?;
            probe.pass(point(false)).await;
            Ok(())
        }
        .boxed()
    }
}

impl Undo for Probed {
    fn undo<'a>(&'a self, context: &'a StageContext) -> BoxFuture<'a, io::Result<()>> {
        let Self { entry, probe } = self;
        let (stage, task) = (entry.name, context.place);
        let point = move |is_before| Point { stage, task, is_undo: true, is_before };
        async move {
            probe.calls.lock().unwrap().push((stage, task, "undo"));
            probe.pass(point(true)).await;
            let undo = entry.undo.ok_or_else(|| Error::other("it has no undo"))?;
            undo.undo(context).await?;
            probe.pass(point(false)).await;
            Ok(())
        }
        .boxed()
    }
}

fn message(run: bool) -> v1::Allocation {
    let mut message = testing::message(ID.0, "job", &TASKS);
    message.payload = b"hello".to_vec().into();
    message.tasks[0].dispatch_payload = "in/put".to_owned();
    v1::Allocation { run, ..message }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let comes = async {
        while !is_so() {
            yield_now().await;
        }
    };
    timeout(Duration::from_mins(1), comes).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn is_running(node: &LocalNode) -> bool {
    node.view(ID).is_some_and(|view| {
        view.status.tasks.values().all(|task| task.phase() == v1::TaskPhase::Running)
    })
}

/// The agent is killed: it gets to do nothing more. File work that has begun ends first, if the
/// runtime has one thread for that.
async fn kill(node: Arc<LocalNode>) {
    let mut shells = std::mem::take(&mut node.lock().shells);
    shells.shutdown().await;
    rt::run_blocking(|| ()).await;
    assert_eq!(Arc::strong_count(&node), 1);
}

/// Opens the directory. A child that another test has just forked holds the lock of the last agent
/// until it becomes another program.
async fn open(directory: &Path, boot: u8) -> StateDirectory {
    let mut opened = None;
    until("the directory is free", || {
        match StateDirectory::open_in_boot(directory, [boot; 16]) {
            Err(StateError::Locked(_)) => {}
            other => opened = Some(other.unwrap().0),
        }
        opened.is_some()
    })
    .await;
    opened.unwrap()
}

/// What the state on disk says: the stages that are begun, and the calls with which an agent that
/// starts now completes the preparation.
struct Expected {
    begun: BTreeSet<(&'static str, Option<usize>)>,
    prepares: BTreeSet<(&'static str, Option<usize>, &'static str)>,
}

fn expected(directory: &Path, stages: &Stages, booted: bool) -> Expected {
    let file = directory.join(format!("runs/{ID}/state.json"));
    let stored: Option<Value> =
        fs::read(file).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap());
    let preparations = stored.map(|stored| stored["runner"]["preparations"].clone());
    let (mut begun, mut prepares) = (BTreeSet::new(), BTreeSet::new());
    for task in [None, Some(0), Some(1)] {
        let scope = if task.is_some() { Scope::Task } else { Scope::Allocation };
        let sets = preparations.as_ref().map(|all| match task {
            Some(task) => &all["tasks"][task],
            None => &all["allocation"],
        });
        for stage in stages.rules.of_scope(scope).iter() {
            let entry = stages.entry(stage);
            let is_in = |set: &str| {
                sets.is_some_and(|sets| sets[set].as_u64().unwrap() >> stage.0 & 1 == 1)
            };
            if is_in("begun") {
                begun.insert((entry.name, task));
            }
            let is_lost = match entry.again {
                Again::Never => false,
                Again::AfterBoot => booted,
                Again::AfterAgent => true,
            };
            if is_in("done") && (is_lost || is_in("due")) {
                prepares.insert((entry.name, task, "again"));
            } else if !is_in("done") {
                prepares.insert((entry.name, task, "prepare"));
            }
        }
    }
    Expected { begun, prepares }
}

/// How many undos there are if all stages were begun.
fn undos(stages: &Stages) -> usize {
    let scopes = [(Scope::Allocation, 1), (Scope::Task, TASKS.len())];
    let of_scope = |(scope, times): (Scope, usize)| {
        let stages = stages.rules.of_scope(scope).iter().map(|stage| stages.entry(stage));
        times * stages.filter(|entry| entry.undo.is_some()).count()
    };
    scopes.into_iter().map(of_scope).sum()
}

fn points(stages: &Stages) -> Vec<Point> {
    let mut points = Vec::new();
    for task in [None, Some(0), Some(1)] {
        let scope = if task.is_some() { Scope::Task } else { Scope::Allocation };
        for stage in stages.rules.of_scope(scope).iter() {
            let entry = stages.entry(stage);
            for is_undo in [false, true].into_iter().filter(|is| !*is || entry.undo.is_some()) {
                for is_before in [true, false] {
                    points.push(Point { stage: entry.name, task, is_undo, is_before });
                }
            }
        }
    }
    points
}

/// The allocation is stopped, or was already: all is undone, once, and in the right order.
async fn ends(node: &LocalNode, probe: &Probe, begun: usize, at: &str) {
    node.apply(whole(vec![message(false)], &[1])).await;
    until(at, || node.view(ID).is_some_and(|view| view.over)).await;
    assert!(node.shared.outbox.is_pending(ID), "{at}: its end is told");
    assert_eq!(fs::read_dir(&probe.outside).unwrap().count(), 0, "{at}: something is left");
    let undos = probe.calls(true);
    assert_eq!(undos.len(), begun, "{at}: each is undone once: {undos:?}");
    let names: Vec<_> = node.shared.stages.rules.names();
    let place = |name: &str| names.iter().position(|other| other == name);
    for (number, (stage, task, _)) in undos.iter().enumerate() {
        let too_early = undos[number..].iter().find(|(other, of, _)| {
            (of == task && place(other) > place(stage)) || (task.is_none() && of.is_some())
        });
        assert_eq!(too_early, None, "{at}: {stage} is undone before it");
    }
    let directory = node.shared.state.allocation(ID);
    node.settle();
    assert!(directory.root().exists(), "{at}: the directory stays until it is collected");
    let removed = vec![ID.0.to_vec().into()];
    node.apply(v1::AllocationBatch { removed, ..Default::default() }).await;
    until(at, || !directory.root().exists() && !directory.runs().exists()).await;
}

/// The first agent is killed at the point, the second one finds its way.
async fn check(point: Point, booted: bool) {
    let at = format!("{point:?}, booted: {booted}");
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let probe = Probe::new(outside.path().to_owned(), Some(point));
    let node = node_with(open(root.path(), 1).await, probe.stages());
    node.apply(whole(vec![message(true)], &[1])).await;
    if point.is_undo {
        until(&at, || is_running(&node)).await;
        node.apply(whole(vec![message(false)], &[1])).await;
    }
    timeout(Duration::from_mins(1), probe.reached.notified()).await.expect("it comes there");
    let ran = if point.task == Some(0) && !point.is_undo && !booted {
        // The other task starts without the one that waits, and goes on.
        let status = || node.view(ID).unwrap().status;
        until(&at, || status().tasks["b"].phase() == v1::TaskPhase::Running).await;
        true
    } else {
        false
    };
    kill(node).await;

    let boot = if booted { 2 } else { 1 };
    let probe = Probe::new(outside.path().to_owned(), None);
    let stages = probe.stages();
    let expected = expected(root.path(), &stages, booted);
    let leaves = |name: &str| {
        let rules = (0..).map(StageId).zip(stages.rules.names());
        rules.into_iter().any(|(stage, of)| of == name && stages.entry(stage).undo.is_some())
    };
    // Whatever is outside is in the stored state.
    let begun = expected.begun.iter().filter(|(name, _)| leaves(name)).count();
    assert!(fs::read_dir(outside.path()).unwrap().count() <= begun, "{at}");
    let node = node_with(open(root.path(), boot).await, stages.clone());
    if point.is_undo {
        let status = node.view(ID).unwrap();
        assert!(status.terminal && !status.over, "{at}");
        // As after each registration.
        node.report_all();
        ends(&node, probe, begun, &at).await;
        assert_eq!(probe.calls(false), [], "{at}: nothing is prepared");
        return;
    }
    node.apply(whole(vec![message(true)], &[1])).await;
    let count = expected.prepares.len();
    until(&at, || is_running(&node) && probe.calls(false).len() >= count).await;
    let calls = probe.calls(false);
    assert_eq!(calls.len(), count, "{at}: each once: {calls:?}");
    assert_eq!(calls.into_iter().collect::<BTreeSet<_>>(), expected.prepares, "{at}");
    assert_eq!(probe.calls(true), [], "{at}: nothing is undone");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), FILES, "{at}");
    let directory = node.shared.state.allocation(ID);
    assert_eq!(fs::read(directory.task("a").join("local/in/put")).unwrap(), b"hello", "{at}");
    if ran {
        let status = node.view(ID).unwrap().status;
        let starts = status.tasks["b"].events.iter().filter(|event| event.kind == "Started");
        assert_eq!(starts.count(), 1, "{at}: what ran goes on");
    }
    ends(&node, probe, undos(&stages), &at).await;
}

#[test]
fn an_agent_that_is_killed_in_any_stage_or_undo_finds_its_way() {
    let points = points(&Probe::new(PathBuf::new(), None).stages());
    assert!(points.len() > 40, "{}", points.len());
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    for booted in [false, true] {
        for point in &points {
            runtime.block_on(check(*point, booted));
        }
    }
}

fn at(stage: &'static str, task: Option<usize>, is_undo: bool) -> Point {
    Point { stage, task, is_undo, is_before: true }
}

/// Its end is told at once. What needs its port waits on this node.
#[tokio::test]
async fn an_allocation_waits_for_a_port_until_the_stages_of_its_holder_are_undone() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let probe = Probe::new(outside.path().to_owned(), Some(at("network", None, true)));
    let node = node_with(open(root.path(), 1).await, probe.stages());
    let port = v1::Port { label: "web".to_owned(), value: 7_001, ..Default::default() };
    let on = |allocation| v1::Allocation { ports: vec![port.clone()], ..allocation };
    node.apply(whole(vec![on(message(true))], &[1])).await;
    until("it runs", || is_running(&node)).await;
    let tending = tokio::spawn(Arc::clone(&node).tend());
    let allocations = vec![on(message(false)), on(endless(2))];
    node.apply(whole(allocations, &[1, 2])).await;
    timeout(Duration::from_mins(1), probe.reached.notified()).await.unwrap();
    let view = node.view(ID).unwrap();
    assert_eq!(view.status.client_status(), v1::ClientStatus::Complete);
    assert!(view.terminal && node.shared.outbox.is_pending(ID), "the servers are told");
    let removed = vec![ID.0.to_vec().into()];
    node.apply(v1::AllocationBatch { removed, ..Default::default() }).await;
    assert_eq!(started(&node), [(1, true)], "the second waits for the undo");
    let directory = node.shared.state.allocation(ID);
    assert!(directory.root().exists(), "the undo needs the directory");
    probe.released.notify_one();
    until("the second starts", || started(&node) == [(2, false)]).await;
    until("the directory of the first is deleted", || !directory.root().exists()).await;
    tending.abort();
}

#[tokio::test]
async fn a_stage_that_takes_long_ends_when_its_allocation_is_stopped() {
    for (stage, task) in [("volume", None), ("watch", Some(1))] {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let probe = Probe::new(outside.path().to_owned(), Some(at(stage, task, false)));
        let node = node_with(open(root.path(), 1).await, probe.stages());
        node.apply(whole(vec![message(true)], &[1])).await;
        timeout(Duration::from_mins(1), probe.reached.notified()).await.unwrap();
        let running = |task: &str| {
            node.view(ID).unwrap().status.tasks[task].phase() == v1::TaskPhase::Running
        };
        until("the other task runs", || task.is_none() || running("a")).await;
        node.apply(whole(vec![message(false)], &[1])).await;
        until("it is over", || node.view(ID).unwrap().over).await;
        let status = node.view(ID).unwrap().status;
        assert_eq!(status.client_status(), v1::ClientStatus::Complete);
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        let undos = probe.calls(true);
        assert!(undos.contains(&(stage, task, "undo")), "it may be half-finished: {undos:?}");
    }
}

/// An agent that ends its tasks keeps what prepared them, for the next one.
#[tokio::test]
async fn an_agent_that_ends_its_tasks_undoes_nothing() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let probe = Probe::new(outside.path().to_owned(), None);
    let node = node_with(open(root.path(), 1).await, probe.stages());
    node.apply(whole(vec![message(true)], &[1])).await;
    until("it runs", || is_running(&node)).await;
    node.suspend().await;
    assert_eq!(probe.calls(true), []);
    kill(node).await;
    let probe = Probe::new(outside.path().to_owned(), None);
    let stages = probe.stages();
    let node = node_with(open(root.path(), 1).await, stages.clone());
    yield_now().await;
    assert_eq!(probe.calls(false), [], "it waits for the servers");
    node.apply(whole(vec![message(true)], &[1])).await;
    until("it runs again", || is_running(&node)).await;
    let again: BTreeSet<_> = probe.calls(false).into_iter().map(|(name, ..)| name).collect();
    let all = [Scope::Allocation, Scope::Task].map(|scope| stages.rules.of_scope(scope));
    let all = all.iter().flat_map(|scope| scope.iter()).map(|stage| stages.entry(stage));
    let repeated = all.filter(|entry| entry.again == Again::AfterAgent);
    assert_eq!(again, repeated.map(|entry| entry.name).collect());
    ends(&node, probe, undos(&stages), "after a suspension").await;
}

/// Its machine is lost, but what it left is found by its specification.
#[tokio::test]
async fn the_stages_of_an_allocation_that_panics_are_undone() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let probe = Probe::new(outside.path().to_owned(), None);
    let node = node_with(open(root.path(), 1).await, probe.stages());
    for name in ["network", "volume"] {
        fs::write(outside.path().join(format!("{ID} {name} ")), "").unwrap();
    }
    let spec = Arc::new(AllocationSpec::parse(endless(1)).unwrap());
    let now = node.shared.clock.now();
    let policy = spec::group_policy(&message(true)).unwrap();
    let mut runner = AllocationRunner::new(&policy, ID.0, 7, now);
    runner.found(&[None, Some(1)], &node.shared.stages.rules);
    node.adopt(&mut node.lock(), spec, runner, Origin::Stored { suspended: false, booted: false });
    until("it has failed", || node.view(ID).unwrap().over).await;
    assert_eq!(node.view(ID).unwrap().status.client_status(), v1::ClientStatus::Failed);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

/// An agent that was killed after that would not find what it has to undo, or would start tasks
/// without what is undone.
#[tokio::test]
async fn no_stage_outside_is_prepared_or_undone_while_the_state_cannot_be_stored() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let probe = Probe::new(outside.path().to_owned(), Some(at("network", None, true)));
    let node = node_with(open(root.path(), 1).await, probe.stages());
    let state = root.path().join(format!("runs/{ID}/state.json"));
    let in_its_way = state.with_extension("json.tmp");
    fs::create_dir_all(&in_its_way).unwrap();
    node.apply(whole(vec![message(true)], &[1])).await;
    until("it has failed", || node.view(ID).is_some_and(|view| view.terminal)).await;
    let status = node.view(ID).unwrap().status;
    let said = &status.tasks["a"].events.iter().find(|event| event.kind == "Setup Failure");
    assert!(said.unwrap().message.starts_with("cannot store the allocation's state: "));
    assert_eq!(probe.calls(false), [("directory", None, "prepare")]);
    fs::remove_dir(&in_its_way).unwrap();
    timeout(Duration::from_mins(1), probe.reached.notified()).await.unwrap();
    assert!(state.is_file(), "it is stored first");
    probe.released.notify_one();
    until("it is over", || node.view(ID).unwrap().over).await;
}
