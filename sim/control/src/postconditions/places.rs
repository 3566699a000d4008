//! Namespaces and node pools: what is in use stays, and a job comes only where both of its own are.

use fsm::{
    Command, Rejection, Reply, Text,
    command::SettingsCommand,
    settings::{DeleteNamespace, DeleteNodePool, Namespace, NodePool},
};

use super::{Entry, Found};
use crate::invariants::needs::goes_on;

impl Entry<'_> {
    /// I45: a namespace or node pool that was to go.
    pub(super) fn place_deleted(&self, command: &Command, found: &mut Found) {
        if let Command::Settings(SettingsCommand::DeleteNamespace(DeleteNamespace { name })) =
            command
        {
            self.namespace_deleted(name, found);
        }
        if let Command::Settings(SettingsCommand::DeleteNodePool(DeleteNodePool { name })) = command
        {
            self.node_pool_deleted(name, found);
        }
    }

    /// I45: a namespace goes when none of its jobs goes on.
    fn namespace_deleted(&self, name: &Text, found: &mut Found) {
        let state = self.before;
        let jobs = || state.jobs().iter().filter(|job| job.key.namespace == *name);
        if !self.is_refused() && jobs().any(|job| goes_on(state, job)) {
            found.push(format!("I45: namespace {name} was deleted, and a job in it goes on"));
        }
        // One of which nothing was made yet goes on too, as far as its user is concerned.
        if self.is_in_use() && jobs().all(|job| job.stop && !goes_on(state, job)) {
            found.push(format!("I45: namespace {name} is said to be in use, and nothing is in it"));
        }
        self.is_gone(name, self.after.namespaces().contains(name), found);
    }

    /// I45: a node pool goes when no node is in it, and no job that was not stopped wants it.
    fn node_pool_deleted(&self, name: &Text, found: &mut Found) {
        let state = self.before;
        let specs = state.jobs().iter().filter(|job| !job.stop);
        let mut specs = specs.filter_map(|job| state.current_spec(job));
        let used = specs.any(|spec| spec.node_pool == *name)
            || state.nodes().iter().any(|node| node.description.pool == *name);
        if !self.is_refused() && used {
            found.push(format!("I45: node pool {name} was deleted and is in use"));
        }
        if self.is_in_use() && !used {
            found.push(format!("I45: node pool {name} is said to be in use, by nobody"));
        }
        self.is_gone(name, self.after.node_pools().contains(name), found);
    }

    pub(super) fn namespace_made(&self, asked: &Namespace, found: &mut Found) {
        let row = self.after.namespaces().get(&asked.name);
        let as_asked = |row: &Namespace| {
            (&row.description, &row.meta) == (&asked.description, &asked.meta)
                && row.modify_index == self.index()
        };
        if !row.is_some_and(|row| as_asked(row)) {
            found.push(format!("P-place: namespace {} is not as it was made", asked.name));
        }
    }

    pub(super) fn node_pool_made(&self, asked: &NodePool, found: &mut Found) {
        let row = self.after.node_pools().get(&asked.name);
        let as_asked = |row: &NodePool| {
            (&row.description, &row.meta) == (&asked.description, &asked.meta)
                && row.modify_index == self.index()
        };
        if !row.is_some_and(|row| as_asked(row)) {
            found.push(format!("P-place: node pool {} is not as it was made", asked.name));
        }
    }

    fn is_refused(&self) -> bool {
        matches!(self.reply, Reply::Rejected(_))
    }

    fn is_in_use(&self) -> bool {
        matches!(self.reply, Reply::Rejected(Rejection::InUse(_)))
    }

    fn is_gone(&self, name: &Text, is_there: bool, found: &mut Found) {
        if !self.is_refused() && is_there {
            found.push(format!("P-place: {name} was deleted and is there"));
        }
    }
}
