//! Deployments: `/v1/deployments`, `/v1/deployment/ID…` and those of a job.

use fsm::{
    AllocationId, Command, Deployment, DeploymentId, Extent, Index, JobKey, Reply, State,
    deployment::{FailDeployment, PauseDeployment, PromoteDeployment, SetAllocationHealth},
    table::TableId,
};
use wire::api::Written;

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    list::IdPrefix,
    route::{Route, Subject, may},
    view,
};

const TABLES: &[TableId] = &[TableId::Deployments];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/deployments", Subject::Namespaces, may!(ReadJob), list),
        Route::read("/v1/deployment/{id}", Subject::Deployment, may!(ReadJob), read),
        Route::read(
            "/v1/deployment/allocations/{id}",
            Subject::Deployment,
            may!(ReadJob),
            allocations,
        ),
        Route::write(
            "/v1/deployment/promote/{id}",
            Subject::Deployment,
            may!(SubmitJob, PromoteDeployment),
            promote,
        ),
        Route::write(
            "/v1/deployment/fail/{id}",
            Subject::Deployment,
            may!(SubmitJob, FailDeployment),
            fail,
        ),
        Route::write(
            "/v1/deployment/pause/{id}",
            Subject::Deployment,
            may!(SubmitJob, PauseDeployment),
            pause,
        ),
        Route::write(
            "/v1/deployment/allocation-health/{id}",
            Subject::Deployment,
            may!(SubmitJob, SetAllocHealth),
            allocation_health,
        ),
        Route::read("/v1/job/{job}/deployments", Subject::Namespace, may!(ReadJob), of_job),
        Route::read("/v1/job/{job}/deployment", Subject::Namespace, may!(ReadJob), latest_of_job),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let namespaces = call.namespaces();
    let prefix = IdPrefix::of(&call)?;
    call.list(TABLES, move |state, list| {
        let rows: Vec<_> = state
            .deployments()
            .iter()
            .filter(|row| namespaces.contains(&row.job.namespace) && prefix.matches(&row.id.0))
            .collect();
        list.fill(rows, |row| (row.create_index, row.id), |row| view::deployment(row))
    })
    .await
}

async fn read(call: Call) -> Result<Answer, Error> {
    let id: DeploymentId = call.id(1)?;
    let index = |state: &State| state.deployments().get(&id).map(|row| row.modify_index);
    let view = |state: &State| Some(view::deployment(state.deployments().get(&id)?));
    call.item("deployment", TABLES, index, view).await
}

async fn allocations(call: Call) -> Result<Answer, Error> {
    let id: DeploymentId = call.id(2)?;
    let known = call.read().await?.state.deployments().get(&id).cloned();
    let row = known.ok_or_else(|| Error::not_found("deployment"))?;
    let job = row.job.clone();
    let extent = move |state: &State| Extent::allocations_of_job(state, &job);
    call.list_within(&[TableId::Allocations], extent, move |state, list| {
        let rows: Vec<_> = state.allocations_of_deployment(&row).collect();
        list.fill(
            rows,
            |one| (one.create_index, one.id),
            |one| view::allocation_stub(state, one, false, true),
        )
    })
    .await
}

/// Deployments of a job's current incarnation, newest first; with `all` those of older ones too.
async fn of_job(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let key = &call.job_path()?.key(call)?;
    let all = call.flag("all")?;
    call.document(TABLES, |state| {
        let rows = of_incarnation(state, key, all);
        Ok(rows.map(|row| view::deployment(&row)).collect::<Vec<_>>())
    })
    .await
}

/// The newest deployment of a job, or null.
async fn latest_of_job(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let key = &call.job_path()?.key(call)?;
    let view = |state: &State| {
        let latest = of_incarnation(state, key, false).next();
        Ok(latest.map(|row| view::deployment(&row)))
    };
    call.document(TABLES, view).await
}

fn of_incarnation(
    state: &State,
    key: &JobKey,
    all: bool,
) -> impl Iterator<Item = std::sync::Arc<Deployment>> {
    let current: Option<Index> = state.jobs().get(key).map(|job| job.create_index);
    let rows = state.deployments_of_job(key).into_iter();
    rows.filter(move |row| all || current.is_none_or(|current| row.job_create_index == current))
}

/// The deployment in the path, which the body may name too.
fn target(call: &Call, fields: &Fields<'_>) -> Result<DeploymentId, Error> {
    let id: DeploymentId = call.id(2)?;
    let named = fields.text("DeploymentID")?.filter(|named| !named.is_empty());
    if named.is_some_and(|named| named.parse() != Ok(id)) {
        return Err(Error::bad("DeploymentID does not match the one in the request path"));
    }
    Ok(id)
}

async fn promote(call: Call) -> Result<Answer, Error> {
    let body = call.json()?;
    let fields = Fields::of(&body)?;
    let id = target(&call, &fields)?;
    let named = fields.texts("Groups")?.unwrap_or_default();
    let all = fields.flag("All")?;
    if all != named.is_empty() {
        // What the deployment is says more than what is asked of it.
        match call.read().await?.state.deployments().get(&id) {
            None => return Err(Error::not_found("deployment")),
            Some(row) if !row.is_active() => {
                return Err(Error::bad("can't promote terminal deployment"));
            }
            Some(_) => {}
        }
        return Err(Error::bad("either All or Groups must be given"));
    }
    let groups = (!all).then(|| named.into_iter().map(Into::into).collect());
    let evaluation = call.evaluation_id();
    write(&call, PromoteDeployment { id, groups, evaluation }).await
}

async fn fail(call: Call) -> Result<Answer, Error> {
    let body = call.json()?;
    let id = target(&call, &Fields::of(&body)?)?;
    let evaluation = call.evaluation_id();
    write(&call, FailDeployment { id, evaluation }).await
}

async fn pause(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    let id = target(&call, &fields)?;
    // Without it a slip would resume what was paused.
    if fields.value("Pause").is_none() {
        return Err(Error::bad("Pause must be specified: true or false"));
    }
    let evaluation = call.evaluation_id();
    write(&call, PauseDeployment { id, pause: fields.flag("Pause")?, evaluation }).await
}

async fn allocation_health(call: Call) -> Result<Answer, Error> {
    let body = call.json()?;
    let fields = Fields::of(&body)?;
    let id = target(&call, &fields)?;
    let ids = |name: &str| -> Result<Vec<AllocationId>, Error> {
        let given = fields.texts(name)?.unwrap_or_default();
        given
            .into_iter()
            .map(|id| id.parse().map_err(|error| Error::bad(format!("{name}: {error}"))))
            .collect()
    };
    let (healthy, unhealthy) = (ids("HealthyAllocationIDs")?, ids("UnhealthyAllocationIDs")?);
    if healthy.is_empty() && unhealthy.is_empty() {
        return Err(Error::bad("must specify at least one healthy/unhealthy allocation ID"));
    }
    let evaluation = call.evaluation_id();
    write(&call, SetAllocationHealth { id, healthy, unhealthy, evaluation }).await
}

async fn write(call: &Call, command: impl Into<Command>) -> Result<Answer, Error> {
    let written = call.write(command.into()).await?;
    call.answer_write(&written, reply(&written))
}

fn reply(written: &Written) -> shapes::DeploymentWritten {
    let evaluation = written.reply.evaluations().first().copied();
    let reverted_to = if let Reply::Deployment { reverted_to, .. } = &written.reply {
        *reverted_to
    } else {
        None
    };
    shapes::DeploymentWritten {
        deployment_modify_index: written.index,
        eval_create_index: if evaluation.is_some() { written.index } else { 0 },
        eval_id: evaluation.map_or_else(String::new, |id| id.to_string()),
        reverted_job_version: reverted_to,
    }
}
