//! Golden files and properties of the whole module. Each job file in `golden/jobs` has its expected
//! output beside it (`UPDATE=1` rewrites): what `parse` gives or says, then what `to_spec` says,
//! then the warnings.
#![expect(clippy::unwrap_used, clippy::disallowed_types, reason = "tests; one measures its time")]

mod ways;

use std::{
    fmt::Write as _,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use fsm::{JobSpec, JobStatus, job::Dispatch};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/jobs")
}

fn sources() -> Vec<(String, String)> {
    let mut out: Vec<_> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "hcl" || e == "json"))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    out.sort();
    out
}

fn fields() -> JobFields {
    JobFields {
        stop: false,
        status: JobStatus::Running,
        stable: true,
        version: 3,
        create_index: 10,
        modify_index: 30,
        job_modify_index: 20,
        submitted_at_ms: 1_700_000_000_123,
    }
}

/// Everything a user sees of one file.
fn report(name: &str, source: &str) -> String {
    let mut out = String::new();
    match parse_with_warnings(name, source) {
        Err(diagnostics) => writeln!(out, "parse failed\n\n{diagnostics}").unwrap(),
        Ok((job, diagnostics)) => {
            writeln!(out, "{job:#}\n").unwrap();
            if !diagnostics.is_empty() {
                writeln!(out, "{diagnostics}").unwrap();
            }
            match to_spec(&job) {
                Ok(conversion) => {
                    writeln!(out, "accepted").unwrap();
                    for warning in conversion.warnings {
                        writeln!(out, "warning: {warning}").unwrap();
                    }
                }
                Err(errors) => {
                    writeln!(out, "refused").unwrap();
                    for error in errors {
                        writeln!(out, "{error}").unwrap();
                    }
                }
            }
        }
    }
    out
}

#[test]
fn files_give_what_stands_beside_them() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = Vec::new();
    for (name, source) in sources() {
        let found = report(&name, &source);
        assert_eq!(
            name.starts_with("bad_"),
            !found.contains("\naccepted"),
            "{name} is named for the other outcome:\n{found}"
        );
        let beside = directory().join(format!("{name}.expected"));
        if update {
            fs::write(&beside, &found).unwrap();
        } else if fs::read_to_string(&beside).ok().as_ref() != Some(&found) {
            wrong.push(format!("--- {name}\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "run with UPDATE=1 and read the difference:\n{}", wrong.join("\n"));
}

/// The spec of a good file.
fn good(name: &str) -> JobSpec {
    let source = fs::read_to_string(directory().join(name)).unwrap();
    to_spec(&parse(name, &source).unwrap()).unwrap().spec
}

#[test]
fn a_view_converts_back_to_its_spec() {
    for (name, _) in sources().iter().filter(|(name, _)| !name.starts_with("bad_")) {
        let spec = good(name);
        let view = job_json(&spec, &fields());
        let again = to_spec(&view).unwrap_or_else(|errors| panic!("{name}: {errors:?}")).spec;
        assert_eq!(again, spec, "{name}");
        let text = view.to_string();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(to_spec(&read).unwrap().spec, spec, "{name} through text");
    }
}

#[test]
fn a_view_has_the_fields_of_the_api() {
    let view = job_json(&good("spread.hcl"), &fields());
    let beside = directory().join("spread.hcl.view");
    let found = format!("{view:#}\n");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&beside, &found).unwrap();
    }
    assert_eq!(fs::read_to_string(&beside).unwrap(), found, "run with UPDATE=1");
    assert_eq!(view["SubmitTime"], 1_700_000_000_123_000_000i64);
    assert_eq!(view["Status"], "running");
    let mut child = good("sysbatch.hcl");
    child.key.id = "cleanup/dispatch-1700000000-0123abcd".into();
    child.dispatch = Some(Dispatch { payload: b"foo".to_vec(), token: "once".into() });
    let view = job_json(&child, &fields());
    assert_eq!((&view["ParentID"], &view["Dispatched"]), (&json!("cleanup"), &json!(true)));
    assert_eq!(view["Payload"], "Zm9v");
    assert_eq!(view["DispatchIdempotencyToken"], "once");
}

#[test]
fn a_parameterized_job_says_how_many_run_and_where_the_payload_goes() {
    let source = r#"job "t" {
  type = "batch"
  parameterized {
    payload     = "required"
    max_running = 3
  }
  group "g" {
    task "t" {
      driver = "mock"
      dispatch_payload { file = "in/put" }
    }
  }
}"#;
    let parsed = parse("t.hcl", source).unwrap();
    let spec = to_spec(&parsed).unwrap().spec;
    assert_eq!(spec.parameterized.as_ref().map(|block| block.max_running), Some(3));
    assert_eq!(&*spec.groups[0].tasks[0].dispatch_payload, "in/put");
    let view = job_json(&spec, &fields());
    assert_eq!(view["ParameterizedJob"]["MaxRunning"], 3);
    assert_eq!(view["TaskGroups"][0]["Tasks"][0]["DispatchPayload"], json!({"File": "in/put"}));
    assert_eq!(to_spec(&view).unwrap().spec, spec);
    let at = "Job.TaskGroups[0].Tasks[0].DispatchPayload.File";
    for file in ["", "/etc/passwd", "../x", "a//b", "."] {
        let with = |job: &mut Value| {
            job["TaskGroups"][0]["Tasks"][0]["DispatchPayload"] = json!({ "File": file });
        };
        refused(with, at, if file.is_empty() { "needs a file" } else { "below local/" });
    }
    let bound = |job: &mut Value| {
        job["Type"] = "batch".into();
        job["ParameterizedJob"] = json!({ "MaxRunning": -1 });
    };
    refused(bound, "Job.ParameterizedJob.MaxRunning", "must be between 0");
}

#[test]
fn zeros_that_a_user_wrote_count() {
    let spec = job(|job| {
        job["Update"] = json!({"MaxParallel": 0});
        job["Migrate"] = json!({"MaxParallel": 0});
    })
    .unwrap()
    .spec;
    assert_eq!(spec.groups[0].update.unwrap().max_parallel, 0);
    assert_eq!(spec.groups[0].migrate.max_parallel, 0);
    let zeros = json!({"Stagger": "45s", "MinHealthyTime": 0, "ProgressDeadline": "0s"});
    let update = |change: Value| job(|job| job["Update"] = change).unwrap().spec.groups[0].update;
    let written = update(zeros.clone()).unwrap();
    assert_eq!((written.stagger_ms, written.healthy_ms_min), (45_000, 0));
    assert_eq!((written.progress_deadline_ms, written.healthy_deadline_ms), (0, 300_000));
    assert_eq!(update(json!({"Stagger": 0, "MaxParallel": 0})).unwrap().max_parallel, 0);
    let mut printed = zeros;
    for (name, value) in
        [("HealthCheck", json!("")), ("AutoPromote", json!(false)), ("Canary", json!(0))]
    {
        printed[name] = value;
    }
    let printed = update(printed).unwrap();
    assert_eq!((printed.stagger_ms, printed.healthy_ms_min), (45_000, 10_000));
    assert_eq!(printed.progress_deadline_ms, 600_000);
    refused(|job| job["ID"] = "a\u{202e}b".into(), "Job.ID", "invisible");
    refused(
        |job| job["TaskGroups"][0]["Tasks"][0]["Name"] = "../x".into(),
        "Job.TaskGroups[0].Tasks[0].Name",
        "directory",
    );
}

#[test]
fn the_defaults_are_those_of_the_documentation() {
    let spec = good("minimal.hcl");
    assert_eq!(
        (&*spec.key.namespace, &*spec.region, &*spec.node_pool),
        ("default", "global", "default")
    );
    assert_eq!((spec.kind, spec.priority, spec.all_at_once), (fsm::JobKind::Service, 50, false));
    assert_eq!(spec.datacenters, [fsm::Text::from("*")]);
    assert_eq!(&*spec.name, "m");
    let group = &spec.groups[0];
    assert_eq!((group.count, group.disk_mb, group.network.is_none()), (1, 300, true));
    assert_eq!((group.restart.attempts, group.restart.interval_ms), (2, 1_800_000));
    assert_eq!((group.restart.delay_ms, group.restart.fail), (15_000, true));
    let reschedule = group.reschedule.unwrap();
    assert_eq!((reschedule.delay_ms, reschedule.delay_ms_max), (30_000, 3_600_000));
    assert!(reschedule.unlimited);
    let update = group.update.unwrap();
    assert_eq!((update.stagger_ms, update.max_parallel), (30_000, 1));
    assert_eq!((update.healthy_ms_min, update.healthy_deadline_ms), (10_000, 300_000));
    assert_eq!(update.progress_deadline_ms, 600_000);
    assert_eq!((group.migrate.max_parallel, group.migrate.healthy_deadline_ms), (1, 300_000));
    let task = &group.tasks[0];
    assert_eq!((task.resources.cpu_mhz, task.resources.memory_mb), (100, 300));
    assert_eq!((task.kill_timeout_ms, &*task.kill_signal), (5_000, ""));
    assert_eq!((task.logs.files_max, task.logs.file_mb_max), (10, 10));
    assert_eq!((&*task.config_json, task.restart), ("{}", group.restart));
}

#[test]
fn groups_inherit_from_the_job_and_tasks_from_the_group() {
    let spec = good("web.hcl");
    let group = &spec.groups[0];
    let update = group.update.unwrap();
    assert_eq!((update.max_parallel, update.healthy_ms_min), (2, 15_000));
    assert_eq!((update.healthy_deadline_ms, update.stagger_ms), (180_000, 30_000));
    assert_eq!(group.tasks[0].restart, group.restart);
    assert_eq!(group.tasks[0].restart.attempts, 4);
    let batch = good("batch.hcl");
    assert_eq!(batch.groups[0].update, None);
    assert_eq!(batch.groups[0].tasks[0].restart.attempts, 3);
    assert_eq!(batch.groups[0].tasks[1].restart.attempts, 0);
    let system = good("system.hcl");
    assert_eq!(system.groups[0].reschedule, None);
    assert_eq!(system.groups[0].update.unwrap().max_parallel, 5);
}

fn job(change: impl FnOnce(&mut Value)) -> Result<Conversion, Vec<FieldError>> {
    let mut job = json!({"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]});
    change(&mut job);
    to_spec(&job)
}

fn refused(change: impl FnOnce(&mut Value), path: &str, words: &str) {
    let errors = job(change).expect_err(path);
    assert!(
        errors.iter().any(|error| error.path == path && error.message.contains(words)),
        "no error at {path} with `{words}` in {errors:?}"
    );
}

#[test]
fn bounds_are_kept() {
    let group = "Job.TaskGroups[0]";
    refused(|job| job["TaskGroups"][0]["Count"] = 50_001.into(), "Job.TaskGroups", "50000");
    refused(
        |job| job["TaskGroups"][0]["Count"] = (1u64 << 40).into(),
        &format!("{group}.Count"),
        "too large",
    );
    refused(
        |job| job["TaskGroups"][0]["Count"] = u64::MAX.into(),
        &format!("{group}.Count"),
        "whole number",
    );
    refused(|job| job["ID"] = "x".repeat(257).into(), "Job.ID", "257 bytes");
    refused(|job| job["ID"] = "a/dispatch-1".into(), "Job.ID", "dispatched");
    refused(|job| job["Meta"] = json!({"a": "x".repeat(1 << 20)}), "Job", "at most 1048576");
    refused(|job| job["TaskGroups"] = json!([]), "Job.TaskGroups", "at least one");
    refused(|job| job["Datacenters"] = json!(["a", ""]), "Job.Datacenters[1]", "empty");
    let mut deep = json!(1);
    for _ in 0..80 {
        deep = json!([deep]);
    }
    let task = format!("{group}.Tasks[0]");
    refused(
        |job| job["TaskGroups"][0]["Tasks"][0]["Config"] = json!({"a": deep}),
        &format!("{task}.Config"),
        "nested",
    );
    let many = vec![json!(7); 5_000];
    let errors = job(|job| job["TaskGroups"] = many.into()).expect_err("numbers are no groups");
    assert_eq!(errors.len(), MESSAGES_MAX);
    assert!(job(|job| job["TaskGroups"][0]["Count"] = 50_000.into()).is_ok());
}

/// What stands behind the bound is wrong in each of these lists, and is not looked at.
#[test]
fn of_a_list_that_is_too_long_only_the_beginning_is_read() {
    let check = |path: &str, change: &dyn Fn(&mut Value)| {
        let errors = job(change).expect_err(path);
        let found: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(found, [path], "{errors:?}");
        assert!(errors[0].message.contains("1001 entries"), "{errors:?}");
    };
    let list = |item: &dyn Fn(usize) -> Value, end: Value| {
        (0..1_000).map(item).chain([end]).collect::<Value>()
    };
    let attribute = |position: usize| json!({"Attribute": format!("${{meta.a{position}}}")});
    let distinct = |_: usize| json!({"Operand": "distinct_hosts"});
    let affinity = |_: usize| json!({"LTarget": "${attr.x}", "RTarget": "y"});
    let target = |position: usize| json!({"Value": format!("v{position}")});
    let name = |position: usize| json!(format!("m{position}"));
    let port = |position: usize| json!({"Label": format!("p{position}")});
    let service = |position: usize| json!({"Name": format!("s{position}")});
    check("Job.Constraints", &|job| job["Constraints"] = list(&distinct, json!(7)));
    check("Job.Affinities", &|job| job["Affinities"] = list(&affinity, json!(7)));
    check("Job.Spreads", &|job| job["Spreads"] = list(&attribute, attribute(0)));
    check("Job.Spreads[0].SpreadTarget", &|job| {
        job["Spreads"] =
            json!([{"Attribute": "${meta.a}", "SpreadTarget": list(&target, target(0))}]);
    });
    check("Job.Datacenters", &|job| job["Datacenters"] = list(&name, json!("")));
    check("Job.ParameterizedJob.MetaOptional", &|job| {
        job["Type"] = "batch".into();
        job["ParameterizedJob"] =
            json!({"MetaRequired": ["both"], "MetaOptional": list(&name, json!("both"))});
    });
    check("Job.TaskGroups[0].Networks[0].DynamicPorts", &|job| {
        job["TaskGroups"][0]["Networks"] = json!([{"DynamicPorts": list(&port, port(0))}]);
    });
    check("Job.TaskGroups[0].Services", &|job| {
        job["TaskGroups"][0]["Services"] = list(&service, json!({"PortLabel": "gone"}));
    });
    check("Job.TaskGroups[0].Services[0].Checks", &|job| {
        let tcp = json!({"Type": "tcp", "Interval": "1s", "Timeout": "1s"});
        let checks = list(&|_| tcp.clone(), json!({"Type": "gone"}));
        job["TaskGroups"][0]["Services"] = json!([{"PortLabel": "80", "Checks": checks}]);
    });
}

#[test]
fn leniency_of_the_api() {
    let spec = job(|job| {
        job["Priority"] = 60.0.into();
        job["Name"] = Value::Null;
        job["TaskGroups"][0]["Tasks"][0]["KillTimeout"] = 1.into();
        job["TaskGroups"][0]["Tasks"][0]["ShutdownDelay"] = "1m30s".into();
        job["TaskGroups"][0]["Networks"] = json!([{"DynamicPorts": [{"Label": "a", "To": -1}]}]);
    })
    .unwrap()
    .spec;
    assert_eq!((spec.priority, &*spec.name), (60, "j"));
    let group = &spec.groups[0];
    assert_eq!((group.tasks[0].kill_timeout_ms, group.tasks[0].shutdown_delay_ms), (1, 90_000));
    assert_eq!(group.network.as_ref().unwrap().ports[0].to, 0);
    let conversion = job(|job| {
        job["priority"] = 70.into();
        job["NewThing"] = json!({"A": [1]});
        job["Meta"] = Value::Null;
        job["TaskGroups"][0]["count"] = 3.into();
        job["TaskGroups"][0]["Constraint"] = Value::Null;
        job["TaskGroups"][0]["Networks"] = json!([{"DynamicPorts": [{"Label": "a"}]}]);
        job["TaskGroups"][0]["Services"] = json!([{"Name": "s", "PortLabel": "a", "Checks": [
            {"Name": "c", "Type": "tcp", "Advertise": "", "Interval": 1_000_000_000, "Timeout": "2s"},
        ]}]);
    });
    let Conversion { spec, warnings } = conversion.unwrap();
    assert_eq!((spec.priority, spec.groups[0].count), (70, 3));
    for words in [
        "Job.NewThing: unknown field, it is ignored",
        "Job.TaskGroups[0].Constraint: unknown field, it is ignored; did you mean \"Constraints\"?",
        "service \"s\": checks are stored but not run yet",
    ] {
        assert!(warnings.iter().any(|warning| warning == words), "{words} in {warnings:?}");
    }
    assert!(!warnings.iter().any(|warning| warning.contains("Advertise")), "{warnings:?}");
    for not_a_job in [json!(null), json!([]), json!("x"), json!({})] {
        assert!(to_spec(&not_a_job).is_err(), "{not_a_job}");
    }
}

/// Nomad's program sends each field of a service, a job file names few.
#[test]
fn a_service_with_all_fields_at_zero_is_the_same_service() {
    let of = |service: Value| {
        let conversion = job(|job| {
            job["TaskGroups"][0]["Services"] = json!([service]);
        });
        conversion.unwrap().spec.groups[0].services_json.clone()
    };
    let check = json!({"Type": "script", "Command": "/bin/true", "Interval": 1_000_000_000, "Timeout": 1_000_000_000});
    let short = of(json!({"Name": "s", "Meta": {"a": ""}, "Checks": [check]}));
    let mut long = check;
    long["TLSSkipVerify"] = false.into();
    long["Args"] = Value::Null;
    long["Method"] = "".into();
    long["SuccessBeforePassing"] = 0.into();
    let service = json!({
        "Name": "s", "Meta": {"a": ""}, "EnableTagOverride": false, "Tags": [], "Address": "", "CanaryMeta": {}, "Checks": [long],
    });
    assert_eq!(short, of(service));
    assert!(short.contains(r#""Meta":{"a":""}"#), "{short}");
}

#[test]
fn nesting_is_bounded_before_the_stack_is() {
    for (open, close) in [
        ("[", "]"),
        ("(", ")"),
        ("{a=", "}"),
        ("\"${", "}\""),
        ("!", ""),
        ("f(", ")"),
        ("a ? b : ", ""),
        ("{\"a\":", "}"),
        ("[for x in ", ": x]"),
        ("a[", "]"),
    ] {
        for depth in [60, 100_000] {
            let value = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let source = format!("job \"a\" {{\n  meta = {{ a = {value} }}\n}}\n");
            let hcl = parse("x.hcl", &source);
            let json = parse("x.json", &value);
            let answered = depth < 100 || (hcl.is_err() && json.is_err());
            assert!(answered, "{open} × {depth} was accepted");
        }
    }
    let blocks = format!("{}{}", "a {\n".repeat(100_000), "}\n".repeat(100_000));
    assert!(parse("x.hcl", &blocks).is_err());
    let long = parse("x.json", &"[".repeat(10 << 20)).expect_err("too long");
    assert!(long.to_string().contains("at most 1048576"), "{long}");
    let config = format!(
        "job \"a\" {{ \n group \"g\" {{\n task \"t\" {{\n driver = \"mock\"\n config {{\n {} {} \n}}\n}}\n}}\n}}\n",
        "a {\n".repeat(55),
        "}\n".repeat(55)
    );
    assert!(parse("x.hcl", &config).is_ok(), "{}", parse("x.hcl", &config).unwrap_err());
}

/// Texts that are nearly job files.
fn nearly_hcl() -> impl Strategy<Value = String> {
    let pieces: Vec<&'static str> = vec![
        "job",
        "group",
        "task",
        "config",
        "constraint",
        "network",
        "port",
        "env",
        "meta",
        "{",
        "}",
        "{\n",
        "\n}\n",
        "\"a\"",
        "\"é${attr.x}\"",
        "=",
        "count",
        "1",
        "-1",
        "1e999",
        "18446744073709551616",
        "true",
        "null",
        "[",
        "]",
        ",",
        "\n",
        "\t",
        "# c\n",
        "/* c",
        "<<EOF\n",
        "EOF\n",
        "${",
        "%{",
        "\\u0000",
        "\u{202e}",
        "driver",
        "update",
        "dynamic",
    ];
    let pieces = Arc::new(pieces);
    let piece = (0..pieces.len()).prop_map(move |position| pieces[position]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.join(" "))
}

/// JSON with the names and shapes of the API and any values.
fn nearly_api() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|float| json!(float)),
        ".{0,8}".prop_map(Value::from),
        Just(json!("30s")),
    ];
    let names = prop::sample::select(vec![
        "ID",
        "Name",
        "Type",
        "TaskGroups",
        "Tasks",
        "Count",
        "Constraints",
        "LTarget",
        "Operand",
        "RTarget",
        "Spreads",
        "SpreadTarget",
        "Percent",
        "Weight",
        "Networks",
        "ReservedPorts",
        "DynamicPorts",
        "Label",
        "Value",
        "To",
        "Services",
        "Checks",
        "Resources",
        "CPU",
        "MemoryMB",
        "RestartPolicy",
        "ReschedulePolicy",
        "Update",
        "Migrate",
        "Attempts",
        "Interval",
        "Delay",
        "Config",
        "Env",
        "Meta",
        "LogConfig",
        "MaxFiles",
        "KillTimeout",
        "Identity",
        "Consul",
        "ParameterizedJob",
        "Bogus",
        "Datacenters",
    ]);
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..6).prop_map(|entries| Value::Object(
                entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            )),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_is_answered(text in ".{0,300}", json in any::<bool>()) {
        let name = if json { "x.json" } else { "x.hcl" };
        if let Err(diagnostics) = parse(name, &text) {
            prop_assert!(diagnostics.has_errors());
            prop_assert!(!diagnostics.to_string().is_empty());
        }
    }

    #[test]
    fn nearly_hcl_is_answered(text in nearly_hcl()) {
        match parse("x.hcl", &text) {
            Ok(job) => drop(to_spec(&job)),
            Err(diagnostics) => {
                for diagnostic in &diagnostics {
                    let shown = diagnostic.to_string();
                    prop_assert!(shown.contains(&diagnostic.message), "{}", shown);
                    prop_assert!(diagnostic.line >= 1 && diagnostic.column >= 1);
                }
            }
        }
    }

    #[test]
    fn a_damaged_file_is_answered(at in 0usize..4_000, with in ".{0,3}") {
        let source = fs::read_to_string(directory().join("web.hcl")).unwrap();
        let at = at % source.len();
        let damaged = format!("{}{with}{}", &source[..at], source.get(at + 1..).unwrap());
        if let Ok(job) = parse("x.hcl", &damaged) {
            drop(to_spec(&job));
        }
    }

    #[test]
    fn any_json_is_answered_and_what_is_accepted_round_trips(value in nearly_api()) {
        match to_spec(&value) {
            Ok(conversion) => {
                let view = job_json(&conversion.spec, &fields());
                prop_assert_eq!(to_spec(&view).unwrap().spec, conversion.spec);
            }
            Err(errors) => prop_assert!(!errors.is_empty()),
        }
    }

    #[test]
    fn policies_round_trip(
        count in 0u32..100,
        kind in prop::sample::select(vec!["service", "batch"]),
        attempts in 0u32..5,
        interval_ms in 600_000u64..2_000_000,
        delay_ms in 0u64..600_000,
        parallel in 0u32..9,
        ports in prop::collection::btree_map("[a-z]{1,6}", (0u16..3, 0u16..9_000), 0..5),
        env in prop::collection::btree_map("[A-Z]{1,4}", ".{0,5}", 0..4),
        delay in any::<bool>(),
    ) {
        let (dynamic, reserved): (Vec<_>, Vec<_>) = ports.into_iter().partition(|(_, (value, _))| *value == 0);
        let port = |(position, (label, (_, to))): (usize, (String, (u16, u16)))| json!({"Label": label, "Value": 1000 + position, "To": to});
        let reserved: Vec<_> = reserved.into_iter().enumerate().map(port).collect();
        let dynamic: Vec<_> = dynamic.into_iter().map(|(label, (_, to))| json!({"Label": label, "To": to})).collect();
        let env: std::collections::BTreeMap<_, _> = env.into_iter().map(|(key, value)| (key, value.replace('\0', ""))).collect();
        let result = job(|job| {
            job["Type"] = kind.into();
            let group = &mut job["TaskGroups"][0];
            group["Count"] = count.into();
            group["Networks"] = json!([{"ReservedPorts": reserved, "DynamicPorts": dynamic}]);
            group["RestartPolicy"] = json!({"Attempts": attempts, "Interval": interval_ms * 1_000_000, "Delay": delay_ms * 1_000_000, "Mode": if delay && attempts > 0 { "delay" } else { "fail" }});
            group["ReschedulePolicy"] = json!({"Attempts": attempts, "Interval": interval_ms * 1_000_000, "Unlimited": false});
            if kind == "service" {
                group["Update"] = json!({"MaxParallel": parallel});
            }
            group["Tasks"][0]["Env"] = json!(env);
        });
        if delay_ms * u64::from(attempts) > interval_ms {
            prop_assert!(result.is_err());
        } else {
            let spec = result.unwrap().spec;
            prop_assert_eq!(to_spec(&job_json(&spec, &fields())).unwrap().spec, spec);
        }
    }
}

/// The text of a `<<-` heredoc with these lines.
fn flushed(lines: &str) -> String {
    let source = format!("job \"a\" {{\n  meta = {{ k = <<-EOF\n{lines}    EOF\n  }}\n}}\n");
    let job = parse("a.hcl", &source).unwrap_or_else(|error| panic!("{error}"));
    job["Meta"]["k"].as_str().unwrap().to_owned()
}

#[test]
fn an_indented_heredoc_loses_what_all_its_lines_share_and_no_letter() {
    let script = "    export P=${NOMAD_PORT_http}\nif true; then\n    echo ${NOMAD_IP_http}\nfi\n";
    let config = format!(
        "job \"a\" {{\n group \"g\" {{\n task \"t\" {{\n driver = \"mock\"\n config {{\n args = [\"-c\", <<-EOF\n{script}    EOF\n]\n}}\n}}\n}}\n}}\n"
    );
    let job = parse("a.hcl", &config).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(job["TaskGroups"][0]["Tasks"][0]["Config"]["args"], json!(["-c", script]));
    assert_eq!(flushed(script), script);
    for (lines, expected) in [
        ("        a\n  \n          b\n\n        c\n", "a\n  \n  b\n\nc\n"),
        ("    a ${attr.x}${attr.y}\n      b\n", "a ${attr.x}${attr.y}\n  b\n"),
        ("    a\n${attr.x} b\n", "    a\n${attr.x} b\n"),
        ("${attr.x}\n    a\n", "${attr.x}\n    a\n"),
        ("    ${attr.x}\n      a\n", "${attr.x}\n  a\n"),
        ("    a $${x} %%{ y $$${z}\n", "a ${x} %{ y $${z}\n"),
        ("\t\ta\n \tb\n", "a\nb\n"),
        ("    a\r\n  \r\n    b\r\n", "a\r\n  \r\nb\r\n"),
        ("  \n", "  \n"),
        ("", ""),
    ] {
        assert_eq!(flushed(lines), expected, "of {lines:?}");
    }
    let plain = "job \"a\" {\n  meta = { k = <<EOF\n    a ${attr.x}\n  b\nEOF\n  }\n}\n";
    assert_eq!(parse("a.hcl", plain).unwrap()["Meta"]["k"], "    a ${attr.x}\n  b\n");
}

/// Many names in one map are read in a time that does not look like a hang.
#[test]
fn a_large_file_is_read() {
    for (open, assign) in [("env {", "="), ("env = {", ":")] {
        let mut source = format!(
            "job \"a\" {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"mock\"\n      {open}\n"
        );
        for position in 0..5_000 {
            writeln!(source, "        NAME_{position} {assign} \"a value of this environment\"")
                .unwrap();
        }
        source.push_str("      }\n    }\n  }\n}\n");
        let spec = to_spec(&parse("a.hcl", &source).unwrap()).unwrap().spec;
        assert_eq!(spec.groups[0].tasks[0].env.len(), 5_000);
    }
    let many = format!("job \"a\" {{\n meta = {{ {} }}\n}}\n", "a=1,".repeat(50_000));
    let diagnostics = parse("a.hcl", &many).expect_err("more than is read");
    assert!(diagnostics.to_string().contains("20000"), "{diagnostics}");
}

/// Many blocks in a driver's configuration, which were each looked for among all that stands in it:
/// some minutes.
#[test]
fn many_blocks_are_read() {
    let started = Instant::now();
    let source = format!(
        "job \"a\" {{\n group \"g\" {{\n task \"t\" {{\n driver = \"mock\"\n config {{\n{}}}\n}}\n}}\n}}\n",
        "b {}\n".repeat(80_000)
    );
    let job = parse("a.hcl", &source).unwrap_or_else(|error| panic!("{error}"));
    let blocks = &job["TaskGroups"][0]["Tasks"][0]["Config"]["b"];
    assert_eq!(blocks.as_array().map(Vec::len), Some(80_000));
    assert!(started.elapsed() < Duration::from_mins(2), "{:?}", started.elapsed());
    let unknown = format!("job \"a\" {{\n{}}}\n", "taks {}\n".repeat(1_000));
    let diagnostics = parse("a.hcl", &unknown).expect_err("unknown blocks").to_string();
    assert!(diagnostics.contains("did you mean \"task\"?"), "{diagnostics}");
    assert!(diagnostics.ends_with("and 900 more messages\n"), "{diagnostics}");
    let both = "job \"a\" {\n meta {\n k = \"v\"\n k {}\n }\n}\n";
    let diagnostics = parse("a.hcl", both).expect_err("one name twice").to_string();
    assert!(diagnostics.contains("both an attribute and a block"), "{diagnostics}");
}

/// What of an update block has no effect is refused or said, with its place.
#[test]
fn parts_of_an_update_without_effect_are_warned_of() {
    let rolls = |block: Value| job(|job| job["TaskGroups"][0]["Update"] = block);
    let at = "Job.TaskGroups[0].Update";
    for (block, place, why) in [
        (json!({"AutoPromote": true}), "AutoPromote", "requires a Canary count"),
        (
            json!({"HealthyDeadline": "11m"}),
            "HealthyDeadline",
            "must be shorter than ProgressDeadline",
        ),
        (json!({"HealthCheck": "sometimes"}), "HealthCheck", "none of checks, task_states, manual"),
    ] {
        let change = |job: &mut Value| job["TaskGroups"][0]["Update"] = block.clone();
        refused(change, &format!("{at}.{place}"), why);
    }
    let system = |canaries: u32| {
        job(|job| {
            job["Type"] = json!("system");
            job["TaskGroups"][0]["Update"] = json!({"Canary": canaries});
        })
    };
    let share = system(100).unwrap();
    assert_eq!((share.warnings.len(), share.spec.groups[0].update.unwrap().canaries), (0, 100));
    let change = |job: &mut Value| {
        job["Type"] = json!("system");
        job["TaskGroups"][0]["Update"] = json!({"Canary": 101});
    };
    refused(change, &format!("{at}.Canary"), "is a percentage of the nodes in a system job");
    let written = rolls(json!({"HealthCheck": "checks"})).unwrap().warnings.join("\n");
    assert!(written.contains(&format!("{at}.HealthCheck: the group has no checks")), "{written}");
    let at_once = rolls(json!({"Canary": 1, "MaxParallel": 0})).unwrap().warnings.join("\n");
    let said = format!("{at}.Canary: has no effect with MaxParallel 0");
    assert!(at_once.contains(&said), "{at_once}");
    let large = job(|job| {
        job["TaskGroups"][0]["Count"] = json!(2);
        job["TaskGroups"][0]["Update"] = json!({"MaxParallel": 5});
    });
    let large = large.unwrap().warnings.join("\n");
    assert!(large.contains(&format!("{at}.MaxParallel: 5 is greater than the count")), "{large}");
    let halves = job(|job| {
        job["TaskGroups"][0]["Update"] = json!({"Canary": 1, "AutoPromote": true});
        let mut other = job["TaskGroups"][0].clone();
        other["Name"] = json!("other");
        other["Update"] = json!({"Canary": 1});
        job["TaskGroups"].as_array_mut().unwrap().push(other);
    });
    let halves = halves.unwrap().warnings.join("\n");
    assert!(halves.contains("auto_promote must be true for all groups"), "{halves}");
    let all = json!({
        "Canary": 2, "AutoPromote": true, "AutoRevert": true, "HealthCheck": "manual", "Stagger": "30s",
        "ProgressDeadline": 0,
    });
    let rolled = rolls(all).unwrap();
    assert_eq!(rolled.warnings, [""; 0]);
    let update = rolled.spec.groups[0].update.unwrap();
    assert_eq!((update.canaries, update.auto_promote, update.auto_revert), (2, true, true));
    assert_eq!(update.health_check, fsm::job::HealthCheck::Manual);
    assert_eq!(update.progress_deadline_ms, 0);
}
