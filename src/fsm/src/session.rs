//! Client sessions: a retried request takes effect once. Replies are kept, bounded by count and log
//! time; a request older than the floor is refused, because its reply may have been dropped: the
//! outcome is unknown.

use serde::{Deserialize, Serialize};

use crate::{
    apply::Applied,
    command::{DispatchAnswer, Proposal, Rejection, Reply},
    id::{EvaluationId, Index, RequestId, Text, TimeMs},
    indexes::broken,
    limits,
    state::State,
    table::{ChangeSet, Row},
};

/// A client's request as it stands in a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The client's id for it.
    pub id: RequestId,
    /// Log time stamped by the first server that saw it.
    pub stamped_at: TimeMs,
    /// Hash of the command, so that one id cannot stand for two requests.
    pub payload_hash: u64,
}

/// A kept reply.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Session {
    pub request: Request,
    /// Index at which it was applied.
    pub index: Index,
    pub reply: Reply,
}

impl Session {
    /// A session for a reply. Long lists and texts of the reply are cut, so that the sessions of a
    /// window stay bounded.
    pub fn new(request: Request, index: Index, reply: &Reply) -> Self {
        Self { request, index, reply: abbreviate(reply) }
    }
}

fn abbreviate(reply: &Reply) -> Reply {
    let first = |ids: &[EvaluationId]| {
        ids.iter().take(limits::SESSION_REPLY_IDS_MAX).copied().collect::<Vec<_>>()
    };
    match reply {
        Reply::Node { incarnation, modify_index, evaluations } => Reply::Node {
            incarnation: *incarnation,
            modify_index: *modify_index,
            evaluations: first(evaluations),
        },
        Reply::Evaluations(evaluations) => Reply::Evaluations(first(evaluations)),
        Reply::Rejected(why) => Reply::Rejected(shorten(why)),
        // Plans are proposed by the leader, and requirements of several sources by a server, never
        // by a client with a request id.
        Reply::Plans(_) | Reply::Requirements(_) => Reply::Done,
        Reply::Dispatched(answers) => match &answers[..] {
            [DispatchAnswer::Refused(why)] => {
                Reply::Dispatched(vec![DispatchAnswer::Refused(shorten(why))])
            }
            [_] => reply.clone(),
            // Those of many are found by their tokens.
            _ => Reply::Dispatched(Vec::new()),
        },
        Reply::Done | Reply::Job { .. } | Reply::Collected(_) | Reply::Deployment { .. } => {
            reply.clone()
        }
    }
}

fn shorten(why: &Rejection) -> Rejection {
    match why {
        Rejection::Invalid(text) => Rejection::Invalid(cut(text)),
        Rejection::StaleRequirements { name, epoch, seq } => {
            let (name, epoch, seq) = (cut(name), *epoch, *seq);
            Rejection::StaleRequirements { name, epoch, seq }
        }
        Rejection::InUse(text) => Rejection::InUse(cut(text)),
        Rejection::StaleEpoch { .. }
        | Rejection::SessionExpired
        | Rejection::RequestIdReused
        | Rejection::JobIndexConflict { .. }
        | Rejection::NotFound { .. }
        | Rejection::RegistrationDisabled
        | Rejection::SecretMismatch
        | Rejection::StaleIncarnation
        | Rejection::IndexConflict { .. } => why.clone(),
    }
}

fn cut(text: &Text) -> Text {
    if text.len() <= limits::SESSION_REPLY_TEXT_BYTES_MAX {
        return text.clone();
    }
    let end = text.floor_char_boundary(limits::SESSION_REPLY_TEXT_BYTES_MAX);
    text.get(..end).unwrap_or_default().into()
}

impl Row for Session {
    type Key = RequestId;
    fn key(&self) -> RequestId {
        self.request.id
    }
}

impl State {
    pub(crate) fn answer_again(&self, proposal: &Proposal) -> Option<Applied> {
        let request = proposal.request?;
        let (reply, index) = match self.sessions.get(&request.id) {
            Some(kept) if kept.request.payload_hash == request.payload_hash => {
                (kept.reply.clone(), kept.index)
            }
            Some(_) => (Reply::Rejected(Rejection::RequestIdReused), self.index),
            None if request.stamped_at < self.session_floor => {
                (Reply::Rejected(Rejection::SessionExpired), self.index)
            }
            // A session with a stamp far ahead would outlive all others and raise the floor over
            // them.
            None if request.stamped_at > self.at.saturating_add(limits::SESSION_MS_MAX) => {
                let message = "the request is stamped too far in the future";
                (Reply::Rejected(Rejection::Invalid(message.into())), self.index)
            }
            None => return None,
        };
        Some(Applied { reply, effects: Vec::new(), index })
    }

    pub(crate) fn keep_session(&mut self, session: Session, changes: &mut ChangeSet) {
        self.put_session(session, changes);
        let floor = self.at.saturating_sub(limits::SESSION_MS_MAX);
        self.session_floor = self.session_floor.max(floor);
        while let Some((at, id)) = self.oldest_session() {
            // By count the oldest goes alone: others of its time stay and are answered, although
            // the floor is above them.
            if at >= floor && self.sessions.len() <= limits::SESSIONS_MAX {
                break;
            }
            self.session_floor = self.session_floor.max(at.saturating_add(1));
            self.sessions_by_time.remove(&(at, id));
            if self.sessions.remove(&id, changes).is_none() {
                broken("sessions-by-time", format_args!("request {id} has no session"));
            }
        }
    }

    pub(crate) fn oldest_session(&self) -> Option<(TimeMs, RequestId)> {
        self.sessions_by_time.get_min().copied()
    }
}

#[cfg(test)]
mod tests;
