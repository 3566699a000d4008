//! Calls to providers of machines, made by the leader for the machine of pools.
//!
//! What to call, and what an answer means, is decided in package `elastic`. Here a call becomes a
//! task; its answer goes to the machine that asked, or, when that leadership is over, as a command
//! to the next one: a machine that was made must not be forgotten because its leader was.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use elastic::{
    CallId,
    call::{Answer, Call, ErrorClass, Operation, ProviderError},
    late,
};
use fsm::Text;

use super::{access::Writes, identity::Cluster, leadership::LeaderServices, members::Contact};
use crate::{
    provider::{Context, Provider, Throttled},
    rt,
};

/// How long the command of a late answer may take to find a leader.
const LATE_TIMEOUT: Duration = Duration::from_mins(1);

/// The providers of this server's configuration, by name.
pub type Providers = BTreeMap<Text, Arc<Throttled>>;

/// What calls are made with.
pub(super) struct Caller {
    pub(super) providers: Arc<Providers>,
    pub(super) contact: Arc<Contact>,
    pub(super) writes: Writes,
    /// Its name is on this cluster's machines.
    pub(super) cluster: Arc<Cluster>,
}

impl Caller {
    /// Makes a call of a leadership in a task of its own.
    pub(super) fn start(self: &Arc<Self>, services: &Arc<LeaderServices>, id: CallId, call: Call) {
        rt::spawn(Arc::clone(self).make(Arc::clone(services), id, call));
    }

    async fn make(self: Arc<Self>, services: Arc<LeaderServices>, id: CallId, call: Call) {
        let answer = self.ask(&services, &call).await;
        let name = call.operation.name();
        match &answer {
            Ok(_) => {
                tracing::debug!(provider = &*call.provider, call = name, "a provider answered");
            }
            Err(error) => {
                tracing::debug!(provider = &*call.provider, call = name, %error, "a call failed");
            }
        }
        if !*services.stopped().borrow() {
            return services.answered(id, answer);
        }
        let Some(command) = late(&call, &answer) else { return };
        if let Err(error) = self.writes.write(command, None, LATE_TIMEOUT).await {
            // The machine has the tag of its instance: the next list finds it.
            tracing::warn!(provider = &*call.provider, call = name, %error,
                "what came of a call of an earlier leadership could not be recorded");
        }
    }

    async fn ask(&self, services: &LeaderServices, call: &Call) -> Result<Answer, ProviderError> {
        let Some(provider) = self.providers.get(&call.provider) else {
            let text = format!("no provider \"{}\" is configured here", call.provider);
            return Err(ProviderError::new(ErrorClass::Transient, &text));
        };
        let left = call.deadline_at.saturating_sub(services.now());
        let mut servers: Vec<String> =
            self.contact.member_infos().into_iter().map(|member| member.rpc_address).collect();
        servers.sort_unstable();
        if servers.is_empty() && matches!(call.operation, Operation::Create(_)) {
            let text = "the servers' addresses are not known yet";
            return Err(ProviderError::new(ErrorClass::Transient, text));
        }
        let Some(cluster) = self.cluster.name() else {
            let text = "the cluster is not formed yet";
            return Err(ProviderError::new(ErrorClass::Transient, text));
        };
        let context =
            Context { cluster: cluster.into(), servers, time_left: Duration::from_millis(left) };
        provider.call(call.operation.clone(), context).await
    }
}
