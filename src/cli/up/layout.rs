//! The data folder of `quorate up`: who belongs to the cluster, where everything is, and whether it
//! may start.
//!
//! ```text
//! <data>/up.json               how many servers it was made for
//! <data>/up.lock               held while `up` runs
//! <data>/up.pids               processes of the `up` that runs, or that was killed
//! <data>/config/server-1.toml  written once; edits are kept
//! <data>/server-1/ agent-1/    state
//! <data>/logs/server-1.log
//! <data>/machines/             instances of pools, agents each in a folder
//! ```
//! Must never overwrite a configuration or touch a folder that it did not make.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use launch::Identity;
use serde_json::{Value, json};

use super::refuse;
use crate::{
    cli::view::{Fields, rows},
    config::{AgentConfig, Flag, ServerConfig, Sources},
};

const THREE: &[(&str, &str)] = &[
    ("server-1", include_str!("../../../cluster-configs/three/server-1.toml")),
    ("server-2", include_str!("../../../cluster-configs/three/server-2.toml")),
    ("server-3", include_str!("../../../cluster-configs/three/server-3.toml")),
    (AGENT, include_str!("../../../cluster-configs/three/agent.toml")),
];
const FIVE: &[(&str, &str)] = &[
    ("server-1", include_str!("../../../cluster-configs/five/server-1.toml")),
    ("server-2", include_str!("../../../cluster-configs/five/server-2.toml")),
    ("server-3", include_str!("../../../cluster-configs/five/server-3.toml")),
    ("server-4", include_str!("../../../cluster-configs/five/server-4.toml")),
    ("server-5", include_str!("../../../cluster-configs/five/server-5.toml")),
    (AGENT, include_str!("../../../cluster-configs/five/agent.toml")),
];
const AGENT: &str = "agent-1";
const MARKER_FILE: &str = "up.json";
const LOCK_FILE: &str = "up.lock";
const PID_FILE: &str = "up.pids";
const MACHINES_FOLDER: &str = "machines";

/// What a process of the cluster is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Agent,
}

/// One process of the cluster.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) log_path: PathBuf,
    config_path: PathBuf,
    data_dir: PathBuf,
    /// Where it listens; for a server HTTP first, then gRPC. Port 0 is left out.
    pub(super) listens: Vec<(&'static str, SocketAddr)>,
    /// A server's advertised gRPC address.
    pub(super) advertise: Option<String>,
}

impl Member {
    /// What starts it.
    pub(super) fn command(&self, program: &Path) -> Command {
        let noun = match self.role {
            Role::Server => "server",
            Role::Agent => "agent",
        };
        let mut command = Command::new(program);
        command
            .args([noun, "--config"])
            .arg(&self.config_path)
            .arg("--data-dir")
            .arg(&self.data_dir);
        command
    }

    /// The URL of a server's HTTP API.
    pub(super) fn http_url(&self) -> Option<String> {
        let http = self.listens.iter().find(|(purpose, _)| *purpose == "HTTP");
        http.map(|(_, address)| format!("http://{address}"))
    }

    fn load(
        role: Role,
        name: &str,
        folder: &Path,
        environment: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let config_path = folder.join("config").join(format!("{name}.toml"));
        let data_dir = folder.join(name);
        let flag = Flag::given("--data-dir", "data_dir", Some(data_dir.display()));
        let sources = Sources {
            file: Some(config_path.clone()),
            environment: environment.to_vec(),
            flags: flag.into_iter().collect(),
        };
        let (configured, listens, advertise) = match role {
            Role::Server => {
                let config = ServerConfig::load(&sources)?;
                let listens = vec![("HTTP", config.http_address), ("gRPC", config.rpc_address)];
                (config.settings.name, listens, Some(config.settings.rpc_address))
            }
            Role::Agent => {
                let config = AgentConfig::load(&sources)?.settings;
                (config.name, vec![("HTTP", config.http_address)], None)
            }
        };
        if configured != name {
            bail!(
                "{}: name is \"{configured}\"; allowed: \"{name}\", as the file is called (is QUORATE__NAME set?)",
                config_path.display()
            );
        }
        let log_path = folder.join("logs").join(format!("{name}.log"));
        let listens = listens.into_iter().filter(|(_, address)| address.port() != 0).collect();
        Ok(Self {
            name: name.to_owned(),
            role,
            log_path,
            config_path,
            data_dir,
            listens,
            advertise,
        })
    }
}

/// A prepared data folder. The lock is held for as long as this lives.
#[derive(Debug)]
pub(super) struct Layout {
    folder: PathBuf,
    members: Vec<Member>,
    is_new: bool,
    _lock: File,
}

impl Layout {
    /// Checks the folder, makes it if it is new, and reads the configurations in it.
    pub(super) fn prepare(data: &Path, servers: usize, with_agent: bool) -> anyhow::Result<Self> {
        std::fs::create_dir_all(data)
            .with_context(|| format!("cannot make the data folder {}", data.display()))?;
        let folder = data
            .canonicalize()
            .with_context(|| format!("cannot open the data folder {}", data.display()))?;
        let is_new = check_marker(&folder, servers)?;
        let lock = lock(&folder)?;
        check_old_processes(&folder)?;
        let files = if servers == 3 { THREE } else { FIVE };
        write_files(&folder, files, servers)?;
        let environment = Sources::from_process(None, Vec::new()).environment;
        let members = files
            .iter()
            .map(|(name, _)| (*name, if *name == AGENT { Role::Agent } else { Role::Server }))
            .filter(|(_, role)| with_agent || *role == Role::Server)
            .map(|(name, role)| Member::load(role, name, &folder, &environment))
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { folder, members, is_new, _lock: lock })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Servers, then the agent.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(super) fn server_count(&self) -> usize {
        self.members.iter().filter(|member| member.role == Role::Server).count()
    }

    /// The folder was made by this run.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Where the servers' provider `local` keeps its machines.
    pub(super) fn machines(&self) -> PathBuf {
        self.folder.join(MACHINES_FOLDER)
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.folder.join(PID_FILE)
    }

    /// Every port must be free; the error names the port and who wants it.
    pub(super) fn check_ports(&self) -> anyhow::Result<()> {
        let mut taken = Vec::new();
        for member in &self.members {
            for (purpose, address) in &member.listens {
                if let Err(error) = TcpListener::bind(address) {
                    taken.push(format!(
                        "  port {} ({purpose} of {}, address {address}): {error}",
                        address.port(),
                        member.name
                    ));
                }
            }
        }
        if taken.is_empty() {
            return Ok(());
        }
        bail!(
            "nothing was started: these ports cannot be used\n{}\n  See who listens there (ss -ltnp), or change the addresses in {}/config",
            taken.join("\n"),
            self.folder.display()
        )
    }
}

/// True when the folder is new.
fn check_marker(folder: &Path, servers: usize) -> anyhow::Result<bool> {
    let path = folder.join(MARKER_FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            for entry in std::fs::read_dir(folder)? {
                let name = entry?.file_name();
                // An earlier run may have ended between making these and writing the marker.
                if !["config", "logs", LOCK_FILE].iter().any(|own| name == *own) {
                    return Err(refuse(
                        folder,
                        &format!(
                            "holds something that `quorate up` did not make ({}); name an empty or a new folder with --data",
                            name.display()
                        ),
                    ));
                }
            }
            return Ok(true);
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let marker: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} was not written by `quorate up`", path.display()))?;
    let made_for = marker.number("servers");
    if usize::try_from(made_for).ok() != Some(servers) {
        return Err(refuse(
            folder,
            &format!(
                "was made for {made_for} servers, not {servers}; use --servers {made_for}, or another folder with --data"
            ),
        ));
    }
    Ok(false)
}

fn lock(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join(LOCK_FILE);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(refuse(
            folder,
            "is in use by another `quorate up`; stop that one first, or use another folder with --data",
        )),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

fn write_files(folder: &Path, files: &[(&str, &str)], servers: usize) -> anyhow::Result<()> {
    for sub in ["config", "logs"] {
        std::fs::create_dir_all(folder.join(sub))?;
    }
    for (name, template) in files {
        let path = folder.join("config").join(format!("{name}.toml"));
        if !path.exists() {
            let mut text = with_data_dir(template, &folder.join(name));
            if *name != AGENT {
                text.push_str(&machines(folder));
            }
            replace_file(&path, &text)?;
        }
    }
    // Last: a folder with the marker has all its files.
    replace_file(&folder.join(MARKER_FILE), &format!("{}\n", json!({"servers": servers})))
}

/// What a server's file says of pools: a provider `local`, whose machines are agents on this host.
fn machines(folder: &Path) -> String {
    let mut table = launch::Settings::default();
    table.set_text("name", "local");
    table.set_text("kind", "process");
    table.set_text("directory", &folder.join(MACHINES_FOLDER).display().to_string());
    let mut settings = launch::Settings::default();
    settings.add_table("provider", table);
    // Lists of one host cost next to nothing.
    format!(
        "\n[elastic]\nlist_interval_ms = 5000\nprobe_interval_ms = 2000\ndestroy_retry_ms = 2000\n{}",
        settings.text()
    )
}

/// Writes a file as a whole or not at all.
fn replace_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let temporary = path.with_extension("tmp");
    let write = || -> io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// A shipped file with its `data_dir` line replaced.
fn with_data_dir(template: &str, data_dir: &Path) -> String {
    let value = toml::Value::String(data_dir.display().to_string());
    template
        .lines()
        .skip_while(|line| line.starts_with('#'))
        .map(|line| {
            if line.starts_with("data_dir = ") {
                format!("data_dir = {value}\n")
            } else {
                format!("{line}\n")
            }
        })
        .collect()
}

/// A process that an `up` started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessRecord {
    pub(super) name: String,
    pub(super) process: Identity,
}

impl ProcessRecord {
    pub(super) fn of(name: &str, pid: u32) -> Self {
        Self { name: name.to_owned(), process: Identity::of(pid) }
    }
}

/// Remembers the processes that run, or that none does.
pub(super) fn write_processes(path: &Path, records: &[ProcessRecord]) -> anyhow::Result<()> {
    let list: Vec<Value> = records
        .iter()
        .map(|record| {
            let Identity { pid, start_ticks } = record.process;
            json!({"name": record.name, "pid": pid, "start_ticks": start_ticks})
        })
        .collect();
    replace_file(path, &format!("{}\n", Value::Array(list)))
}

fn check_old_processes(folder: &Path) -> anyhow::Result<()> {
    let Ok(text) = std::fs::read_to_string(folder.join(PID_FILE)) else { return Ok(()) };
    let list: Value = serde_json::from_str(&text).with_context(|| {
        format!("{}/{PID_FILE} was not written by `quorate up`", folder.display())
    })?;
    let alive: Vec<ProcessRecord> = rows(&list)
        .iter()
        .map(|row| ProcessRecord {
            name: row.shown("name"),
            process: Identity {
                pid: u32::try_from(row.number("pid")).unwrap_or(0),
                start_ticks: u64::try_from(row.number("start_ticks")).unwrap_or(0),
            },
        })
        .filter(|record| record.process.is_alive())
        .collect();
    if alive.is_empty() {
        return Ok(());
    }
    let shown =
        |record: &ProcessRecord| format!("{} (process {})", record.name, record.process.pid);
    let names: Vec<String> = alive.iter().map(shown).collect();
    let pids: Vec<String> = alive.iter().map(|record| record.process.pid.to_string()).collect();
    Err(refuse(
        folder,
        &format!(
            "is in use by processes of an earlier `quorate up` that was killed: {}\n  They still work. To take over, stop them and run `quorate up` again: kill {}",
            names.join(", "),
            pids.join(" ")
        ),
    ))
}
