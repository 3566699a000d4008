//! Clients: they write registers by compare-and-set and read them through any server, one operation at a time, and tell the oracle.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::{Command, EvaluationId, JobKey, JobSpec, Rejection, Reply, State};
use quorate::{
    jobspec,
    rt::{self, watch},
    server::{
        Core,
        api::{Api, ApiError, ReadMode},
    },
};

use crate::{
    dice::Dice,
    oracle::{Oracle, Version},
    trace,
    world::World,
};

/// Registers that clients share.
pub(crate) const REGISTERS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(5);
const META_KEY: &str = "value";

/// What all clients share.
#[derive(Clone)]
pub(crate) struct Shared {
    world: World,
    oracle: Arc<Mutex<Oracle>>,
    template: Arc<JobSpec>,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// It was answered.
    Done,
    /// It was not, or the answer is not known.
    Failed,
}

/// A job from a job file.
pub(crate) fn job(source: &str) -> anyhow::Result<JobSpec> {
    let json = jobspec::parse("sim.hcl", source).map_err(|error| anyhow::anyhow!("{error}"))?;
    let converted = jobspec::to_spec(&json);
    converted.map(|done| done.spec).map_err(|errors| anyhow::anyhow!("{errors:?}"))
}

fn key_of(register: usize) -> JobKey {
    JobKey { namespace: "default".into(), id: format!("register-{register}").into() }
}

/// What a state says of a register.
fn version_in(state: &State, register: usize) -> Version {
    let Some(row) = state.jobs.get(&key_of(register)) else { return (0, 0) };
    let value = state.current_spec(row).and_then(|spec| spec.meta.get(META_KEY)?.parse().ok());
    (row.job_modify_index, value.unwrap_or(0))
}

impl Shared {
    /// Clients of this world.
    pub(crate) fn new(world: World) -> anyhow::Result<Self> {
        let template = job(r#"job "register" {
                 type = "batch"
                 parameterized { payload = "optional" }
                 group "g" {
                   task "t" { driver = "mock" }
                 }
               }"#)?;
        Ok(Self { world, oracle: Arc::default(), template: Arc::new(template) })
    }

    fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, judged: Result<(), String>) {
        if let Err(what) = judged {
            self.world.fail(what);
        }
    }

    fn command(&self, register: usize, value: u64, expected: u64, evaluation: [u8; 16]) -> Command {
        let mut spec = (*self.template).clone();
        spec.key = key_of(register);
        spec.name = Arc::clone(&spec.key.id);
        spec.meta.insert(META_KEY.into(), value.to_string().into());
        Command::RegisterJob {
            spec: Arc::new(spec),
            enforce_index: Some(expected),
            evaluation: EvaluationId(evaluation),
            evaluation_priority: None,
        }
    }

    /// Writes a register through a server.
    pub(crate) async fn write(&self, who: &str, server: usize, register: usize) -> Ended {
        let (expected, value) = {
            let mut oracle = self.oracle();
            let expected = oracle.newest(register);
            (expected, oracle.begin_write(register, expected))
        };
        trace::event(
            who,
            format_args!("write {value} to {register} after {expected} via s{server}"),
        );
        let shared = self.clone();
        let work = move |core: Arc<Core>| async move {
            let command = shared.command(register, value, expected, core.new_id());
            core.write(command, None, TIMEOUT).await
        };
        let answer = self.world.inside(server, work).await;
        let written = match answer {
            None => {
                trace::event(who, format_args!("write {value}: the server is gone"));
                return Ended::Failed;
            }
            Some(Err(error)) => {
                trace::event(who, format_args!("write {value}: {error}"));
                if is_certain(&error) {
                    let refused = self.oracle().refused(value);
                    self.note(refused);
                }
                return Ended::Failed;
            }
            Some(Ok(written)) => written,
        };
        trace::event(who, format_args!("write {value}: {:?}", written.reply));
        let judged = match written.reply {
            Reply::Job { job_modify_index, .. } => {
                self.oracle().acknowledged(value, job_modify_index)
            }
            Reply::Rejected(Rejection::JobIndexConflict { .. }) => self.oracle().refused(value),
            Reply::Rejected(Rejection::SessionExpired) => return Ended::Failed,
            other @ (Reply::Done
            | Reply::Rejected(_)
            | Reply::Node { .. }
            | Reply::Evaluations(_)
            | Reply::Plans(_)
            | Reply::Collected(_)) => Err(format!("write {value} was answered {other:?}")),
        };
        self.note(judged);
        Ended::Done
    }

    /// Reads a register through a server, linearizably.
    pub(crate) async fn read(&self, who: &str, server: usize, register: usize) -> Ended {
        let read = self.oracle().begin_read(register);
        trace::event(who, format_args!("read {register} via s{server}"));
        let work = move |core: Arc<Core>| async move {
            let snapshot = core.read(ReadMode::Linearizable, 0, TIMEOUT).await;
            snapshot.map(|snapshot| version_in(&snapshot.state, register))
        };
        match self.world.inside(server, work).await {
            None => trace::event(who, format_args!("read {register}: the server is gone")),
            Some(Err(error)) => trace::event(who, format_args!("read {register}: {error}")),
            Some(Ok(version)) => {
                trace::event(who, format_args!("read {register}: {} at {}", version.1, version.0));
                let judged = self.oracle().read(read, version);
                self.note(judged);
                return Ended::Done;
            }
        }
        Ended::Failed
    }

    /// One client: operations until told to stop.
    pub(crate) async fn run(self, number: usize, mut dice: Dice, mut stop: watch::Receiver<bool>) {
        let who = format!("c{number}");
        let servers = self.world.count();
        while !*stop.borrow() {
            // Pinned as a rule, so that each server answers somebody all the time.
            let server = if dice.below(4) == 0 { dice.index(servers) } else { number % servers };
            let register = dice.index(REGISTERS);
            let ended = if dice.below(3) == 0 {
                self.read(&who, server, register).await
            } else {
                self.write(&who, server, register).await
            };
            let pause = if ended == Ended::Done { 40 } else { 300 };
            let pause = Duration::from_millis(dice.between(1, pause));
            drop(rt::timeout(pause, rt::until_true(&mut stop)).await);
        }
    }

    /// Writes that anyone knows to have taken effect.
    pub(crate) fn writes(&self) -> usize {
        self.oracle().done()
    }

    /// Judges the registers as a server has them at the end.
    pub(crate) fn finish(&self, state: &State) {
        let registers: BTreeMap<usize, Version> =
            (0..REGISTERS).map(|register| (register, version_in(state, register))).collect();
        for what in self.oracle().finish(&registers) {
            self.world.fail(what);
        }
    }
}

/// Whether this answer means that the write did not and will not take effect.
fn is_certain(error: &ApiError) -> bool {
    match error {
        ApiError::Timeout { proposed } => !proposed,
        ApiError::NoLeader
        | ApiError::Overloaded { .. }
        | ApiError::DiskFull(_)
        | ApiError::Invalid(_) => true,
        // A forwarded write may have been proposed by a server that then said it is not ready.
        ApiError::NotReady(_) | ApiError::Unknown => false,
    }
}
