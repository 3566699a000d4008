//! Nomad's commands and flags that are not built here: each is named, with what to do instead, and
//! the exit status is 1. What is built loses its row.

use std::ffi::OsString;

use super::argv::KnownFlags;

/// Commands, or the first words of several, and what to do instead.
const COMMANDS: [(&str, &str); 57] = [
    (
        "acl",
        "there is no access control: let only those reach the API who may use it (SECURITY.md)",
    ),
    ("action", "run the command in a batch job"),
    ("agent-info", "ask GET /v1/agent/self"),
    ("alloc checks", "checks of services are not run: ask the service itself"),
    (
        "alloc exec",
        "use a shell on the node: `alloc status` names it and `alloc fs` shows its folders",
    ),
    ("alloc pause", "stop it with `alloc stop`; `job run` starts it again"),
    ("alloc-status", "write `alloc status`"),
    ("check", "ask GET /v1/agent/health"),
    ("client-config", "name the servers in the agent's file (`servers`)"),
    ("config", "`server` and `agent` check their files when they start"),
    ("debug", "collect the logs of the servers, GET /v1/agent/self and GET /v1/metrics"),
    ("eval-status", "write `eval status`"),
    ("exec", "use a shell on the node: `alloc status` names it and `alloc fs` shows its folders"),
    ("fmt", "any formatter for HCL will do"),
    ("init", "begin with a file of examples/"),
    ("job action", "run the command in a batch job"),
    ("job init", "begin with a file of examples/"),
    ("keygen", "nothing is encrypted here"),
    ("keyring", "nothing is encrypted here"),
    ("license", "there is none to look at"),
    (
        "login",
        "there is no access control: let only those reach the API who may use it (SECURITY.md)",
    ),
    (
        "monitor",
        "servers and agents log to standard error; PUT /v1/agent/log-level sets the level of a server",
    ),
    ("node config", "name the servers in the agent's file (`servers`)"),
    ("node identity", "a node is known by its data folder"),
    ("node intro", "a node is known by its data folder"),
    ("node pool init", "`node pool apply NAME` makes a pool"),
    ("node-drain", "write `node drain`"),
    ("node-status", "write `node status`"),
    ("operator api", "use curl"),
    (
        "operator autopilot",
        "a server that was replaced is taken out when the new one joins (docs/operations.md)",
    ),
    ("operator client-state", "look into the agent's data folder (docs/operations.md)"),
    ("operator debug", "collect the logs of the servers, GET /v1/agent/self and GET /v1/metrics"),
    ("operator gossip", "servers do not gossip: they know each other by the configuration"),
    ("operator keygen", "nothing is encrypted here"),
    ("operator keyring", "nothing is encrypted here"),
    ("operator raft info", "`operator raft list-peers` and GET /v1/agent/self show it"),
    ("operator raft logs", "GET /v1/agent/self shows how long the log is"),
    ("operator raft state", "GET /v1/agent/self shows it"),
    ("operator root", "nothing is encrypted here"),
    ("operator snapshot", "keep copies of the servers' data folders (docs/operations.md)"),
    ("operator utilization", "GET /v1/metrics counts what is used"),
    ("plugin", "there are no volumes: use folders of the host"),
    ("quota", "set the `count` of jobs, and the `max` of an instance pool"),
    ("recommendation", "`alloc status -stats` shows what a task uses"),
    ("sentinel", "check files before `job run`, for example with `job validate`"),
    ("server force-leave", "write `operator raft remove-peer`"),
    (
        "server join",
        "name the servers in the new one's file: it joins when it starts (docs/operations.md)",
    ),
    ("server-force-leave", "write `operator raft remove-peer`"),
    (
        "server-join",
        "name the servers in the new one's file: it joins when it starts (docs/operations.md)",
    ),
    ("server-members", "write `server members`"),
    ("service", "there is no service discovery: `alloc status` shows addresses and ports"),
    ("setup", "there is no Consul and no Vault"),
    ("tls", "there is no TLS: put a proxy in front"),
    ("ui", "there is no web interface: `job status` and `node status` show what there is"),
    ("var", "give a task its secrets by `env`, or by files of the host"),
    ("volume", "there are no volumes: use folders of the host"),
    ("windows", "agents run on Linux"),
];

const TLS: &str = "there is no TLS: put a proxy in front";
const TEMPLATE: &str = "print JSON with -json, and take from it what you want, for example with jq";
const IN_FILE: &str = "write it into the file of -config (docs/operations.md)";
const VARIABLES: &str = "write the values into the file, or make the file from a template";

/// A command (any, if it is empty), a flag of it, and what to do instead.
const FLAGS: [(&str, &str, &str); 47] = [
    ("", "ca-cert", TLS),
    ("", "ca-path", TLS),
    ("", "client-cert", TLS),
    ("", "client-key", TLS),
    ("", "consul-token", "there is no Consul"),
    ("", "t", TEMPLATE),
    ("", "tls-server-name", TLS),
    ("", "tls-skip-verify", TLS),
    ("", "ui", "there is no web interface"),
    ("", "vault-token", "there is no Vault"),
    ("agent", "acl-enabled", "there is no access control"),
    ("agent", "bind", IN_FILE),
    ("agent", "bootstrap-expect", IN_FILE),
    ("agent", "client", "`quorate agent` runs a node, `quorate server` a server"),
    ("agent", "dc", IN_FILE),
    ("agent", "dev", "`quorate up` starts servers and an agent on this machine"),
    ("agent", "dev-connect", "there is no Consul"),
    ("agent", "encrypt", "nothing is encrypted here"),
    ("agent", "join", IN_FILE),
    ("agent", "network-interface", IN_FILE),
    ("agent", "network-speed", IN_FILE),
    ("agent", "node", "write -name"),
    ("agent", "node-class", IN_FILE),
    ("agent", "node-pool", IN_FILE),
    ("agent", "plugin-dir", "there are no plugins"),
    ("agent", "retry-join", IN_FILE),
    ("agent", "server", "`quorate agent` runs a node, `quorate server` a server"),
    ("agent", "state-dir", "write -data-dir"),
    ("eval list", "monitor", "follow one with `eval status -monitor ID`"),
    (
        "job inspect",
        "with-vars",
        "the file is not kept: it prints JSON, which `job run -json` takes",
    ),
    ("job plan", "hcl2-strict", "what a file may not say is an error in any case"),
    ("job plan", "policy-override", "there are no policies"),
    ("job plan", "var", VARIABLES),
    ("job plan", "var-file", VARIABLES),
    ("job plan", "vault-namespace", "there is no Vault"),
    ("job run", "consul-namespace", "there is no Consul"),
    ("job run", "hcl2-strict", "what a file may not say is an error in any case"),
    ("job run", "policy-override", "there are no policies"),
    ("job run", "var", VARIABLES),
    ("job run", "var-file", VARIABLES),
    ("job run", "vault-namespace", "there is no Vault"),
    ("job validate", "hcl2-strict", "what a file may not say is an error in any case"),
    ("job validate", "var", VARIABLES),
    ("job validate", "var-file", VARIABLES),
    ("job validate", "vault-namespace", "there is no Vault"),
    ("namespace apply", "quota", "there are no quotas"),
    ("node status", "allocs", "`node status NODE` lists the allocations of a node"),
];

/// What a command line asks for that is Nomad's and not built here.
pub(super) fn refusal(arguments: &[OsString], known: &KnownFlags) -> Option<String> {
    let (words, flags) = take_apart(arguments, known);
    let starts_with = |words: &[&str], command: &str| {
        let mut typed = words.iter();
        command.split(' ').all(|word| typed.next() == Some(&word))
    };
    let mut rows = COMMANDS.iter().filter(|(command, _)| starts_with(&words, command));
    if let Some((command, instead)) = rows.next() {
        return Some(format!(
            "not built yet: `{command}`, a command of Nomad's. Instead: {instead}"
        ));
    }
    let short = [
        ("run", "job run"),
        ("plan", "job plan"),
        ("start", "job start"),
        ("status", "job status"),
        ("stop", "job stop"),
    ];
    let long = [("inspect", "job inspect"), ("validate", "job validate"), ("logs", "alloc logs")];
    let first = words.first().copied().unwrap_or_default();
    let alias = short.into_iter().chain(long).find(|(alias, _)| *alias == first);
    let is_of = |command: &str| match alias {
        Some((_, whole)) => whole == command,
        None => starts_with(&words, command),
    };
    FLAGS.iter().find_map(|(command, flag, instead)| {
        let is_typed = flags.contains(flag) && (command.is_empty() || is_of(command));
        is_typed.then(|| format!("not built yet: -{flag}, a flag of Nomad's. Instead: {instead}"))
    })
}

/// The words of a command line, and the names of its flags; values of known flags are neither.
fn take_apart<'a>(arguments: &'a [OsString], known: &KnownFlags) -> (Vec<&'a str>, Vec<&'a str>) {
    let (mut words, mut flags) = (Vec::new(), Vec::new());
    let mut rest = arguments.iter().skip(1).filter_map(|argument| argument.to_str());
    while let Some(argument) = rest.next() {
        let Some(flag) = argument.strip_prefix('-').filter(|flag| !flag.is_empty()) else {
            words.push(argument);
            continue;
        };
        if flag == "-" {
            break;
        }
        let flag = flag.trim_start_matches('-');
        let (name, value) = flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v)));
        flags.push(name);
        if value.is_none() && known.get(name) == Some(&true) {
            rest.next();
        }
    }
    (words, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Option<&str>) {
        let known = KnownFlags::from([("address".to_owned(), true), ("json".to_owned(), false)]);
        let arguments: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let found = refusal(&arguments, &known);
        match expected {
            None => assert_eq!(found, None, "{line}"),
            Some(text) => assert!(found.as_ref().is_some_and(|f| f.contains(text)), "{found:?}"),
        }
    }

    #[test]
    fn commands_and_flags_are_found_between_values() {
        check("quorate -address http://a:1 acl policy list", Some("`acl`"));
        check("quorate job init -detach web", Some("`job init`"));
        check("quorate -json job -address=x init", Some("`job init`"));
        check("quorate job status start", None);
        check("quorate job plan -var=a=b web", Some("-var"));
        check("quorate plan -policy-override web", Some("-policy-override"));
        check("quorate node status -var", None);
        check("quorate node status -t x", Some("-t, a flag"));
        check("quorate job plan -- -var", None);
        check("quorate job inspect -address var x", None);
    }
}
