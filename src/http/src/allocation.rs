//! Allocations: `/v1/allocations` and `/v1/allocation/ID…`.

use fsm::{
    AllocationId, Command, State,
    allocation::{Replacement, StopAllocation},
    table::TableId,
};
use serde_json::json;

use super::{
    answer::Answer,
    call::Call,
    error::Error,
    list::{IdPrefix, value_of},
    route::{Route, Subject, may},
    view,
};

const TABLES: &[TableId] = &[TableId::Allocations];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/allocations", Subject::Namespaces, may!(ReadJob), list),
        Route::read("/v1/allocation/{id}", Subject::Allocation, may!(ReadJob), read),
        Route::write("/v1/allocation/{id}/stop", Subject::Allocation, may!(AllocLifecycle), stop),
        Route::read("/v1/allocation/{id}/services", Subject::Allocation, may!(ReadJob), services),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let namespaces = call.namespaces();
    let prefix = IdPrefix::of(&call)?;
    let with_resources = call.flag("resources")?;
    let with_task_states = call.flag_or("task_states", true)?;
    call.list(TABLES, move |state, list| {
        let rows: Vec<_> = state
            .allocations()
            .iter()
            .filter(|a| namespaces.contains(&a.job.namespace) && prefix.matches(&a.id.0))
            .collect();
        list.fill_stubs(
            rows,
            |a| (a.create_index, a.id),
            |a| view::allocation_stub(state, a, with_resources, with_task_states),
            |a| view::allocation(state, a),
        )
    })
    .await
}

async fn read(call: Call) -> Result<Answer, Error> {
    let id: AllocationId = call.id(1)?;
    let index = |state: &State| state.allocations().get(&id).map(|a| a.modify_index);
    let view =
        |state: &State| Some(value_of(&view::allocation(state, state.allocations().get(&id)?)));
    call.item("alloc", TABLES, index, view).await
}

async fn stop(call: Call) -> Result<Answer, Error> {
    let id: AllocationId = call.id(1)?;
    let replacement = match (call.flag("reschedule")?, call.flag("no_reschedule")?) {
        (false, false) => Replacement::ByKind,
        (true, false) => Replacement::Always,
        (false, true) => Replacement::Never,
        (true, true) => return Err(Error::bad("reschedule and no_reschedule exclude each other")),
    };
    let command = Command::from(StopAllocation {
        id,
        replacement,
        no_shutdown_delay: call.flag("no_shutdown_delay")?,
        evaluation: call.evaluation_id(),
    });
    let written = call.write(command).await?;
    let evaluation = written.reply.evaluations().first().copied();
    let answer = json!({ "EvalID": evaluation.map_or_else(String::new, |id| id.to_string()) });
    call.answer_write(&written, answer)
}

/// Services are stored with the job but registered nowhere.
async fn services(call: Call) -> Result<Answer, Error> {
    let id: AllocationId = call.id(1)?;
    let index = |state: &State| state.allocations().get(&id).map(|a| a.modify_index);
    call.item("alloc", TABLES, index, |state| state.allocations().contains(&id).then(|| json!([])))
        .await
}
