//! What every machine of [`crate::Services`] can do.
//!
//! A machine keeps an account that follows from the state, and derives commands from it. It never
//! holds anything that the next leader could not build again, and never does I/O: time and ids come
//! in as arguments.

use std::fmt;

use fsm::{Command, Effect, Index, NodeId, State};

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

    /// Gives each number for dashboards with its name to `put`.
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

/// Something that happened at a look. The text is the line in the server's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// A worker did not acknowledge a lease in time; it was taken back.
    LeaseExpired(Expired),
    /// A node was not heard from in time. A command for it is among the others.
    NodeMissed(NodeId),
}

impl Report {
    /// Whether it is unexpected: a warning in the log.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::LeaseExpired(_) => true,
            Self::NodeMissed(_) => false,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseExpired(Expired { evaluation, server, deliveries }) => write!(
                f,
                "a lease was not acknowledged in time: evaluation={evaluation} server={server} \
                 deliveries={deliveries}"
            ),
            Self::NodeMissed(node) => {
                write!(f, "a node missed its heartbeat and is down: node={node}")
            }
        }
    }
}
