//! Messages for the agent's tests.

use proto::v1;

/// A batch allocation of job `job` with mock tasks of these names.
pub(crate) fn message(id: [u8; 16], job: &str, tasks: &[&str]) -> v1::Allocation {
    v1::Allocation {
        id: id.to_vec().into(),
        namespace: "default".to_owned(),
        job_id: job.to_owned(),
        job_name: job.to_owned(),
        job_kind: v1::JobKind::Batch.into(),
        client_status: v1::ClientStatus::Pending.into(),
        group: "group".to_owned(),
        name: format!("{job}.group[0]"),
        run: true,
        task_starts_allowed: true,
        restart: Some(v1::RestartPolicy {
            attempts: 1,
            interval_ms: 60_000,
            delay_ms: 10,
            fail: true,
        }),
        tasks: tasks
            .iter()
            .map(|name| v1::Task {
                name: (*name).to_owned(),
                driver: "mock".to_owned(),
                kill_timeout_ms: 100,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}
