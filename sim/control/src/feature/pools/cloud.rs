//! Calls of leaders to the fake cloud, and the agents of its machines.
//!
//! A call is carried out some time after it was made, and answered some time after that, or when
//! its caller has no more patience. Its leader may be gone by then, or paused without knowing: a
//! server that is there proposes what came of it through whoever leads ([`elastic::late`]), one
//! that crashed says nothing, and the machine is there all the same.

use elastic::{
    CallId,
    call::{
        Answer, Call, Create, ErrorClass, ErrorScope, Machine, MachineState, Operation,
        ProviderError, TAG_INSTANCE, TAG_POOL, TAG_TYPE,
    },
    fake::Fault,
    late,
};
use fsm::{
    Instance, InstanceId, InstanceState, Text,
    node::{InstanceProof, Readiness},
    pool::Behavior,
};

use super::{Boot, LateTag, Pools};
use crate::cluster::{Cluster, agent::Agent, coverage::Event, leadership::Leadership};

/// A call takes so long until it is carried out, and again until it is answered, ms.
const TAKES_MS: (u64, u64) = (10, 400);
/// One that hangs is carried out after so long: mostly its caller has given up.
const HANGS_MS: (u64, u64) = (5_000, 150_000);
/// From the create until its agent starts, ms.
const BOOTS_MS: (u64, u64) = (200, 12_000);
/// Between two tags of a machine that gets them one after the other, ms.
const TAG_MS: (u64, u64) = (1_000, 25_000);
/// A readiness check that does not say no for good says so for so long, ms.
const UNREADY_MS: (u64, u64) = (5_000, 120_000);
/// The id of a machine is not used again before it is gone for so long, ms.
const REUSED_MS: u64 = 120_000;
/// A refusal holds for so long, ms.
const REFUSED_MS: (u64, u64) = (1_000, 30_000);

/// Who waits for an answer.
#[derive(Clone, Copy)]
struct Caller {
    server: usize,
    epoch: u64,
    id: CallId,
}

/// A call that has not come to its end.
pub(super) struct Flight {
    caller: Caller,
    call: Call,
    runs_at: u64,
    answers_at: u64,
    gives_up_at: u64,
    /// Its caller was answered that it took too long.
    has_given_up: bool,
    answer: Option<Result<Answer, ProviderError>>,
}

impl Flight {
    fn next_ms(&self) -> u64 {
        let runs = if self.answer.is_none() { self.runs_at } else { self.answers_at };
        if self.has_given_up { runs } else { runs.min(self.gives_up_at) }
    }

    /// It changes what there is, or may.
    fn matters(&self) -> bool {
        matters(&self.call.operation)
    }

    /// It is about the machine of this id.
    fn is_about(&self, provider_id: &Text) -> bool {
        let made = self.answer.as_ref().and_then(|answer| {
            let Ok(Answer::Created(machine)) = answer else { return None };
            Some(&machine.provider_id)
        });
        match &self.call.operation {
            Operation::Create(_) | Operation::List => made == Some(provider_id),
            Operation::Destroy { provider_id: id, .. }
            | Operation::SetTags { provider_id: id, .. }
            | Operation::Describe { provider_id: id, .. } => id == provider_id,
        }
    }
}

fn matters(operation: &Operation) -> bool {
    matches!(operation, Operation::Create(_) | Operation::Destroy { .. })
}

impl Pools {
    /// When something of the cloud happens by itself.
    pub(super) fn next_cloud_ms(&self) -> Option<u64> {
        let flights = self.flights.iter().map(Flight::next_ms);
        let tags = self.tagging.iter().map(|(at, _)| *at);
        flights.chain(self.boots.iter().map(|(at, _)| *at)).chain(tags).min()
    }

    /// A create or destroy is under way, an agent is to start or a tag to come.
    pub(super) fn is_busy(&self) -> bool {
        !self.boots.is_empty()
            || !self.tagging.is_empty()
            || self.flights.iter().any(Flight::matters)
    }

    /// A call leaves: when it is carried out and answered, and when its caller gives up.
    fn depart(&mut self, clock_ms: u64, patience_ms: u64, caller: Caller, call: Call) {
        let hangs = self.dice.percent(self.trouble.hangs) && matters(&call.operation);
        let takes = if hangs { HANGS_MS } else { TAKES_MS };
        let runs_at = clock_ms + self.dice.between(takes.0, takes.1);
        let answers_at = runs_at + self.dice.between(TAKES_MS.0, TAKES_MS.1);
        let gives_up_at = clock_ms + patience_ms;
        let (has_given_up, answer) = (false, None);
        self.flights.push(Flight {
            caller,
            call,
            runs_at,
            answers_at,
            gives_up_at,
            has_given_up,
            answer,
        });
    }

    /// What goes wrong with a call that is carried out now.
    fn faults(&mut self, clock_ms: u64, operation: &Operation, in_use: &[Text]) -> Vec<Fault> {
        let mut faults = Vec::new();
        let is_out = clock_ms < self.outage_until && matters(operation);
        if is_out || self.dice.percent(self.trouble.refuses) {
            faults.push(Fault::Refuses(self.refusal(operation, is_out)));
        }
        match operation {
            Operation::Create(create) => {
                let is_again = self.cloud.machine_of(create.key).is_some();
                if is_again && self.dice.percent(self.trouble.ignores_keys) {
                    faults.push(Fault::IgnoresKey);
                }
                // Of two machines without tags, both made by calls whose answers were lost, nobody can tell which is whose:
                // neither is destroyed before the instance that one of them belongs to ends.
                let mut all = self.cloud.machines();
                let is_only = !all.any(|machine| machine.described.tags.is_empty());
                // Those that come late tell in the end; those of a second machine for a key do not come.
                let is_late = self.dice.percent(self.trouble.tags_late) && !is_again;
                if is_late || (self.dice.percent(self.trouble.loses_tags) && is_only) {
                    faults.push(Fault::LosesTags);
                }
                if is_late {
                    self.late.insert(create.key);
                }
                if self.dice.percent(self.trouble.reuses_ids) {
                    let free = |(id, since): &&(Text, u64)| {
                        since + REUSED_MS < clock_ms
                            && self.known.contains(id)
                            && !in_use.contains(id)
                            && !self.flights.iter().any(|one| one.is_about(id))
                    };
                    let free = self.freed.iter().filter(free).map(|(id, _)| id.clone());
                    let free: Vec<_> = free.collect();
                    faults.extend(self.dice.pick(&free).map(Fault::ReusesId));
                }
            }
            Operation::List => self.list_faults(&mut faults),
            Operation::Destroy { .. } => {
                if self.dice.percent(self.trouble.says_later) {
                    faults.push(Fault::SaysLater);
                }
            }
            Operation::SetTags { .. } | Operation::Describe { .. } => {}
        }
        faults
    }

    /// A list lacks a machine that none has lacked before, or all of them, or has one too many.
    fn list_faults(&mut self, faults: &mut Vec<Fault>) {
        if self.dice.percent(self.trouble.hides) {
            let ids: Vec<_> =
                self.cloud.machines().map(|one| one.described.provider_id.clone()).collect();
            let all = self.dice.percent(30) && ids.iter().all(|id| !self.hidden.contains(id));
            if all {
                self.hidden.extend(ids);
                faults.push(Fault::HidesAll);
            } else if let Some(id) =
                self.dice.pick(&ids).filter(|id| self.hidden.insert(id.clone()))
            {
                faults.push(Fault::Hides(id));
            }
        }
        if self.dice.percent(self.trouble.invents) {
            let number = self.dice.below(1_000);
            let mut ghost = Machine {
                provider_id: format!("ghost-{number}").into(),
                scope: super::SCOPE.into(),
                ..Machine::default()
            };
            if self.dice.percent(50) {
                let id = InstanceId([u8::try_from(number % 200).unwrap_or(0); 16]);
                ghost.tags.insert(TAG_INSTANCE.into(), id.to_string().into());
                ghost.tags.insert(TAG_POOL.into(), super::POOL.into());
                ghost.tags.insert(TAG_TYPE.into(), "small".into());
            }
            faults.push(Fault::Invents(ghost));
        }
    }

    fn refusal(&mut self, operation: &Operation, is_out: bool) -> ProviderError {
        let [transient, rate_limited] = [ErrorClass::Transient, ErrorClass::RateLimited];
        let classes: &[ErrorClass] = match operation {
            _ if is_out => &[transient],
            Operation::Create(_) => &ErrorClass::ALL,
            Operation::List
            | Operation::Destroy { .. }
            | Operation::SetTags { .. }
            | Operation::Describe { .. } => &[transient, rate_limited],
        };
        let class = self.dice.pick(classes).unwrap_or(transient);
        let scopes = [ErrorScope::All, ErrorScope::QuotaGroup, ErrorScope::Type];
        let mut error = ProviderError::new(class, "not now");
        error.scope = self.dice.pick(&scopes).unwrap_or_default();
        error.retry_after_ms = Some(self.dice.between(REFUSED_MS.0, REFUSED_MS.1));
        error
    }

    /// A machine was made: its agent starts after a while, or never.
    fn made(&mut self, clock_ms: u64, create: &Create, machine: &Machine) {
        let Some(number) = self.cloud.machine(&machine.provider_id).map(|one| one.number) else {
            return;
        };
        if self.made_at.contains_key(&number) {
            return;
        }
        self.made_at.insert(number, clock_ms);
        if self.late.remove(&create.key) {
            self.tag_later(clock_ms, number, create, &machine.provider_id);
        }
        self.freed.retain(|(id, _)| *id != machine.provider_id);
        if self.dice.percent(self.trouble.never_boots) {
            if self.dice.percent(50) {
                let id = &machine.provider_id;
                self.cloud.set_state(id, MachineState::Broken, "no boot disk");
            }
            return;
        }
        let mut description = create.kind.description(&create.pool);
        description.name = format!("m{number}").into();
        if self.dice.percent(self.trouble.differs) {
            description.resources.total.cpu_mhz = 100;
        }
        let provider_id = machine.provider_id.clone();
        let at = clock_ms + self.dice.between(BOOTS_MS.0, BOOTS_MS.1);
        self.boots.push((at, Boot { provider_id, number, description }));
    }
}

impl Pools {
    /// A machine gets its tags one after the other.
    fn tag_later(&mut self, clock_ms: u64, number: u64, create: &Create, provider_id: &Text) {
        let mut at = clock_ms;
        for (name, value) in create.tags.iter().rev() {
            at += self.dice.between(TAG_MS.0, TAG_MS.1);
            let (name, value) = (name.clone(), value.clone());
            let provider_id = provider_id.clone();
            self.tagging.push((at, LateTag { provider_id, number, name, value }));
        }
    }

    /// Tags come that are due. Whether one did.
    fn tag(&mut self, clock_ms: u64) -> bool {
        let due = self.tagging.extract_if(.., |(at, _)| *at <= clock_ms);
        let due: Vec<_> = due.map(|(_, tag)| tag).collect();
        let is_any = !due.is_empty();
        for LateTag { provider_id, number, name, value } in due {
            let machine = self.cloud.machine(&provider_id);
            if machine.is_some_and(|machine| machine.number == number) {
                self.cloud.tag(&provider_id, &name, &value);
            }
        }
        is_any
    }
}

impl Pools {
    /// Lets the cloud do what is due: calls are made, carried out and answered, machines come up.
    /// Whether anything of it matters.
    pub(super) fn serve_calls(&mut self, cluster: &mut Cluster) -> bool {
        let mut acted = false;
        for server in 0..cluster.servers.len() {
            acted |= self.make_calls(cluster, server);
        }
        acted |= self.carry_out_calls(cluster);
        acted |= self.answer_calls(cluster);
        acted |= self.tag_machines(cluster);
        acted | self.start_machines(cluster)
    }

    fn make_calls(&mut self, cluster: &mut Cluster, server: usize) -> bool {
        cluster
            .with_leadership(server, |cluster, leadership| {
                let mut acted = false;
                while let Some((id, call)) = leadership.services.next_call() {
                    self.judge_call(cluster, &call);
                    acted |= matters(&call.operation);
                    cluster.trace(|| format!("server {server} calls {}", words(&call.operation)));
                    if leadership.epoch != cluster.log.term {
                        cluster.coverage.count(Event::DeposedCalled);
                    }
                    let clock_ms = cluster.clock_ms;
                    let patience_ms = call.deadline_at.saturating_sub(leadership.now(clock_ms));
                    let caller = Caller { server, epoch: leadership.epoch, id };
                    self.depart(clock_ms, patience_ms, caller, call);
                }
                acted
            })
            .unwrap_or(false)
    }

    /// No machine is made before its intent is in the log.
    fn judge_call(&self, cluster: &mut Cluster, call: &Call) {
        let Operation::Create(create) = &call.operation else { return };
        if !self.intents.contains(&create.key) {
            cluster.fail(format!("pool-intent: {} is called for before its intent", create.key));
        }
    }

    fn carry_out_calls(&mut self, cluster: &mut Cluster) -> bool {
        let clock_ms = cluster.clock_ms;
        let mut acted = false;
        // In the order in which they were made.
        for place in 0..self.flights.len() {
            let flight = &self.flights[place];
            if flight.answer.is_some() || flight.runs_at > clock_ms {
                continue;
            }
            acted |= flight.matters();
            let (operation, is_late) = (flight.call.operation.clone(), flight.has_given_up);
            let answer = self.carry_out(cluster, &operation, is_late);
            self.flights[place].answer = Some(answer);
        }
        self.flights.retain(|one| one.answer.is_none() || !one.has_given_up);
        acted
    }

    fn carry_out(
        &mut self,
        cluster: &mut Cluster,
        operation: &Operation,
        is_late: bool,
    ) -> Result<Answer, ProviderError> {
        let truth = cluster.log.truth().clone();
        if let Operation::Destroy { instance, provider_id } = operation {
            self.judge_destroy(cluster, *instance, provider_id);
        }
        let in_use: Vec<Text> =
            truth.instances().iter().map(|row| row.provider_id.clone()).collect();
        let faults = self.faults(cluster.clock_ms, operation, &in_use);
        for fault in &faults {
            cluster.coverage.count(match fault {
                Fault::Refuses(_) => Event::CallRefused,
                Fault::IgnoresKey => Event::KeyIgnored,
                Fault::ReusesId(_) => Event::IdReused,
                Fault::LosesTags => Event::TagsLost,
                Fault::Hides(_) | Fault::HidesAll => Event::ListHid,
                Fault::Invents(_) => Event::ListInvented,
                Fault::SaysLater => Event::DestroyedLater,
            });
        }
        let destroyed = match operation {
            Operation::Destroy { provider_id, .. } => self.cloud.machine(provider_id),
            Operation::Create(_)
            | Operation::List
            | Operation::SetTags { .. }
            | Operation::Describe { .. } => None,
        };
        let number = destroyed.map(|machine| machine.number);
        let answer = self.cloud.call(operation, &faults);
        cluster
            .trace(|| format!("the cloud does {} with {faults:?}: {answer:?}", words(operation)));
        if let (Operation::Create(create), Ok(Answer::Created(machine))) = (operation, &answer) {
            self.made(cluster.clock_ms, create, machine);
            if is_late {
                cluster.coverage.count(Event::MadeLate);
            }
        }
        if let Operation::Destroy { provider_id, .. } = operation
            && let Some(number) = number
            && self.cloud.machine(provider_id).is_none()
        {
            self.machine_ended(cluster, provider_id, number);
        }
        if answer.is_ok() && matters(operation) && self.dice.percent(self.trouble.loses_answers) {
            cluster.coverage.count(Event::AnswerLost);
            return Err(ProviderError::new(ErrorClass::Transient, "connection reset"));
        }
        answer
    }

    /// Nothing is destroyed but what was shut down, and never what is held.
    fn judge_destroy(&self, cluster: &mut Cluster, instance: InstanceId, provider_id: &Text) {
        let truth = cluster.log.truth();
        let machine = self.cloud.machine(provider_id).map(|machine| machine.number);
        let agent =
            cluster.agents.iter().find(|agent| machine.is_some() && agent.machine() == machine);
        let used = agent.and_then(|agent| {
            // Of two machines of one key nobody knows which of them its agent is on.
            let is_its_machine =
                |row: &Instance| row.provider_id.is_empty() || row.provider_id == *provider_id;
            let mut rows = truth.instances().iter();
            rows.find(|row| {
                row.node == Some(agent.node)
                    && row.state != InstanceState::ShuttingDown
                    && is_its_machine(row)
            })
        });
        if let Some(id) = used.map(|row| row.id) {
            return cluster
                .fail(format!("pool-used: {provider_id} is destroyed, its agent is {id}"));
        }
        let row = truth.instances().get(&instance);
        if row.is_some_and(|row| row.state != InstanceState::ShuttingDown) {
            return cluster
                .fail(format!("pool-destroy: {instance} is destroyed and not shut down"));
        }
        let other = truth.instances().iter().find(|row| {
            row.provider_id == *provider_id
                && row.behavior == Behavior::Hold
                && row.state != InstanceState::ShuttingDown
        });
        if let Some(id) = other.map(|row| row.id) {
            cluster.fail(format!("pool-held: {provider_id} of {id}, which is held, is destroyed"));
        }
    }

    fn machine_ended(&mut self, cluster: &mut Cluster, provider_id: &Text, number: u64) {
        self.freed.push((provider_id.clone(), cluster.clock_ms));
        self.boots.retain(|(_, boot)| boot.number != number);
        cluster.agents.retain(|agent| agent.machine() != Some(number));
    }

    fn answer_calls(&mut self, cluster: &mut Cluster) -> bool {
        let clock_ms = cluster.clock_ms;
        let mut acted = false;
        loop {
            let is_due = |one: &Flight| {
                let is_answered = one.answer.is_some() && one.answers_at <= clock_ms;
                is_answered || (!one.has_given_up && one.gives_up_at <= clock_ms)
            };
            let Some(place) = self.flights.iter().position(is_due) else { return acted };
            let flight = &mut self.flights[place];
            acted |= flight.matters();
            let (caller, call) = (flight.caller, flight.call.clone());
            let in_time = flight.answers_at.min(clock_ms) <= flight.gives_up_at;
            let answer = flight.answer.clone().filter(|_| in_time);
            if flight.answer.is_some() {
                self.flights.remove(place);
            } else {
                // It goes on at the cloud.
                flight.has_given_up = true;
            }
            let timed_out = || ProviderError::new(ErrorClass::Transient, "timed out");
            let answer = answer.unwrap_or_else(|| Err(timed_out()));
            self.answer_call(cluster, (caller, &call), answer);
        }
    }

    fn answer_call(
        &mut self,
        cluster: &mut Cluster,
        (caller, call): (Caller, &Call),
        answer: Result<Answer, ProviderError>,
    ) {
        let Caller { server, epoch, id } = caller;
        let state = cluster.log.state_at(cluster.servers[server].applied).clone();
        let is_there = |one: &Leadership| one.epoch == epoch;
        if cluster.servers[server].leadership.as_ref().is_some_and(|one| is_there(one)) {
            cluster.with_leadership(server, |cluster, leadership| {
                let now = leadership.now(cluster.clock_ms);
                leadership.services.answered(now, &state, id, answer);
            });
            return;
        }
        if self.dice.percent(self.trouble.crashes) {
            cluster.coverage.count(Event::CallerCrashed);
            return cluster
                .trace(|| format!("server {server} crashed with {}", words(&call.operation)));
        }
        let Some(command) = late(call, &answer) else { return };
        cluster.coverage.count(Event::LateAnswer);
        let mut dice = self.dice.clone();
        cluster.propose_for_client(command, None, &mut dice);
    }

    fn tag_machines(&mut self, cluster: &mut Cluster) -> bool {
        let clock_ms = cluster.clock_ms;
        let came = self.tag(clock_ms);
        if came {
            cluster.coverage.count(Event::TagsCameLate);
        }
        came
    }

    fn start_machines(&mut self, cluster: &mut Cluster) -> bool {
        let clock_ms = cluster.clock_ms;
        let mut started = Vec::new();
        while let Some(place) = self.boots.iter().position(|(at, _)| *at <= clock_ms) {
            let (_, Boot { provider_id, number, description }) = self.boots.remove(place);
            let machine = self.cloud.machine(&provider_id).filter(|one| one.number == number);
            let Some(Create { key, token, .. }) = machine.map(|one| &one.create) else { continue };
            let proof = InstanceProof { id: *key, token: *token };
            self.cloud.set_state(&provider_id, MachineState::Up, "");
            let mut agent = Agent::of_machine(number, proof, description);
            if self.dice.percent(self.trouble.unready) {
                cluster.coverage.count(Event::MachineUnready);
                let (sickness, until) = if self.dice.percent(70) {
                    (Readiness::Fatal, u64::MAX)
                } else {
                    let ms = self.dice.between(UNREADY_MS.0, UNREADY_MS.1);
                    (Readiness::Retry, clock_ms + ms)
                };
                agent.falls_sick(sickness, until);
            }
            started.push(agent);
        }
        let is_any = !started.is_empty();
        cluster.agents.extend(started);
        is_any
    }

    /// The provider ends a machine by itself.
    pub(super) fn take_back_a_machine(&mut self, cluster: &mut Cluster, dice: &mut chance::Dice) {
        let there =
            self.cloud.machines().map(|one| (one.described.provider_id.clone(), one.number));
        let there: Vec<_> = there.collect();
        if let Some((id, number)) = dice.pick(&there) {
            cluster.trace(|| format!("the cloud takes {id} back"));
            cluster.coverage.count(Event::Preempted);
            self.cloud.end(&id);
            self.machine_ended(cluster, &id, number);
        }
    }
}

/// An operation, for the trace.
fn words(operation: &Operation) -> String {
    match operation {
        Operation::Create(create) => format!("create {} {}", create.key, create.kind.name),
        Operation::List => "list".to_owned(),
        Operation::Destroy { instance, provider_id } => format!("destroy {instance} {provider_id}"),
        Operation::SetTags { instance, .. } => format!("set-tags {instance}"),
        Operation::Describe { instance, provider_id } => {
            format!("describe {instance} {provider_id}")
        }
    }
}
