//! What entries did to deployments, for the coverage.

use fsm::{Deployment, DeploymentStatus, State};

use crate::cluster::coverage::{Coverage, Event};

/// What an entry did to deployments, for the coverage.
pub(super) fn note(before: &State, after: &State, coverage: &mut Coverage) {
    for row in after.deployments().iter().filter(|row| row.modify_index == after.index()) {
        let Some(old) = before.deployments().get(&row.id) else {
            coverage.count(Event::DeploymentBegun);
            continue;
        };
        if row.status != old.status {
            match row.status {
                DeploymentStatus::Successful => coverage.count(Event::DeploymentSuccessful),
                DeploymentStatus::Failed => {
                    coverage.count(Event::DeploymentFailed);
                    if row.description.contains("- rolling back") {
                        coverage.count(Event::DeploymentReverted);
                    }
                    if row.description.starts_with("Failed due to progress") {
                        coverage.count(Event::DeploymentExpired);
                    }
                }
                DeploymentStatus::Running
                | DeploymentStatus::Paused
                | DeploymentStatus::Cancelled => {}
            }
        }
        let promoted = |row: &Deployment| row.groups.values().any(|group| group.promoted);
        if promoted(row) && !promoted(old) {
            coverage.count(Event::DeploymentPromoted);
        }
    }
}
