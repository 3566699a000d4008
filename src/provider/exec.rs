//! Machines that a program makes, which speaks lines of JSON on its standard input and output. The
//! protocol is in docs/providers.md.
//!
//! The program is started by the first call that needs it and runs on. When it has ended, the next
//! call starts it again, after a pause that doubles until a run has lasted. Must never make a call
//! twice: what came of those that waited when it ended is unknown.

mod child;
mod lines;
pub(super) mod program;
mod protocol;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use elastic::call::{Answer, ErrorClass, Operation, ProviderError, TAG_CLUSTER};
use futures_util::future::BoxFuture;

use self::program::{Ended, Program, Stderr};
use super::{Context, Provider};
use ground::rt::{Instant, locked, sleep_until};
use server::provider::ProviderKind;

/// Pause before a program is started again; doubled each time, up to the longest.
const RESTART_PAUSE_MIN: Duration = Duration::from_millis(200);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(30);
/// After a run of this length the pause is the shortest again.
const RUN_LASTING: Duration = Duration::from_mins(1);

/// The provider of kind `exec`.
pub(super) struct ExecProvider {
    name: Arc<str>,
    command: Mutex<Vec<String>>,
    slot: Mutex<Slot>,
}

/// The program that runs now, or when the next one may be started.
#[derive(Default)]
struct Slot {
    program: Option<Arc<Program>>,
    /// Runs in a row that did not last.
    failures: u32,
    /// When the next may be started, and why the last one ended.
    pause: Option<(Instant, String)>,
}

impl Slot {
    /// Notes the end of a run. Answers with the pause until the next.
    fn fail(&mut self, at: Instant, lived: Duration, why: &str) -> Duration {
        if lived >= RUN_LASTING {
            self.failures = 0;
        }
        let pause = restart_pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.program = None;
        self.pause = Some((at + pause, why.to_owned()));
        pause
    }
}

fn restart_pause(failures: u32) -> Duration {
    let factor = 2_u32.checked_pow(failures).unwrap_or(u32::MAX);
    RESTART_PAUSE_MIN.saturating_mul(factor).min(RESTART_PAUSE_MAX)
}

impl ExecProvider {
    /// A provider of this name in the configuration, whose program is not started yet.
    pub(super) fn new(name: &str, command: Vec<String>) -> Self {
        Self { name: name.into(), command: Mutex::new(command), slot: Mutex::default() }
    }

    /// The program that runs, or one that is started now; or until when none may be, and why.
    fn program(&self, now: Instant) -> Result<Arc<Program>, (Instant, String)> {
        let mut slot = locked(&self.slot);
        if let Some(program) = &slot.program {
            let Some(Ended { at, lived, why, .. }) = program.ended() else {
                return Ok(Arc::clone(program));
            };
            let pause = slot.fail(at, lived, &why);
            self.log(&why, pause);
        }
        if let Some(pause) = slot.pause.clone().filter(|(until, _)| *until > now) {
            return Err(pause);
        }
        let command = locked(&self.command).clone();
        match Program::start(&command, Stderr::Log(Arc::clone(&self.name))) {
            Ok(program) => {
                let program = Arc::new(program);
                slot.program = Some(Arc::clone(&program));
                Ok(program)
            }
            Err(error) => {
                let program = command.first().map_or("", String::as_str);
                let why = format!("{program}: {error}");
                let pause = slot.fail(now, Duration::ZERO, &why);
                self.log(&why, pause);
                Err((now + pause, why))
            }
        }
    }

    fn log(&self, why: &str, pause: Duration) {
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(provider = &*self.name, why, pause_ms, "the program of a provider ended");
    }

    /// Waits, if it must, until a program runs.
    async fn running(&self, deadline: Instant) -> Result<Arc<Program>, ProviderError> {
        loop {
            let (until, why) = match self.program(Instant::now()) {
                Ok(program) => return Ok(program),
                Err(pause) => pause,
            };
            if until >= deadline {
                let text = format!("the program ended and is not started again yet: {why}");
                return Err(ProviderError::new(ErrorClass::Transient, &text));
            }
            sleep_until(until).await;
        }
    }
}

impl Provider for ExecProvider {
    /// The program that runs ends with its last call; the next call starts the new one.
    fn reload(&self, kind: &ProviderKind) -> bool {
        let ProviderKind::Exec { command } = kind else { return false };
        locked(&self.command).clone_from(command);
        *locked(&self.slot) = Slot::default();
        tracing::info!(provider = &*self.name, "the program of a provider is started anew");
        true
    }

    fn call(
        &self,
        operation: Operation,
        context: Context,
    ) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        Box::pin(async move {
            let deadline = Instant::now() + context.time_left;
            let program = self.running(deadline).await?;
            let time_left = deadline.saturating_duration_since(Instant::now());
            let context = Context { time_left, ..context };
            let answer = program.call(&operation, &context).await?;
            Ok(of_cluster(answer, &context))
        })
    }
}

/// A list without machines that do not have the tag of this cluster: whatever else a program shows,
/// it is not ours to destroy. A known machine that has no tag of any cluster has lost it, and is
/// there.
fn of_cluster(answer: Answer, context: &Context) -> Answer {
    match answer {
        Answer::Listed(mut listing) => {
            listing.machines.retain(|machine| match machine.tags.get(TAG_CLUSTER) {
                Some(cluster) => *cluster == context.cluster,
                None => context.known.contains(&machine.provider_id),
            });
            Answer::Listed(listing)
        }
        other @ (Answer::Created(_)
        | Answer::Destroyed(_)
        | Answer::Tagged
        | Answer::Described(_)) => other,
    }
}
