//! What a job lacks is waited for, at any time: by a pending evaluation, or by a blocked one that every gain wakes which could help. What sleeps
//! through such a gain sleeps for ever, and nothing in the rows changes any more that could show it.

use std::{collections::BTreeSet, sync::Arc};

use fsm::{
    Allocation, ClassId, ClientStatus, DesiredStatus, Evaluation, EvaluationStatus, Job, JobKind,
    Node, NodeId, State, TaskGroup, Trigger,
    limits::PREEMPTION_PRIORITY_DISTANCE,
    node::{CapacityGain, GainKey},
};

use super::{
    Broken,
    ending::Ending,
    needs::{self, ask_of, in_service, is_live, room_of, taken_by},
};

/// What is lacking, and waited for by nobody (I39, I46). Jobs with a pending evaluation are looked at when that is done.
/// On nodes in `forgiven` something ended: a per-node instance that ended is not replaced before somebody asks, and may be forgotten by then.
pub fn check_waits(state: &State, forgiven: &BTreeSet<NodeId>) -> Vec<Broken> {
    let mut out = Vec::new();
    for job in state.jobs().iter().filter(|job| !job.stop && job.is_scheduled()) {
        let Some(spec) = state.current_spec(job) else { continue };
        let open = state.evaluations().iter();
        let open: Vec<_> =
            open.filter(|row| row.job == job.key && !row.status.is_terminal()).collect();
        let waiting = Waiting { ending: Ending { state, job, spec }, open };
        for group in &spec.groups {
            if job.kind.is_per_node() {
                waiting.per_node(group, forgiven, &mut out);
            } else {
                waiting.counted(group, &mut out);
            }
        }
    }
    out
}

/// A job, and its open evaluations.
struct Waiting<'a> {
    ending: Ending<'a>,
    open: Vec<&'a Arc<Evaluation>>,
}

impl Waiting<'_> {
    fn blocked(&self) -> impl Iterator<Item = &Evaluation> {
        let blocked = self.open.iter().filter(|row| row.status == EvaluationStatus::Blocked);
        blocked.map(|row| &***row)
    }

    /// Somebody looks at all of the job: an evaluation is pending, or blocked and woken. While it looks, it may have superseded any other. One that
    /// waits for the next step of an update or for a failed instance comes too late for what finds no room.
    fn is_looked_at(&self) -> bool {
        let Ending { state, .. } = self.ending;
        self.open.iter().any(|row| {
            let later = row.trigger == Trigger::RetryFailedAlloc && row.wait_until > state.at();
            match row.status {
                EvaluationStatus::Pending => !later,
                EvaluationStatus::Blocked => is_woken(state, row),
                EvaluationStatus::Complete
                | EvaluationStatus::Failed
                | EvaluationStatus::Canceled => false,
            }
        })
    }

    /// I39: instances that are missing are looked after, and those that found no room will be tried again when there is some. I46: so are those of
    /// older versions.
    fn counted(&self, group: &TaskGroup, out: &mut Vec<Broken>) {
        let Ending { state, job, spec } = self.ending;
        let key = &job.key;
        if self.ending.is_held(group) {
            let missing = self.ending.missing_of_older(group);
            if missing > 0 && self.open.is_empty() {
                let detail = format!("{missing} of {key} do not come back, and nobody looks");
                out.push(Broken("I39", detail));
            }
            return;
        }
        let missing = self.ending.missing(group);
        if missing > 0 && self.open.is_empty() {
            out.push(Broken("I39", format!("{missing} of {key} are missing, and nobody looks")));
        }
        let mut rows = self.ending.rows(group);
        let outdated = rows.find(|row| is_live(row) && !self.ending.is_current(row));
        let nobody_looks = self.open.is_empty()
            && !self.ending.is_held_up(group)
            && !self.ending.waits_for_health(group);
        if let Some(row) = outdated.filter(|_| nobody_looks) {
            let (name, version) = (row.name(), row.job_version);
            out.push(Broken("I46", format!("{name} is of version {version}, and nobody looks")));
        }
        if self.is_looked_at() {
            return;
        }
        let queued = job.queued.get(&group.name).copied().unwrap_or(0);
        let wait_for_room = self
            .open
            .iter()
            .all(|row| row.status == EvaluationStatus::Blocked && row.trigger != Trigger::MaxPlans);
        if missing > queued as usize && wait_for_room {
            let group = &group.name;
            let detail = format!(
                "{missing} of {key}'s {group} are missing, and {queued} of them waited for"
            );
            out.push(Broken("I39", detail));
        }
        if queued == 0 {
            return;
        }
        let suitable = state.nodes().iter();
        let suitable: Vec<_> =
            suitable.filter(|node| needs::suits(spec, group, node).is_ok()).collect();
        let wakes = |row: &Evaluation| {
            knows(row, job) && suitable.iter().all(|node| may_use(row, node.class))
        };
        if !self.blocked().any(wakes) {
            let detail = format!("{queued} of {key} wait for room, and nobody wakes when it comes");
            out.push(Broken("I39", detail));
        }
    }

    /// I39: a node without its instance is looked after. I46: so is one that runs an older version.
    fn per_node(&self, group: &TaskGroup, forgiven: &BTreeSet<NodeId>, out: &mut Vec<Broken>) {
        let Ending { state, job, spec } = self.ending;
        let is_looked_at = self.is_looked_at() || self.blocked().any(|row| row.node.is_none());
        if group.count == 0 || is_looked_at || self.ending.is_held(group) {
            return;
        }
        let waits = self.ending.waits_for_health(group);
        let key = &job.key;
        let nodes = state.nodes().iter().filter(|node| in_service(node));
        for node in nodes.filter(|node| needs::suits(spec, group, node).is_ok()) {
            if self.blocked().any(|row| row.node == Some(node.id)) {
                continue;
            }
            if !self.is_there(group, node.id) && !forgiven.contains(&node.id) {
                let detail = format!("{key} is not on {}, and nobody looks", node.id);
                out.push(Broken("I39", detail));
            }
            let mut rows = self.ending.rows(group).filter(|row| row.node == node.id);
            let is_old = |row: &fsm::Allocation| is_live(row) && !self.ending.is_current(row);
            if let Some(row) = rows.find(|row| is_old(row) && !waits) {
                let version = row.job_version;
                let detail =
                    format!("{key} is of version {version} on {}, and nobody looks", node.id);
                out.push(Broken("I46", detail));
            }
        }
    }

    /// An instance runs on the node, or ended there by itself: then it is done, or nobody makes another before he is asked.
    fn is_there(&self, group: &TaskGroup, node: NodeId) -> bool {
        self.ending.rows(group).any(|row| {
            let by_itself = match row.client {
                ClientStatus::Complete | ClientStatus::Failed => true,
                ClientStatus::Lost
                | ClientStatus::Pending
                | ClientStatus::Running
                | ClientStatus::Unknown => false,
            };
            // A drain or a user ended it: it is not run again until the job changes.
            let is_over = row.may_stay_ended(self.ending.job.kind == JobKind::Sysbatch)
                && self.ending.is_current(row)
                && row.is_ended_by_request();
            row.node == node
                && (is_over || (row.desired == DesiredStatus::Run && (by_itself || is_live(row))))
        })
    }
}

/// It looked at the job as it is now, or will do so in any case.
fn knows(row: &Evaluation, job: &Job) -> bool {
    row.trigger == Trigger::MaxPlans || row.snapshot_index >= job.job_modify_index
}

/// Something was gained since it looked last, and could help: it has to be woken, whatever else has
/// happened, unless somebody else is out for the same room.
pub(crate) fn is_woken(state: &State, row: &Evaluation) -> bool {
    state.capacity_gains().iter().any(|gain| wakes(state, gain, row))
}

fn wakes(state: &State, gain: &CapacityGain, row: &Evaluation) -> bool {
    let GainKey::Node(id) = gain.key else { return false };
    if gain.index <= row.snapshot_index {
        return false;
    }
    if row.node.is_some() {
        return row.node == Some(id);
    }
    let node = state.nodes().get(&id).filter(|node| in_service(node) && node.shortage.is_none());
    node.is_some_and(|node| may_use(row, node.class) && may_help(state, row, node))
}

/// An instance of a group that found no room may fit on a node as it is now, for all that its rows
/// say. What cannot be told of an evaluation, a pass must.
fn may_help(state: &State, row: &Evaluation, node: &Node) -> bool {
    let job = state.jobs().get(&row.job);
    let Some((job, spec)) = job.and_then(|job| Some((job, state.current_spec(job)?))) else {
        return true;
    };
    if &*spec.node_pool != "all" && spec.node_pool != node.description.pool {
        return false;
    }
    let of_groups = spec.groups.iter().flat_map(|group| {
        group.constraints.iter().chain(group.tasks.iter().flat_map(|task| &task.constraints))
    });
    let mut constraints = spec.constraints.iter().chain(of_groups);
    let is_of_property = constraints.any(|one| &*one.operand == "distinct_property");
    let is_older = row.job_modify_index != job.job_modify_index;
    if is_older || is_of_property || row.failed_groups.is_empty() {
        return true;
    }
    let preempts = state.scheduler_configuration().preemption.allows(spec.kind);
    // Its own instances may be replaced, and those of much less important jobs evicted.
    let stays = |other: &Allocation| {
        let priority = state.allocation_spec(other).map_or(u16::MAX, |of| of.priority);
        let is_lower = priority.saturating_add(PREEMPTION_PRIORITY_DISTANCE) <= spec.priority;
        other.job != row.job && !(preempts && is_lower)
    };
    let on_node = state.allocations().iter().filter(|other| other.node == node.id);
    let on_node: Vec<_> = on_node.filter(|other| is_live(other) && stays(other)).collect();
    let most = usize::try_from(node.description.resources.allocations_max).unwrap_or(0);
    if most > 0 && on_node.len() >= most {
        return false;
    }
    let mut free = room_of(node);
    for other in on_node {
        for ((_, left), (_, taken)) in free.iter_mut().zip(taken_by(other)) {
            *left = left.saturating_sub(taken);
        }
    }
    row.failed_groups.keys().any(|name| {
        let group = spec.group(name);
        group.is_none_or(|group| {
            ask_of(group).iter().zip(free).all(|((_, asked), (_, left))| *asked <= left)
        })
    })
}

/// Room on nodes of a class wakes it.
fn may_use(row: &Evaluation, class: ClassId) -> bool {
    row.trigger == Trigger::MaxPlans
        || row.escaped
        || row.class_eligibility.get(&class) != Some(&false)
}
