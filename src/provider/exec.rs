//! Machines by a program: any cloud, by a script of its users. The program speaks lines of JSON on its standard input and output;
//! docs/providers.md has every message.
//!
//! ```text
//!  call ─► queue ─► writer ─► stdin ─┐
//!                                    program ─► stderr ─► the server's log
//!  answer ◄─ pending by id ◄─ stdout ┘
//! ```
//! It is started at the first call, and again after a pause when it has ended. What it was asked when it ended has no known outcome.
//! Must never guess: a line that is no answer ends the program, because the lines after it cannot be trusted either.

use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use elastic::call::{
    Answer, Create, Description, Destroyed, ErrorClass, ErrorScope, Listing, Machine, MachineState,
    Operation, ProviderError, TAG_CLUSTER, Tags, clip,
};
use fsm::InstanceId;
use futures_util::{FutureExt, future::BoxFuture};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{Context, Provider, agent_settings};
use crate::rt::Instant;

/// The version of the protocol.
pub const PROTOCOL: u64 = 1;
/// Longest line in either direction, bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// How long a program may take to say hello.
const HELLO_TIME: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A program that lived this long starts again without delay growing.
const STEADY_AFTER: Duration = Duration::from_mins(1);
/// Calls that wait for the program.
const QUEUE_MAX: usize = 256;
/// How long a program that is ended may take before it is killed.
const END_TIME: Duration = Duration::from_secs(2);
/// Lines of its standard error that are logged in a second.
const LOG_LINES_MAX: u32 = 20;

/// The provider of kind `exec`.
pub struct ExecProvider {
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
    /// Taken by the task that runs the program, at the first call.
    inbox: Mutex<Option<mpsc::Receiver<Request>>>,
}

struct Shared {
    name: String,
    command: Vec<String>,
}

struct Request {
    id: u64,
    line: String,
    reply: oneshot::Sender<Result<Value, ProviderError>>,
}

type Pending = BTreeMap<u64, oneshot::Sender<Result<Value, ProviderError>>>;

/// The first line of a program.
#[derive(Deserialize)]
struct Hello {
    quorate_provider: u64,
}

/// A line of a program after that.
#[derive(Deserialize)]
struct Reply {
    id: u64,
    #[serde(default)]
    ok: Option<Value>,
    #[serde(default)]
    error: Option<WireError>,
}

#[derive(Deserialize)]
struct WireError {
    class: String,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    retry_after_ms: Option<u64>,
    #[serde(default)]
    detail: String,
}

/// A machine in an answer.
#[derive(Deserialize, Serialize)]
struct WireMachine {
    provider_id: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unknown(detail: &str) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, detail)
}

impl ExecProvider {
    /// A program with its arguments. It is started at the first call.
    pub fn new(name: &str, command: Vec<String>) -> Self {
        let (requests, inbox) = mpsc::channel(QUEUE_MAX);
        let shared = Arc::new(Shared { name: name.to_owned(), command });
        Self { shared, requests, inbox: Mutex::new(Some(inbox)) }
    }

    async fn ask(&self, operation: Operation, context: Context) -> Result<Answer, ProviderError> {
        if let Some(inbox) = locked(&self.inbox).take() {
            tokio::spawn(keep_running(Arc::clone(&self.shared), inbox));
        }
        let id = crate::rt::random_u64() >> 12;
        let line = format!("{}\n", request(id, &operation, &context));
        if line.len() > LINE_BYTES_MAX {
            return Err(ProviderError::new(
                ErrorClass::Fatal,
                "the request is longer than a line may be",
            ));
        }
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.try_send(Request { id, line, reply });
        if sent.is_err() {
            return Err(unknown("too many calls wait for the program"));
        }
        match timeout(context.time_left, answer).await {
            Ok(Ok(answer)) => read_answer(&operation, &answer?, &context),
            Ok(Err(_)) => Err(unknown("the program ended before it answered")),
            Err(_) => Err(unknown("the program did not answer in time")),
        }
    }
}

impl Provider for ExecProvider {
    fn call(
        &self,
        operation: Operation,
        context: Context,
    ) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        self.ask(operation, context).boxed()
    }
}

/// Runs the program again and again, until nobody asks any more.
async fn keep_running(shared: Arc<Shared>, mut inbox: mpsc::Receiver<Request>) {
    let mut pause = PAUSE_MIN;
    // Nothing is started before somebody asks.
    while let Some(first) = inbox.recv().await {
        let begun = Instant::now();
        let why = run_once(&shared, first, &mut inbox).await;
        let Some(why) = why else { return };
        let program = shared.command.first().map_or("", String::as_str);
        tracing::warn!(provider = shared.name, program, why, "a provider's program has ended");
        if begun.elapsed() >= STEADY_AFTER {
            pause = PAUSE_MIN;
        }
        let until = Instant::now() + pause;
        // Who asks meanwhile is told why, and asks again.
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
            && let Ok(Some(request)) = timeout(left, inbox.recv()).await
        {
            request.reply.send(Err(unknown(&format!("the program has ended: {why}")))).ok();
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Runs the program until it ends or breaks the protocol; why. None: nobody asks any more.
async fn run_once(
    shared: &Shared,
    first: Request,
    inbox: &mut mpsc::Receiver<Request>,
) -> Option<String> {
    let mut pending = Pending::new();
    let started = start(shared).await;
    let (mut child, mut stdin, mut stdout) = match started {
        Ok(started) => started,
        Err(why) => {
            first.reply.send(Err(unknown(&why))).ok();
            return Some(why);
        }
    };
    let mut line = Vec::new();
    let mut why = send(first, &mut stdin, &mut pending).await.err();
    while why.is_none() {
        tokio::select! {
            request = inbox.recv() => match request {
                Some(request) => why = send(request, &mut stdin, &mut pending).await.err(),
                None => break,
            },
            read = read_line(&mut stdout, &mut line) => match read {
                Ok(()) => why = take_reply(&line, &mut pending).err(),
                Err(error) => why = Some(error),
            },
        }
        if why.is_none() {
            // A line is kept until it is whole: reading it may be interrupted by a request.
            if line.last() == Some(&b'\n') {
                line.clear();
            }
        }
    }
    for (_, reply) in std::mem::take(&mut pending) {
        let detail = why.as_deref().unwrap_or("the server stops");
        reply.send(Err(unknown(&format!("the program ended before it answered: {detail}")))).ok();
    }
    drop(stdin);
    end(&mut child).await;
    why
}

async fn start(shared: &Shared) -> Result<(Child, ChildStdin, BufReader<ChildStdout>), String> {
    let (program, arguments) = shared.command.split_first().ok_or("there is no command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{program} does not start: {error}"))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(log_lines(shared.name.clone(), BufReader::new(stderr)));
    }
    let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
        return Err(format!("{program} has no pipes"));
    };
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    let hello = timeout(HELLO_TIME, read_line(&mut stdout, &mut line)).await;
    let refused = match hello {
        Err(_) => format!("{program} did not say hello within {} s", HELLO_TIME.as_secs()),
        Ok(Err(why)) => format!("{program} did not say hello: {why}"),
        Ok(Ok(())) => match serde_json::from_slice::<Hello>(&line) {
            Ok(hello) if hello.quorate_provider == PROTOCOL => return Ok((child, stdin, stdout)),
            Ok(hello) => format!(
                "{program} speaks version {} of the protocol, and this server version {PROTOCOL}",
                hello.quorate_provider
            ),
            Err(_) => format!("{program} did not say hello but: {}", shown(&line)),
        },
    };
    end(&mut child).await;
    Err(refused)
}

async fn send(
    request: Request,
    stdin: &mut ChildStdin,
    pending: &mut Pending,
) -> Result<(), String> {
    pending.insert(request.id, request.reply);
    let written = stdin.write_all(request.line.as_bytes()).await;
    written.map_err(|error| format!("it takes no more requests: {error}"))
}

/// Reads on until the line is whole. What was read of it stays in `line` when this is dropped.
async fn read_line(stdout: &mut BufReader<ChildStdout>, line: &mut Vec<u8>) -> Result<(), String> {
    let left = LINE_BYTES_MAX.saturating_sub(line.len()) as u64;
    let read = stdout.take(left).read_until(b'\n', line).await;
    match read {
        Err(error) => Err(format!("its output cannot be read: {error}")),
        Ok(_) if line.last() == Some(&b'\n') => Ok(()),
        Ok(_) if line.len() >= LINE_BYTES_MAX => {
            Err(format!("it wrote a line of more than {LINE_BYTES_MAX} bytes"))
        }
        Ok(_) => Err("it ended".to_owned()),
    }
}

fn take_reply(line: &[u8], pending: &mut Pending) -> Result<(), String> {
    let reply: Reply = serde_json::from_slice(line)
        .map_err(|error| format!("it wrote what is no answer ({error}): {}", shown(line)))?;
    // Who asked has given up, or it answers twice.
    let Some(waiting) = pending.remove(&reply.id) else { return Ok(()) };
    let answer = match (reply.ok, reply.error) {
        (Some(ok), None) => Ok(Ok(ok)),
        (None, Some(error)) => read_error(error).map(Err),
        (Some(_), Some(_)) | (None, None) => {
            Err(format!("an answer has either ok or error: {}", shown(line)))
        }
    };
    match answer {
        Ok(answer) => {
            waiting.send(answer).ok();
            Ok(())
        }
        Err(why) => {
            // It is told with the others why the program is ended.
            pending.insert(reply.id, waiting);
            Err(why)
        }
    }
}

fn read_error(error: WireError) -> Result<ProviderError, String> {
    let class = ErrorClass::ALL.into_iter().find(|class| class.name() == error.class);
    let class = class.ok_or_else(|| {
        let known: Vec<&str> = ErrorClass::ALL.iter().map(|class| class.name()).collect();
        format!("it named an error class {:?}; there are {}", error.class, known.join(", "))
    })?;
    let scope = match error.scope.as_deref() {
        None | Some("all") => ErrorScope::All,
        Some("quota-group") => ErrorScope::QuotaGroup,
        Some("type") => ErrorScope::Type,
        Some(other) => {
            return Err(format!("it named a scope {other:?}; there are all, quota-group, type"));
        }
    };
    let retry_after_ms = error.retry_after_ms;
    Ok(ProviderError { class, scope, retry_after_ms, detail: clip(&error.detail) })
}

/// The beginning of a line, for people.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    text[..text.floor_char_boundary(120)].to_owned()
}

async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok())
        && let Some(pid) = rustix::process::Pid::from_raw(pid)
    {
        // It is not waited for yet, so that the number is its own.
        rustix::process::kill_process_group(pid, rustix::process::Signal::TERM).ok();
        if timeout(END_TIME, child.wait()).await.is_err() {
            rustix::process::kill_process_group(pid, rustix::process::Signal::KILL).ok();
        }
    }
    child.wait().await.ok();
}

async fn log_lines(name: String, mut stderr: BufReader<tokio::process::ChildStderr>) {
    let (mut second, mut lines) = (Instant::now(), 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut stderr).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line).await;
        if !matches!(read, Ok(1..)) {
            return;
        }
        if second.elapsed() >= Duration::from_secs(1) {
            (second, lines) = (Instant::now(), 0);
        }
        lines += 1;
        if lines <= LOG_LINES_MAX {
            tracing::info!(provider = name, "{}", shown(&line));
        } else {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The line of a request.
fn request(id: u64, operation: &Operation, context: &Context) -> Value {
    let deadline_ms = u64::try_from(context.time_left.as_millis()).unwrap_or(u64::MAX);
    let mut request = json!({
        "id": id, "op": operation.name(), "deadline_ms": deadline_ms,
        "cluster": &*context.cluster,
    });
    let more = match operation {
        Operation::Create(create) => create_fields(create, context),
        Operation::List => json!({}),
        Operation::Destroy { instance, provider_id }
        | Operation::Describe { instance, provider_id } => {
            json!({ "key": instance.to_string(), "provider_id": &**provider_id })
        }
        Operation::SetTags { instance, provider_id, tags } => json!({
            "key": instance.to_string(), "provider_id": &**provider_id,
            "tags": wire_tags(tags, context),
        }),
    };
    if let (Value::Object(request), Value::Object(more)) = (&mut request, more) {
        request.extend(more);
    }
    request
}

fn create_fields(create: &Create, context: &Context) -> Value {
    let kind = &create.kind;
    json!({
        "key": create.key.to_string(),
        "token": InstanceId(create.token).to_string(),
        "pool": &*create.pool,
        "type": {
            "name": &*kind.name, "provider_type": &*kind.provider_type, "image": &*kind.image,
            "cpu": kind.cpu, "memory_mb": kind.memory_mb, "disk_mb": kind.disk_mb,
            "preemptible": kind.preemptible,
        },
        "tags": wire_tags(&create.tags, context),
        "servers": context.servers,
        "agent_config": agent_settings(create, context).text(),
    })
}

fn wire_tags(tags: &Tags, context: &Context) -> BTreeMap<String, String> {
    let tags = tags.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    tags.chain([(TAG_CLUSTER.to_owned(), context.cluster.to_string())]).collect()
}

fn machine(wire: WireMachine) -> Machine {
    let tags = wire.tags.into_iter();
    Machine {
        provider_id: wire.provider_id.into(),
        address: wire.address.into(),
        scope: wire.scope.into(),
        tags: tags.map(|(name, value)| (name.into(), value.into())).collect(),
    }
}

/// The answer in what a program said. One that makes no sense leaves the outcome unknown.
fn read_answer(
    operation: &Operation,
    ok: &Value,
    context: &Context,
) -> Result<Answer, ProviderError> {
    let wrong = |error: serde_json::Error| {
        unknown(&format!("its answer to {} makes no sense: {error}", operation.name()))
    };
    let of = |value: &Value| serde_json::from_value::<WireMachine>(value.clone()).map_err(wrong);
    match operation {
        Operation::Create(_) => {
            let made = of(&ok["machine"])?;
            if made.provider_id.is_empty() {
                return Err(unknown("its answer to create has no provider_id"));
            }
            Ok(Answer::Created(machine(made)))
        }
        Operation::List => {
            let Some(rows) = ok["machines"].as_array() else {
                return Err(unknown("its answer to list has no machines"));
            };
            let machines = rows.iter().map(of).collect::<Result<Vec<_>, _>>()?;
            let scope = ok["scope"].as_str().unwrap_or_default().into();
            let is_ours = |one: &WireMachine| {
                one.tags.get(TAG_CLUSTER).is_none_or(|cluster| **cluster == *context.cluster)
            };
            let machines = machines.into_iter().filter(is_ours).map(machine).collect();
            Ok(Answer::Listed(Listing { scope, machines }))
        }
        Operation::Destroy { .. } => match ok["gone"].as_bool() {
            Some(true) => Ok(Answer::Destroyed(Destroyed::Gone)),
            Some(false) => Ok(Answer::Destroyed(Destroyed::Asked)),
            None => Err(unknown("its answer to destroy has no gone")),
        },
        Operation::SetTags { .. } => Ok(Answer::Tagged),
        Operation::Describe { .. } => {
            let state = match ok["state"].as_str() {
                Some("booting") => MachineState::Booting,
                Some("up") => MachineState::Up,
                Some("broken") => MachineState::Broken,
                Some("gone") => MachineState::Gone,
                _ => {
                    let text = "its answer to describe has no state of booting, up, broken, gone";
                    return Err(unknown(text));
                }
            };
            let text = |name: &str| clip(ok[name].as_str().unwrap_or_default());
            Ok(Answer::Described(Description {
                state,
                address: text("address"),
                words: text("words"),
            }))
        }
    }
}

#[cfg(test)]
mod tests;
