//! Three temporary servers and simulated nodes as child processes. They live as long as their guard: dropping it stops them and removes
//! their folder.

use std::{
    fs::File,
    net::TcpListener,
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;

use super::Progress;

const SERVERS: usize = 3;
const PORTS: Range<u16> = 10_240..20_000;
/// Bytes of a dead server's log that are shown.
const LOG_BYTES_SHOWN: usize = 2_000;

/// A child process that ends with its guard.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // The folder goes with it, so nothing has to be handed over or made durable.
        if self.0.kill().is_ok() {
            drop(self.0.wait());
        }
    }
}

/// A folder that is removed with its guard.
struct Folder(PathBuf);

impl Folder {
    fn create(parent: Option<&Path>, what: &str) -> anyhow::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = parent.join(format!("quorate-bench-{what}-{}", std::process::id()));
        std::fs::create_dir_all(&parent).with_context(|| format!("folder {}", parent.display()))?;
        std::fs::create_dir(&path).with_context(|| format!("folder {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn child(command: &mut Command, log: &Path) -> anyhow::Result<Guarded> {
    use std::os::unix::process::CommandExt;
    let log = File::create(log)?;
    // A group of its own, so that a terminal's Ctrl-C reaches only the owner, which ends it.
    let child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()?;
    Ok(Guarded(child))
}

/// Three servers of their own.
pub(super) struct TemporaryServers {
    // Dropped in this order: processes, then their folder.
    children: Vec<(Guarded, PathBuf)>,
    folder: Folder,
    rpc_addresses: Vec<String>,
    http_addresses: Vec<String>,
}

impl TemporaryServers {
    pub(super) fn start(parent: Option<&Path>, progress: Progress<'_>) -> anyhow::Result<Self> {
        let folder = Folder::create(parent, "servers")?;
        let mut rpc_addresses = free_addresses(2 * SERVERS)?;
        let http_addresses = rpc_addresses.split_off(SERVERS);
        let mut servers = Self { children: Vec::new(), folder, rpc_addresses, http_addresses };
        for number in 0..SERVERS {
            let (child, log) = servers.spawn(number)?;
            let http = &servers.http_addresses[number];
            progress(&format!("server-{}: process {}, http://{http}", number + 1, child.0.id()));
            servers.children.push((child, log));
        }
        Ok(servers)
    }

    fn spawn(&self, number: usize) -> anyhow::Result<(Guarded, PathBuf)> {
        let name = format!("server-{}", number + 1);
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["server", "--name", &name])
            .args(["--rpc", &self.rpc_addresses[number], "--http", &self.http_addresses[number]])
            .args(["--bootstrap-expect", &self.rpc_addresses.join(",")])
            .arg("--data-dir")
            .arg(self.folder.0.join(&name));
        let log = self.folder.0.join(format!("{name}.log"));
        Ok((child(&mut command, &log)?, log))
    }

    /// Kills a server as `kill -9` does; returns when it is dead.
    pub(super) fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        let process = &mut self.children[number].0.0;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Starts a killed server again.
    pub(super) fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        self.children[number] = self.spawn(number)?;
        Ok(())
    }

    /// What the log of a server says that has ended by itself.
    pub(super) fn death(&mut self) -> Option<String> {
        self.children.iter_mut().find_map(|(child, log)| {
            let status = child.0.try_wait().ok().flatten()?;
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let tail = text.get(text.len().saturating_sub(LOG_BYTES_SHOWN)..).unwrap_or(&text);
            Some(format!("a server ended by itself ({status}): {}", tail.trim()))
        })
    }

    pub(super) fn rpc_addresses(&self) -> &Vec<String> {
        &self.rpc_addresses
    }
}

/// Ports that were free a moment ago, below those that the kernel gives to outgoing connections: nobody takes one by chance.
fn free_addresses(count: usize) -> anyhow::Result<Vec<String>> {
    let span = PORTS.end - PORTS.start;
    let first = u16::try_from(crate::rt::random_u64() % u64::from(span)).unwrap_or(0);
    let candidates = (0..span).map(|step| PORTS.start + (first + step) % span);
    let free: Vec<TcpListener> = candidates
        .filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok())
        .take(count)
        .collect();
    anyhow::ensure!(free.len() == count, "there are not {count} free ports in {PORTS:?}");
    let addresses = free.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    addresses.collect()
}

/// Simulated nodes in one child process.
pub(super) struct SimulatedNodes {
    _child: Guarded,
    _folder: Folder,
}

impl SimulatedNodes {
    pub(super) fn start(
        count: u32,
        servers: &[String],
        progress: Progress<'_>,
    ) -> anyhow::Result<Self> {
        let folder = Folder::create(None, "nodes")?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["agent", "--name", &format!("bench-{}", std::process::id())])
            .args(["--servers", &servers.join(",")])
            .args(["--simulate", &count.to_string()])
            .arg("--data-dir")
            .arg(folder.0.join("state"))
            .env("QUORATE__HTTP__ADDRESS", "127.0.0.1:0")
            .env("QUORATE__DRIVERS__MOCK", "true");
        let child = child(&mut command, &folder.0.join("agent.log"))?;
        progress(&format!("{count} simulated nodes: process {}", child.0.id()));
        Ok(Self { _child: child, _folder: folder })
    }
}
