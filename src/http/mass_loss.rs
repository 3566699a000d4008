//! `/v1/operator/mass-loss`: the last mass loss, and an operator's word that its nodes are lost.

use axum::{Router, routing::get};
use fsm::{Command, State, node::EndMassLoss, table::TableId};
use serde_json::json;

use super::{Context, answer::Answer, body::Fields, call::Call, error::Error, view, writes};

pub(crate) fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/operator/mass-loss", get(read))
        .route("/v1/operator/mass-loss/confirm", writes(confirm))
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
