//! Whoever looks after what stands beside jobs: the scheduler configuration, a namespace, a node pool. One writer, so that each is a register: a read
//! shows what was acknowledged last, or something of which nobody knows what became.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fsm::{
    Command, Reply, State,
    settings::{
        Namespace, NodePool, SchedulerConfiguration, SetSchedulerConfiguration, UpsertNamespace,
        UpsertNodePool,
    },
};

use crate::{coverage, services::CALLER, trace, verdict, world::World};
use chance::Dice;
use ground::rt::{self, Instant, watch};
use server::Core;
use wire::api::{Api, ReadMode};

const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE_MS_MAX: u64 = 300;
/// Between two looks of the last check, and how long it tries.
const RETRY: Duration = Duration::from_millis(200);
const LAST_LOOK: Duration = Duration::from_secs(30);
const POOL: &str = "sim";
const NAMESPACE: &str = "default";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Setting {
    Scheduler,
    Namespace,
    Pool,
}

impl Setting {
    const ALL: [Self; 3] = [Self::Scheduler, Self::Namespace, Self::Pool];

    fn command(self, value: u32) -> Command {
        let description = value.to_string().into();
        match self {
            Self::Scheduler => Command::from(SetSchedulerConfiguration {
                configuration: SchedulerConfiguration {
                    node_limit: Self::node_limit(value),
                    ..SchedulerConfiguration::default()
                },
                keep_node_life: true,
                enforce_index: None,
            }),
            Self::Namespace => Command::from(UpsertNamespace {
                namespace: Namespace {
                    name: NAMESPACE.into(),
                    description,
                    ..Namespace::default()
                },
            }),
            Self::Pool => Command::from(UpsertNodePool {
                pool: NodePool { name: POOL.into(), description, ..NodePool::default() },
            }),
        }
    }

    fn node_limit(value: u32) -> u32 {
        SchedulerConfiguration::default().node_limit + value
    }

    /// The value in a state; 0 before the first.
    fn value(self, state: &State) -> u32 {
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
        match self {
            Self::Scheduler => state.scheduler_configuration().node_limit - Self::node_limit(0),
            Self::Namespace => {
                number(state.namespaces().get(&NAMESPACE.into()).map(|row| &*row.description))
            }
            Self::Pool => number(state.node_pools().get(&POOL.into()).map(|row| &*row.description)),
        }
    }
}

/// What a setting may be.
#[derive(Debug, Default)]
struct Known {
    acknowledged: u32,
    unknown: BTreeSet<u32>,
}

impl Known {
    fn judge(&self, setting: Setting, shown: u32) -> Result<(), String> {
        if shown == self.acknowledged || self.unknown.contains(&shown) {
            return Ok(());
        }
        let (acknowledged, unknown) = (self.acknowledged, &self.unknown);
        Err(format!(
            "P2: {setting:?} is {shown}; {acknowledged} was acknowledged last, unknown are {unknown:?}"
        ))
    }
}

/// The writer.
pub(crate) struct SettingsWriter {
    world: World,
    dice: Dice,
    known: [Known; 3],
    last: u32,
}

impl SettingsWriter {
    /// The writer of a run.
    pub(crate) fn new(world: World) -> Self {
        let dice = Dice::named(world.swarm.seed, "settings");
        Self { world, dice, known: Default::default(), last: 0 }
    }

    /// Writes and reads until told to stop.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Self {
        while !*stop.borrow() {
            let server = self.dice.index(self.world.count());
            let number = self.dice.index(Setting::ALL.len());
            if self.dice.below(2) == 0 {
                self.write(server, number).await;
            } else {
                self.read(server).await;
            }
            let pause = Duration::from_millis(self.dice.between(1, PAUSE_MS_MAX));
            drop(rt::timeout(pause, rt::until_true(&mut stop)).await);
        }
        self
    }

    async fn write(&mut self, server: usize, number: usize) {
        self.last += 1;
        let (setting, value) = (Setting::ALL[number], self.last);
        let command = setting.command(value);
        let begin = Instant::now();
        let work =
            move |core: Arc<Core>| async move { core.write(&CALLER, command, None, TIMEOUT).await };
        // Noted before the call: it may be seen as soon as that begins.
        self.known[number].unknown.insert(value);
        let answer = self.world.inside(server, work).await;
        self.world.keeps_deadline(server, begin, TIMEOUT, answer.is_some(), "a setting");
        trace::event("settings", format_args!("{setting:?} {value} via s{server}: {answer:?}"));
        match answer {
            Some(Ok(written)) if written.reply == Reply::Done => {
                coverage::hit("a setting was changed");
                self.known[number].unknown.remove(&value);
                self.known[number].acknowledged = value;
            }
            Some(Ok(written)) => {
                verdict::fail(format!("P4: {setting:?} {value} was answered {:?}", written.reply));
            }
            // Some of these are certain; a value that may not be there is never missed.
            Some(Err(_)) | None => {}
        }
    }

    /// Reads all of them through one server; false when it does not answer.
    async fn read(&mut self, server: usize) -> bool {
        let work = |core: Arc<Core>| async move {
            core.read(&CALLER, ReadMode::Linearizable, 0, TIMEOUT).await.map(|read| read.state)
        };
        let Some(Ok(state)) = self.world.inside(server, work).await else { return false };
        for (setting, known) in Setting::ALL.into_iter().zip(&self.known) {
            let judged = known.judge(setting, setting.value(&state));
            verdict::note(judged.map_err(|why| format!("{why} (through s{server})")));
        }
        true
    }

    /// Looks through every server, when the faults are over.
    pub(crate) async fn finish(&mut self) {
        let deadline = Instant::now() + LAST_LOOK;
        for server in 0..self.world.count() {
            while !self.read(server).await {
                if Instant::now() >= deadline {
                    verdict::fail(format!("I55: s{server} does not show its settings"));
                    return;
                }
                rt::sleep(RETRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_what_was_acknowledged_last_or_what_nobody_knows_of() {
        let known = Known { acknowledged: 3, unknown: BTreeSet::from([2, 4]) };
        let judge = |shown| known.judge(Setting::Pool, shown).is_ok();
        assert!(judge(3) && judge(4));
        assert!(judge(2), "a write of unknown outcome may take effect after a later one");
        assert!(!judge(1) && !judge(0) && !judge(5));
    }

    #[test]
    fn each_setting_is_read_back_as_it_was_written() {
        let mut changes = fsm::table::ChangeSet::default();
        let mut state = State::genesis(&mut changes);
        for (index, setting) in (1..).zip(Setting::ALL) {
            assert_eq!(setting.value(&state), 0);
            let command = setting.command(7);
            let proposal = fsm::Proposal { at: 1, epoch: None, request: None, command };
            let applied = state.apply(index, 1, &proposal, &mut changes);
            assert_eq!((applied.reply, setting.value(&state)), (Reply::Done, 7));
        }
    }
}
