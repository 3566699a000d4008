//! Dispatches parameterized jobs: `/v1/job/ID/dispatch`, `…/dispatch/payload`, whose body is the
//! payload itself, and `…/dispatch/batch` for many in one call.
//!
//! A dispatch with an idempotency token takes effect once, however often it is sent, because the
//! state machine knows the tokens of a job's children. An `Idempotency-Key` works as for other
//! writes: while its session is kept, a retry gets the answer of the first attempt, and a different
//! request with the same key is refused. Dispatches without a token get one made from the key,
//! which outlives the session.
//!
//! A batch becomes as few log entries as its size allows. Each dispatch in it has its own answer.
//! If a reply is lost, the answers are found in the state, by token or by the id made for the
//! dispatch.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Command, EvaluationId, Index, JobKey, Rejection, Reply, State, Text,
    command::DispatchAnswer,
    job::{DeregisterJob, DispatchJob, Dispatched, JobStatus, StopChildren},
    limits::{CHILD_NAME_BYTES_MAX, CHILDREN_STOPPED_MAX, DISPATCHES_MAX},
};
use jobspec::is_printable;
use serde_json::{Value, json};
use wire::api::{ReadMode, Written};

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    route::{Route, Subject, may},
};

/// How the path of a batch ends.
pub(super) const BATCH_SUFFIX: &str = "/dispatch/batch";
/// What the dispatches of one entry may hold, bytes: half of what an entry with plans may.
const ENTRY_BYTES_MAX: usize = leader::limits::PLAN_ENTRY_BYTES_MAX / 2;
/// What a dispatch costs in an entry beside what it holds.
const DISPATCH_BYTES: usize = 256;
/// Ids that are drawn for a dispatch of a batch until one is new in it.
const ID_TRIES_MAX: usize = 8;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::write("/v1/job/{job}/dispatch", Subject::Namespace, may!(DispatchJob), one),
        Route::write("/v1/job/{job}/dispatch/payload", Subject::Namespace, may!(DispatchJob), raw),
        // Nomad lacks it: many dispatches in one call.
        Route::write("/v1/job/{job}/dispatch/batch", Subject::Namespace, may!(DispatchJob), many),
    ]
}

/// One dispatch.
async fn one(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    let body = call.json()?;
    let fields = Fields::of(&body)?;
    if fields.text("JobID")?.is_some_and(|id| !id.is_empty() && id != target.id) {
        return Err(Error::bad("JobID not same as job in request path"));
    }
    let parent = target.key(call)?;
    let mut child = dispatched(call, &parent, &fields)?;
    // python-nomad sends it in the body and under this name.
    let in_body = fields.text("idempotency_token")?.filter(|_| child.token.is_empty());
    let token = call.parameter("idempotency_token").filter(|token| !token.is_empty()).or(in_body);
    if let Some(token) = token {
        child.token = token.into();
    }
    write_one(call, &parent, child).await
}

/// One dispatch whose payload is the body as it is.
async fn raw(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    let parent = target.key(call)?;
    let nothing = Fields::of(&Value::Null)?;
    let mut child = dispatched(call, &parent, &nothing)?;
    child.payload = call.body.to_vec();
    child.token = call.parameter("idempotency_token").unwrap_or("").into();
    write_one(call, &parent, child).await
}

async fn write_one(call: &Call, parent: &JobKey, child: Dispatched) -> Result<Answer, Error> {
    let token = token_of(call, child.token, 0);
    let child = Dispatched { token, ..child };
    let command = DispatchJob { parent: parent.clone(), children: vec![child] };
    let written = call.write(command.into()).await?;
    let answer =
        if let Reply::Dispatched(answers) = &written.reply { answers.first() } else { None };
    let answer = answer.ok_or_else(|| Error::internal("a dispatch has no answer".to_owned()))?;
    if let DispatchAnswer::Child { evaluation: Some(id), .. } = answer {
        tracing::Span::current().record("evaluation", tracing::field::display(id));
    }
    let shown = shown(parent, answer).map_err(Error::from)?;
    call.answer_write(&written, shown)
}

/// Up to [`DISPATCHES_MAX`] dispatches. What is wrong with one of them is its answer and concerns
/// no other.
async fn many(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    fields.known(&["Dispatches"])?;
    let asked = fields.objects("Dispatches")?.unwrap_or_default();
    let given = fields.value("Dispatches").and_then(Value::as_array).map_or(0, Vec::len);
    if given == 0 || given > DISPATCHES_MAX {
        return Err(Error::bad(format!(
            "Dispatches has {given} entries, from 1 to {DISPATCHES_MAX} may be: cut the request"
        )));
    }
    if given != asked.len() {
        return Err(Error::bad("Dispatches has an entry that is null: answers come by position"));
    }
    let parent = target.key(call)?;
    let mut answers = vec![None; given];
    let (mut children, mut positions, mut ids) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (position, one) in asked.iter().enumerate() {
        match dispatched_of_many(call, &parent, one, &mut ids) {
            Ok(child) => {
                let token = token_of(call, child.token, position);
                children.push(Dispatched { token, ..child });
                positions.push(position);
            }
            Err(why) => {
                let why = Rejection::Invalid(why.into_text().into());
                answers[position] = Some(DispatchAnswer::Refused(why));
            }
        }
    }
    let mut made = Vec::with_capacity(children.len());
    let mut last = None;
    for (number, part) in entries(children).iter().enumerate() {
        let written = write_part(call, &parent, part, number, &mut made).await?;
        last = Some(written);
    }
    for (position, answer) in positions.into_iter().zip(made) {
        answers[position] = Some(answer);
    }
    let shown = answers.iter().flatten().map(|answer| shown_of_many(&parent, answer));
    let shown = json!({ "Dispatched": shown.collect::<Vec<_>>() });
    let written = match last {
        Some(written) => written,
        // Nothing was good enough to be written: the index is that of the state that the next read
        // sees.
        None => Written { index: call.read().await?.state.index(), reply: Reply::Done },
    };
    call.answer_write(&written, shown)
}

/// Writes the dispatches of one entry, that of this number, and adds their answers.
async fn write_part(
    call: &Call,
    parent: &JobKey,
    part: &[Dispatched],
    number: usize,
    made: &mut Vec<DispatchAnswer>,
) -> Result<Written, Error> {
    let command = DispatchJob { parent: parent.clone(), children: part.to_vec() };
    let written = call.write_part(Command::from(command), number).await?;
    if let Reply::Dispatched(answers) = &written.reply
        && answers.len() == part.len()
    {
        made.extend(answers.clone());
    } else {
        let timeout = call.options.timeout;
        let state =
            call.api.read(&call.caller, ReadMode::Stale, written.index, timeout).await?.state;
        made.extend(part.iter().map(|child| found_again(&state, parent, child)));
    }
    Ok(written)
}

/// The token of a dispatch; one that has none gets one of the request's `Idempotency-Key`.
fn token_of(call: &Call, token: Text, position: usize) -> Text {
    match call.request_id() {
        Some(request) if token.is_empty() => format!("{request}-{position}").into(),
        Some(_) | None => token,
    }
}

/// Stops a job, so that it makes no more children, and then stops its children, a bounded number in
/// each log entry. Waiting children are stopped before running ones; otherwise they would start as
/// soon as those end. A retry goes on where the last attempt ended.
pub(super) async fn stop_children(call: &Call, whole: &DeregisterJob) -> Result<(), Error> {
    let DeregisterJob { job: ref parent, purge, .. } = *whole;
    let state = call.read().await?.state;
    // A parent that was purged may have left some behind; one that is gone with them was purged by
    // the same request, whose answer was lost.
    let is_other = state.jobs().get(parent).is_some_and(|job| !job.is_parent());
    if is_other && state.children(parent).is_none() {
        return Err(Error::bad(format!(
            "job \"{}\" has no children: leave children out",
            parent.id
        )));
    }
    let evaluation = EvaluationId(call.api.new_id());
    let stop = DeregisterJob { purge: false, evaluation, ..whole.clone() };
    let stopped = call.write_unkeyed(stop.into()).await?.index;
    let timeout = call.options.timeout;
    let state = call.api.read(&call.caller, ReadMode::Stale, stopped, timeout).await?.state;
    let waiting = state.children(parent).map(|all| all.waiting.clone()).unwrap_or_default();
    let waiting: Vec<_> = waiting.values().cloned().collect();
    let others = state.children_rows(parent).filter(|job| job.waiting.is_none());
    let others = others.filter(|job| purge || job.status != JobStatus::Dead);
    let others: Vec<_> = others.map(|job| job.key.clone()).collect();
    for part in [waiting, others].iter().flat_map(|all| all.chunks(CHILDREN_STOPPED_MAX)) {
        let evaluation_ids = part.iter().map(|_| EvaluationId(call.api.new_id())).collect();
        let (parent, children) = (parent.clone(), part.to_vec());
        let command = StopChildren {
            parent,
            children,
            purge,
            evaluation_ids,
            evaluation_priority: whole.evaluation_priority,
            no_shutdown_delay: whole.no_shutdown_delay,
        };
        call.write_unkeyed(command.into()).await?;
    }
    Ok(())
}

/// A dispatch of a batch. Its id is none of `ids`, which are those before it: random parts of ids
/// are short.
fn dispatched_of_many(
    call: &Call,
    parent: &JobKey,
    fields: &Fields<'_>,
    ids: &mut BTreeSet<Text>,
) -> Result<Dispatched, Error> {
    fields.known(&["Payload", "Meta", "IdPrefixTemplate", "Priority", "IdempotencyToken"])?;
    let mut child = dispatched(call, parent, fields)?;
    let prefix = fields.text("IdPrefixTemplate")?.unwrap_or("");
    for _ in 0..ID_TRIES_MAX {
        if ids.insert(child.id.clone()) {
            break;
        }
        child.id = child_id(parent, prefix, call.now_s(), call.api.new_id());
    }
    Ok(child)
}

/// A dispatch as the request has it, with what the server makes up.
fn dispatched(call: &Call, parent: &JobKey, fields: &Fields<'_>) -> Result<Dispatched, Error> {
    let payload = fields.text("Payload")?.unwrap_or("");
    let payload = BASE64_STANDARD
        .decode(payload)
        .map_err(|_| Error::bad(format!("{}: expected base64", fields.place("Payload"))))?;
    let mut meta: BTreeMap<Text, Text> = BTreeMap::new();
    for (key, value) in fields.text_map("Meta")? {
        if value.contains('\0') {
            let place = fields.place("Meta");
            let text = format!("{place}.{key}: the value has a NUL character: remove it");
            return Err(Error::bad(text));
        }
        meta.insert(key.into(), value.into());
    }
    let priority = match fields.number("Priority")? {
        None | Some(0) => None,
        // One that does not fit is refused as any that is too high.
        Some(priority) => Some(u16::try_from(priority).unwrap_or(u16::MAX)),
    };
    let prefix = fields.text("IdPrefixTemplate")?.unwrap_or("");
    check_prefix(prefix, &fields.place("IdPrefixTemplate"))?;
    Ok(Dispatched {
        id: child_id(parent, prefix, call.now_s(), call.api.new_id()),
        payload,
        meta,
        priority,
        token: fields.text("IdempotencyToken")?.unwrap_or("").into(),
        evaluation: EvaluationId(call.api.new_id()),
    })
}

/// A prefix becomes part of an id.
fn check_prefix(prefix: &str, place: &str) -> Result<(), Error> {
    let bad = prefix.chars().find(|c| !is_printable(*c) || *c == ' ' || *c == '/');
    if let Some(bad) = bad {
        let text = format!("{place}: \"{}\" cannot be in an id: leave it out", bad.escape_debug());
        return Err(Error::bad(text));
    }
    let max = CHILD_NAME_BYTES_MAX.saturating_sub("dispatch--1700000000-01234567".len() + 2);
    if prefix.len() > max {
        let text = format!("{place}: has {} bytes, at most {max} may be", prefix.len());
        return Err(Error::bad(text));
    }
    Ok(())
}

/// With the second in which the child was dispatched, and a random part.
fn child_id(parent: &JobKey, prefix: &str, now_s: i64, random: [u8; 16]) -> Text {
    let [.., a, b, c, d] = random;
    let number = u32::from_be_bytes([a, b, c, d]);
    let dash = if prefix.is_empty() { "" } else { "-" };
    format!("{}/dispatch-{prefix}{dash}{now_s}-{number:08x}", parent.id).into()
}

/// Dispatches by entry, in their order. The cut depends on what was sent alone.
fn entries(children: Vec<Dispatched>) -> Vec<Vec<Dispatched>> {
    let mut parts: Vec<Vec<Dispatched>> = Vec::new();
    let mut room = 0usize;
    for child in children {
        let meta = child.meta.iter().map(|(key, value)| key.len() + value.len());
        let bytes = DISPATCH_BYTES + child.payload.len() + child.token.len() + meta.sum::<usize>();
        match parts.last_mut().filter(|_| bytes <= room) {
            Some(part) => part.push(child),
            None => {
                parts.push(vec![child]);
                room = ENTRY_BYTES_MAX;
            }
        }
        room = room.saturating_sub(bytes);
    }
    parts
}

/// The answer to a dispatch whose entry was applied by an earlier attempt.
fn found_again(state: &State, parent: &JobKey, child: &Dispatched) -> DispatchAnswer {
    let made = JobKey { namespace: parent.namespace.clone(), id: child.id.clone() };
    let by_token = state.children(parent).and_then(|all| all.tokens.get(&child.token)).cloned();
    let row = state.jobs().get(&by_token.unwrap_or(made));
    match row {
        Some(row) => DispatchAnswer::Child {
            name: row.key.id.rsplit_once('/').map_or("", |(_, own)| own).into(),
            evaluation: None,
            create_index: row.create_index,
            found: true,
        },
        None => DispatchAnswer::Refused(Rejection::Invalid(
            "it was refused, and the reason got lost with a reply: dispatch it alone".into(),
        )),
    }
}

fn shown(parent: &JobKey, answer: &DispatchAnswer) -> Result<Value, Rejection> {
    match answer {
        DispatchAnswer::Refused(why) => Err(why.clone()),
        DispatchAnswer::Child { name, evaluation, create_index, found: _ } => Ok(json!({
            "DispatchedJobID": format!("{}/{name}", parent.id),
            "EvalID": evaluation.map_or_else(String::new, |id| id.to_string()),
            "EvalCreateIndex": evaluation.map_or(0, |_| *create_index) as Index,
            "JobCreateIndex": create_index,
        })),
    }
}

fn shown_of_many(parent: &JobKey, answer: &DispatchAnswer) -> Value {
    let is_found = matches!(answer, DispatchAnswer::Child { found: true, .. });
    let mut shown = match shown(parent, answer) {
        Ok(shown) => shown,
        Err(why) => json!({ "DispatchedJobID": "", "EvalID": "", "EvalCreateIndex": 0,
            "JobCreateIndex": 0, "Error": why.to_string() }),
    };
    shown["Existed"] = is_found.into();
    if shown["Error"].is_null() {
        shown["Error"] = "".into();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(bytes: usize) -> Dispatched {
        Dispatched {
            id: "t/dispatch-1-1".into(),
            payload: vec![0; bytes],
            meta: BTreeMap::new(),
            priority: None,
            token: "".into(),
            evaluation: EvaluationId::default(),
        }
    }

    #[test]
    fn a_batch_is_cut_by_size_and_keeps_its_order() {
        let lengths = |children: Vec<Dispatched>| -> Vec<usize> {
            entries(children).iter().map(Vec::len).collect()
        };
        assert_eq!(lengths((0..1000).map(|_| child(10)).collect()), [1000]);
        let full = (16 << 10) + DISPATCH_BYTES;
        let each = ENTRY_BYTES_MAX / full;
        assert_eq!(lengths((0..=2 * each).map(|_| child(16 << 10)).collect()), [each, each, 1]);
        assert_eq!(lengths(vec![child(ENTRY_BYTES_MAX * 2), child(1)]), [1, 1]);
        let cut = entries((0..100).map(|number| child(number * 200)).collect());
        let sizes: Vec<usize> = cut.iter().flatten().map(|child| child.payload.len()).collect();
        assert!(sizes.is_sorted());
    }

    #[test]
    fn an_id_has_its_prefix_time_and_eight_digits() {
        let parent = JobKey::new("default", "a/b");
        let id = child_id(&parent, "x", 1_700_000_000, [0xab; 16]);
        assert!(id.starts_with("a/b/dispatch-x-1700000000-") && id.ends_with("-abababab"), "{id}");
        assert_eq!(JobKey::new("default", id).parent(), Some("a/b"));
        assert!(check_prefix("a/b", "IdPrefixTemplate").is_err());
        assert!(check_prefix(&"x".repeat(160), "IdPrefixTemplate").is_err());
    }
}
