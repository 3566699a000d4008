//! Jobs: what users ask for. A [`JobSpec`] is immutable; a [`Job`] row holds the current version
//! and the job's status.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::Scaling;
use crate::{
    id::{EvaluationId, Index, JobKey, Text, TimeMs},
    table::Row,
};

/// Which scheduler handles a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum JobKind {
    /// Long-running, `count` instances, replaced when they end.
    Service,
    /// Runs to completion, `count` instances.
    Batch,
    /// One instance on each feasible node.
    System,
    /// Runs to completion once on each feasible node.
    Sysbatch,
}

impl JobKind {
    /// All kinds, in the order of their names in Nomad's documentation.
    pub const ALL: [Self; 4] = [Self::Service, Self::Batch, Self::System, Self::Sysbatch];

    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Batch => "batch",
            Self::System => "system",
            Self::Sysbatch => "sysbatch",
        }
    }

    /// The kind with that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kinds that these words name, in the order of [`Self::ALL`]; an error is the first word
    /// that names none. Nomad's word for its own upkeep is taken and names nothing: no worker does
    /// such work here.
    pub fn parse_all<'a>(words: &[&'a str]) -> Result<Vec<Self>, &'a str> {
        const UPKEEP: &str = "_core";
        let is_known = |word: &str| word == UPKEEP || Self::parse(word).is_some();
        match words.iter().find(|word| !is_known(word)) {
            Some(unknown) => Err(unknown),
            None => Ok(Self::ALL.into_iter().filter(|kind| words.contains(&kind.name())).collect()),
        }
    }

    /// Whether one instance per node is wanted instead of `count` instances.
    pub const fn is_per_node(self) -> bool {
        matches!(self, Self::System | Self::Sysbatch)
    }
}

/// A requirement `left operand right` that a node must meet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Constraint {
    /// Left target, for example `${attr.kernel.name}`.
    pub left: Text,
    /// Operand as written: `=`, `!=`, `regexp`, `version`, `distinct_hosts` …
    pub operand: Text,
    /// Right target or literal.
    pub right: Text,
}

/// A weighted preference; the weight is in -100..=100 and not 0.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Affinity {
    pub constraint: Constraint,
    /// Weight in -100..=100; negative repels.
    pub weight: i16,
}

/// Spread instances over the values of a node attribute.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// The attribute, for example `${node.datacenter}`.
    pub attribute: Text,
    /// Weight among several spreads, 1..=100.
    pub weight: u16,
    /// Wanted percentages by value; empty asks for an even spread.
    pub targets: Vec<SpreadTarget>,
}

/// A wanted share of one attribute value.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SpreadTarget {
    pub value: Text,
    /// Percent of the group's count, 0..=100.
    pub percent: u16,
}

/// What the agent does when a task ends with an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RestartPolicy {
    /// Restarts allowed in an interval.
    pub attempts: u32,
    pub interval_ms: u64,
    /// Pause before a restart, ms.
    pub delay_ms: u64,
    /// Fail the allocation when attempts are used up (`fail`), or wait for the next interval
    /// (`delay`).
    pub fail: bool,
}

/// How delays between reschedules grow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum DelayFunction {
    /// The same delay each time.
    Constant,
    /// Doubled each time.
    Exponential,
    /// Sum of the last two.
    Fibonacci,
}

/// What the scheduler does with failed allocations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ReschedulePolicy {
    /// Attempts within the interval, ignored when `unlimited`.
    pub attempts: u32,
    pub interval_ms: u64,
    /// First delay, ms.
    pub delay_ms: u64,
    pub delay_function: DelayFunction,
    /// Upper bound of the delay, ms.
    pub delay_ms_max: u64,
    /// No limit on attempts.
    pub unlimited: bool,
}

/// What says whether an instance is healthy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum HealthCheck {
    /// The checks of its services; until they run, its tasks.
    Checks,
    /// Its tasks.
    TaskStates,
    /// A person.
    Manual,
}

impl HealthCheck {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Checks, Self::TaskStates, Self::Manual];

    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checks => "checks",
            Self::TaskStates => "task_states",
            Self::Manual => "manual",
        }
    }

    /// The one with that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// How a change of the job is rolled out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct UpdateStrategy {
    /// Pause between steps of a system job, ms.
    pub stagger_ms: u64,
    /// Instances changed at a time; 0 means all at once.
    pub max_parallel: u32,
    /// How long an instance must run to count as healthy, ms.
    pub healthy_ms_min: u64,
    /// How long an instance may take to become healthy, ms.
    pub healthy_deadline_ms: u64,
    /// How long a rollout may go without progress, ms; 0: the first unhealthy instance ends it.
    pub progress_deadline_ms: u64,
    pub health_check: HealthCheck,
    /// Instances of the new version that are tried before any older one is replaced; of a system
    /// job, percent of the nodes.
    pub canaries: u32,
    /// Go on without a person once all canaries are healthy.
    pub auto_promote: bool,
    /// Go back to the last stable version when the rollout fails.
    pub auto_revert: bool,
}

impl UpdateStrategy {
    /// Whether changes are rolled out in steps, by a deployment.
    pub const fn has_steps(&self) -> bool {
        self.max_parallel > 0
    }
}

/// How allocations leave a draining node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MigrateStrategy {
    /// Instances of the group that may be missing at a time.
    pub max_parallel: u32,
    /// How long a replacement must run to count as healthy, ms.
    pub healthy_ms_min: u64,
    /// How long a replacement may take to become healthy, ms.
    pub healthy_deadline_ms: u64,
}

/// A port that a group asks for.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PortAsk {
    /// Label, unique in the group.
    pub label: Text,
    /// The static port, or 0 for a dynamic port.
    pub value: u16,
    /// Port inside the task's network; 0: the same.
    pub to: u16,
}

/// The network a group asks for; only host mode exists so far.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Network {
    /// Ports, static and dynamic, in declaration order.
    pub ports: Vec<PortAsk>,
    /// The mode was named, and not left to the default: shown only.
    pub names_mode: bool,
}

impl Network {
    /// The mode as the job has it.
    pub fn mode(&self) -> &'static str {
        if self.names_mode { "host" } else { "" }
    }
}

/// Resources of one task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TaskResources {
    pub cpu_mhz: u64,
    /// MiB reserved.
    pub memory_mb: u64,
    /// MiB allowed at most when oversubscription is on; 0: the same as reserved;
    /// [`Self::UNLIMITED`].
    pub memory_mb_max: u64,
}

impl TaskResources {
    /// As `memory_mb_max`: all that there is.
    pub const UNLIMITED: u64 = u64::MAX;

    /// `memory_mb_max` as it counts: where nothing may be used beyond what is reserved, nobody has
    /// asked for it.
    pub fn memory_mb_max_given(&self, oversubscription: bool) -> u64 {
        if oversubscription { self.memory_mb_max } else { 0 }
    }
}

/// Log rotation of one task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LogConfig {
    /// Files kept.
    pub files_max: u32,
    /// Size of one file, MiB.
    pub file_mb_max: u32,
    /// Keep no logs.
    pub disabled: bool,
}

/// Signals that a task can ask for.
pub const SIGNALS: [&str; 30] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPROF",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// The attribute of a node that names the signals it can send, with `,` between them.
pub const SIGNALS_ATTRIBUTE: &str = "os.signals";

/// One process of a group.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Name, unique in the group.
    pub name: Text,
    /// Driver: `raw_exec`, `mock` …
    pub driver: Text,
    /// User to run as; empty: the agent's.
    pub user: Text,
    /// The driver's configuration, a JSON object in canonical form (sorted keys).
    pub config_json: Text,
    pub env: BTreeMap<Text, Text>,
    /// Meta of this task alone.
    pub meta: BTreeMap<Text, Text>,
    pub constraints: Vec<Constraint>,
    pub affinities: Vec<Affinity>,
    pub resources: TaskResources,
    /// Time between the kill signal and SIGKILL, ms.
    pub kill_timeout_ms: u64,
    /// Signal that asks the task to stop; empty: SIGINT.
    pub kill_signal: Text,
    /// When this task ends, the others of the group are stopped.
    pub leader: bool,
    /// Pause before the kill signal, ms.
    pub shutdown_delay_ms: u64,
    pub restart: RestartPolicy,
    pub logs: LogConfig,
    /// Identity blocks as given (a JSON object of `Identity` and `Identities`), stored and shown;
    /// no identity is made yet. Empty: none.
    pub identity_json: Text,
    /// File under the task's `local/` that gets the payload of a dispatch. Empty: none.
    pub dispatch_payload: Text,
}

/// Tasks that are placed together on one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TaskGroup {
    /// Name, unique in the job.
    pub name: Text,
    /// Wanted instances; for per-node jobs 0 or 1.
    pub count: u32,
    pub constraints: Vec<Constraint>,
    pub affinities: Vec<Affinity>,
    pub spreads: Vec<Spread>,
    /// Tasks, at least one.
    pub tasks: Vec<Task>,
    pub meta: BTreeMap<Text, Text>,
    /// Restart policy that tasks inherit.
    pub restart: RestartPolicy,
    /// Reschedule policy; none for per-node jobs.
    pub reschedule: Option<ReschedulePolicy>,
    /// Update strategy; none for batch jobs.
    pub update: Option<UpdateStrategy>,
    pub migrate: MigrateStrategy,
    /// Network, when ports are asked for.
    pub network: Option<Network>,
    /// Ephemeral disk, MiB.
    pub disk_mb: u64,
    /// Pause before stopping, ms.
    pub shutdown_delay_ms: u64,
    /// Service blocks as given (JSON array), stored and shown; not registered anywhere yet. Empty:
    /// none.
    pub services_json: Text,
    /// Longest run of an allocation, ms; 0: no bound.
    pub max_run_ms: u64,
    /// Within which bounds the count may be moved; none: within any.
    pub scaling: Option<Scaling>,
}

/// Marks a job as a template for dispatches.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Parameterized {
    /// `optional`, `required` or `forbidden`.
    pub payload: Text,
    /// Meta keys a dispatch must give.
    pub meta_required: Vec<Text>,
    /// Meta keys a dispatch may give.
    pub meta_optional: Vec<Text>,
    /// Children that are alive at a time; the others wait in the order in which they were
    /// dispatched. 0: no bound.
    pub max_running: u32,
}

/// Marks a job that is started by the clock.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Periodic {
    /// Not turned off.
    pub enabled: bool,
    /// When it starts: cron lines as written.
    pub specs: Vec<Text>,
    /// The lines came as a list, not as one line: shown only.
    pub is_list: bool,
    /// No start while a child is alive.
    pub prohibit_overlap: bool,
    /// Name of the zone in which the lines are read.
    pub time_zone: Text,
}

/// What is shown of the update strategy that stands in a job outside its groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct JobUpdate {
    pub max_parallel: u32,
    /// Pause between steps of a system job, ms.
    pub stagger_ms: u64,
}

/// What a child was dispatched with. Its meta is among the job's.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Dispatch {
    /// Opaque bytes, which a task may ask for as a file.
    pub payload: Vec<u8>,
    /// A dispatch with the same token is the same dispatch; empty: none.
    pub token: Text,
}

/// What the user wrote, validated, with Nomad's defaults filled in.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct JobSpec {
    /// Namespace and id.
    pub key: JobKey,
    /// Display name.
    pub name: Text,
    /// Region, `global`.
    pub region: Text,
    pub kind: JobKind,
    /// 1..=100, default 50.
    pub priority: u16,
    /// If one part of a plan is dropped, the whole plan is dropped.
    pub all_at_once: bool,
    /// Datacenter patterns (globs), default `*`.
    pub datacenters: Vec<Text>,
    /// Node pool, `default`.
    pub node_pool: Text,
    pub constraints: Vec<Constraint>,
    pub affinities: Vec<Affinity>,
    pub spreads: Vec<Spread>,
    /// Groups, at least one.
    pub groups: Vec<TaskGroup>,
    pub meta: BTreeMap<Text, Text>,
    /// The update strategy of the job itself: shown only, the groups have theirs.
    pub update: JobUpdate,
    /// Set for jobs that start when they are dispatched: they get no evaluation, their children do.
    /// Those keep it: it says what they may have been given ([`Self::is_dispatchable`]).
    pub parameterized: Option<Parameterized>,
    /// Set for jobs that the clock starts: they get no evaluation, their children do.
    pub periodic: Option<Periodic>,
    /// Set for children that were dispatched.
    pub dispatch: Option<Dispatch>,
}

impl JobSpec {
    /// Whether it does not run itself, but children of it do.
    pub fn is_parent(&self) -> bool {
        self.is_dispatchable() || self.periodic.is_some()
    }

    /// Whether it starts when it is dispatched, and was not.
    pub fn is_dispatchable(&self) -> bool {
        self.parameterized.is_some() && self.dispatch.is_none()
    }

    /// Meta that a dispatch of it may have had and had not: its tasks see an empty text.
    pub fn meta_left_out(&self) -> impl Iterator<Item = &Text> {
        let block = self.parameterized.as_ref().filter(|_| self.dispatch.is_some());
        let keys = block.into_iter().flat_map(|block| &block.meta_optional);
        keys.filter(|key| !self.meta.contains_key(*key))
    }

    /// The group with that name.
    pub fn group(&self, name: &str) -> Option<&TaskGroup> {
        self.groups.iter().find(|group| &*group.name == name)
    }

    /// The value of a meta key by which allocations of a group prefer nodes: that of the group,
    /// else that of the job. An empty key, or an empty value, is none.
    pub fn affinity_key(&self, group: &str, meta_key: &str) -> Option<&Text> {
        self.affinity_key_of(self.group(group), meta_key)
    }

    /// The same, of a group as it is given: it may be that of another version.
    pub fn affinity_key_of<'a>(
        &'a self,
        group: Option<&'a TaskGroup>,
        meta_key: &str,
    ) -> Option<&'a Text> {
        if meta_key.is_empty() {
            return None;
        }
        let of_group = group.and_then(|group| group.meta.get(meta_key));
        of_group.or_else(|| self.meta.get(meta_key)).filter(|value| !value.is_empty())
    }
}

/// Whether the job is alive; derived from its evaluations and allocations after each change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum JobStatus {
    /// Nothing runs yet.
    Pending,
    /// Something runs, or the job is a live template.
    Running,
    /// Nothing runs and no evaluation is open.
    Dead,
}

impl JobStatus {
    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Dead => "dead",
        }
    }
}

/// The current state of a job. The spec of `version` is in the versions table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Namespace and id.
    pub key: JobKey,
    pub kind: JobKind,
    pub priority: u16,
    /// Current version, from 0.
    pub version: u64,
    /// Stopped by a user; allocations are to end.
    pub stop: bool,
    pub status: JobStatus,
    /// The current version starts when it is dispatched.
    pub parameterized: bool,
    /// The current version is started by the clock: what is known of that.
    pub periodic: Option<Launches>,
    /// Of a child: the token it was dispatched with; empty: none.
    pub token: Text,
    /// Of a child: it waits until fewer of its parent's are alive.
    pub waiting: Option<Waiting>,
    /// Index of the first registration. With the key it identifies one incarnation of a job.
    pub create_index: Index,
    pub modify_index: Index,
    /// Index of the last change of the spec.
    pub job_modify_index: Index,
    /// Index of the entry that applied the last plan of this job.
    ///
    /// Invariant: never lower than that of any applied plan, so a stale plan is recognized.
    pub last_plan_index: Index,
    /// Log time of the last registration; of a parent that was stopped, of its stop.
    pub submitted_at: TimeMs,
    /// Instances that the last evaluation could not place, by group.
    pub queued: BTreeMap<Text, u32>,
}

/// What is known of the starts of a periodic job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Launches {
    /// When its lines of cron and zone were set, or it was started again, in Unix seconds: what was
    /// due before is not made up. The later of log time and of what the server that took the
    /// registration knew of it; not later than the first launch.
    pub since_s: i64,
    /// The last due time that was dealt with, Unix seconds; 0: none was.
    ///
    /// Invariant: never goes back, so that no due time is dealt with twice.
    pub last_due_s: i64,
    /// Due times that passed while nobody led, or faster than they could be launched.
    pub missed: u64,
    /// Due times at which a child was still alive, where that prohibits another.
    pub overlapped: u64,
}

/// Why a child has no evaluation yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// Its place among the children of the same entry. Of two children that wait, the one that was
    /// made first starts first.
    pub position: u32,
    /// The evaluation that it gets then.
    pub evaluation: EvaluationId,
}

impl Job {
    /// Whether it does not run itself, but children of it do.
    pub const fn is_parent(&self) -> bool {
        self.parameterized || self.periodic.is_some()
    }

    /// Whether it runs until it is stopped, whatever its instances do.
    pub(crate) fn is_lasting(&self) -> bool {
        self.is_parent() || self.kind == JobKind::System
    }

    /// The status of one that is lasting.
    pub(crate) const fn lasting_status(&self) -> JobStatus {
        if self.stop { JobStatus::Dead } else { JobStatus::Running }
    }

    /// Whether it is a launch or a dispatch for every node that is over: it does not go on with a
    /// node that comes. That node would run all that ever were, and at once.
    pub(crate) fn is_past_launch(&self) -> bool {
        let is_for_every_node = self.kind == JobKind::Sysbatch && self.key.parent().is_some();
        is_for_every_node && self.status == JobStatus::Dead
    }

    /// Whether there is anything to schedule for it: it has no children, and waits for no sibling.
    pub const fn is_scheduled(&self) -> bool {
        !self.is_parent() && self.waiting.is_none()
    }
}

impl Row for Job {
    type Key = JobKey;

    fn key(&self) -> JobKey {
        self.key.clone()
    }
}

/// What a client made a job of: its file, and what was put into it. Kept for people to read, never
/// read by anything.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Submission {
    /// The job file.
    pub source: Text,
    /// `hcl2`, `hcl1` or `json`, as the client says.
    pub format: Text,
    /// Variables of the command line.
    pub variable_flags: BTreeMap<Text, Text>,
    /// The text of variable files.
    pub variables: Text,
}

impl Submission {
    /// Its size, bytes, of which [`crate::limits::SUBMISSION_BYTES_MAX`] may be.
    pub fn bytes(&self) -> usize {
        let flags = self.variable_flags.iter();
        let texts = flags.flat_map(|(key, value)| [key, value]);
        let texts = texts.chain([&self.source, &self.format, &self.variables]);
        texts.fold(0, |sum, text| sum.saturating_add(text.len()))
    }
}

/// One version of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobVersion {
    pub spec: Arc<JobSpec>,
    pub version: u64,
    /// A user stopped the job with this version.
    pub stop: bool,
    /// Whether this version is known to work.
    pub stable: bool,
    /// The job's status when this version was registered, or last marked as stable or not: what the
    /// history shows of it.
    pub status: JobStatus,
    /// A tagged version is kept until the tag is taken off, or the job is purged.
    pub tag: Option<VersionTag>,
    /// Index of the job's first registration.
    pub create_index: Index,
    /// Index of this version's registration.
    pub job_modify_index: Index,
    /// Index of the entry that `status` is of.
    pub modify_index: Index,
    /// Log time of this version's registration.
    pub submitted_at: TimeMs,
    /// What the spec was made of, if the client said.
    pub submission: Option<Arc<Submission>>,
}

/// A name that a user gave a version. No two versions of a job have the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VersionTag {
    pub name: Text,
    pub description: Text,
    /// Log time at which it was given or changed.
    pub tagged_at: TimeMs,
}

impl Row for JobVersion {
    type Key = (JobKey, Index, u64);

    fn key(&self) -> (JobKey, Index, u64) {
        (self.spec.key.clone(), self.create_index, self.version)
    }
}

/// Counts of a group's allocations by status, and of instances not placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GroupSummary {
    /// Not placed.
    pub queued: u32,
    /// Ended successfully.
    pub complete: u32,
    /// Ended with an error.
    pub failed: u32,
    pub running: u32,
    /// Placed, not yet running.
    pub starting: u32,
    /// On a node that was lost.
    pub lost: u32,
    /// On a disconnected node.
    pub unknown: u32,
}
