//! What runs on a machine, whatever becomes of its agent, and whether it may begin and end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{lock, told::Told};
use crate::{
    coverage,
    running::{self, Name},
    trace, verdict,
    world::World,
};
use agent::{Process, ProcessTable, RunId};
use chance::Dice;
use ground::{clock::Clock, rt::Instant};

/// What runs on a machine.
pub(super) struct Processes {
    number: usize,
    world: World,
    pub(super) told: Arc<Mutex<Told>>,
    table: Mutex<BTreeMap<RunId, Listed>>,
    /// Runs that the agent may end without a server: it was told to restart them, or to stop.
    pub(super) ordered: Mutex<BTreeSet<RunId>>,
    /// It was told to stop: so is what it was still starting.
    pub(super) stopping: Mutex<bool>,
}

#[derive(Clone)]
struct Listed {
    name: Name,
    process: Process,
    ends_at: Option<Instant>,
    /// The machine has not booted since.
    of_this_boot: bool,
}

impl Processes {
    pub(super) fn new(number: usize, world: World, told: Arc<Mutex<Told>>) -> Self {
        let (table, ordered, stopping) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { number, world, told, table, ordered, stopping }
    }

    /// One that runs; half of the time one that will end by itself, if there is any.
    pub(super) fn some(&self, dice: &mut Dice) -> Option<RunId> {
        let mut runs = self.running();
        if dice.below(2) == 0 {
            let table = lock(&self.table);
            let finite: Vec<RunId> =
                runs.iter().filter(|run| table[*run].ends_at.is_some()).cloned().collect();
            drop(table);
            if !finite.is_empty() {
                runs = finite;
            }
        }
        (!runs.is_empty()).then(|| runs[dice.index(runs.len())].clone())
    }

    fn running(&self) -> Vec<RunId> {
        let table = lock(&self.table);
        table.iter().filter(|(_, listed)| listed.runs()).map(|(run, _)| run.clone()).collect()
    }

    /// The agent is about to end what runs.
    pub(super) fn may_all_end(&self) {
        let running = self.running();
        lock(&self.ordered).extend(running);
        *lock(&self.stopping) = true;
    }

    pub(super) fn end_with_the_machine(&self) {
        for listed in lock(&self.table).values_mut() {
            listed.process.killed |= listed.runs();
            listed.of_this_boot = false;
        }
        running::ends_all(self.number);
    }
}

impl Listed {
    fn runs(&self) -> bool {
        !self.process.killed && self.ends_at.is_none_or(|end| end > Instant::now())
    }
}

impl ProcessTable for Processes {
    fn begins(&self, run: &RunId, lasts: Option<Duration>) {
        let RunId { allocation, task, attempt } = run;
        let number = self.number;
        trace::event(&format!("a{number}"), format_args!("{allocation} {task} {attempt} begins"));
        let before = lock(&self.table)
            .iter()
            .rev()
            .find(|(other, _)| (other.allocation, &other.task) == (*allocation, task))
            .map(|(other, listed)| (other.clone(), listed.clone()));
        let mut restarted = None;
        if let Some((other, listed)) = before {
            let is_ordered = lock(&self.ordered).contains(&other);
            let what = if listed.runs() {
                Some("runs")
            } else {
                let ended_well = !listed.process.killed && listed.of_this_boot;
                (ended_well && !is_ordered).then_some("has ended well")
            };
            if let Some(what) = what {
                verdict::fail(format!(
                    "I49: attempt {attempt} of {task} of {allocation} begins on a{number} although attempt {} {what}",
                    other.attempt
                ));
            }
            // What ran when the agent started may be restarted before it has heard of it.
            restarted = (is_ordered && listed.of_this_boot).then_some(listed.name);
        }
        let asked = lock(&self.told).may_begin(*allocation).cloned();
        let name = match (asked, restarted) {
            (Ok(name), _) | (Err(_), Some(name)) => name,
            (Err(why), None) => {
                return verdict::fail(format!("I49: {allocation} begins on a{number}, and {why}"));
            }
        };
        let ends_at = lasts.map(|lasts| Instant::now() + lasts);
        let process = Process { began_at_ms: Clock::default().wall_ms(), killed: false };
        let listed = Listed { name: name.clone(), process, ends_at, of_this_boot: true };
        lock(&self.table).insert(run.clone(), listed);
        if *lock(&self.stopping) {
            lock(&self.ordered).insert(run.clone());
        }
        running::begins(&self.world, number, *allocation, (name, ends_at));
    }

    fn find(&self, run: &RunId) -> Option<Process> {
        let found = lock(&self.table).get(run).cloned().filter(|found| found.of_this_boot)?;
        if found.runs() {
            coverage::hit("an agent found again what the last one had begun");
        }
        Some(found.process)
    }

    fn ends(&self, run: &RunId) {
        let RunId { allocation, task, attempt } = run;
        let number = self.number;
        trace::event(&format!("a{number}"), format_args!("{allocation} {task} {attempt} ends"));
        let Some(listed) = lock(&self.table).get_mut(run).map(|listed| {
            let before = listed.clone();
            listed.process.killed = true;
            before
        }) else {
            return verdict::fail(format!("a{number} ends {allocation}, which never began"));
        };
        running::ends(number, *allocation);
        let state = self.world.newest();
        let is_wanted = state.is_some_and(|state| running::wanted(&state, *allocation).is_some());
        let is_ordered = lock(&self.ordered).contains(run);
        if listed.runs()
            && is_wanted
            && !is_ordered
            && !lock(&self.told).to_end.contains_key(allocation)
        {
            verdict::fail(format!(
                "I49: a{number} ends {allocation}, and no server has told it to"
            ));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use fsm::{
        AllocationId, JobKind,
        testing::{self, Driver},
    };
    use ground::rt;
    use proto::v1 as pb;

    use super::{super::told::STOPS_WITHIN, *};
    use crate::swarm::Swarm;

    /// A machine whose agent was told of the one allocation that the servers want.
    fn machine() -> (Processes, RunId) {
        let mut driver = Driver::default();
        driver.register_job(testing::job("web", JobKind::Service, 1));
        let node = driver.node("n1");
        let allocation = driver.place("web", 0, node);
        let world = World::new(&Arc::new(Swarm::draw(1)));
        world.judge(0, &Arc::new(driver.state));
        let told = Arc::default();
        let processes = Processes::new(3, world, told);
        lock(&processes.told).says(3, &batch(5, allocation, true));
        (processes, RunId { allocation, task: "task".to_owned(), attempt: 1 })
    }

    pub(in super::super) fn batch(
        index: u64,
        allocation: AllocationId,
        run: bool,
    ) -> pb::AllocationBatch {
        let id = allocation.0.to_vec().into();
        let one = pb::Allocation { id, run, task_starts_allowed: true, ..Default::default() };
        pb::AllocationBatch { index, allocations: vec![one], ..Default::default() }
    }

    fn found() -> Vec<String> {
        verdict::failures()
    }

    #[tokio::test(start_paused = true)]
    async fn i49_what_begins_was_asked_for_and_once() {
        rt::enter_simulation(1);
        let (machine, first) = machine();
        let attempt = |attempt| RunId { attempt, ..first.clone() };
        machine.begins(&first, Some(Duration::from_secs(1)));
        assert_eq!(found(), Vec::<String>::new());
        assert!(machine.find(&first).is_some_and(|found| !found.killed));
        machine.begins(&attempt(2), Some(Duration::from_secs(1)));
        assert!(found()[0].contains("although attempt 1 runs"), "{:?}", found());
        rt::sleep(Duration::from_secs(1)).await;
        machine.begins(&attempt(3), None);
        assert!(found()[1].contains("although attempt 2 has ended well"), "{:?}", found());
        machine.may_all_end();
        machine.ends(&attempt(3));
        machine.begins(&attempt(4), None);
        let other = RunId { allocation: AllocationId([9; 16]), ..first.clone() };
        machine.begins(&other, None);
        assert!(found()[2].contains("no server has asked for it"), "{:?}", found());
        assert_eq!(found().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn i49_what_was_to_end_does_not_begin() {
        rt::enter_simulation(1);
        let (machine, run) = machine();
        lock(&machine.told).says(3, &batch(6, run.allocation, false));
        machine.begins(&run, None);
        assert_eq!(found(), Vec::<String>::new(), "it may have been about to");
        machine.ends(&run);
        rt::sleep(STOPS_WITHIN * 2).await;
        machine.begins(&RunId { attempt: 2, ..run }, None);
        assert!(found()[0].contains("it was to end long ago"), "{:?}", found());
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_boots_has_nothing_that_runs() {
        rt::enter_simulation(1);
        let (machine, run) = machine();
        machine.begins(&run, None);
        machine.end_with_the_machine();
        assert_eq!(machine.find(&run), None, "its agent finds nothing");
        machine.begins(&RunId { attempt: 2, ..run }, None);
        assert_eq!(found(), Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn i49_what_is_wanted_ends_only_when_a_server_says_so() {
        rt::enter_simulation(1);
        let (machine, run) = machine();
        machine.begins(&run, None);
        lock(&machine.told).says(3, &batch(6, run.allocation, false));
        machine.ends(&run);
        assert_eq!(found(), Vec::<String>::new());
        assert!(machine.find(&run).is_some_and(|found| found.killed));
        machine.begins(&RunId { attempt: 2, ..run.clone() }, None);
        *lock(&machine.told) = Told::default();
        machine.ends(&RunId { attempt: 2, ..run.clone() });
        assert!(found()[0].contains("no server has told it to"), "{:?}", found());
    }
}
