//! I46: what may happen to deployments from one state to a later one: what is over stays over, a promotion happens once and with healthy canaries, canaries are
//! as many as asked for, and a job goes back by itself only to a stable version that does something else. What was successful is healthy somewhere, and the version
//! to go back to is kept.

use fsm::{Allocation, ClientStatus, Deployment, DeploymentStatus, State};

use super::{Broken, needs::is_live};

/// What is wrong with deployments after a step; `one_entry`: of one entry.
pub(super) fn judge(old: &State, new: &State, one_entry: bool, out: &mut Vec<Broken>) {
    stable_versions(old, new, out);
    for after in new.deployments().iter() {
        canaries(new, after, out);
        let Some(before) = old.deployments().get(&after.id) else { continue };
        if !before.is_active() && before.status != after.status {
            let (id, from, to) = (after.id, before.status.name(), after.status.name());
            out.push(Broken("I46", format!("deployment {id} went from {from} to {to}")));
        }
        for (name, group) in &after.groups {
            let Some(known) = before.groups.get(name) else { continue };
            if known.promoted && !group.promoted {
                out.push(Broken("I46", format!("{name} of {} is not promoted any more", after.id)));
            }
            if one_entry && group.promoted && !known.promoted {
                promoted(new, after, name, out);
            }
        }
        if one_entry && after.status == DeploymentStatus::Successful && before.is_active() {
            successful(new, after, out);
        }
        if one_entry && after.is_active() {
            fallen(old, new, after, out);
        }
        let fails = after.status == DeploymentStatus::Failed && before.is_active();
        if one_entry && fails {
            reverted(old, new, after, out);
        }
    }
}

/// What was successful was seen to work.
fn successful(state: &State, row: &Deployment, out: &mut Vec<Broken>) {
    let mut rows = state.allocations_of_deployment(row);
    let healthy = |one: &Allocation| one.deployment.and_then(|own| own.is_healthy()) == Some(true);
    if !rows.any(|one| is_live(one) && healthy(one)) {
        let detail = format!("{} of {} is successful, and nothing is healthy", row.id, row.job);
        out.push(Broken("I46", detail));
    }
}

/// A job that had a stable version has that one, or a newer one. Nobody takes a mark away here.
fn stable_versions(old: &State, new: &State, out: &mut Vec<Broken>) {
    for before in old.job_versions().iter().filter(|row| row.stable) {
        let (key, created) = (&before.spec.key, before.create_index);
        let known = new.job_versions().get(&(key.clone(), created, before.version));
        let goes_on = new.jobs().get(key).is_some_and(|job| job.create_index == created);
        if !goes_on || known.is_some_and(|row| row.stable) {
            continue;
        }
        let newest = new.last_stable_version(key, created).map(|row| row.version);
        if newest.is_none_or(|newest| newest < before.version) {
            let version = before.version;
            out.push(Broken("I46", format!("{key} lost {version}, its last stable version")));
        }
    }
}

/// Canaries live are no more than the group asks for.
fn canaries(state: &State, row: &Deployment, out: &mut Vec<Broken>) {
    for (name, group) in &row.groups {
        let rows = state.allocations_of_deployment(row);
        let live = rows.filter(|one| one.group == *name && is_live(one) && one.is_canary());
        let (live, most) = (live.count(), group.goal.canaries as usize);
        if live > most {
            out.push(Broken("I46", format!("{live} of {most} canaries of {} are live", row.job)));
        }
    }
}

/// An instance that fails by itself is unhealthy, whatever it was before, and the deployment goes on only if another attempt may come in time.
fn fallen(old: &State, new: &State, row: &Deployment, out: &mut Vec<Broken>) {
    for one in new.allocations_of_deployment(row) {
        let was = old.allocations().get(&one.id).filter(|was| is_live(was));
        let Some(was) = was.filter(|_| one.client == ClientStatus::Failed) else { continue };
        let health = |row: &Allocation| row.deployment.and_then(|own| own.is_healthy());
        if one.transition.migrate || health(was) == Some(false) {
            continue;
        }
        let deadline = row.groups.get(&one.group).map_or(0, |group| group.progress_deadline_ms);
        if health(one) != Some(false) || deadline == 0 || !new.may_reschedule(one) {
            out.push(Broken("I46", format!("{} fails, {} goes on", one.name(), row.id)));
        }
    }
}

/// As many canaries are healthy as the group asks for.
fn promoted(state: &State, row: &Deployment, name: &fsm::Text, out: &mut Vec<Broken>) {
    let rows = state.allocations_of_deployment(row);
    let healthy = rows.filter(|one| {
        let own = one.deployment.and_then(|own| own.is_healthy());
        let is_canary = one.canary_of == Some(row.id);
        one.group == *name && is_live(one) && is_canary && own == Some(true)
    });
    let (healthy, wanted) = (healthy.count(), row.groups[name].goal.canaries as usize);
    if healthy < wanted {
        let detail = format!("{name} of {} is promoted with {healthy} of {wanted}", row.job);
        out.push(Broken("I46", detail));
    }
}

/// The entry in which a deployment fails changes its job only to what a stable version does, and to something else.
fn reverted(old: &State, new: &State, row: &Deployment, out: &mut Vec<Broken>) {
    let (Some(before), Some(after)) = (old.jobs().get(&row.job), new.jobs().get(&row.job)) else {
        return;
    };
    if after.version == before.version {
        if row.description.contains("- rolling back to job version") {
            let detail = format!("{} is said to go back, and stays as it is", row.job);
            out.push(Broken("I46", detail));
        }
        return;
    }
    let (failed, taken) = (old.current_spec(before), new.current_spec(after));
    let versions = old.versions_of(&row.job, row.job_create_index);
    let is_stable = versions.iter().any(|one| one.stable && Some(&one.spec) == taken);
    if !is_stable || failed == taken {
        let detail = format!("{} goes back to version {} of no use", row.job, after.version);
        out.push(Broken("I46", detail));
    }
}
