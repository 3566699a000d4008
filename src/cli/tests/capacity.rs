//! `quorate capacity`.

use super::*;

const MEMBER: &str = "3f2a9c01-1111-4111-8111-111111111111";

fn web() -> Value {
    json!({
        "Group": "web", "Pool": "burst", "Dimension": "memory_mb", "Unit": 4096, "Min": 0, "Max": 10,
        "Predictor": "headroom", "Headroom": { "Percent": 20 }, "Step": 20, "StepIntervalMs": 1_000,
        "DrainMs": 50_000, "Busy": "allocations", "Hard": true, "CooldownUpMs": 0,
        "CooldownDownMs": 60_000, "RequirementTTLms": 10_000, "MemberPort": 8_080,
        "Required": 9_000, "Desired": 10_800, "Current": 12_288, "OnTheWay": 4_096, "Draining": 0,
        "Members": 3,
        "Sources": [{ "Source": "lb1", "Epoch": 7, "Seq": 41, "Amount": 9_000,
            "Since": "2026-03-01T00:00:00Z", "Expires": "2026-03-01T00:00:10Z" }],
    })
}

fn members() -> Value {
    json!([{ "Instance": MEMBER, "Node": NODE_A, "Address": "10.0.0.9", "Port": 8_080,
        "Since": "2026-03-01T00:00:00Z" }])
}

#[test]
fn groups_are_listed_and_shown() {
    let server = Canned::default()
        .on("GET /v1/capacity", &json!([web()]))
        .on("GET /v1/capacity/web", &web())
        .on("GET /v1/capacity/web/members", &members())
        .start();
    let out = server.run("capacity status").out;
    let row = "web    burst  9000      10800    12288    4096        0         3        1";
    assert!(out.contains(row), "{out}");
    let out = server.run("capacity status web").out;
    for part in [
        "Desired         = 10800 memory_mb\n",
        "Size            = 0 to 10 members\n",
        "Predictor       = headroom of 20 %\n",
        "Busy            = allocations, hard\n",
        "Drain           = 50s\n",
        "lb1     9000    2026-03-01T00:00:00Z  2026-03-01T00:00:10Z  7      41\n",
        "3f2a9c01  11111111  10.0.0.9  8080  2026-03-01T00:00:00Z",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let json: Value = serde_json::from_str(&server.run("capacity status -json web").out).unwrap();
    assert_eq!(json, web());
    let json: Value = serde_json::from_str(&server.run("capacity members -json web").out).unwrap();
    assert_eq!(json, members());
    let empty = Canned::default()
        .on("GET /v1/capacity", &json!([]))
        .on("GET /v1/capacity/web/members", &json!([]))
        .start();
    assert!(empty.run("capacity status").out.contains("quorate pool apply FILE"));
    assert_eq!(empty.run("capacity members web").out, "No members\n");
}

#[test]
fn a_group_that_is_not_declared_is_named() {
    let server = Canned::default().start();
    for verb in ["status", "members", "explain"] {
        let ran = server.run(&format!("capacity {verb} gone"));
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains("there is no capacity group \"gone\""), "{}", ran.err);
    }
}

#[test]
fn a_group_is_explained_line_by_line() {
    let answer = json!({ "Group": "web", "Sentences": ["lb1 asks for 9000", "3 members give it"] });
    let server = Canned::default().on("GET /v1/capacity/web/explain", &answer).start();
    let out = server.run("capacity explain web").out;
    assert_eq!(out, "lb1 asks for 9000\n3 members give it\n");
}

#[test]
fn a_requirement_is_said_as_a_source_that_starts_anew() {
    let server = Canned::default().on("PUT /v1/capacity/requirements", &json!({})).start();
    let ran = server.run("capacity set -ttl 90s me web=9000 api=0");
    let said = "Source \"me\" needs 9000 of web, 0 of api; this holds for 1m30s\n";
    assert_eq!((ran.code, &*ran.out), (0, said), "{}", ran.err);
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    let expected = json!({
        "Source": "me", "Epoch": 1_772_323_200_000_u64, "Seq": 1, "TTLms": 90_000,
        "Groups": [{ "Group": "web", "Amount": 9_000 }, { "Group": "api", "Amount": 0 }],
    });
    assert_eq!(body, expected);
    let server = Canned::default().on("PUT /v1/capacity/requirements", &json!({})).start();
    assert!(server.run("capacity set me").out.contains("needs nothing"));
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!((&body["Groups"], body.get("TTLms")), (&json!([]), None));
}

#[test]
fn a_bad_amount_is_not_sent() {
    let server = Canned::default().start();
    for (typed, why) in [
        ("web", "is not GROUP=AMOUNT"),
        ("=7", "is not GROUP=AMOUNT"),
        ("web=-1", "\"-1\" is not a whole number"),
        ("web=1.5", "\"1.5\" is not a whole number"),
    ] {
        let ran = server.run(&format!("capacity set me {typed}"));
        assert!(ran.code == 1 && ran.err.contains(why), "{typed}: {}", ran.err);
    }
    assert!(server.lines().is_empty(), "nothing is sent");
    let refused = Canned::default()
        .fail("PUT /v1/capacity/requirements", 404, "capacity group \"gone\" not found")
        .start();
    let ran = refused.run("capacity set me gone=1");
    assert!(ran.code == 1 && ran.err.contains("capacity group \"gone\" not found"), "{}", ran.err);
}
