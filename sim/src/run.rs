//! One run of one seed: bootstrap, work under faults, healing, convergence, last checks.

use std::{sync::Arc, time::Duration};

use fsm::{Command, EvaluationId, JobSpec, Reply};
use quorate::{
    rt::{self, Instant, watch},
    server::api::Api,
};

use crate::{
    agent::Agent,
    client::{self, Ended, REGISTERS, Shared},
    dice::Dice,
    nemesis::Nemesis,
    trace,
    world::World,
};

const CLIENTS: usize = 3;
const AGENTS: usize = 2;
/// From the end of all faults to a cluster that answers everywhere.
const CONVERGE: Duration = Duration::from_secs(30);
/// From then to the end of a job: a lease lost in the faults comes back after its nack timer.
const JOB_DONE: Duration = Duration::from_secs(150);
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

/// How many servers a seed has unless it is told.
pub(crate) fn servers_of(seed: u64) -> usize {
    match Dice::new(seed, "servers").below(10) {
        0 => 1,
        1 | 2 => 5,
        _ => 3,
    }
}

/// Runs a seed on this thread, which must not have run another one.
pub(crate) fn run(seed: u64, servers: usize) -> anyhow::Result<Outcome> {
    rt::enter_simulation(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()))
        .build()?;
    runtime.block_on(live(seed, servers))
}

async fn live(seed: u64, servers: usize) -> anyhow::Result<Outcome> {
    trace::event("run", format_args!("seed {seed}, {servers} servers"));
    let world = World::new(seed, servers);
    let shared = Shared::new(world.clone())?;
    let passed = phases(seed, &world, &shared).await?;
    let mut failures = world.failures();
    if !passed && failures.is_empty() {
        failures.push("the run ended early".to_owned());
    }
    let writes = shared.writes();
    let virtual_time = rt::simulated_elapsed();
    Ok(Outcome { failures, writes, messages: world.network.messages(), virtual_time })
}

/// Runs phase after phase as long as nothing is wrong.
async fn phases(seed: u64, world: &World, shared: &Shared) -> anyhow::Result<bool> {
    let mut dice = Dice::new(seed, "run");
    for server in 0..world.count() {
        world.start(server);
        rt::sleep(Duration::from_millis(dice.below(400))).await;
    }
    if !world.wait("a leader", Duration::from_secs(30), |world| world.leader().is_some()).await {
        return Ok(false);
    }
    let (stop, stopped) = watch::channel(false);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let dice = Dice::new(seed, &format!("client {number}"));
            rt::spawn(shared.clone().run(number, dice, stopped.clone()))
        })
        .collect();
    let agents: Vec<_> = (0..AGENTS)
        .map(|number| {
            let dice = Dice::new(seed, &format!("agent {number}"));
            let agent = Agent::new(number, &world.network, world.count(), dice);
            rt::spawn(agent.run(stopped.clone()))
        })
        .collect();
    rt::sleep(Duration::from_secs(2)).await;
    let early = rt::spawn(register(world.clone(), batch_job("early")?));

    let mut nemesis = Nemesis::new(seed, world.clone());
    nemesis.run(Duration::from_millis(dice.between(8_000, 20_000))).await;
    nemesis.heal();
    if !converged(world, shared).await {
        return Ok(false);
    }
    drop(early.await);
    drop(rt::spawn(register(world.clone(), batch_job("late")?)).await);
    let done = |world: &World| is_complete(world, "early") && is_complete(world, "late");
    if !world.wait("both jobs complete", JOB_DONE, done).await {
        return Ok(false);
    }
    stop.send_replace(true);
    for task in clients.into_iter().chain(agents) {
        drop(task.await);
    }
    Ok(last_checks(world, shared).await)
}

/// Every server answers, and takes writes.
async fn converged(world: &World, shared: &Shared) -> bool {
    let deadline = Instant::now() + CONVERGE;
    let recovered = |world: &World| {
        let is_there = |server| {
            let core = world.core(server);
            core.is_some_and(|core| core.has_recovered() && core.leader().is_some())
        };
        (0..world.count()).all(is_there)
    };
    if !world.wait("every server recovered", CONVERGE, recovered).await {
        return false;
    }
    for server in 0..world.count() {
        for register in 0..REGISTERS {
            while shared.write("final", server, register).await != Ended::Done
                || shared.read("final", server, register).await != Ended::Done
            {
                if Instant::now() >= deadline {
                    world.fail(format!("s{server} does not answer {CONVERGE:?} after the faults"));
                    return false;
                }
                rt::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    true
}

/// All servers at one index, with one digest, without a broken invariant, with every acknowledged write.
async fn last_checks(world: &World, shared: &Shared) -> bool {
    rt::sleep(Duration::from_secs(1)).await;
    let level = |world: &World| {
        let applied = |server| world.core(server).map(|core| core.applied());
        let first = applied(0);
        first.is_some() && (1..world.count()).all(|server| applied(server) == first)
    };
    if !world.wait("all servers at one index", CONVERGE, level).await {
        return false;
    }
    let mut digests = Vec::new();
    for server in 0..world.count() {
        let Some(core) = world.core(server) else { continue };
        let state = core.cell.load();
        digests.push((state.head.index, state.digest()));
        for violation in fsm::invariant::check(&state) {
            world.fail(format!("s{server}: {}: {}", violation.name, violation.detail));
        }
        shared.finish(&state);
    }
    if digests.iter().any(|digest| *digest != digests[0]) {
        world.fail(format!("the servers' digests differ: {digests:?}"));
    }
    world.failures().is_empty()
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
                 resources {{
                   cpu = 100
                   memory = 64
                 }}
               }}
             }}
           }}"#
    ))
}

/// Registers a job through any server, as often as it takes: registering the same again changes nothing.
async fn register(world: World, spec: JobSpec) {
    let spec = Arc::new(spec);
    for attempt in 0.. {
        let server = attempt % world.count();
        let spec = Arc::clone(&spec);
        let id = Arc::clone(&spec.key.id);
        let work = move |core: Arc<quorate::server::Core>| async move {
            let command = Command::RegisterJob {
                spec,
                enforce_index: Some(0),
                evaluation: EvaluationId(core.new_id()),
                evaluation_priority: None,
            };
            core.write(command, None, Duration::from_secs(5)).await
        };
        match world.inside(server, work).await {
            Some(Ok(written)) => {
                trace::event("job", format_args!("{id}: {:?}", written.reply));
                if matches!(
                    written.reply,
                    Reply::Job { .. } | Reply::Rejected(fsm::Rejection::JobIndexConflict { .. })
                ) {
                    return;
                }
            }
            Some(Err(error)) => trace::event("job", format_args!("{id}: {error}")),
            None => {}
        }
        rt::sleep(Duration::from_millis(200)).await;
    }
}

fn is_complete(world: &World, id: &str) -> bool {
    let Some(core) = world.leader().and_then(|leader| world.core(leader)) else { return false };
    let state = core.cell.load();
    let key = fsm::JobKey { namespace: "default".into(), id: id.into() };
    let summary = state.job_index(&key).map(|index| index.summary.clone()).unwrap_or_default();
    summary.values().map(|group| group.complete).sum::<u32>() >= INSTANCES
}
