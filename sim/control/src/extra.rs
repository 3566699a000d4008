//! What a seed has besides [`crate::swarm`]: trouble that was thought of later, from dice of its own. Half of the seeds have none of it and are what they
//! were before; no throw in here moves one of the older dice.
//!
//! Calm spells are the opposite of trouble: the cluster works undisturbed for some rounds, so that what follows meets jobs that run, drains that
//! are under way and stops that are not reported yet, and not only a cluster that never got so far.

use crate::{coverage::Event, groups, rollouts, swarm::Swarm, updates, world::World};
use chance::Dice;

/// Makes these dice others than those of the older settings.
const LABEL: u64 = 0x6578_7472_615f_6131;
/// Rounds of a calm spell.
const CALM_ROUNDS: (u64, u64) = (3, 16);

/// Settings of one seed.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a kind of trouble of its own")]
pub(crate) struct Extra {
    /// Percent of steps that a calm spell comes before.
    pub(crate) calms: u64,
    /// Percent of commands of services, and of entries with plans, that never come into the log.
    pub(crate) refusals: u64,
    /// Percent of a worker's steps at which its process is gone, with its leases.
    pub(crate) worker_deaths: u64,
    /// Percent of the applier's steps at which it begins to stand still.
    pub(crate) stalls: u64,
    /// Percent of steps that would commit at which the log begins to stand still.
    pub(crate) log_stalls: u64,
    /// Plans that the queue takes; 0: as many as it likes.
    pub(crate) plans_max: usize,
    /// Tasks take their time to stop.
    pub(crate) slow_stops: bool,
    /// Operators pause the broker.
    pub(crate) pauses: bool,
    /// Tasks take their time to start.
    pub(crate) slow_starts: bool,
    /// Tasks fail soon after their start, and start again where they are.
    pub(crate) restarts: bool,
    /// Percent of scheduling passes that take long.
    pub(crate) slow_passes: u64,
    /// Percent of steps before which a follower begins to stand still.
    pub(crate) apply_stalls: u64,
    /// Percent of wake-ups of workers that are lost.
    pub(crate) lost_wake_ups: u64,
    /// Percent of steps before which workers get other orders.
    pub(crate) orders: u64,
}

impl Extra {
    /// The settings of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = dice(seed, u64::MAX);
        if dice.percent(50) {
            return Self::default();
        }
        let mut sometimes = |low, high| if dice.percent(50) { dice.between(low, high) } else { 0 };
        let refusals = sometimes(2, 40);
        let worker_deaths = sometimes(1, 15);
        let stalls = sometimes(5, 40);
        let log_stalls = sometimes(3, 20);
        let plans_max = usize::try_from(sometimes(1, 1)).expect("small");
        Self {
            calms: dice.between(1, 4),
            refusals,
            worker_deaths,
            stalls,
            log_stalls,
            plans_max,
            slow_stops: dice.percent(50),
            pauses: dice.percent(20),
            slow_starts: dice.percent(50),
            restarts: dice.percent(50),
            slow_passes: if dice.percent(50) { dice.between(5, 60) } else { 0 },
            apply_stalls: if dice.percent(60) { dice.between(2, 10) } else { 0 },
            lost_wake_ups: if dice.percent(50) { dice.between(50, 100) } else { 0 },
            orders: if dice.percent(50) { dice.between(1, 5) } else { 0 },
        }
    }
}

/// Dice of one step, for what is in here.
pub(crate) fn dice(seed: u64, step: u64) -> Dice {
    Dice::numbered(seed ^ LABEL, step)
}

impl Swarm {
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

impl World {
    /// Before a step: its other dice, and sometimes a calm spell that ends with something to do.
    pub(crate) fn before_step(&mut self, seed: u64, number: u32) {
        self.groups = groups::dice(seed, u64::from(number));
        self.hear_tenants(seed, number);
        self.dispatch_jobs(seed, number);
        self.hurry = updates::hurry(seed, u64::from(number));
        self.hurry_updates();
        self.steering = rollouts::steering(seed, u64::from(number));
        self.steer_deployments();
        self.fail_together(seed, number);
        self.live_and_die(seed, number);
        self.balance(seed, number);
        self.use_pools(seed, number);
        self.tell_time();
        self.use_clocks(seed, number);
        self.change_preemption(seed, number);
        self.chance = dice(seed, u64::from(number));
        if self.extra.pauses && self.chance.percent(3) {
            let pauses = self.chance.percent(50);
            self.pause(pauses);
        }
        self.order_workers();
        self.fall_behind();
        self.stretch(seed, number);
        if !self.chance.percent(self.extra.calms) {
            return;
        }
        let mut dice = self.chance.clone();
        self.coverage.count(Event::Calm);
        self.trace(|| "a calm spell begins".to_owned());
        self.let_all_work();
        let (swarm, extra) = (self.swarm.clone(), self.extra.clone());
        self.swarm = swarm.calm();
        let Extra { slow_stops, slow_starts, restarts, .. } = extra;
        self.extra = Extra { slow_stops, slow_starts, restarts, ..Extra::default() };
        for _ in 0..dice.between(CALM_ROUNDS.0, CALM_ROUNDS.1) {
            if !self.round(&mut dice) {
                self.clock_ms = self.next_look_ms();
            }
        }
        (self.swarm, self.extra) = (swarm, extra);
        self.trace(|| "the calm spell is over".to_owned());
        match dice.below(8) {
            0..4 => self.drain_a_busy_node(&mut dice),
            4 | 5 => {
                let number = dice.index(self.agents.len());
                self.silence(number, dice.between(20_000, 300_000));
            }
            6 => {
                self.elect(&mut dice);
            }
            _ => self.evaluate_everything(),
        }
        self.chance = dice;
    }

    /// Whether the log stands still; sometimes it begins to.
    pub(crate) fn log_is_stalled(&mut self) -> bool {
        if self.extra.log_stalls == 0 {
            return false;
        }
        if self.clock_ms >= self.log_stalled_until && self.chance.percent(self.extra.log_stalls) {
            self.coverage.count(Event::LogStalled);
            self.log_stalled_until = self.clock_ms + self.chance.between(100, 5_000);
        }
        self.clock_ms < self.log_stalled_until
    }

    /// Whether a server stands still and applies nothing.
    pub(crate) fn is_behind(&self, server: usize) -> bool {
        self.clock_ms < self.servers[server].stalled_until
    }

    /// Before a step: sometimes a follower begins to stand still, so that its workers have to wait
    /// for what they need to see.
    fn fall_behind(&mut self) {
        if !self.chance.percent(self.extra.apply_stalls) {
            return;
        }
        let server = self.chance.index(self.servers.len());
        if self.servers[server].leadership.is_none() && !self.is_behind(server) {
            self.coverage.count(Event::ApplyStalled);
            let stalled_until = self.clock_ms + self.chance.between(500, 5_000);
            self.servers[server].stalled_until = stalled_until;
        }
    }

    /// How long a scheduling pass takes.
    pub(crate) fn pass_takes_ms(&mut self) -> u64 {
        if self.extra.slow_passes == 0 || !self.chance.percent(self.extra.slow_passes) {
            return 0;
        }
        self.coverage.count(Event::SlowPass);
        self.chance.between(1_000, 25_000)
    }

    /// Whether a proposal of a leader's service never comes into the log: it timed out, or Raft refused it.
    pub(crate) fn is_refused(&mut self) -> bool {
        let refused = self.chance.percent(self.extra.refusals);
        if refused {
            self.coverage.count(Event::ProposalRefused);
        }
        refused
    }
}
