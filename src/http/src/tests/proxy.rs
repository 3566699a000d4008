//! Requests about files and logs reach the agent of the allocation's node, as they are, and stream
//! back.

use fsm::{EvaluationId, JobKey, NodeId, node::NodeLiveness};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
    sync::oneshot,
    time::timeout,
};

use super::{
    cluster::{TestCluster, web_job},
    socket::{PATIENCE, TestServer, ask, rest},
};

const NODE: NodeId = NodeId([0x11; 16]);

/// A server whose one allocation runs on a node with this agent address.
async fn with_agent(address: &str) -> (TestServer, String) {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, address);
    let server = TestServer::start(cluster.clone()).await;
    let registered = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    let allocation = cluster.place(&JobKey::new("default", "web"), evaluation, NODE);
    (server, allocation.to_string())
}

/// Answers one request with two chunks, the second when it is told to go on, and gives back the
/// head it was sent.
async fn agent(listener: TcpListener, go_on: oneshot::Receiver<()>) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let begins = "HTTP/1.1 206 Partial Content\r\ncontent-type: text/x-log\r\nx-of-agent: a\r\n\
                  transfer-encoding: chunked\r\n\r\n6\r\nline 1\r\n";
    stream.write_all(begins.as_bytes()).await.unwrap();
    go_on.await.unwrap();
    stream.write_all(b"7\r\n\nline 2\r\n0\r\n\r\n").await.unwrap();
    String::from_utf8(head).unwrap()
}

/// As they come: the first part is there while the agent has not sent the last.
#[tokio::test]
async fn logs_come_from_the_agent_of_the_node() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (go_on, going_on) = oneshot::channel();
    let agent = tokio::spawn(agent(listener, going_on));
    let (server, allocation) = with_agent(&address).await;
    let path = format!("/v1/client/fs/logs/{allocation}?task=server&type=stdout&plain=true");
    let mut stream = ask(server.address, "GET", &path, &[("X-Nomad-Token", "t")], b"").await;
    let mut received = Vec::new();
    while !received.ends_with(b"line 1") {
        received.push(timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
    }
    go_on.send(()).unwrap();
    let response = rest(stream, received).await;
    assert_eq!((response.status, response.text.as_str()), (206, "line 1\nline 2"));
    assert_eq!(response.headers["content-type"], "text/x-log");
    assert_eq!(response.headers["x-of-agent"], "a");
    let head = agent.await.unwrap().to_ascii_lowercase();
    assert!(head.starts_with(&format!("get {path} http/1.1\r\n").to_ascii_lowercase()), "{head}");
    assert!(head.contains("x-nomad-token: t\r\n"), "{head}");
    assert!(head.contains("x-quorate-proxied: 1\r\n"), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn an_agent_that_cannot_be_asked_is_named() {
    // Held and not listened at: whoever connects is refused, and no other test is given the port.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (server, allocation) = with_agent(&address).await;
    let path = format!("/v1/client/fs/logs/{allocation}");
    let refused = server.get(&path).await;
    assert_eq!(refused.status, 502);
    assert!(refused.text.contains(&address), "{refused:?}");

    let looped = server.send("GET", &path, &[("X-Quorate-Proxied", "1")], b"").await;
    assert_eq!(looped.status, 400, "{looped:?}");

    server.cluster.must(fsm::Command::from(NodeLiveness {
        changes: vec![fsm::node::LivenessChange {
            node: NODE,
            incarnation: 1,
            liveness: fsm::Liveness::Down,
        }],
        window_ms: 1,
        evaluation_ids: Vec::new(),
    }));
    let down = server.get(&path).await;
    assert_eq!(down.status, 502);
    assert!(down.text.contains("is down"), "{down:?}");

    let unknown = "/v1/client/fs/logs/00000000-0000-0000-0000-000000000000";
    let refused = server.get(unknown).await;
    let text = "Unknown allocation \"00000000-0000-0000-0000-000000000000\"";
    assert_eq!((refused.status, refused.text.as_str()), (404, text));
    let refused = server.get("/v1/client/stats").await;
    assert_eq!((refused.status, &*refused.text), (400, "No local Node and node_id not provided"));
    let path = "/v1/client/stats?node_id=00000000-0000-0000-0000-000000000000";
    let text = "Unknown node \"00000000-0000-0000-0000-000000000000\"";
    assert_eq!(server.get(path).await.text, text);
    // The id in the body counts as well.
    let set = json!({ "NodeID": NODE.to_string(), "Meta": { "a": "b" } });
    let down = server.put("/v1/client/metadata", &set).await;
    assert!(down.text.contains("is down"), "{down:?}");
    server.stop().await;
}
