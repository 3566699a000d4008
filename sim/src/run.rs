//! One run of one seed: bootstrap, work under faults, healing, convergence, last checks.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fsm::{
    Command, EvaluationId, JobKey, JobSpec, Reply,
    job::{EvaluateJob, RegisterJob},
    settings::{NodeLife, SchedulerConfiguration, SetSchedulerConfiguration},
};

use crate::{
    agent::Agent,
    aimed,
    class::Class,
    client::{self, Ended, REGISTERS, Shared},
    clocks, invariants,
    jobs::{self, Operator},
    lag, losses,
    machine::{Directories, Machine},
    nemesis::Nemesis,
    nuisance::Nuisance,
    reader::Reader,
    running,
    services::CALLER,
    settings::SettingsWriter,
    streams,
    swarm::Swarm,
    trace, verdict,
    world::World,
};
use chance::Dice;
use ground::rt::{self, Instant, watch};
use server::Core;
use wire::api::Api;

/// From the end of all faults to a cluster that answers everywhere.
const CONVERGE: Duration = Duration::from_secs(30);
/// From then until nodes and jobs are as they were asked for.
const SETTLE: Duration = Duration::from_secs(30);
/// From its registration until a new job runs.
const PLACED: Duration = Duration::from_secs(20);
/// How long a new job's plan is waited for while a server is left behind: agents keep their streams from it meanwhile.
const PLANNED: Duration = Duration::from_millis(700);
/// Until a log that has become too long is cut.
const CUT: Duration = Duration::from_secs(5);
/// Until every evaluation has come to its end.
const DRAINED: Duration = Duration::from_mins(1);
/// What the broker pauses before a second and before a third delivery.
const REDELIVERED: Duration = Duration::from_secs(21);
const INSTANCES: u32 = 3;

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Broken promises; none: the run passed.
    pub(crate) failures: Vec<String>,
    /// Writes that clients know of.
    pub(crate) writes: usize,
    /// Messages on the network.
    pub(crate) messages: u64,
    /// Virtual time.
    pub(crate) virtual_time: Duration,
}

/// Runs a seed on this thread, which must not have run another one.
pub(crate) fn run(swarm: Swarm) -> anyhow::Result<Outcome> {
    rt::enter_simulation(swarm.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(tokio::runtime::RngSeed::from_bytes(&swarm.seed.to_le_bytes()))
        .build()?;
    let outcome = runtime.block_on(live(Arc::new(swarm)));
    // The process ends with the run: what is left in the runtime need not be dropped.
    runtime.shutdown_background();
    outcome
}

async fn live(swarm: Arc<Swarm>) -> anyhow::Result<Outcome> {
    trace::event("run", format_args!("{swarm}"));
    let world = World::new(&swarm);
    let shared = Shared::new(world.clone())?;
    let passed = phases(&world, &shared).await?;
    let mut failures = verdict::failures();
    if !passed && failures.is_empty() {
        failures.push("the run ended early".to_owned());
    }
    let writes = shared.writes();
    let virtual_time = rt::simulated_elapsed();
    Ok(Outcome { failures, writes, messages: world.network.messages(), virtual_time })
}

/// Runs phase after phase as long as nothing is wrong.
async fn phases(world: &World, shared: &Shared) -> anyhow::Result<bool> {
    let seed = world.swarm.seed;
    let mut dice = Dice::named(seed, "run");
    for server in 0..world.count() {
        world.start(server);
        rt::sleep(Duration::from_millis(dice.below(400))).await;
    }
    if !world.wait("a leader", CONVERGE, |world| world.leader().is_some()).await {
        return Ok(false);
    }
    if let Some(node_life) = world.swarm.node_life() {
        set_node_life(world, node_life).await;
    }
    let (stop, stopped) = watch::channel(false);
    let mut tasks = Vec::new();
    for number in 0..world.swarm.clients {
        let dice = Dice::named(seed, &format!("client {number}"));
        tasks.push(rt::spawn(shared.clone().run(number, dice, stopped.clone())));
    }
    for server in 0..world.count() {
        tasks.push(rt::spawn(shared.clone().watch(server, stopped.clone())));
    }
    let directories = world.swarm.has(Class::Machines).then(Directories::new).transpose()?;
    let mut real = Dice::named(seed, "machines");
    for number in 0..world.swarm.agents {
        let dice = Dice::named(seed, &format!("agent {number}"));
        let stopped = stopped.clone();
        let machine = directories.as_ref().filter(|_| real.below(4) > 0);
        tasks.push(match machine {
            Some(all) => {
                let directory = all.path().join(format!("a{number}"));
                rt::spawn(Machine::new(number, world, directory).run(stopped))
            }
            None => rt::spawn(Agent::new(number, world, dice).run(stopped)),
        });
    }
    if world.swarm.has(Class::StaleReads) {
        let reader = Reader::new(world.clone(), shared.clone());
        tasks.push(rt::spawn(reader.run(stopped.clone())));
    }
    let (end_of_work, work) = watch::channel(false);
    let settings = world
        .swarm
        .has(Class::Settings)
        .then(|| rt::spawn(SettingsWriter::new(world.clone()).run(work.clone())));
    let operator = rt::spawn(Operator::new(world.clone())?.run(work));
    let early = rt::spawn(register(world.clone(), batch_job("early")?));
    rt::sleep(Duration::from_millis(500)).await;

    rt::spawn(Nuisance::new(world.clone()).run());
    rt::spawn(world.clone().watch_snapshots());
    rt::spawn(streams::watch(world.clone()));
    if world.swarm.has(Class::Lag) {
        rt::spawn(lag::run(world.clone()));
    }
    if world.swarm.has(Class::Aimed) {
        rt::spawn(aimed::run(world.clone()));
    }
    if world.swarm.has(Class::MassLoss) {
        rt::spawn(losses::run(world.clone()));
    }
    Nemesis::new(world.clone()).run().await;
    trace::event("run", format_args!("all faults end"));
    world.heal();
    end_of_work.send_replace(true);
    if verdict::has_failed() || !converged(world, shared).await {
        return Ok(false);
    }
    let mut operator = operator.await?;
    if let Some(settings) = settings {
        settings.await?.finish().await;
    }
    early.await?;
    if !settled(world, &mut operator).await? {
        return Ok(false);
    }
    stop.send_replace(true);
    operator.finish().await;
    if world.swarm.has(Class::Apart) && !clocks::quiet_time(world).await {
        return Ok(false);
    }
    Ok(last_checks(world, shared).await)
}

/// Every server answers, and takes writes.
async fn converged(world: &World, shared: &Shared) -> bool {
    let deadline = Instant::now() + CONVERGE;
    let recovered = |world: &World| {
        let is_there = |server| {
            let core = world.core(server);
            core.is_some_and(|core| core.has_recovered() && core.contact.leader().is_some())
        };
        (0..world.count()).all(is_there)
    };
    if !world.wait("every server recovered", CONVERGE, recovered).await {
        return false;
    }
    if !world.wait("B15: every server votes", CONVERGE, World::is_membership_whole).await {
        return false;
    }
    for server in 0..world.count() {
        for register in 0..REGISTERS {
            while shared.write("final", server, register, None).await != Ended::Done
                || shared.read("final", server, register).await != Ended::Done
            {
                if Instant::now() >= deadline {
                    verdict::fail(format!(
                        "I55: s{server} does not answer {CONVERGE:?} after the faults"
                    ));
                }
                if verdict::has_failed() {
                    return false;
                }
                rt::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    true
}

/// Jobs are brought to a state that fits, a new one is placed in time, and every evaluation comes to its end.
async fn settled(world: &World, operator: &mut Operator) -> anyhow::Result<bool> {
    if !operator.settle(SETTLE).await {
        return Ok(false);
    }
    if !world.wait("every node is in service", SETTLE, World::is_every_node_in_service).await {
        return Ok(false);
    }
    if world.swarm.has(Class::MassLoss) && !losses::at_last(world).await {
        return Ok(false);
    }
    let late = service_job("late")?;
    let key = late.key.clone();
    let mut dice = Dice::named(world.swarm.seed, "aimed at the end");
    if world.swarm.has(Class::Aimed) && dice.below(2) == 0 {
        aimed::elect_a_full_server(world, &mut dice).await;
    }
    if world.swarm.has(Class::Aimed) && dice.below(3) == 0 {
        aimed::silence(world, dice.index(world.count())).await;
    }
    if world.swarm.has(Class::Aimed) {
        // The server that is left behind learns of the job's allocations by a snapshot, and has to tell the agents that listen to it.
        let is_planned = |world: &World| {
            let state = world.newest();
            state.is_some_and(|state| state.allocations().iter().any(|row| row.job == key))
        };
        let planned = async {
            register(world.clone(), late).await;
            aimed::moment(world, PLANNED, is_planned).await;
        };
        aimed::leave_behind_at_last(world, &mut dice, planned).await;
        // The evaluation may have been given to the server that is behind, twice: the first time its reply was lost, and the second time it
        // waited for the state until the lease had ended.
        let leases = 2 * Duration::from_millis(world.swarm.nack_ms) + REDELIVERED;
        if !world.wait("I39: a new job is planned", PLACED + leases, is_planned).await {
            return Ok(false);
        }
    } else {
        register(world.clone(), late).await;
    }
    let placed = |world: &World| {
        world.newest().is_some_and(|state| jobs::running(&state, &key) == INSTANCES as usize)
    };
    if !world.wait("I39: a new job runs", PLACED, placed).await {
        return Ok(false);
    }
    evaluate(world, "early").await;
    let done = |world: &World| is_idle(world) && unsettled(world).is_empty();
    if world.wait("I56: every evaluation came to its end", DRAINED, done).await {
        return Ok(true);
    }
    unsettled(world).into_iter().for_each(verdict::fail);
    Ok(false)
}

/// Whether the leader's services have nothing to do.
fn is_idle(world: &World) -> bool {
    let leader = world.leader().and_then(|leader| world.core(leader));
    leader.is_some_and(|core| core.leading().is_some_and(|services| services.is_idle()))
}

/// What is not yet as it has to be when faults are over and everything had its time.
fn unsettled(world: &World) -> Vec<String> {
    let Some(state) = world.newest() else { return vec!["nobody has a state".into()] };
    let mut found = Vec::new();
    if !is_idle(world) {
        found.push("I56: the leader's services have work left".into());
    }
    for server in 0..world.count() {
        let Some(core) = world.core(server) else { continue };
        if core.leases_held() > 0 {
            found.push(format!("I23: a worker of s{server} does not let go of what it leased"));
        }
        if core.has_full_disk() {
            found.push(format!("I56: s{server} calls its disk full, and it is not"));
        }
    }
    if !is_complete(world, "early") {
        let of_job = state.allocations().iter().filter(|one| one.job == key("early"));
        let each: Vec<String> = of_job
            .map(|one| format!("{} {:?} {:?}", one.name(), one.desired, one.client))
            .collect();
        found.push(format!("I56: job early is not complete: {each:?}"));
    }
    found.extend(jobs::not_as_wanted(&state));
    let broken = invariants::check_quiet(&state, &BTreeSet::new());
    found.extend(broken.into_iter().map(|one| one.to_string()));
    found.extend(running::strays(&state));
    found.extend(running::unasked(&state));
    found
}

/// All servers at one index, with one digest, without a broken invariant, with every acknowledged write.
async fn last_checks(world: &World, shared: &Shared) -> bool {
    let level = |world: &World| {
        let applied = |server| world.core(server).map(|core| core.applied());
        let first = applied(0);
        first.is_some() && (1..world.count()).all(|server| applied(server) == first)
    };
    if !world.wait("all servers at one index", CONVERGE, level).await {
        return false;
    }
    // A server that started a moment ago has yet to look at how long its log is.
    let is_small = |world: &World| (0..world.count()).all(|one| world.check_size(one).is_ok());
    if !world.wait("I53: what servers keep is bounded", CUT, is_small).await {
        (0..world.count()).for_each(|server| verdict::note(world.check_size(server)));
        return false;
    }
    // Meanwhile the leader may have written.
    if !world.wait("all servers at one index", CONVERGE, level).await {
        return false;
    }
    let mut digests = Vec::new();
    for server in 0..world.count() {
        let Some(core) = world.core(server) else { continue };
        let state = core.cell.load();
        digests.push((state.index(), state.digest()));
        let broken = invariants::check_state(&state).into_iter();
        for one in broken.chain(invariants::check_round_trip(&state)) {
            verdict::fail(format!("{one} (at the end of s{server})"));
        }
        shared.finish(&state);
    }
    let mut members = Vec::new();
    for server in 0..world.count() {
        world.judge_disk(server, true);
        let infos = world.core(server).map(|core| core.contact.member_infos()).unwrap_or_default();
        members.push(
            infos.into_iter().map(|one| (one.id, one.voter, one.rpc_address)).collect::<Vec<_>>(),
        );
    }
    if let Some((id, _, _)) = members.iter().flatten().find(|(_, voter, _)| !voter) {
        verdict::fail(format!("B15: {id:x} is a member at the end, and does not vote"));
    }
    if members.iter().any(|known| *known != members[0]) {
        verdict::fail(format!("B15: the servers know different members: {members:x?}"));
    }
    if digests.iter().any(|digest| *digest != digests[0]) {
        verdict::fail(format!("I8: the servers' digests differ: {digests:?}"));
    }
    if let Some(index) = world.newest().map(|state| state.index()) {
        world.check_durable(index);
    }
    // Last: it takes time, in which a server may apply what others have not yet.
    for server in 0..world.count() {
        world.note_snapshot(server).await;
    }
    !verdict::has_failed()
}

fn batch_job(id: &str) -> anyhow::Result<JobSpec> {
    client::job(&format!(
        r#"job "{id}" {{
             type = "batch"
             group "work" {{
               count = {INSTANCES}
               reschedule {{
                 attempts = 20
                 interval = "1h"
                 delay = "5s"
                 delay_function = "constant"
                 unlimited = false
               }}
               task "task" {{
                 driver = "mock"
                 config {{ run_for = "700ms" }}
                 resources {{
                   cpu = 100
                   memory = 64
                 }}
               }}
             }}
           }}"#
    ))
}

fn service_job(id: &str) -> anyhow::Result<JobSpec> {
    client::job(&format!(
        r#"job "{id}" {{
             group "work" {{
               count = {INSTANCES}
               task "task" {{
                 driver = "mock"
                 resources {{
                   cpu = 100
                   memory = 64
                 }}
               }}
             }}
           }}"#
    ))
}

/// Asks any server for something, as often as it takes.
async fn insist(world: &World, what: &str, command: Command, done: fn(&Reply) -> bool) {
    for attempt in 0.. {
        let server = attempt % world.count();
        let command = command.clone();
        let work = move |core: Arc<Core>| async move {
            core.write(&CALLER, command, None, Duration::from_secs(5)).await
        };
        match world.inside(server, work).await {
            Some(Ok(written)) => {
                trace::event("job", format_args!("{what}: {:?}", written.reply));
                if done(&written.reply) {
                    return;
                }
            }
            Some(Err(error)) => trace::event("job", format_args!("{what}: {error}")),
            None => {}
        }
        rt::sleep(Duration::from_millis(200)).await;
    }
}

/// Registers a job: registering the same again changes nothing.
async fn register(world: World, spec: JobSpec) {
    let id = Arc::clone(&spec.key.id);
    let command = Command::from(RegisterJob {
        enforce_index: Some(0),
        ..RegisterJob::new(Arc::new(spec), EvaluationId(rt::random_id()))
    });
    insist(&world, &id, command, |reply| {
        matches!(
            reply,
            Reply::Job { .. } | Reply::Rejected(fsm::Rejection::JobIndexConflict { .. })
        )
    })
    .await;
}

/// Before any other setting is changed. It takes effect once, also when it is sent again.
async fn set_node_life(world: &World, node_life: NodeLife) {
    let state = world.newest();
    let known = state.map(|state| state.scheduler_configuration()).unwrap_or_default();
    let enforce_index = Some(known.modify_index);
    let command = Command::from(SetSchedulerConfiguration {
        configuration: SchedulerConfiguration { node_life, ..known },
        keep_node_life: false,
        enforce_index,
    });
    insist(world, "node life", command, |reply| {
        matches!(reply, Reply::Done | Reply::Rejected(fsm::Rejection::IndexConflict { .. }))
    })
    .await;
}

/// An evaluation that failed too often in the faults would come again after minutes only.
async fn evaluate(world: &World, id: &str) {
    let command = Command::from(EvaluateJob {
        job: key(id),
        force_reschedule: false,
        evaluation: EvaluationId(rt::random_id()),
    });
    insist(world, id, command, |_| true).await;
}

fn key(id: &str) -> JobKey {
    JobKey { namespace: "default".into(), id: id.into() }
}

fn is_complete(world: &World, id: &str) -> bool {
    let Some(state) = world.newest() else { return false };
    let summary = state.job_index(&key(id)).map(|index| index.summary.clone()).unwrap_or_default();
    summary.values().map(|group| group.complete).sum::<u32>() >= INSTANCES
}
