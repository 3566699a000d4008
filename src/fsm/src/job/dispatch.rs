//! Dispatch: makes children of a parameterized job, one or many in an entry, each answered for
//! itself.
//!
//! A dispatch with a token that another child of the parent was dispatched with is that dispatch,
//! sent again: it is answered with that child and makes nothing, whatever has become of the parent.

use std::{collections::BTreeMap, sync::Arc};

use super::{Dispatch, DispatchJob, Dispatched, Job, NewChild, Parameterized};
use crate::{
    apply::{Outcome, Turn, not_found},
    bounds::refused,
    command::{DispatchAnswer, Rejection, Reply},
    evaluation::Trigger,
    id::{JobKey, Text},
    limits,
    plant::{Plant, is_planted},
};

/// A job of which children may be dispatched.
struct Open {
    parent: Arc<Job>,
    block: Parameterized,
}

impl Turn<'_> {
    pub(crate) fn dispatch_job(&mut self, command: &DispatchJob) -> Outcome {
        if command.children.len() > limits::DISPATCHES_MAX {
            let (asked, max) = (command.children.len(), limits::DISPATCHES_MAX);
            return Err(refused(format!("{asked} dispatches in one entry, at most {max} may be")));
        }
        let open = self.open_for_dispatch(&command.parent);
        let mut tokens = command.children.iter().map(|child| &child.token);
        if let Err(why) = &open
            && !tokens.any(|token| self.dispatched_before(&command.parent, token).is_some())
        {
            return Err(why.clone());
        }
        let positions = 0..u32::MAX;
        let answers = command.children.iter().zip(positions).map(|(child, position)| {
            self.dispatch(&command.parent, &open, child, position)
                .unwrap_or_else(DispatchAnswer::Refused)
        });
        Ok(Reply::Dispatched(answers.collect()))
    }

    /// The job and its spec, if children of it may be dispatched now.
    fn open_for_dispatch(&self, key: &JobKey) -> Result<Open, Rejection> {
        let parent = self.state.jobs.get(key).cloned().ok_or_else(|| not_found("job"))?;
        let id = &parent.key.id;
        let spec = self.state.current_spec(&parent).cloned();
        let spec = spec.filter(|spec| spec.is_dispatchable());
        let Some(block) = spec.and_then(|spec| spec.parameterized.clone()) else {
            let remedy = match parent.key.parent() {
                Some(of) => format!("it is a child of \"{of}\", dispatch that"),
                None => "add a parameterized block".to_owned(),
            };
            let text = format!("Specified job \"{id}\" is not a parameterized job: {remedy}");
            return Err(refused(text));
        };
        if parent.stop {
            let text = format!("Specified job \"{id}\" is stopped: start it, then dispatch it");
            return Err(refused(text));
        }
        if self.state.scheduler_configuration().reject_job_registration {
            return Err(Rejection::RegistrationDisabled);
        }
        Ok(Open { parent, block })
    }

    fn dispatch(
        &mut self,
        parent: &JobKey,
        open: &Result<Open, Rejection>,
        child: &Dispatched,
        position: u32,
    ) -> Result<DispatchAnswer, Rejection> {
        let mut token = child.token.clone();
        if let Some(made) = self.dispatched_before(parent, &token) {
            if !is_planted(Plant::DispatchTwice) {
                return Ok(made);
            }
            token = Text::default();
        }
        let Open { parent, block } = open.as_ref().map_err(Rejection::clone)?;
        check_name(&child.id, &child.token)?;
        block.check_payload(&child.payload).map_err(refused)?;
        block.check_meta(&child.meta).map_err(refused)?;
        let dispatch = Dispatch { payload: child.payload.clone(), token };
        let new = NewChild {
            id: child.id.clone(),
            meta: child.meta.clone(),
            priority: child.priority,
            dispatch: Some(dispatch),
            trigger: Trigger::JobRegister,
            position,
            evaluation: child.evaluation,
        };
        let job = self.register_child(parent, new)?;
        let evaluation = job.waiting.is_none().then_some(child.evaluation);
        let (create_index, found) = (job.create_index, false);
        Ok(DispatchAnswer::Child { name: own_name(&job.key.id), evaluation, create_index, found })
    }

    /// The child that was dispatched with a token, as an answer.
    fn dispatched_before(&self, parent: &JobKey, token: &Text) -> Option<DispatchAnswer> {
        let key = self.state.children(parent)?.tokens.get(token)?;
        let create_index = self.state.jobs.get(key)?.create_index;
        let name = own_name(&key.id);
        Some(DispatchAnswer::Child { name, evaluation: None, create_index, found: true })
    }
}

/// What a child's id has after its parent's.
fn own_name(id: &str) -> Text {
    id.rsplit_once('/').map_or(id, |(_, own)| own).into()
}

/// Bounds what is kept of each dispatch for its retries.
fn check_name(id: &str, token: &str) -> Result<(), Rejection> {
    for (what, text, max) in [
        ("id of a child, after that of its parent,", &*own_name(id), limits::CHILD_NAME_BYTES_MAX),
        ("idempotency token", token, limits::TOKEN_BYTES_MAX),
    ] {
        if text.len() > max {
            let has = text.len();
            return Err(refused(format!("the {what} has {has} bytes, at most {max} may be")));
        }
    }
    Ok(())
}

impl Parameterized {
    /// Why a dispatch cannot have this payload.
    fn check_payload(&self, payload: &[u8]) -> Result<(), String> {
        let (has, max) = (payload.len(), limits::PAYLOAD_BYTES_MAX);
        match &*self.payload {
            "forbidden" if has > 0 => {
                Err("Payload: it is forbidden by the parameterized job: leave it out".into())
            }
            "required" if has == 0 => {
                Err("Payload: it is required by the parameterized job and was not given: add one"
                    .into())
            }
            _ if has > max => Err(format!(
                "Payload has {has} bytes, at most {max} may be: hand over where the data is"
            )),
            _ => Ok(()),
        }
    }

    /// Why a dispatch cannot have this meta.
    fn check_meta(&self, meta: &BTreeMap<Text, Text>) -> Result<(), String> {
        let missing: Vec<_> =
            self.meta_required.iter().filter(|key| !meta.contains_key(*key)).collect();
        if !missing.is_empty() {
            return Err(format!("Meta lacks required keys {missing:?}: give each a value"));
        }
        let known =
            |key: &Text| self.meta_required.contains(key) || self.meta_optional.contains(key);
        let unknown: Vec<_> = meta.keys().filter(|key| !known(key)).collect();
        if !unknown.is_empty() {
            return Err(format!(
                "Meta has keys {unknown:?}, which the job does not take: leave them out, or add them to \
                 meta_optional of the job"
            ));
        }
        Ok(())
    }
}
