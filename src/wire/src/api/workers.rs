//! A server's scheduling workers as its operators see and set them.

use fsm::JobKind;

/// How many workers a server has, and what they take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerSettings {
    /// 0: all are paused.
    pub number: usize,
    /// Kinds of jobs whose evaluations they lease, in the order of [`JobKind::ALL`].
    pub kinds: Vec<JobKind>,
}

/// A change of [`WorkerSettings`]; what is `None` stays as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerChange {
    pub number: Option<usize>,
    pub kinds: Option<Vec<JobKind>>,
}

/// One worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerInfo {
    /// Its number on its server, from 0.
    pub id: usize,
    pub kinds: Vec<JobKind>,
    /// Wall time of its start, ms since the Unix epoch.
    pub since_ms: u64,
    pub status: WorkerStatus,
    pub workload: Workload,
}

/// Whether a worker takes evaluations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerStatus {
    /// It does.
    Started,
    /// Not any more; it finishes what it has leased.
    Pausing,
    /// It has nothing and takes nothing.
    Paused,
    /// It has ended: its server stops.
    Stopped,
}

impl WorkerStatus {
    /// The word in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }
}

/// What a worker does at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    WaitingToDequeue,
    WaitingForIndex,
    Scheduling,
    Submitting,
    BackingOff,
    Paused,
}

impl Workload {
    /// The words in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WaitingToDequeue => "waiting to dequeue",
            Self::WaitingForIndex => "waiting for index",
            Self::Scheduling => "scheduling",
            Self::Submitting => "submitting",
            Self::BackingOff => "backing off",
            Self::Paused => "paused",
        }
    }
}
