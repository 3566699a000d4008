//! A data directory that is older than what its server has acknowledged ([ADR
//! 0023](../../docs/adr/0023-peers-remember-promises.md)).
//!
//! ```text
//!  a server that starts asks all that it knows what they have heard of it
//!    one has heard more than is in the directory  ──► the id is retired: marker RETIRED, and then
//!                                                     where configured: the directory is emptied
//!                                                       into retired-N, and joins anew under another id
//!                                                     else: the server ends, and says what to do
//!    with itself a majority has answered          ──► it takes part in Raft
//!    else                                         ──► it asks again, and says for whom it waits
//! ```
//! Answers need nothing but memory, so that servers that start together answer each other.
//! Invariant: before this server takes part, its Raft takes no entry, grants no vote and does not
//! stand; without a leader it serves no read either.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::Context;
use futures_util::future;
use ground::{disk::Disk, server_name::ServerName};
use raft::{Membership, ServerId, WatchReceiver, promises::Promise, storage::shadow::write_file};

use crate::member::{census::PROBE_TIMEOUT, contact::Contact, identity::Cluster};

const MARKER: &str = "RETIRED";
/// What a server keeps in its data directory, the identity first: without it nothing of the rest is
/// believed.
const KEPT: [&str; 4] = ["server.json", "log", "state", "snapshots"];
/// Directories that were retired before, in one data directory.
const RETIRED_MAX: u64 = 10_000;

/// What the answers mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// With this server a majority has answered, and nobody knows more of it than it does.
    CaughtUp,
    /// The server at this address has heard this.
    Behind { witness: String, promised: Promise },
    /// These have not answered.
    Waiting(Vec<String>),
}

/// Voters of a configuration, by address; `None` is this server.
type Voters = BTreeSet<Option<String>>;

/// What those that answered, by address, mean for a server whose directory held `found`.
fn judge(
    found: Promise,
    configurations: &[Voters],
    answers: &BTreeMap<String, Promise>,
) -> Verdict {
    let most = answers.iter().max_by_key(|(_, promised)| **promised);
    if let Some((witness, promised)) = most.filter(|(_, promised)| **promised > found) {
        return Verdict::Behind { witness: witness.clone(), promised: *promised };
    }
    let answered = |voter: &&Option<String>| {
        voter.as_ref().is_none_or(|address| answers.contains_key(address))
    };
    let is_majority = |voters: &Voters| 2 * voters.iter().filter(answered).count() > voters.len();
    if configurations.iter().all(is_majority) {
        return Verdict::CaughtUp;
    }
    let missing = configurations.iter().flatten().filter(|voter| !answered(voter));
    let missing: BTreeSet<String> = missing.flatten().cloned().collect();
    Verdict::Waiting(missing.into_iter().collect())
}

/// The voters of each configuration that holds. A server whose log is empty goes by the addresses
/// that it is configured with.
fn voters(membership: &Membership, own: ServerId, configured: &BTreeSet<String>) -> Vec<Voters> {
    let address = |id: &ServerId| {
        let member = membership.get_node(id).filter(|_| *id != own);
        member.map(|member| member.rpc_address.clone())
    };
    let joint = membership.get_joint_config();
    if joint.iter().all(BTreeSet::is_empty) {
        return vec![configured.iter().cloned().map(Some).chain([None]).collect()];
    }
    joint.iter().map(|ids| ids.iter().map(address).collect()).collect()
}

/// Asks all once what they have heard of this server.
pub(crate) async fn ask(contact: &Contact, cluster: &Cluster) -> Verdict {
    let metrics = contact.raft.metrics().borrow_watched().clone();
    let membership = metrics.membership_config.membership();
    let settings = &contact.settings;
    let own = &settings.rpc_address;
    let configured = settings.bootstrap_expect.iter().chain(&settings.join);
    let configured: BTreeSet<String> = configured.filter(|one| *one != own).cloned().collect();
    let members = membership.nodes().filter(|(id, _)| **id != contact.id);
    let members = members.map(|(_, member)| member.rpc_address.clone());
    let asked: BTreeSet<String> = configured.iter().cloned().chain(members).collect();
    let is_empty = membership.nodes().next().is_none();
    let answers = asked.into_iter().filter(|address| address != own).map(|address| async move {
        let reply = contact.probe(&address, 0, PROBE_TIMEOUT).await.ok()?;
        let is_peer = if reply.initialised {
            cluster.get().is_none_or(|own| *own == *reply.cluster_id)
        } else {
            // A server without a log has heard nothing of anybody; while this one has none either,
            // that is an answer.
            is_empty
        };
        let promised = reply.promised.and_then(Promise::from_pb).unwrap_or_default();
        (is_peer && reply.node_id != contact.id).then_some((address, promised))
    });
    let answers = future::join_all(answers).await.into_iter().flatten().collect();
    judge(contact.promises.found, &voters(membership, contact.id, &configured), &answers)
}

/// Retires this server's id, durably. Returns why.
pub(crate) fn retire(
    contact: &Contact,
    disk: &dyn Disk,
    witness: &str,
    promised: Promise,
) -> anyhow::Result<String> {
    let directory = &contact.settings.data_directory;
    let why = format!(
        "the data directory {} is older than what server {} has acknowledged with it: it holds {}, and the server at {witness} has heard {promised} of it. \
         An older copy was put back, or the disk has lost what it had synced. The id is retired: with what it has forgotten its vote could lose what was acknowledged",
        directory.display(),
        ServerName(contact.id),
        contact.promises.found,
    );
    write_file(disk, directory, MARKER, why.as_bytes())
        .with_context(|| format!("the marker {MARKER} could not be written. {why}"))?;
    Ok(why)
}

/// What to do where a retired server does not join anew by itself.
pub(crate) fn advice(directory: &Path) -> String {
    format!(
        "If a majority of the other servers is well, move {} away and start again, or set cluster.rejoin_after_rollback: this server then joins \
         anew under another id",
        directory.display()
    )
}

/// Empties the data directory of a retired server into a directory in it, if it may join anew; else
/// refuses to start. Returns how many were retired here so far.
pub(crate) fn settle(disk: &dyn Disk, directory: &Path, may_rejoin: bool) -> anyhow::Result<u64> {
    // The marker moves last: a place without it is one that was not filled to its end.
    let mut retired = 0;
    let is_full = |number: u64| disk.exists(&place(directory, number + 1).join(MARKER));
    while retired < RETIRED_MAX && is_full(retired)? {
        retired += 1;
    }
    let marker = directory.join(MARKER);
    if !disk.exists(&marker)? {
        return Ok(retired);
    }
    let why = String::from_utf8_lossy(&disk.read(&marker)?).into_owned();
    anyhow::ensure!(may_rejoin, "{why}. {}", advice(directory));
    let place = place(directory, retired + 1);
    let moved = || -> std::io::Result<()> {
        disk.create_dir_all(&place)?;
        disk.sync_dir(directory)?;
        for name in KEPT.into_iter().chain([MARKER]) {
            let (from, to) = (directory.join(name), place.join(name));
            if disk.exists(&from)? {
                // Everything else is in its place before the marker goes.
                if name == MARKER {
                    disk.sync_dir(&place)?;
                    disk.sync_dir(directory)?;
                }
                disk.rename(&from, &to)?;
            }
        }
        disk.sync_dir(&place)?;
        disk.sync_dir(directory)
    };
    moved().with_context(|| {
        format!("{} cannot be emptied into {}", directory.display(), place.display())
    })?;
    tracing::warn!(
        kept_in = %place.display(),
        "this server joins anew under another id: {why}"
    );
    Ok(retired + 1)
}

fn place(directory: &Path, number: u64) -> std::path::PathBuf {
    directory.join(format!("retired-{number}"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ground::disk::fault::FaultDisk;
    use raft::Member;

    fn three(own: ServerId) -> Vec<Voters> {
        let member =
            |address: &str| Member { rpc_address: address.to_owned(), ..Member::default() };
        let nodes: BTreeMap<ServerId, Member> =
            [(1, member("a")), (2, member("b")), (3, member("c")), (4, member("a"))].into();
        let membership = Membership::new(vec![BTreeSet::from([1, 2, 3])], nodes).unwrap();
        voters(&membership, own, &BTreeSet::new())
    }

    fn answers(of: &[(&str, u64)]) -> BTreeMap<String, Promise> {
        of.iter().map(|(who, term)| ((*who).to_owned(), promise(*term))).collect()
    }

    fn promise(vote_term: u64) -> Promise {
        Promise::from_pb(proto::v1::Promise { vote_term, ..Default::default() }).unwrap()
    }

    fn waiting(of: &[&str]) -> Verdict {
        Verdict::Waiting(of.iter().map(|one| (*one).to_owned()).collect())
    }

    #[test]
    fn a_majority_of_those_that_know_no_more_lets_a_server_take_part() {
        let judge = |of: &[(&str, u64)]| judge(promise(5), &three(1), &answers(of));
        assert_eq!(judge(&[]), waiting(&["b", "c"]));
        assert_eq!(judge(&[("b", 5)]), Verdict::CaughtUp, "with itself that is a majority");
        assert_eq!(judge(&[("b", 0)]), Verdict::CaughtUp, "what nobody remembers any more");
        assert_eq!(judge(&[("x", 5)]), waiting(&["b", "c"]), "that is no voter");
        let behind = Verdict::Behind { witness: "c".to_owned(), promised: promise(6) };
        assert_eq!(judge(&[("b", 5), ("c", 6)]), behind);
        assert_eq!(judge(&[("c", 6)]), behind);
    }

    #[test]
    fn everybody_who_remembers_more_is_heard_voter_or_not() {
        let behind = Verdict::Behind { witness: "x".to_owned(), promised: promise(6) };
        assert_eq!(judge(promise(5), &three(1), &answers(&[("x", 6)])), behind);
    }

    #[test]
    fn a_server_that_does_not_vote_needs_a_majority_of_the_others() {
        // At the address of the voter in whose place it comes.
        let judge = |of: &[(&str, u64)]| judge(promise(0), &three(4), &answers(of));
        assert_eq!(judge(&[("b", 0)]), waiting(&["a", "c"]));
        assert_eq!(judge(&[("b", 0), ("c", 0)]), Verdict::CaughtUp);
    }

    #[test]
    fn a_server_alone_asks_nobody_and_one_without_a_log_those_it_is_configured_with() {
        let none = Membership::default();
        let alone = voters(&none, 1, &BTreeSet::new());
        assert_eq!(judge(promise(0), &alone, &BTreeMap::new()), Verdict::CaughtUp);
        let configured = BTreeSet::from(["b".to_owned(), "c".to_owned()]);
        let of_three = voters(&none, 1, &configured);
        assert_eq!(judge(promise(0), &of_three, &BTreeMap::new()), waiting(&["b", "c"]));
        assert_eq!(judge(promise(0), &of_three, &answers(&[("b", 0)])), Verdict::CaughtUp);
    }

    #[test]
    fn both_configurations_of_a_change_have_to_answer() {
        let one =
            |of: &[&str]| of.iter().map(|who| Some((*who).to_owned())).chain([None]).collect();
        let joint = [one(&["b", "c"]), one(&["d", "e"])];
        let judge = |of: &[(&str, u64)]| judge(promise(1), &joint, &answers(of));
        assert_eq!(judge(&[("b", 1), ("c", 1)]), waiting(&["d", "e"]));
        assert_eq!(judge(&[("b", 1), ("e", 1)]), Verdict::CaughtUp);
    }

    fn leave(disk: &FaultDisk, directory: &Path) {
        disk.create_dir_all(&directory.join("log")).unwrap();
        write_file(disk, &directory.join("log"), "1.wal", b"entries").unwrap();
        write_file(disk, directory, "server.json", b"id").unwrap();
        write_file(disk, directory, "lock", b"1").unwrap();
        write_file(disk, directory, MARKER, b"it is older").unwrap();
    }

    #[test]
    fn a_retired_directory_is_refused_or_emptied_and_nothing_is_deleted() {
        let (disk, directory) = (FaultDisk::new(1), Path::new("/data"));
        leave(&disk, directory);
        let refused = settle(&disk, directory, false).unwrap_err().to_string();
        assert!(refused.starts_with("it is older. If a majority"), "{refused}");
        assert!(refused.contains("cluster.rejoin_after_rollback"), "{refused}");
        for number in 1..=2 {
            assert_eq!(settle(&disk, directory, true).unwrap(), number);
            assert_eq!(settle(&disk, directory, true).unwrap(), number, "it is done once");
            let place = place(directory, number);
            assert_eq!(disk.read(&place.join("log/1.wal")).unwrap(), b"entries");
            assert_eq!(disk.read(&place.join("server.json")).unwrap(), b"id");
            assert!(!disk.exists(&directory.join("log")).unwrap());
            assert!(disk.exists(&directory.join("lock")).unwrap(), "it is held");
            leave(&disk, directory);
        }
    }

    /// It is never started half empty, whenever the process or the power ends.
    #[test]
    fn an_end_half_way_is_gone_on_from() {
        for (stop, seed) in (0..20).flat_map(|stop| (0..4).map(move |seed| (stop, seed))) {
            let (disk, directory) = (FaultDisk::new(seed), Path::new("/data"));
            leave(&disk, directory);
            disk.stop_after(stop);
            drop(settle(&disk, directory, true));
            disk.power_cut(seed);
            assert_eq!(settle(&disk, directory, true).unwrap(), 1, "stopped at {stop}");
            let place = place(directory, 1);
            let all = KEPT.iter().filter(|name| disk.exists(&directory.join(name)).unwrap());
            assert_eq!(all.count(), 0, "stopped at {stop}");
            assert!(disk.exists(&place.join("server.json")).unwrap(), "stopped at {stop}");
            assert_eq!(disk.read(&place.join("log/1.wal")).unwrap(), b"entries");
        }
    }
}
