//! `/v1/operator/mass-loss`: the last mass loss, and an operator's word that its nodes are lost.

use fsm::{Command, State, node::EndMassLoss, right::Right, table::TableId};
use serde_json::json;

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    route::{Route, Subject},
    view,
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        // Nomad lacks it: nodes that are not heard any more are given up, as a purge of each would.
        Route::read("/v1/operator/mass-loss", Subject::Cluster, Right::NodeRead, read),
        Route::write("/v1/operator/mass-loss/confirm", Subject::Cluster, Right::NodeWrite, confirm),
    ]
}

async fn read(call: Call) -> Result<Answer, Error> {
    let index = |state: &State| state.mass_losses().get(&()).map(|loss| loss.modify_index);
    let view =
        |state: &State| state.mass_losses().get(&()).map(|loss| view::mass_loss(state, loss));
    call.item("mass loss", &[TableId::MassLosses], index, view).await
}

async fn confirm(call: Call) -> Result<Answer, Error> {
    let body = call.json()?;
    let by = Some(Fields::of(&body)?.actor()?);
    let written = call.write(Command::from(EndMassLoss { by })).await?;
    call.answer_write(&written, json!({}))
}
