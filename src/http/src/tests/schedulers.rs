//! `/v1/agent/schedulers…`.

use serde_json::{Value, json};

use super::{cluster::TestCluster, socket::TestServer};

#[tokio::test]
async fn workers_are_shown_and_set_and_what_is_left_out_stays() {
    let server = TestServer::start(TestCluster::new()).await;
    let config = "/v1/agent/schedulers/config";
    let shown = server.get(config).await.ok();
    let all = json!(["service", "batch", "system", "sysbatch"]);
    let expected = json!({ "server_id": "1", "num_schedulers": 2, "enabled_schedulers": all });
    assert_eq!(shown, expected);
    // The answer can be sent back.
    assert_eq!(server.put(config, &shown).await.ok(), expected);
    let set = |body: Value| {
        let server = &server;
        async move { server.put(config, &body).await.ok() }
    };
    let answer = set(json!({ "num_schedulers": 0 })).await;
    assert_eq!((&answer["num_schedulers"], &answer["enabled_schedulers"]), (&json!(0), &all));
    let answer = set(json!({ "enabled_schedulers": ["_core", "sysbatch", "batch"] })).await;
    assert_eq!(answer["enabled_schedulers"], json!(["batch", "sysbatch"]), "_core means nothing");
    set(json!({ "num_schedulers": 1 })).await;
    let workers = server.get("/v1/agent/schedulers").await.ok();
    let expected = json!({
        "server_id": "1",
        "schedulers": [{
            "id": "0",
            "enabled_schedulers": ["batch", "sysbatch", "_core"],
            "started": "2023-11-14T22:13:20Z",
            "status": "started",
            "workload_status": "waiting to dequeue",
        }],
    });
    assert_eq!(workers, expected);
    for (wrong, reason) in [
        (json!({ "num_schedulers": 257 }), "num_schedulers is 257: it must be 0 to 256"),
        (json!({ "num_schedulers": 1.5 }), "num_schedulers: expected a whole number"),
        (json!({ "enabled_schedulers": ["services"] }), "\"services\" is not service, batch"),
        (json!({ "num_schedulers": -1 }), "Invalid request"),
        (json!({ "enabled_schedulers": [] }), "enabled_schedulers must name a kind"),
        (json!({ "enabled_schedulers": "batch" }), "enabled_schedulers: expected a list of texts"),
        (json!({ "num_scheduler": 1 }), "num_scheduler: unknown key"),
    ] {
        let answer = server.put(config, &wrong).await;
        assert_eq!(answer.status, 400, "{wrong}");
        assert!(answer.text.contains(reason), "{wrong}: {}", answer.text);
    }
    assert_eq!(server.get(config).await.ok()["num_schedulers"], 1, "nothing of these was taken");
    server.stop().await;
}
