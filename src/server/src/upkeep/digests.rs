//! How replicas notice that one of them has diverged.
//!
//! ```text
//!  leader: MarkDigest entry ─► every replica stores its own digest as of the entry before it
//!          asks every voter for it ─► DigestVerdict { what a majority has }
//!  every replica: my digest is not the verdict ─► DIVERGED marker, stop, refuse to start from
//!                                                 that state again
//! ```

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use fsm::{
    Command, Index, State,
    digest::{Digest, DigestVerdict},
    upkeep::MarkDigest,
};
use ground::{
    disk::Disk,
    rt::{self, Instant},
};
use raft::{WatchReceiver, storage::shadow::write_file};
use wire::published::StateCell;

use crate::{
    leadership::{leading::Leading, services::LeaderServices},
    member::{contact::Contact, lifecycle::Lifecycle},
};

/// Time between marks while entries are applied.
const MARK_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two looks at the marks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the leader waits for a majority of reports.
const GATHER_TIMEOUT: Duration = Duration::from_secs(10);
const ENTRY_TIMEOUT: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const MARKER: &str = "DIVERGED";

/// This server's digest at a mark, as it is reported to the leader.
pub(crate) fn digest_at(cell: &StateCell, mark: Index) -> Bytes {
    let state = cell.load();
    let row = state.digest_marks().get(&mark);
    row.map(|row| Bytes::copy_from_slice(&row.digest.0.to_le_bytes())).unwrap_or_default()
}

/// Refuses to start from a data directory whose state diverged.
pub(crate) fn refuse_diverged(disk: &dyn Disk, directory: &Path) -> anyhow::Result<()> {
    let path = directory.join(MARKER);
    anyhow::ensure!(
        !disk.exists(&path)?,
        "{} exists: this replica's state diverged from the majority's. Keep the directory for analysis, move it away and \
         start with an empty one: the server joins anew and catches up",
        path.display()
    );
    Ok(())
}

/// What the task that compares digests uses.
pub(crate) struct Comparison {
    pub(crate) contact: Arc<Contact>,
    pub(crate) cell: Arc<StateCell>,
    pub(crate) leading: Arc<Leading>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) disk: Arc<dyn Disk>,
}

pub(crate) async fn run(own: Comparison) {
    let mut stop = own.lifecycle.stopping();
    let mut marked = (Instant::now(), 0);
    loop {
        if rt::timeout(LOOK_INTERVAL, rt::until_true(&mut stop)).await.is_ok() {
            return;
        }
        if let Some(why) = divergence(&own.cell.load()) {
            let directory = &own.contact.settings.data_directory;
            if let Err(error) = write_file(&*own.disk, directory, MARKER, why.as_bytes()) {
                tracing::error!(%error, "the {MARKER} marker could not be written");
            }
            own.lifecycle.fail(format!("QUORATE-INVARIANT: DIVERGED: {why}"));
            return;
        }
        let due = marked.0.elapsed() >= MARK_INTERVAL && own.cell.applied() > marked.1;
        if due && let Some(services) = own.leading.services() {
            let last = mark(&own, &services).await.unwrap_or_else(|| own.cell.applied());
            marked = (Instant::now(), last);
        }
    }
}

/// Why this replica must stop, if its digest differs from a verdict.
fn divergence(state: &State) -> Option<String> {
    state.digest_marks().iter().find_map(|mark| {
        let verdict = mark.verdict?;
        (verdict != mark.digest).then(|| {
            format!(
                "digest before index {} is {}, the majority has {verdict}",
                mark.index, mark.digest
            )
        })
    })
}

/// Commits a mark, gathers reports and commits the verdict; answers with the index after it.
async fn mark(own: &Comparison, services: &LeaderServices) -> Option<Index> {
    let written = services.propose(Command::from(MarkDigest), None, ENTRY_TIMEOUT).await.ok()?;
    let mark = written.index;
    let digest = gather(own, mark).await?;
    let verdict = Command::from(DigestVerdict { mark, digest });
    Some(services.propose(verdict, None, ENTRY_TIMEOUT).await.ok()?.index)
}

async fn gather(own: &Comparison, mark: Index) -> Option<Digest> {
    let metrics = own.contact.raft.metrics().borrow_watched().clone();
    let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
    let deadline = Instant::now() + GATHER_TIMEOUT;
    let mut reports: BTreeMap<u64, Digest> = BTreeMap::new();
    loop {
        for (id, member) in metrics.membership_config.nodes() {
            if !voters.contains(id) || reports.contains_key(id) {
                continue;
            }
            let bytes = if *id == own.contact.id {
                digest_at(&own.cell, mark)
            } else {
                let reply = own.contact.probe(&member.rpc_address, mark, PROBE_TIMEOUT).await;
                reply.map(|reply| reply.digest).unwrap_or_default()
            };
            if let Ok(bytes) = <[u8; 16]>::try_from(&*bytes) {
                reports.insert(*id, Digest(u128::from_le_bytes(bytes)));
            }
        }
        if let Some(digest) = majority(&reports, voters.len()) {
            return Some(digest);
        }
        if Instant::now() >= deadline {
            tracing::warn!(mark, reports = reports.len(), "no majority reported its digest");
            return None;
        }
        rt::sleep(Duration::from_millis(200)).await;
    }
}

/// The digest that more than half of the voters report.
fn majority(reports: &BTreeMap<u64, Digest>, voters: usize) -> Option<Digest> {
    let mut counts: BTreeMap<Digest, usize> = BTreeMap::new();
    for digest in reports.values() {
        *counts.entry(*digest).or_default() += 1;
    }
    counts.into_iter().find(|(_, count)| count * 2 > voters).map(|(digest, _)| digest)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use fsm::{Proposal, table::ChangeSet};

    use super::*;
    use ground::disk::RealDisk;

    fn commit(state: &mut State, command: Command) -> Index {
        let proposal = Proposal { at: 1, epoch: None, request: None, command };
        let index = state.index() + 1;
        state.apply(index, 1, &proposal, &mut ChangeSet::default()).index
    }

    /// P5: a replica whose rows differ from the majority's finds out by the verdict; the others go
    /// on.
    #[test]
    fn a_replica_that_differs_from_the_verdict_is_told() {
        let mut replicas: Vec<State> =
            (0..3).map(|_| State::genesis(&mut ChangeSet::default())).collect();
        let namespace = fsm::settings::Namespace { name: "stray".into(), ..Default::default() };
        fsm::testing::put(&mut replicas[2], &namespace);
        let mut reports = BTreeMap::new();
        let mut mark = 0;
        for (number, state) in (0..).zip(&mut replicas) {
            mark = commit(state, Command::from(MarkDigest));
            assert_eq!(divergence(state), None, "there is no verdict yet");
            reports.insert(number, state.digest_marks().get(&mark).unwrap().digest);
        }
        let digest = majority(&reports, 3).unwrap();
        let told: Vec<bool> = replicas
            .iter_mut()
            .map(|state| {
                commit(state, Command::from(DigestVerdict { mark, digest }));
                divergence(state).is_some()
            })
            .collect();
        assert_eq!(told, [false, false, true]);
    }

    #[test]
    fn there_is_no_verdict_without_a_majority_of_all_voters() {
        let one = BTreeMap::from([(1, Digest(7))]);
        assert_eq!(majority(&one, 3), None);
        let split = BTreeMap::from([(1, Digest(7)), (2, Digest(8))]);
        assert_eq!(majority(&split, 3), None);
        let two = BTreeMap::from([(1, Digest(7)), (2, Digest(7)), (3, Digest(8))]);
        assert_eq!(majority(&two, 3), Some(Digest(7)));
        assert_eq!(majority(&two, 5), None);
    }

    #[test]
    fn a_diverged_data_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        refuse_diverged(&RealDisk, directory.path()).unwrap();
        write_file(&RealDisk, directory.path(), MARKER, b"why").unwrap();
        let error = refuse_diverged(&RealDisk, directory.path()).unwrap_err().to_string();
        assert!(error.contains("diverged"), "{error}");
    }
}
