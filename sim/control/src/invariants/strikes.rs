//! I50: a strike has a cause. This account is told of each failure that was a node's own, and says whether the strikes that rows show follow from
//! these. Who tells it is not its business: the control plane's simulation reads commands, the one of whole servers knows what its agents reported.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{ClientStatus, Index, JobKey, Node, NodeId, State};

use super::Broken;

/// Failures of the nodes themselves.
#[derive(Default, Debug)]
pub struct Strikes {
    /// Log time and job of each, by node, the oldest first.
    failures: BTreeMap<NodeId, Vec<(u64, JobKey)>>,
}

impl Strikes {
    /// An allocation of this job failed at this log time, by the fault of its node.
    pub fn failed(&mut self, node: NodeId, at: u64, job: JobKey) {
        self.failures.entry(node).or_default().push((at, job));
    }

    /// What is wrong with the strikes that came between two states of one log. All failures up to `new` are known.
    pub fn judge(&self, old: &State, new: &State) -> Vec<Broken> {
        let mut out = Vec::new();
        let one_entry = new.index() == old.index() + 1;
        for (before, after) in struck(old, new) {
            self.has_cause(after, (old, new), one_entry, &mut out);
            let passed_ms = new.at() - old.at();
            let window_ms = old.node_life().strike_window_ms;
            let most = 1 + if one_entry { 0 } else { passed_ms / window_ms };
            let strikes = u64::from(after.strikes.saturating_sub(before.strikes));
            if strikes > most {
                let detail =
                    format!("{} got {strikes} strikes in {passed_ms} ms of log time", after.id);
                out.push(Broken("I50", detail));
            }
        }
        out
    }

    /// A strike follows on enough failures within the window, of two jobs, or of one that runs elsewhere.
    fn has_cause(
        &self,
        node: &Node,
        (old, new): (&State, &State),
        one_entry: bool,
        out: &mut Vec<Broken>,
    ) {
        let (id, life, at) = (node.id, old.node_life(), node.strike_at);
        let known = self.failures.get(&id).map_or(&[][..], Vec::as_slice);
        let recent = known
            .iter()
            .filter(|(failed_at, _)| (*failed_at..failed_at + life.strike_window_ms).contains(&at));
        let jobs: Vec<_> = recent.map(|(_, job)| job).collect();
        let (count, least) = (jobs.len(), life.strike_failures);
        if count < least as usize {
            let detail = format!("{id} has a strike for {count} failures of {least}");
            out.push(Broken("I50", detail));
        }
        let names: BTreeSet<_> = jobs.into_iter().collect();
        let runs_elsewhere = |job: &JobKey| {
            let rows = old.allocations().iter().chain(new.allocations().iter());
            rows.into_iter()
                .any(|row| row.job == *job && row.node != id && row.client == ClientStatus::Running)
        };
        // Between states that are further apart it may have run, and not any more.
        if one_entry
            && least > 1
            && names.len() == 1
            && !names.iter().any(|job| runs_elsewhere(job))
        {
            let detail = format!("{id} has a strike for one job that runs nowhere else");
            out.push(Broken("I50", detail));
        }
    }
}

/// Nodes that were struck between two states of one log, as they were and as they are.
fn struck<'a>(old: &'a State, new: &'a State) -> impl Iterator<Item = (&'a Node, &'a Node)> {
    let row = |state: &'a State, id, created: Index| {
        state.nodes().get(id).filter(|row| row.create_index == created)
    };
    new.nodes().iter().filter_map(move |after| {
        let before = row(old, &after.id, after.create_index)?;
        (before.strike_at != after.strike_at).then_some((&**before, &**after))
    })
}
