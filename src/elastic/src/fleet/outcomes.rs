//! What answers of providers mean, and the outcomes of creates that the state does not have yet.
//!
//! The outcome of a create is kept and proposed again until the state has it; the create is not
//! sent again meanwhile. It stands in the way of nothing else: an instance that is shut down before
//! the outcome is committed is destroyed as soon as its machine is known.

use std::sync::Arc;

use fsm::{
    Command, Instance, InstanceId, InstanceState, State, Text,
    command::PoolCommand,
    pool::{
        Behavior, CreateOutcome, DestroyOutcome, InstanceOutcome, NoteInstance, ShutdownCause,
        stray_id,
    },
};

use super::{ASK_AGAIN_MS, CallId, Fleet, calls::Flight, duty::is_silent, shut_down};
use crate::{
    call::{Answer, Call, Create, Description, Destroyed, MachineState, Operation, ProviderError},
    limits,
    sync::Asked,
};

/// Pause after a failed create, doubled with each, ms.
const CREATE_RETRY_MS: u64 = 1_000;
const CREATE_RETRY_MS_MAX: u64 = 30_000;

/// The outcome of a create that is not in the state yet. While it is kept the create is not sent
/// again.
#[derive(Debug)]
pub(super) struct Kept {
    outcome: InstanceOutcome,
    /// When it is proposed again.
    pub(super) again_at: u64,
}

impl Kept {
    /// Whether the state needs it no more: it has the machine, or a create that made none is not
    /// waited for any longer.
    pub(super) fn is_known(&self, state: &State) -> bool {
        let InstanceOutcome { id, provider, outcome, .. } = &self.outcome;
        let row = state.instances().get(id);
        match outcome {
            CreateOutcome::Made { provider_id, .. } => {
                let has_machine = |row: &Arc<Instance>| row.provider_id == *provider_id;
                let is_refused = |row: &Arc<Instance>| {
                    row.state == InstanceState::ShuttingDown && row.failed_at > 0
                };
                row.is_some_and(|row| has_machine(row) || is_refused(row))
                    || state.instances().contains(&stray_id(provider, provider_id))
            }
            CreateOutcome::Failed { .. } => {
                row.is_none_or(|row| row.state != InstanceState::Requested)
            }
        }
    }
}

impl Fleet {
    /// A call was answered; commands to propose.
    pub fn answered(
        &mut self,
        now: u64,
        state: &State,
        id: CallId,
        answer: Result<Answer, ProviderError>,
    ) -> Vec<Command> {
        let Some(flight) = self.flights.remove(&id) else { return Vec::new() };
        self.note_answer(now, state, &flight, &answer);
        if self.land(id, &flight) {
            // Something may have waited for the place.
            self.pools.values_mut().for_each(|watch| watch.is_dirty = true);
        }
        let row = flight.instance.and_then(|id| state.instances().get(&id)).cloned();
        if let Some(instance) = flight.instance {
            let attempt = self.attempts.entry(instance).or_default();
            attempt.call = attempt.call.filter(|call| *call != id);
            if row.is_none() {
                self.attempts.remove(&instance);
            }
        }
        if let Some(home) = row.as_ref().map(|row| row.pool.clone()) {
            self.touch(&home);
        }
        match &flight.call.operation {
            Operation::List => self.listed(now, state, &flight, answer),
            Operation::Create(create) => {
                if let Err(error) = &answer {
                    return self.create_failed(now, row.as_deref(), create, error);
                }
                let outcome = made(&flight.call.provider, create, &answer);
                outcome.map(|outcome| self.keep(now, outcome)).into_iter().collect()
            }
            Operation::Destroy { instance, .. } => {
                let pause = self.config.destroy_retry_ms;
                if let Some(attempt) = self.attempts.get_mut(instance) {
                    attempt.next_at = now.saturating_add(pause);
                }
                late(&flight.call, &answer).into_iter().collect()
            }
            Operation::Describe { instance, .. } => {
                if let (Some(attempt), Ok(_)) = (self.attempts.get_mut(instance), &answer) {
                    attempt.described_at = now;
                }
                row.map_or_else(Vec::new, |row| described(state, &row, answer))
            }
            Operation::SetTags { .. } => Vec::new(),
        }
    }

    fn create_failed(
        &mut self,
        now: u64,
        row: Option<&Instance>,
        create: &Create,
        error: &ProviderError,
    ) -> Vec<Command> {
        let Some(row) = row.filter(|row| row.state == InstanceState::Requested) else {
            return Vec::new();
        };
        let attempt = self.attempts.entry(row.id).or_default();
        let refusal = limits::refusal(&create.kind, error);
        attempt.failures = attempt.failures.saturating_add(1);
        let pause = CREATE_RETRY_MS << attempt.failures.min(5).saturating_sub(1);
        attempt.next_at = now.saturating_add(pause.min(CREATE_RETRY_MS_MAX));
        match refusal {
            Some(refusal) if !attempt.is_unknown => {
                let outcome = InstanceOutcome {
                    id: row.id,
                    provider: row.provider.clone(),
                    pool: row.pool.clone(),
                    kind: row.kind.name.clone(),
                    outcome: CreateOutcome::Failed {
                        class: refusal.class,
                        scope: refusal.scope,
                        for_ms: refusal.for_ms,
                        detail: refusal.detail,
                    },
                };
                vec![self.keep(now, outcome)]
            }
            // A machine may be there from another try: lists tell, after the deadline.
            Some(_) | None => {
                attempt.is_unknown = true;
                let (address, words) = (Text::default(), error.to_string().into());
                vec![Command::from(NoteInstance { id: row.id, address, words })]
            }
        }
    }

    /// The command of a create's outcome, which is proposed again until the state has it.
    fn keep(&mut self, now: u64, outcome: InstanceOutcome) -> Command {
        let machine = match &outcome.outcome {
            CreateOutcome::Made { provider_id, .. } => provider_id.clone(),
            CreateOutcome::Failed { .. } => Text::default(),
        };
        let command = Command::from(outcome.clone());
        let again_at = now.saturating_add(ASK_AGAIN_MS);
        self.kept.insert((outcome.id, machine), Kept { outcome, again_at });
        command
    }

    /// Proposes again what a create came to.
    pub(super) fn repeat_outcomes(&mut self, now: u64, state: &State, commands: &mut Vec<Command>) {
        if self.kept.values().all(|kept| kept.again_at > now) {
            return;
        }
        self.kept.retain(|_, kept| !kept.is_known(state));
        for kept in self.kept.values_mut().filter(|kept| kept.again_at <= now) {
            kept.again_at = now.saturating_add(ASK_AGAIN_MS);
            commands.push(Command::from(kept.outcome.clone()));
        }
    }

    /// Whether a create of an instance was answered, and the state does not have it yet.
    pub(super) fn is_answered(&self, id: InstanceId) -> bool {
        let from = (id, Text::default());
        self.kept.range(from..).next().is_some_and(|((kept, _), _)| *kept == id)
    }

    fn listed(
        &mut self,
        now: u64,
        state: &State,
        flight: &Flight,
        answer: Result<Answer, ProviderError>,
    ) -> Vec<Command> {
        let provider = &flight.call.provider;
        let Some(watch) = self.providers.get_mut(provider) else { return Vec::new() };
        let is_settling = state.instances().iter().any(|row| {
            row.provider == *provider
                && (row.missing > 0 || row.state == InstanceState::ShuttingDown)
        });
        let soon = self.config.list_interval_ms.min(self.config.destroy_retry_ms);
        let pause = if is_settling { soon } else { self.config.list_interval_ms };
        watch.next_list_at = now.saturating_add(pause);
        let Ok(Answer::Listed(list)) = answer else { return Vec::new() };
        let is_first = watch.lists.taken == 0;
        let is_wanted = |row: &Instance| row.state != InstanceState::ShuttingDown;
        let has_creates = state
            .instances()
            .iter()
            // Its agent may be here before its tags are: a bound row without an id, too.
            .any(|row| row.provider == *provider && row.provider_id.is_empty() && is_wanted(row))
            || self.flights.values().any(|flight| {
                flight.call.provider == *provider
                    && matches!(flight.call.operation, Operation::Create(_))
            })
            || self.kept.values().any(|kept| kept.outcome.provider == *provider);
        let asked = Asked {
            provider,
            began_at: flight.began_at,
            grace_ms: self.config.list_interval_ms.saturating_mul(2),
            has_creates,
        };
        let difference = watch.lists.compare(state, &asked, &list);
        if !difference.is_whole {
            watch.next_list_at = now.saturating_add(soon);
        }
        if is_first {
            // Creates and destroys waited for it.
            self.pools.values_mut().for_each(|watch| watch.is_dirty = true);
        }
        self.retag(now, state, &difference.wrong_tags);
        difference.command.map(Command::from).into_iter().collect()
    }
}

/// What a provider's word about a machine that boots, or whose node is silent, means.
fn described(state: &State, row: &Instance, answer: Result<Answer, ProviderError>) -> Vec<Command> {
    let Ok(Answer::Described(description)) = answer else { return Vec::new() };
    if row.state == InstanceState::Bound {
        return of_silent(state, row, &description).into_iter().collect();
    }
    if row.state != InstanceState::Booting {
        return Vec::new();
    }
    if description.state == MachineState::Broken && row.behavior != Behavior::Hold {
        let reason = format!("the provider says that it is broken: {}", description.words);
        return vec![shut_down(row.id, ShutdownCause::BootFailed, &reason)];
    }
    let is_new = description.words != row.last_words
        || (!description.address.is_empty() && description.address != row.address);
    let (address, words) = (description.address, description.words);
    let note = Command::from(NoteInstance { id: row.id, address, words });
    is_new.then_some(note).into_iter().collect()
}

/// The node of an instance is silent. If its provider says that there is no machine either, nobody
/// has to wait for lists; the destroy that follows says the same, or ends what is left of it.
fn of_silent(state: &State, row: &Instance, description: &Description) -> Option<Command> {
    let what = match description.state {
        MachineState::Gone => "gone",
        MachineState::Broken => "broken",
        MachineState::Booting | MachineState::Up => return None,
    };
    let is_kept = row.behavior == Behavior::Hold || state.is_set_aside(row);
    if is_kept || !is_silent(state, row) {
        return None;
    }
    let words = if description.words.is_empty() {
        String::new()
    } else {
        format!(": {}", description.words)
    };
    let reason =
        format!("its node is not heard, and the provider says that its machine is {what}{words}");
    Some(shut_down(row.id, ShutdownCause::ProbeFailed, &reason))
}

/// What an answer means for the state, whoever asked: an answer to a call of a leadership that is
/// over is proposed through the next one. Lists and descriptions are of no use by then.
pub fn late(call: &Call, answer: &Result<Answer, ProviderError>) -> Option<Command> {
    match (&call.operation, answer) {
        (Operation::Create(create), answer) => {
            made(&call.provider, create, answer).map(Command::from)
        }
        (Operation::Destroy { instance, provider_id }, answer) => {
            let gone = matches!(answer, Ok(Answer::Destroyed(Destroyed::Gone)));
            let error: Text = match answer {
                Err(error) => error.to_string().into(),
                Ok(_) => "".into(),
            };
            Some(Command::Pool(PoolCommand::DestroyOutcome(DestroyOutcome {
                id: *instance,
                provider_id: provider_id.clone(),
                gone,
                error,
                evaluation_ids: Vec::new(),
            })))
        }
        _ => None,
    }
}

/// The outcome of a create that made a machine.
fn made(
    provider: &Text,
    create: &Create,
    answer: &Result<Answer, ProviderError>,
) -> Option<InstanceOutcome> {
    let Ok(Answer::Created(machine)) = answer else { return None };
    let outcome = CreateOutcome::Made {
        provider_id: machine.provider_id.clone(),
        address: machine.address.clone(),
        scope: machine.scope.clone(),
    };
    Some(InstanceOutcome {
        id: create.key,
        provider: provider.clone(),
        pool: create.pool.clone(),
        kind: create.kind.name.clone(),
        outcome,
    })
}
