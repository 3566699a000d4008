//! Random clusters and jobs: every plan keeps the rules, repeats itself, and a life of plans ends
//! with what was asked for or a reason.

use fsm::{
    ClientStatus, EvaluationStatus, JobKind, JobSpec, Liveness, Trigger,
    job::{Affinity, Constraint, Network, PortAsk, Spread, SpreadTarget},
};
use proptest::prelude::*;

use super::{
    Cluster,
    cluster::{PlanExt, update},
    job, node,
};

#[derive(Clone, Debug)]
enum Step {
    Count(u32),
    Destructive,
    InPlace,
    NodeDown(u64),
    NodeBack(u64),
    Ineligible(u64),
    Fail(usize),
    Complete(usize),
    Migrate(usize),
    Later(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..30u32).prop_map(Step::Count),
        Just(Step::Destructive),
        Just(Step::InPlace),
        (1..12u64).prop_map(Step::NodeDown),
        (1..12u64).prop_map(Step::NodeBack),
        (1..12u64).prop_map(Step::Ineligible),
        (0..30usize).prop_map(Step::Fail),
        (0..30usize).prop_map(Step::Complete),
        (0..30usize).prop_map(Step::Migrate),
        (0..60_000u64).prop_map(Step::Later),
    ]
}

fn on_live(
    cluster: &mut Cluster,
    spec: &JobSpec,
    number: usize,
    act: impl FnOnce(&mut Cluster, fsm::AllocationId),
) {
    let live: Vec<_> = cluster.live(spec).iter().map(|allocation| allocation.id).collect();
    if !live.is_empty() {
        act(cluster, live[number % live.len()]);
    }
}

fn take(cluster: &mut Cluster, spec: &mut JobSpec, step: &Step) {
    match step {
        Step::Count(count) => {
            spec.groups[0].count = if spec.kind.is_per_node() { count % 2 } else { *count };
            cluster.register(spec);
        }
        Step::Destructive => {
            spec.groups[0].tasks[0].user = format!("{}x", spec.groups[0].tasks[0].user).into();
            cluster.register(spec);
        }
        Step::InPlace => {
            spec.groups[0].tasks[0].kill_timeout_ms += 1;
            cluster.register(spec);
        }
        Step::NodeDown(number) => {
            cluster.change_node(*number, |node| node.liveness = Liveness::Down);
        }
        Step::NodeBack(number) => cluster.change_node(*number, |node| {
            node.liveness = Liveness::Ready;
            node.eligibility.ineligible = false;
        }),
        Step::Ineligible(number) => {
            cluster.change_node(*number, |node| node.eligibility.ineligible = true);
        }
        Step::Fail(number) => on_live(cluster, spec, *number, |cluster, id| {
            cluster.end(id, ClientStatus::Failed);
        }),
        Step::Complete(number) => on_live(cluster, spec, *number, |cluster, id| {
            cluster.end(id, ClientStatus::Complete);
        }),
        Step::Migrate(number) => on_live(cluster, spec, *number, |cluster, id| {
            cluster.change(id, |allocation| allocation.transition.migrate = true);
        }),
        Step::Later(ms) => cluster.now += ms,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// `Cluster::pass` asks the checker and repeats each pass.
    #[test]
    fn plans_keep_the_rules_and_converge(
        kind in prop::sample::select(JobKind::ALL.to_vec()),
        cpu_mhz in prop::sample::select(vec![100u64, 500, 1_900, 4_000, 5_000]),
        max_parallel in 0..4u32,
        distinct in any::<bool>(),
        ports in any::<bool>(),
        preferences in any::<bool>(),
        second_group in any::<bool>(),
        steps in prop::collection::vec(step(), 1..12),
    ) {
        let mut cluster = Cluster::new();
        for number in 1..12 {
            let mut row = node(number);
            let mut description = (*row.description).clone();
            description.datacenter = format!("dc{}", number % 3).into();
            row.description = description.into();
            cluster.put_node(row);
        }
        let mut spec = job(kind);
        spec.groups[0].tasks[0].resources.cpu_mhz = cpu_mhz;
        if kind != JobKind::Batch && kind != JobKind::Sysbatch {
            spec.groups[0].update = Some(update(max_parallel));
        }
        if distinct {
            spec.constraints = vec![Constraint {
                left: "${node.datacenter}".into(),
                operand: "distinct_property".into(),
                right: "3".into(),
            }];
        }
        if ports {
            spec.groups[0].network = Some(Network {
                ports: vec![PortAsk { label: "http".into(), value: 8080, to: 0 }],
                names_mode: false,
            });
        }
        if preferences {
            spec.groups[0].spreads = vec![Spread {
                attribute: "${node.datacenter}".into(),
                weight: 50,
                targets: vec![SpreadTarget { value: "dc1".into(), percent: 60 }],
            }];
            spec.affinities = vec![Affinity {
                constraint: Constraint {
                    left: "${node.unique.name}".into(),
                    operand: "regexp".into(),
                    right: "[13579]$".into(),
                },
                weight: -30,
            }];
        }
        if second_group {
            let mut group = spec.groups[0].clone();
            group.name = "second".into();
            group.network = None;
            group.constraints = vec![Constraint {
                left: "".into(),
                operand: "distinct_hosts".into(),
                right: "".into(),
            }];
            spec.groups.push(group);
        }
        cluster.run(&spec);
        for step in &steps {
            take(&mut cluster, &mut spec, step);
            let plan = cluster.plan(&spec, Trigger::NodeUpdate);
            cluster.apply(&plan);
        }
        // All goes well from now on: a rollout ends, and a settled job is left alone.
        let mut settled = false;
        for _ in 0..60 {
            cluster.now += 4_000_000;
            let plan = cluster.plan(&spec, Trigger::NodeUpdate);
            prop_assert_eq!(plan.status(), EvaluationStatus::Complete);
            if plan.is_no_op() {
                prop_assert!(plan.waiting().is_empty(), "nothing waits for a settled job");
                let queued = plan.queued();
                let failed = !plan.outcome.as_ref().unwrap().failed_groups.is_empty();
                prop_assert_eq!(queued > 0, failed);
                settled = true;
                break;
            }
            cluster.apply(&plan);
        }
        prop_assert!(settled);
    }
}
