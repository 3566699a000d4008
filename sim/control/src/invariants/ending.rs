//! What must hold when all faults are gone and nothing is left to do; and that a state survives its own bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    Allocation, ClientStatus, DeploymentStatus, DesiredStatus, EvaluationStatus, Job, JobKind,
    JobSpec, Node, NodeId, State, TaskGroup, deployment::DeploymentGroup,
};

use super::{
    Broken, evictions, loss_that_is_over,
    needs::{self, has_ended, in_service, is_live},
};

/// What is wrong with a state in which nothing is left to do: open evaluations (I18, I25, I56), a mass loss that is over and was not ended (I50), and
/// jobs that are not as they should be (I39, I40, I46).
/// On nodes in `forgiven` something failed: a per-node instance that failed is not replaced before somebody asks.
pub fn check_quiet(state: &State, forgiven: &BTreeSet<NodeId>) -> Vec<Broken> {
    let mut out = Vec::new();
    for row in state.evaluations().iter() {
        // One that waits for its time is not late.
        if row.status == EvaluationStatus::Pending && row.wait_until <= state.at() {
            let (id, trigger) = (row.id, row.trigger.name());
            out.push(Broken(
                "I56",
                format!("evaluation {id} ({trigger}) of {} is pending", row.job),
            ));
        }
    }
    for row in state.evaluations().iter().filter(|row| row.status == EvaluationStatus::Blocked) {
        if row.kind.is_per_node() && row.node.is_some_and(|node| !state.nodes().contains(&node)) {
            let detail = format!("evaluation {} waits for a node that is gone", row.id);
            out.push(Broken("I39", detail));
        }
    }
    if let Some(loss) = loss_that_is_over(state) {
        let detail = format!("the mass loss that began at {} goes on", loss.create_index);
        out.push(Broken("I50", detail));
    }
    for row in state.allocations().iter().filter(|row| is_live(row)) {
        if state.jobs().get(&row.job).is_none_or(|job| job.stop) {
            out.push(Broken("I40", format!("{} of a stopped job is live", row.name())));
        }
    }
    for job in state.jobs().iter().filter(|job| !job.stop && job.is_scheduled()) {
        let Some(spec) = state.current_spec(job) else { continue };
        let ending = Ending { state, job, spec };
        for group in &spec.groups {
            match job.kind {
                JobKind::Service | JobKind::Batch => ending.counted(group, &mut out),
                JobKind::System | JobKind::Sysbatch => ending.per_node(group, forgiven, &mut out),
            }
        }
    }
    out
}

/// A job, and what it wants.
pub(super) struct Ending<'a> {
    pub(super) state: &'a State,
    pub(super) job: &'a Job,
    pub(super) spec: &'a JobSpec,
}

impl Ending<'_> {
    /// Instances of a group.
    pub(super) fn rows<'a>(
        &'a self,
        group: &'a TaskGroup,
    ) -> impl Iterator<Item = &'a Arc<Allocation>> {
        let rows = self.state.allocations().iter();
        rows.filter(|row| row.job == self.job.key && row.group == group.name)
    }

    fn blocked(&self, node: Option<NodeId>) -> usize {
        let blocked = self.state.evaluations().iter().filter(|row| {
            row.job == self.job.key
                && row.status == EvaluationStatus::Blocked
                && (node.is_none() || row.node == node)
        });
        blocked.count()
    }

    pub(super) fn is_current(&self, row: &Allocation) -> bool {
        (row.job_create_index, row.job_version) == (self.job.create_index, self.job.version)
    }

    /// I39: as many as are wanted live or are done, or exactly one blocked evaluation waits and no node has room. I46: all of the current version.
    fn counted(&self, group: &TaskGroup, out: &mut Vec<Broken>) {
        let key = &self.job.key;
        let live = self.rows(group).filter(|row| is_live(row) && !row.is_canary()).count();
        let wanted = group.count as usize;
        if live > wanted {
            out.push(Broken("I39", format!("{live} of {wanted} instances of {key} are live")));
        }
        let blocked = self.blocked(None);
        if self.is_held(group) {
            let missing = self.missing_of_older(group);
            if missing > 0 && blocked == 0 {
                let detail = format!("{missing} of {key} that were there do not come back");
                out.push(Broken("I39", detail));
            }
            return;
        }
        let missing = self.missing(group);
        if missing > 0 && blocked != 1 {
            let detail = format!(
                "{key} lacks {missing} of {wanted} instances of {} and has {blocked} blocked evaluations",
                group.name
            );
            out.push(Broken("I39", detail));
        }
        let free = self.state.nodes().iter().find(|node| self.has_room(node, group));
        if let Some(node) = free.filter(|_| missing > 0 && !self.spec.all_at_once) {
            let detail = format!(
                "{missing} of {wanted} instances of {key} are missing, {} has room",
                node.id
            );
            out.push(Broken("I39", detail));
        }
        let old = self.rows(group).find(|row| is_live(row) && !self.is_current(row));
        if let Some(row) = old.filter(|_| blocked == 0 && !self.is_held_up(group)) {
            let detail = format!("{} runs version {} for ever", row.name(), row.job_version);
            out.push(Broken("I46", detail));
        }
    }

    /// An update that goes no further before somebody mends the job: as many instances of the new version as it may have on their way have failed for
    /// good.
    pub(super) fn is_held_up(&self, group: &TaskGroup) -> bool {
        let failed = self.rows(group).filter(|row| {
            self.is_current(row) && row.client == ClientStatus::Failed && self.counts(row, group)
        });
        let parallel = group.update.map_or(0, |update| update.max_parallel as usize);
        parallel > 0 && failed.count() >= parallel
    }

    /// The deployment of the job's version has failed or is paused, or the group's canaries wait for their promotion: nothing new is made, and what is of an
    /// older version stays. A group that is updated all at once is no part of it.
    pub(super) fn is_held(&self, group: &TaskGroup) -> bool {
        let has_steps = group.update.is_some_and(|update| update.max_parallel > 0);
        let row = self.state.current_deployment(self.job).filter(|_| has_steps);
        row.is_some_and(|row| match row.status {
            DeploymentStatus::Failed | DeploymentStatus::Paused => true,
            DeploymentStatus::Running => {
                row.groups.get(&group.name).is_some_and(DeploymentGroup::is_canarying)
            }
            DeploymentStatus::Successful | DeploymentStatus::Cancelled => false,
        })
    }

    /// The next step of an update follows from what an agent says of an instance's health, or from the deadline of the deployment.
    pub(super) fn waits_for_health(&self, group: &TaskGroup) -> bool {
        let row = self.state.current_deployment(self.job).filter(|row| row.is_active());
        let Some(deployment) = row.filter(|row| row.groups.contains_key(&group.name)) else {
            return false;
        };
        self.rows(group).any(|row| {
            let own = row.deployment.filter(|own| own.id == deployment.id);
            // One that a person calls healthy before it runs is looked at when it does.
            let begins = row.client == ClientStatus::Pending;
            is_live(row) && own.is_some_and(|own| begins || own.is_healthy() != Some(true))
        })
    }

    /// Instances that somebody has to make.
    pub(super) fn missing(&self, group: &TaskGroup) -> usize {
        let made = self.rows(group).filter(|row| self.counts(row, group));
        // A promoted canary has the name of an instance that goes for it.
        let names: BTreeSet<_> = made.map(|row| (row.name_index, row.canary_of)).collect();
        (group.count as usize).saturating_sub(names.len())
    }

    /// Instances that a held group lacks of what it had: of as many as the newest older version that holds a place in it wants, and no more than are wanted
    /// now.
    pub(super) fn missing_of_older(&self, group: &TaskGroup) -> usize {
        let older = self.rows(group).filter(|row| {
            let is_older = row.job_create_index == self.job.create_index && !self.is_current(row);
            is_older && row.holds_its_place() && !row.is_canary() && !row.per_node
        });
        let newest = older.max_by_key(|row| row.job_version);
        let old = newest.and_then(|row| self.state.allocation_spec(row)?.group(&group.name));
        let wanted = old.map_or(0, |old| old.count.min(group.count)) as usize;
        let there = self
            .rows(group)
            .filter(|row| self.counts(row, group) || (row.holds_its_place() && !row.is_canary()));
        wanted.saturating_sub(there.count())
    }

    /// An instance that nobody has to make any more: it lives, a batch job has finished it, or it failed as often as it may.
    fn counts(&self, row: &Allocation, group: &TaskGroup) -> bool {
        if row.is_canary() {
            return false;
        }
        if is_live(row) {
            return true;
        }
        let may_stay_ended = row.may_stay_ended(self.job.kind == JobKind::Batch);
        if may_stay_ended && self.is_current(row) && row.is_ended_by_request() {
            return true;
        }
        if row.desired != DesiredStatus::Run || row.per_node || row.transition.reschedule {
            return false;
        }
        let finished = self.job.kind == JobKind::Batch && self.is_current(row);
        match row.client {
            ClientStatus::Complete => finished,
            ClientStatus::Failed if self.job.kind == JobKind::Batch && !self.is_current(row) => {
                false
            }
            ClientStatus::Failed => group.reschedule.is_none_or(|policy| {
                !policy.unlimited && row.reschedules.len() >= policy.attempts as usize
            }),
            ClientStatus::Lost
            | ClientStatus::Pending
            | ClientStatus::Running
            | ClientStatus::Unknown => false,
        }
    }

    /// I39: every node that suits and has room runs it; I46: in the current version.
    fn per_node(&self, group: &TaskGroup, forgiven: &BTreeSet<NodeId>, out: &mut Vec<Broken>) {
        let key = &self.job.key;
        let live: BTreeMap<NodeId, &Arc<Allocation>> =
            self.rows(group).filter(|row| is_live(row)).map(|row| (row.node, row)).collect();
        let wanted = group.count > 0;
        let is_held = self.is_held(group);
        let may_be_old = is_held || self.waits_for_health(group);
        for node in self.state.nodes().iter().filter(|node| in_service(node)) {
            let is_done = |row: &Allocation| {
                let is_run_once = self.job.kind == JobKind::Sysbatch && has_ended(row);
                // A user ended it, and does not want another before the job changes.
                let is_over = row.may_stay_ended(false) && row.is_ended_by_request();
                is_run_once || (is_over && self.is_current(row))
            };
            let done = self.rows(group).any(|row| row.node == node.id && is_done(row));
            let missing = wanted && !is_held && !done && !live.contains_key(&node.id);
            if missing && !forgiven.contains(&node.id) && self.has_room(node, group) {
                out.push(Broken("I39", format!("{key} does not run on {}", node.id)));
            }
            if let Some(row) = live.get(&node.id)
                && !self.is_current(row)
                && !may_be_old
                && self.blocked(Some(node.id)) == 0
            {
                let detail = format!("{key} runs version {} on {}", row.job_version, node.id);
                out.push(Broken("I46", detail));
            }
        }
        if let Some(row) = live.values().next().filter(|_| !wanted) {
            out.push(Broken("I39", format!("{} is live and not wanted", row.id)));
        }
    }

    /// First fit, by hand. What the job may evict takes no room.
    fn has_room(&self, node: &Node, group: &TaskGroup) -> bool {
        if !in_service(node) || needs::suits(self.spec, group, node).is_err() {
            return false;
        }
        let here = || self.state.allocations().iter().filter(|row| row.node == node.id);
        let may_evict = evictions::may_evict(self.state, self.job.kind);
        let yields = |row: &Allocation| {
            may_evict
                && row.job != self.job.key
                && evictions::is_below(self.state, row, self.spec.priority)
        };
        let live: Vec<_> = here().filter(|row| is_live(row) && !yields(row)).collect();
        let (of_job, of_group) = needs::wants_own_host(self.spec, group);
        let taken = live.iter().any(|row| {
            let of_this_job = row.job == self.job.key;
            of_this_job && (of_job || (of_group && row.group == group.name))
        });
        let crowded = needs::most_in_datacenter(self.spec).is_some_and(|most| {
            let there = self.state.allocations().iter().filter(|row| {
                let of = self.state.nodes().get(&row.node).map(|node| &node.description.datacenter);
                row.job == self.job.key && is_live(row) && of == Some(&node.description.datacenter)
            });
            there.count() >= most
        });
        if crowded {
            return false;
        }
        let resources = &node.description.resources;
        let most = resources.allocations_max;
        if (taken && !self.job.kind.is_per_node()) || (most > 0 && live.len() >= most as usize) {
            return false;
        }
        for (place, (_, room)) in needs::room_of(node).into_iter().enumerate() {
            let used: u64 = live.iter().map(|row| needs::taken_by(row)[place].1).sum();
            if used + needs::ask_of(group)[place].1 > room {
                return false;
            }
        }
        let asks = group.network.as_ref().map_or(&[][..], |network| &network.ports);
        let (fixed, dynamic): (Vec<_>, Vec<_>) = asks.iter().partition(|ask| ask.value != 0);
        let held = |port: u16| live.iter().any(|row| row.ports.iter().any(|one| one.value == port));
        let kept = |port: u16| {
            let mut others = here().filter(|row| !has_ended(row));
            others.any(|row| row.ports.iter().any(|one| one.value == port))
        };
        let reserved = |port: u16| resources.reserved_ports.contains(&port);
        let range = resources.dynamic_port_min..=resources.dynamic_port_max;
        let asked = |port: u16| fixed.iter().any(|ask| ask.value == port);
        let free = range.filter(|port| !kept(*port) && !reserved(*port) && !asked(*port));
        fixed.iter().all(|ask| !held(ask.value) && !reserved(ask.value))
            && (dynamic.is_empty() || free.count() >= dynamic.len())
    }
}

/// I9: a state that goes through its own bytes comes back the same, with every derived index.
pub fn check_round_trip(state: &State) -> Vec<Broken> {
    let mut copy = State::default();
    for (key, frame) in state.frames() {
        if let Err(error) = copy.load_row(&key, &frame) {
            return vec![Broken("I9", format!("a row does not load: {error}"))];
        }
    }
    copy.load_done(state.head());
    let (given, loaded) = (state.digest(), copy.digest());
    let mut out = Vec::new();
    if given != loaded {
        out.push(Broken("I9", format!("digest {given} became {loaded} over its own bytes")));
    }
    // The digest is over the bytes that were read: what became of them shows in the bytes written again.
    if !state.frames().eq(copy.frames()) {
        out.push(Broken("I9", "rows differ after a way over their own bytes".to_owned()));
    }
    for (name, state) in [("as applied", state), ("as loaded", &copy)] {
        let inside = fsm::invariant::check(state).into_iter();
        out.extend(inside.map(|one| Broken("I45", format!("{} {name}: {}", one.name, one.detail))));
    }
    out
}
