//! Reads on any server, linearizable by default: the leader is asked for the index they wait for.

use std::{sync::Arc, time::Duration};

use fsm::Index;
use ground::{
    plant::{Plant, is_planted},
    rt::{self, Instant, watch},
};
use wire::{
    api::{ApiError, ReadMode, Snapshot},
    published::StateCell,
};

use crate::{
    access::{LEADER_RETRY, read_rounds::ReadRounds, until},
    member::contact::Contact,
};

/// Reads of the published state, as fresh as they are asked for.
#[derive(Clone)]
pub(crate) struct Reads {
    pub(crate) cell: Arc<StateCell>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) rounds: ReadRounds,
    /// True once a leader was heard since the start.
    pub(crate) recovered: watch::Receiver<bool>,
}

impl Reads {
    /// A snapshot in the given mode, at least at `index_min`, within `timeout`.
    pub(crate) async fn read(
        &self,
        mode: ReadMode,
        index_min: Index,
        timeout: Duration,
    ) -> Result<Snapshot, ApiError> {
        if !*self.recovered.borrow() && mode == ReadMode::Stale {
            let what = "it has not heard a leader since its start";
            return Err(ApiError::NotReady(what.to_owned()));
        }
        let deadline = Instant::now() + timeout;
        let mut index = index_min;
        if mode == ReadMode::Linearizable && !is_planted(Plant::StaleRead) {
            index = index.max(self.read_index_anywhere(deadline).await?);
        }
        if !self.cell.wait_for(index, until(deadline)).await {
            return Err(ApiError::Timeout { proposed: false });
        }
        let known_leader = self.contact.knows_leader();
        let last_contact = if mode == ReadMode::Linearizable {
            Duration::ZERO
        } else {
            self.contact.last_contact()
        };
        // As in Nomad: a leader whose followers answer is in touch with itself.
        let leads = known_leader && self.contact.leads().is_some();
        let last_contact = if leads { Duration::ZERO } else { last_contact };
        Ok(Snapshot { state: self.cell.load(), last_contact, known_leader })
    }

    async fn read_index_anywhere(&self, deadline: Instant) -> Result<Index, ApiError> {
        loop {
            let left = until(deadline);
            if let Ok(Ok(index)) = rt::timeout(left, self.rounds.read_index()).await {
                return Ok(index);
            }
            if until(deadline) <= LEADER_RETRY {
                return Err(ApiError::NoLeader);
            }
            rt::sleep(LEADER_RETRY).await;
        }
    }
}
