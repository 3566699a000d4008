//! Files of an allocation that are followed over the agent's HTTP interface.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use serde_json::{Value, json};

use crate::agent::{Cluster, allocation, quorate_id, shell_task};

/// Frames of a stream, without the signs of life.
fn frames(url: &str) -> impl Iterator<Item = Value> + use<> {
    let body = ureq::get(url).call().unwrap().into_body();
    let frames = serde_json::Deserializer::from_reader(body.into_reader()).into_iter::<Value>();
    frames.map(Result::unwrap).filter(|frame| *frame != json!({}))
}

fn follow(url: &str, file: &Path) -> Vec<Value> {
    let mut frames = frames(url);
    let mut seen = vec![frames.next().unwrap()];
    std::fs::write(file, "b\n").unwrap();
    seen.push(frames.next().unwrap());
    std::fs::remove_file(file).unwrap();
    seen.extend(frames);
    seen
}

/// A file that is cut off is read from its beginning again; the stream of one that is deleted ends. Both are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_followed_file_that_is_cut_off_and_deleted_says_so() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let script = "echo one > ../data; while :; do sleep 0.02; done";
    cluster.want(vec![allocation(1, "service", vec![shell_task("main", script)])]);
    cluster.until_status(1, "running").await;
    let file = cluster.allocation_directory(1).join("data");
    cluster
        .until("the task writes", |_| {
            std::fs::read(&file).is_ok_and(|text| text == b"one\n").then_some(())
        })
        .await;
    let (address, id) = (agent.http_address(), quorate_id(1));
    let url = format!("http://{address}/v1/client/fs/stream/{id}?path=data");
    let seen = tokio::task::spawn_blocking(move || follow(&url, &file)).await.unwrap();
    let expected = [
        json!({"Data": "b25lCg==", "File": "data", "Offset": 4}),
        json!({"Data": "Ygo=", "File": "data", "Offset": 2, "FileEvent": "file truncated"}),
        json!({"File": "data", "Offset": 2, "FileEvent": "file deleted"}),
    ];
    assert_eq!(seen, expected);
}
