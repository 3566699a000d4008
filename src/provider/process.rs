//! Machines that are agents on the servers' own host: each a process, with a folder of its own.
//!
//! For trying out pools, for tests, and for one large machine that is to be many small ones. The
//! folder is shared by the servers of the host, so that whoever leads finds what another has made.
//! Every step may be the last of its server: what there is follows from the folders and from
//! `/proc`, never from memory.

mod folder;
mod living;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use agent::{executor::process::stat, read_boot_id};
use elastic::call::{
    Answer, Create, Description, Destroyed, ErrorClass, Listing, Machine, MachineState, Operation,
    ProviderError, TAG_CLUSTER, Tags, clip,
};
use fsm::{InstanceId, NodeId};
use futures_util::{FutureExt, future::BoxFuture};
use ground::rt::Instant;
use server::provider::ProviderKind;

use self::{
    folder::{
        AGENT_CONFIG, AGENT_LOG, Directory, Folder, FolderLock, MachineFile, NotLocked,
        PORT_RANGES, ProcessFile,
    },
    living::{Role, end, living},
};
use super::{Context, Provider, agent_config::agent_config, with_cluster, without_settings};

/// Ports that agents give to tasks; each machine has an equal part. Below the range that an agent
/// has which is not told otherwise: one may be on the same host.
const PORTS: std::ops::Range<u16> = 10_000..20_000;
/// How much of an agent's log is read to say why it has ended, bytes.
const LOG_TAIL_BYTES: usize = 4_096;
/// Destroys take as long as tasks may need to end.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// The provider of kind `process`.
#[derive(Clone, Debug)]
pub struct ProcessProvider {
    directory: Directory,
    /// The program that agents run.
    binary: PathBuf,
    /// As it is configured.
    kind: ProviderKind,
}

type Outcome = Result<Answer, ProviderError>;

fn io_error(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn transient(error: &io::Error) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, &error.to_string())
}

impl ProcessProvider {
    /// Uses a folder, which is made if there is none. Without a binary agents run that of this
    /// process.
    pub fn open(directory: &Path, binary: Option<PathBuf>) -> io::Result<Self> {
        let kind =
            ProviderKind::Process { directory: directory.to_owned(), binary: binary.clone() };
        let binary = binary.map_or_else(std::env::current_exe, Ok)?;
        Ok(Self { directory: Directory::open(directory)?, binary, kind })
    }

    /// Ends every machine in the folder, for whoever ends the cluster. Answers with how many there
    /// were.
    pub fn end_all(&self, limit: Duration) -> io::Result<usize> {
        let deadline = Instant::now() + limit;
        let mut ended = 0;
        for instance in self.directory.instances()? {
            let outcome = self.destroy(instance, deadline);
            outcome.map_err(|error| io::Error::other(error.to_string()))?;
            ended += 1;
        }
        Ok(ended)
    }

    fn carry_out(&self, operation: &Operation, context: &Context) -> Outcome {
        let deadline = Instant::now() + context.time_left.min(END_TIME_MAX);
        match operation {
            Operation::Create(create) => self.create(create, context, deadline),
            Operation::List => self.list(context).map(Answer::Listed).map_err(|e| transient(&e)),
            Operation::Destroy { instance, provider_id } => {
                self.refuse_elsewhere(provider_id)?;
                self.destroy(*instance, deadline)
            }
            Operation::SetTags { instance, provider_id, tags } => {
                self.refuse_elsewhere(provider_id)?;
                self.set_tags(*instance, tags, context, deadline)
            }
            Operation::Describe { instance, provider_id } => {
                self.refuse_elsewhere(provider_id)?;
                self.describe(*instance).map(Answer::Described).map_err(|e| transient(&e))
            }
        }
    }

    /// A machine of another host, or of another folder, cannot be seen from here: that it is not
    /// found does not mean that it is gone.
    fn refuse_elsewhere(&self, provider_id: &str) -> Result<(), ProviderError> {
        let (own, scope) = (self.directory.scope(), scope_of(provider_id));
        if scope.is_none_or(|scope| scope == own) {
            return Ok(());
        }
        let scope = scope.unwrap_or_default();
        let text = format!("the machine is one of {scope}, and this server has those of {own}");
        Err(ProviderError::new(ErrorClass::Transient, &text))
    }

    fn lock(folder: &Folder, deadline: Instant) -> Result<Option<FolderLock>, ProviderError> {
        match folder.lock(deadline).map_err(|error| transient(&error))? {
            Ok(lock) => Ok(Some(lock)),
            Err(NotLocked::Absent) => Ok(None),
            Err(NotLocked::Late) => {
                let text = "another call for this machine is under way";
                Err(ProviderError::new(ErrorClass::Transient, text))
            }
        }
    }

    fn create(&self, create: &Create, context: &Context, deadline: Instant) -> Outcome {
        let folder = self.directory.folder(create.key);
        let lock = loop {
            // A destroy marks the instance before it touches anything: a server that was stopped in
            // between and goes on must not bring the machine back.
            self.refuse_destroyed(create.key, None)?;
            folder.make().map_err(|error| transient(&error))?;
            if let Some(lock) = Self::lock(&folder, deadline)? {
                break lock;
            }
        };
        self.refuse_destroyed(create.key, Some((&folder, &lock)))?;
        let made = self.make(create, context, &folder, &lock);
        drop(lock);
        made.map(Answer::Created)
    }

    fn refuse_destroyed(
        &self,
        key: InstanceId,
        made: Option<(&Folder, &FolderLock)>,
    ) -> Result<(), ProviderError> {
        if !self.directory.is_destroyed(key).map_err(|error| transient(&error))? {
            return Ok(());
        }
        if let Some((folder, lock)) = made {
            folder.remove(lock).map_err(|error| transient(&error))?;
        }
        let text = format!("instance {key} was destroyed and is not made again");
        Err(ProviderError::new(ErrorClass::Fatal, &text))
    }

    fn make(
        &self,
        create: &Create,
        context: &Context,
        folder: &Folder,
        lock: &FolderLock,
    ) -> Result<Machine, ProviderError> {
        let make = || -> io::Result<Option<Machine>> {
            let scope = self.directory.scope().to_owned();
            let machine = match folder.machine()? {
                Some(machine) => machine,
                None => {
                    let machine =
                        MachineFile { scope, tags: with_cluster(&create.tags, &context.cluster) };
                    folder.write_machine(&machine)?;
                    machine
                }
            };
            if let Some(process) = self.process_of(create.key, folder)? {
                return Ok(Some(shown(&machine, &process)));
            }
            let Some(range) = self.directory.take_ports(create.key)? else { return Ok(None) };
            folder.write_agent_config(&Self::config_text(create, context, folder, range))?;
            let process = self.spawn(folder)?;
            folder.write_process(&process)?;
            Ok(Some(shown(&machine, &process)))
        };
        match make() {
            Ok(Some(machine)) => Ok(machine),
            Ok(None) => {
                folder.remove(lock).map_err(|error| transient(&error))?;
                let text = format!("{PORT_RANGES} machines are here, and no more may be");
                Err(ProviderError::new(ErrorClass::Quota, &text))
            }
            Err(error) => Err(transient(&error)),
        }
    }

    /// The process that was started for a machine, dead or alive; none: none was.
    fn process_of(&self, instance: InstanceId, folder: &Folder) -> io::Result<Option<ProcessFile>> {
        if let Some(process) = folder.process()? {
            return Ok(Some(process));
        }
        // Its server ended before it could write who it is.
        let found = living(&self.directory)?.into_iter();
        let mut agents = found.filter(|one| one.instance == instance && one.role == Role::Agent);
        let Some(agent) = agents.next() else { return Ok(None) };
        let process = ProcessFile {
            pid: agent.process.pid,
            start_ticks: agent.process.start_ticks,
            boot_id: boot_id()?,
        };
        folder.write_process(&process)?;
        Ok(Some(process))
    }

    fn config_text(create: &Create, context: &Context, folder: &Folder, range: u16) -> String {
        let mut settings = agent_config(create, &context.servers);
        settings.set_text("http.address", "127.0.0.1:0");
        settings.set_text("data_dir", &folder.path().join("data").display().to_string());
        let each = (PORTS.end - PORTS.start) / PORT_RANGES;
        let first = PORTS.start + range * each;
        settings.set("ports.dynamic_min", first);
        settings.set("ports.dynamic_max", first + each - 1);
        settings.text()
    }

    /// Starts the agent. It outlives this process.
    fn spawn(&self, folder: &Folder) -> io::Result<ProcessFile> {
        let path = folder.path().join(AGENT_LOG);
        let log = fs::File::options().create(true).append(true).open(&path);
        let log = log.map_err(|error| io_error(&path, &error))?;
        let mut child = without_settings(&mut Command::new(&self.binary))
            .arg("agent")
            .arg("--config")
            .arg(folder.path().join(AGENT_CONFIG))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|error| io_error(&self.binary, &error))?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let start_ticks = stat(pid)?.map_or(0, |stat| stat.start_ticks);
        // Waited for, so that it does not stay as a zombie when it ends before this process does.
        std::thread::Builder::new().name("machine".into()).spawn(move || child.wait())?;
        Ok(ProcessFile { pid, start_ticks, boot_id: boot_id()? })
    }

    fn list(&self, context: &Context) -> io::Result<Listing> {
        self.directory.sweep()?;
        let living = living(&self.directory)?;
        let mut machines = Vec::new();
        for instance in self.directory.instances()? {
            let folder = self.directory.folder(instance);
            let Some(machine) = folder.machine()? else { continue };
            // Also what only its tasks are left of: it has to be destroyed.
            let lives = living.iter().any(|one| one.instance == instance);
            if !lives && folder.is_old()? {
                self.clear_away(instance, &folder)?;
                continue;
            }
            let is_ours =
                machine.tags.get(TAG_CLUSTER).map(String::as_str) == Some(&context.cluster);
            if !lives || !is_ours {
                continue;
            }
            let Some(process) = self.process_of(instance, &folder)? else { continue };
            machines.push(shown(&machine, &process));
        }
        Ok(Listing { scope: self.directory.scope().into(), machines })
    }

    /// Removes the folder of a machine that ended long ago, unless a call for it is under way.
    fn clear_away(&self, instance: InstanceId, folder: &Folder) -> io::Result<()> {
        let Ok(lock) = folder.lock(Instant::now())? else { return Ok(()) };
        self.directory.free_ports(instance)?;
        folder.remove(&lock)
    }

    fn destroy(&self, instance: InstanceId, deadline: Instant) -> Outcome {
        self.directory.mark_destroyed(instance).map_err(|error| transient(&error))?;
        let folder = self.directory.folder(instance);
        let lock = Self::lock(&folder, deadline)?;
        if !end(&self.directory, instance, deadline).map_err(|error| transient(&error))? {
            let text = "some of its processes have not ended";
            return Err(ProviderError::new(ErrorClass::Transient, text));
        }
        self.directory.free_ports(instance).map_err(|error| transient(&error))?;
        if let Some(lock) = lock {
            folder.remove(&lock).map_err(|error| transient(&error))?;
        }
        Ok(Answer::Destroyed(Destroyed::Gone))
    }

    fn set_tags(
        &self,
        instance: InstanceId,
        tags: &Tags,
        context: &Context,
        deadline: Instant,
    ) -> Outcome {
        let folder = self.directory.folder(instance);
        let lock = Self::lock(&folder, deadline)?;
        let set = || -> io::Result<bool> {
            let Some(mut machine) = folder.machine()? else { return Ok(false) };
            machine.tags = with_cluster(tags, &context.cluster);
            folder.write_machine(&machine)?;
            Ok(true)
        };
        let is_there = lock.is_some() && set().map_err(|error| transient(&error))?;
        if is_there {
            return Ok(Answer::Tagged);
        }
        Err(ProviderError::new(ErrorClass::Fatal, "there is no such machine"))
    }

    fn describe(&self, instance: InstanceId) -> io::Result<Description> {
        let folder = self.directory.folder(instance);
        let say = |state, words: &str| Description {
            state,
            address: "127.0.0.1".into(),
            words: clip(words),
        };
        if folder.machine()?.is_none() {
            return Ok(say(MachineState::Gone, ""));
        }
        if self.has_agent(instance)? {
            return Ok(say(MachineState::Up, ""));
        }
        // Whoever starts the agent holds the lock until it runs: only then is it known that none
        // does.
        let _lock = match folder.lock(Instant::now())? {
            Ok(lock) => lock,
            Err(NotLocked::Absent) => return Ok(say(MachineState::Gone, "")),
            Err(NotLocked::Late) => return Ok(say(MachineState::Booting, "it is being made")),
        };
        if self.has_agent(instance)? {
            return Ok(say(MachineState::Up, ""));
        }
        if folder.process()?.is_none() {
            return Ok(say(MachineState::Booting, "its agent was not started yet"));
        }
        Ok(say(MachineState::Broken, &last_line(&folder.path().join(AGENT_LOG))))
    }

    fn has_agent(&self, instance: InstanceId) -> io::Result<bool> {
        let mut living = living(&self.directory)?.into_iter();
        Ok(living.any(|one| one.instance == instance && one.role == Role::Agent))
    }
}

impl Provider for ProcessProvider {
    fn call(&self, operation: Operation, context: Context) -> BoxFuture<'_, Outcome> {
        let provider = self.clone();
        async move {
            let carried_out =
                tokio::task::spawn_blocking(move || provider.carry_out(&operation, &context));
            carried_out.await.unwrap_or_else(|error| Err(transient(&io::Error::other(error))))
        }
        .boxed()
    }

    fn reload(&self, kind: &ProviderKind) -> bool {
        *kind == self.kind
    }

    fn needs_one_host(&self) -> bool {
        true
    }
}

fn shown(machine: &MachineFile, process: &ProcessFile) -> Machine {
    let ProcessFile { pid, start_ticks, boot_id } = process;
    let boot = boot_id.get(..8).unwrap_or(boot_id);
    let tags = machine.tags.iter();
    Machine {
        provider_id: format!("{}/{boot}-{pid}-{start_ticks}", machine.scope).into(),
        address: "127.0.0.1".into(),
        scope: machine.scope.as_str().into(),
        tags: tags.map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect(),
    }
}

/// The scope in the id of a machine.
fn scope_of(provider_id: &str) -> Option<&str> {
    provider_id.rsplit_once('/').map(|(scope, _)| scope)
}

/// The boot of this host.
pub fn host_boot() -> io::Result<[u8; 16]> {
    read_boot_id()
}

fn boot_id() -> io::Result<String> {
    Ok(NodeId(host_boot()?).to_string())
}

/// The last line of an agent's log that is not empty.
fn last_line(path: &Path) -> String {
    let Ok(bytes) = fs::read(path) else { return "it has no log".to_owned() };
    let tail = bytes.get(bytes.len().saturating_sub(LOG_TAIL_BYTES)..).unwrap_or_default();
    let text = String::from_utf8_lossy(tail);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("its log is empty").to_owned()
}
