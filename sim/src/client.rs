//! Clients: they write registers by compare-and-set and read them through any server, one operation at a time, and tell the oracle.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::{
    Command, EvaluationId, JobKey, JobSpec, Rejection, Reply, RequestId, State, job::RegisterJob,
    table::TableId,
};

use crate::{
    coverage,
    oracle::{Oracle, Version},
    services::CALLER,
    trace, verdict,
    world::World,
};
use chance::Dice;
use ground::rt::{self, Instant, watch};
use server::Core;
use wire::api::{Api, ApiError, ReadMode};

/// Registers that clients share.
pub(crate) const REGISTERS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(5);
const META_KEY: &str = "value";
/// Of so many acknowledged writes one is looked for on the disks of the servers.
const DURABLE_EVERY: u64 = 64;
/// How long a blocking query waits, and when its patience is looked at.
const BLOCK: Duration = Duration::from_secs(5);

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
    /// It changed nothing, or was a read.
    Failed,
    /// Nobody knows what became of it.
    Unknown,
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
    let Some(row) = state.jobs().get(&key_of(register)) else { return (0, 0) };
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

    fn command(&self, register: usize, value: u64, expected: u64, evaluation: [u8; 16]) -> Command {
        let mut spec = (*self.template).clone();
        spec.key = key_of(register);
        spec.name = Arc::clone(&spec.key.id);
        spec.meta.insert(META_KEY.into(), value.to_string().into());
        Command::from(RegisterJob {
            enforce_index: Some(expected),
            ..RegisterJob::new(Arc::new(spec), EvaluationId(evaluation))
        })
    }

    /// Writes a register through a server; when nobody can say what became of it, perhaps once more, under the same request id, through another.
    pub(crate) async fn write(
        &self,
        who: &str,
        server: usize,
        register: usize,
        again: Option<usize>,
    ) -> Ended {
        let (expected, value) = {
            let mut oracle = self.oracle();
            let expected = oracle.newest(register);
            (expected, oracle.begin_write(register, expected))
        };
        trace::event(
            who,
            format_args!("write {value} to {register} after {expected} via s{server}"),
        );
        let request = RequestId(rt::random_id());
        let command = self.command(register, value, expected, rt::random_id());
        // Most users give no key of their own: then the server that was asked makes one.
        let is_named = again.is_some() || value.is_multiple_of(2);
        let answer = self.ask(server, command.clone(), request, is_named).await;
        let ended = self.judge_write(who, value, answer, true);
        let Some(other) = again.filter(|_| ended == Ended::Unknown) else { return ended };
        coverage::hit("a request was sent again under its id");
        trace::event(who, format_args!("write {value} again via s{other}"));
        let answer = self.ask(other, command, request, true).await;
        self.judge_write(who, value, answer, false)
    }

    async fn ask(
        &self,
        server: usize,
        command: Command,
        request: RequestId,
        is_named: bool,
    ) -> Option<Result<wire::api::Written, ApiError>> {
        let limit = self.world.swarm.patience(request);
        let named = is_named.then_some(request);
        let work =
            move |core: Arc<Core>| async move { core.write(&CALLER, command, named, limit).await };
        let begin = Instant::now();
        let answer = self.world.inside(server, work).await;
        self.world.keeps_deadline(server, begin, limit, answer.is_some(), "a write");
        answer
    }

    /// `first`: an error that is certain to have changed nothing says so of the whole write.
    fn judge_write(
        &self,
        who: &str,
        value: u64,
        answer: Option<Result<wire::api::Written, ApiError>>,
        first: bool,
    ) -> Ended {
        let written = match answer {
            Some(Ok(written)) => written,
            Some(Err(error)) => {
                trace::event(who, format_args!("write {value}: {error}"));
                if matches!(error, ApiError::DiskFull(_)) {
                    coverage::hit("a write was turned away for want of room");
                }
                if first && is_certain(&error) && !self.world.may_repeat() {
                    verdict::note(self.oracle().refused(value));
                    return Ended::Failed;
                }
                self.oracle().unknown(value);
                return Ended::Unknown;
            }
            None => {
                trace::event(who, format_args!("write {value}: the server is gone"));
                self.oracle().unknown(value);
                return Ended::Unknown;
            }
        };
        trace::event(who, format_args!("write {value}: {:?}", written.reply));
        let judged = match written.reply {
            Reply::Job { job_modify_index, .. } => {
                self.world.acknowledged(job_modify_index);
                if written.index != job_modify_index {
                    verdict::fail(format!(
                        "I14: write {value} changed its job at {job_modify_index} and was told index {}",
                        written.index
                    ));
                }
                if value.is_multiple_of(DURABLE_EVERY) {
                    self.world.check_durable(job_modify_index);
                }
                self.oracle().acknowledged(value, job_modify_index)
            }
            Reply::Rejected(Rejection::JobIndexConflict { found, .. }) => {
                self.oracle().conflicted(value, written.index, &found)
            }
            // A run is over long before a request may be forgotten.
            Reply::Rejected(Rejection::SessionExpired) => {
                self.oracle().unknown(value);
                Err(format!("P4: write {value} was called expired, a moment after it began"))
            }
            other @ (Reply::Done
            | Reply::Rejected(_)
            | Reply::Node { .. }
            | Reply::Evaluations(_)
            | Reply::Plans(_)
            | Reply::Deployment { .. }
            | Reply::Dispatched(_)
            | Reply::Collected(_)
            | Reply::Requirements(_)) => Err(format!("write {value} was answered {other:?}")),
        };
        verdict::note(judged);
        Ended::Done
    }

    /// Reads a register through a server, linearizably.
    pub(crate) async fn read(&self, who: &str, server: usize, register: usize) -> Ended {
        let read = self.oracle().begin_read(register);
        trace::event(who, format_args!("read {register} via s{server}"));
        let work = move |core: Arc<Core>| async move {
            let snapshot = core.read(&CALLER, ReadMode::Linearizable, 0, TIMEOUT).await;
            snapshot.map(|snapshot| (snapshot.state.index(), version_in(&snapshot.state, register)))
        };
        let begin = Instant::now();
        let answer = self.world.inside(server, work).await;
        self.world.keeps_deadline(server, begin, TIMEOUT, answer.is_some(), "a read");
        match answer {
            None => trace::event(who, format_args!("read {register}: the server is gone")),
            Some(Err(error)) => trace::event(who, format_args!("read {register}: {error}")),
            Some(Ok((index, version))) => {
                trace::event(who, format_args!("read {register}: {} at {}", version.1, version.0));
                verdict::note(self.oracle().read(read, version));
                verdict::note(self.oracle().read_at(read, index));
                return Ended::Done;
            }
        }
        Ended::Failed
    }

    /// I16: blocking queries on one server: they end for a change or for the time, and miss no change.
    pub(crate) async fn watch(self, server: usize, stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let work = |core: Arc<Core>| async move {
                let after = core.cell.load().table_index(TableId::Jobs);
                let begin = rt::Instant::now();
                let look = async {
                    rt::sleep(BLOCK.saturating_sub(Duration::from_millis(100))).await;
                    core.cell.load().table_index(TableId::Jobs)
                };
                let wait = async {
                    core.changed(&CALLER, &[TableId::Jobs], after, BLOCK).await;
                    (begin.elapsed(), core.cell.load().table_index(TableId::Jobs))
                };
                let mut looked = None;
                let (mut look, mut wait) = (std::pin::pin!(look), std::pin::pin!(wait));
                let (waited, now) = loop {
                    rt::select! {
                        biased;
                        done = &mut wait => break done,
                        seen = &mut look, if looked.is_none() => looked = Some(seen),
                    }
                };
                judge_block(after, waited, looked, now)
            };
            match self.world.inside(server, work).await {
                Some(judged) => {
                    verdict::note(judged.map_err(|what| format!("I16: s{server}: {what}")));
                }
                None => rt::sleep(Duration::from_millis(500)).await,
            }
        }
    }

    /// One client: operations until told to stop.
    pub(crate) async fn run(self, number: usize, mut dice: Dice, mut stop: watch::Receiver<bool>) {
        let who = format!("c{number}");
        let servers = self.world.count();
        let think_ms_max = self.world.swarm.think_ms_max;
        while !*stop.borrow() {
            // Pinned as a rule, so that each server answers somebody all the time.
            let server = if dice.below(4) == 0 { dice.index(servers) } else { number % servers };
            let register = dice.index(REGISTERS);
            let ended = if dice.below(3) == 0 {
                self.read(&who, server, register).await
            } else {
                let again = (dice.below(2) == 0).then(|| dice.index(servers));
                self.write(&who, server, register, again).await
            };
            let pause = if ended == Ended::Done { think_ms_max } else { 300 };
            let pause = Duration::from_millis(dice.between(1, pause));
            drop(rt::timeout(pause, rt::until_true(&mut stop)).await);
        }
    }

    /// Somebody was shown this state without the leader: what it says of the registers was written, and is known from now on (I13).
    pub(crate) fn was_shown(&self, state: &State) {
        let mut oracle = self.oracle();
        for register in 0..REGISTERS {
            verdict::note(oracle.was_shown(register, version_in(state, register)));
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
            verdict::fail(what);
        }
    }
}

/// What a blocking query after index `after` came back with: after which time, what was there shortly before its end, and what is there now.
fn judge_block(
    after: fsm::Index,
    waited: Duration,
    shortly_before: Option<fsm::Index>,
    now: fsm::Index,
) -> Result<(), String> {
    if waited < BLOCK {
        return if now > after {
            Ok(())
        } else {
            Err(format!("a blocking query after {after} came back after {waited:?} for nothing"))
        };
    }
    // A server that stood still in between is late for everything.
    let is_late = waited > BLOCK + Duration::from_millis(50);
    match shortly_before {
        Some(seen) if seen > after && !is_late => Err(format!(
            "a blocking query after {after} slept for {waited:?} although {seen} was there"
        )),
        Some(_) | None => Ok(()),
    }
}

/// Whether this answer means that the write did not and will not take effect.
pub(crate) fn is_certain(error: &ApiError) -> bool {
    match error {
        ApiError::Timeout { proposed } => !proposed,
        ApiError::NoLeader
        | ApiError::Overloaded { .. }
        | ApiError::NotReady(_)
        | ApiError::DiskFull(_)
        | ApiError::Forbidden(_)
        | ApiError::Invalid(_) => true,
        ApiError::Unknown => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i16_a_blocking_query_that_wakes_for_nothing_or_sleeps_through_a_change_is_found() {
        let ms = Duration::from_millis;
        assert!(judge_block(5, ms(100), None, 6).is_ok());
        assert!(judge_block(5, ms(100), None, 5).is_err());
        assert!(judge_block(5, BLOCK, Some(5), 6).is_ok());
        assert!(judge_block(5, BLOCK, Some(6), 6).is_err());
        assert!(judge_block(5, BLOCK * 2, Some(6), 6).is_ok(), "the server stood still");
    }
}
