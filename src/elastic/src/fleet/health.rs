//! How providers do, for those who wait: noted in the state when it changes, with pauses.
//!
//! ```text
//!  answers of calls ─► what fails, by call ─► differs from the row? ─► NoteProvider
//! ```
//! A clear refusal is an answer: it is a limit of the pool. What is noted here is a provider that
//! cannot be spoken with: a program that is missing, an expired token, lists that never come.

use std::collections::BTreeMap;

use fsm::{Command, State, Text, pool::NoteProvider};

use super::{
    ASK_AGAIN_MS, Fleet,
    calls::{Flight, ProviderWatch},
};
use crate::call::{Answer, ErrorClass, Operation, ProviderError, clip};

/// Between two notes of one provider: of whether it answers, of another error, and of the places
/// that are taken, ms.
const FLIP_PAUSE_MS: u64 = 1_000;
const ERROR_PAUSE_MS: u64 = 10_000;
const PLACES_PAUSE_MS: u64 = 30_000;
/// A list that has no answer for so long is said to have none, ms.
const SILENT_MS: u64 = 10_000;
/// What failed and was not asked again for so long tells nothing any more, ms.
const FAILURE_MS: u64 = 5 * 60_000;

/// What is known of the answers of one provider.
#[derive(Default, Debug)]
pub(super) struct Health {
    /// Calls that fail, by name: when last, and how.
    failing: BTreeMap<&'static str, (u64, Text)>,
    /// When something was noted last.
    noted_at: u64,
    /// When something is to be noted; none: the state has it all.
    pub(super) due_at: Option<u64>,
}

impl Health {
    /// A call was answered.
    fn take(&mut self, now: u64, operation: &Operation, answer: &Result<Answer, ProviderError>) {
        let name = operation.name();
        match answer {
            Err(error) if is_failure(operation, error) => {
                self.failing.insert(name, (now, clean(&error.to_string())));
            }
            Ok(_) | Err(_) => {
                self.failing.remove(name);
            }
        }
    }
}

/// Whether an error says that the provider cannot be spoken with.
fn is_failure(operation: &Operation, error: &ProviderError) -> bool {
    match error.class {
        ErrorClass::Transient => true,
        ErrorClass::Fatal => !matches!(operation, Operation::Create(_)),
        ErrorClass::RateLimited | ErrorClass::Quota | ErrorClass::NoCapacity => false,
    }
}

/// A text of somebody else, in one line.
fn clean(text: &str) -> Text {
    clip(&text.replace(char::is_control, " "))
}

impl Fleet {
    pub(super) fn note_answer(
        &mut self,
        now: u64,
        state: &State,
        flight: &Flight,
        answer: &Result<Answer, ProviderError>,
    ) {
        let provider = &flight.call.provider;
        if let Some(watch) = self.providers.get_mut(provider) {
            watch.health.take(now, &flight.call.operation, answer);
        }
        self.plan_note(now, state, provider);
    }

    /// Notes what is due of all providers. Cost: the providers.
    pub(super) fn note_providers(&mut self, now: u64, state: &State, commands: &mut Vec<Command>) {
        let names: Vec<Text> = self.configured.keys().cloned().collect();
        for name in names {
            self.plan_note(now, state, &name);
            let Some(watch) = self.providers.get_mut(&name) else { continue };
            if watch.health.due_at.is_none_or(|at| at > now) {
                continue;
            }
            watch.health.noted_at = now;
            watch.health.due_at = Some(now.saturating_add(ASK_AGAIN_MS));
            commands.push(Command::from(self.note(&name)));
        }
    }

    /// What is to be said of a provider now.
    fn note(&self, provider: &Text) -> NoteProvider {
        let watch = self.providers.get(provider);
        let failing = watch.and_then(|watch| watch.health.failing.first_key_value());
        let (failing, error) = match failing {
            Some((name, (_, error))) => ((*name).into(), error.clone()),
            None => (Text::default(), Text::default()),
        };
        let (creates, destroys) = watch.map_or((0, 0), ProviderWatch::places);
        let count = |calls: usize| u32::try_from(calls).unwrap_or(u32::MAX);
        let (creates, destroys) = (count(creates), count(destroys));
        NoteProvider { provider: provider.clone(), failing, error, creates, destroys }
    }

    /// When what is known of a provider is to be noted, if the state has it otherwise.
    fn plan_note(&mut self, now: u64, state: &State, provider: &Text) {
        let began_at = self.providers.get(provider).and_then(|watch| watch.listing);
        let began_at = began_at.and_then(|id| self.flights.get(&id)).map(|one| one.began_at);
        let Some(watch) = self.providers.get_mut(provider) else { return };
        let is_waited_for = |at: &u64| *at <= now && watch.lists.taken == 0;
        let silent_at = began_at.map(|at| at.saturating_add(SILENT_MS));
        if silent_at.as_ref().is_some_and(is_waited_for) {
            let text: Text = "no answer to its first list yet".into();
            watch.health.failing.entry("list").or_insert((now, text));
        }
        let tells = |at: u64| at.saturating_add(FAILURE_MS) > now;
        watch.health.failing.retain(|name, (at, _)| *name == "list" || tells(*at));
        let (is_listed, noted_at) = (watch.lists.taken > 0, watch.health.noted_at);
        let wanted = self.note(provider);
        let pause = match state.provider_states().get(provider) {
            // Nobody asks for it: its pools went, or none was there yet.
            _ if !state.knows_provider(provider) => None,
            None if wanted.failing.is_empty() && !is_listed => None,
            None => Some(FLIP_PAUSE_MS),
            Some(row) if row.is_answering() != wanted.failing.is_empty() => Some(FLIP_PAUSE_MS),
            Some(row) if !wanted.failing.is_empty() && row.last_error != wanted.error => {
                Some(ERROR_PAUSE_MS)
            }
            Some(row) if (row.creates, row.destroys) != (wanted.creates, wanted.destroys) => {
                Some(PLACES_PAUSE_MS)
            }
            Some(_) => None,
        };
        let due_at = pause.map(|pause| noted_at.saturating_add(pause));
        let waits = silent_at.filter(|at| *at > now && !is_listed);
        if let Some(watch) = self.providers.get_mut(provider) {
            watch.health.due_at = [due_at, waits].into_iter().flatten().min();
        }
    }
}
