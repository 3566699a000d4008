//! Nomad's commands and their flags, line by line: what is not built is named.

use super::run;

/// Every command of Nomad's; behind a colon the flags of those that are built.
const COMMANDS: &str = "
acl
acl auth-method
acl auth-method create
acl auth-method delete
acl auth-method info
acl auth-method list
acl auth-method update
acl binding-rule
acl binding-rule create
acl binding-rule delete
acl binding-rule info
acl binding-rule list
acl binding-rule update
acl bootstrap
acl policy
acl policy apply
acl policy delete
acl policy info
acl policy list
acl policy self
acl role
acl role create
acl role delete
acl role info
acl role list
acl role update
acl token
acl token create
acl token delete
acl token info
acl token list
acl token self
acl token update
action
agent: acl-enabled bind bootstrap-expect client dc dev join node node-class node-pool retry-join server state-dir
agent-info
alloc
alloc checks
alloc exec
alloc fs: H c f group job n stat tail verbose
alloc logs: c f group job n stderr stdout tail task verbose
alloc pause
alloc restart: all-tasks task verbose
alloc signal: s task verbose
alloc status: json short stats t ui verbose
alloc stop: detach no-shutdown-delay verbose
alloc-status
check
client-config
config
config validate
debug
deployment
deployment fail
deployment list: filter json t ui verbose
deployment pause
deployment promote
deployment resume
deployment status
deployment unblock
eval
eval delete
eval list: filter job json monitor page-token per-page status t ui verbose
eval status: json monitor t ui verbose
eval-status
exec
fmt
fs
help
init
inspect
job
job action
job allocs: all json t verbose
job deployments
job dispatch: detach id-prefix-template idempotency-token meta priority ui verbose
job eval: detach force-reschedule verbose
job history: diff-tag diff-version full json p t version
job init
job inspect: hcl json t version with-vars
job periodic
job periodic force
job plan: diff hcl2-strict json policy-override var var-file vault-namespace verbose
job promote
job restart: all-tasks batch-size batch-wait group no-shutdown-delay on-error reschedule task verbose yes
job revert: consul-token detach vault-token verbose
job run: check-index consul-namespace consul-token detach eval-priority hcl2-strict json output policy-override preserve-counts preserve-resources ui var var-file vault-namespace verbose
job scale: check-index detach verbose
job scaling-events: verbose
job start: detach verbose
job status: all-allocs evals json short t ui verbose
job stop: detach eval-priority global no-shutdown-delay purge verbose yes
job tag
job tag apply
job tag unset
job validate: hcl2-strict json var var-file vault-namespace
keygen
keyring
license
license get
login
logs
monitor
monitor export
namespace
namespace apply: description json quota
namespace delete
namespace inspect: json t
namespace list: json t
namespace status
node
node config
node drain: deadline detach disable enable force ignore-system keep-ineligible m meta monitor no-deadline self yes
node eligibility: disable enable self yes
node identity
node identity get
node identity renew
node intro
node intro create
node meta
node meta apply: node-id unset
node meta read: json node-id t
node pool
node pool apply: json
node pool delete
node pool info: json t
node pool init
node pool jobs: filter json page-token per-page t
node pool list: filter json page-token per-page t
node pool nodes: filter json page-token per-page t verbose
node status: allocs filter json os page-token per-page quiet self short stats t ui verbose
node-drain
node-status
operator
operator api
operator autopilot
operator autopilot get-config
operator autopilot health
operator autopilot set-config
operator client-state
operator debug
operator gossip
operator keygen
operator keyring
operator gossip keyring
operator gossip keyring generate
operator gossip keyring install
operator gossip keyring list
operator gossip keyring remove
operator gossip keyring use
operator metrics: format json pretty t
operator raft
operator raft info
operator raft list-peers: stale
operator raft logs
operator raft remove-peer: peer-address peer-id
operator raft state
operator raft transfer-leadership: peer-address peer-id
operator root
operator root keyring
operator root keyring list
operator root keyring remove
operator root keyring rotate
operator scheduler
operator scheduler get-config: json t
operator scheduler set-config: check-index memory-oversubscription pause-eval-broker preempt-batch-scheduler preempt-service-scheduler preempt-sysbatch-scheduler preempt-system-scheduler reject-job-registration scheduler-algorithm
operator snapshot
operator snapshot inspect
operator snapshot redact
operator snapshot restore
operator snapshot save
operator snapshot state
operator utilization
plan
plugin
plugin status
quota
quota apply
quota delete
quota init
quota inspect
quota list
quota status
recommendation
recommendation apply
recommendation dismiss
recommendation info
recommendation list
run
scaling
scaling policy
scaling policy info: json t verbose
scaling policy list: job json t type verbose
sentinel
sentinel apply
sentinel delete
sentinel list
sentinel read
server
server force-leave
server join
server members: detailed json t ui verbose
server-force-leave
server-join
server-members
service
service delete
service info
service list
setup
setup consul
setup vault
start
status: evals json short ui verbose
stop
system
system gc
system reconcile
system reconcile summaries
tls
tls ca
tls ca create
tls ca info
tls cert
tls cert create
tls cert info
ui
validate
var
var get
var init
var list
var lock
var purge
var put
version
volume
volume claim
volume claim delete
volume claim list
volume create
volume delete
volume deregister
volume detach
volume init
volume register
volume snapshot
volume snapshot create
volume snapshot delete
volume snapshot list
volume status
windows
windows service
windows service install
windows service uninstall
";

/// Flags that all of Nomad's commands have.
const GENERAL: &str = "address ca-cert ca-path client-cert client-key force-color namespace no-color region tls-server-name \
                       tls-skip-verify token";

fn commands() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = COMMANDS.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.split_once(": ").unwrap_or((line, "")))
}

#[test]
fn every_command_of_nomad_is_built_or_named() {
    for (command, _) in commands() {
        let ran = run(&format!("{command} -help"), &|_| None);
        let named =
            ran.err.starts_with("Error: not built yet: `") && ran.err.contains(". Instead: ");
        assert!(ran.code == 0 || ran.code == 1 && named, "{command}: {}", ran.err);
    }
}

#[test]
fn every_flag_of_a_command_that_is_built_is_taken_or_named() {
    for (command, flags) in commands().filter(|(_, flags)| !flags.is_empty()) {
        for flag in flags.split(' ').chain(GENERAL.split(' ')) {
            // Neither a job nor a value is given: whatever is known is missed only after that.
            let ran = run(&format!("{command} -{flag} -address ftp://none"), &|_| None);
            let is_unknown = ran.err.contains("unexpected argument");
            // Of `job plan` 1 is an answer.
            let code = if command == "job plan" { 255 } else { 1 };
            assert!(ran.code == code && !is_unknown, "{command} -{flag}: {}{}", ran.out, ran.err);
        }
    }
}
