//! `--tcpdump`: what servers and clients of a run say to each other, kept as packets for people and other programs to read. Nothing here judges them.
//!
//! One tcpdump per network namespace, or one for all on the loopback interface; they run until the servers are down.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::{cluster::Cluster, guard::Guard};

/// How long tcpdump may take to write what it has.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// Whether there is a tcpdump here that may look at the loopback interface; if not, why.
pub(crate) fn can() -> Result<()> {
    let mut child = tcpdump(None, Path::new("/dev/null"), &[1])?;
    end(&mut child)
}

/// The captures of a run.
pub(crate) struct Capture {
    children: Vec<Child>,
    /// Kills them if the harness dies.
    guard: Guard,
}

impl Capture {
    /// Starts to keep the packets of these servers.
    pub(crate) fn start(directory: &Path, cluster: &Cluster, guard: Guard) -> Result<Self> {
        let mut capture = Self { children: Vec::new(), guard };
        let mut all = Vec::new();
        for (server, endpoint) in cluster.endpoints().iter().enumerate() {
            let ports = [endpoint.http.port(), endpoint.rpc.port()];
            match cluster.namespace(server) {
                Some(namespace) => {
                    let path = directory.join(format!("{}.pcap", endpoint.name));
                    capture.add(tcpdump(Some(namespace), &path, &ports)?)?;
                }
                None => all.extend(ports),
            }
        }
        if !all.is_empty() {
            capture.add(tcpdump(None, &directory.join("lo.pcap"), &all)?)?;
        }
        Ok(capture)
    }

    fn add(&mut self, child: Child) -> Result<()> {
        let pid = child.id();
        self.children.push(child);
        self.guard.watch(pid)
    }

    /// Ends them; what they have is written then.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.children.iter_mut().try_for_each(end)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        for child in &mut self.children {
            // They have ended unless the harness failed.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Starts one, and waits until it listens.
fn tcpdump(namespace: Option<&str>, path: &Path, ports: &[u16]) -> Result<Child> {
    let mut command = match namespace {
        Some(namespace) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/run/netns/{namespace}")).arg("tcpdump");
            command
        }
        None => Command::new("tcpdump"),
    };
    // As root it would become somebody who may not write here.
    if geteuid().is_root() {
        command.args(["-Z", "root"]);
    }
    let interface = if namespace.is_some() { "any" } else { "lo" };
    let ports: Vec<String> = ports.iter().map(|port| format!("port {port}")).collect();
    command
        .args(["-U", "-i", interface, "-w"])
        .arg(path)
        .arg(format!("tcp and ({})", ports.join(" or ")));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start tcpdump: install it, or leave --tcpdump out")?;
    let errors = BufReader::new(child.stderr.take().context("its errors are piped")?);
    let mut said = Vec::new();
    let mut lines = errors.lines();
    for line in lines.by_ref() {
        let line = line.context("cannot read what tcpdump says")?;
        if line.contains("listening on") {
            // It counts packets at its end.
            thread::spawn(move || lines.for_each(drop));
            return Ok(child);
        }
        said.push(line);
    }
    child.wait().context("cannot wait for tcpdump")?;
    bail!("tcpdump does not capture: {}", said.join("; "))
}

fn end(child: &mut Child) -> Result<()> {
    let pid = Pid::from_child(child);
    // Fails only if it has ended by itself, which is seen below.
    kill_process(pid, Signal::INT).ok();
    let late = Instant::now() + STOP_TIMEOUT;
    loop {
        match child.try_wait().context("cannot wait for tcpdump")? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("tcpdump ended with {status}"),
            None if Instant::now() >= late => {
                child.kill().context("cannot kill tcpdump")?;
                child.wait().context("cannot wait for tcpdump")?;
                bail!("tcpdump did not end within {STOP_TIMEOUT:?} of SIGINT");
            }
            None => thread::sleep(POLL),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn packets_of_a_port_are_kept() {
        if let Err(why) = can() {
            eprintln!("skipped: {why:#}");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lo.pcap");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut child = tcpdump(None, &path, &[address.port()]).unwrap();
        TcpStream::connect(address).unwrap().write_all(b"words on a wire").unwrap();
        let holds =
            || String::from_utf8_lossy(&std::fs::read(&path).unwrap()).contains("words on a wire");
        let late = Instant::now() + Duration::from_mins(1);
        while !holds() && Instant::now() < late {
            thread::sleep(POLL);
        }
        end(&mut child).unwrap();
        assert!(holds());
    }
}
