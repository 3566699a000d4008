//! Temporary servers and simulated nodes as child processes. They live as long as their guard:
//! dropping it stops them and removes their folder.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use ground::removal::remove_tree;
use launch::{Group, Log, Member};

use super::Progress;

const SERVERS: usize = 3;
/// Bytes of a dead server's log that are shown.
const LOG_BYTES_SHOWN: u64 = 2_000;

/// A folder that is removed with its guard.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn create(parent: Option<&Path>, what: &str) -> anyhow::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("quorate-bench-{what}-{}", std::process::id()));
        std::fs::create_dir_all(&parent).with_context(|| format!("folder {}", parent.display()))?;
        std::fs::create_dir(&path).with_context(|| format!("folder {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(remove_tree(&self.0));
    }
}

/// Three servers of their own.
pub(super) struct TemporaryServers {
    // Dropped in this order: processes, then their folder.
    cluster: launch::Cluster,
    _folder: Folder,
    rpc_addresses: Vec<String>,
}

impl TemporaryServers {
    pub(super) fn start(parent: Option<&Path>, progress: Progress<'_>) -> anyhow::Result<Self> {
        let folder = Folder::create(parent, "servers")?;
        let cluster = launch::Cluster::prepare(&folder.0, SERVERS)
            .with_context(|| format!("cannot prepare servers in {}", folder.0.display()))?;
        let rpc_addresses = cluster.rpc_addresses().iter().map(ToString::to_string).collect();
        let mut servers = Self { cluster, _folder: folder, rpc_addresses };
        for number in 0..SERVERS {
            let pid = servers.start_one(number)?;
            let http = servers.cluster.servers()[number].http();
            progress(&format!("server-{}: process {pid}, http://{http}", number + 1));
        }
        Ok(servers)
    }

    fn start_one(&mut self, number: usize) -> anyhow::Result<u32> {
        let server = self.cluster.server(number);
        // Flags and not a file, so that variables of the environment set what is not given here.
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["server", "--name", server.member.name()])
            .args(["--rpc", &server.rpc().to_string(), "--http", &server.http().to_string()])
            .args(["--bootstrap-expect", &self.rpc_addresses.join(",")])
            .arg("--data-dir")
            .arg(server.folder().join("data"));
        let member = &mut server.member;
        let started = member.start(command, Group::Own);
        started.with_context(|| format!("cannot start {}", member.name()))
    }

    /// Kills a server as `kill -9` does; returns when it is dead.
    pub(super) fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        let member = &mut self.cluster.server(number).member;
        member.kill().with_context(|| format!("cannot kill {}", member.name()))?;
        Ok(())
    }

    /// Starts a killed server again.
    pub(super) fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        self.start_one(number)?;
        Ok(())
    }

    /// What the log of a server says that has ended by itself.
    pub(super) fn death(&mut self) -> Option<String> {
        let (member, status) = self.cluster.ended()?;
        let log = member.log();
        let tail = log.text_since(log.bytes().saturating_sub(LOG_BYTES_SHOWN)).unwrap_or_default();
        Some(format!("a server ended by itself ({status}): {}", tail.trim()))
    }

    pub(super) fn rpc_addresses(&self) -> &Vec<String> {
        &self.rpc_addresses
    }
}

/// Simulated nodes in one child process.
pub(super) struct SimulatedNodes {
    // Dropped in this order: the process, then its folder.
    _agent: Member,
    _folder: Folder,
}

impl SimulatedNodes {
    pub(super) fn start(
        count: u32,
        servers: &[String],
        progress: Progress<'_>,
    ) -> anyhow::Result<Self> {
        let folder = Folder::create(None, "nodes")?;
        let mut agent = Member::new("the simulated nodes", Log::new(folder.0.join("agent.log")));
        let mut command = Command::new(std::env::current_exe()?);
        // What is set for the servers is not for an agent, which would not know it.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("QUORATE__") {
                command.env_remove(name);
            }
        }
        command
            .args(["agent", "--name", &format!("bench-{}", std::process::id())])
            .args(["--servers", &servers.join(",")])
            .args(["--simulate", &count.to_string()])
            .arg("--data-dir")
            .arg(folder.0.join("state"))
            .env("QUORATE__HTTP__ADDRESS", "127.0.0.1:0")
            .env("QUORATE__DRIVERS__MOCK", "true");
        let pid = agent
            .start(command, Group::Own)
            .with_context(|| format!("cannot start {}", agent.name()))?;
        progress(&format!("{count} simulated nodes: process {pid}"));
        Ok(Self { _agent: agent, _folder: folder })
    }
}
