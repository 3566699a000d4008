//! Evaluations: `/v1/evaluations…` and `/v1/evaluation/ID…`.

use std::collections::BTreeSet;

use fsm::{
    Command, Evaluation, EvaluationId, Extent, Reply, State, evaluation::DeleteEvaluations,
    limits::EVALUATIONS_DELETED_MAX, right::Right, table::TableId,
};
use shapes::{Count, EvaluationStub};
use wire::api::Written;

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    filter::Filter,
    list::{IdPrefix, value_of},
    route::{Route, Subject, may},
    view,
};

const TABLES: &[TableId] = &[TableId::Evaluations];
/// Evaluations shown as related to one.
const RELATED_MAX: usize = 100;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/evaluations", Subject::Namespaces, may!(ReadJob), list),
        Route::delete("/v1/evaluations", Subject::Cluster, Right::Management, delete),
        Route::read("/v1/evaluations/count", Subject::Namespaces, may!(ReadJob), count),
        Route::read("/v1/evaluation/{id}", Subject::Evaluation, may!(ReadJob), read),
        Route::read(
            "/v1/evaluation/{id}/allocations",
            Subject::Evaluation,
            may!(ReadJob),
            allocations,
        ),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let matches = selection(&call)?;
    let now = call.clock();
    call.list(TABLES, move |state, list| {
        let rows: Vec<_> = state.evaluations().iter().filter(|e| matches(e)).collect();
        list.fill(rows, |e| (e.create_index, e.id), |e| view::evaluation_in(state, now(), e, None))
    })
    .await
}

async fn count(call: Call) -> Result<Answer, Error> {
    let matches = selection(&call)?;
    let filter = call.filter().await?;
    let now = call.clock();
    let count = move |state: &State| {
        let mut count: u64 = 0;
        for evaluation in state.evaluations().iter().filter(|e| matches(e)) {
            let selected = filter.as_ref().map_or(Ok(true), |filter| {
                filter
                    .selects(&value_of(&view::evaluation_in(state, now(), evaluation, None)), None)
            });
            count += u64::from(selected?);
        }
        Ok(Count { count })
    };
    call.document_in_turn(TABLES, count).await
}

/// By ids; an expression is for lists so far.
async fn delete(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    let named = fields.texts("EvalIDs")?.unwrap_or_default();
    let filter = fields.text("Filter")?.unwrap_or_default();
    let ids = match (named.len(), filter.is_empty()) {
        (1.., false) => return Err(Error::bad("evals cannot be deleted by both ID and filter")),
        (0, true) => return Err(Error::bad("evals must be deleted by either ID or filter")),
        (0, false) => selected_ids(&call, call.filter_of(filter).await?).await?,
        (count, true) if count > EVALUATIONS_DELETED_MAX => {
            let text = format!(
                "request includes {count} evaluation IDs, must be {EVALUATIONS_DELETED_MAX} or fewer"
            );
            return Err(Error::bad(text));
        }
        (1.., true) => {
            let parse = |id: &str| {
                let wrong = |error| Error::bad(format!("invalid evaluation ID {id}: {error}"));
                id.parse().map_err(wrong)
            };
            named.into_iter().map(parse).collect::<Result<Vec<EvaluationId>, Error>>()?
        }
    };
    if call.request_id().is_some() && ids.len() > EVALUATIONS_DELETED_MAX {
        let text = format!(
            "the filter selects {} evaluations: more than {EVALUATIONS_DELETED_MAX} are deleted in steps, which an Idempotency-Key cannot cover",
            ids.len()
        );
        return Err(Error::bad(text));
    }
    // Nothing is selected: the refusals of the command are told all the same.
    let mut steps = ids.chunks(EVALUATIONS_DELETED_MAX).map(<[_]>::to_vec);
    let (mut written, mut count) = delete_some(&call, steps.next().unwrap_or_default()).await?;
    for ids in steps {
        let (next, deleted) = delete_some(&call, ids).await?;
        (written, count) = (next, count + deleted);
    }
    call.answer_write(&written, Count { count })
}

async fn delete_some(call: &Call, ids: Vec<EvaluationId>) -> Result<(Written, u64), Error> {
    let written = call.write(Command::from(DeleteEvaluations { ids })).await?;
    let count = if let Reply::Collected(count) = written.reply { count } else { 0 };
    Ok((written, count))
}

/// Evaluations of the request's namespaces that a filter selects.
async fn selected_ids(call: &Call, filter: Filter) -> Result<Vec<EvaluationId>, Error> {
    let state = call.read().await?.state;
    let namespaces = call.namespaces();
    let now = call.api.now_ms();
    call.in_turn(state.evaluations().len(), move || {
        let mut ids = Vec::new();
        for row in state.evaluations().iter() {
            let is_asked = namespaces.contains(&row.job.namespace);
            let shown = || value_of(&view::evaluation_in(&state, now, row, None));
            if is_asked && filter.selects(&shown(), None)? {
                ids.push(row.id);
            }
        }
        Ok(ids)
    })
    .await
}

/// What `namespace`, `prefix`, `status` and `job` select.
fn selection(call: &Call) -> Result<impl Fn(&Evaluation) -> bool + Send + 'static, Error> {
    let namespaces = call.namespaces();
    let prefix = IdPrefix::of(call)?;
    let wanted = |name: &str| call.parameter(name).filter(|v| !v.is_empty()).map(str::to_owned);
    let (status, job) = (wanted("status"), wanted("job"));
    Ok(move |evaluation: &Evaluation| {
        namespaces.contains(&evaluation.job.namespace)
            && prefix.matches(&evaluation.id.0)
            && status.as_ref().is_none_or(|status| status == evaluation.status.name())
            && job.as_ref().is_none_or(|job| **job == *evaluation.job.id)
    })
}

async fn read(call: Call) -> Result<Answer, Error> {
    let id: EvaluationId = call.id(1)?;
    let with_related = call.flag("related")?;
    let now = call.clock();
    let index = |state: &State| state.evaluations().get(&id).map(|e| e.modify_index);
    let view = |state: &State| {
        let evaluation = state.evaluations().get(&id)?;
        let related = with_related.then(|| related(state, evaluation));
        Some(view::evaluation_in(state, now(), evaluation, related))
    };
    call.item("eval", TABLES, index, view).await
}

/// Evaluations reachable over next, previous and blocked links.
fn related(state: &State, start: &Evaluation) -> Vec<EvaluationStub> {
    let links = |e: &Evaluation| [e.next, e.previous, e.blocked].into_iter().flatten();
    let mut seen = BTreeSet::from([start.id]);
    let mut open: Vec<EvaluationId> = links(start).collect();
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) || found.len() == RELATED_MAX {
            continue;
        }
        if let Some(evaluation) = state.evaluations().get(&id) {
            open.extend(links(evaluation));
            found.push(evaluation);
        }
    }
    found.sort_by_key(|evaluation| (evaluation.create_index, evaluation.id));
    found.into_iter().map(|evaluation| view::evaluation_stub(evaluation)).collect()
}

async fn allocations(call: Call) -> Result<Answer, Error> {
    let id: EvaluationId = call.id(1)?;
    let extent = move |state: &State| Extent::allocations_of_evaluation(state, id);
    call.list_within(&[TableId::Allocations], extent, move |state, list| {
        let rows: Vec<_> = state.allocations_of_evaluation(id).collect();
        list.fill_stubs(
            rows,
            |a| (a.create_index, a.id),
            |a| view::allocation_stub(state, a, false, true),
            |a| view::allocation(state, a),
        )
    })
    .await
}
