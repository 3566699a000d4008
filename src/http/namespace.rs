//! Namespaces: `/v1/namespaces` and `/v1/namespace…`.

use axum::{Router, routing::get};
use fsm::{Command, State, Text, state::Namespace, table::TableId};
use serde_json::{Value, json};

use super::{Context, answer::Answer, body::Fields, call::Call, error::Error, view, writes};

const TABLES: &[TableId] = &[TableId::Namespaces];
const DEFAULT: &str = "default";

pub(crate) fn routes() -> Router<Context> {
    Router::new()
        .route("/v1/namespaces", get(list).put(upsert).post(upsert))
        .route("/v1/namespace", writes(upsert))
        .route("/v1/namespace/{name}", get(read).put(upsert).post(upsert).delete(delete))
}

/// The stored namespaces, and `default`, which exists without being stored.
fn all(state: &State) -> Vec<Namespace> {
    let mut all: Vec<Namespace> =
        state.namespaces.iter().map(|row| Namespace::clone(row)).collect();
    if !all.iter().any(|namespace| &*namespace.name == DEFAULT) {
        all.push(Namespace {
            name: DEFAULT.into(),
            description: "Default shared namespace".into(),
            create_index: 1,
            modify_index: 1,
            ..Namespace::default()
        });
    }
    all
}

async fn list(call: Call) -> Result<Answer, Error> {
    let prefix = call.parameter("prefix").unwrap_or("").to_owned();
    call.list(TABLES, move |state, list| {
        let rows = all(state).into_iter().filter(|n| n.name.starts_with(&prefix)).collect();
        list.fill(rows, |n: &Namespace| n.name.clone(), view::namespace)
    })
    .await
}

async fn read(call: Call) -> Result<Answer, Error> {
    let name = call.segment(1).to_owned();
    let find = |state: &State| all(state).into_iter().find(|n| *n.name == *name);
    let index = |state: &State| find(state).map(|namespace| namespace.modify_index);
    call.item("namespace", TABLES, index, |state| find(state).map(|n| view::namespace(&n))).await
}

async fn upsert(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    for name in ["Quota", "NodePoolConfiguration", "Capabilities"] {
        if fields.value(name).is_some_and(|value| *value != Value::from("")) {
            return Err(Error::bad(format!("{name} is not supported by this server")));
        }
    }
    let command = Command::UpsertNamespace(Namespace {
        name: name_of(&call, &fields, 1)?,
        description: fields.text("Description")?.unwrap_or("").into(),
        meta: meta_of(&fields)?,
        create_index: 0,
        modify_index: 0,
    });
    let written = call.write(command).await?;
    call.answer_write(&written, json!({}))
}

async fn delete(call: Call) -> Result<Answer, Error> {
    let written = call.write(Command::DeleteNamespace(call.segment(1).into())).await?;
    call.answer_write(&written, json!({}))
}

/// The name of a body; it may be left to the path and must not differ from it.
pub(super) fn name_of(call: &Call, fields: &Fields<'_>, segment: usize) -> Result<Text, Error> {
    let in_path = call.segment(segment);
    match fields.text("Name")?.unwrap_or("") {
        "" if in_path.is_empty() => Err(Error::bad("Name: a name is required")),
        "" => Ok(in_path.into()),
        name if in_path.is_empty() || in_path == name => Ok(name.into()),
        name => Err(Error::bad(format!("Name is \"{name}\" but the path says \"{in_path}\""))),
    }
}

/// The meta of a body.
pub(super) fn meta_of(
    fields: &Fields<'_>,
) -> Result<std::collections::BTreeMap<Text, Text>, Error> {
    Ok(fields.text_map("Meta")?.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
}
