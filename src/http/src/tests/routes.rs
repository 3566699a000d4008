//! Every row of the routes, with each of its methods, and the docs that are made of them.

use super::{
    cluster::TestCluster,
    socket::{TestResponse, TestServer},
};
use crate::{
    route::{Is, Route},
    routes,
};

/// A path that a row takes.
fn path_of(row: &Route) -> String {
    let id = "00000000-0000-0000-0000-000000000001";
    let words = row.path.split('/').map(|word| match word {
        "{id}" => id,
        word if word.starts_with("{*") => "a/b",
        word if word.starts_with('{') => "x",
        word => word,
    });
    words.collect::<Vec<_>>().join("/")
}

fn kind_of_answer(method: &str, path: &str, answer: &TestResponse) -> Result<Is, String> {
    let text = &answer.text;
    match answer.status {
        501 if text == "Nomad Enterprise only endpoint" => Ok(Is::Enterprise),
        501 if text.ends_with("is not supported by this server") => Ok(Is::Refused),
        405 => Err(format!("{method} {path} is a wrong method")),
        404 if text.starts_with("unknown path") => Err(format!("{method} {path} is unknown")),
        _ => Ok(Is::Built),
    }
}

#[tokio::test]
async fn every_row_does_what_it_says_with_each_of_its_methods() {
    let server = TestServer::start(TestCluster::new()).await;
    let mut wrong = Vec::new();
    for row in routes() {
        let path = path_of(&row);
        for method in row.takes.methods() {
            let body: &[u8] = if *method == "GET" { b"" } else { b"{}" };
            let answer = server.send(method, &path, &[], body).await;
            match kind_of_answer(method, &path, &answer) {
                Ok(found) if found == row.is => {}
                Ok(found) => wrong.push(format!("{method} {path}: {found:?}, {answer:?}")),
                Err(text) => wrong.push(text),
            }
            // The path is in the text: a client that sees only that knows what is missing.
            if row.is == Is::Refused {
                assert!(answer.text.starts_with(&path), "{answer:?}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.stop().await;
}

/// `docs/api.md` is made of the rows.
#[test]
fn docs_have_the_routes() {
    let mut rows = routes();
    rows.sort_by_key(|row| (row.path, row.takes));
    let lines = rows.iter().map(|row| {
        let methods = row.takes.methods().join(", ");
        let is = match row.is {
            Is::Built => "",
            Is::Refused => "501",
            Is::Enterprise => "501, Enterprise",
        };
        format!("| {methods} | `{}` | {} | {} | {is} |\n", row.path, row.subject.words(), row.right)
    });
    let table: String = lines.collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
    let docs = std::fs::read_to_string(path).expect("the docs");
    let begin = "|---|---|---|---|---|\n";
    let (before, found) = docs.split_once(begin).expect("the table's head");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, format!("{before}{begin}{table}")).expect("the docs are written");
    } else {
        assert_eq!(found, table, "run with UPDATE=1 if that is meant");
    }
}

#[tokio::test]
async fn methods_and_paths_that_nomad_does_not_have_are_no_missing_features() {
    let server = TestServer::start(TestCluster::new()).await;
    for (method, path, status) in [
        ("DELETE", "/v1/agent/join", 405),
        ("GET", "/v1/search", 405),
        ("PUT", "/v1/event/stream", 405),
        ("GET", "/v1/operator/raft/peer", 405),
        ("DELETE", "/v1/quotas", 405),
        ("PUT", "/v1/vars", 405),
        ("GET", "/v1/acl/nothing", 404),
        ("GET", "/v1/agent/nothing", 404),
        ("GET", "/v1/operator/keyring", 404),
    ] {
        let answer = server.send(method, path, &[], b"").await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
    }
    server.stop().await;
}
