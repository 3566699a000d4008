//! What a seed switches on: a cluster, and which kinds of trouble with which weight. About half of the kinds are off in any seed, because trouble
//! that is always there hides what only its absence shows.

use chance::Dice;

/// Settings of one seed.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a kind of trouble of its own")]
pub(crate) struct Swarm {
    pub(crate) servers: usize,
    pub(crate) workers_per_server: usize,
    pub(crate) agents: usize,
    pub(crate) jobs: usize,
    /// Weight of an election among a hundred and more other things.
    pub(crate) elections: u64,
    /// Percent of messages between workers and leader that are lost, or come twice.
    pub(crate) message_loss: u64,
    pub(crate) message_copies: u64,
    /// Percent of outcomes that are not learned.
    pub(crate) reply_loss: u64,
    /// Followers and leaders apply this many entries at a time, at most.
    pub(crate) applied_at_once: u64,
    /// Weight of a server's apply.
    pub(crate) applies: u64,
    /// Percent of feeds in which effects are missed.
    pub(crate) resets: u64,
    /// Agents fall silent, restart, lose their state.
    pub(crate) agent_trouble: bool,
    /// Tasks fail.
    pub(crate) task_failures: bool,
    /// Percent of scheduling turns that fail.
    pub(crate) turn_failures: u64,
    /// Operators drain, change eligibility, purge.
    pub(crate) operators: bool,
    /// Time may jump by up to a minute.
    pub(crate) time_jumps: bool,
    /// Nodes have room for few.
    pub(crate) scarce: bool,
    /// How soon what has ended is forgotten.
    pub(crate) gc: leader::GcConfig,
    /// Silent servers are reported.
    pub(crate) silent_servers: bool,
    /// Jobs of more kinds.
    pub(crate) extra_jobs: bool,
    /// Jobs ask for more than a count.
    pub(crate) rich_jobs: bool,
    /// Some plans are spoiled on their way into the log.
    pub(crate) bad_plans: bool,
    /// Users collect garbage by naming everything there is.
    pub(crate) bad_garbage: bool,
    /// Nodes keep something for themselves, are of two pools, and change.
    pub(crate) rich_nodes: bool,
    /// Agents check their nodes after tasks, and a report of that may come late.
    pub(crate) checks_after_tasks: bool,
}

impl Swarm {
    /// The settings of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::numbered(seed, u64::MAX);
        let mut sometimes = |low, high| if dice.percent(50) { dice.between(low, high) } else { 0 };
        let elections = sometimes(1, 6);
        let message_loss = sometimes(2, 20);
        let message_copies = sometimes(2, 30);
        let reply_loss = sometimes(2, 20);
        let resets = sometimes(1, 5);
        let turn_failures = sometimes(2, 60);
        let threshold_ms = dice.pick(&[30_000, 120_000, 3_600_000]).unwrap_or(30_000);
        let gc = leader::GcConfig {
            interval_ms: 20_000,
            evaluation_ms: threshold_ms,
            batch_evaluation_ms: threshold_ms,
            job_ms: threshold_ms,
            deployment_ms: threshold_ms,
            children_max: 8,
        };
        Self {
            gc,
            servers: if dice.percent(15) { 1 } else { 3 },
            workers_per_server: usize::try_from(dice.between(1, 2)).expect("small"),
            agents: usize::try_from(dice.between(2, 5)).expect("small"),
            jobs: usize::try_from(dice.between(1, 4)).expect("small"),
            elections,
            message_loss,
            message_copies,
            reply_loss,
            applied_at_once: dice.between(1, 6),
            applies: dice.between(6, 24),
            resets,
            agent_trouble: dice.percent(50),
            task_failures: dice.percent(50),
            turn_failures,
            operators: dice.percent(60),
            time_jumps: dice.percent(50),
            scarce: dice.percent(50),
            silent_servers: dice.percent(30),
            extra_jobs: dice.percent(40),
            rich_jobs: dice.percent(60),
            rich_nodes: dice.percent(60),
            bad_plans: dice.percent(30),
            bad_garbage: dice.percent(30),
            checks_after_tasks: false,
        }
    }

    /// The same cluster without trouble.
    pub(crate) fn calm(&self) -> Self {
        Self {
            elections: 0,
            message_loss: 0,
            message_copies: 0,
            reply_loss: 0,
            resets: 0,
            turn_failures: 0,
            agent_trouble: false,
            task_failures: false,
            silent_servers: false,
            ..self.clone()
        }
    }
}
