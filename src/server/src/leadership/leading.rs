//! Whether this server leads: the services of its leadership, or none.

use std::sync::{Arc, PoisonError, RwLock};

use ground::rt::watch;

use crate::leadership::services::LeaderServices;

/// The services of this server's leadership, while it leads.
pub(crate) struct Leading {
    services: RwLock<Option<Arc<LeaderServices>>>,
    /// It leads, and there are other servers.
    leads_others: watch::Sender<bool>,
}

impl Default for Leading {
    fn default() -> Self {
        Self { services: RwLock::default(), leads_others: watch::channel(false).0 }
    }
}

impl Leading {
    pub(crate) fn services(&self) -> Option<Arc<LeaderServices>> {
        self.services.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it leads others, as it changes.
    pub(crate) fn leads_others(&self) -> watch::Receiver<bool> {
        self.leads_others.subscribe()
    }

    /// Notes whether there are other servers, beside whether it leads.
    pub(crate) fn set_has_others(&self, has_others: bool) {
        let leads_others = has_others && self.services().is_some();
        self.leads_others
            .send_if_modified(|known| std::mem::replace(known, leads_others) != leads_others);
    }

    /// Replaces the services; the old ones stop.
    pub(crate) fn set(&self, services: Option<Arc<LeaderServices>>) {
        let old = {
            let mut slot = self.services.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, services)
        };
        if let Some(old) = old {
            old.stop();
        }
    }
}
