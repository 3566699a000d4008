//! Service jobs as a whole: placing, blocking, stopping.

use fsm::{EvaluationStatus, JobKind, Trigger};

use super::{Cluster, cluster::PlanExt, job};

/// S1.
#[test]
fn s1_ten_instances_on_ten_nodes_in_one_plan() {
    let mut cluster = Cluster::with_nodes(10);
    let spec = job(JobKind::Service);
    let plan = cluster.run(&spec);
    assert_eq!(plan.names(), (0..10).collect::<Vec<_>>());
    assert_eq!(plan.status(), EvaluationStatus::Complete);
    assert_eq!((plan.queued(), plan.blocked().len()), (0, 0));
    assert_eq!(cluster.live(&spec).len(), 10);
    let again = cluster.plan(&spec, Trigger::JobRegister);
    assert!(again.is_no_op());
    assert_eq!(again.status(), EvaluationStatus::Complete);
}
