//! `raw_exec`: a process on the host without isolation. Each run has an executor process of its
//! own.

use std::{io, sync::Arc};

use futures_util::future::BoxFuture;
use ground::rt::run_blocking;
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::{Driver, Recovered, Room, Run, Running, TaskContext};
use crate::{
    executor::{
        RunSpec,
        client::{Executor, Found},
        process::parse_signal,
    },
    task::run::{Fault, Outcome, StartError},
};

/// How many runs are prepared at a time in this process.
const PREPARED_MAX: usize = 4;
static PREPARED: Semaphore = Semaphore::const_new(PREPARED_MAX);

/// Kill signal if the job names none (Nomad's default).
const KILL_SIGNAL: &str = "SIGINT";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    command: String,
    #[serde(default)]
    args: Vec<Argument>,
    #[serde(default)]
    work_dir: Option<String>,
}

/// An argument. Nomad's drivers accept numbers and truth values as arguments, so a job file may say
/// `["-port", 8080]`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "an argument must be a text, a number, true or false")]
enum Argument {
    Text(String),
    Number(serde_json::Number),
    Flag(bool),
}

impl Argument {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
            Self::Flag(flag) => flag.to_string(),
        }
    }
}

/// The driver.
pub(super) struct RawExec;

impl Driver for RawExec {
    fn start<'a>(&'a self, context: &'a TaskContext) -> BoxFuture<'a, Result<Run, StartError>> {
        Box::pin(async move {
            let executor = executor(context);
            prepare(context, &executor).await?;
            judge(executor.launch(&context.executor_binary).await)?;
            Ok(Arc::new(Process(executor)) as Run)
        })
    }

    fn recover<'a>(
        &'a self,
        context: &'a TaskContext,
        _run_started_at_ms: u64,
    ) -> BoxFuture<'a, Result<Recovered, StartError>> {
        Box::pin(async move {
            let executor = executor(context);
            Ok(match executor.recover().await {
                Found::There => Recovered::Run(Arc::new(Process(executor))),
                Found::Never => Recovered::Never,
                Found::Lost => Recovered::Lost,
            })
        })
    }
}

/// Writes the specification of the run for the executor. That can be many times larger than the
/// job's own text, so only a few are built at a time.
async fn prepare(context: &TaskContext, executor: &Executor) -> Result<(), StartError> {
    // The semaphore is never closed, so this cannot fail.
    let turn = PREPARED.acquire().await;
    let (context, executor) = (context.clone(), executor.clone());
    let prepared = run_blocking(move || {
        let spec = run_spec(&context)?;
        executor.prepare(&spec).map_err(|error| {
            let (message, fault) = (error.to_string(), Fault::of(&error));
            StartError { message, recoverable: fault != Fault::Task, fault }
        })
    });
    let prepared = prepared.await;
    drop(turn);
    prepared
}

fn judge(started: Result<(), Outcome>) -> Result<(), StartError> {
    match started {
        // A run that has already ended did start. [`Running::wait`] reports its end.
        Ok(()) | Err(Outcome::Exited { .. }) => Ok(()),
        Err(Outcome::StartFailed { error, recoverable, fault }) => {
            Err(StartError { message: error, recoverable, fault })
        }
    }
}

/// A process under its executor.
struct Process(Executor);

impl Running for Process {
    fn started(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(async { judge(self.0.started().await) })
    }

    fn wait(&self) -> BoxFuture<'_, Outcome> {
        Box::pin(self.0.wait())
    }

    fn signal<'a>(&'a self, signal: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(self.0.signal(signal))
    }

    fn kill<'a>(&'a self, signal: &'a str, timeout_ms: u64) -> BoxFuture<'a, io::Result<()>> {
        let signal = if signal.is_empty() { KILL_SIGNAL } else { signal };
        Box::pin(self.0.kill(signal, timeout_ms))
    }
}

fn executor(context: &TaskContext) -> Executor {
    Executor::at(context.run_directory())
}

fn run_spec(context: &TaskContext) -> Result<RunSpec, StartError> {
    let task = context.task();
    let room = &mut Room::default();
    let names = context.names(room)?;
    let config: Config =
        serde_json::from_str(&context.config_json(&names, room)?).map_err(|error| {
            StartError::impossible(format!("bad config of driver raw_exec: {error}"))
        })?;
    if !task.kill_signal.is_empty() && parse_signal(&task.kill_signal).is_none() {
        return Err(StartError::impossible(format!("unknown kill_signal `{}`", task.kill_signal)));
    }
    let own = context.directory.task(&task.name);
    let user = names.expand(&task.user, room)?;
    let env = names.env;
    for (key, value) in &env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(StartError::impossible(format!("`{key}` cannot be in an environment")));
        }
    }
    let command = config.command;
    let args: Vec<String> = config.args.into_iter().map(Argument::into_text).collect();
    if command.is_empty() {
        return Err(StartError::impossible("driver raw_exec needs a command"));
    }
    if command.contains('\0') || args.iter().any(|arg| arg.contains('\0')) {
        return Err(StartError::impossible("a command cannot contain NUL"));
    }
    Ok(RunSpec {
        command,
        args,
        directory: config.work_dir.map_or_else(|| own.clone(), |path| own.join(path)),
        env,
        user,
        logs_directory: context.directory.logs(),
        log_name: task.name.clone(),
        log_files_max: task.log_files_max,
        log_file_bytes_max: u64::from(task.log_file_mb_max.max(1)) << 20,
        open_files: ground::open_files::before(),
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{path::Path, sync::Arc};

    use serde_json::json;

    use super::*;
    use crate::{
        allocation::{spec::AllocationSpec, state::StateDirectory},
        driver::Drivers,
        testing,
    };

    /// The run of a task with this configuration and this environment variable.
    fn run_spec_of(config_json: &str, (key, value): (&str, &str)) -> Result<RunSpec, StartError> {
        let root = tempfile::tempdir().unwrap();
        let (state, _) = StateDirectory::open(root.path()).unwrap();
        let mut message = testing::message([1; 16], "job", &["a"]);
        config_json.clone_into(&mut message.tasks[0].config_json);
        message.tasks[0].env.insert(key.to_owned(), value.to_owned());
        let spec = AllocationSpec::parse(message).unwrap();
        let directory = state.allocation(spec.id);
        run_spec(&TaskContext {
            spec: Arc::new(spec),
            place: 0,
            node: Arc::default(),
            directory,
            attempt: 1,
            executor_binary: Path::new("no executor is needed").into(),
            drivers: Drivers::default(),
        })
    }

    #[test]
    fn numbers_and_truth_values_are_arguments_like_texts() {
        let args = |args: &str| {
            let config = format!(r#"{{"command":"x","args":[{args}]}}"#);
            run_spec_of(&config, ("A", "a")).map(|spec| spec.args)
        };
        let expected = ["-port", "8080", "-1", "0.5", "true", "a"].map(str::to_owned);
        assert_eq!(args(r#""-port",8080,-1,0.5,true,"${A}""#), Ok(expected.to_vec()));
        let refused = args("[8080]").unwrap_err();
        assert!(!refused.recoverable && refused.message.contains("must be a text"), "{refused:?}");
    }

    /// Replacing the references of this small job would give 4 GB.
    #[test]
    fn a_text_that_becomes_too_long_is_refused_before_it_is_built() {
        let (own, many) = ("v".repeat(4 << 10), "${LONG}".repeat(1 << 10));
        let config = json!({"command": "x", "args": vec![many; 1 << 10]}).to_string();
        let refused = run_spec_of(&config, ("LONG", &own)).unwrap_err();
        assert!(!refused.recoverable && refused.message.contains("4194304 bytes"), "{refused:?}");
    }

    /// A server accepts at registration exactly the configurations that this driver can parse.
    #[test]
    fn a_config_that_is_registered_is_one_that_is_read() {
        for (config, is_read) in [
            (json!({"command": "x"}), true),
            (json!({"command": "x", "args": ["a", 1, 0.5, true], "work_dir": "local"}), true),
            (json!({"command": "x", "args": null, "work_dir": null}), true),
            (json!({}), false),
            (json!({"command": ""}), false),
            (json!({"command": null}), false),
            (json!({"command": ["x"]}), false),
            (json!({"command": "a\0b"}), false),
            (json!({"command": "x", "args": "a"}), false),
            (json!({"command": "x", "args": [null]}), false),
            (json!({"command": "x", "args": [{}]}), false),
            (json!({"command": "x", "args": ["\0"]}), false),
            (json!({"command": "x", "work_dir": 1}), false),
            (json!({"comand": "x"}), false),
            (json!({"command": "x", "image": "y"}), false),
        ] {
            let task = json!({"Name": "t", "Driver": "raw_exec", "Config": config});
            let job = json!({"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [task]}]});
            let taken = jobspec::to_spec(&job);
            assert_eq!(taken.is_ok(), is_read, "{config}");
            let stored = taken.map_or_else(
                |_| config.to_string(),
                |taken| taken.spec.groups[0].tasks[0].config_json.to_string(),
            );
            assert_eq!(run_spec_of(&stored, ("A", "a")).is_ok(), is_read, "{config}");
        }
    }

    #[test]
    fn a_task_has_every_variable_that_its_job_gives_it() {
        for key in ["QUORATE_ADDR", "NOMAD_ADDR", "PORT"] {
            let spec = run_spec_of(r#"{"command":"x"}"#, (key, "http://10.0.0.1:4646")).unwrap();
            assert_eq!(spec.env.get(key).map(String::as_str), Some("http://10.0.0.1:4646"));
        }
    }

    /// The value of a task's field after replacement, if the job writes `text` there.
    fn run_of(field: &str, text: &str) -> String {
        let root = tempfile::tempdir().unwrap();
        let (state, _) = StateDirectory::open(root.path()).unwrap();
        let mut message = testing::message([3; 16], "team/job", &["a task"]);
        message.namespace = "space".to_owned();
        message.job_parent_id = "team".to_owned();
        message.datacenter = "dc7".to_owned();
        message.address = "10.0.0.1".to_owned();
        message.ports.push(proto::v1::Port { label: "a-b".to_owned(), value: 8080, to: 80 });
        let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        message.meta = [("of.both", "both"), ("OF-BOTH", "other")].map(pair).into();
        let task = &mut message.tasks[0];
        (task.cpu_mhz, task.memory_mb, task.memory_max_mb) = (500, 64, 128);
        task.meta = [("of-task", "task")].map(pair).into();
        task.env = [("MINE", "mine")].map(pair).into();
        let mut config = serde_json::json!({"command": "x"});
        let text = text.to_owned();
        match field {
            "job or group meta" => drop(message.meta.insert("seen".to_owned(), text)),
            "task meta" => drop(task.meta.insert("seen".to_owned(), text)),
            "env" => drop(task.env.insert("SEEN".to_owned(), text)),
            "name of a variable" => drop(task.env.insert(format!("SEEN{text}"), "1".to_owned())),
            "user" => task.user = text,
            "args" => config["args"] = serde_json::json!([text]),
            other => config[other] = text.into(),
        }
        task.config_json = config.to_string();
        let spec = AllocationSpec::parse(message).unwrap();
        let directory = state.allocation(spec.id);
        let node = [
            ("node.class", "small"),
            ("node.unique.name", "n1"),
            ("node.region", "eu"),
            ("attr.cpu.arch", "amd64"),
            ("meta.rack", "r1"),
        ];
        let run = run_spec(&TaskContext {
            spec: Arc::new(spec),
            place: 0,
            node: Arc::new(node.map(pair).into()),
            directory,
            attempt: 1,
            executor_binary: Path::new("no executor is needed").into(),
            drivers: Drivers::default(),
        })
        .unwrap();
        let root = root.path().display().to_string();
        let seen = match field {
            "job or group meta" | "task meta" => run.env["NOMAD_META_seen"].clone(),
            "env" => run.env["SEEN"].clone(),
            "name of a variable" => {
                run.env.keys().find_map(|key| key.strip_prefix("SEEN")).unwrap().to_owned()
            }
            "user" => run.user,
            "args" => run.args[0].clone(),
            "command" => run.command,
            "work_dir" => run.directory.display().to_string(),
            other => panic!("no field {other}"),
        };
        let seen = seen.replace(&root, "ROOT");
        let own = "ROOT/allocs/03030303-0303-0303-0303-030303030303/a task/";
        if field == "work_dir" { seen.replacen(own, "", 1) } else { seen }
    }

    /// Field × kind of name.
    #[test]
    fn every_field_knows_every_kind_of_name() {
        const ALLOCATION: &str = "03030303-0303-0303-0303-030303030303";
        let everywhere = [
            ("${NOMAD_DC}-${node.class}", "dc7-small"),
            ("${NOMAD_ALLOC_ID}", ALLOCATION),
            ("${NOMAD_SHORT_ALLOC_ID}", "03030303"),
            ("${NOMAD_ALLOC_NAME}", "team/job.group[0]"),
            ("${NOMAD_ALLOC_INDEX}", "0"),
            ("${NOMAD_JOB_ID}", "team/job"),
            ("${NOMAD_JOB_NAME}", "team/job"),
            ("${NOMAD_JOB_PARENT_ID}", "team"),
            ("${NOMAD_GROUP_NAME}", "group"),
            ("${NOMAD_TASK_NAME}", "a task"),
            ("${NOMAD_NAMESPACE}", "space"),
            ("${NOMAD_REGION}", "eu"),
            ("${NOMAD_CPU_LIMIT}", "500"),
            ("${NOMAD_MEMORY_LIMIT}", "64"),
            ("${NOMAD_MEMORY_MAX_LIMIT}", "128"),
            ("${node.unique.name}", "n1"),
            ("${attr.cpu.arch}", "amd64"),
            ("${meta.rack}", "r1"),
            ("${NOMAD_PORT_a-b}", "80"),
            ("${NOMAD_PORT_a_b}", "80"),
            ("${NOMAD_HOST_PORT_a-b}", "8080"),
            ("${NOMAD_IP_a_b}", "10.0.0.1"),
            ("${NOMAD_HOST_IP_a-b}", "10.0.0.1"),
            ("${NOMAD_ADDR_a_b}", "10.0.0.1:8080"),
            ("${NOMAD_HOST_ADDR_a-b}", "10.0.0.1:8080"),
            ("${env[\"NOMAD_DC\"]}", "dc7"),
            ("${unknown.name}", "${unknown.name}"),
            ("${NOMAD_UNKNOWN}", "${NOMAD_UNKNOWN}"),
            ("${X:-1} $X", "${X:-1} $X"),
        ];
        let of_meta = [
            ("${NOMAD_META_of.both}", "both"),
            ("${NOMAD_META_OF.BOTH}", "both"),
            ("${NOMAD_META_OF-BOTH}", "other"),
            ("${NOMAD_META_OF_BOTH}", "other"),
            ("${NOMAD_META_of-task}", "task"),
            ("${NOMAD_META_OF_TASK}", "task"),
        ];
        let own = [("${MINE}", "mine"), ("${env[\"MINE\"]}", "mine")];
        for (field, sees_meta, sees_own) in [
            ("job or group meta", false, false),
            ("task meta", false, false),
            ("env", true, false),
            ("name of a variable", true, false),
            ("user", true, true),
            ("command", true, true),
            ("args", true, true),
            ("work_dir", true, true),
        ] {
            let check = |text: &str, expected: &str| {
                let expected = if field == "name of a variable" {
                    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
                    expected.chars().map(|c| if fits(c) { c } else { '_' }).collect()
                } else {
                    expected.to_owned()
                };
                assert_eq!(run_of(field, text), expected, "{field} = {text}");
            };
            for (text, expected) in everywhere {
                check(text, expected);
            }
            for (text, value) in of_meta {
                check(text, if sees_meta { value } else { text });
            }
            for (text, value) in own {
                check(text, if sees_own { value } else { text });
            }
        }
    }
}
