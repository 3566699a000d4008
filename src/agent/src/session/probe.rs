//! Runs the readiness command, without a shell and in a process group of its own. The group is
//! killed at the timeout, and when the check is dropped.

use std::{process::Stdio, time::Duration};

use fsm::node::Readiness;
use futures_util::future::BoxFuture;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    time::timeout,
};

use crate::session::readiness::{Checked, ReadinessProbe, ReadinessSettings};

/// Exit code of a failure that only a person can repair.
const FATAL: i32 = 99;
/// How many bytes of the output are kept to find its first line. The rest is read and dropped.
const OUTPUT_BYTES_MAX: usize = 4_096;
/// How long to wait for the output after the command has ended. A process that the command left
/// behind may keep it open.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);

/// A command whose exit code says whether the machine is ready.
#[derive(Debug)]
pub(crate) struct CommandProbe {
    command: Vec<String>,
    timeout: Duration,
}

impl CommandProbe {
    pub(crate) fn new(settings: &ReadinessSettings) -> Self {
        Self { command: settings.command.clone(), timeout: settings.timeout }
    }

    async fn run(&self) -> Checked {
        let retry = |reason: &str| Checked::new(Readiness::Retry, reason);
        let Some((program, arguments)) = self.command.split_first() else {
            return retry("readiness.command is empty");
        };
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return retry(&format!("cannot run `{program}`: {error}")),
        };
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let _group = GroupGuard(group);
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let mut output = std::pin::pin!(async { tokio::join!(head_of(out), head_of(err)) });
        let mut heads = None;
        let ended = timeout(self.timeout, async {
            tokio::select! {
                status = child.wait() => status,
                read = &mut output => {
                    heads = Some(read);
                    child.wait().await
                }
            }
        });
        let status = match ended.await {
            Err(_) => return retry(&format!("timed out after {} ms", self.timeout.as_millis())),
            Ok(Err(error)) => return retry(&format!("cannot wait for `{program}`: {error}")),
            Ok(Ok(status)) => status,
        };
        let (out, err) = match heads {
            Some(heads) => heads,
            None => timeout(OUTPUT_TIMEOUT, output).await.unwrap_or_default(),
        };
        let readiness = match status.code() {
            Some(0) => Readiness::Ok,
            Some(FATAL) => Readiness::Fatal,
            Some(_) | None => Readiness::Retry,
        };
        let texts = [out, err].map(|head| String::from_utf8_lossy(&head).into_owned());
        let said = texts.iter().map(|text| Checked::new(readiness, text));
        let said = said.into_iter().find(|checked| !checked.reason.is_empty());
        said.unwrap_or_else(|| match readiness {
            Readiness::Ok => Checked::new(readiness, ""),
            Readiness::Retry | Readiness::Fatal => Checked::new(readiness, &status.to_string()),
        })
    }
}

impl ReadinessProbe for CommandProbe {
    fn check(&self) -> BoxFuture<'_, Checked> {
        Box::pin(self.run())
    }
}

/// Returns the beginning of an output. Reads it to its end, so that the command does not block on a
/// full pipe.
async fn head_of(output: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let Some(mut output) = output else { return Vec::new() };
    let mut head = Vec::new();
    let mut buffer = vec![0; OUTPUT_BYTES_MAX];
    while let Ok(read @ 1..) = output.read(&mut buffer).await {
        let room = OUTPUT_BYTES_MAX.saturating_sub(head.len());
        head.extend_from_slice(&buffer[..read.min(room)]);
    }
    head
}

/// Kills a process group when dropped.
struct GroupGuard(Option<Pid>);

impl Drop for GroupGuard {
    fn drop(&mut self) {
        if let Some(group) = self.0
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            tracing::trace!(%error, "the readiness command's group has ended");
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::session::readiness::AfterTask;

    fn probe(script: &str, timeout_ms: u64) -> CommandProbe {
        CommandProbe::new(&ReadinessSettings {
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_millis(timeout_ms),
            after_task: AfterTask::Failed,
        })
    }

    #[tokio::test]
    async fn exit_codes_and_the_first_line_are_the_result() {
        for (script, readiness, reason) in [
            ("exit 0", Readiness::Ok, ""),
            ("echo fine; exit 0", Readiness::Ok, "fine"),
            ("echo; echo no disk; echo more; exit 3", Readiness::Retry, "no disk"),
            ("echo bad >&2; exit 1", Readiness::Retry, "bad"),
            ("exit 4", Readiness::Retry, "exit status: 4"),
            ("echo memory; exit 99", Readiness::Fatal, "memory"),
            ("kill -9 $$", Readiness::Retry, "signal: 9 (SIGKILL)"),
            ("echo first; head -c 1000000 /dev/zero; exit 0", Readiness::Ok, "first"),
            ("sleep 600 & echo left; exit 0", Readiness::Ok, ""),
        ] {
            let found = probe(script, 20_000).check().await;
            assert_eq!(found.readiness, readiness, "{script}");
            // The output of what was left behind may be cut off.
            if !script.starts_with("sleep") {
                assert_eq!(found.reason, reason, "{script}");
            }
        }
        let mut missing = probe("", 1_000);
        missing.command = vec!["/nonexistent/check".to_owned()];
        let found = missing.check().await;
        assert_eq!(found.readiness, Readiness::Retry);
        assert!(found.reason.starts_with("cannot run `/nonexistent/check`: "), "{found:?}");
    }

    /// At the timeout the whole process group is killed, not only the command.
    #[tokio::test]
    async fn a_timeout_kills_the_group() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let found = probe(&script, 1_500).check().await;
        assert_eq!(found, Checked::new(Readiness::Retry, "timed out after 1500 ms"));
        let pid = fs::read_to_string(&file).unwrap();
        let stat = Path::new("/proc").join(pid.trim()).join("stat");
        let is_gone = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        timeout(Duration::from_mins(1), async {
            while !is_gone() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }
}
