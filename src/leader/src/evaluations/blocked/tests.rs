//! Blocked evaluations against their golden script, and the slices.

use std::sync::Arc;

use super::*;
use crate::{
    golden::{self, Arguments},
    testing::{self, evaluation, job_key, name_of, named, parse_evaluation},
};

/// Which gains wake an evaluation: by class, escaped, by node, missed ones, duplicates, by room.
#[test]
fn golden_blocked() {
    let mut world = World::default();
    golden::run("blocked.txt", |line| {
        let answer = world.step(&Arguments::new(line));
        check_invariants(&world.blocked);
        answer
    });
}

fn check_invariants(blocked: &BlockedEvals) {
    let records: usize = blocked
        .jobs
        .values()
        .map(|records| usize::from(records.by_class.is_some()) + records.by_node.len())
        .sum();
    assert_eq!(records, blocked.tracked.len());
    let on_nodes: usize = blocked.by_node.values().map(BTreeSet::len).sum();
    assert_eq!(on_nodes, blocked.per_node);
    let mut asleep = BTreeSet::new();
    for (pool, shapes) in &blocked.asleep {
        assert!(!shapes.is_empty());
        for (shape, places) in shapes {
            assert!(!places.is_empty());
            for place in places {
                let one = &blocked.tracked[&place.3];
                assert_eq!((&one.pool, &one.shape, &one.place), (pool, shape, place));
                asleep.insert(place.3);
            }
        }
    }
    let by_class = blocked.tracked.iter().filter(|(_, one)| one.node.is_none());
    let sleeps = by_class.filter(|(_, one)| one.woken.is_none()).map(|(id, _)| *id);
    assert!(sleeps.eq(asleep));
    assert_eq!(blocked.escaped, blocked.tracked.values().filter(|one| one.escaped).count());
    assert!(blocked.woken.iter().all(|id| blocked.tracked.contains_key(id)));
    assert!(blocked.duplicates.iter().all(|id| !blocked.tracked.contains_key(id)));
    blocked.offers.check();
}

/// The tracker, and the state that it follows.
#[derive(Default)]
struct World {
    state: State,
    blocked: BlockedEvals,
}

impl World {
    fn new() -> Self {
        let mut world = Self::default();
        world.blocked.enable();
        world
    }

    /// A job of a pool, whose instances take so much disk.
    fn put_job(&mut self, name: &str, pool: &str, ask: u64) {
        self.put_job_of(name, pool, ask, 50);
    }

    fn put_job_of(&mut self, name: &str, pool: &str, ask: u64, priority: u16) {
        testing::job_that_asks(&mut self.state, name, ask, |spec| {
            (spec.node_pool, spec.priority) = (pool.into(), priority);
        });
    }

    /// Services may evict others.
    fn allow_preemption(&mut self) {
        let mut row = self.state.scheduler_configuration();
        row.preemption.service = true;
        fsm::testing::put(&mut self.state, &row);
        self.blocked.configuration_changed(&self.state);
    }

    fn put_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let known = self.state.nodes().get(&NodeId(named(name)));
        let mut row = known.map_or_else(|| testing::node(name), |known| (**known).clone());
        change(&mut row);
        testing::put_node(&mut self.state, &row);
    }

    /// A node has so much disk.
    fn put_room(&mut self, name: &str, room: u64, slots: u32) {
        self.put_node(name, |row| {
            let description = Arc::make_mut(&mut row.description);
            description.resources.total.disk_mb = room;
            description.resources.allocations_max = slots;
        });
    }

    /// What the dispatcher does with an evaluation whose row changed and that the broker does not
    /// hold any more.
    fn put(&mut self, now: u64, row: &Evaluation) {
        fsm::testing::put(&mut self.state, row);
        self.blocked.returned(&self.state, row.id);
        if row.status == EvaluationStatus::Blocked {
            self.blocked.block(now, &self.state, row);
        } else {
            self.blocked.removed(row.id);
        }
    }

    fn block(&mut self, line: &Arguments<'_>, now: u64) {
        let mut row = parse_evaluation(line);
        row.status = EvaluationStatus::Blocked;
        let pool = line.find("pool");
        if pool.is_some() || line.find("ask").is_some() {
            self.put_job(&row.job.id.clone(), pool.unwrap_or("all"), line.number("ask"));
        }
        if line.find("ask").is_some() {
            row.job_modify_index = 1;
            let count = u32::try_from(line.number("count").max(1)).expect("small");
            row.queued.insert("group".into(), count);
        }
        self.put(now, &row);
    }

    fn unblock(&mut self, line: &Arguments<'_>) {
        let class = line.find("class");
        let name = line.find("node").or(class).expect("a node or a class");
        self.put_node(name, |row| {
            row.class = class.map_or(row.class, |class| ClassId(named(class)));
            if let Some(pool) = line.find("pool") {
                Arc::make_mut(&mut row.description).pool = pool.into();
            }
        });
        if line.find("room").is_some() {
            let slots = u32::try_from(line.number("slots")).expect("small");
            self.put_room(name, line.number("room"), slots);
        }
        let (node, index) = (NodeId(named(name)), line.number("index"));
        let gain = fsm::node::CapacityGain { key: GainKey::Node(node), index };
        fsm::testing::put(&mut self.state, &gain);
        self.blocked.gained(node, index);
    }

    fn poll(&mut self, now: u64) -> String {
        let wakes = self.blocked.poll(now, &self.state);
        let names: Vec<_> = wakes
            .iter()
            .map(|wake| format!("{}@{}", name_of(wake.evaluation.0), wake.index))
            .collect();
        format!("woken [{}], next {:?}", names.join(" "), self.blocked.next_deadline())
    }

    fn step(&mut self, line: &Arguments<'_>) -> String {
        let now = line.number("now");
        let index = line.number("index");
        match line.word {
            "reset" => *self = Self::new(),
            "disable" => self.blocked.disable(),
            "block" => self.block(line, now),
            "end" => {
                let mut row = parse_evaluation(line);
                row.status = EvaluationStatus::Complete;
                self.put(now, &row);
            }
            "unblock" => self.unblock(line),
            "room" => {
                let slots = u32::try_from(line.number("slots")).expect("small");
                self.put_room(line.text("node"), line.number("room"), slots);
            }
            "runs" => {
                let mut row =
                    testing::allocation(line.text("id"), line.text("job"), line.text("node"));
                row.resources.disk_mb = line.number("ask");
                row.create_index = index.max(1);
                testing::put_allocation(&mut self.state, row);
            }
            "preemption" => self.allow_preemption(),
            "job" => {
                let (pool, ask) = (line.text("pool"), line.number("ask"));
                let priority = line.find("priority").map_or(50, |_| line.number("priority"));
                let priority = u16::try_from(priority).expect("a priority");
                self.put_job_of(line.text("id"), pool, ask, priority);
                self.blocked.job_changed(&self.state, &job_key(line.text("id")));
            }
            "unblock-failed" => self.blocked.unblock_failed(),
            "node-gone" => self.blocked.node_gone(NodeId(named(line.text("node"))), index),
            "untrack" => self.blocked.untrack(&evaluation("", line.text("job"), 0).job),
            "removed" => self.blocked.removed(EvaluationId(named(line.text("id")))),
            "restore" => {
                self.blocked.disable();
                self.blocked.enable();
                self.blocked.restore(now, &self.state, |_| false);
            }
            "poll" => return self.poll(now),
            "stats" => {
                let BlockedStats { blocked, escaped, per_node, woken, scans, duplicates } =
                    self.blocked.stats();
                return format!(
                    "blocked={blocked} escaped={escaped} per_node={per_node} woken={woken} \
                     scans={scans} duplicates={duplicates}"
                );
            }
            "duplicates" => {
                let ids = self.blocked.duplicates(100);
                let ids: Vec<_> = ids.iter().map(|id| name_of(id.0)).collect();
                return format!("[{}]", ids.join(" "));
            }
            other => panic!("unknown command `{other}`"),
        }
        String::new()
    }
}

fn blocked_row(number: u64) -> Evaluation {
    let name = format!("e{number:05}");
    let mut row = evaluation(&name, &name, number);
    row.status = EvaluationStatus::Blocked;
    row.snapshot_index = 10;
    row
}

/// A mass of unblocks only queues; each poll does a bounded slice; repeated gains do not keep the
/// last evaluations asleep.
#[test]
fn work_is_done_in_slices_and_reaches_everyone() {
    let total = 3 * limits::BLOCKED_SLICE_MAX + 7;
    let mut world = World::new();
    for number in 0..u64::try_from(total).expect("small") {
        world.put(0, &blocked_row(number));
    }
    let mut woken = BTreeSet::new();
    for name in ["a", "b", "c"] {
        world.put_node(name, |_| {});
    }
    for index in 100..120 {
        for name in ["a", "b", "c"] {
            world.blocked.gained(NodeId(named(name)), index);
        }
        assert!(world.blocked.stats().scans <= 3);
        let wakes = world.blocked.poll(0, &world.state);
        assert!(wakes.len() <= limits::BLOCKED_SLICE_MAX);
        check_invariants(&world.blocked);
        woken.extend(wakes.into_iter().map(|wake| wake.evaluation));
    }
    assert_eq!(woken.len(), total);
    while world.blocked.next_deadline() == Some(0) {
        assert!(world.blocked.poll(0, &world.state).is_empty());
    }
    assert_eq!(world.blocked.stats(), BlockedStats::default());
}

/// A look that is cut goes on where it stopped, and has given no more than there is by its end.
#[test]
fn a_look_goes_on_where_its_slice_ended() {
    let total = u64::try_from(3 * limits::BLOCKED_SLICE_MAX).expect("small");
    let mut world = World::new();
    world.put_room("n", 100, 0);
    for number in 0..total {
        let mut row = blocked_row(number);
        world.put_job(&row.job.id.clone(), "all", 60);
        (row.job_modify_index, row.queued) = (1, [("group".into(), 1)].into());
        // All but the last have seen what comes.
        row.snapshot_index = if number + 1 == total { 10 } else { 200 };
        world.put(0, &row);
    }
    world.blocked.gained(NodeId(named("n")), 100);
    let mut woken = Vec::new();
    for polls in 0..3 {
        assert!(polls == 0 || world.blocked.next_deadline() == Some(0));
        woken.extend(world.blocked.poll(0, &world.state));
        check_invariants(&world.blocked);
    }
    while world.blocked.next_deadline() == Some(0) {
        woken.extend(world.blocked.poll(0, &world.state));
    }
    assert_eq!(woken.len(), 1, "{woken:?}");
}

/// Whoever can use room is found soon, also behind many that fit and cannot, and by a number of
/// tries that is that of those.
#[test]
fn room_that_many_refuse_reaches_the_one_that_can_use_it() {
    const REFUSING: u64 = 100;
    let mut world = World::new();
    world.put_room("n", 100, 0);
    for number in 0..=REFUSING {
        let mut row = blocked_row(number);
        world.put_job(&row.job.id.clone(), "all", 60);
        (row.job_modify_index, row.queued) = (1, [("group".into(), 1)].into());
        world.put(0, &row);
    }
    world.blocked.gained(NodeId(named("n")), 100);
    let (mut rounds, mut tried) = (0, 0);
    loop {
        let wakes = world.blocked.poll(0, &world.state);
        if wakes.is_empty() {
            break;
        }
        (rounds, tried) = (rounds + 1, tried + wakes.len());
        for wake in wakes {
            let mut row =
                (**world.state.evaluations().get(&wake.evaluation).expect("it is there")).clone();
            row.snapshot_index = 100;
            world.put(0, &row);
            check_invariants(&world.blocked);
        }
    }
    assert_eq!(tried, usize::try_from(REFUSING + 1).expect("small"));
    assert!(rounds <= 8, "{rounds}");
}

/// A new leader wakes what missed its gain while the old one died, and tracks the rest.
#[test]
fn a_new_leader_wakes_what_missed_a_gain() {
    let mut state = testing::state_of_nodes([testing::node("there")]);
    for (number, snapshot) in [(1, 10), (2, 20)] {
        let mut row = blocked_row(number);
        row.snapshot_index = snapshot;
        fsm::testing::put(&mut state, &row);
    }
    fsm::testing::put(&mut state, &evaluation("pending", "pending", 3));
    let key = GainKey::Node(NodeId(named("there")));
    fsm::testing::put(&mut state, &fsm::node::CapacityGain { key, index: 15 });
    let mut blocked = BlockedEvals::default();
    blocked.enable();
    blocked.restore(0, &state, |_| false);
    let first = EvaluationId(named("e00001"));
    assert_eq!(blocked.poll(0, &state), [Wake { evaluation: first, index: 15 }]);
    assert_eq!(blocked.stats(), BlockedStats { blocked: 1, ..BlockedStats::default() });
}

/// The leader that saw the node go may not have lived to have its evaluation processed.
#[test]
fn a_new_leader_wakes_what_waits_for_a_node_that_is_gone() {
    let mut state = testing::state_of_nodes([testing::node("there")]);
    for (number, node) in [(1, "gone"), (2, "there")] {
        let mut row = blocked_row(number);
        (row.kind, row.node) = (fsm::JobKind::System, Some(NodeId(named(node))));
        fsm::testing::put(&mut state, &row);
    }
    state.advance(30, 0);
    let mut blocked = BlockedEvals::default();
    blocked.enable();
    blocked.restore(0, &state, |_| false);
    let first = EvaluationId(named("e00001"));
    assert_eq!(blocked.poll(0, &state), [Wake { evaluation: first, index: 30 }]);
    check_invariants(&blocked);
}

/// What is remembered is bounded by the nodes that are there.
#[test]
fn a_gain_is_forgotten_with_its_node() {
    let mut world = World::new();
    world.put_node("n", |_| {});
    world.put(0, &blocked_row(1));
    world.blocked.gained(NodeId(named("n")), 20);
    assert_eq!(world.blocked.poll(0, &world.state).len(), 1);
    world.blocked.gained(NodeId(named("n")), 21);
    world.blocked.node_gone(NodeId(named("n")), 22);
    check_invariants(&world.blocked);
    assert_eq!(world.blocked.offers.gained_after(0).count(), 0);
    world.put(0, &blocked_row(2));
    assert_eq!(world.blocked.next_deadline(), None);
}

/// A gain that comes while a look is under way reaches those that the look has passed.
#[test]
fn a_gain_during_a_look_is_looked_at_from_the_start() {
    let total = u64::try_from(2 * limits::BLOCKED_SLICE_MAX).expect("small");
    let mut world = World::new();
    world.put_node("n", |_| {});
    for number in 0..total {
        let mut row = blocked_row(number);
        row.snapshot_index = if number == 0 { 100 } else { 200 };
        world.put(0, &row);
    }
    world.blocked.gained(NodeId(named("n")), 100);
    assert!(world.blocked.poll(0, &world.state).is_empty());
    assert_eq!(world.blocked.next_deadline(), Some(0), "the look is cut");
    world.blocked.gained(NodeId(named("n")), 110);
    let mut woken = Vec::new();
    while world.blocked.next_deadline() == Some(0) {
        woken.extend(world.blocked.poll(0, &world.state));
        check_invariants(&world.blocked);
    }
    assert_eq!(woken, [Wake { evaluation: EvaluationId(named("e00000")), index: 110 }]);
}

/// What is woken for room and is not given out yet holds it, whatever is told of its row meanwhile;
/// when it is withdrawn, the room is passed on.
#[test]
fn a_woken_evaluation_not_given_out_yet_holds_its_room() {
    let slice = u64::try_from(limits::BLOCKED_SLICE_MAX).expect("small");
    for is_withdrawn in [true, false] {
        let mut world = World::new();
        world.put_room("n", 100, 0);
        // They are given out first, and have seen the gain.
        for number in 0..slice {
            let mut row = blocked_row(number);
            (row.trigger, row.snapshot_index) = (Trigger::MaxPlans, 200);
            world.put(0, &row);
        }
        for (name, index) in [("x", 1), ("y", 2)] {
            world.put_job(name, "all", 60);
            let mut row = evaluation(name, name, index);
            row.status = EvaluationStatus::Blocked;
            (row.job_modify_index, row.queued) = (1, [("group".into(), 1)].into());
            world.put(0, &row);
        }
        world.blocked.gained(NodeId(named("n")), 100);
        let now = limits::UNBLOCK_FAILED_MS;
        assert_eq!(world.blocked.poll(now, &world.state).len(), limits::BLOCKED_SLICE_MAX);
        assert_eq!(world.blocked.stats().woken, 1, "x");
        if is_withdrawn {
            world.blocked.untrack(&job_key("x"));
        } else {
            world.blocked.returned(&world.state, EvaluationId(named("x")));
        }
        let mut woken = Vec::new();
        while world.blocked.next_deadline() == Some(0) {
            woken.extend(world.blocked.poll(now, &world.state));
            check_invariants(&world.blocked);
        }
        let names: Vec<_> = woken.iter().map(|wake| name_of(wake.evaluation.0)).collect();
        assert_eq!(names, [if is_withdrawn { "y" } else { "x" }]);
    }
}

/// Room is offered to one more for each that refused it lately; each that took it halves that.
#[test]
fn refusals_are_forgotten_by_halves() {
    let node = NodeId(named("n"));
    let free = disk(10);
    let mut offers = Offers::default();
    let mut pass = |number: u8, is_refused: bool| {
        let id = EvaluationId([number; 16]);
        offers.give(id, node, Room::default());
        if number > 0 {
            offers.give_back(id, is_refused);
        }
        offers.left(node, free)
    };
    // It holds the offer open.
    assert_eq!(pass(0, false), free);
    let lefts = [(1, true), (2, true), (3, true), (4, true), (5, false), (6, false)];
    let lefts = lefts.map(|(number, is_refused)| pass(number, is_refused));
    assert_eq!(lefts, [2, 3, 4, 5, 3, 2].map(|factor| free.times(factor)));
}

/// A node that takes no work has no room, however much of it is free.
#[test]
fn a_node_out_of_service_has_no_room() {
    let mut world = World::new();
    world.put_node("n", |row| row.liveness = fsm::Liveness::Down);
    world.put(0, &blocked_row(1));
    world.blocked.gained(NodeId(named("n")), 20);
    assert!(world.blocked.poll(0, &world.state).is_empty());
    world.put_node("n", |row| row.liveness = fsm::Liveness::Ready);
    world.blocked.gained(NodeId(named("n")), 21);
    assert_eq!(world.blocked.poll(0, &world.state).len(), 1);
}

fn disk(disk_mb: u64) -> Room {
    Room { resources: fsm::resources::Resources { disk_mb, ..Default::default() }, slots: 1 }
}

/// An evaluation of job `web`, of whose groups so many instances lack.
fn lacking(queued: &[(&str, u32)]) -> Evaluation {
    let mut row = evaluation("e", "web", 1);
    row.job_modify_index = 1;
    row.queued = queued.iter().map(|(name, count)| ((*name).into(), *count)).collect();
    row
}

/// The least that an evaluation takes is that of the smallest instance of any group that lacks one.
/// Where a group or what it lacks is not known, any room is enough.
#[test]
fn the_smallest_instance_that_lacks_has_to_fit() {
    let mut world = World::new();
    testing::job_that_asks(&mut world.state, "web", 60, |spec| {
        for (name, disk_mb) in [("huge", 100), ("tiny", 5)] {
            let group = fsm::TaskGroup { name: name.into(), disk_mb, ..spec.groups[0].clone() };
            spec.groups.push(group);
        }
    });
    let check = |what: &str, row: &Evaluation, least: u64| {
        let (shape, _) = Shape::of(&world.state, row);
        assert!(shape.fits(disk(least)), "{what} fits in {least}");
        assert!(least == 0 || !shape.fits(disk(least - 1)), "{what} fits in less than {least}");
    };
    check("one group", &lacking(&[("group", 1)]), 60);
    check("one that lacks nothing", &lacking(&[("group", 1), ("tiny", 0)]), 60);
    check("the smaller comes first", &lacking(&[("group", 1), ("huge", 1)]), 60);
    check("a group that is gone", &lacking(&[("gone", 1), ("group", 1)]), 0);
    let mut row = lacking(&[("group", 1)]);
    row.failed_groups.insert("tiny".into(), fsm::Metrics::default());
    check("one that failed", &row, 5);
    row.job_modify_index = 0;
    check("a job that has changed", &row, 0);
}

/// An instance of an older version may lack as well. What asks for a property of other nodes, and
/// what is about each node, cannot be told by the room of one.
#[test]
fn the_smallest_ask_of_all_versions_of_a_job_counts() {
    let mut world = World::new();
    let least = |world: &World| {
        let (shape, _) = Shape::of(&world.state, &lacking(&[("group", 1)]));
        (0..=60).find(|room| shape.fits(disk(*room)))
    };
    let property = fsm::job::Constraint {
        left: "${meta.rack}".into(),
        operand: "distinct_property".into(),
        right: "1".into(),
    };
    testing::job_that_asks(&mut world.state, "web", 60, |_| {});
    let key = job_key("web");
    let mut job = (**world.state.jobs().get(&key).expect("it is there")).clone();
    let new = (*world.state.versions_of(&key, 1)[0]).clone();
    job.version = 1;
    fsm::testing::put(&mut world.state, &job);
    fsm::testing::put(&mut world.state, &fsm::JobVersion { version: 1, ..new });
    assert_eq!(least(&world), Some(60));
    testing::job_that_asks(&mut world.state, "web", 20, |_| {});
    fsm::testing::put(&mut world.state, &job);
    assert_eq!(least(&world), Some(20), "the older version is smaller");
    testing::job_that_asks(&mut world.state, "web", 60, |spec| spec.constraints.push(property));
    fsm::testing::put(&mut world.state, &job);
    assert_eq!(least(&world), Some(0), "the older version asks for a property");
    testing::job_that_asks(&mut world.state, "web", 60, |spec| spec.kind = fsm::JobKind::System);
    assert_eq!(least(&world), Some(0), "it is about each node");
}

/// An evaluation takes room for as many instances as lack and fit, and for one at least.
#[test]
fn the_share_of_an_evaluation_is_bounded_by_slots_too() {
    let mut world = World::new();
    world.put_job("web", "all", 60);
    let (shape, count) = Shape::of(&world.state, &lacking(&[("group", 4)]));
    let room = Room { slots: 2, ..disk(500) };
    assert_eq!(count, 4);
    for (count, shares) in [(4, 2), (1, 1), (0, 1)] {
        assert_eq!(shape.share(room, count), disk(60).times(shares), "{count} lack");
    }
}

/// What is stopped is no room that a replacement could have: it is free when it has ended.
#[test]
fn a_stopped_instance_holds_no_room_for_its_job() {
    let mut world = World::new();
    world.put_job("web", "all", 60);
    world.put_room("n", 100, 0);
    for desired in [fsm::DesiredStatus::Run, fsm::DesiredStatus::Stop] {
        let mut row = testing::allocation("x", "web", "n");
        (row.resources.disk_mb, row.desired) = (60, desired);
        testing::put_allocation(&mut world.state, row);
        let open = OpenNode::find(&world.state, NodeId(named("n"))).expect("it is in service");
        let held = open.held_by(&job_key("web"));
        assert_eq!(held.slots, u32::from(desired == fsm::DesiredStatus::Run));
    }
}
