//! Calls to providers of machines, made by the leader for the machine of pools.
//!
//! What to call, and what an answer means, is decided in package `elastic`. Here a call becomes a
//! task; its answer goes to the machine that asked, or, when that leadership is over, as a command
//! to the next one: a machine that was made must not be forgotten because its leader was.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use elastic::{
    CallId,
    call::{Answer, Call, ErrorClass, Operation, ProviderError},
    late,
};
use fsm::{State, Text};
use ground::{
    histogram::Histogram,
    rt::{self, Instant},
};
use wire::api::Sample;

use crate::provider::{Context, Provider, Providers};
use crate::{
    access::writes::Writes,
    leadership::services::{LeaderServices, MakeCalls},
    member::{contact::Contact, hosts, identity::Cluster},
};

/// How long the command of a late answer may take to find a leader.
const LATE_TIMEOUT: Duration = Duration::from_mins(1);

/// Makes the calls to providers, and what they are made with.
pub(crate) struct ProviderCalls {
    pub(crate) providers: Arc<Providers>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) writes: Writes,
    /// Its name is on this cluster's machines.
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) times: CallTimes,
}

/// How long calls took, by provider, operation and outcome: `ok` or the name of an error's class.
#[derive(Debug, Default)]
pub(crate) struct CallTimes(Mutex<BTreeMap<(Text, &'static str, &'static str), Histogram>>);

impl CallTimes {
    fn record(&self, call: &Call, answer: &Result<Answer, ProviderError>, took: Duration) {
        let outcome = answer.as_ref().map_or_else(|error| error.class.name(), |_| "ok");
        let key = (call.provider.clone(), call.operation.name(), outcome);
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times.entry(key).or_default().record(took);
    }

    fn samples(&self) -> BTreeMap<String, Sample> {
        let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = times.iter().map(|((provider, operation, outcome), histogram)| {
            let of = format!("operation={operation},outcome={outcome},provider={provider}");
            (format!("nomad.providers.call{{{of}}}"), histogram.sample())
        });
        samples.collect()
    }
}

impl MakeCalls for ProviderCalls {
    /// In a task of its own.
    fn start(self: Arc<Self>, services: &Arc<LeaderServices>, id: CallId, call: Call) {
        rt::spawn(self.make(Arc::clone(services), id, call));
    }

    fn samples(&self) -> BTreeMap<String, Sample> {
        self.times.samples()
    }
}

impl ProviderCalls {
    async fn make(self: Arc<Self>, services: Arc<LeaderServices>, id: CallId, call: Call) {
        let begun = Instant::now();
        let answer = self.ask(&services, &call).await;
        self.times.record(&call, &answer, begun.elapsed());
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
        if matches!(call.operation, Operation::Create(_))
            && provider.needs_one_host()
            && let Some(why) = hosts::several(&self.contact)
        {
            return Err(ProviderError::new(ErrorClass::Fatal, &why));
        }
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
        let time_left = Duration::from_millis(left);
        let known = match call.operation {
            Operation::List => known(&services.cell().load(), &call.provider),
            Operation::Create(_)
            | Operation::Destroy { .. }
            | Operation::SetTags { .. }
            | Operation::Describe { .. } => BTreeSet::new(),
        };
        let context = Context { cluster: cluster.into(), servers, time_left, known };
        provider.call(call.operation.clone(), context).await
    }
}

/// The ids of a provider's machines that have a row.
fn known(state: &State, provider: &Text) -> BTreeSet<Text> {
    let rows = state.instances().iter().filter(|row| row.provider == *provider);
    rows.map(|row| row.provider_id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls are counted by provider, operation and class of error, each with its duration.
    #[test]
    fn calls_are_timed_by_outcome() {
        let times = CallTimes::default();
        let call = |operation| Call { provider: "local".into(), deadline_at: 0, operation };
        let (instance, provider_id) = (fsm::InstanceId([1; 16]), Text::from("m1"));
        let tags = elastic::call::Tags::new();
        let tag = call(Operation::SetTags { instance, provider_id, tags });
        let list = call(Operation::List);
        times.record(&tag, &Ok(Answer::Tagged), Duration::from_millis(3));
        times.record(&tag, &Ok(Answer::Tagged), Duration::from_secs(30));
        let error = Err(ProviderError::new(ErrorClass::NoCapacity, "none"));
        times.record(&list, &error, Duration::from_millis(1));
        let samples = times.samples();
        let names: Vec<&str> = samples.keys().map(String::as_str).collect();
        let wanted = [
            "nomad.providers.call{operation=list,outcome=no-capacity,provider=local}",
            "nomad.providers.call{operation=set-tags,outcome=ok,provider=local}",
        ];
        assert_eq!(names, wanted);
        let tag = &samples[wanted[1]];
        assert_eq!((tag.count(), tag.max_us, tag.quantile_us(50)), (2, 30_000_000, 4_096));
    }
}
