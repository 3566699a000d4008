//! `/v1/metrics`: the numbers of a server, in the forms of `src/metrics.rs`.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::{Router, extract::State, http::StatusCode, routing::get};

use super::{Context, answer::Answer, call::Call, error::Error};
use crate::{
    metrics::{PROMETHEUS, exposition, number, summary},
    telemetry,
};

pub(crate) fn routes() -> Router<Context> {
    Router::new().route("/v1/metrics", get(metrics))
}

async fn metrics(State(context): State<Context>, call: Call) -> Result<Answer, Error> {
    let (mut gauges, mut samples) = (call.api.gauges(), call.api.samples());
    gauges.extend(context.requests.counts());
    samples.extend(context.requests.times());
    if let Some((sent, dropped)) = telemetry::traced() {
        gauges.insert("nomad.traces.sent".to_owned(), number(sent));
        gauges.insert("nomad.traces.dropped".to_owned(), number(dropped));
    }
    match call.parameter("format").unwrap_or("") {
        "prometheus" => Ok(Answer {
            status: StatusCode::OK,
            content_type: PROMETHEUS,
            body: exposition(&gauges, &samples).into(),
            meta: None,
        }),
        "" => call.answer(&summary(&gauges, &samples, wall_clock_ms()), None),
        other => Err(Error::bad(format!("format must be prometheus or absent, not `{other}`"))),
    }
}

/// Only shown, never decided on.
fn wall_clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
