//! A table of jobs, each taken or refused as Nomad does; where that is not so, the row says why.
#![expect(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};

use super::to_spec;

/// What becomes of a job.
enum Verdict {
    /// Both take it.
    Taken,
    /// Both refuse it; here with these words.
    Refused(&'static str),
    /// Nomad takes it. Here it is refused with these words, for this reason.
    RefusedHere(&'static str, &'static str),
    /// Nomad refuses it. Here it is taken, for this reason.
    TakenHere(&'static str),
}
use Verdict::{Refused, RefusedHere, Taken, TakenHere};

const NOT_BUILT: &str = "not built yet";
const SLIP: &str = "it is a slip, and the job would wait for ever or fail at its end";

/// A job of that type whose value at each of these places is replaced. `~` stands for the task, `^`
/// for the group.
fn judge(kind: &str, changes: &[(&str, Value)]) -> Result<(), String> {
    match to_spec(&made(kind, changes)) {
        Ok(_) => Ok(()),
        Err(errors) => {
            let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
            Err(lines.join("\n"))
        }
    }
}

fn made(kind: &str, changes: &[(&str, Value)]) -> Value {
    let mut job = json!({"ID": "j", "Type": kind, "TaskGroups": [{
        "Name": "g",
        "Networks": [{"DynamicPorts": [{"Label": "http"}]}],
        "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "x"}}],
    }]});
    for (at, value) in changes {
        let at = at.replacen('~', "^/Tasks/0", 1).replacen('^', "/TaskGroups/0", 1);
        let (owner, name) = at.rsplit_once('/').unwrap();
        job.pointer_mut(owner).unwrap()[name] = value.clone();
    }
    job
}

/// The jobs of all rows that are taken.
pub(super) fn taken() -> Vec<Value> {
    let lists = [jobs(), groups(), tasks(), conditions(), services()].into_iter().flatten();
    let services = lists.map(|(at, value, verdict)| ("service", at, value, verdict));
    let rows = services.chain(others()).chain(templates());
    let taken = rows.filter(|(.., verdict)| matches!(verdict, Taken | TakenHere(_)));
    taken.map(|(kind, at, value, _)| made(kind, &[(at, value)])).collect()
}

/// Checks rows of one place each.
fn check(kind: &str, rows: &[(&str, Value, Verdict)]) -> usize {
    let mut wrong = Vec::new();
    for (at, value, verdict) in rows {
        let found = judge(kind, &[(*at, value.clone())]);
        let is_right = match (verdict, &found) {
            (Taken, Ok(())) => true,
            (TakenHere(reason), Ok(())) => !reason.is_empty(),
            (Refused(words), Err(said)) => said.contains(words),
            (RefusedHere(words, reason), Err(said)) => said.contains(words) && !reason.is_empty(),
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{kind} {at} = {value}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    rows.len()
}

fn jobs() -> Vec<(&'static str, Value, Verdict)> {
    let task = json!({"Name": "t", "Driver": "mock"});
    let group = json!({"Name": "g", "Tasks": [task]});
    vec![
        ("/ID", json!(""), Refused("needs an ID")),
        ("/ID", json!("a b"), Refused("contains a blank")),
        ("/ID", json!("a\u{0}b"), Refused("Job.ID")),
        ("/ID", json!("a\tb"), RefusedHere("invisible", SLIP)),
        ("/ID", json!("team/web"), Taken),
        ("/ID", json!("/a//b/"), Taken),
        ("/ID", json!("käse.1_x"), Taken),
        ("/ID", json!("a/dispatch-1-2"), RefusedHere("dispatched", "children are called so")),
        ("/ID", json!("a/periodic-1"), RefusedHere("dispatched", "children are called so")),
        ("/ID", json!("dispatch-1"), Taken),
        ("/ID", json!("x".repeat(300)), RefusedHere("at most 256", "names have a bound")),
        ("/ID", json!(7), Refused("expected a text")),
        ("/Name", json!(""), Taken),
        ("/Name", json!("My web app"), Taken),
        ("/Name", json!("a\u{0}"), Refused("Job.Name")),
        ("/Type", json!(""), Taken),
        ("/Type", json!("Service"), Refused("is not a job type")),
        ("/Type", json!("cron"), Refused("is not a job type")),
        ("/Type", json!("_core"), Refused("is not a job type")),
        ("/Priority", json!(0), Taken),
        ("/Priority", json!(1), Taken),
        ("/Priority", json!(100), Taken),
        ("/Priority", json!(101), Refused("between")),
        ("/Priority", json!(-1), Refused("between")),
        ("/Priority", json!("50"), Refused("whole number")),
        ("/Datacenters", json!([]), Taken),
        ("/Datacenters", json!(["dc*", "b c"]), Taken),
        ("/Datacenters", json!(["a", ""]), Refused("must not be empty")),
        ("/Datacenters", json!("dc1"), Refused("expected a list")),
        ("/Namespace", json!(""), Taken),
        ("/NodePool", json!(""), Taken),
        ("/NodePool", json!("a b"), Refused("blank")),
        ("/Region", json!(""), Taken),
        ("/AllAtOnce", json!(true), Taken),
        ("/AllAtOnce", json!("yes"), Refused("true or false")),
        ("/TaskGroups", json!([]), Refused("at least one task group")),
        ("/TaskGroups", json!(null), Refused("at least one task group")),
        ("/TaskGroups", json!([group, group]), Refused("another group is called")),
        ("/Meta", json!({"a b": "c", "": "x"}), RefusedHere("key is empty", SLIP)),
        ("/Meta", json!({"a b": "c"}), Taken),
        ("/Meta", json!({"a": 1}), Refused("expected a text")),
        ("/Meta", json!({"a": null}), Taken),
        ("/Datacenters", json!([null]), TakenHere("a null says nothing")),
        ("~/Env", json!({"A": null}), Taken),
        ("~/Services", json!([null]), TakenHere("a null says nothing")),
        ("^/Networks/0/DynamicPorts", json!([{"Label": "a"}, null]), Taken),
        ("/Periodic", json!({"Spec": "* * * * *"}), Refused("only batch and sysbatch")),
        ("/Unknown", json!(1), Taken),
        ("/ParameterizedJob", json!({}), Refused("only batch and sysbatch")),
        ("/Stop", json!(true), Taken),
        ("/Update", json!({"MaxParallel": -1}), Refused("at least 0")),
        ("/Update", json!({"MaxParallel": 0}), Taken),
        ("/Update", json!({"HealthCheck": "x"}), Refused("is none of")),
        ("/Update", json!({"HealthCheck": "task_states"}), Taken),
        ("/Update", json!({"MinHealthyTime": "6m"}), Refused("must be shorter")),
        ("/Update", json!({"HealthyDeadline": "11m"}), Refused("must be shorter")),
        ("/Update", json!({"HealthyDeadline": "11m", "ProgressDeadline": 0}), Taken),
        ("/Update", json!({"Stagger": "-1s"}), Refused("negative")),
        ("/Migrate", json!({"MinHealthyTime": "6m"}), Refused("must be shorter")),
        ("/Migrate", json!({"MaxParallel": -1}), Refused("at least 0")),
        ("/Migrate", json!({"HealthCheck": "x"}), Refused("is none of")),
    ]
}

fn groups() -> Vec<(&'static str, Value, Verdict)> {
    let task = json!({"Name": "t", "Driver": "mock"});
    let leader = |name: &str| json!({"Name": name, "Driver": "mock", "Leader": true});
    let limited = |attempts: u32, interval: &str, function: &str| {
        json!({
            "Attempts": attempts, "Interval": interval, "Unlimited": false, "Delay": "30s",
            "DelayFunction": function, "MaxDelay": "1h",
        })
    };
    vec![
        ("^/Name", json!(""), Refused("must not be empty")),
        ("^/Name", json!("front end"), Taken),
        ("^/Name", json!("a/b"), Taken),
        ("^/Count", json!(0), Taken),
        ("^/Count", json!(-1), Refused("at least 0")),
        ("^/Count", json!(2.0), Taken),
        ("^/Count", json!(1.5), Refused("whole number")),
        ("^/Count", json!(50_001), Refused("at most 50000")),
        ("^/Tasks", json!([]), Refused("at least one task")),
        ("^/Tasks", json!([task, task]), Refused("another task is called")),
        ("^/Tasks", json!([leader("a"), leader("b")]), Refused("only one task")),
        ("^/ShutdownDelay", json!("-1s"), Refused("negative")),
        ("^/EphemeralDisk", json!({"SizeMB": 9}), Refused("at least 10")),
        ("^/EphemeralDisk", json!({"SizeMB": 100}), Refused("do not fit the group's disk")),
        ("^/EphemeralDisk", json!({"Sticky": true}), Taken),
        ("^/RestartPolicy", json!({"Mode": "x"}), Refused("neither fail nor delay")),
        ("^/RestartPolicy", json!({"Attempts": 0, "Mode": "delay"}), Refused("ambiguous")),
        ("^/RestartPolicy", json!({"Attempts": 0, "Mode": "fail"}), Taken),
        ("^/RestartPolicy", json!({"Interval": "4s"}), Refused("at least 5s")),
        ("^/RestartPolicy", json!({"Attempts": 10, "Delay": "1h"}), Refused("do not fit")),
        ("^/RestartPolicy", json!({"Attempts": -1}), Refused("at least 0")),
        ("^/ReschedulePolicy", json!({"Attempts": 3, "Unlimited": true}), Refused("contradict")),
        ("^/ReschedulePolicy", json!({"Attempts": 3}), Refused("Interval: must be at least 15s")),
        (
            "^/ReschedulePolicy",
            json!({"Attempts": 3, "Interval": "1h"}),
            TakenHere("attempts without `unlimited` mean a limit"),
        ),
        ("^/ReschedulePolicy", json!({"Attempts": 0, "Unlimited": false}), Taken),
        ("^/ReschedulePolicy", json!({"Delay": "4s"}), Refused("at least 5s")),
        ("^/ReschedulePolicy", json!({"MaxDelay": "10s"}), Refused("at least Delay")),
        ("^/ReschedulePolicy", json!({"DelayFunction": "linear"}), Refused("none of constant")),
        ("^/ReschedulePolicy", limited(4, "2m", "constant"), Taken),
        ("^/ReschedulePolicy", limited(5, "2m", "constant"), Refused("do not fit")),
        ("^/ReschedulePolicy", limited(3, "121s", "exponential"), Taken),
        ("^/ReschedulePolicy", limited(3, "120s", "exponential"), Refused("do not fit")),
        ("^/ReschedulePolicy", limited(4, "89s", "fibonacci"), Refused("do not fit")),
        ("^/ReschedulePolicy", limited(4, "90s", "fibonacci"), Taken),
        ("^/ReschedulePolicy", limited(1, "14s", "constant"), Refused("at least 15s")),
        ("^/Migrate", json!({"HealthyDeadline": "1s"}), Refused("must be shorter")),
        ("^/Volumes", json!({"v": {"Type": "host"}}), RefusedHere("not supported", NOT_BUILT)),
        ("^/MaxRunDuration", json!("1h"), Refused("only batch and sysbatch jobs end")),
        ("^/Scaling", json!({"Max": 2}), Taken),
        ("^/Scaling", json!({"Min": 1}), Refused("maximum count must be specified")),
        ("^/Scaling", json!({"Min": 3, "Max": 2}), Refused("must not be less than minimum")),
        ("^/Scaling", json!({"Min": -1, "Max": 2}), Refused("at least 0")),
        ("^/Scaling", json!({"Max": 0}), Refused("must not be less than minimum")),
        ("^/Scaling", json!({"Max": 2, "Type": "x"}), Refused("is not \"horizontal\"")),
        ("^/Scaling", json!({"Min": 2, "Max": 5, "Policy": {"check": [{"a": [{}]}]}}), Taken),
        ("^/Scaling", json!({"Max": 2, "Policy": 1}), Refused("expected an object")),
        ("^/Networks", json!([{"Mode": "bridge"}]), RefusedHere("not supported", NOT_BUILT)),
        (
            "^/Networks",
            json!([{"ReservedPorts": [{"Label": "a", "Value": 80}, {"Label": "b", "Value": 80}]}]),
            Refused("reserved twice"),
        ),
        (
            "^/Networks",
            json!([{"DynamicPorts": [{"Label": "a"}, {"Label": "a"}]}]),
            Refused("another port is called"),
        ),
        (
            "^/Networks",
            json!([{"ReservedPorts": [{"Label": "a", "Value": 65_536}]}]),
            Refused("between 1 and 65535"),
        ),
        ("^/Networks", json!([{"DynamicPorts": [{"Label": "a-b", "To": -1}]}]), Taken),
        (
            "^/Networks",
            json!([{"DynamicPorts": [{"Label": "a", "To": 70_000}]}]),
            Refused("between -1 and 65535"),
        ),
        (
            "^/Networks",
            json!([{"DynamicPorts": [{"Label": "a b"}]}]),
            RefusedHere("is not a port label", "labels become names of variables"),
        ),
    ]
}

fn tasks() -> Vec<(&'static str, Value, Verdict)> {
    let distinct = |operand: &str| json!([{"LTarget": "${node.class}", "Operand": operand}]);
    vec![
        ("~/Name", json!(""), Refused("must not be empty")),
        ("~/Name", json!("web server"), Taken),
        ("~/Name", json!("a/b"), Refused("no slashes")),
        ("~/Name", json!("a\\b"), Refused("no slashes")),
        ("~/Name", json!("alloc"), RefusedHere("every allocation has", "it names a folder")),
        ("~/Driver", json!(""), Refused("needs a driver")),
        ("~/Driver", json!("no-such"), Taken),
        ("~/User", json!("nobody"), Taken),
        ("~/KillSignal", json!("SIGTERM"), Taken),
        ("~/KillSignal", json!("HUP"), Taken),
        ("~/KillSignal", json!("sigusr1"), Taken),
        ("~/KillSignal", json!("SIGHUB"), RefusedHere("did you mean \"SIGHUP\"", SLIP)),
        ("~/KillTimeout", json!("-1s"), Refused("negative")),
        ("~/KillTimeout", json!("soon"), Refused("duration")),
        ("~/KillTimeout", json!(0), Taken),
        ("~/ShutdownDelay", json!("-1s"), Refused("negative")),
        ("~/Resources", json!({"CPU": 0}), Refused("at least 1")),
        ("~/Resources", json!({"MemoryMB": 9}), Refused("at least 10")),
        ("~/Resources", json!({"MemoryMB": 64, "MemoryMaxMB": 32}), Refused("at least MemoryMB")),
        ("~/Resources", json!({"MemoryMB": 64, "MemoryMaxMB": 0}), Taken),
        ("~/Resources", json!({"MemoryMB": 64, "MemoryMaxMB": -1}), Taken),
        ("~/Resources", json!({"MemoryMB": 64, "MemoryMaxMB": -2}), Refused("at least")),
        ("~/Resources", json!({"Cores": 1}), RefusedHere("not supported", NOT_BUILT)),
        ("~/LogConfig", json!({"MaxFiles": 0}), Refused("at least 1")),
        ("~/LogConfig", json!({"MaxFileSizeMB": 0}), Refused("at least 1")),
        ("~/LogConfig", json!({"MaxFiles": 30}), Refused("do not fit the group's disk")),
        ("~/LogConfig", json!({"Disabled": true, "MaxFiles": 30}), Taken),
        ("~/Config", json!([1]), Refused("expected an object")),
        ("~/Env", json!({"A=B": "1"}), RefusedHere("cannot contain", SLIP)),
        ("~/Env", json!({"a-b": "1", "c.d": "2"}), Taken),
        ("~/Constraints", distinct("distinct_hosts"), Refused("whole instances")),
        ("~/Constraints", distinct("distinct_property"), Refused("whole instances")),
        ("~/Constraints", distinct("is_set"), Taken),
        ("~/RestartPolicy", json!({"Interval": "1s"}), Refused("at least 5s")),
        ("~/Identity", json!({"Env": true, "File": true}), Taken),
        ("~/Identity", json!({"ChangeMode": "maybe"}), Refused("is none of noop")),
        ("~/Identities", json!([{"Name": "a"}, {"Name": "a"}]), Refused("another identity")),
        ("~/Lifecycle", json!({"Hook": "prestart"}), RefusedHere("not supported", NOT_BUILT)),
        ("~/Templates", json!([{"EmbeddedTmpl": "x"}]), RefusedHere("not supported", NOT_BUILT)),
        (
            "~/ScalingPolicies",
            json!([{"Type": "vertical_cpu", "Max": 500}]),
            RefusedHere("Enterprise alone", "only there it does something"),
        ),
    ]
}

fn conditions() -> Vec<(&'static str, Value, Verdict)> {
    let at = |left: &str, operand: &str, right: &str| json!([{"LTarget": left, "Operand": operand, "RTarget": right}]);
    let weighted = |weight: i64| json!([{"LTarget": "${node.class}", "Operand": "=", "RTarget": "x", "Weight": weight}]);
    let spread = |weight: i64, targets: Value| json!([{"Attribute": "${node.datacenter}", "Weight": weight, "SpreadTarget": targets}]);
    let share = |value: &str, percent: i64| json!({"Value": value, "Percent": percent});
    let twice = [spread(1, json!([]))[0].clone(), spread(2, json!([]))[0].clone()];
    vec![
        ("/Constraints", at("${node.class}", "=", "a"), Taken),
        ("/Constraints", at("${node.class}", "", "a"), TakenHere("job files leave it out too")),
        ("/Constraints", at("${node.class}", "=", ""), Refused("needs a value")),
        ("/Constraints", at("${node.class}", "!=", ""), Refused("needs a value")),
        ("/Constraints", at("${node.class}", "~", "a"), Refused("is not an operator")),
        ("/Constraints", at("", "=", "a"), Refused("name what is compared")),
        ("/Constraints", at("${meta.a}", "is_set", ""), Taken),
        ("/Constraints", at("${meta.a}", "is_set", "x"), Refused("must be empty")),
        ("/Constraints", at("${meta.a}", "regexp", "["), Refused("not a regular expression")),
        ("/Constraints", at("${attr.v}", "version", "x"), Refused("not a version condition")),
        ("/Constraints", at("${attr.v}", "semver", ">= 1.7"), Taken),
        ("/Constraints", at("${meta.a}", "set_contains", ""), Refused("needs a value")),
        ("/Constraints", at("", "distinct_hosts", ""), Taken),
        ("/Constraints", at("", "distinct_hosts", "maybe"), RefusedHere("true", SLIP)),
        ("/Constraints", at("${meta.a}", "distinct_property", "0"), Refused("at least 1")),
        ("/Constraints", at("${meta.a}", "distinct_property", "two"), Refused("whole number")),
        ("/Constraints", at("${meta.a}", "distinct_property", "2"), Taken),
        ("/Constraints", at("$meta.a", "=", "x"), RefusedHere("did you mean", SLIP)),
        ("/Constraints", at("${node.region}", "=", "x"), RefusedHere("no value of a node", SLIP)),
        ("/Affinities", weighted(0), Refused("weight of 0")),
        ("/Affinities", weighted(-100), Taken),
        ("/Affinities", weighted(101), Refused("between")),
        ("/Affinities", at("", "distinct_hosts", "true"), Refused("concerns whole instances")),
        ("^/Affinities", weighted(50), Taken),
        ("/Spreads", json!([{"Weight": 50}]), Refused("is missing")),
        ("/Spreads", spread(101, json!([])), Refused("between")),
        ("/Spreads", spread(0, json!([])), Refused("between")),
        ("/Spreads", spread(50, json!([share("a", 60), share("b", 50)])), Refused("add up")),
        ("/Spreads", spread(50, json!([share("a", 10), share("a", 10)])), Refused("merge them")),
        ("/Spreads", spread(50, json!([share("a", 60), share("b", 40)])), Taken),
        ("/Spreads", json!(twice), RefusedHere("merge them", "the second would hide the first")),
        ("/Spreads", json!([{"Attribute": "dc1"}]), RefusedHere("same on all nodes", SLIP)),
    ]
}

fn services() -> Vec<(&'static str, Value, Verdict)> {
    let check = |check: Value| json!([{"Name": "s", "PortLabel": "http", "Checks": [check]}]);
    let tcp = json!({"Type": "tcp", "Interval": "10s", "Timeout": "2s"});
    let with = |name: &str, value: Value| {
        let mut one = tcp.clone();
        one[name] = value;
        check(one)
    };
    let named = |name: &str| json!([{"Name": name}]);
    vec![
        ("~/Services", check(tcp.clone()), Taken),
        ("~/Services", with("Type", json!("ping")), Refused("is none of http")),
        ("~/Services", with("Type", json!("")), Refused("is missing")),
        ("~/Services", with("Type", json!("http")), Refused("Path: is missing")),
        ("~/Services", with("Type", json!("script")), Refused("Command: is missing")),
        ("~/Services", with("Interval", json!(0)), Refused("at least 1s")),
        ("~/Services", with("Timeout", json!("500ms")), Refused("at least 1s")),
        ("~/Services", with("Advertise", json!("")), Taken),
        ("~/Services", json!([{"Name": "s", "Checks": [tcp]}]), Refused("has a port")),
        ("^/Services", named("web"), Taken),
        ("^/Services", named("web.app"), Refused("is not a service's name")),
        ("^/Services", named("web app"), Refused("is not a service's name")),
        ("^/Services", named("-web"), Refused("is not a service's name")),
        ("^/Services", named("${JOB}-${TASKGROUP}"), Taken),
        ("^/Services", named("web-${NOMAD_DC}"), Taken),
        ("^/Services", json!([{"Name": "a"}, {"Name": "a"}]), Refused("is there twice")),
        ("^/Services", json!([{"Name": "a", "PortLabel": "no"}]), Refused("has no port")),
        ("^/Services", json!([{"Name": "a", "Provider": "eureka"}]), Refused("is none of consul")),
        ("^/Services", json!([{"Name": "a", "Provider": "nomad"}]), Taken),
        ("^/Services", json!([{"Name": "a", "AddressMode": "x"}]), Refused("is none of auto")),
        ("^/Services", json!([{"Name": "a", "OnUpdate": "x"}]), Refused("is none of")),
        ("^/Services", json!([{"Connect": {"Native": true}}]), RefusedHere("not supp", NOT_BUILT)),
    ]
}

/// Templates for dispatches.
fn templates() -> Vec<(&'static str, &'static str, Value, Verdict)> {
    vec![
        (
            "batch",
            "/ParameterizedJob",
            json!({"MetaRequired": [""]}),
            RefusedHere("is empty", SLIP),
        ),
        (
            "batch",
            "/ParameterizedJob",
            json!({"MetaRequired": ["a=b"]}),
            RefusedHere("or a =", SLIP),
        ),
        (
            "batch",
            "/ParameterizedJob",
            json!({"MetaOptional": ["a", "a"]}),
            RefusedHere("is there twice", SLIP),
        ),
        (
            "batch",
            "/ParameterizedJob",
            json!({"MetaRequired": ["a"], "MetaOptional": ["a"]}),
            Refused("is required as well"),
        ),
    ]
}

/// Rows of other kinds of jobs.
fn others() -> Vec<(&'static str, &'static str, Value, Verdict)> {
    let condition = json!([{"LTarget": "${node.class}", "Operand": "=", "RTarget": "x"}]);
    let spread = json!([{"Attribute": "${node.datacenter}"}]);
    let update = json!({"MaxParallel": 2});
    vec![
        ("batch", "^/MaxRunDuration", json!("1h"), Taken),
        ("sysbatch", "^/MaxRunDuration", json!(1_000_000_000), Taken),
        ("batch", "^/MaxRunDuration", json!(0), Refused("longer than 0s")),
        ("batch", "/Update", update.clone(), Refused("no update strategy")),
        ("sysbatch", "/Update", update.clone(), Refused("no update strategy")),
        ("system", "/Update", update.clone(), Taken),
        ("batch", "/Migrate", update.clone(), Refused("only service jobs migrate")),
        ("system", "^/Migrate", update, Refused("only service jobs migrate")),
        ("system", "^/Count", json!(2), Refused("0 or 1")),
        ("sysbatch", "^/Count", json!(2), Refused("0 or 1")),
        ("system", "^/Count", json!(0), Taken),
        ("system", "/Affinities", condition.clone(), Refused("cannot have affinities")),
        ("system", "~/Affinities", condition.clone(), Refused("cannot have affinities")),
        ("sysbatch", "/Affinities", condition, Taken),
        ("system", "^/Spreads", spread.clone(), Refused("cannot have spreads")),
        ("sysbatch", "^/Spreads", spread, Taken),
        ("system", "^/ReschedulePolicy", json!({"Attempts": 1}), Refused("cannot have")),
        ("sysbatch", "^/ReschedulePolicy", json!({"Attempts": 1}), Taken),
        (
            "batch",
            "^/ReschedulePolicy",
            json!({"Unlimited": true}),
            TakenHere("the default of one attempt is not what was written"),
        ),
        ("batch", "/ParameterizedJob", json!({"Payload": "required"}), Taken),
        ("batch", "~/DispatchPayload", json!({"File": "in/put"}), Taken),
        ("batch", "~/DispatchPayload", json!({"File": "../put"}), Refused("below local/")),
        ("batch", "~/DispatchPayload", json!({"File": ""}), Refused("needs a file")),
        ("batch", "/ParameterizedJob", json!({"Payload": "maybe"}), Refused("is none of")),
        ("system", "/ParameterizedJob", json!({}), Refused("only batch and sysbatch")),
        ("system", "/Periodic", json!({"Spec": "@daily"}), Refused("only batch and sysbatch")),
        ("sysbatch", "/Periodic", json!({"Spec": "@daily"}), Taken),
        ("batch", "/Periodic", json!({"Spec": "*/5 * * * *", "SpecType": "cron"}), Taken),
        ("batch", "/Periodic", json!({"Specs": ["0 3 * * sat", "@daily"], "Spec": ""}), Taken),
        ("batch", "/Periodic", json!({"Spec": "* * * * * * *", "Enabled": false}), Taken),
        ("batch", "/Periodic", json!({}), Refused("says no time")),
        (
            "batch",
            "/Periodic",
            json!({"Spec": "@daily", "Specs": ["@daily"]}),
            Refused("keep one of them"),
        ),
        ("batch", "/Periodic", json!({"Spec": "@daily", "SpecType": "x"}), Refused("\"cron\"")),
        (
            "batch",
            "/Periodic",
            json!({"Spec": "0 24 * * *"}),
            Refused("Job.Periodic.Spec: there is no hour \"24\": write 0 to 23 (at character 3)"),
        ),
        (
            "batch",
            "/Periodic",
            json!({"Specs": ["@daily", "* * *"]}),
            Refused("Job.Periodic.Specs[1]: "),
        ),
        (
            "batch",
            "/Periodic",
            json!({"Spec": "@daily", "TimeZone": "Europe/Nowhere"}),
            Refused("Job.Periodic.TimeZone: there is no time zone"),
        ),
        (
            "batch",
            "/Periodic",
            json!({"Spec": "@daily", "TimeZone": "Local"}),
            RefusedHere("servers may be in different zones", "the leader decides, whoever that is"),
        ),
        ("batch", "/Periodic", json!({"Spec": "0 0 30 2 *"}), RefusedHere("never comes", SLIP)),
        (
            "batch",
            "/Periodic",
            json!({"Spec": "0 22-2 * * *"}),
            RefusedHere("goes down: write 22-23,0-2", "Nomad's servers do not survive it"),
        ),
        ("batch", "/Periodic", json!({"Spec": "@midnight"}), TakenHere("other crons have it")),
    ]
}

#[test]
fn a_job_is_not_periodic_and_parameterized() {
    let changes = [("/ParameterizedJob", json!({})), ("/Periodic", json!({"Spec": "@daily"}))];
    let said = judge("batch", &changes).unwrap_err();
    assert!(said.contains("Job.Periodic: ") && said.contains("keep one of the two"), "{said}");
}

/// One error, whatever the number.
#[test]
fn crons_are_64_at_most() {
    let of = |number: usize| {
        let block = json!({"Specs": vec!["@daily"; number]});
        judge("batch", &[("/Periodic", block)])
    };
    assert!(of(64).is_ok());
    for number in [65, 20_000] {
        let said = of(number).unwrap_err();
        let expected = format!("Job.Periodic.Specs: has {number} crons, at most 64 may be");
        assert_eq!(said.trim(), expected, "{number}");
    }
}

#[test]
fn a_cron_that_is_over_is_refused_by_who_has_a_clock() {
    let job = json!({"ID": "j", "Type": "batch", "Periodic": {"Spec": "0 0 * * * 2024"},
        "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]});
    let spec = to_spec(&job).unwrap().spec;
    assert_eq!(super::check_to_come(&spec, 1_700_000_000), Ok(()));
    let over = super::check_to_come(&spec, 1_767_225_600).unwrap_err().to_string();
    assert!(over.starts_with("Job.Periodic.Spec: ") && over.contains("never comes"), "{over}");
}

#[test]
fn jobs_are_taken_and_refused_as_nomad_does() {
    let mut rows = 0;
    for list in [jobs(), groups(), tasks(), conditions(), services()] {
        rows += check("service", &list);
    }
    for (kind, at, value, verdict) in others().into_iter().chain(templates()) {
        rows += check(kind, &[(at, value, verdict)]);
    }
    assert!(rows >= 200, "{rows} rows");
}
