//! Whether this server leads: the services of its leadership, or none.

use std::sync::{Arc, PoisonError, RwLock};

use super::leadership::LeaderServices;

/// The services of this server's leadership, while it leads.
#[derive(Default)]
pub(super) struct Leading(RwLock<Option<Arc<LeaderServices>>>);

impl Leading {
    pub(super) fn services(&self) -> Option<Arc<LeaderServices>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the services; the old ones stop.
    pub(super) fn set(&self, services: Option<Arc<LeaderServices>>) {
        let old = {
            let mut slot = self.0.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, services)
        };
        if let Some(old) = old {
            old.stop();
        }
    }
}
