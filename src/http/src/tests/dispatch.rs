//! Dispatch over the API: what is taken, what is refused with which words, and what a retry does.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::{TestResponse, TestServer},
};

/// A server with a parameterized job `render`.
async fn with_parent(block: Value) -> TestServer {
    let server = TestServer::start(TestCluster::new()).await;
    put_parent(&server, block).await;
    server
}

async fn put_parent(server: &TestServer, block: Value) {
    let mut job = web_job("render");
    job["Type"] = "batch".into();
    job["ParameterizedJob"] = block;
    server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
}

async fn dispatch(server: &TestServer, query: &str, body: &Value) -> TestResponse {
    server.put(&format!("/v1/job/render/dispatch{query}"), body).await
}

async fn batch(server: &TestServer, dispatches: Value) -> TestResponse {
    server.put("/v1/job/render/dispatch/batch", &json!({ "Dispatches": dispatches })).await
}

fn children(cluster: &Arc<TestCluster>) -> usize {
    let state = cluster.state();
    state.jobs().iter().filter(|job| job.key.parent() == Some("render")).count()
}

fn id(answer: &Value) -> String {
    answer["DispatchedJobID"].as_str().unwrap().to_owned()
}

/// A dispatch that is refused, with these words, and makes nothing.
#[track_caller]
fn refused(answer: &TestResponse, words: &str) {
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.text.contains(words), "{words}: {}", answer.text);
}

#[tokio::test]
async fn a_payload_has_at_most_16_kib_in_each_form() {
    let server = with_parent(json!({})).await;
    for (bytes, fits) in [(16 << 10, true), ((16 << 10) + 1, false)] {
        let payload: Vec<u8> = (0..=u8::MAX).cycle().take(bytes).collect();
        let encoded = BASE64_STANDARD.encode(&payload);
        let body = json!({ "Payload": encoded });
        let plain = dispatch(&server, "", &body).await;
        let raw = server.send("POST", "/v1/job/render/dispatch/payload", &[], &payload).await;
        let of_many = batch(&server, json!([body])).await.ok()["Dispatched"][0].clone();
        if fits {
            for made in [plain.ok(), raw.ok(), of_many] {
                let shown = server.get(&format!("/v1/job/{}", id(&made))).await.ok();
                assert_eq!(shown["Payload"].as_str(), Some(encoded.as_str()));
            }
        } else {
            let words = "Payload has 16385 bytes, at most 16384 may be";
            refused(&plain, words);
            refused(&raw, words);
            assert!(of_many["Error"].as_str().unwrap().contains(words), "{of_many}");
        }
    }
    assert_eq!(children(&server.cluster), 3);
    server.stop().await;
}

/// The body is the payload, whatever it is; nothing in it is read as JSON.
#[tokio::test]
async fn a_raw_body_is_the_payload() {
    let server = with_parent(json!({ "Payload": "required" })).await;
    let path = "/v1/job/render/dispatch/payload?idempotency_token=once";
    let body = br#"{"Payload": "no"#;
    let made = server.send("POST", path, &[], body).await.ok();
    assert_ne!(made["EvalID"], json!(""));
    let shown = server.get(&format!("/v1/job/{}", id(&made))).await.ok();
    assert_eq!(shown["Payload"], json!(BASE64_STANDARD.encode(body)));
    assert_eq!(shown["DispatchIdempotencyToken"], json!("once"));
    assert_eq!(id(&server.send("PUT", path, &[], body).await.ok()), id(&made));
    refused(&server.send("POST", "/v1/job/render/dispatch/payload", &[], b"").await, "is required");
    assert_eq!(server.get("/v1/job/render/dispatch/payload").await.status, 405);
    put_parent(&server, json!({ "Payload": "forbidden" })).await;
    refused(&server.send("POST", path.trim_end_matches("once"), &[], body).await, "is forbidden");
    assert_eq!(children(&server.cluster), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_bad_dispatch_is_refused_in_the_same_words_alone_and_in_a_batch() {
    let server = with_parent(
        json!({ "MetaRequired": ["who"], "MetaOptional": ["why"], "Payload": "forbidden" }),
    )
    .await;
    let who = json!({ "who": "eve" });
    let long = "x".repeat(200);
    let cases = [
        (json!({}), "Meta lacks required keys [\"who\"]"),
        (
            json!({ "Meta": { "who": "a", "x": "b" } }),
            "Meta has keys [\"x\"], which the job does not",
        ),
        (json!({ "Meta": { "who": "a", "": "b" } }), "Meta has keys [\"\"]"),
        (json!({ "Meta": { "who": "a\u{0}b" } }), "Meta.who: the value has a NUL character"),
        (json!({ "Meta": { "who": 1 } }), "Meta.who: expected a text"),
        (json!({ "Meta": who, "Payload": "aGk=" }), "Payload: it is forbidden"),
        (json!({ "Meta": who, "Payload": "%" }), "Payload: expected base64"),
        (json!({ "Meta": who, "Priority": 101 }), "riority"),
        (json!({ "Meta": who, "IdPrefixTemplate": "a b" }), "cannot be in an id"),
        (json!({ "Meta": who, "IdPrefixTemplate": "a/b" }), "cannot be in an id"),
        (json!({ "Meta": who, "IdPrefixTemplate": "a\nb" }), "\"\\n\" cannot be in an id"),
        (
            json!({ "Meta": who, "IdPrefixTemplate": "a\u{200b}" }),
            "\"\\u{200b}\" cannot be in an id",
        ),
        (json!({ "Meta": who, "IdPrefixTemplate": long }), "at most"),
        (json!({ "Meta": who, "IdempotencyToken": "x".repeat(257) }), "at most 256 may be"),
    ];
    for (body, words) in &cases {
        refused(&dispatch(&server, "", body).await, words);
    }
    // One that is good stands between those that are not, and each has its own answer.
    let mut all: Vec<Value> = cases.iter().map(|(body, _)| body.clone()).collect();
    all.insert(3, json!({ "Meta": who }));
    let answers = batch(&server, all.into()).await.ok()["Dispatched"].clone();
    let mut answers = answers.as_array().unwrap().clone();
    let good = answers.remove(3);
    assert_eq!((&good["Error"], &good["Existed"]), (&json!(""), &json!(false)));
    assert_ne!(good["EvalID"], json!(""));
    for (answer, (_, words)) in answers.iter().zip(&cases) {
        assert!(answer["Error"].as_str().unwrap().contains(words), "{words}: {answer}");
        assert_eq!((id(answer), &answer["EvalID"]), (String::new(), &json!("")));
    }
    assert_eq!((answers.len(), children(&server.cluster)), (cases.len(), 1));
    let slip = batch(&server, json!([{ "Meta": who, "idempotency_token": "a" }])).await.ok();
    let error = slip["Dispatched"][0]["Error"].as_str().unwrap();
    assert!(error.contains("unknown key"), "{error}");
    assert_eq!(slip["Index"].as_u64(), Some(server.cluster.state().index()), "{slip}");
    assert_eq!(slip["KnownLeader"], json!(true), "{slip}");
    assert_eq!(children(&server.cluster), 1, "a batch of which nothing is good makes nothing");
    server.stop().await;
}

#[tokio::test]
async fn a_batch_has_1_to_1000_dispatches_and_no_gaps() {
    let server = with_parent(json!({})).await;
    refused(&batch(&server, json!([])).await, "Dispatches has 0 entries");
    refused(&batch(&server, vec![json!({}); 1_001].into()).await, "Dispatches has 1001 entries");
    refused(&batch(&server, json!([{}, null])).await, "an entry that is null");
    assert_eq!(children(&server.cluster), 0);
    let made = batch(&server, vec![json!({}); 1_000].into()).await.ok();
    let ids: std::collections::BTreeSet<String> =
        made["Dispatched"].as_array().unwrap().iter().map(id).collect();
    assert_eq!((ids.len(), children(&server.cluster)), (1_000, 1_000));
    server.stop().await;
}

/// A batch may be as large as 1,000 of the largest payloads are; no other body may.
#[tokio::test]
async fn a_batch_takes_1000_payloads_of_16_kib() {
    let server = with_parent(json!({})).await;
    let payload = BASE64_STANDARD.encode([7; 16 << 10]);
    let made = batch(&server, vec![json!({ "Payload": payload }); 1_000].into()).await.ok();
    let errors = made["Dispatched"].as_array().unwrap().iter().map(|one| &one["Error"]);
    assert_eq!(errors.filter(|error| **error == json!("")).count(), 1_000);
    assert_eq!(children(&server.cluster), 1_000);
    let large = vec![b' '; (24 << 20) + 1];
    for (path, words) in [
        ("/v1/job/render/dispatch/batch", "25165824 bytes: send fewer dispatches at a time"),
        ("/v1/job/render/dispatch", "4194304 bytes: make it smaller, or raise limits."),
    ] {
        let refused = server.send("PUT", path, &[], &large).await;
        assert_eq!(refused.status, 413, "{path}");
        assert!(refused.text.contains(words), "{}", refused.text);
    }
    server.stop().await;
}

/// The token stands for the dispatch, whatever else the retry says, by whichever way it comes.
#[tokio::test]
async fn a_token_makes_one_child() {
    let server = with_parent(json!({})).await;
    let first = json!({ "Payload": "aGk=" });
    let made = dispatch(&server, "?idempotency_token=a", &first).await.ok();
    let same = |answer: &Value| {
        assert_eq!(id(answer), id(&made));
        assert_eq!((&answer["EvalID"], &answer["EvalCreateIndex"]), (&json!(""), &json!(0)));
        assert_eq!(answer["JobCreateIndex"], made["JobCreateIndex"]);
    };
    same(&dispatch(&server, "?idempotency_token=a", &first).await.ok());
    same(&dispatch(&server, "?idempotency_token=a", &json!({ "Payload": "bm8=" })).await.ok());
    same(&dispatch(&server, "", &json!({ "IdempotencyToken": "a" })).await.ok());
    same(&dispatch(&server, "", &json!({ "idempotency_token": "a" })).await.ok());
    let query_first = json!({ "IdempotencyToken": "b", "idempotency_token": "c" });
    same(&dispatch(&server, "?idempotency_token=a", &query_first).await.ok());
    let twice = json!([
        { "IdempotencyToken": "a" }, { "IdempotencyToken": "b" }, { "IdempotencyToken": "b" },
    ]);
    let answers = batch(&server, twice).await.ok()["Dispatched"].clone();
    same(&answers[0]);
    assert_eq!(id(&answers[1]), id(&answers[2]));
    let existed: Vec<_> = (0..3).map(|n| answers[n]["Existed"].as_bool().unwrap()).collect();
    assert_eq!((existed, children(&server.cluster)), (vec![true, false, true], 2));
    let shown = server.get(&format!("/v1/job/{}", id(&made))).await.ok();
    assert_eq!(shown["Payload"], json!("aGk="), "that of the first");
    server.stop().await;
}

/// A retry makes another id for its child, and yet is the same dispatch.
#[tokio::test]
async fn an_idempotency_key_makes_one_child_of_each_form() {
    let server = with_parent(json!({})).await;
    let forms = [
        ("/v1/job/render/dispatch", json!({ "Payload": "aGk=" })),
        ("/v1/job/render/dispatch/payload", json!("hi")),
        ("/v1/job/render/dispatch/batch", json!({ "Dispatches": [{}] })),
    ];
    for (number, (path, body)) in forms.iter().enumerate() {
        let key = format!("key-{number}");
        let headers = [("Idempotency-Key", key.as_str())];
        let send =
            async || server.send("PUT", path, &headers, body.to_string().as_bytes()).await.ok();
        let (first, again) = (send().await, send().await);
        let id_of = |answer: &Value| answer.pointer("/Dispatched/0").map_or_else(|| id(answer), id);
        assert_eq!(id_of(&first), id_of(&again), "{path}");
        assert_eq!(children(&server.cluster), number + 1, "{path}");
    }
    server.stop().await;
}

/// Another parent or another text is another request, whatever became of the first one's child.
#[tokio::test]
async fn an_idempotency_key_stands_for_one_request() {
    let server = with_parent(json!({ "MetaOptional": ["who"] })).await;
    let mut other = web_job("other");
    other["Type"] = "batch".into();
    other["ParameterizedJob"] = json!({});
    server.put("/v1/jobs", &json!({ "Job": other })).await.ok();
    let many = json!({ "Dispatches": vec![json!({ "Payload": "eA==" }); 3] });
    for (key, form, body, changed) in [
        ("one", "dispatch", json!({}), json!({ "Meta": { "who": "eve" } })),
        ("many", "dispatch/batch", many, json!({ "Dispatches": [{}] })),
    ] {
        let headers = [("Idempotency-Key", key)];
        let send = async |job: &str, body: &Value| {
            let path = format!("/v1/job/{job}/{form}");
            server.send("PUT", &path, &headers, body.to_string().as_bytes()).await
        };
        let first = send("render", &body).await.ok();
        let made = children(&server.cluster);
        for (job, body) in [("other", &body), ("render", &changed)] {
            let reused = send(job, body).await;
            assert_eq!(reused.status, 409, "{key} {job}: {}", reused.text);
            assert!(reused.text.contains("idempotency key was used before"), "{}", reused.text);
        }
        assert_eq!(children(&server.cluster), made, "{key}");
        if key == "one" {
            let child = id(&first);
            server.delete(&format!("/v1/job/{child}?purge=true")).await.ok();
            assert_eq!(send("render", &body).await.ok(), first, "its child was purged since");
            assert_eq!(children(&server.cluster), 0);
        }
    }
    server.stop().await;
}

/// Each entry of a batch has a session of its own.
#[tokio::test]
async fn a_batch_of_several_entries_is_made_once_under_a_key() {
    let server = with_parent(json!({})).await;
    let payload = BASE64_STANDARD.encode([7; 16 << 10]);
    let body = json!({ "Dispatches": vec![json!({ "Payload": payload }); 150] }).to_string();
    let headers = [("Idempotency-Key", "many")];
    let path = "/v1/job/render/dispatch/batch";
    let ids = async || {
        let answer = server.send("PUT", path, &headers, body.as_bytes()).await.ok();
        answer["Dispatched"].as_array().unwrap().iter().map(id).collect::<Vec<_>>()
    };
    let first = ids().await;
    assert_eq!((first.len(), ids().await), (150, first.clone()));
    assert_eq!(children(&server.cluster), 150);
    server.stop().await;
}

#[tokio::test]
async fn only_a_parameterized_job_that_is_not_stopped_is_dispatched() {
    let server = with_parent(json!({})).await;
    let child = id(&dispatch(&server, "", &json!({})).await.ok());
    server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let of_child = "is not a parameterized job: it is a child of \"render\", dispatch that";
    for (of, words) in [
        (child.as_str(), of_child),
        ("web", "is not a parameterized job: add a parameterized block"),
    ] {
        for form in ["dispatch", "dispatch/payload"] {
            refused(&server.put(&format!("/v1/job/{of}/{form}"), &json!({})).await, words);
        }
    }
    server.delete("/v1/job/render").await.ok();
    refused(&dispatch(&server, "", &json!({})).await, "is stopped: start it, then dispatch it");
    refused(&batch(&server, json!([{}])).await, "is stopped");
    let other = dispatch(&server, "", &json!({ "JobID": "web" })).await;
    refused(&other, "JobID not same as job in request path");
    server.delete("/v1/job/render?purge=true").await.ok();
    assert_eq!(dispatch(&server, "", &json!({})).await.status, 404);
    assert_eq!(children(&server.cluster), 1, "a child outlives its parent");
    put_parent(&server, json!({})).await;
    let summary = server.get("/v1/job/render/summary").await.ok();
    assert_eq!(summary["Children"]["Pending"], json!(1), "and is found again under it");
    server.stop().await;
}

/// The place of a child that waits changes with the children before it: who waits for it is told,
/// and by nothing else.
#[tokio::test]
async fn a_blocking_query_on_a_child_that_waits_sees_its_place_change() {
    let server = with_parent(json!({ "MaxRunning": 1 })).await;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(id(&dispatch(&server, "", &json!({})).await.ok()));
    }
    let said = |answer: &TestResponse| {
        let why = answer.ok()["StatusDescription"].as_str().unwrap().to_owned();
        why.split_once(',').map_or(why.clone(), |(place, _)| place.to_owned())
    };
    for (query, gone, before, after) in [
        ("", 1, "waits to start: position 2 of 2", "waits to start: position 1 of 1"),
        ("pretty&", 0, "waits to start: position 1 of 1", ""),
    ] {
        let path = format!("/v1/job/{}?{query}", made[2]);
        let first = server.get(&path).await;
        assert_eq!(said(&first), before);
        server.cluster.reads.lock().unwrap().clear();
        let blocking = format!("{path}index={}&wait=60s", first.index());
        let (woken, ()) = tokio::join!(server.get(&blocking), async {
            super::blocking::begun(&server.cluster).await;
            server.put("/v1/jobs", &json!({ "Job": web_job("other") })).await.ok();
            server.delete(&format!("/v1/job/{}?purge=true", made[gone])).await.ok();
        });
        assert_eq!(said(&woken), after);
        assert!(woken.index() > first.index(), "{woken:?}");
    }
    server.stop().await;
}
