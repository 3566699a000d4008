//! Namespaces: `/v1/namespaces` and `/v1/namespace…`.

use fsm::{
    Command, State, Text,
    right::Right,
    settings::{DeleteNamespace, Namespace, UpsertNamespace},
    table::TableId,
};
use serde_json::json;

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    route::{Route, Subject},
    view,
};

const TABLES: &[TableId] = &[TableId::Namespaces];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/namespaces", Subject::Namespaces, Right::AnyInNamespace, list),
        Route::write("/v1/namespaces", Subject::NamedNamespace, Right::Management, upsert),
        Route::write("/v1/namespace", Subject::NamedNamespace, Right::Management, upsert),
        Route::read("/v1/namespace/{name}", Subject::NamedNamespace, Right::AnyInNamespace, read),
        Route::write("/v1/namespace/{name}", Subject::NamedNamespace, Right::Management, upsert),
        Route::delete("/v1/namespace/{name}", Subject::NamedNamespace, Right::Management, delete),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let prefix = call.parameter("prefix").unwrap_or("").to_owned();
    call.list(TABLES, move |state, list| {
        let rows: Vec<_> =
            state.namespaces().iter().filter(|n| n.name.starts_with(&prefix)).collect();
        list.fill(rows, |n| n.name.clone(), |n| view::namespace(n))
    })
    .await
}

async fn read(call: Call) -> Result<Answer, Error> {
    let name: Text = call.segment(1).into();
    let index = |state: &State| state.namespaces().get(&name).map(|n| n.modify_index);
    let view = |state: &State| state.namespaces().get(&name).map(|n| view::namespace(n));
    call.item("namespace", TABLES, index, view).await
}

async fn upsert(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    for name in ["Quota", "NodePoolConfiguration", "Capabilities"] {
        if fields.value(name).is_some_and(|value| value.as_str() != Some("")) {
            return Err(Error::unsupported(name));
        }
    }
    let command = Command::from(UpsertNamespace {
        namespace: Namespace {
            name: name_of(&call, &fields, 1)?,
            description: fields.text("Description")?.unwrap_or("").into(),
            meta: meta_of(&fields)?,
            create_index: 0,
            modify_index: 0,
        },
    });
    let written = call.write(command).await?;
    call.answer_write(&written, json!({}))
}

async fn delete(call: Call) -> Result<Answer, Error> {
    let written =
        call.write(Command::from(DeleteNamespace { name: call.segment(1).into() })).await?;
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
