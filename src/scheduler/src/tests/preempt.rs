//! Preemption: which allocations go, how few, and for whom (NS-09, S18, F7).

use std::collections::BTreeSet;

use fsm::{
    AllocationId, JobKey, JobKind, JobSpec, NodeId, Trigger,
    job::{MigrateStrategy, Network, PortAsk},
    resources::Port,
    settings::{Preemption, SchedulerConfiguration},
};

use super::{Cluster, cluster::PlanExt, id, job};

/// A job of another name and priority, whose instances take this much CPU and memory.
fn other(name: &str, priority: u16, cpu_mhz: u64, memory_mb: u64) -> JobSpec {
    let mut spec = JobSpec {
        key: JobKey::new("default", name),
        name: name.into(),
        priority,
        ..job(JobKind::Service)
    };
    let ask = &mut spec.groups[0].tasks[0].resources;
    (ask.cpu_mhz, ask.memory_mb) = (cpu_mhz, memory_mb);
    spec
}

fn urgent(kind: JobKind, cpu_mhz: u64, memory_mb: u64) -> JobSpec {
    JobSpec { kind, groups: job(kind).groups, ..other("urgent", 80, 0, 0) }
        .asking(cpu_mhz, memory_mb)
}

trait Asking {
    fn asking(self, cpu_mhz: u64, memory_mb: u64) -> Self;
}

impl Asking for JobSpec {
    fn asking(mut self, cpu_mhz: u64, memory_mb: u64) -> Self {
        let ask = &mut self.groups[0].tasks[0].resources;
        (ask.cpu_mhz, ask.memory_mb) = (cpu_mhz, memory_mb);
        self
    }
}

fn allow(cluster: &mut Cluster, preemption: Preemption) {
    let configuration = SchedulerConfiguration { preemption, ..SchedulerConfiguration::default() };
    fsm::testing::put(&mut cluster.state, &configuration);
}

/// Runs `spec` on node 1 as its plan says and answers with what had to go.
fn victims(cluster: &mut Cluster, spec: &JobSpec) -> BTreeSet<AllocationId> {
    cluster.register(spec);
    let plan = cluster.plan(spec, Trigger::JobRegister);
    let gone = plan.placements.iter().flat_map(|placement| placement.preempts.iter().copied());
    let gone = gone.collect();
    cluster.apply(&plan);
    gone
}

/// NS-09.
#[test]
fn ns09_what_has_a_lower_priority_goes_for_a_system_job() {
    let mut cluster = Cluster::with_nodes(3);
    let low = other("low", 50, 2_000, 1_000);
    cluster.register(&low);
    let fillers: Vec<_> =
        (0..6).map(|name| cluster.allocation(&low, name, u64::from(name) / 2 + 1)).collect();
    let spec = urgent(JobKind::System, 1_000, 500);
    let plan = cluster.run(&spec);
    assert_eq!(plan.placements.len(), 3);
    assert!(plan.blocked().is_empty());
    for placement in &plan.placements {
        assert_eq!(placement.preempts.len(), 1, "one is enough on each node");
        let victim = cluster.get(placement.preempts[0]);
        assert_eq!((victim.node, victim.preempted_by), (placement.node, Some(placement.id)));
        let metrics = placement.metrics.as_ref().unwrap();
        let parts = &metrics.scores[0].parts;
        assert!(parts.iter().any(|(name, _)| &**name == "preemption"), "{parts:?}");
    }
    assert_eq!(cluster.live(&low).len(), fillers.len() - 3);
}

/// F7: priorities must be ten apart.
#[test]
fn equal_or_close_priorities_and_the_own_job_are_left_alone() {
    for priority in [71, 80, 90] {
        let mut cluster = Cluster::with_nodes(1);
        let near = other("near", priority, 4_000, 1_000);
        cluster.register(&near);
        cluster.allocation(&near, 0, 1);
        let spec = urgent(JobKind::System, 1_000, 500);
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        assert!(plan.placements.is_empty(), "priority {priority}");
        assert_eq!(plan.blocked().len(), 1);
        assert_eq!(plan.blocked()[0].node, Some(NodeId(id(1))));
    }
    let mut cluster = Cluster::with_nodes(1);
    let near = other("near", 70, 4_000, 1_000);
    cluster.register(&near);
    let id = cluster.allocation(&near, 0, 1);
    assert_eq!(victims(&mut cluster, &urgent(JobKind::System, 1_000, 500)), [id].into());
}

/// F7: the lowest priority goes first, however badly it suits.
#[test]
fn lower_priorities_go_before_higher_ones() {
    let mut cluster = Cluster::with_nodes(1);
    let (low, mid) = (other("low", 10, 500, 500), other("mid", 60, 1_000, 500));
    cluster.register(&low);
    cluster.register(&mid);
    let low: Vec<_> = (0..4).map(|name| cluster.allocation(&low, name, 1)).collect();
    for name in 0..2 {
        cluster.allocation(&mid, name, 1);
    }
    let gone = victims(&mut cluster, &urgent(JobKind::System, 1_000, 500));
    assert_eq!(gone.len(), 2);
    assert!(gone.iter().all(|id| low.contains(id)));
}

/// F7: of one priority the closest goes, and what others make superfluous stays.
#[test]
fn the_closest_goes_and_supersets_are_pruned() {
    let mut cluster = Cluster::with_nodes(1);
    let specs = [
        other("small", 50, 300, 100),
        other("exact", 50, 1_000, 100),
        other("huge", 50, 2_700, 100),
    ];
    let ids = specs.each_ref().map(|spec| {
        cluster.register(spec);
        cluster.allocation(spec, 0, 1)
    });
    assert_eq!(victims(&mut cluster, &urgent(JobKind::System, 1_000, 100)), [ids[1]].into());

    // The small one has the lowest priority and goes first, but the large one must go anyway.
    let mut cluster = Cluster::with_nodes(1);
    let (small, large) = (other("small", 10, 500, 100), other("large", 50, 3_500, 100));
    cluster.register(&small);
    cluster.register(&large);
    cluster.allocation(&small, 0, 1);
    let large = cluster.allocation(&large, 0, 1);
    assert_eq!(victims(&mut cluster, &urgent(JobKind::System, 3_000, 100)), [large].into());
}

/// F7: a group of which as many go as may migrate at once is left alone while others do.
#[test]
fn max_parallel_of_the_victims_is_a_penalty() {
    let mut cluster = Cluster::with_nodes(1);
    let (mut one, two) = (other("one", 50, 1_000, 100), other("two", 50, 900, 100));
    one.groups[0].migrate = MigrateStrategy { max_parallel: 1, ..one.groups[0].migrate };
    cluster.register(&one);
    cluster.register(&two);
    let first = [0, 1].map(|name| cluster.allocation(&one, name, 1));
    let second = [0, 1].map(|name| cluster.allocation(&two, name, 1));
    let gone = victims(&mut cluster, &urgent(JobKind::System, 2_000, 100));
    let of = |ids: &[AllocationId]| ids.iter().filter(|id| gone.contains(id)).count();
    assert_eq!((of(&first), of(&second)), (1, 1), "not both of group one");
}

/// F7: who holds the static port that is asked for goes, and nobody else.
#[test]
fn the_holder_of_a_port_goes() {
    let mut cluster = Cluster::with_nodes(1);
    let low = other("low", 50, 500, 100);
    cluster.register(&low);
    let ids = [0, 1, 2].map(|name| cluster.allocation(&low, name, 1));
    let port = Port { label: "http".into(), value: 8_080, to: 0 };
    cluster.change(ids[1], |row| row.ports = vec![port]);
    let mut spec = urgent(JobKind::System, 100, 100);
    let ask = PortAsk { label: "http".into(), value: 8_080, to: 0 };
    spec.groups[0].network = Some(Network { ports: vec![ask], names_mode: false });
    assert_eq!(victims(&mut cluster, &spec), [ids[1]].into());
}

/// S18.
#[test]
fn other_kinds_preempt_when_they_are_allowed_to() {
    for kind in [JobKind::Service, JobKind::Batch, JobKind::Sysbatch] {
        let mut cluster = Cluster::with_nodes(2);
        let low = other("low", 20, 4_000, 1_000);
        cluster.register(&low);
        let ids = [1, 2].map(|on| cluster.allocation(&low, u32::try_from(on).unwrap(), on));
        let mut spec = urgent(kind, 1_000, 500);
        spec.groups[0].count = 1;
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        assert_eq!(plan.counts(), (0, 0, 0), "{kind:?} may not by default");
        assert!(!plan.blocked().is_empty());
        let all = Preemption { system: true, sysbatch: true, batch: true, service: true };
        allow(&mut cluster, all);
        let plan = cluster.plan(&spec, Trigger::QueuedAllocs);
        let wanted = if kind.is_per_node() { 2 } else { 1 };
        assert_eq!(plan.placements.len(), wanted, "{kind:?}");
        for placement in &plan.placements {
            assert_eq!(placement.preempts.len(), 1);
            assert!(ids.contains(&placement.preempts[0]));
        }
        cluster.apply(&plan);
        assert_eq!(cluster.live(&low).len(), 2 - wanted);
    }
}

/// A service instance goes where it costs the least: nothing is evicted while there is room, and
/// then the lowest priority.
#[test]
fn a_service_evicts_the_least() {
    let mut cluster = Cluster::with_nodes(3);
    let all = Preemption { service: true, ..Preemption::default() };
    allow(&mut cluster, all);
    let (low, mid) = (other("low", 10, 4_000, 1_000), other("mid", 60, 4_000, 1_000));
    cluster.register(&low);
    cluster.register(&mid);
    cluster.allocation(&mid, 0, 1);
    let low = cluster.allocation(&low, 0, 2);
    let mut spec = urgent(JobKind::Service, 1_000, 500);
    spec.groups[0].count = 1;
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!((plan.placements[0].node, plan.placements[0].preempts.len()), (NodeId(id(3)), 0));
    cluster.change_node(3, |node| node.eligibility.ineligible = true);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!(plan.placements[0].preempts, [low]);
}
