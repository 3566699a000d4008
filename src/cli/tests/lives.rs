//! `job start`, `job restart`, `job stop` and `job eval` against a canned server.

use serde_json::{Value, json};

use super::{ALLOCATION, Canned, EVALUATION, NODE_A};

const OTHER: &str = "aaaaaaaa-2222-4222-8222-222222222222";
const SUCCESSOR: &str = "cccccccc-1111-4111-8111-111111111111";

fn job() -> Canned {
    let groups = json!([{"Name": "web"}, {"Name": "api"}]);
    Canned::default()
        .on("GET /v1/jobs", &json!([{"ID": "web", "Namespace": "default"}]))
        .on("GET /v1/job/web", &json!({"ID": "web", "TaskGroups": groups}))
}

fn instance(id: &str, group: &str, restarts: u64) -> Value {
    let state = |state: &str| json!({"State": state, "Restarts": restarts});
    json!({"ID": id, "NodeID": NODE_A, "TaskGroup": group, "Name": format!("web.{group}[0]"),
        "DesiredStatus": "run", "ClientStatus": "running",
        "TaskStates": {"server": state("running"), "init": state("dead")}})
}

/// Two instances that crashed and were restarted once since they were listed, and that run again at
/// the second look after they were asked to.
fn restarts() -> Canned {
    let mut canned = job().on(
        "GET /v1/job/web/allocations",
        &json!([instance(ALLOCATION, "web", 0), instance(OTHER, "api", 0),
            {"ID": SUCCESSOR, "TaskGroup": "web", "ClientStatus": "complete"}]),
    );
    for (id, group) in [(ALLOCATION, "web"), (OTHER, "api")] {
        let route = format!("GET /v1/allocation/{id}");
        canned = canned
            .on(&format!("PUT /v1/client/allocation/{id}/restart"), &json!({}))
            .on(&route, &instance(id, group, 1))
            .on(&route, &instance(id, group, 1))
            .on(&route, &instance(id, group, 2));
    }
    canned
}

#[test]
fn a_stopped_job_is_started_as_its_newest_version_that_ran() {
    let versions = json!([{"Version": 3, "Stop": true}, {"Version": 2, "Stop": false},
        {"Version": 1, "Stop": false}]);
    let stopped = json!({"ID": "web", "Stop": true, "Version": 3});
    let server = Canned::default()
        .on("GET /v1/jobs", &json!([{"ID": "web", "Namespace": "default"}]))
        .on("GET /v1/job/web", &stopped)
        .on("GET /v1/job/web/versions", &json!({ "Versions": versions }))
        .on("PUT /v1/job/web/revert", &json!({"EvalID": EVALUATION}))
        .start();
    let ran = server.run("job start -detach web");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let first = ran.out.lines().next();
    assert_eq!(first, Some("Job \"web\" started: version 2 is run again"));
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!((&body["JobVersion"], &body["EnforcePriorVersion"]), (&json!(2), &json!(3)));

    let server = job().start();
    let ran = server.run("job start web");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("is not stopped"), "{}", ran.err);
}

#[test]
fn instances_are_restarted_one_batch_after_the_other() {
    let server = restarts().start();
    let ran = server.run("job restart web");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let at = "2026-03-01T00:00:00Z";
    assert_eq!(
        ran.out,
        format!(
            "==> {at}: Restarting 2 allocations of job \"web\", 1 at a time
    {at}: Restarting allocation \"aaaaaaaa\" (web.api[0])
    {at}: Allocation \"aaaaaaaa\" runs again
    {at}: Restarting allocation \"aaaaaaaa\" (web.web[0])
    {at}: Allocation \"aaaaaaaa\" runs again
==> {at}: Finished: 2 allocations restarted\n"
        )
    );
    let asked = server.lines();
    let orders: Vec<_> = asked.iter().filter(|line| line.starts_with("PUT")).collect();
    let order = |id: &str| format!("PUT /v1/client/allocation/{id}/restart");
    assert_eq!(orders, [&order(OTHER), &order(ALLOCATION)]);
    // The first is waited for before the second begins.
    let looks = format!("GET /v1/allocation/{OTHER}");
    let last = asked.iter().rposition(|line| *line == looks);
    assert!(last < asked.iter().position(|line| *line == order(ALLOCATION)), "{asked:?}");
    // A crash before the request is no restart.
    assert_eq!(asked.iter().filter(|line| **line == looks).count(), 3, "{asked:?}");
}

#[test]
fn groups_tasks_and_flags_are_told() {
    let server = restarts().start();
    assert_eq!(server.run("job restart -group api -task server web").code, 0);
    let orders: Vec<_> = server.lines().into_iter().filter(|l| l.starts_with("PUT")).collect();
    assert_eq!(orders, [format!("PUT /v1/client/allocation/{OTHER}/restart")]);
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!(body["TaskName"], "server");
    let server = restarts().start();
    assert_eq!(server.run("job restart -all-tasks -batch-size 100% web").code, 0);
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!(body["AllTasks"], true);

    for (line, text) in [
        ("job restart -group x web", "no group \"x\"; its groups are: web, api"),
        ("job restart -batch-size 0 web", "-batch-size 0"),
        ("job restart -batch-wait soon web", "is not a duration"),
        ("job restart -all-tasks -task a web", "cannot be used with"),
        ("job restart -reschedule -task a web", "cannot be used with"),
        ("job restart we", "is not the whole id"),
    ] {
        let ran = restarts().start().run(line);
        assert_eq!(ran.code, 1, "{line}");
        assert!(ran.err.contains(text), "{line}: {}", ran.err);
    }
}

#[test]
fn an_instance_is_replaced_and_its_successor_waited_for() {
    let mut stopped = instance(ALLOCATION, "web", 0);
    stopped["NextAllocation"] = SUCCESSOR.into();
    let successor = |status: &str| json!({"ID": SUCCESSOR, "ClientStatus": status});
    let server = job()
        .on("GET /v1/job/web/allocations", &json!([instance(ALLOCATION, "web", 0)]))
        .on(&format!("PUT /v1/allocation/{ALLOCATION}/stop"), &json!({"EvalID": EVALUATION}))
        .on(&format!("GET /v1/allocation/{ALLOCATION}"), &instance(ALLOCATION, "web", 0))
        .on(&format!("GET /v1/allocation/{ALLOCATION}"), &stopped)
        .on(&format!("GET /v1/allocation/{SUCCESSOR}"), &successor("pending"))
        .on(&format!("GET /v1/allocation/{SUCCESSOR}"), &successor("running"))
        .start();
    let ran = server.run("job restart -reschedule -no-shutdown-delay web");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out.contains("Allocation \"aaaaaaaa\" was replaced by \"cccccccc\""),
        "{}",
        ran.out
    );
    let stop = server.request("PUT").line;
    assert!(stop.ends_with("/stop?reschedule=true&no_shutdown_delay=true"), "{stop}");
}

#[test]
fn an_error_stops_the_rest_unless_it_is_waved_through() {
    let broken = || {
        let route = format!("PUT /v1/client/allocation/{OTHER}/restart");
        let mut canned = restarts();
        canned.answers.remove(&route);
        canned.fail(&route, 502, "the agent cannot be asked").start()
    };
    for (line, orders) in [
        ("job restart -on-error fail web", 1),
        // Nobody is there who could be asked.
        ("job restart web", 1),
        ("job restart -batch-wait ask -batch-size 2 web", 2),
        ("job restart -yes web", 2),
        ("job restart -yes -on-error fail web", 1),
    ] {
        let server = broken();
        let ran = server.run(line);
        assert_eq!(ran.code, 1, "{line}");
        assert!(ran.out.contains("was not restarted: the agent cannot be asked"), "{}", ran.out);
        let sent = server.lines().iter().filter(|line| line.starts_with("PUT")).count();
        assert_eq!(sent, orders, "{line}");
    }
}

/// What a file says goes to the servers as it is.
#[test]
fn namespaces_and_node_pools_are_applied_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let pool = write("pool.hcl", "node_pool \"gpu\" {\n  meta {\n    a = \"b\"\n  }\n}\n");
    let namespace = write("team", "{\"Name\": \"team\"}");
    let server = Canned::default()
        .on("PUT /v1/node/pools", &json!({}))
        .on("PUT /v1/namespaces", &json!({}))
        .start();
    let ran = server.run(&format!("node pool apply {pool}"));
    assert_eq!((ran.code, ran.out.as_str()), (0, "Node pool \"gpu\" is applied\n"));
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!(body, json!({"Name": "gpu", "Meta": {"a": "b"}}));
    let ran = server.run(&format!("namespace apply -json {namespace}"));
    assert_eq!((ran.code, ran.out.as_str()), (0, "Namespace \"team\" is applied\n"));
    let wrong = server.run(&format!("node pool apply -meta a=b {pool}"));
    assert!(wrong.err.contains("write them into the file"), "{}", wrong.err);
}

#[test]
fn a_node_may_be_that_of_the_agent_that_is_asked() {
    let own = json!({"stats": {"client": {"node_id": NODE_A}}});
    let server = Canned::default()
        .on("GET /v1/agent/self", &own)
        .on(&format!("PUT /v1/node/{NODE_A}/drain"), &json!({}))
        .on(&format!("PUT /v1/node/{NODE_A}/eligibility"), &json!({}))
        .start();
    assert_eq!(server.run("node drain -enable -detach -self").code, 0);
    assert_eq!(server.run("node eligibility -disable -self").code, 0);
    let neither = server.run("node eligibility -disable");
    assert_eq!(neither.code, 1);
}

/// A parent that is purged alone leaves its children.
#[test]
fn children_of_a_parent_that_is_gone_are_stopped() {
    let child = |id: &str, parent: &str, namespace: &str| json!({"ID": id, "ParentID": parent, "Namespace": namespace});
    let left = json!([child("zg/periodic-1", "zg", "team"), child("zg/periodic-2", "zg", "team")]);
    let stopped = json!({"EvalID": "", "JobModifyIndex": 0});
    let server =
        Canned::default().on("GET /v1/jobs", &left).on("DELETE /v1/job/zg", &stopped).start();
    let ran = server.run("job stop -purge -children zg");
    assert_eq!((ran.code, ran.out.as_str()), (0, "Job \"zg\" stopped\n"), "{}", ran.err);
    let line = server.request("DELETE").line;
    assert_eq!(line, "DELETE /v1/job/zg?purge=true&children=true&namespace=team");
    let ran = server.run("job stop -purge zg");
    assert!(ran.err.contains("\"zg\" matches several jobs"), "{}", ran.err);
    // The beginning of an id is no parent.
    let ran = server.run("job stop -children z");
    assert!(ran.err.contains("\"z\" matches several jobs"), "{}", ran.err);

    let left = json!([child("zg/dispatch-1", "zg", "a"), child("zg/dispatch-1", "zg", "b")]);
    let server = Canned::default().on("GET /v1/jobs", &left).start();
    let ran = server.run("job stop -children -namespace=* zg");
    assert!(ran.err.contains("in several namespaces (a, b)"), "{}", ran.err);
    assert!(server.lines().iter().all(|line| line.starts_with("GET")), "{:?}", server.lines());
}

/// A child that has to wait for its turn is followed as any other; without following its place is
/// told.
#[test]
fn a_dispatch_waits_for_its_turn_unless_it_is_not_to_follow() {
    let row = |why: &str, stop: bool| json!({"ID": "web/dispatch-1-a", "StatusDescription": why, "Stop": stop});
    let place = |place: u32| format!("waits to start: position {place} of 2");
    let child = "/v1/job/web%2Fdispatch-1-a";
    let dispatched = || {
        job()
            .on(
                "PUT /v1/job/web/dispatch",
                &json!({"DispatchedJobID": "web/dispatch-1-a", "EvalID": ""}),
            )
            .on(&format!("GET {child}"), &row(&place(2), false))
    };
    let server = dispatched()
        .on(&format!("GET {child}"), &row(&place(2), false))
        .on(&format!("GET {child}"), &row(&place(1), false))
        .on(&format!("GET {child}"), &row("", false))
        .on(
            &format!("GET {child}/evaluations"),
            &json!([{"ID": "newer", "CreateIndex": 9}, {"ID": EVALUATION, "CreateIndex": 7}]),
        )
        .on(&format!("GET /v1/evaluation/{EVALUATION}"), &json!({"Status": "failed"}))
        .on(&format!("GET /v1/evaluation/{EVALUATION}/allocations"), &json!([]))
        .start();
    let ran = server.run("job dispatch web");
    assert_eq!((ran.code, ran.err.as_str()), (1, ""), "the status is that of the evaluation");
    for part in [
        "Dispatched Job ID = web/dispatch-1-a\nIt waits to start: position 2 of 2\n",
        ": It waits to start: position 1 of 2\n",
        &format!("Evaluation ID     = {EVALUATION}\n"),
        "finished with status \"failed\"",
    ] {
        assert_eq!(ran.out.matches(part).count(), 1, "{part}: {}", ran.out);
    }
    assert_eq!(ran.out.matches("position 2 of 2").count(), 1, "{}", ran.out);

    let ran = dispatched().start().run("job dispatch -detach web");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.ends_with("It waits to start: position 2 of 2\n"), "{}", ran.out);
    let ran = dispatched().start().run("job dispatch -json web");
    let answer: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &answer["StatusDescription"]), (0, &json!(place(2))));

    let stopped = dispatched().on(&format!("GET {child}"), &row("", true)).start();
    let ran = stopped.run("job dispatch web");
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.out.ends_with("It was stopped\n"), "{}", ran.out);
}

#[test]
fn stops_and_evaluations_say_what_is_asked_of_them() {
    let evaluated = json!({"EvalID": EVALUATION});
    let server = job()
        .on("DELETE /v1/job/web", &evaluated)
        .on("PUT /v1/job/web/evaluate", &evaluated)
        .on(&format!("PUT /v1/allocation/{ALLOCATION}/stop"), &evaluated)
        .start();
    assert_eq!(server.run("job stop -detach -global -no-shutdown-delay web").code, 0);
    let stop = server.request("DELETE").line;
    assert!(stop.contains("no_shutdown_delay=true"), "{stop}");
    assert_eq!(server.run("job eval -detach -force-reschedule web").code, 0);
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!(body["EvalOptions"]["ForceReschedule"], true);
    let line = format!("alloc stop -detach -no-reschedule -no-shutdown-delay {ALLOCATION}");
    assert_eq!(server.run(&line).code, 0);
    let last = server.lines().pop().unwrap();
    assert!(last.ends_with("/stop?no_reschedule=true&no_shutdown_delay=true"), "{last}");
    let both = server.run(&format!("alloc stop -reschedule -no-reschedule {ALLOCATION}"));
    assert!(both.err.contains("cannot be used with"), "{}", both.err);
}
