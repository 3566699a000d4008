//! The fleet over the real state machine and the real scheduler; only the provider is scripted: a
//! test answers its calls.

mod choice;
mod failures;
mod groups;
mod guards;
mod health;
mod limits;
mod lists;
mod lives;
mod operators;
mod outcomes;
mod scale;
mod shown;
mod system;

use std::collections::{BTreeMap, VecDeque};

use fsm::{
    Command, Evaluation, EvaluationStatus, Instance, InstanceId, InstancePool, InstanceState,
    JobKind, JobSpec, Reply, State, Text,
    node::{CapacityGain, GainKey, NodeDescription, RegisterNode},
    plan::ApplyPlans,
    pool::{ObserveInstances, RequestInstances, ShutdownCause},
    resources::Resources,
    testing::{Driver, Interruption, description, job, job_key, node_id},
};
use scheduler::{Pass, schedule};

use crate::{
    CallId, Fleet, FleetConfig,
    call::{
        Answer, Call, Create, Destroyed, ErrorClass, ErrorScope, Listing, Machine, Operation,
        ProviderError,
    },
    testing::pool,
};

const SCOPE: &str = "host";
const MINUTE: u64 = 60_000;

/// One leadership after another over one state, and the calls that wait for an answer.
struct World {
    driver: Driver,
    fleet: Fleet,
    calls: VecDeque<(CallId, Call)>,
    /// What the provider has, by the number of its machine.
    machines: BTreeMap<Text, Machine>,
    made: u64,
    ids: u32,
    /// Lists are answered by themselves.
    lists: bool,
    now: u64,
}

impl World {
    /// A pool `p` of at most `max` machines, warmed up, with its first list answered.
    fn new(max: u32) -> Self {
        Self::with(pool("p", max))
    }

    fn with(pool: InstancePool) -> Self {
        let mut driver = Driver { checked: true, ..Driver::default() };
        driver.instance_pool("p", |row| *row = pool);
        let mut world = Self {
            driver,
            fleet: fleet(),
            calls: VecDeque::new(),
            machines: BTreeMap::new(),
            made: 0,
            ids: 0,
            lists: true,
            now: 0,
        };
        world.lead();
        world.pass(31_000);
        world
    }

    /// Another server leads: what the old one remembered is gone, and so are its calls.
    fn lead(&mut self) {
        self.fleet = fleet();
        self.calls.clear();
        self.driver.interrupt(Interruption::NewLeader);
        let now = self.at();
        self.fleet.restore(now, &self.driver.state);
        self.run();
    }

    fn at(&self) -> u64 {
        self.driver.now
    }

    /// Lets time pass, a second at a time.
    fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            self.now = (self.now + 1_000).min(end);
            self.driver.at_ms(self.now);
            self.run();
        }
    }

    fn commit(&mut self, command: Command) -> Reply {
        let applied = self.driver.commit(command);
        for effect in &applied.effects {
            self.fleet.take(&self.driver.state, effect);
        }
        applied.reply
    }

    /// Does what is due until nothing is: commands are committed, lists are answered, evaluations
    /// are scheduled.
    fn run(&mut self) {
        for _ in 0..64 {
            self.driver.at_ms(self.now);
            let now = self.at();
            let mut next = self.ids;
            let mut ids = || {
                next += 1;
                let mut id = [0; 16];
                for (slot, byte) in id.iter_mut().zip(next.to_be_bytes().into_iter().cycle()) {
                    *slot = byte;
                }
                id
            };
            let commands = self.fleet.step(now, &self.driver.state, &mut ids);
            self.ids = next;
            let is_quiet = commands.is_empty();
            for command in commands {
                self.commit(command);
            }
            while let Some((id, call)) = self.fleet.next_call() {
                self.calls.push_back((id, call));
            }
            let lists: Vec<_> = if self.lists { self.take_calls("list") } else { Vec::new() };
            let is_quiet = is_quiet && lists.is_empty();
            for (id, _) in lists {
                let machines = self.machines.values().cloned().collect();
                self.answer(id, Ok(Answer::Listed(Listing { scope: SCOPE.into(), machines })));
            }
            if self.schedule() == 0 && is_quiet {
                // A pool is looked at once in a while.
                self.now += crate::fleet::COALESCE_MS;
                self.driver.at_ms(self.now);
                if self.fleet.next_deadline().is_none_or(|at| at > self.at()) {
                    return;
                }
            }
        }
        panic!("it never comes to rest");
    }

    /// Schedules what is pending, and what is blocked and has not seen the newest state.
    fn schedule(&mut self) -> usize {
        let state = &self.driver.state;
        let open: Vec<_> = state
            .evaluations()
            .iter()
            .filter(|row| match row.status {
                EvaluationStatus::Pending => true,
                EvaluationStatus::Blocked => {
                    state.capacity_gains().iter().any(|gain| wakes(state, gain, row))
                }
                EvaluationStatus::Complete
                | EvaluationStatus::Failed
                | EvaluationStatus::Canceled => false,
            })
            .cloned()
            .collect();
        for evaluation in &open {
            let (state, now) = (self.driver.state.clone(), self.at());
            let pass = Pass { state: &state, evaluation, now, attempt: 0 };
            let plan = schedule(&pass).expect("the job has a spec");
            self.commit(Command::from(ApplyPlans { plans: vec![plan.into()] }));
        }
        open.len()
    }

    fn take_calls(&mut self, name: &str) -> Vec<(CallId, Call)> {
        let (taken, left) =
            self.calls.drain(..).partition(|(_, call)| call.operation.name() == name);
        self.calls = left;
        Vec::from(taken)
    }

    fn answer(&mut self, id: CallId, answer: Result<Answer, ProviderError>) {
        let now = self.at();
        let commands = self.fleet.answered(now, &self.driver.state, id, answer);
        for command in commands {
            self.commit(command);
        }
    }

    /// Answers every create with an error.
    fn refuse(
        &mut self,
        class: ErrorClass,
        scope: ErrorScope,
        retry_after_ms: Option<u64>,
    ) -> usize {
        let creates = self.take_calls("create");
        for (id, _) in &creates {
            let detail = "no more of these".into();
            self.answer(*id, Err(ProviderError { class, scope, retry_after_ms, detail }));
        }
        self.run();
        creates.len()
    }

    /// The machine that a create makes; nobody is told.
    fn machine(&mut self, create: &Create) -> Machine {
        self.made += 1;
        let machine = Machine {
            provider_id: format!("m{}", self.made).into(),
            address: "127.0.0.1".into(),
            scope: SCOPE.into(),
            tags: create.tags.clone(),
        };
        self.machines.insert(machine.provider_id.clone(), machine.clone());
        machine
    }

    /// Carries out every create; answers with the instances that were made.
    fn make(&mut self) -> Vec<InstanceId> {
        let creates = self.take_calls("create");
        let mut made = Vec::new();
        for (id, call) in creates {
            let Operation::Create(create) = &call.operation else { continue };
            let machine = self.machine(create);
            self.answer(id, Ok(Answer::Created(machine)));
            made.push(create.key);
        }
        self.run();
        made
    }

    /// The agent of an instance registers and is ready.
    fn boot(&mut self, id: InstanceId) {
        self.boot_with(id, &[]);
    }

    /// The same, with more attributes than other nodes.
    fn boot_with(&mut self, id: InstanceId, more: &[(&str, &str)]) {
        self.register_agent(id, more);
        self.ready(id);
    }

    fn ready(&mut self, id: InstanceId) {
        let name = name(id);
        self.driver.readiness(&name, fsm::node::Readiness::Ok);
        let now = self.at();
        self.fleet.restore(now, &self.driver.state);
        self.run();
    }

    fn register_agent(&mut self, id: InstanceId, more: &[(&str, &str)]) {
        let total = self.row(id).kind.resources();
        self.register_agent_of(id, total, more);
    }

    /// The same, of a node that has these resources.
    fn register_agent_of(&mut self, id: InstanceId, total: Resources, more: &[(&str, &str)]) {
        let row = self.row(id);
        let name = name(id);
        let resources = fsm::node::NodeResources {
            total,
            allocations_max: row.kind.max_allocations,
            ..description(&name).resources
        };
        let mut description =
            NodeDescription { pool: row.pool.clone(), resources, ..description(&name) };
        let more = more.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        description.attributes.extend(more);
        let command = Command::from(RegisterNode {
            instance: Some(fsm::node::InstanceProof { id, token: row.token }),
            node: node_id(&name),
            secret: [7; 16],
            identity: [1; 16],
            description: description.into(),
            evaluation_ids: Vec::new(),
        });
        let reply = self.commit(command);
        assert!(!matches!(reply, Reply::Rejected(_)), "{reply:?}");
        self.driver.sync(&name);
    }

    fn make_and_boot(&mut self) -> Vec<InstanceId> {
        let made = self.make();
        for id in &made {
            self.boot(*id);
        }
        made
    }

    /// Carries out every destroy.
    fn destroy(&mut self) -> Vec<InstanceId> {
        let destroys = self.take_calls("destroy");
        let mut gone = Vec::new();
        for (id, call) in destroys {
            let Operation::Destroy { instance, provider_id } = &call.operation else { continue };
            self.machines.remove(provider_id);
            self.answer(id, Ok(Answer::Destroyed(Destroyed::Gone)));
            gone.push(*instance);
        }
        self.run();
        gone
    }

    fn register(&mut self, spec: JobSpec) {
        self.driver.register_job(spec);
        let now = self.at();
        self.fleet.restore(now, &self.driver.state);
        self.run();
    }

    /// A job of `count` instances, each of which fills a machine of type `small`.
    fn job(&mut self, name: &str, count: u32) {
        self.register(spec(name, count, 600));
    }

    fn stop(&mut self, name: &str) {
        self.driver.deregister_job(name, true);
        let rows: Vec<_> =
            self.driver.state.allocations_of_job(&job_key(name)).map(|row| row.id).collect();
        let now = self.at();
        self.fleet.restore(now, &self.driver.state);
        self.run();
        for id in rows {
            self.driver.report(id, fsm::ClientStatus::Complete);
        }
        self.fleet.restore(now, &self.driver.state);
        self.run();
    }

    fn running(&self, name: &str) -> usize {
        let key = job_key(name);
        let rows = self.driver.state.allocations_of_job(&key);
        rows.filter(|row| row.is_live()).count()
    }

    fn row(&self, id: InstanceId) -> Instance {
        self.driver.instance_row(id).clone()
    }

    fn rows(&self) -> Vec<Instance> {
        self.driver.state.instances().iter().map(|row| (**row).clone()).collect()
    }

    fn cause(&self, id: InstanceId) -> Option<ShutdownCause> {
        self.row(id).shutdown.map(|shutdown| shutdown.cause)
    }

    fn states(&self) -> Vec<InstanceState> {
        self.rows().iter().map(|row| row.state).collect()
    }

    fn set_pool(&mut self, change: impl FnOnce(&mut InstancePool)) {
        let mut pool = (**self.driver.state.instance_pools().get(&"p".into()).unwrap()).clone();
        change(&mut pool);
        self.driver.instance_pool("p", |row| *row = pool);
        let now = self.at();
        self.fleet.restore(now, &self.driver.state);
        self.run();
    }

    fn waits_for(&self, name: &str) -> String {
        let key = job_key(name);
        let rows = self.driver.state.evaluations_of_job(&key);
        let sentences =
            rows.flat_map(|row| crate::why::evaluation(&self.driver.state, self.at(), row));
        sentences.collect::<Vec<_>>().join("; ")
    }
}

/// The rule of the leader's blocked evaluations: what does not fit on a node sleeps through its
/// gains.
fn wakes(state: &State, gain: &CapacityGain, row: &Evaluation) -> bool {
    let GainKey::Node(id) = gain.key else { return false };
    let Some(node) = state.nodes().get(&id) else { return false };
    let job = state.jobs().get(&row.job);
    let Some(spec) = job.and_then(|job| state.current_spec(job)) else { return true };
    let free = node.description.resources.available().minus(state.usage(id).resources);
    let fits = |name: &Text| {
        spec.group(name).is_none_or(|group| Resources::of_group(group).exceeds(free).is_none())
    };
    let may_use = row.escaped || row.class_eligibility.get(&node.class) != Some(&false);
    let fits = row.failed_groups.is_empty() || row.failed_groups.keys().any(fits);
    may_use && fits && gain.index > row.snapshot_index
}

fn fleet() -> Fleet {
    Fleet::new(FleetConfig::default(), [("fake".into(), fsm::limits::PROVIDER_CREATES)].into())
}

fn name(id: InstanceId) -> String {
    id.to_string()[..8].to_owned()
}

fn spec(name: &str, count: u32, memory_mb: u64) -> JobSpec {
    let mut spec = job(name, JobKind::Service, count);
    spec.node_pool = "p".into();
    let group = &mut spec.groups[0];
    group.disk_mb = 0;
    group.tasks[0].resources.cpu_mhz = 100;
    group.tasks[0].resources.memory_mb = memory_mb;
    spec
}
