//! Blocking queries, read modes and headers.

use std::time::Duration;

use fsm::{Command, NodeId, upkeep::Tick};
use ground::caller::{Caller, Way};
use serde_json::json;
use tokio::time::Instant;
use wire::api::ReadMode;

use super::{
    cluster::{TestCluster, web_job},
    socket::{PATIENCE, TestServer, ask, rest},
};

#[tokio::test]
async fn a_blocking_query_wakes_on_a_change() {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("a") })).await.ok();
    let seen = server.get("/v1/jobs").await.index();
    let path = format!("/v1/jobs?index={seen}&wait=60s");
    let (woken, registered) = tokio::join!(server.get(&path), async {
        // The query may or may not have begun to wait: it must see the change either way.
        server.put("/v1/jobs", &json!({ "Job": web_job("b") })).await
    });
    registered.ok();
    assert_eq!(woken.ok().as_array().unwrap().len(), 2);
    assert!(woken.index() > seen, "{woken:?}");
    server.stop().await;
}

/// Whoever waits is known in each call that is made for it, by the address of its connection.
#[tokio::test]
async fn a_blocking_query_hands_its_caller_to_reads_and_waits() {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("a") })).await.ok();
    let seen = server.get("/v1/jobs").await.index();
    let path = format!("/v1/jobs?index={seen}&wait=60s");
    let stream = ask(server.address, "GET", &path, &[], b"").await;
    let caller = Caller::anonymous(Way::Http, Some(stream.local_addr().unwrap()));
    let asked = || -> Vec<&str> {
        let callers = server.cluster.callers.lock().unwrap();
        callers.iter().filter(|(_, one)| *one == caller).map(|(what, _)| *what).collect()
    };
    let deadline = Instant::now() + PATIENCE;
    while !asked().contains(&"changed") {
        assert!(Instant::now() < deadline, "the query did not begin to wait");
        tokio::task::yield_now().await;
    }
    server.put("/v1/jobs", &json!({ "Job": web_job("b") })).await.ok();
    assert_eq!(rest(stream, Vec::new()).await.ok().as_array().unwrap().len(), 2);
    assert_eq!(asked(), ["read", "changed", "read"]);
    server.stop().await;
}

#[tokio::test]
async fn a_blocking_query_on_an_item_sleeps_through_other_changes() {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("a") })).await.ok();
    let first = server.get("/v1/job/a").await;
    let path = format!("/v1/job/a?index={}&wait=60s", first.index());
    let (woken, ()) = tokio::join!(server.get(&path), async {
        server.put("/v1/jobs", &json!({ "Job": web_job("b") })).await.ok();
        server.delete("/v1/job/a").await.ok();
    });
    assert_eq!(woken.ok()["Stop"], json!(true));
    assert!(woken.index() > first.index());
    server.stop().await;
}

/// Waits until the query under way has looked at the state for the first time.
pub(super) async fn begun(cluster: &TestCluster) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while cluster.reads.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the query did not arrive");
        tokio::task::yield_now().await;
    }
}

/// A query that waits for a part of a table sleeps through changes of the rest of it, and one that
/// is behind the table is answered at once.
#[tokio::test]
async fn a_blocking_list_sleeps_through_changes_of_others() {
    let server = TestServer::start(TestCluster::new()).await;
    for id in ["a", "b"] {
        server.put("/v1/jobs", &json!({ "Job": web_job(id) })).await.ok();
    }
    for list in ["/v1/job/a/evaluations", "/v1/job/a/summary"] {
        let seen = server.get(list).await.index();
        let started = Instant::now();
        let path = format!("{list}?index={seen}&wait=300ms");
        server.cluster.reads.lock().unwrap().clear();
        let (slept, ()) = tokio::join!(server.get(&path), async {
            begun(&server.cluster).await;
            server.put("/v1/job/b/evaluate", &json!({ "JobID": "b" })).await.ok();
            server.put("/v1/jobs", &json!({ "Job": web_job("c") })).await.ok();
        });
        slept.ok();
        assert!(started.elapsed() >= Duration::from_millis(300), "{list} woke");

        let at_once = server.get(&format!("{list}?index={seen}&wait=60s")).await;
        assert!(at_once.index() > seen, "the table is newer");

        let seen = server.get(list).await.index();
        let path = format!("{list}?index={seen}&wait=60s");
        server.cluster.reads.lock().unwrap().clear();
        let (woken, ()) = tokio::join!(server.get(&path), async {
            begun(&server.cluster).await;
            server.put("/v1/job/b/evaluate", &json!({ "JobID": "b" })).await.ok();
            server.delete("/v1/job/a").await.ok();
            server.put("/v1/jobs", &json!({ "Job": web_job("a") })).await.ok();
        });
        assert!(woken.index() > seen, "{list}");
    }
    server.stop().await;
}

/// A query for something that is not there sleeps until it is.
#[tokio::test]
async fn a_missing_item_is_not_announced_by_others() {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("a") })).await.ok();
    let seen = server.get("/v1/job/b").await.index();
    let path = format!("/v1/job/b?index={seen}&wait=60s");
    server.cluster.reads.lock().unwrap().clear();
    let (woken, ()) = tokio::join!(server.get(&path), async {
        begun(&server.cluster).await;
        server.put("/v1/jobs", &json!({ "Job": web_job("c") })).await.ok();
        server.put("/v1/jobs", &json!({ "Job": web_job("b") })).await.ok();
    });
    assert_eq!(woken.ok()["ID"], json!("b"));
    server.stop().await;
}

#[tokio::test]
async fn a_blocking_query_ends_when_its_wait_is_over() {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("a") })).await.ok();
    let seen = server.get("/v1/jobs").await.index();
    let started = Instant::now();
    let response = server.get(&format!("/v1/jobs?index={seen}&wait=200ms")).await;
    let took = started.elapsed();
    assert_eq!(response.index(), seen);
    assert_eq!(response.ok().as_array().unwrap().len(), 1);
    // A sixteenth comes on top of the wait.
    assert!(took >= Duration::from_micros(212_500), "{took:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_query_behind_the_index_is_answered_at_once() {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("a") })).await.ok();
    let seen = server.get("/v1/jobs").await.index();
    let response = server.get(&format!("/v1/jobs?index={}&wait=60s", seen - 1)).await;
    assert_eq!(response.index(), seen);
    server.stop().await;
}

#[tokio::test]
async fn a_missing_item_appears() {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("a") })).await.ok();
    let seen = server.get("/v1/jobs").await.index();
    let missing = server.get("/v1/job/b").await;
    assert_eq!((missing.status, missing.index()), (404, seen));
    let path = format!("/v1/job/b?index={seen}&wait=60s");
    let registration = json!({ "Job": web_job("b") });
    let (woken, _) = tokio::join!(server.get(&path), server.put("/v1/jobs", &registration));
    assert_eq!(woken.ok()["ID"], json!("b"));
    server.stop().await;
}

#[tokio::test]
async fn reads_are_linearizable_unless_stale_is_given() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    let response = server.get("/v1/jobs").await;
    assert_eq!(response.headers["x-nomad-lastcontact"], "0");
    assert_eq!(response.headers["x-nomad-knownleader"], "true");
    let response = server.get("/v1/jobs?stale").await;
    assert_eq!(response.headers["x-nomad-lastcontact"], "42");
    let reads = std::mem::take(&mut *cluster.reads.lock().unwrap());
    assert_eq!(reads, [(ReadMode::Linearizable, 0), (ReadMode::Stale, 0)]);
    server.stop().await;
}

#[tokio::test]
async fn a_query_that_is_behind_is_answered_from_the_newest_state_unless_it_may_be_stale() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("a") })).await.ok();
    cluster.reads.lock().unwrap().clear();
    for path in ["/v1/jobs", "/v1/job/a", "/v1/nodes", "/v1/allocations", "/v1/evaluations"] {
        server.get(&format!("{path}?index=1&wait=1ms")).await.ok();
        let reads = std::mem::take(&mut *cluster.reads.lock().unwrap());
        assert_eq!(reads[0], (ReadMode::Linearizable, 0), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stale_query_waits_for_the_index_that_the_client_has_seen() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    let next = cluster.state().index() + 1;
    let path = format!("/v1/jobs?stale&index={next}&wait=50ms");
    let (response, ()) = tokio::join!(server.get(&path), async {
        cluster.must(Command::from(Tick));
    });
    response.ok();
    assert_eq!(cluster.reads.lock().unwrap()[0], (ReadMode::Stale, next));
    server.stop().await;
}

#[tokio::test]
async fn an_index_from_before_a_restore_does_not_stick() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    let head = cluster.state().index();
    for path in ["/v1/jobs?stale", "/v1/job/a?stale", "/v1/nodes?"] {
        let started = Instant::now();
        let response = server.get(&format!("{path}&index=99999999&wait=100ms")).await;
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(100), "{path}: {took:?}");
        assert!(response.index() <= head, "{path}: {response:?}");
        assert!(matches!(response.status, 200 | 404), "{path}: {response:?}");
    }
    let reads = std::mem::take(&mut *cluster.reads.lock().unwrap());
    let (stale, fresh) = ((ReadMode::Stale, 99_999_999), (ReadMode::Linearizable, 0));
    assert_eq!(reads[..2], [stale, fresh], "what is older than the client's index is not stale");
    server.stop().await;
}

#[tokio::test]
async fn a_query_of_something_that_does_not_exist_yet_waits() {
    let server = TestServer::start(TestCluster::new()).await;
    for path in ["/v1/deployments", "/v1/volumes", "/v1/plugins", "/v1/job/a/deployments"] {
        let seen = server.get(path).await.index();
        let started = Instant::now();
        let response = server.get(&format!("{path}?index={seen}&wait=100ms")).await;
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(100), "{path} is asked in a circle: {took:?}");
        assert_eq!((response.index(), response.ok()), (seen, json!([])), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn waiting_queries_end_when_the_server_stops() {
    let server = TestServer::start(TestCluster::new()).await;
    let address = server.address;
    let node = NodeId([7; 16]);
    let waiting = tokio::spawn(async move {
        let path = format!("/v1/node/{node}/allocations?index=1&wait=5m");
        super::socket::send(address, "GET", &path, &[], b"").await
    });
    // The read shows that the query has arrived.
    let deadline = Instant::now() + Duration::from_mins(1);
    while server.cluster.reads.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the query did not arrive");
        tokio::task::yield_now().await;
    }
    server.stop().await;
    let response = waiting.await.unwrap();
    assert_eq!(response.status, 503, "{response:?}");
}
