//! What the author of a valid job should know of this cluster before the night. Told when a job is
//! registered, planned or validated, and never a reason to refuse it: what is missing may come.

use std::collections::BTreeSet;

use fsm::{State, job::JobSpec};

/// Warnings, each with the place in the job that it is about.
pub(super) fn of_cluster(state: &State, spec: &JobSpec) -> Vec<String> {
    let oversubscription = state.scheduler_configuration().memory_oversubscription;
    let mut warnings = Vec::new();
    let mut said = BTreeSet::new();
    for (group_number, group) in spec.groups.iter().enumerate() {
        for (number, task) in group.tasks.iter().enumerate() {
            if task.resources.memory_mb_max != 0 && !oversubscription {
                let name = format!("{}.{}", group.name, task.name);
                warnings.push(format!(
                    "Memory oversubscription is not enabled; Task \"{name}\" memory_max value will be ignored. Update the Scheduler Configuration to allow oversubscription."
                ));
            }
            if said.insert(&*task.driver) && !has_driver(state, &task.driver) {
                let path = format!("Job.TaskGroups[{group_number}].Tasks[{number}].Driver");
                let why = jobspec::say_missing_driver(&task.driver);
                warnings.push(format!("{path}: {why}"));
            }
        }
    }
    warnings
}

/// Whether a node has it, of whatever status, or an instance pool can make one that will. The first
/// agents of a cluster without nodes will have what is built here.
fn has_driver(state: &State, name: &str) -> bool {
    if state.nodes().is_empty() && jobspec::driver_is_checked(name) {
        return true;
    }
    let of_node = |row: &fsm::Node| {
        let driver = row.description.drivers.get(name);
        driver.is_some_and(|driver| driver.detected && driver.healthy)
    };
    let mut types = state.instance_pools().iter().flat_map(|pool| pool.types.values());
    state.nodes().iter().any(|row| of_node(row))
        || types.any(|one| one.node.drivers.iter().any(|driver| &**driver == name))
}
