//! What every machine of [`crate::Services`] can do.
//!
//! A machine keeps an account that follows from the state, and derives commands from it. It never
//! holds anything that the next leader could not build again, and never does I/O: time and ids come
//! in as arguments.

use std::fmt;

use elastic::InstanceStep;
use fsm::{
    Command, Effect, EvaluationId, Index, InstanceId, NodeId, State, Text, node::NodeChange,
};

use crate::broker::Expired;

/// Makes a fresh id at each call.
pub type Ids<'a> = dyn FnMut() -> [u8; 16] + 'a;

/// One machine of a leadership. Times are log time, milliseconds.
pub trait Machine: fmt::Debug + Send {
    /// Takes everything over from the state: at the start of a leadership, and again when effects
    /// were missed.
    fn restore(&mut self, now: u64, state: &State);

    /// Takes in one effect of the entry at `index`. `state` is the newest state, at `index` or
    /// later.
    fn take(&mut self, now: u64, state: &State, index: Index, effect: &Effect);

    /// Lets time pass and adds to `stepped` what follows. A command is not asked for at every step:
    /// a step comes with every change, so the machine waits until the command was applied or may be
    /// lost, and asks again then.
    fn step(&mut self, now: u64, state: &State, ids: &mut Ids<'_>, stepped: &mut Stepped);

    /// When to step next. A time in the past means: at once.
    fn next_deadline(&self) -> Option<u64>;

    /// The leadership is over.
    fn stop(&mut self) {}

    /// Gives each number for dashboards with its name to `put`. What users name is a label, behind
    /// the name: `pools.waiting{pool=burst}`.
    fn gauges(&self, _now: u64, _put: &mut dyn FnMut(&str, u64)) {}
}

/// What one look at the machines gave.
#[derive(Debug, Default)]
pub struct Stepped {
    /// To propose, in this order. What is lost or finds no room is derived again later.
    pub commands: Vec<Command>,
    /// What happened that is worth a line in the log.
    pub reports: Vec<Report>,
    /// An evaluation is ready: a worker that waits for a lease may get one.
    pub has_ready: bool,
}

/// Something that happened, for the server's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// A worker did not acknowledge a lease in time; it was taken back.
    LeaseExpired(Expired),
    NodeChanged {
        node: NodeId,
        change: NodeChange,
        detail: Text,
    },
    /// So many changes of nodes in one second had no line of their own.
    NodeChangesLeftOut(u64),
    /// An instance of a pool has come further.
    Instance(InstanceStep),
    MassLossBegan {
        nodes: u64,
    },
    MassLossEnded {
        /// The operator who confirmed it; empty: most nodes are back, or it lasted too long.
        by: Text,
    },
    /// Due times of a periodic job passed, and were not launched.
    LaunchesMissed {
        job: Text,
        count: u64,
    },
    /// A periodic job was due while a child of it was alive, which it prohibits.
    LaunchOverlapped {
        job: Text,
        count: u64,
    },
    /// A line of cron of a periodic job cannot be read: it is not started.
    CronUnreadable {
        job: Text,
        detail: Text,
    },
    /// A source of requirements of capacity groups has not spoken for its time.
    SourceSilent {
        source: Text,
        ttl_ms: u64,
    },
}

/// What a [`Report`] says, field by field; a field that has nothing to say is none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogLine<'a> {
    /// Unexpected: a warning in the log.
    pub is_warning: bool,
    pub message: &'static str,
    pub node: Option<NodeId>,
    pub instance: Option<InstanceId>,
    pub pool: Option<&'a str>,
    pub job: Option<&'a str>,
    pub change: Option<&'static str>,
    pub detail: Option<&'a str>,
    pub evaluation: Option<EvaluationId>,
    pub server: Option<u64>,
    pub deliveries: Option<u32>,
    pub count: Option<u64>,
    pub by: Option<&'a str>,
}

impl Report {
    /// The line in the log.
    pub fn line(&self) -> LogLine<'_> {
        let line = LogLine::default();
        match self {
            Self::LeaseExpired(Expired { evaluation, server, deliveries }) => LogLine {
                is_warning: true,
                message: "a lease was not acknowledged in time",
                evaluation: Some(*evaluation),
                server: Some(*server),
                deliveries: Some(*deliveries),
                ..line
            },
            Self::NodeChanged { node, change, detail } => LogLine {
                message: "node changed",
                node: Some(*node),
                change: Some(change.name()),
                detail: Some(detail),
                ..line
            },
            Self::NodeChangesLeftOut(count) => LogLine {
                message: "more nodes changed in this second",
                count: Some(*count),
                ..line
            },
            Self::Instance(InstanceStep { instance, pool, step, detail }) => LogLine {
                message: "instance changed",
                instance: Some(*instance),
                pool: Some(pool),
                change: Some(*step),
                detail: Some(&**detail).filter(|detail| !detail.is_empty()),
                ..line
            },
            Self::MassLossBegan { nodes } => LogLine {
                is_warning: true,
                message: "mass loss: nodes went silent together; nothing is reaped until most are back",
                count: Some(*nodes),
                ..line
            },
            Self::MassLossEnded { by } => LogLine {
                message: "the mass loss is over",
                by: Some(&**by).filter(|by| !by.is_empty()),
                ..line
            },
            Self::LaunchesMissed { job, count } => LogLine {
                is_warning: true,
                message: "a periodic job missed due times",
                job: Some(job),
                count: Some(*count),
                ..line
            },
            Self::LaunchOverlapped { job, count } => LogLine {
                message: "a periodic job was due while it was running, and was not started again",
                job: Some(job),
                count: Some(*count),
                ..line
            },
            Self::CronUnreadable { job, detail } => LogLine {
                is_warning: true,
                message: "a periodic job is not started: its cron cannot be read",
                job: Some(job),
                detail: Some(detail),
                ..line
            },
            Self::SourceSilent { source, ttl_ms } => LogLine {
                is_warning: true,
                message: "a source of capacity requirements fell silent",
                detail: Some(source),
                count: Some(*ttl_ms),
                ..line
            },
        }
    }
}
