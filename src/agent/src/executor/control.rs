//! The executor's side of its socket: requests and replies are one JSON object per line.

use std::{io, os::fd::AsFd, os::unix::net::UnixListener as StdListener, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream, unix::OwnedReadHalf},
    select,
    sync::{Semaphore, mpsc, oneshot},
    time::sleep,
};

use crate::task::run::Outcome;

/// Connections served at a time.
const CONNECTIONS_MAX: usize = 32;
/// Pause after a connection that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Longest request, bytes.
pub(super) const REQUEST_BYTES_MAX: u64 = 4096;

/// What the agent asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Answered when the task runs or could not be started.
    Started,
    /// Answered when it has ended.
    Wait,
    /// Sends a signal to the task's process group.
    Signal {
        /// Its number or name.
        signal: String,
    },
    /// Sends a signal and, when the task is not gone after the timeout, SIGKILL to all its
    /// processes.
    Kill {
        /// Its number or name.
        signal: String,
        /// Time until SIGKILL, ms.
        timeout_ms: u64,
    },
}

/// What the executor answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(crate) enum Response {
    /// The task runs.
    Running {
        /// Its process id.
        pid: i32,
    },
    /// It has ended, or was never started.
    Ended {
        /// How.
        outcome: Outcome,
    },
    /// Done.
    Done,
    /// It cannot be done.
    Refused {
        /// Why.
        error: String,
    },
}

/// A request on its way to the supervisor.
pub(super) type Command = (Request, oneshot::Sender<Response>);

/// Serves the socket that the launcher has passed as standard input.
pub(super) async fn serve(commands: mpsc::Sender<Command>) -> io::Result<()> {
    let inherited = StdListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    inherited.set_nonblocking(true)?;
    let listener = UnixListener::from_std(inherited)?;
    let slots = std::sync::Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = std::sync::Arc::clone(&slots).acquire_owned().await.map_err(io::Error::other)?;
        let Ok((stream, _)) = listener.accept().await else {
            // For want of memory or descriptors. Who waits to be served would wait until the task
            // has ended if this were the end.
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let commands = commands.clone();
        tokio::spawn(async move {
            // A client that went away or talks nonsense loses its connection and nothing else.
            drop(converse(stream, commands).await);
            drop(slot);
        });
    }
}

/// Ends when the client has gone: whoever waits for the end of a task may be killed long before,
/// and would keep a slot until then.
async fn hung_up(reader: &mut BufReader<OwnedReadHalf>) {
    if reader.fill_buf().await.is_ok_and(|more| !more.is_empty()) {
        // It asks for more before it has its answer.
        std::future::pending::<()>().await;
    }
}

async fn converse(stream: UnixStream, commands: mpsc::Sender<Command>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        if (&mut reader).take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        let response = match serde_json::from_slice::<Request>(&line) {
            Err(error) => Response::Refused { error: error.to_string() },
            Ok(request) => {
                let (reply, answer) = oneshot::channel();
                commands.send((request, reply)).await.map_err(io::Error::other)?;
                select! {
                    biased;
                    answer = answer => answer.map_err(io::Error::other)?,
                    () = hung_up(&mut reader) => return Ok(()),
                }
            }
        };
        let mut bytes = serde_json::to_vec(&response)?;
        bytes.push(b'\n');
        writer.write_all(&bytes).await?;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_waited_for_a_tasks_end_and_left_is_not_served_any_longer() {
        let (mut agent, executor) = UnixStream::pair().unwrap();
        let (commands, mut asked) = mpsc::channel(1);
        let served = tokio::spawn(converse(executor, commands));
        agent.write_all(b"{\"request\":\"wait\"}\n").await.unwrap();
        let (request, reply) = asked.recv().await.unwrap();
        assert_eq!(request, Request::Wait);
        drop(agent);
        tokio::time::timeout(Duration::from_mins(1), served).await.unwrap().unwrap().unwrap();
        assert!(reply.is_closed(), "the task runs on, and nobody waits for its end");
    }

    #[tokio::test]
    async fn a_client_that_asks_again_before_the_answer_gets_both() {
        let (agent, executor) = UnixStream::pair().unwrap();
        let (commands, mut asked) = mpsc::channel(1);
        let served = tokio::spawn(converse(executor, commands));
        let (reader, mut writer) = agent.into_split();
        let mut answers = BufReader::new(reader).lines();
        writer.write_all(b"{\"request\":\"wait\"}\n").await.unwrap();
        let (_, reply) = asked.recv().await.unwrap();
        writer.write_all(b"{\"request\":\"started\"}\n").await.unwrap();
        reply.send(Response::Done).unwrap();
        assert_eq!(answers.next_line().await.unwrap().unwrap(), r#"{"reply":"done"}"#);
        let (request, reply) = asked.recv().await.unwrap();
        assert_eq!(request, Request::Started);
        reply.send(Response::Running { pid: 7 }).unwrap();
        assert_eq!(answers.next_line().await.unwrap().unwrap(), r#"{"reply":"running","pid":7}"#);
        drop((answers, writer));
        served.await.unwrap().unwrap();
    }
}
