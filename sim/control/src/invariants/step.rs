//! What may happen from one state to a later one of the same log.

use std::{collections::BTreeSet, sync::Arc};

use fsm::{
    Allocation, AllocationId, ClientStatus, Deployment, DeploymentStatus, DesiredStatus,
    Evaluation, EvaluationStatus, Job, JobKind, JobSpec, NodeId, State, TaskGroup, node::GainKey,
};

use super::{
    Broken, evictions,
    needs::{self, has_ended, in_service, is_live},
    nodes::NodeStep,
    rollouts,
};

/// What is due within this time counts as due now: failures that are due close together are looked at together, at the time of the first.
const DUE_SLACK_MS: u64 = 6_000;
/// Log time may pass between the planning of a pass and its entry; an event so close to the end of an interval is not judged.
const PLANNED_BEFORE_MS: u64 = 300_000;

/// What is wrong with a step from one state to a later one of the same log. `old` and `new` may be several entries apart.
pub fn check_step(old: &State, new: &State) -> Vec<Broken> {
    let mut out = Vec::new();
    if new.index() <= old.index() || new.term() < old.term() {
        let (before, after) = (old.head(), new.head());
        let detail = format!(
            "applied {} of term {} after {} of term {}",
            after.index, after.term, before.index, before.term
        );
        out.push(Broken("I7", detail));
    }
    if new.at() < old.at() {
        out.push(Broken("I7", format!("log time went from {} to {}", old.at(), new.at())));
    }
    let step = Step { old, new, one_entry: new.index() == old.index() + 1 };
    step.evaluations(&mut out);
    step.allocations(&mut out);
    step.jobs(&mut out);
    NodeStep { old, new, one_entry: step.one_entry }.judge(&mut out);
    rollouts::judge(old, new, step.one_entry, &mut out);
    if step.one_entry {
        step.gains(&mut out);
        evictions::of_entry(old, new, &mut out);
    }
    out
}

struct Step<'a> {
    old: &'a State,
    new: &'a State,
    one_entry: bool,
}

impl Step<'_> {
    /// I24: what has ended stays as it ended, and nobody loses an evaluation that has not (I18).
    fn evaluations(&self, out: &mut Vec<Broken>) {
        for before in self.old.evaluations().iter() {
            let Some(after) = self.new.evaluations().get(&before.id) else {
                if !before.status.is_terminal() {
                    let detail = format!("evaluation {} vanished unfinished", before.id);
                    out.push(Broken("I18", detail));
                }
                continue;
            };
            let legal = match (before.status, after.status) {
                (EvaluationStatus::Pending, _) => true,
                (EvaluationStatus::Blocked, status) => status != EvaluationStatus::Pending,
                (before, after) => before == after,
            };
            if !legal {
                let (id, from, to) = (before.id, before.status.name(), after.status.name());
                out.push(Broken("I24", format!("evaluation {id} went from {from} to {to}")));
            }
        }
        if !self.one_entry {
            return;
        }
        for row in self.new.evaluations().iter() {
            let before = self.old.evaluations().get(&row.id);
            if before.is_none_or(|before| differ(before, row)) {
                self.evaluation_changed(before.map(|row| &**row), row, out);
            }
        }
    }

    /// I18: what an evaluation names as its successor is there, and what it could not place is waited for. I44: a change has its index.
    fn evaluation_changed(
        &self,
        before: Option<&Evaluation>,
        row: &Evaluation,
        out: &mut Vec<Broken>,
    ) {
        let id = row.id;
        if row.modify_index != self.new.index() {
            out.push(Broken("I44", format!("evaluation {id} changed without an index")));
        }
        for made in [row.blocked, row.next].into_iter().flatten() {
            let is_new = before.is_none_or(|row| ![row.blocked, row.next].contains(&Some(made)));
            if is_new && !self.new.evaluations().contains(&made) {
                out.push(Broken("I18", format!("evaluation {id} made {made}, which is not there")));
            }
        }
        let ends = row.status == EvaluationStatus::Complete
            && before.is_none_or(|before| before.status != row.status);
        let waits = self.new.evaluations().iter().any(|other| {
            other.job == row.job
                && matches!(other.status, EvaluationStatus::Blocked | EvaluationStatus::Pending)
        });
        if ends && !row.failed_groups.is_empty() && !waits {
            let detail = format!("evaluation {id} placed not all, and nothing waits for the rest");
            out.push(Broken("I39", detail));
        }
    }

    fn allocations(&self, out: &mut Vec<Broken>) {
        for before in self.old.allocations().iter() {
            let Some(after) = self.new.allocations().get(&before.id) else { continue };
            if differ(before, after) {
                allocation_changed(before, after, out);
                if self.one_entry {
                    self.moved_to_version(before, after, out);
                }
            }
        }
        if !self.one_entry {
            return;
        }
        let created = self.new.index();
        let placed: Vec<_> =
            self.new.allocations().iter().filter(|row| row.create_index == created).collect();
        let mut judged = BTreeSet::new();
        for row in placed {
            self.placed(row, out);
            if judged.insert((&row.job, &row.group)) {
                self.rolling_update(row, out);
            }
        }
    }

    /// I36, I37, I40, I31: what is new is wanted, on a node in service that suits it.
    fn placed(&self, row: &Allocation, out: &mut Vec<Broken>) {
        let id = row.id;
        let node = self.old.nodes().get(&row.node);
        if !node.is_some_and(|node| in_service(node)) {
            let detail = format!("{id} was placed on {}, which is not in service", row.node);
            out.push(Broken("I36", detail));
        }
        let job = self.old.jobs().get(&row.job);
        let is_current = job.is_some_and(|job| {
            job.create_index == row.job_create_index && job.version == row.job_version
        });
        let Some(job) = job.filter(|job| !job.stop) else {
            out.push(Broken("I40", format!("{id} was placed for a job that is stopped")));
            return;
        };
        if !is_current && self.takes_a_place(row, job) {
            return;
        }
        if !is_current {
            let detail = format!("{id} was placed for an old version of {}", row.job);
            out.push(Broken("I31", detail));
            return;
        }
        let spec = self.old.current_spec(job);
        let Some((spec, group)) = spec.and_then(|spec| Some((spec, spec.group(&row.group)?)))
        else {
            out.push(Broken("I40", format!("{id} was placed for a group that is not there")));
            return;
        };
        // What a constraint looks at may have changed since the pass; pools and datacenters do not change here.
        let asks = needs::ask_of(group);
        if needs::taken_by(row) != asks {
            out.push(Broken("I32", format!("{id} takes something else than {asks:?}")));
        }
        let live_of_group = self.new.allocations().iter().filter(|other| {
            is_live(other) && other.job == row.job && other.group == row.group && !other.per_node
        });
        let live_of_group = live_of_group.count();
        // Canaries are beside the others, until those that they take the place of have gone.
        let deployment = self.new.current_deployment(job);
        let canaries = deployment.and_then(|deployment| deployment.groups.get(&row.group));
        let count = group.count + canaries.map_or(0, |own| own.goal.canaries);
        if !spec.kind.is_per_node() && live_of_group > count as usize {
            let key = &row.job;
            let detail = format!("{live_of_group} instances of {key} are live of {count}");
            out.push(Broken("I38", detail));
        }
        self.finished_before(row, spec.kind, out);
        self.rescheduled(row, spec, group, out);
    }

    /// The pass that placed `row` saw another one as it was before this step. What changed meanwhile it could not know.
    fn was_seen(&self, row: &Allocation, other: &Allocation) -> bool {
        was_seen(self.new, row, other.modify_index)
    }

    /// I47: what a batch job has finished, or somebody ended, is not run again.
    fn finished_before(&self, row: &Allocation, kind: JobKind, out: &mut Vec<Broken>) {
        let mut others = self.old.allocations().iter().filter(|other| other.job == row.job);
        let is_left_empty = |other: &&Arc<Allocation>| {
            self.was_seen(row, other)
                && other.live_name() == row.live_name()
                && version(other) == version(row)
                && other.may_stay_ended(false)
                && other.is_ended_by_request()
        };
        if let Some(other) = others.find(is_left_empty) {
            let (name, id, ended) = (row.name(), row.id, other.id);
            let detail =
                format!("{name} runs as {id} in the place of {ended}, which is to be empty");
            out.push(Broken("I47", detail));
        }
        if !matches!(kind, JobKind::Batch | JobKind::Sysbatch) {
            return;
        }
        let same = |other: &&Arc<Allocation>| {
            self.was_seen(row, other)
                && other.live_name() == row.live_name()
                && version(other) == version(row)
                && other.desired == DesiredStatus::Run
                && !other.transition.reschedule
        };
        let done = |other: &Allocation| match other.client {
            ClientStatus::Complete => true,
            // It was to end, and failed before its stop was planned.
            ClientStatus::Failed => kind == JobKind::Sysbatch || other.transition.migrate,
            ClientStatus::Lost
            | ClientStatus::Pending
            | ClientStatus::Running
            | ClientStatus::Unknown => false,
        };
        let mut others = self.old.allocations().iter().filter(|other| other.job == row.job);
        if let Some(other) = others.find(|other| same(other) && done(other)) {
            let detail = format!("{} runs again as {}, {} is done", row.name(), row.id, other.id);
            out.push(Broken("I47", detail));
        }
    }

    /// I47: what failed is replaced after its delay, and not more often than its policy says, and the replacement remembers.
    fn rescheduled(
        &self,
        row: &Allocation,
        spec: &JobSpec,
        group: &TaskGroup,
        out: &mut Vec<Broken>,
    ) {
        let previous = row.previous.and_then(|id| self.old.allocations().get(&id));
        // Another version begins anew.
        let seen = previous.filter(|old| {
            failed_by_itself(old) && self.was_seen(row, old) && version(old) == version(row)
        });
        let Some(previous) = seen else { return };
        if spec.kind.is_per_node() || previous.per_node {
            return;
        }
        let id = row.id;
        let Some(policy) = group.reschedule else {
            out.push(Broken("I47", format!("{id} replaces a failed one without a policy")));
            return;
        };
        if !row.reschedules.iter().any(|event| event.previous == previous.id) {
            out.push(Broken("I47", format!("{id} does not know of {} that failed", previous.id)));
        }
        let waited_ms = self.new.at().saturating_sub(previous.client_at);
        if waited_ms + DUE_SLACK_MS < policy.delay_ms {
            let delay_ms = policy.delay_ms;
            let detail = format!("{id} replaces a failed one after {waited_ms} of {delay_ms} ms");
            out.push(Broken("I47", detail));
        }
        if !policy.unlimited {
            let attempts = self.attempts(previous, policy.interval_ms);
            if attempts >= policy.attempts {
                let most = policy.attempts;
                let detail = format!("{id} is attempt {} of {most}", attempts + 1);
                out.push(Broken("I47", detail));
            }
        }
    }

    /// How often the predecessors of a failed allocation were replaced because they failed, within an interval before it ended.
    fn attempts(&self, failed: &Allocation, interval_ms: u64) -> u32 {
        let mut count = 0;
        let mut at = failed;
        while let Some(before) = at.previous.and_then(|id| self.old.allocations().get(&id))
            && version(before) == version(failed)
        {
            let age_ms = failed.client_at.saturating_sub(at.created_at) + PLANNED_BEFORE_MS;
            // It may have been replaced for another reason, and have failed while that plan was on its way: then it counts for nobody.
            let known = at.reschedules.iter().any(|event| event.previous == before.id);
            if known && failed_by_itself(before) && age_ms < interval_ms {
                count += 1;
            }
            at = before;
        }
        count
    }

    /// An instance of an older version that takes the place of one of the same version, while the current one is rolled out, or that is missing of it; or of a
    /// stable version of a system job, in the place of a canary whose deployment has failed, or has its canaries on other nodes by now. A system job whose
    /// canaries have found no room has no deployment yet, and is held back like one that has.
    fn takes_a_place(&self, row: &Allocation, job: &fsm::Job) -> bool {
        let rollout = self.new.current_deployment(job);
        if row.previous.is_none() {
            return rollout.is_some_and(|rollout| self.is_missing(row, job, rollout));
        }
        // It may have been let go on since the pass looked.
        let previous = row.previous.and_then(|id| self.old.allocations().get(&id));
        let Some(previous) = previous else { return false };
        let is_same = version(previous) == version(row);
        let Some(rollout) = rollout else {
            return is_same && row.per_node && self.begins_with_canaries(row, job);
        };
        let goes_back = row.per_node
            && previous.canary_of == Some(rollout.id)
            && self.is_stable(row)
            && (rollout.status == DeploymentStatus::Failed || self.has_canaries(row, rollout));
        goes_back || is_same
    }

    fn begins_with_canaries(&self, row: &Allocation, job: &fsm::Job) -> bool {
        let group = self.old.current_spec(job).and_then(|spec| spec.group(&row.group));
        group.and_then(|group| group.update.as_ref()).is_some_and(|update| update.canaries > 0)
    }

    /// Whether as many canaries of the row's group are live as the deployment is to have.
    fn has_canaries(&self, row: &Allocation, rollout: &Deployment) -> bool {
        let rows = self.new.allocations().iter().filter(|other| other.group == row.group);
        let live = rows.filter(|other| is_live(other) && other.canary_of == Some(rollout.id));
        let wanted = rollout.groups.get(&row.group).map_or(0, |own| own.goal.canaries);
        live.count() >= wanted as usize
    }

    /// Whether an instance comes back that is of no known one's place: its version is that of another of the group, or stable, and wanted so many.
    fn is_missing(&self, row: &Allocation, job: &fsm::Job, rollout: &Deployment) -> bool {
        let mut rows = self.old.allocations().iter();
        let is_known = rows.any(|other| {
            other.job == row.job && other.group == row.group && version(other) == version(row)
        });
        let spec = self.old.job_spec(&row.job, row.job_create_index, row.job_version);
        let count = spec.and_then(|spec| spec.group(&row.group)).map_or(0, |group| group.count);
        let now = self.old.current_spec(job).and_then(|spec| spec.group(&row.group));
        // Promoted canaries are beside those that go for them.
        let canaries = rollout.groups.get(&row.group).map_or(0, |own| own.goal.canaries);
        let most = now.map_or(0, |now| now.count + canaries) as usize;
        (is_known || self.is_stable(row))
            && !row.per_node
            && row.job_create_index == job.create_index
            && row.name_index < count
            && self.live_beside_canaries(row) <= most
    }

    /// Live instances of the row's group that are no canaries.
    fn live_beside_canaries(&self, row: &Allocation) -> usize {
        let rows = self.new.allocations().iter();
        let rows = rows.filter(|other| other.job == row.job && other.group == row.group);
        rows.filter(|other| is_live(other) && !other.is_canary() && !other.per_node).count()
    }

    fn is_stable(&self, row: &Allocation) -> bool {
        let versions = self.old.versions_of(&row.job, row.job_create_index);
        versions.iter().any(|own| own.version == row.job_version && own.stable)
    }

    /// I46: a rolling update replaces at most `max_parallel` at a time.
    fn rolling_update(&self, row: &Allocation, out: &mut Vec<Broken>) {
        let Some(job) = self.old.jobs().get(&row.job) else { return };
        let has_steps = |kind| matches!(kind, JobKind::Service | JobKind::System);
        let spec = self.old.current_spec(job).filter(|spec| has_steps(spec.kind));
        let group = spec.and_then(|spec| spec.group(&row.group));
        let Some(update) = group.and_then(|group| group.update) else { return };
        let updated = updated(self.old, self.new, job, &row.group);
        if update.max_parallel > 0 && updated.len() > update.max_parallel as usize {
            let (count, most) = (updated.len(), update.max_parallel);
            let detail = format!("{count} instances of {} are updated at once of {most}", job.key);
            out.push(Broken("I46", detail));
        }
    }

    /// I46: an allocation that goes on under another version does the same work, on a node that suits it.
    fn moved_to_version(&self, before: &Allocation, after: &Allocation, out: &mut Vec<Broken>) {
        if version(before) == version(after) {
            return;
        }
        let id = after.id;
        let job = self.old.jobs().get(&after.job);
        if job.map(|job| (job.create_index, job.version)) != Some(version(after)) {
            out.push(Broken("I31", format!("{id} goes on under a version that is not current")));
        }
        let specs = (self.old.allocation_spec(before), self.new.allocation_spec(after));
        let groups = match &specs {
            (Some(old), Some(new)) => old.group(&before.group).zip(new.group(&after.group)),
            (None, _) | (_, None) => None,
        };
        if let Some((old, new)) = groups
            && let Err(what) = needs::same_work(old, new)
        {
            let detail = format!("{id} goes on under another version with another {what}");
            out.push(Broken("I46", detail));
        }
    }

    /// I43: versions only rise, by one at a time, within one life of a job, and only for another spec, a stop, or a new start.
    fn jobs(&self, out: &mut Vec<Broken>) {
        for before in self.old.jobs().iter() {
            let Some(after) = self.new.jobs().get(&before.key) else { continue };
            let key = &before.key;
            if after.create_index < before.create_index {
                out.push(Broken("I43", format!("{key} is an older job of that name")));
            }
            if after.create_index != before.create_index {
                continue;
            }
            let jumped = self.one_entry && after.version > before.version + 1;
            if after.version < before.version || jumped {
                let (from, to) = (before.version, after.version);
                out.push(Broken("I43", format!("{key} went from version {from} to {to}")));
            }
            let same_spec = self.new.current_spec(after) == self.old.current_spec(before);
            let moved = after.version != before.version;
            let turned = before.stop != after.stop;
            if self.one_entry && moved == (same_spec && !turned) {
                let detail = format!(
                    "the version of {key} moved: {moved}, its spec is the same: {same_spec}, \
                     it was stopped or started again: {turned}"
                );
                out.push(Broken("I43", detail));
            }
            let back = after.job_modify_index < before.job_modify_index
                || after.last_plan_index < before.last_plan_index;
            if back {
                out.push(Broken("I43", format!("an index of {key} went back")));
            }
        }
    }

    /// I25: room that a node in service gained is written down, for its class and for itself, so that the next leader wakes who waits for it.
    fn gains(&self, out: &mut Vec<Broken>) {
        let index = self.new.index();
        let mut gained: BTreeSet<NodeId> = BTreeSet::new();
        for row in self.old.allocations().iter().filter(|row| !has_ended(row)) {
            let Some(after) = self.new.allocations().get(&row.id) else { continue };
            let frees = (is_live(row) && !is_live(after)) || (has_ended(after) && !is_live(row));
            // What falls in priority makes room for those who may evict it now.
            let priority =
                |state: &State, row| state.allocation_spec(row).map(|spec| spec.priority);
            let falls = priority(self.new, after) < priority(self.old, row);
            if frees || falls {
                gained.insert(row.node);
            }
        }
        for node in self.new.nodes().iter() {
            let before = self.old.nodes().get(&node.id).filter(|node| in_service(node));
            if before.is_none_or(|before| before.class != node.class) {
                gained.insert(node.id);
            }
        }
        let may = |state: &State, kind| evictions::may_evict(state, kind);
        if JobKind::ALL.into_iter().any(|kind| may(self.new, kind) && !may(self.old, kind)) {
            gained.extend(self.new.nodes().iter().map(|node| node.id));
        }
        for id in gained {
            let Some(node) = self.new.nodes().get(&id).filter(|node| in_service(node)) else {
                continue;
            };
            for key in [GainKey::Class(node.class), GainKey::Node(id)] {
                let noted = self.new.capacity_gains().get(&key).map(|gain| gain.index);
                if noted != Some(index) {
                    let detail = format!("node {id} gained room, {key:?} says {noted:?}");
                    out.push(Broken("I25", detail));
                }
            }
        }
    }
}

/// Instances of older versions that ran well and were replaced in this step of one entry.
fn updated(old: &State, new: &State, job: &Job, group: &str) -> Vec<AllocationId> {
    let created = new.index();
    let placed = new.allocations().iter().filter(|row| row.create_index == created);
    let of_group = placed.filter(|row| row.job == job.key && *row.group == *group);
    let replaced = of_group.filter_map(|row| old.allocations().get(&row.previous?));
    let seen = |row: &Allocation| {
        let successor = row.next.or_else(|| new.allocations().get(&row.id)?.next);
        let successor = successor.and_then(|id| new.allocations().get(&id));
        let node = old.nodes().get(&row.node).map_or(0, |node| node.modify_index);
        successor.is_some_and(|one| was_seen(new, one, row.modify_index.max(node)))
    };
    let updated = replaced.filter(|row| {
        let is_old = version(row) != (job.create_index, job.version);
        let heard = old.nodes().get(&row.node);
        is_old
            && seen(row)
            && is_live(row)
            && !row.transition.migrate
            && !row.transition.reschedule
            && heard.is_some_and(|node| node.liveness != fsm::Liveness::Down)
            && new.allocations().get(&row.id).is_some_and(|row| !is_live(row))
    });
    updated.map(|row| row.id).collect()
}

/// The pass that placed `row` saw what changed last at an index. Unknown when only a part of its plan was taken: then not.
fn was_seen(new: &State, row: &Allocation, index: fsm::Index) -> bool {
    let evaluation = new.evaluations().get(&row.evaluation);
    evaluation.is_some_and(|evaluation| evaluation.snapshot_index >= index)
}

/// Rows differ. The states may be of two servers, each with rows of its own.
fn differ<R: PartialEq>(old: &Arc<R>, new: &Arc<R>) -> bool {
    !Arc::ptr_eq(old, new) && old != new
}

fn version(row: &Allocation) -> (fsm::Index, u64) {
    (row.job_create_index, row.job_version)
}

/// It failed, and nobody asked for another one.
fn failed_by_itself(row: &Allocation) -> bool {
    row.client == ClientStatus::Failed && !row.transition.migrate && !row.transition.reschedule
}

/// I41: an allocation that is to end, or has ended, never lives again, nor becomes another one.
fn allocation_changed(before: &Allocation, after: &Allocation, out: &mut Vec<Broken>) {
    let id = before.id;
    if before.desired != DesiredStatus::Run && after.desired == DesiredStatus::Run {
        out.push(Broken("I41", format!("{id} is wanted again")));
    }
    if has_ended(before) && after.client != before.client {
        let (from, to) = (before.client.name(), after.client.name());
        out.push(Broken("I41", format!("{id} went from {from} to {to}")));
    }
    if (before.node, &before.job, before.name_index) != (after.node, &after.job, after.name_index) {
        out.push(Broken("I41", format!("{id} became another one")));
    }
    if after.client_sequence < before.client_sequence {
        out.push(Broken("I41", format!("the report of {id} went back")));
    }
    if before.previous != after.previous {
        out.push(Broken("I42", format!("{id} replaces another one than before")));
    }
}
