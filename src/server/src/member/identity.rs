//! The identity of a data directory: the file with this server's number and its cluster.
//!
//! It must never take a damaged file, or a directory that has a log and no such file, for a new
//! server. The file also names the generation of the directory, so that a server of another
//! generation stops before it opens anything else.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use anyhow::Context;
use fsm::{
    GENERATION,
    generation::{Stamp, WHAT_TO_DO},
};
use ground::{
    disk::Disk,
    plant::{Plant, is_planted},
    rt,
};
use raft::{ServerId, storage::shadow::write_file};
use serde::{Deserialize, Serialize};

const IDENTITY_FILE: &str = "server.json";

/// The server and the cluster that a data directory belongs to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    /// Random, made with the directory.
    pub(crate) server_id: ServerId,
    /// Set when the server has become part of a cluster.
    #[serde(default)]
    pub(crate) cluster_id: Option<String>,
    /// The generation of everything in the directory.
    generation: u16,
    /// Checksum of the other fields: a flipped digit would make this another server, which must not
    /// go on with this server's log.
    check: String,
}

impl Identity {
    /// An identity with its checksum.
    fn new(server_id: ServerId, cluster_id: Option<String>) -> Self {
        let (generation, check) = (GENERATION, String::new());
        let mut identity = Self { server_id, cluster_id, generation, check };
        identity.check = identity.expected_check();
        identity
    }

    fn expected_check(&self) -> String {
        let cluster = self.cluster_id.as_deref().unwrap_or("");
        let text = format!("{}:{cluster}:{}", self.server_id, self.generation);
        format!("{:08x}", crc32c::crc32c(text.as_bytes()))
    }
}

/// The identity of a data directory; a new one is made for an empty directory, and is durable.
pub(crate) fn load(
    disk: &dyn Disk,
    directory: &Path,
    rpc_address: &str,
) -> anyhow::Result<Identity> {
    let path = directory.join(IDENTITY_FILE);
    if disk.exists(&path)? {
        // A process that was killed just before it synced the directory leaves a name that a power
        // cut takes back.
        disk.sync_dir(directory)?;
        let bytes = disk.read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let damaged = || {
            format!(
                "{} is damaged: restore it; or, if a majority of the other servers is well, move {} away and start \
                 again: this server then joins anew",
                path.display(),
                directory.display()
            )
        };
        let stamp: Stamp = serde_json::from_slice(&bytes).with_context(damaged)?;
        let identity = serde_json::from_slice::<Identity>(&bytes);
        let is_whole = |found: &Identity| found.check == found.expected_check();
        anyhow::ensure!(identity.as_ref().map_or(true, is_whole), damaged());
        // A file of another generation need not have the fields of this one.
        if let Err(other) = stamp.check() {
            anyhow::bail!("data directory {} is {other}: {WHAT_TO_DO}", directory.display());
        }
        return identity.with_context(damaged);
    }
    let others: Vec<String> = disk.list(directory)?;
    anyhow::ensure!(
        !others.iter().any(|name| name == "log" || name == "state"),
        "{} has a log but no {IDENTITY_FILE}: restore that file, or move the directory away and join anew",
        directory.display()
    );
    // 53 bits, so that every JSON reader keeps the number whole.
    let mut server_id = (rt::random_u64() >> 11) | 1;
    if is_planted(Plant::ReusedServerId) {
        server_id = u64::from(crc32c::crc32c(rpc_address.as_bytes())) | 1;
    }
    let identity = Identity::new(server_id, None);
    save(disk, directory, &identity)?;
    Ok(identity)
}

/// Makes an identity durable in place of the one before.
fn save(disk: &dyn Disk, directory: &Path, identity: &Identity) -> anyhow::Result<()> {
    let bytes = serde_json::to_vec_pretty(identity)?;
    write_file(disk, directory, IDENTITY_FILE, &bytes)
        .with_context(|| format!("cannot write {}", directory.join(IDENTITY_FILE).display()))
}

/// The text of a cluster's id.
fn format_cluster_id(id: &[u8; 16]) -> String {
    fsm::NodeId(*id).to_string()
}

/// A cluster's id from its text.
fn parse_cluster_id(text: &str) -> anyhow::Result<[u8; 16]> {
    let id: fsm::NodeId = text.parse().with_context(|| format!("cluster id in {IDENTITY_FILE}"))?;
    Ok(id.0)
}

/// The cluster that a server is part of, once that is known, kept with its number.
pub(crate) struct Cluster {
    server: ServerId,
    known: Arc<OnceLock<[u8; 16]>>,
    disk: Arc<dyn Disk>,
    directory: PathBuf,
}

impl Cluster {
    /// The cluster that the identity of this directory names.
    pub(crate) fn of(
        identity: &Identity,
        disk: Arc<dyn Disk>,
        directory: PathBuf,
    ) -> anyhow::Result<Self> {
        let known = Arc::new(OnceLock::new());
        if let Some(id) = &identity.cluster_id {
            let id = parse_cluster_id(id)?;
            known.get_or_init(|| id);
        }
        Ok(Self { server: identity.server_id, known, disk, directory })
    }

    pub(crate) fn get(&self) -> Option<&[u8; 16]> {
        self.known.get()
    }

    /// For tasks that have to see the cluster as soon as it is known.
    pub(crate) fn shared(&self) -> Arc<OnceLock<[u8; 16]>> {
        Arc::clone(&self.known)
    }

    pub(crate) fn name(&self) -> Option<String> {
        self.known.get().map(format_cluster_id)
    }

    /// Becomes part of this cluster, durably.
    pub(crate) fn adopt(&self, cluster: [u8; 16]) -> anyhow::Result<()> {
        if let Some(known) = self.known.get() {
            anyhow::ensure!(*known == cluster, "this data directory belongs to another cluster");
            return Ok(());
        }
        let identity = Identity::new(self.server, Some(format_cluster_id(&cluster)));
        save(&*self.disk, &self.directory, &identity)?;
        self.known.get_or_init(|| cluster);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ground::{
        disk::{RealDisk, fault::FaultDisk},
        plant::must_catch,
    };

    fn id_of_a_new_directory(seed: u64) -> ServerId {
        let disk = FaultDisk::new(seed);
        let directory = Path::new("/data");
        disk.create_dir_all(directory).unwrap();
        let identity = load(&disk, directory, "10.0.0.1:4647").unwrap();
        let again = load(&disk, directory, "10.0.0.1:4647").unwrap();
        assert_eq!(identity.server_id, again.server_id, "it is kept");
        identity.server_id
    }

    /// Found by the simulation: with a flipped digit in the number the file is still valid JSON,
    /// and this server became another one.
    #[test]
    fn no_flipped_bit_of_the_identity_makes_another_server() {
        let directory = Path::new("/data");
        let disk = FaultDisk::new(1);
        disk.create_dir_all(directory).unwrap();
        let written = Identity::new(69_269_852, Some(format_cluster_id(&[7; 16])));
        save(&disk, directory, &written).unwrap();
        let path = directory.join(IDENTITY_FILE);
        let bytes = disk.read(&path).unwrap();
        for offset in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[offset] ^= 1 << bit;
                disk.replace(&path, &damaged);
                let loaded = load(&disk, directory, "10.0.0.1:4647");
                let is_another = loaded.is_ok_and(|found| {
                    found.server_id != written.server_id || found.cluster_id != written.cluster_id
                });
                assert!(!is_another, "byte {offset}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_directory_of_another_generation_is_refused_and_left_as_it_is() {
        let directory = Path::new("/data");
        let disk = FaultDisk::new(1);
        disk.create_dir_all(directory).unwrap();
        save(&disk, directory, &Identity::new(5, None)).unwrap();
        let path = directory.join(IDENTITY_FILE);
        let next = u32::from(GENERATION) + 1;
        let newer = format!(r#"{{"server_id":5,"generation":{next},"place":"a"}}"#);
        let files: [(u32, &[u8]); 2] =
            [(1, br#"{"server_id":5,"check":"0"}"#), (next, newer.as_bytes())];
        for (generation, file) in files {
            disk.replace(&path, file);
            let text = load(&disk, directory, "10.0.0.1:4647").unwrap_err().to_string();
            let both =
                format!("is of generation {generation}, this binary reads generation {GENERATION}");
            assert_eq!(text, format!("data directory /data {both}: {WHAT_TO_DO}"));
            assert_eq!(disk.read(&path).unwrap(), file);
        }
    }

    /// Found by the simulation: a server joined with a cluster id that a power cut then took back,
    /// and did not start any more.
    #[test]
    fn an_identity_loaded_after_a_kill_is_there_after_a_power_cut() {
        let directory = Path::new("/data");
        for (stop, seed) in (0..8).flat_map(|stop| (0..8).map(move |seed| (stop, seed))) {
            let disk = FaultDisk::new(seed);
            disk.create_dir_all(directory).unwrap();
            let server_id = load(&disk, directory, "10.0.0.1:4647").unwrap().server_id;
            disk.stop_after(stop);
            let cluster = Some(format_cluster_id(&[7; 16]));
            drop(save(&disk, directory, &Identity::new(server_id, cluster)));
            assert_eq!(disk.is_stopped(), stop < 5, "a save has five steps");
            disk.kill();
            let loaded = load(&disk, directory, "10.0.0.1:4647").unwrap();
            disk.power_cut(seed);
            let again = load(&disk, directory, "10.0.0.1:4647").unwrap();
            assert_eq!(again.cluster_id, loaded.cluster_id, "stopped at {stop}, cut {seed}");
        }
    }

    #[test]
    fn an_identity_that_cannot_be_read_or_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(IDENTITY_FILE)).unwrap();
        let unread = load(&RealDisk, directory.path(), "10.0.0.1:4647").unwrap_err();
        let unwritten = save(&RealDisk, directory.path(), &Identity::new(1, None)).unwrap_err();
        for (error, verb) in [(unread, "read"), (unwritten, "write")] {
            let text = error.to_string();
            assert!(text.starts_with(&format!("cannot {verb} ")), "{text}");
            assert!(text.ends_with(IDENTITY_FILE), "{text}");
        }
    }

    /// A server whose number comes back with an empty log would vote as if it had promised nothing.
    fn an_empty_disk_makes_another_server() {
        assert_ne!(id_of_a_new_directory(1), id_of_a_new_directory(2));
    }

    #[test]
    fn a_server_with_an_empty_disk_is_a_new_one() {
        an_empty_disk_makes_another_server();
        must_catch(Plant::ReusedServerId, an_empty_disk_makes_another_server);
    }
}
