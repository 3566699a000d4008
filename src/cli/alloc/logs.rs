//! `quorate alloc logs`: bytes of a task's standard output or error, from any server.
//!
//! Must never change the bytes: what the task wrote is printed as it is.

use std::io::Read;

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use crate::cli::context::{Context, Exit, Outcome};
use crate::cli::view::Fields;

/// First guess of the bytes that hold the wanted lines.
const LINE_BYTES: u64 = 160;
/// Most bytes searched for the wanted lines.
const TAIL_BYTES_MAX: u64 = 64 << 20;
/// Read and printed at once.
const CHUNK_BYTES: usize = 16 << 10;
/// Lines of `-tail` without `-n`.
const LINES_DEFAULT: u64 = 10;

pub(super) const EXAMPLES: &str = "Examples:
  quorate alloc logs 5b98a6ea                  all of the only task's standard output
  quorate alloc logs -stderr -task web 5b98    standard error of one task
  quorate alloc logs -f 5b98a6ea               and what is still to come, until Ctrl-C
  quorate alloc logs -tail -n 20 5b98a6ea      the last 20 lines";

/// Flags of `alloc logs`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of Nomad's command")]
pub(crate) struct LogsArgs {
    /// The allocation's id or the beginning of it
    allocation: String,
    /// The task, if not given by -task
    #[arg(conflicts_with = "task")]
    task_name: Option<String>,
    /// The task; needed if the allocation has several
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// Standard error instead of standard output
    #[arg(long)]
    stderr: bool,
    /// Standard output (the default)
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Keep printing what is written
    #[arg(short = 'f', long = "follow")]
    follow: bool,
    /// Only the last lines
    #[arg(long)]
    tail: bool,
    /// How many lines -tail prints
    #[arg(short = 'n', value_name = "N")]
    lines: Option<u64>,
    /// Only the last bytes
    #[arg(short = 'c', value_name = "BYTES", conflicts_with_all = ["tail", "lines"])]
    bytes: Option<u64>,
}

pub(super) fn run(context: &Context, arguments: &LogsArgs) -> Outcome {
    let allocation = super::read(context, &arguments.allocation)?;
    let named = arguments.task.as_deref().or(arguments.task_name.as_deref());
    let logs = Logs {
        context,
        path: format!("/v1/client/fs/logs/{}", allocation.text("ID")),
        task: task(&allocation, named)?,
        kind: if arguments.stderr { "stderr" } else { "stdout" },
    };
    let lines = match (arguments.tail, arguments.lines) {
        (_, Some(lines)) => Some(lines),
        (true, None) => Some(LINES_DEFAULT),
        (false, None) => None,
    };
    let offset = match (arguments.bytes, lines) {
        (Some(bytes), _) => Some(bytes),
        (None, Some(lines)) if arguments.follow => Some(logs.bytes_of_last(lines)?.0),
        (None, Some(lines)) => {
            let (from_end, bytes) = logs.bytes_of_last(lines)?;
            let start = bytes.len() - usize::try_from(from_end).expect("at most the length");
            context.output.bytes(&bytes[start..])?;
            return Ok(Exit::Success);
        }
        (None, None) => None,
    };
    logs.print(offset, arguments.follow)?;
    Ok(Exit::Success)
}

struct Logs<'a> {
    context: &'a Context,
    path: String,
    task: String,
    kind: &'static str,
}

impl Logs<'_> {
    /// Opens the log, `from_end` bytes before its end or at its start.
    fn open(&self, from_end: Option<u64>, follow: bool) -> anyhow::Result<impl Read + use<>> {
        let offset = from_end.unwrap_or(0).to_string();
        let query = [
            ("task", self.task.as_str()),
            ("type", self.kind),
            ("follow", if follow { "true" } else { "false" }),
            ("plain", "true"),
            ("origin", if from_end.is_some() { "end" } else { "start" }),
            ("offset", offset.as_str()),
        ];
        Ok(self.context.client.stream(&self.path, &query)?)
    }

    fn print(&self, from_end: Option<u64>, follow: bool) -> anyhow::Result<()> {
        let mut reader = self.open(from_end, follow)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = reader.read(&mut chunk)?;
            if length == 0 {
                return Ok(());
            }
            self.context.output.bytes(&chunk[..length])?;
        }
    }

    /// How many bytes the last lines have, and bytes of the end of the log that hold them.
    fn bytes_of_last(&self, lines: u64) -> anyhow::Result<(u64, Vec<u8>)> {
        let mut window = lines.saturating_mul(LINE_BYTES).clamp(LINE_BYTES, TAIL_BYTES_MAX);
        loop {
            let mut bytes = Vec::new();
            self.open(Some(window), false)?.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            let whole_log = length < window;
            match last_lines(&bytes, lines) {
                Some(count) => return Ok((count, bytes)),
                None if whole_log || window >= TAIL_BYTES_MAX => return Ok((length, bytes)),
                None => window = window.saturating_mul(4).min(TAIL_BYTES_MAX),
            }
        }
    }
}

/// Bytes from the start of the last `lines` lines to the end; nothing if the text has fewer line breaks than it takes to know.
fn last_lines(text: &[u8], lines: u64) -> Option<u64> {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    if lines == 0 {
        return Some(0);
    }
    let nth = usize::try_from(lines - 1).ok()?;
    let breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let position = breaks.map(|(position, _)| position).nth(nth)?;
    u64::try_from(text.len() - position - 1).ok()
}

fn task(allocation: &Value, named: Option<&str>) -> anyhow::Result<String> {
    let mut tasks: Vec<&str> =
        allocation.entries("TaskStates").into_iter().map(|(task, _)| task).collect();
    if tasks.is_empty() {
        let group = allocation.text("TaskGroup");
        let groups = allocation.get("Job").map(|job| job.items("TaskGroups")).unwrap_or_default();
        let members = groups.iter().filter(|candidate| candidate.text("Name") == group);
        tasks =
            members.flat_map(|group| group.items("Tasks")).map(|task| task.text("Name")).collect();
    }
    let all = tasks.join(", ");
    match (named, tasks.as_slice()) {
        (Some(name), known) if known.contains(&name) || known.is_empty() => Ok(name.to_owned()),
        (Some(name), _) => bail!("the allocation has no task \"{name}\"; its tasks are: {all}"),
        (None, [only]) => Ok((*only).to_owned()),
        (None, []) => bail!("the allocation has not started any task yet"),
        (None, _) => bail!("the allocation has several tasks; choose one with -task: {all}"),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::{last_lines, task};

    #[test]
    fn last_lines_are_counted_from_the_end() {
        assert_eq!(last_lines(b"a\nb\nc\n", 1), Some(2));
        assert_eq!(last_lines(b"a\nb\nc\n", 2), Some(4));
        assert_eq!(last_lines(b"a\nb\nc", 2), Some(3));
        assert_eq!(last_lines(b"a\nb\nc\n", 3), None);
        assert_eq!(last_lines(b"a\n", 0), Some(0));
        assert_eq!(last_lines(b"", 1), None);
    }

    #[test]
    fn the_only_task_needs_no_name() {
        let one = json!({"TaskStates": {"web": {}}});
        let two = json!({"TaskStates": null, "TaskGroup": "g", "Job": {"TaskGroups": [
            {"Name": "g", "Tasks": [{"Name": "web"}, {"Name": "side"}]}]}});
        assert_eq!(task(&one, None).unwrap(), "web");
        assert_eq!(task(&two, Some("side")).unwrap(), "side");
        let error = task(&two, None).unwrap_err().to_string();
        assert!(error.ends_with("choose one with -task: web, side"), "{error}");
        assert!(task(&one, Some("x")).is_err());
    }
}
