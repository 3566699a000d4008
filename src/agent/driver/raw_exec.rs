//! `raw_exec`: a process on the host without isolation, under an executor of its own.

use serde::Deserialize;

use super::{Recovered, Run, StartError, TaskContext};
use crate::agent::executor::{Outcome, RunSpec, client::Executor, process::parse_signal};

/// Sent when the job names none (Nomad's default).
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

/// A job file may say `["-port", 8080]`, as in Nomad, whose drivers take numbers and truth values for texts.
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

/// A process under its executor.
#[derive(Clone)]
pub(crate) struct RawExecRun {
    executor: Executor,
}

pub(super) async fn start(context: &TaskContext) -> Result<RawExecRun, StartError> {
    let spec = run_spec(context)?;
    let run = run(context);
    judge(run.executor.launch(&context.executor_binary, &spec).await).map(|()| run)
}

fn judge(started: Result<(), Outcome>) -> Result<(), StartError> {
    match started {
        // A run that has already ended has started: the wait says how.
        Ok(()) | Err(Outcome::Exited { .. }) => Ok(()),
        Err(Outcome::StartFailed { error, recoverable, fault }) => {
            Err(StartError { message: error, recoverable, fault })
        }
    }
}

pub(super) async fn recover(context: &TaskContext) -> Recovered {
    let run = run(context);
    if run.executor.recover().await { Recovered::Run(Run::RawExec(run)) } else { Recovered::Never }
}

impl RawExecRun {
    pub(super) async fn started(&self) -> Result<(), StartError> {
        judge(self.executor.started().await)
    }

    pub(super) async fn wait(&self) -> Outcome {
        self.executor.wait().await
    }

    pub(super) async fn signal(&self, signal: &str) -> std::io::Result<()> {
        self.executor.signal(signal).await
    }

    pub(super) async fn kill(&self, signal: &str, timeout_ms: u64) -> std::io::Result<()> {
        let signal = if signal.is_empty() { KILL_SIGNAL } else { signal };
        self.executor.kill(signal, timeout_ms).await
    }
}

fn run(context: &TaskContext) -> RawExecRun {
    let directory = context.directory.run(&context.task.name, context.attempt);
    RawExecRun { executor: Executor::at(directory) }
}

fn run_spec(context: &TaskContext) -> Result<RunSpec, StartError> {
    let task = &context.task;
    let config: Config = serde_json::from_str(&task.config_json).map_err(|error| {
        StartError::impossible(format!("bad config of driver raw_exec: {error}"))
    })?;
    if !task.kill_signal.is_empty() && parse_signal(&task.kill_signal).is_none() {
        return Err(StartError::impossible(format!("unknown kill_signal `{}`", task.kill_signal)));
    }
    let expand = |text: &str| context.names.expand(text);
    let own = context.directory.task(&task.name);
    let env = context.names.env.clone();
    for (key, value) in &env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(StartError::impossible(format!("`{key}` cannot be in an environment")));
        }
    }
    let command = expand(&config.command);
    let args: Vec<String> =
        config.args.into_iter().map(|argument| expand(&argument.into_text())).collect();
    if command.is_empty() {
        return Err(StartError::impossible("driver raw_exec needs a command"));
    }
    if command.contains('\0') || args.iter().any(|arg| arg.contains('\0')) {
        return Err(StartError::impossible("a command cannot contain NUL"));
    }
    Ok(RunSpec {
        command,
        args,
        directory: config.work_dir.map_or_else(|| own.clone(), |path| own.join(expand(&path))),
        env,
        user: task.user.clone(),
        logs_directory: context.directory.logs(),
        log_name: task.name.clone(),
        log_files_max: task.log_files_max,
        log_file_bytes_max: u64::from(task.log_file_mb_max.max(1)) << 20,
        open_files: crate::open_files::before(),
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{path::Path, sync::Arc};

    use super::*;
    use crate::agent::{
        driver::Drivers, environment, spec::AllocationSpec, state::StateDirectory, testing,
    };

    /// What is run for a task with this configuration and this variable of its own.
    fn run_spec_of(config_json: &str, (key, value): (&str, &str)) -> Result<RunSpec, StartError> {
        let root = tempfile::tempdir().unwrap();
        let (state, _) = StateDirectory::open(root.path()).unwrap();
        let mut message = testing::message([1; 16], "job", &["a"]);
        config_json.clone_into(&mut message.tasks[0].config_json);
        message.tasks[0].env.insert(key.to_owned(), value.to_owned());
        let spec = AllocationSpec::parse(message).unwrap();
        let (task, directory) = (spec.tasks[0].clone(), state.allocation(spec.id));
        run_spec(&TaskContext {
            allocation: spec.id,
            names: environment::names(&spec, &task, &directory, &Arc::default()),
            task,
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

    #[test]
    fn a_task_has_every_variable_that_its_job_gives_it() {
        for key in ["QUORATE_ADDR", "NOMAD_ADDR", "PORT"] {
            let spec = run_spec_of(r#"{"command":"x"}"#, (key, "http://10.0.0.1:4646")).unwrap();
            assert_eq!(spec.env.get(key).map(String::as_str), Some("http://10.0.0.1:4646"));
        }
    }
}
