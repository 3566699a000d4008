//! Capacity groups: `/v1/capacity…`. Load balancers say here what they need, and read who serves.

use std::collections::BTreeMap;

use fsm::{
    Command, Extent, State, Text,
    capacity::{Requirements, SetRequirements},
    right::Right,
    table::TableId,
};
use serde_json::{Value, json};

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    route::{Route, Subject},
    view,
};

/// What a group shows is in these.
const TABLES: &[TableId] = &[
    TableId::CapacityTargets,
    TableId::CapacitySources,
    TableId::InstancePools,
    TableId::Instances,
    TableId::Nodes,
    TableId::MassLosses,
];
/// Who serves follows from these: what sources need does not wake readers of members.
const MEMBER_TABLES: &[TableId] =
    &[TableId::InstancePools, TableId::Instances, TableId::Nodes, TableId::MassLosses];

pub(super) fn routes() -> Vec<Route> {
    vec![
        // Nomad lacks capacity groups: to see them is to see the settings of the cluster, and a
        // word of a source makes and ends machines.
        Route::read("/v1/capacity", Subject::Machines, Right::OperatorRead, list),
        // Also the path of a group of that name.
        Route::read("/v1/capacity/requirements", Subject::Machines, Right::OperatorRead, read),
        Route::write("/v1/capacity/requirements", Subject::Machines, Right::OperatorWrite, require),
        Route::read("/v1/capacity/{group}", Subject::Machines, Right::OperatorRead, read),
        Route::read(
            "/v1/capacity/{group}/members",
            Subject::Machines,
            Right::OperatorRead,
            members,
        ),
        Route::read(
            "/v1/capacity/{group}/explain",
            Subject::Machines,
            Right::OperatorRead,
            explain,
        ),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let prefix = call.parameter("prefix").unwrap_or("").to_owned();
    call.list(TABLES, move |state, list| {
        let names = view::capacity_groups(state);
        let names = names.into_iter().filter(|name| name.starts_with(&*prefix)).collect();
        list.fill(names, Text::clone, |name| {
            view::capacity_group(state, name).unwrap_or(Value::Null)
        })
    })
    .await
}

/// Where the group is, so that a reader of one that is not there waits for it.
fn extent(name: &Text) -> impl Fn(&State) -> Extent {
    move |state| {
        if view::is_capacity_group(state, name) { Extent::Whole } else { Extent::Nothing }
    }
}

async fn read(call: Call) -> Result<Answer, Error> {
    let name: Text = call.segment(1).into();
    let view = |state: &State| view::capacity_group(state, &name);
    call.derived("capacity group", TABLES, extent(&name), view).await
}

async fn members(call: Call) -> Result<Answer, Error> {
    let name: Text = call.segment(1).into();
    let extent = |state: &State| {
        if view::is_capacity_group(state, &name) {
            Extent::members(state, &name)
        } else {
            Extent::Nothing
        }
    };
    let view = |state: &State| view::capacity_members(state, &name);
    call.derived("capacity group", MEMBER_TABLES, extent, view).await
}

async fn explain(call: Call) -> Result<Answer, Error> {
    let name: Text = call.segment(1).into();
    let now = call.clock();
    let view = |state: &State| {
        let sentences = elastic::explain::group(state, now(), &name)?;
        Some(json!({ "Group": &*name, "Sentences": sentences }))
    };
    call.derived("capacity group", TABLES, extent(&name), view).await
}

async fn require(call: Call) -> Result<Answer, Error> {
    let word = requirements(&call.json_required()?)?;
    let command = SetRequirements { words: vec![word] };
    let written = call.write(Command::from(command)).await?;
    call.answer_write(&written, json!({}))
}

/// What a source says in a request.
fn requirements(body: &Value) -> Result<Requirements, Error> {
    let fields = Fields::of(body)?;
    fields.known(&["Source", "Epoch", "Seq", "TTLms", "Groups"])?;
    let required = |name: &str, why: &str| Error::bad(format!("{name} is required: {why}"));
    let source = fields.text("Source")?.filter(|source| !source.is_empty());
    let source = source.ok_or_else(|| required("Source", "the name of who says this"))?;
    let epoch = fields.number("Epoch")?;
    let epoch = epoch.ok_or_else(|| required("Epoch", "it rises when the source starts anew"))?;
    let seq = fields.number("Seq")?;
    let seq = seq.ok_or_else(|| required("Seq", "it rises with each request of an epoch"))?;
    let groups = fields.objects("Groups")?;
    let groups =
        groups.ok_or_else(|| required("Groups", "an empty list says that none is needed"))?;
    let mut amounts: BTreeMap<Text, u64> = BTreeMap::new();
    for need in groups {
        need.known(&["Group", "Amount"])?;
        let group = need.text("Group")?.filter(|group| !group.is_empty());
        let group = group.ok_or_else(|| required(&need.place("Group"), "the name of a group"))?;
        let amount = need.number("Amount")?;
        let amount =
            amount.ok_or_else(|| required(&need.place("Amount"), "what is needed of it"))?;
        if amounts.insert(group.into(), amount).is_some() {
            let text = format!("{}: group \"{group}\" is there twice", need.place("Group"));
            return Err(Error::bad(text));
        }
    }
    Ok(Requirements { source: source.into(), epoch, seq, ttl_ms: fields.number("TTLms")?, amounts })
}
