//! Programs of a few lines, good and bad.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use super::*;

const PATIENCE: Duration = Duration::from_mins(1);

/// A program in Python's place: the shell answers by what it is asked.
fn program(script: &str) -> ExecProvider {
    let script =
        format!("id() {{ echo \"$1\" | sed 's/.*\"id\":\\([0-9]*\\).*/\\1/'; }}\n{script}");
    ExecProvider::new("test", ["/bin/sh", "-c", &script].map(str::to_owned).to_vec())
}

const HELLO: &str = "echo '{\"quorate_provider\":1}'\n";

fn context() -> Context {
    Context { cluster: "c".into(), servers: vec!["127.0.0.1:4647".into()], time_left: PATIENCE }
}

async fn describe(provider: &ExecProvider) -> Result<Answer, ProviderError> {
    let operation = Operation::Describe { instance: InstanceId([1; 16]), provider_id: "m".into() };
    provider.call(operation, context()).await
}

fn up(words: &str) -> Answer {
    Answer::Described(Description {
        state: MachineState::Up,
        address: "".into(),
        words: words.into(),
    })
}

#[tokio::test]
async fn answers_find_their_questions_in_any_order() {
    let provider = program(&format!(
        "{HELLO}read a; read b\n\
         echo \"{{\\\"id\\\":$(id \"$b\"),\\\"ok\\\":{{\\\"state\\\":\\\"up\\\",\\\"words\\\":\\\"second\\\"}}}}\"\n\
         echo \"{{\\\"id\\\":$(id \"$a\"),\\\"ok\\\":{{\\\"state\\\":\\\"up\\\",\\\"words\\\":\\\"first\\\"}}}}\"\n\
         read forever"
    ));
    let both = tokio::join!(describe(&provider), describe(&provider));
    assert_eq!(both, (Ok(up("first")), Ok(up("second"))));
}

#[tokio::test]
async fn errors_have_a_class_a_scope_and_a_time() {
    let provider = program(&format!(
        "{HELLO}while read a; do echo \"{{\\\"id\\\":$(id \"$a\"),\\\"error\\\":{{\\\"class\\\":\\\"quota\\\",\
         \\\"scope\\\":\\\"quota-group\\\",\\\"retry_after_ms\\\":7,\\\"detail\\\":\\\"vcpu\\\"}}}}\"; done"
    ));
    let expected = ProviderError {
        class: ErrorClass::Quota,
        scope: ErrorScope::QuotaGroup,
        retry_after_ms: Some(7),
        detail: "vcpu".into(),
    };
    assert_eq!(describe(&provider).await, Err(expected));
}

/// What it was asked has no known outcome, and it is started again.
#[tokio::test]
async fn a_program_that_ends_is_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("mark").display().to_string();
    let provider = program(&format!(
        "{HELLO}read a\nif [ ! -e {mark} ]; then touch {mark}; exit 3; fi\n\
         echo \"{{\\\"id\\\":$(id \"$a\"),\\\"ok\\\":{{\\\"state\\\":\\\"up\\\"}}}}\"\nread forever"
    ));
    let first = describe(&provider).await.unwrap_err();
    assert_eq!(first.class, ErrorClass::Transient);
    assert!(first.detail.contains("the program ended before it answered"), "{first}");
    assert!(Path::new(&mark).exists());
    let again = async {
        loop {
            if let Ok(answer) = describe(&provider).await {
                return answer;
            }
        }
    };
    assert_eq!(timeout(PATIENCE, again).await.unwrap(), up(""));
}

/// Each breaks the protocol in its way, and the error says how.
#[tokio::test]
async fn a_program_that_breaks_the_protocol_is_ended_and_told_why() {
    let long = format!("{HELLO}read a; head -c 1100000 /dev/zero | tr '\\0' x; echo; read forever");
    let cases = [
        ("echo '{\"quorate_provider\":2}'; read a", "speaks version 2"),
        ("echo welcome; read a", "did not say hello but: welcome"),
        ("exit 1", "did not say hello: it ended"),
        (&*format!("{HELLO}read a; echo what; read a"), "what is no answer"),
        (
            &*format!("{HELLO}read a; echo \"{{\\\"id\\\":$(id \"$a\")}}\"; read a"),
            "either ok or error",
        ),
        (
            &*format!(
                "{HELLO}read a; echo \"{{\\\"id\\\":$(id \"$a\"),\\\"error\\\":{{\\\"class\\\":\\\"bad\\\"}}}}\"; read a"
            ),
            "it named an error class \"bad\"",
        ),
        (&*long, "a line of more than"),
    ];
    for (script, why) in cases {
        let error = describe(&program(script)).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Transient, "{why}");
        assert!(error.detail.contains(why), "{why}: {error}");
    }
    let missing = ExecProvider::new("test", vec!["/nowhere/program".to_owned()]);
    let error = describe(&missing).await.unwrap_err();
    assert!(error.detail.contains("/nowhere/program does not start"), "{error}");
}
