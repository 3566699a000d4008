//! The checker finds what is wrong with plans that were made wrong on purpose.

use fsm::{JobKind, NodeId, Plan, Trigger, limits::PLAN_PLACEMENTS_MAX};

use super::{Cluster, id, job};
use crate::check::{Violation, check};

fn broken(change: impl FnOnce(&mut Cluster, &mut Plan)) -> Vec<Violation> {
    let mut cluster = Cluster::with_nodes(3);
    let spec = job(JobKind::Service);
    cluster.register(&spec);
    let mut plan = cluster.plan(&spec, Trigger::JobRegister);
    assert!(plan.placements.len() < PLAN_PLACEMENTS_MAX);
    change(&mut cluster, &mut plan);
    check(&cluster.state, &plan)
}

#[test]
fn every_kind_of_violation_is_found() {
    let node_one = NodeId(id(1));
    assert_eq!(broken(|_, _| ()), []);
    let found = broken(|_, plan| plan.placements.iter_mut().for_each(|p| p.node = node_one));
    assert_eq!(found, [Violation::OverCommitted(node_one, "cpu")]);
    let found = broken(|_, plan| plan.placements[1].name_index = plan.placements[0].name_index);
    assert!(matches!(found[..], [Violation::NameTwice(_, 0)]), "{found:?}");
    let found = broken(|_, plan| plan.placements[1].id = plan.placements[0].id);
    assert!(matches!(found[..], [Violation::DuplicateId(_)]), "{found:?}");
    let found = broken(|_, plan| plan.placements[0].group = "nope".into());
    assert!(found.contains(&Violation::UnknownGroup("nope".into())), "{found:?}");
    let found = broken(|_, plan| plan.placements[0].node = NodeId(id(99)));
    assert_eq!(found, [Violation::NodeUnusable(NodeId(id(99)))]);
    let found = broken(|cluster, _| {
        for number in 1..=3 {
            cluster.change_node(number, |node| node.eligibility.ineligible = true);
        }
    });
    assert_eq!(found.len(), 10);
    let found = broken(|_, plan| plan.job_version = 9);
    assert_eq!(found, [Violation::JobNotWanted]);
    let found = broken(|_, plan| {
        let mut extra = plan.placements[0].clone();
        extra.id.0[0] ^= 1;
        extra.name_index = 10;
        plan.placements.push(extra);
    });
    assert!(found.contains(&Violation::TooMany("web".into())), "{found:?}");
    let found = broken(|_, plan| {
        plan.in_place.push(fsm::plan::InPlace { id: plan.placements[0].id });
    });
    assert!(matches!(found[..], [Violation::BadChange(_)]), "{found:?}");
}
