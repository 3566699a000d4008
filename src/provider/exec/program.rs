//! One run of a program: its hello, the calls that wait for a reply, and why it ended.
//!
//! ```text
//!  call ──line──► writer ──stdin──► program ──stdout──► keeper ──reply──► the call that waits
//!                                           ──stderr──► log
//! ```
//! The keeper owns the process. It ends it when the program breaks the protocol, when its standard
//! output is closed, and when the [`Program`] is dropped. Then every call that waits fails with an
//! unknown outcome.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use elastic::call::{Answer, ErrorClass, Operation, ProviderError};
use fsm::Text;
use ground::rt::{self, Instant, JoinHandle, locked, mpsc, oneshot, watch};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    process::{ChildStderr, ChildStdin, ChildStdout},
};

use super::{
    child::OwnChild,
    lines::{self, CALL_BYTES_MAX, LINE_BYTES_MAX, NoLine},
    protocol,
};
use crate::provider::Context;

/// How long a program may take to say hello.
const HELLO_TIME_MAX: Duration = Duration::from_secs(10);
/// Calls that wait for a reply at a time.
const CALLS_MAX: usize = 256;
/// Lines that wait to be written; more calls wait for room.
const LINES_MAX: usize = 16;
/// How long a program that takes no more calls is listened to.
const LAST_WORDS_TIME: Duration = Duration::from_millis(500);
/// Replies that nobody waited for of which the ids are kept.
const STRAYS_MAX: usize = 16;

/// Where a program's standard error goes.
pub(in crate::provider) enum Stderr {
    /// To the log, under the provider's name.
    Log(Arc<str>),
    /// Where that of this process goes.
    Inherit,
}

/// How a program came to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::provider) enum EndKind {
    /// Its hello was wrong or did not come.
    Hello,
    /// It wrote a line that is not of the protocol.
    Line,
    /// By itself, or something killed it.
    Exit,
    /// Nobody needs it any more.
    Asked,
}

/// That a program has ended, and why.
#[derive(Clone, Debug)]
pub(in crate::provider) struct Ended {
    pub(in crate::provider) kind: EndKind,
    pub(in crate::provider) why: Text,
    /// It went on after SIGTERM.
    pub(in crate::provider) was_killed: bool,
    pub(in crate::provider) at: Instant,
    pub(in crate::provider) lived: Duration,
}

impl Ended {
    fn error(&self) -> ProviderError {
        ProviderError::new(ErrorClass::Transient, &format!("the program ended: {}", self.why))
    }
}

#[derive(Clone)]
enum Phase {
    Greeting,
    Ready(Text),
    Ended(Ended),
}

struct Shared {
    phase: watch::Sender<Phase>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    last_id: u64,
    /// Calls that wait, by id. Invariant: empty once `ended` is set.
    waiting: BTreeMap<u64, oneshot::Sender<protocol::Outcome>>,
    ended: Option<Ended>,
    /// Ids of replies that nobody waited for, the first of them.
    strays: Vec<u64>,
    /// What it does beside the protocol.
    habits: BTreeSet<protocol::Habit>,
}

/// A program that was started. Dropping it ends the program.
pub(in crate::provider) struct Program {
    /// Set, or dropped, to end the program. Invariant: the first to be dropped, or the end would
    /// look like a fault.
    stop: watch::Sender<bool>,
    lines: mpsc::Sender<String>,
    shared: Arc<Shared>,
}

impl Program {
    /// Starts a program; its hello is awaited by the calls.
    pub(in crate::provider) fn start(command: &[String], stderr: Stderr) -> io::Result<Self> {
        let pipe = match &stderr {
            Stderr::Log(_) => Stdio::piped(),
            Stderr::Inherit => Stdio::inherit(),
        };
        let mut child = OwnChild::start(command, pipe)?;
        let (stdin, stdout) = (child.child().stdin.take(), child.child().stdout.take());
        let stdin = ChildStdin::from_std(stdin.expect("it was asked to be a pipe"))?;
        let stdout = ChildStdout::from_std(stdout.expect("it was asked to be a pipe"))?;
        if let (Stderr::Log(provider), Some(stderr)) = (stderr, child.child().stderr.take()) {
            rt::spawn(lines::log(provider, ChildStderr::from_std(stderr)?));
        }
        let shared = Shared { phase: watch::channel(Phase::Greeting).0, calls: Mutex::default() };
        let shared = Arc::new(shared);
        let (lines, to_write) = mpsc::channel(LINES_MAX);
        let (stop, stopped) = watch::channel(false);
        let writer = rt::spawn(write(stdin, to_write));
        rt::spawn(keep(child, stdout, writer, Arc::clone(&shared), stopped));
        Ok(Self { stop, lines, shared })
    }

    /// Waits for the program's hello, and answers with its name.
    pub(in crate::provider) async fn greeted(&self) -> Result<Text, Ended> {
        let mut phase = self.shared.phase.subscribe();
        loop {
            match phase.borrow_and_update().clone() {
                Phase::Ready(name) => return Ok(name),
                Phase::Ended(ended) => return Err(ended),
                Phase::Greeting => {}
            }
            phase.changed().await.expect("this program holds its sender");
        }
    }

    /// Makes a call and waits for its reply.
    pub(in crate::provider) async fn call(
        &self,
        operation: &Operation,
        context: &Context,
    ) -> Result<Answer, ProviderError> {
        let began = Instant::now();
        self.greeted().await.map_err(|ended| ended.error())?;
        let (id, reply) = self.shared.expect_reply()?;
        let _forgets = Forgets { shared: &self.shared, id };
        let time_left = context.time_left.saturating_sub(began.elapsed());
        let line = protocol::request(id, operation, &Context { time_left, ..context.clone() });
        if line.len() > CALL_BYTES_MAX {
            let text = format!("the request has more than {CALL_BYTES_MAX} bytes");
            return Err(ProviderError::new(ErrorClass::Fatal, &text));
        }
        // Whatever keeps the line from being sent ends the program, and so the wait for the reply.
        drop(self.lines.send(line).await);
        match reply.await {
            Ok(outcome) => protocol::answer(operation, outcome),
            Err(_) => Err(self.ended().map_or_else(
                || ProviderError::new(ErrorClass::Transient, "the program is gone"),
                |ended| ended.error(),
            )),
        }
    }

    /// That it has ended, once it has.
    pub(in crate::provider) fn ended(&self) -> Option<Ended> {
        locked(&self.shared.calls).ended.clone()
    }

    /// Ids of replies that nobody waited for: none was asked, a second one, or one that came too
    /// late.
    pub(in crate::provider) fn strays(&self) -> Vec<u64> {
        locked(&self.shared.calls).strays.clone()
    }

    /// What it does beside the protocol.
    pub(in crate::provider) fn habits(&self) -> Vec<&'static str> {
        locked(&self.shared.calls).habits.iter().map(|habit| habit.words()).collect()
    }

    /// Ends the program and waits until it has.
    pub(in crate::provider) async fn end(&self) -> Ended {
        self.stop.send_replace(true);
        let mut phase = self.shared.phase.subscribe();
        loop {
            if let Phase::Ended(ended) = phase.borrow_and_update().clone() {
                return ended;
            }
            phase.changed().await.expect("this program holds its sender");
        }
    }
}

impl Shared {
    fn expect_reply(&self) -> Result<(u64, oneshot::Receiver<protocol::Outcome>), ProviderError> {
        let mut calls = locked(&self.calls);
        if let Some(ended) = &calls.ended {
            return Err(ended.error());
        }
        if calls.waiting.len() >= CALLS_MAX {
            let text = format!("{CALLS_MAX} calls wait for a reply of the program");
            return Err(ProviderError::new(ErrorClass::RateLimited, &text));
        }
        calls.last_id += 1;
        let (id, (sender, receiver)) = (calls.last_id, oneshot::channel());
        calls.waiting.insert(id, sender);
        Ok((id, receiver))
    }

    fn take_reply(&self, id: u64, outcome: protocol::Outcome) {
        let mut calls = locked(&self.calls);
        if let Some(waiting) = calls.waiting.remove(&id) {
            // Nobody is left to hear it.
            drop(waiting.send(outcome));
        } else if calls.strays.len() < STRAYS_MAX {
            calls.strays.push(id);
        }
    }

    fn note(&self, habits: impl IntoIterator<Item = protocol::Habit>) {
        locked(&self.calls).habits.extend(habits);
    }

    fn end(&self, ended: Ended) {
        let mut calls = locked(&self.calls);
        calls.ended = Some(ended.clone());
        calls.waiting.clear();
        drop(calls);
        self.phase.send_replace(Phase::Ended(ended));
    }
}

/// Forgets a call when its future is done or dropped.
struct Forgets<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        locked(&self.shared.calls).waiting.remove(&self.id);
    }
}

async fn write(mut stdin: ChildStdin, mut lines: mpsc::Receiver<String>) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        if stdin.write_all(line.as_bytes()).await.is_err() {
            // As a rule the program has exited, and what it wrote last is still to be read.
            rt::sleep(LAST_WORDS_TIME).await;
            return;
        }
    }
}

async fn keep(
    child: OwnChild,
    stdout: ChildStdout,
    mut writer: JoinHandle<()>,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    let began = Instant::now();
    let (kind, why) = rt::select! {
        biased;
        end = read(stdout, &shared) => end,
        () = rt::until_true(&mut stopped) => (EndKind::Asked, "it is not needed any more".to_owned()),
        () = child.exited() => (EndKind::Exit, String::new()),
        _ = &mut writer => (EndKind::Exit, "it has closed its standard input".to_owned()),
    };
    writer.abort();
    let ending = child.end(kind == EndKind::Exit).await;
    let why = match (kind, ending.status) {
        (EndKind::Exit, Some(status)) if why.is_empty() => status.to_string(),
        (EndKind::Exit, Some(status)) => format!("{why} ({status})"),
        _ => why,
    };
    let at = Instant::now();
    let why = elastic::call::clip(&why);
    shared.end(Ended { kind, why, was_killed: ending.was_killed, at, lived: at - began });
}

/// Reads until the program's end or its first fault, and says which.
async fn read(stdout: ChildStdout, shared: &Shared) -> (EndKind, String) {
    let mut reader = BufReader::new(stdout);
    let first = next(&mut reader, CALL_BYTES_MAX, shared);
    let Ok(first) = rt::timeout(HELLO_TIME_MAX, first).await else {
        let text = format!("it said no hello within {} s", HELLO_TIME_MAX.as_secs());
        return (EndKind::Hello, text);
    };
    let hello = first
        .map_err(no_line)
        .and_then(|line| protocol::hello(&line).map_err(|why| (EndKind::Hello, why)));
    match hello {
        Ok(name) => shared.phase.send_replace(Phase::Ready(name)),
        Err(end) => return end,
    };
    loop {
        let line = match next(&mut reader, LINE_BYTES_MAX, shared).await {
            Ok(line) => line,
            Err(none) => return no_line(none),
        };
        match protocol::reply(&line) {
            Ok(protocol::Reply { id, outcome, habits }) => {
                shared.note(habits);
                shared.take_reply(id, outcome);
            }
            Err(why) => return (EndKind::Line, why),
        }
    }
}

/// The next line with something in it, or the lines of one JSON object.
async fn next(
    reader: &mut BufReader<ChildStdout>,
    bytes_max: usize,
    shared: &Shared,
) -> Result<Vec<u8>, NoLine> {
    let is_whole = |line: &[u8]| protocol::reply(line).is_ok();
    let read = lines::next_object(reader, bytes_max, is_whole).await?;
    shared.note(read.after_blank.then_some(protocol::Habit::BlankLine));
    shared.note(read.is_long.then_some(protocol::Habit::SeveralLines));
    Ok(read.bytes)
}

fn no_line(none: NoLine) -> (EndKind, String) {
    match none {
        NoLine::End => (EndKind::Exit, String::new()),
        NoLine::TooLong(max) => {
            (EndKind::Line, format!("a line on its standard output has more than {max} bytes"))
        }
        NoLine::Failed(error) => (EndKind::Exit, format!("its standard output: {error}")),
    }
}
