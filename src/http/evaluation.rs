//! Evaluations: `/v1/evaluations…` and `/v1/evaluation/ID…`.

use std::collections::BTreeSet;

use axum::{Router, routing::get};
use fsm::{Evaluation, EvaluationId, Extent, State, table::TableId};
use serde_json::{Value, json};

use super::{Context, answer::Answer, call::Call, error::Error, list::IdPrefix, view};

const TABLES: &[TableId] = &[TableId::Evaluations];
/// Evaluations shown as related to one.
const RELATED_MAX: usize = 100;

pub(crate) fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/evaluations", get(list).delete(delete))
        .route("/v1/evaluations/count", get(count))
        .route("/v1/evaluation/{id}", get(read))
        .route("/v1/evaluation/{id}/allocations", get(allocations))
}

async fn list(call: Call) -> Result<Answer, Error> {
    let matches = selection(&call)?;
    call.list(TABLES, move |state, list| {
        let rows: Vec<_> = state.evaluations().iter().filter(|e| matches(e)).collect();
        list.fill(rows, |e| (e.create_index, e.id), |e| view::evaluation_in(state, e, None))
    })
    .await
}

async fn count(call: Call) -> Result<Answer, Error> {
    let matches = selection(&call)?;
    let filter = call.filter()?;
    let count = |state: &State| {
        let mut count: usize = 0;
        for evaluation in state.evaluations().iter().filter(|e| matches(e)) {
            let selected = filter.as_ref().map_or(Ok(true), |filter| {
                filter.selects(&view::evaluation_in(state, evaluation, None), None)
            });
            count += usize::from(selected?);
        }
        Ok(json!({ "Count": count }))
    };
    call.document(TABLES, count).await
}

async fn delete() -> Error {
    Error::unsupported("deleting evaluations")
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
    let index = |state: &State| state.evaluations().get(&id).map(|e| e.modify_index);
    let view = |state: &State| {
        let evaluation = state.evaluations().get(&id)?;
        let related = with_related.then(|| related(state, evaluation));
        Some(view::evaluation_in(state, evaluation, related))
    };
    call.item("eval", TABLES, index, view).await
}

/// Evaluations reachable over next, previous and blocked links.
fn related(state: &State, start: &Evaluation) -> Vec<Value> {
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
