//! `job scale`, `job scaling-events` and `scaling policy` against a canned server.

use serde_json::{Value, json};

use super::{Canned, EVALUATION};

fn job() -> Canned {
    Canned::default()
        .on("GET /v1/jobs", &json!([{"ID": "web", "Namespace": "default"}]))
        .on("PUT /v1/job/web/scale", &json!({"EvalID": EVALUATION, "JobModifyIndex": 7}))
}

fn event(count: Value, at_s: i64, message: &str) -> Value {
    json!({"Count": count, "PreviousCount": 2, "Error": count.is_null(), "Message": message,
        "EvalID": if count.is_null() { Value::Null } else { EVALUATION.into() },
        "Time": at_s * 1_000_000_000, "Meta": {"a": 1}})
}

#[test]
fn a_scale_names_the_only_group_by_itself() {
    let only = json!({"TaskGroups": {"web": {"Desired": 2}}});
    let server = job().on("GET /v1/job/web/scale", &only).start();
    let ran = server.run("job scale -detach -check-index 5 web 4");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.contains(EVALUATION), "{}", ran.out);
    let body: Value = serde_json::from_str(&server.request("PUT").body).unwrap();
    assert_eq!((&body["Count"], &body["Target"]["Group"]), (&json!(4), &json!("web")));
    assert_eq!(body["JobModifyIndex"], 5);

    let two = json!({"TaskGroups": {"web": {}, "api": {}}});
    let server = job().on("GET /v1/job/web/scale", &two).start();
    let ran = server.run("job scale web 4");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("several groups, name one of them: api, web"), "{}", ran.err);
    assert_eq!(server.run("job scale -detach web api 3").code, 0);
    let ran = server.run("job scale web many");
    assert!(ran.err.contains("\"many\" is not a count"), "{}", ran.err);
}

#[test]
fn events_are_listed_newest_first() {
    let groups = json!({
        "api": {"Events": [event(json!(3), 60, "busy")]},
        "web": {"Events": [event(Value::Null, 120, "no data"), event(json!(2), 0, "")]},
    });
    let server = job().on("GET /v1/job/web/scale", &json!({"TaskGroups": groups})).start();
    let ran = server.run("job scaling-events web");
    assert_eq!(
        ran.out,
        "Time                  Task Group  Count   Before  Error  Evaluation  Message
1970-01-01T00:02:00Z  web         <none>  2       true   <none>      no data
1970-01-01T00:01:00Z  api         3       2       false  eeeeeeee    busy
N/A                   web         2       2       false  eeeeeeee    <none>\n"
    );
    assert!(server.run("job scaling-events -verbose web").out.contains("\"a\": 1"));
    let nothing = json!({"TaskGroups": {"web": {"Events": []}}});
    let server = job().on("GET /v1/job/web/scale", &nothing).start();
    assert_eq!(server.run("job scaling-events web").out, "No events\n");
}

#[test]
fn policies_are_listed_and_shown() {
    const ID: &str = "dddddddd-1111-8111-8111-111111111111";
    let target = json!({"Namespace": "default", "Job": "web", "Group": "api"});
    let mut policy = json!({"ID": ID, "Enabled": true, "Type": "horizontal", "Target": target});
    let list = json!([policy.clone()]);
    policy["Min"] = 1.into();
    policy["Max"] = 5.into();
    policy["Policy"] = json!({"cooldown": "1m"});
    let server = Canned::default()
        .on("GET /v1/scaling/policies", &list)
        .on(&format!("GET /v1/scaling/policy/{ID}"), &policy)
        .start();
    let ran = server.run("scaling policy list -job web -type horizontal");
    assert_eq!(
        ran.out,
        "ID        Enabled  Type        Target
dddddddd  true     horizontal  Namespace:default,Job:web,Group:api\n"
    );
    assert_eq!(server.lines()[0], "GET /v1/scaling/policies?job=web&type=horizontal");
    let ran = server.run("scaling policy info dddd");
    assert_eq!(
        ran.out,
        "ID      = dddddddd
Target  = Namespace:default,Job:web,Group:api
Type    = horizontal
Enabled = true
Min     = 1
Max     = 5

Policy
{
  \"cooldown\": \"1m\"
}\n"
    );
}
