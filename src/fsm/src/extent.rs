//! What an answer about a part of the state was made of, so that who waits for a change of that
//! part can tell it from any other change.
//!
//! Compared by identity of the derived indexes, which are copied when one of their rows is written:
//! O(1), whatever the size (but for the members of a capacity group). A held extent keeps the ids
//! of its part alive, not the state.

use std::sync::Arc;

use imbl::OrdSet;

use crate::{
    id::{AllocationId, EvaluationId, Index, InstanceId, JobKey, NodeId, Text, TimeMs},
    indexes::JobIndex,
    job::Children,
    pool::Instance,
    state::State,
};

/// A part of the state as it was at some index.
#[derive(Clone, Debug)]
pub enum Extent {
    /// Whole tables: any change of them counts.
    Whole,
    /// Something that was not there.
    Nothing,
    /// Allocations of a job, a node or an evaluation.
    Allocations(OrdSet<AllocationId>),
    /// Evaluations of a job.
    Evaluations(OrdSet<EvaluationId>),
    /// Who serves in a capacity group: compared row by row, as it has no index of its own.
    Members(Vec<MemberExtent>),
    /// A job with all that is derived for it and its children, and the index of its last change.
    Job(Option<Arc<JobIndex>>, Option<Arc<Children>>, Index),
}

/// What a reader of a capacity group's members is told of one of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberExtent {
    id: InstanceId,
    node: Option<NodeId>,
    address: Text,
    port: u16,
    place: Option<u32>,
    since: TimeMs,
}

impl Extent {
    /// Whether nothing of the part was written between the two.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::Allocations(one), Self::Allocations(two)) => one.ptr_eq(two),
            (Self::Evaluations(one), Self::Evaluations(two)) => one.ptr_eq(two),
            (Self::Members(one), Self::Members(two)) => one == two,
            (Self::Job(one, children, index), Self::Job(two, others, other)) => {
                one.as_ref().map(Arc::as_ptr) == two.as_ref().map(Arc::as_ptr)
                    && children.as_ref().map(Arc::as_ptr) == others.as_ref().map(Arc::as_ptr)
                    && index == other
            }
            (
                Self::Whole
                | Self::Nothing
                | Self::Allocations(_)
                | Self::Evaluations(_)
                | Self::Members(_)
                | Self::Job(..),
                _,
            ) => false,
        }
    }

    /// Who serves in a capacity group.
    pub fn members(state: &State, group: &str) -> Self {
        let port = state.capacity_group(group).map_or(0, |(_, group)| group.member_port);
        let member = |row: &Arc<Instance>| MemberExtent {
            id: row.id,
            node: row.node,
            address: row.address.clone(),
            port,
            since: row.bound_at,
            place: row.place(),
        };
        Self::Members(state.active_members(group).iter().map(member).collect())
    }

    /// Allocations of a job, of all its incarnations.
    pub fn allocations_of_job(state: &State, job: &JobKey) -> Self {
        Self::Allocations(
            state.by_job.get(job).map_or_else(OrdSet::new, |index| index.allocations.clone()),
        )
    }

    /// Allocations of a node.
    pub fn allocations_of_node(state: &State, node: NodeId) -> Self {
        Self::Allocations(state.by_node.get(&node).cloned().unwrap_or_default())
    }

    /// Allocations that an evaluation placed or changed last.
    pub fn allocations_of_evaluation(state: &State, evaluation: EvaluationId) -> Self {
        Self::Allocations(state.by_evaluation.get(&evaluation).cloned().unwrap_or_default())
    }

    /// Evaluations of a job.
    pub fn evaluations_of_job(state: &State, job: &JobKey) -> Self {
        Self::Evaluations(
            state.by_job.get(job).map_or_else(OrdSet::new, |index| index.evaluations.clone()),
        )
    }

    /// A job and what is derived for it.
    pub fn job(state: &State, job: &JobKey) -> Self {
        let Some(row) = state.jobs.get(job) else { return Self::Nothing };
        let children = state.children.get(job).cloned();
        Self::Job(state.by_job.get(job).cloned(), children, row.modify_index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        allocation::ClientStatus,
        job::JobKind,
        testing::{Driver, job, job_key},
    };

    /// Each part changes with its own rows, a status of an allocation included, and with no others.
    #[test]
    fn a_part_changes_with_its_own_rows_only() {
        let mut driver = Driver::default();
        let (a, b) = (driver.node("a"), driver.node("b"));
        driver.register_job(job("one", JobKind::Service, 2));
        driver.register_job(job("two", JobKind::Service, 2));
        let first = driver.run("one", 0, a);
        driver.run("two", 0, b);
        let evaluation = driver.allocation(first).evaluation;
        let look = |driver: &Driver| {
            let (state, key) = (&driver.state, job_key("one"));
            [
                Extent::allocations_of_job(state, &key),
                Extent::allocations_of_node(state, a),
                Extent::allocations_of_evaluation(state, evaluation),
                Extent::evaluations_of_job(state, &key),
                Extent::job(state, &key),
            ]
        };
        let same = |old: &[Extent; 5], driver: &Driver| {
            let new = look(driver);
            std::array::from_fn::<bool, 5, _>(|part| old[part].is_same(&new[part]))
        };
        let before = look(&driver);
        driver.run("two", 1, b);
        driver.register_job(job("three", JobKind::Batch, 1));
        assert_eq!(same(&before, &driver), [true; 5]);
        driver.report(first, ClientStatus::Running);
        assert_eq!(same(&before, &driver), [false, false, false, true, false]);
        let before = look(&driver);
        // Its status is the same: that a task was restarted, say.
        driver.report(first, ClientStatus::Running);
        assert_eq!(same(&before, &driver), [false, false, false, true, false]);
        driver.report(first, ClientStatus::Failed);
        // The failure makes an evaluation of the job too.
        assert_eq!(same(&before, &driver), [false; 5]);
        let before = look(&driver);
        driver.evaluate_job("one");
        assert_eq!(same(&before, &driver), [true, true, true, false, false]);
        let before = look(&driver);
        driver.run("one", 1, b);
        assert_eq!(same(&before, &driver), [false, true, true, false, false]);
    }

    #[test]
    fn an_absent_job_stays_the_same_until_it_is_there() {
        let mut driver = Driver::default();
        let key = job_key("one");
        let before = Extent::job(&driver.state, &key);
        assert!(before.is_same(&Extent::job(&driver.state, &key)));
        driver.register_job(job("one", JobKind::Service, 1));
        assert!(!before.is_same(&Extent::job(&driver.state, &key)));
        assert!(!Extent::Whole.is_same(&Extent::Whole));
    }
}
