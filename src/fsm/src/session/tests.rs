//! Client sessions: a retried request takes effect once, within bounds of count and time.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::{
    command::{Command, Rejection, Reply},
    id::TimeMs,
    job::JobKind,
    limits,
    node::EvaluateNode,
    settings::{DeleteNamespace, Namespace, UpsertNamespace},
    testing::{Driver, START_MS, job, register, rows},
    tests::with_leader_changes,
    upkeep::Tick,
};

fn namespace(name: &str, description: &str) -> Command {
    Command::from(UpsertNamespace {
        namespace: Namespace {
            name: name.into(),
            description: description.into(),
            ..Namespace::default()
        },
    })
}

#[test]
fn a_retried_request_is_answered_again_and_applied_once() {
    with_leader_changes(|driver| {
        let evaluation = driver.evaluation_id();
        let command = register(job("t", JobKind::Service, 1), evaluation);
        let first = driver.commit_request(1, START_MS, command.clone());
        assert!(!first.effects.is_empty());
        let before = rows(&driver.state);
        driver.at_seconds(30);
        let second = driver.commit_request(1, START_MS, command);
        assert_eq!((&second.reply, second.index), (&first.reply, first.index));
        assert_eq!(second.effects, []);
        assert_eq!(rows(&driver.state), before);
    });
}

#[test]
fn a_rejection_is_answered_again_too() {
    let mut driver = Driver::default();
    let command = Command::from(DeleteNamespace { name: "team".into() });
    let first = driver.commit_request(1, START_MS, command.clone());
    assert_eq!(first.reply, Reply::Rejected(Rejection::NotFound { what: "namespace".into() }));
    driver.accept(namespace("team", ""));
    assert_eq!(driver.commit_request(1, START_MS, command).reply, first.reply);
    assert!(driver.state.namespaces.contains(&"team".into()));
}

#[test]
fn an_id_stands_for_one_request() {
    let mut driver = Driver::default();
    driver.commit_request(1, START_MS, namespace("team", "one"));
    let before = rows(&driver.state);
    let other = driver.commit_request(1, START_MS, namespace("team", "two"));
    assert_eq!(other.reply, Reply::Rejected(Rejection::RequestIdReused));
    assert_eq!(rows(&driver.state), before);
}

/// A request that may have been applied and forgotten is refused, not applied again.
#[test]
fn a_request_older_than_the_window_is_refused() {
    with_leader_changes(|driver| {
        let old = namespace("team", "old");
        driver.commit_request(1, START_MS, old.clone());
        driver.now = START_MS + limits::SESSION_MS_MAX;
        driver.commit_request(2, driver.now, namespace("team", "new"));
        assert_eq!(driver.state.sessions.len(), 2, "still in the window");
        assert_eq!(driver.commit_request(1, START_MS, old.clone()).reply, Reply::Done);

        driver.now += 1;
        driver.commit_request(3, driver.now, namespace("team", "newer"));
        assert_eq!(driver.state.sessions.len(), 2);
        let before = rows(&driver.state);
        let late = driver.commit_request(1, START_MS, old);
        assert_eq!(late.reply, Reply::Rejected(Rejection::SessionExpired));
        assert_eq!(rows(&driver.state), before);
    });
}

/// The stamp of a server's clock may run ahead a little; one far ahead would raise the floor over
/// everyone's requests.
#[test]
fn a_stamp_from_the_future_is_refused() {
    let mut driver = Driver::default();
    let far: TimeMs = START_MS + limits::SESSION_MS_MAX + 1;
    let reply = driver.commit_request(1, far, namespace("team", "")).reply;
    assert!(matches!(reply, Reply::Rejected(Rejection::Invalid(_))), "{reply:?}");
    assert!(driver.state.sessions.is_empty());
    assert_eq!(driver.commit_request(1, far - 1, namespace("team", "")).reply, Reply::Done);
}

#[test]
fn sessions_are_bounded_by_count() {
    let mut driver = Driver { checked: false, ..Driver::default() };
    let request = |number: u64| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        crate::session::Request {
            id: crate::RequestId(id),
            stamped_at: START_MS + number / 1000,
            payload_hash: 1,
        }
    };
    let commit = |driver: &mut Driver, number| {
        driver
            .commit_proposal(&crate::Proposal {
                at: driver.now,
                epoch: None,
                request: Some(request(number)),
                command: Command::from(Tick),
            })
            .reply
    };
    let most = u64::try_from(limits::SESSIONS_MAX).unwrap();
    for number in 0..=most {
        assert_eq!(commit(&mut driver, number), Reply::Done);
        driver.changes.rows.clear();
    }
    assert_eq!(driver.state.sessions.len(), limits::SESSIONS_MAX);
    let expired = Reply::Rejected(Rejection::SessionExpired);
    assert_eq!(commit(&mut driver, 0), expired, "the oldest went");
    assert_eq!(commit(&mut driver, 999), Reply::Done, "a kept one of the same time is answered");
    assert_eq!(driver.state.sessions.len(), limits::SESSIONS_MAX);
    assert_eq!(crate::invariant::check(&driver.state), []);
}

/// A kept reply is small, whatever was answered.
#[test]
fn kept_replies_are_small() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    for number in 0..20 {
        driver.register_job(job(&format!("sys{number}"), JobKind::System, 1));
    }
    let command = Command::from(EvaluateNode { node, evaluation_ids: Vec::new() });
    let first = driver.commit_request(1, START_MS, command).reply;
    let count = |reply: &Reply| {
        let Reply::Node { evaluations, .. } = reply else { panic!("unexpected {reply:?}") };
        evaluations.len()
    };
    assert_eq!(count(&first), 20);
    let long = "é".repeat(3000);
    driver.commit_request(2, START_MS, namespace(&long, ""));
    for session in driver.state.sessions.iter() {
        let bytes = crate::codec::encode(&session.reply).len() - crate::codec::HEADER_BYTES;
        assert!(bytes <= limits::SESSION_REPLY_BYTES_MAX, "{bytes}: {:?}", session.reply);
    }
    assert_eq!(count(&driver.state.sessions.iter().next().unwrap().reply), 12);
}
