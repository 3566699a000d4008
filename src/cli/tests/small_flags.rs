//! Nomad's smaller flags, each on the command that takes it: what is asked for and what is printed.

use serde_json::{Value, json};

use super::{ALLOCATION, Canned, EVALUATION, NODE_A, allocation, job_file, run, two_nodes};

#[test]
fn job_run_output_prints_the_job_and_registers_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = Canned::default().start();
    for flag in ["-output", "--output", "-output=true"] {
        let ran = server.run(&format!("job run {flag} {}", job_file(&directory)));
        let printed: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!((ran.code, printed["Job"]["ID"].is_string()), (0, true), "{flag}");
    }
    assert_eq!(server.lines(), Vec::<String>::new());
}

#[test]
fn several_jobs_are_stopped_one_after_the_other() {
    let job = |id: &str| json!({"ID": id, "Namespace": "default"});
    let server = Canned::default()
        .on("GET /v1/jobs", &json!([job("a"), job("b")]))
        .on("DELETE /v1/job/a", &json!({"EvalID": ""}))
        .on("DELETE /v1/job/b", &json!({"EvalID": ""}))
        .start();
    let ran = server.run("job stop -detach a b");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("Job \"a\" stopped\nJob \"b\" stopped\n"), "{}", ran.out);
}

#[test]
fn a_job_that_cannot_be_stopped_keeps_no_other_running() {
    let job = |id: &str| json!({"ID": id, "Namespace": "default"});
    let server = Canned::default()
        .on("GET /v1/jobs", &json!([job("a"), job("b"), job("c")]))
        .on("DELETE /v1/job/a", &json!({"EvalID": ""}))
        .fail("DELETE /v1/job/b", 500, "no leader")
        .on("DELETE /v1/job/c", &json!({"EvalID": ""}))
        .start();
    let ran = server.run("job stop -detach a wrong b c");
    assert_eq!((ran.code, ran.out.as_str()), (1, "Job \"a\" stopped\nJob \"c\" stopped\n"));
    let errors: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("Error: ")).collect();
    assert_eq!(errors.len(), 2, "{}", ran.err);
    assert!(errors[0].contains("\"wrong\" matches several"), "{}", ran.err);
    assert!(errors[1].contains("no leader"), "{}", ran.err);
}

#[test]
fn lists_are_newest_first_filtered_and_name_their_namespace() {
    let deployment = |id: &str, index: u64, namespace: &str| {
        json!({"ID": id, "JobID": "web", "JobVersion": 1, "Namespace": namespace, "CreateIndex": index,
            "Status": "running", "StatusDescription": "x"})
    };
    let rows = json!([deployment("aaaa", 3, "default"), deployment("bbbb", 9, "dev")]);
    let server = Canned::default().on("GET /v1/deployments", &rows).start();
    let ran = server.run("deployment list -namespace * -filter Status==running");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].starts_with("ID    Namespace  Job ID"), "{}", ran.out);
    assert!(
        lines[1].starts_with("bbbb  dev ") && lines[2].starts_with("aaaa  default"),
        "{}",
        ran.out
    );
    assert!(server.lines()[0].contains("filter=Status%3D%3Drunning"), "{:?}", server.lines());
}

#[test]
fn nodes_are_paged_and_only_their_ids_printed() {
    let server = two_nodes().followed_by("GET /v1/nodes", "next").start();
    let ran = server.run("node status -quiet -filter x -per-page 2 -page-token t -os -verbose");
    assert_eq!(ran.out.lines().next(), Some(NODE_A), "{}", ran.out);
    assert!(ran.err.contains("-page-token=next"), "{}", ran.err);
    assert_eq!(server.lines(), ["GET /v1/nodes?os=true&filter=x&per_page=2&next_token=t"]);
}

#[test]
fn logs_and_files_of_a_job_are_those_of_its_newest_running_allocation() {
    let mut old = allocation("complete");
    (old["ID"], old["CreateIndex"]) = (EVALUATION.into(), 9.into());
    let mut running = allocation("running");
    running["TaskStates"] = json!({"server": {"State": "running"}});
    let server = Canned::default()
        .on("GET /v1/jobs", &json!([{"ID": "web", "Namespace": "default"}]))
        .on("GET /v1/job/web/allocations", &json!([old, running]))
        .on(&format!("GET /v1/allocation/{ALLOCATION}"), &running)
        .fail(&format!("GET /v1/client/fs/logs/{ALLOCATION}"), 200, "one\n")
        .start();
    assert_eq!(server.run("alloc logs -job web").out, "one\n");
    let none = server.run("alloc fs -job -group nope web");
    assert!(none.err.contains("has no such allocation"), "{}", none.err);
    let listed = server.run("job allocs web");
    assert!(listed.out.contains(&ALLOCATION[..8]), "{}", listed.out);
}

#[test]
fn small_flags_are_taken() {
    let member = json!({"Name": "s1", "Addr": "10.0.0.1", "Port": 1, "Tags": {"dc": "dc1", "role": "nomad"}});
    let server = two_nodes()
        .on("GET /v1/agent/members", &json!({"Members": [member]}))
        .on("GET /v1/operator/scheduler/configuration", &json!({"SchedulerConfig": {}}))
        .on(&format!("PUT /v1/node/{NODE_A}/drain"), &json!({}))
        .start();
    let members = server.run("server members -detailed");
    assert!(members.out.contains("dc=dc1,role=nomad"), "{}{}", members.out, members.err);
    assert_eq!(server.run("operator scheduler get-config -json").code, 0);
    let drained =
        server.run(&format!("node drain -enable -detach -m why -meta owner=ann {NODE_A}"));
    assert_eq!(drained.code, 0, "{}", drained.err);
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!(body["Meta"], json!({"message": "why", "owner": "ann"}));
}

#[test]
fn an_unknown_flag_is_named_whole_and_the_version_is_one() {
    let ran = run("agent -frobnicate=3", &|_| None);
    assert!(ran.err.contains("unexpected argument '-frobnicate'"), "{}", ran.err);
    let named = run("agent -dev", &|_| None);
    assert!(named.err.contains("not built yet: -dev"), "{}", named.err);
    let (flag, command) = (run("-version", &|_| None).out, run("version", &|_| None).out);
    assert!(flag.starts_with("Quorate v") && command.starts_with(&flag), "{flag}{command}");
}

#[test]
fn a_node_that_runs_something_is_purged_only_by_force() {
    let row = |status: &str| json!({"ID": NODE_A, "Status": status});
    let nothing: [Value; 0] = [];
    let purge = format!("PUT /v1/node/{NODE_A}/purge");
    let of = |row: &Value, allocations: &Value| {
        two_nodes()
            .on(&format!("GET /v1/node/{NODE_A}"), row)
            .on(&format!("GET /v1/node/{NODE_A}/allocations"), allocations)
            .on(&purge, &json!({}))
            .start()
    };
    let is_purged = |server: &super::Server| server.lines().contains(&purge);
    let busy = of(&row("ready"), &json!([allocation("running"), allocation("complete")]));
    let ran = busy.run(&format!("node purge {NODE_A}"));
    assert!(ran.code == 1 && !is_purged(&busy), "{}", ran.err);
    assert!(ran.err.contains("runs 1 allocation(s)") && ran.err.contains("-force"), "{}", ran.err);
    let ran = busy.run(&format!("node purge -force {NODE_A}"));
    assert!(ran.code == 0 && is_purged(&busy), "{}", ran.err);
    for (status, allocations) in [
        ("ready", json!(nothing)),
        ("ready", json!([allocation("complete")])),
        ("down", json!([allocation("running")])),
    ] {
        let server = of(&row(status), &allocations);
        let ran = server.run(&format!("node purge {NODE_A}"));
        assert!(ran.code == 0 && is_purged(&server), "{status}: {}", ran.err);
    }
}

#[test]
fn help_is_printed_for_who_types_nothing_and_behind_the_word_help() {
    let words = |words: &str| run(words, &|_| None);
    let whole = words("-help");
    assert!(whole.code == 0 && whole.out.contains("Usage: quorate"), "{}", whole.out);
    for line in ["", "help"] {
        let ran = words(line);
        assert_eq!((ran.code, &ran.out, ran.err.as_str()), (0, &whole.out, ""), "{line}");
    }
    let job = words("job -help");
    assert_eq!(words("help job").out, job.out);
    assert_eq!(words("help job run").out, words("job run -help").out);
    // A command that lacks a word is wrong usage.
    let ran = words("job");
    assert!(ran.code == 1 && ran.err.contains("Usage: quorate job"), "{}", ran.err);
    assert!(words("help nothing").code == 1);
}

#[test]
fn a_name_cannot_draw_on_the_terminal() {
    let name = "\u{1b}[2J\u{202e}x\ny";
    let mut node = json!({"ID": NODE_A, "Name": name, "Status": "ready"});
    node["SchedulingEligibility"] = "eligible".into();
    let server = Canned::default()
        .on("GET /v1/nodes/offline", &json!([]))
        .on("GET /v1/nodes", &json!([node.clone()]))
        .fail("GET /v1/jobs", 500, name)
        .start();
    for line in ["node status", "node status -json", "job status"] {
        let ran = server.run(line);
        let shown = format!("{}{}", ran.out, ran.err);
        assert!(shown.contains("[2J"), "{line}: {shown}");
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{line}: {shown}");
    }
}
