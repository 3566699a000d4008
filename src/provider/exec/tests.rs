//! Small programs in shell: what they do wrong, and what a caller sees of it.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use elastic::call::{
    Create, Description, Destroyed, ErrorScope, Listing, Machine, MachineState, Tags,
};
use fsm::{InstanceId, pool::InstanceType};

use super::*;

const HELLO: &str = r#"echo '{"quorate_provider":1,"name":"test"}'"#;
/// Reads a call into `line`, its id into `id`.
const NEXT: &str = r#"next() { read -r line || exit 0; id=${line#*\"id\":}; id=${id%%[,\}]*}; }"#;

fn program(script: &str) -> ExecProvider {
    ExecProvider::new("test", vec!["sh".into(), "-c".into(), script.into()])
}

/// A program that says hello and then does what the script says.
fn polite(script: &str) -> ExecProvider {
    program(&format!("{HELLO}\n{NEXT}\n{script}"))
}

fn context() -> Context {
    let time_left = Duration::from_mins(2);
    let (cluster, servers) = ("c1".into(), vec!["10.0.0.1:4647".into()]);
    Context { cluster, servers, time_left, known: ["i-2".into(), "i-4".into()].into() }
}

fn describe() -> Operation {
    Operation::Describe { instance: InstanceId([1; 16]), provider_id: "i-1".into() }
}

fn destroy() -> Operation {
    Operation::Destroy { instance: InstanceId([1; 16]), provider_id: "i-1".into() }
}

async fn failure(provider: &ExecProvider, operation: Operation) -> ProviderError {
    provider.call(operation, context()).await.unwrap_err()
}

#[tokio::test]
async fn each_class_of_error_has_its_scope_and_pause() {
    let provider = polite(
        r#"for class in rate-limited quota no-capacity transient fatal; do
             next; echo '{"id":'$id',"error":{"class":"'$class'","scope":"quota-group","retry_after_ms":7,"detail":"no"}}'
           done
           next; echo '{"id":'$id',"error":{"class":"quota","scope":"type"}}'
           next; echo '{"id":'$id',"error":{"class":"odd"}}'; next"#,
    );
    for class in ErrorClass::ALL {
        let error = failure(&provider, Operation::List).await;
        let (scope, retry_after_ms) = (ErrorScope::QuotaGroup, Some(7));
        assert_eq!(error, ProviderError { class, scope, retry_after_ms, detail: "no".into() });
    }
    let error = failure(&provider, Operation::List).await;
    assert_eq!((error.scope, error.retry_after_ms, &*error.detail), (ErrorScope::Type, None, ""));
    let error = failure(&provider, Operation::List).await;
    assert_eq!(error.class, ErrorClass::Transient);
    assert!(error.detail.starts_with("its error makes no sense: unknown variant `odd`"), "{error}");
}

#[tokio::test]
async fn replies_come_in_any_order() {
    let provider = polite(
        r#"next; first=$id; case $line in *'"call":"list"'*) ;; *) exit 9;; esac
           next
           echo '{"id":'$id',"result":{"state":"broken","words":"it burns"}}'
           echo '{"id":'$first',"result":{"scope":"s","machines":[
             {"provider_id":"i-1","address":"10.0.0.9","tags":{"quorate-cluster":"c1"}},
             {"provider_id":"i-2","tags":{"quorate-cluster":"c2"}},{"provider_id":"i-3","tags":{}},
             {"provider_id":"i-4","tags":{"a":"b"}}]}}' | tr -d '\n'
           echo; next"#,
    );
    let (listed, described) = futures_util::join!(
        provider.call(Operation::List, context()),
        provider.call(describe(), context())
    );
    let tags: Tags = [(TAG_CLUSTER.into(), "c1".into())].into();
    let (provider_id, address, scope) = ("i-1".into(), "10.0.0.9".into(), "s".into());
    // What is not of this cluster is left out. A machine that is known and has lost the tag of its
    // cluster is not; one that has that of another cluster is another machine.
    let first = Machine { provider_id, address, scope, tags };
    let tags = [("a".into(), "b".into())].into();
    let bare = Machine { provider_id: "i-4".into(), address: "".into(), tags, ..first.clone() };
    let machines = vec![first, bare];
    assert_eq!(listed, Ok(Answer::Listed(Listing { scope: "s".into(), machines })));
    let (state, words) = (MachineState::Broken, "it burns".into());
    let description = Description { state, address: "".into(), words };
    assert_eq!(described, Ok(Answer::Described(description)));
}

/// As many machines as a pool may have, each with all that Quorate gives it and long names of its
/// own.
#[tokio::test]
async fn a_list_of_a_whole_pool_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let count = usize::try_from(fsm::limits::INSTANCES_MAX).unwrap();
    let machine = |number: usize| {
        let long = |of: &str| format!("{number:05}{}", of.repeat(251));
        let mut tags = serde_json::json!({ "quorate-cluster": "c1" });
        for tag in ["quorate-instance", "quorate-pool", "quorate-type", "owner", "cost-centre"] {
            tags[tag] = "t".repeat(256).into();
        }
        serde_json::json!({ "provider_id": long("i"), "address": long("a"), "tags": tags })
    };
    let machines: Vec<_> = (0..count).map(machine).collect();
    let list = serde_json::json!({ "id": 1, "result": { "scope": "s", "machines": machines } });
    let file = directory.path().join("list");
    fs::write(&file, format!("{list}\n")).unwrap();
    let provider = polite(&format!("next; cat {}; next", file.display()));
    let Ok(Answer::Listed(listing)) = provider.call(Operation::List, context()).await else {
        panic!("no list")
    };
    assert_eq!(listing.machines.len(), count);
}

/// What is not asked for is not held, and a list of nothing but tags ends before it is large.
#[tokio::test]
async fn a_list_of_odd_things_is_refused_and_what_is_odd_beside_it_passed_over() {
    let odd = r#"awk 'BEGIN { for (i = 0; i < 1000000; i++) printf ",{\"\":%d}", i }'"#;
    let tags = r#"awk 'BEGIN { for (i = 0; i < 1000000; i++) printf "\"%d\":\"\",", i }'"#;
    let provider = polite(&format!(
        r#"next; printf '{{"id":%s,"odd":[1' $id; {odd}
           printf '],"result":{{"scope":"s","machines":[],"odd":1}}}}\n'
           next; printf '{{"id":%s,"result":{{"scope":"s","machines":[{{"provider_id":"i","tags":{{' $id; {tags}
           printf '"z":""}}}}]}}}}\n'; next"#
    ));
    let listed = provider.call(Operation::List, context()).await;
    assert!(matches!(listed, Ok(Answer::Listed(_))), "{listed:?}");
    let error = failure(&provider, Operation::List).await;
    assert!(error.detail.contains("at most 64 tags"), "{error}");
}

#[tokio::test]
async fn a_killed_program_is_started_again() {
    let provider = polite(
        r#"while next; do case $line in
             *'"call":"destroy"'*) echo '{"id":'$id',"result":{"state":"gone"}}';;
             *) kill -9 $$;;
           esac; done"#,
    );
    for _ in 0..2 {
        let gone = provider.call(destroy(), context()).await;
        assert_eq!(gone, Ok(Answer::Destroyed(Destroyed::Gone)));
        let error = failure(&provider, describe()).await;
        assert_eq!(error.class, ErrorClass::Transient);
        assert_eq!(&*error.detail, "the program ended: signal: 9 (SIGKILL)");
    }
}

#[tokio::test]
async fn a_line_outside_the_protocol_ends_the_program() {
    let wrong = [
        ("head -c 33554433 /dev/zero | tr '\\0' x", "has more than 33554432 bytes"),
        ("echo 'making it…'", "is not a JSON object: `making it…`"),
        ("echo '[1]'", "is not a JSON object: `[1]`"),
        ("echo '{\"result\":{}}'", "has no id of a call: `{\"result\":{}}`"),
        ("echo '{\"id\":1}'", "its reply 1 has neither a result nor an error"),
        ("exit 3", "exit status: 3"),
    ];
    for (script, why) in wrong {
        let error = failure(&polite(&format!("next; {script}; next; next")), describe()).await;
        assert_eq!(error.class, ErrorClass::Transient);
        assert!(error.detail.starts_with("the program ended: "), "{error}");
        assert!(error.detail.contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_line_may_have_a_mebibyte() {
    let reply = r#"next; printf '{"id":%s,"result":{"state":"up","more":"' $id
        head -c 1048000 /dev/zero | tr '\0' x; echo '"}}'; next"#;
    assert!(polite(reply).call(describe(), context()).await.is_ok());
}

#[tokio::test]
async fn a_wrong_hello_is_explained() {
    let wrong = [
        (
            r#"{"quorate_provider":2,"name":"x"}"#,
            "it speaks version 2 of the protocol, and this server 1",
        ),
        (r#"{"quorate_provider":1}"#, "its first line has no name"),
        (r#"{"id":1}"#, "its first line is not {\"quorate_provider\":1,\"name\":…}"),
        ("Hi", "a line on its standard output is not a JSON object: `Hi`"),
    ];
    for (line, why) in wrong {
        let error = failure(&program(&format!("echo '{line}'; cat")), Operation::List).await;
        assert!(error.detail.contains(why), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_says_no_hello_is_ended() {
    let error = failure(&program("exec sleep 1000"), Operation::List).await;
    assert_eq!(&*error.detail, "the program ended: it said no hello within 10 s");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_not_there_is_tried_again_until_the_deadline() {
    let provider = ExecProvider::new("test", vec!["/nowhere/at/all".into()]);
    let began = Instant::now();
    let error = failure(&provider, Operation::List).await;
    assert_eq!(error.class, ErrorClass::Transient);
    assert!(error.detail.contains("/nowhere/at/all: No such file or directory"), "{error}");
    // 0.2 + 0.4 + … + 25.6 + 30 s, and the next pause would pass the two minutes.
    assert!((Duration::from_secs(81)..Duration::from_secs(112)).contains(&began.elapsed()));
}

#[test]
fn pauses_double_until_a_run_lasts() {
    let mut slot = Slot::default();
    let (now, short) = (Instant::now(), Duration::from_secs(59));
    let pauses: Vec<u128> = (0..9).map(|_| slot.fail(now, short, "").as_millis()).collect();
    assert_eq!(pauses, [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000]);
    assert_eq!(restart_pause(u32::MAX), RESTART_PAUSE_MAX);
    assert_eq!(slot.fail(now, Duration::from_mins(1), ""), RESTART_PAUSE_MIN);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_provider_ends_its_program_with_whatever_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let stubborn = format!(
        r#"trap '' TERM; sleep 1000 & echo $$ $! > '{0}.new'; mv '{0}.new' '{0}'
           next; echo '{{"id":'$id',"result":{{"state":"up"}}}}'; while :; do sleep 1; done"#,
        pids.display()
    );
    let provider = polite(&stubborn);
    assert!(provider.call(describe(), context()).await.is_ok());
    let pids = fs::read_to_string(pids).unwrap();
    drop(provider);
    let has_gone = |pid: &str| {
        let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    let gone = launch::wait_for(Duration::from_mins(1), || {
        pids.split_whitespace().all(has_gone).then_some(())
    });
    assert!(gone.is_some(), "{pids}");
}

#[test]
fn a_create_has_a_whole_configuration_but_the_folder() {
    let kind = InstanceType {
        name: "small".into(),
        provider_type: "t1".into(),
        cpu: 1_000,
        memory_mb: 512,
        price_micro: 50_000,
        ..InstanceType::default()
    };
    let (key, token, pool) = (InstanceId([1; 16]), [2; 16], "gpu".into());
    let tags: Tags = [("quorate-pool".into(), "gpu".into())].into();
    let create = Operation::Create(Box::new(Create { key, token, pool, kind, tags }));
    let line: serde_json::Value =
        serde_json::from_str(&protocol::request(7, &create, &context())).unwrap();
    assert_eq!((&line["id"], &line["call"]), (&7.into(), &"create".into()));
    assert_eq!((&line["key"], &line["deadline_ms"]), (&key.to_string().into(), &120_000.into()));
    assert_eq!(line["tags"], serde_json::json!({"quorate-cluster": "c1", "quorate-pool": "gpu"}));
    assert_eq!(line["type"]["cpu_mhz"], 1_000);
    let text = format!("{}data_dir = \"/m\"\n", line["agent_config"].as_str().unwrap());
    let table: toml::Table = toml::from_str(&text).unwrap();
    assert_eq!(table["data_dir"].as_str(), Some("/m"));
    assert_eq!(table["instance"]["id"].as_str(), Some(&*key.to_string()));
    assert_eq!(table["servers"][0].as_str(), Some("10.0.0.1:4647"));
}

/// What is clear is taken: empty lines, an object over several lines, `null` beside a result,
/// numbers in quotes.
#[tokio::test]
async fn sloppy_but_clear_answers_are_taken() {
    let provider = program(&format!(
        r#"echo; printf '{{\n  "quorate_provider": "1",\n  "name": "test"\n}}\n'
           {NEXT}
           next; echo; echo '{{"id":"'$id'","result":{{"state":"gone"}},"error":null}}'
           next; printf '{{\n  "id": '$id',\n\n  "result": {{\n    "state": "asked"\n  }}\n}}\n'
           next; echo '{{"id":'$id',"result":null,"error":{{"class":"quota","retry_after_ms":"7"}}}}'
           next"#
    ));
    let answer = provider.call(destroy(), context()).await;
    assert_eq!(answer, Ok(Answer::Destroyed(Destroyed::Gone)));
    let answer = provider.call(destroy(), context()).await;
    assert_eq!(answer, Ok(Answer::Destroyed(Destroyed::Asked)));
    let error = failure(&provider, Operation::List).await;
    assert_eq!((error.class, error.retry_after_ms), (ErrorClass::Quota, Some(7)));
}

/// An object that never ends does not swallow the replies behind it: the program ends.
#[tokio::test]
async fn an_object_without_an_end_ends_the_program() {
    let provider =
        polite(r#"next; echo '{"oops'; echo '{"id":'$id',"result":{"state":"gone"}}'; next; next"#);
    let error = failure(&provider, destroy()).await;
    assert!(error.detail.contains("is not a JSON object: `{\"oops"), "{}", error.detail);
}
