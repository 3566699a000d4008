//! Several servers on loopback.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use crate::{Client, Log, Member, Port, wait_for};

/// Longer than a server's own deadline for a request, which is 10 s.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(12);

/// One server of a [`Cluster`].
#[derive(Debug)]
pub struct Server {
    pub member: Member,
    folder: PathBuf,
    http: Port,
    rpc: Port,
}

impl Server {
    fn prepare(folder: PathBuf, name: String) -> io::Result<Self> {
        fs::create_dir(&folder)?;
        let member = Member::new(name, Log::new(folder.join("log.txt")));
        Ok(Self { member, folder, http: Port::reserve()?, rpc: Port::reserve()? })
    }

    /// The server's own folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The address of its HTTP API.
    pub fn http(&self) -> SocketAddr {
        self.http.address()
    }

    /// The address of its gRPC services.
    pub fn rpc(&self) -> SocketAddr {
        self.rpc.address()
    }
}

/// Why a cluster is not ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// Waiting longer would not help.
    #[error("{name} ended by itself: {status}")]
    Ended { name: String, status: ExitStatus },
    /// It runs, and may still become ready.
    #[error("{name} did not answer a read within {timeout:?}")]
    Late { name: String, timeout: Duration },
    /// Nobody started it, or it was killed.
    #[error("{name} is not running")]
    NotStarted { name: String },
    /// It is unknown whether the server runs.
    #[error("cannot wait for {name}")]
    Unknown { name: String, source: io::Error },
}

/// The servers of a cluster, each with ports and a folder of its own.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
}

impl Cluster {
    /// Reserves ports and makes the folders `server-1`, `server-2`, … below `folder`, which exists.
    /// Starts nothing.
    pub fn prepare(folder: &Path, servers: usize) -> io::Result<Self> {
        let prepare = |number| {
            let name = format!("server-{number}");
            Server::prepare(folder.join(&name), name)
        };
        Ok(Self { servers: (1..=servers).map(prepare).collect::<io::Result<_>>()? })
    }

    /// All servers, in order.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The server with this number, to start or to end it.
    pub fn server(&mut self, number: usize) -> &mut Server {
        &mut self.servers[number]
    }

    /// The gRPC addresses, by which servers and agents know the cluster.
    pub fn rpc_addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(Server::rpc).collect()
    }

    /// A server whose process has ended by itself since the last call, with its exit status.
    pub fn ended(&mut self) -> Option<(&Member, ExitStatus)> {
        self.servers.iter_mut().find_map(|server| {
            let status = server.member.poll().ok().flatten()?;
            Some((&server.member, status))
        })
    }

    /// Waits until these servers answer linearizable reads, each for at most `timeout`.
    pub fn await_ready(&mut self, servers: &[usize], timeout: Duration) -> Result<(), NotReady> {
        for number in servers {
            let server = &mut self.servers[*number];
            let client = Client::new(server.http(), QUESTION_TIMEOUT);
            let name = server.member.name().to_owned();
            if !server.member.is_running() {
                return Err(NotReady::NotStarted { name });
            }
            let looked = wait_for(timeout, || match server.member.poll() {
                Ok(None) => client.is_ready().then_some(Ok(None)),
                Ok(Some(status)) => Some(Ok(Some(status))),
                Err(error) => Some(Err(error)),
            });
            match looked {
                Some(Ok(None)) => {}
                Some(Ok(Some(status))) => return Err(NotReady::Ended { name, status }),
                Some(Err(source)) => return Err(NotReady::Unknown { name, source }),
                None => return Err(NotReady::Late { name, timeout }),
            }
        }
        Ok(())
    }

    /// The number of the running server that calls itself the leader, if there is one.
    pub fn leader(&self) -> Option<usize> {
        self.servers.iter().position(|server| {
            let client = Client::new(server.http(), QUESTION_TIMEOUT);
            server.member.is_running() && client.leader() == Some(server.rpc().to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{
        io::{Read, Write},
        net::TcpListener,
        process::Command,
        thread,
    };

    use super::*;
    use crate::Group;

    const PATIENCE: Duration = Duration::from_mins(1);

    fn sleeper() -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec sleep 1000"]);
        command
    }

    /// Answers every request with the leader's address as a JSON string.
    fn answer_for_ever(address: SocketAddr, leader: SocketAddr) {
        let listener = TcpListener::bind(address).unwrap();
        thread::spawn(move || {
            let body = format!("\"{leader}\"");
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length";
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                assert!(socket.read(&mut [0; 4096]).unwrap() > 0);
                write!(socket, "{head}: {}\r\n\r\n{body}", body.len()).unwrap();
            }
        });
    }

    #[test]
    fn a_cluster_is_ready_when_all_answer_and_has_the_leader_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::prepare(folder.path(), 3).unwrap();
        assert!(cluster.servers()[2].folder().ends_with("server-3"));
        let not_started = cluster.await_ready(&[0], PATIENCE).unwrap_err();
        assert_eq!(not_started.to_string(), "server-1 is not running");
        let leader = cluster.servers()[1].rpc();
        for number in 0..3 {
            answer_for_ever(cluster.servers()[number].http(), leader);
            cluster.server(number).member.start(sleeper(), Group::Own).unwrap();
        }
        cluster.await_ready(&[0, 1, 2], PATIENCE).unwrap();
        assert_eq!(cluster.leader(), Some(1));
        cluster.server(1).member.kill().unwrap();
        assert_eq!(cluster.leader(), None, "a server that does not run does not lead");
        assert!(cluster.ended().is_none(), "it was told to end");
    }

    #[test]
    fn a_server_that_ends_by_itself_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::prepare(folder.path(), 1).unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exit 3"]);
        cluster.server(0).member.start(command, Group::Own).unwrap();
        let error = cluster.await_ready(&[0], PATIENCE).unwrap_err();
        assert_eq!(error.to_string(), "server-1 ended by itself: exit status: 3");
        cluster.server(0).member.start(sleeper(), Group::Own).unwrap();
        let error = cluster.await_ready(&[0], Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.to_string(), "server-1 did not answer a read within 50ms");
        cluster.server(0).member.signal(crate::Signal::TERM).unwrap();
        let ended =
            wait_for(PATIENCE, || cluster.ended().map(|(member, _)| member.name().to_owned()));
        assert_eq!(ended.as_deref(), Some("server-1"));
    }
}
