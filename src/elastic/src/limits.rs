//! What a provider's error means: for how long, and for which creates.

use fsm::{
    Text,
    pool::{InstanceType, LimitClass, LimitScope},
};

use crate::call::{ErrorClass, ErrorScope, ProviderError};

/// How long a quota counts when the provider does not say, ms (Arvados' quota TTL).
pub const QUARANTINE_MS: u64 = 60_000;
/// The same of a rate limit, ms.
pub const RATE_LIMIT_MS: u64 = 1_000;
/// The same of a refusal that a person has to look at, ms.
pub const FATAL_MS: u64 = 60_000;

/// A refusal that goes into the state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub class: LimitClass,
    pub scope: LimitScope,
    /// None: the provider does not say, and the state doubles it.
    pub for_ms: Option<u64>,
    pub detail: Text,
}

/// What an error of a create of this type means for later ones; none: its outcome is unknown, and
/// nothing is said of others.
pub fn refusal(kind: &InstanceType, error: &ProviderError) -> Option<Refusal> {
    let scope = match error.scope {
        ErrorScope::All => LimitScope::All,
        ErrorScope::Type => LimitScope::Type(kind.provider_type.clone()),
        ErrorScope::QuotaGroup if kind.quota_group.is_empty() => {
            LimitScope::Type(kind.provider_type.clone())
        }
        ErrorScope::QuotaGroup => LimitScope::QuotaGroup {
            group: kind.quota_group.clone(),
            preemptible: kind.preemptible,
        },
    };
    let (class, default_ms) = match error.class {
        ErrorClass::RateLimited => (LimitClass::RateLimited, Some(RATE_LIMIT_MS)),
        ErrorClass::Quota => (LimitClass::Quota, Some(QUARANTINE_MS)),
        ErrorClass::NoCapacity => (LimitClass::NoCapacity, None),
        ErrorClass::Fatal => (LimitClass::Fatal, Some(FATAL_MS)),
        ErrorClass::Transient => return None,
    };
    // Asking too often is about all that is asked, whatever was asked.
    let scope = if class == LimitClass::RateLimited { LimitScope::All } else { scope };
    let for_ms = error.retry_after_ms.or(default_ms);
    Some(Refusal { class, scope, for_ms, detail: error.detail.clone() })
}
