//! What an HTTP answer means for the history: happened, did not happen, or nobody knows.
//!
//! Owns the one rule of all workloads: a read that was not answered changes nothing, so it is a `fail`; a
//! write is a `fail` only if the answer says that nothing was done, and `info` in every other case.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{client::Reply, history::Kind};

/// What a server says when a compare-and-set found another version.
pub(crate) const CONFLICT: &str = "Enforcing job modify index";
/// What a server says when it turned a write away before it went into the log.
const NOTHING_DONE: [&str; 3] =
    ["not proposed", "writes are turned away", "timed out: nothing was changed"];
/// Longest part of an error body that goes into the history.
const ERROR_BYTES_MAX: usize = 300;

/// How one operation ended, in the terms of the history.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Completion {
    /// `Ok`, `Fail` or `Info`.
    pub(crate) kind: Kind,
    /// The value of the end, if it is not that of the start.
    pub(crate) value: Option<Value>,
    /// The version the answer carried.
    pub(crate) version: Option<u64>,
    /// What else the checker needs.
    pub(crate) detail: Option<Value>,
    /// Why not `Ok`.
    pub(crate) error: Option<String>,
}

impl Completion {
    /// It happened.
    pub(crate) fn ok() -> Self {
        Self { kind: Kind::Ok, value: None, version: None, detail: None, error: None }
    }

    /// It certainly did not happen.
    pub(crate) fn fail(error: &str) -> Self {
        Self::not_ok(Kind::Fail, error)
    }

    /// Nobody knows.
    pub(crate) fn info(error: &str) -> Self {
        Self::not_ok(Kind::Info, error)
    }

    /// The same with the value of its end.
    pub(crate) fn with_value(self, value: Value) -> Self {
        Self { value: Some(value), ..self }
    }

    fn not_ok(kind: Kind, error: &str) -> Self {
        let cut = error.floor_char_boundary(ERROR_BYTES_MAX);
        Self { kind, error: Some(error[..cut].trim().to_owned()), ..Self::ok() }
    }
}

/// The body of an answered read and the index it was read at; anything else is a `fail`.
pub(crate) fn read<T: DeserializeOwned>(reply: &Reply) -> Result<(T, u64), Completion> {
    match reply {
        Reply::Answer { status: 200, index, body } => match serde_json::from_str(body) {
            Ok(value) => Ok((value, index.unwrap_or(0))),
            Err(error) => Err(Completion::fail(&format!("unexpected answer: {error}"))),
        },
        Reply::Answer { status, body, .. } => Err(Completion::fail(&format!("{status}: {body}"))),
        Reply::NotSent(error) | Reply::Lost(error) => Err(Completion::fail(error)),
    }
}

/// Whether this answer says that the thing asked for does not exist.
pub(crate) fn is_not_found(reply: &Reply, what: &str) -> bool {
    matches!(reply, Reply::Answer { status: 404, body, .. } if body.contains(what))
}

/// The body of an acknowledged write; otherwise `fail` if nothing was done, else `info`.
pub(crate) fn written<T: DeserializeOwned>(reply: &Reply) -> Result<T, Completion> {
    match reply {
        Reply::Answer { status: 200, body, .. } => serde_json::from_str(body)
            .map_err(|error| Completion::info(&format!("unexpected answer: {error}"))),
        Reply::Answer { status, body, .. } => {
            let error = format!("{status}: {body}");
            let nothing_done = (400..500).contains(status)
                || body.contains(CONFLICT)
                || NOTHING_DONE.iter().any(|words| body.contains(words));
            Err(if nothing_done { Completion::fail(&error) } else { Completion::info(&error) })
        }
        Reply::NotSent(error) => Err(Completion::fail(error)),
        Reply::Lost(error) => Err(Completion::info(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    fn answer(status: u16, body: &str) -> Reply {
        Reply::Answer { status, index: Some(4), body: body.to_owned() }
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Registered {
        job_modify_index: u64,
    }

    #[test]
    fn writes_fail_only_if_nothing_was_done() {
        let registered = r#"{"EvalID":"","JobModifyIndex":12,"Warnings":""}"#;
        let read = written::<Registered>(&answer(200, registered));
        assert_eq!(read, Ok(Registered { job_modify_index: 12 }));
        let conflict =
            "Enforcing job modify index 3: job exists with conflicting job modify index: 4";
        for (reply, kind) in [
            (answer(500, conflict), Kind::Fail),
            (answer(400, "bad job"), Kind::Fail),
            (answer(429, "too many"), Kind::Fail),
            (answer(500, "No cluster leader: the write was not proposed"), Kind::Fail),
            (answer(503, "writes are turned away: /d has 0 MiB free"), Kind::Fail),
            (answer(504, "timed out: nothing was changed"), Kind::Fail),
            (answer(500, "No cluster leader"), Kind::Info),
            (answer(503, "starting"), Kind::Info),
            (answer(504, "timeout"), Kind::Info),
            (answer(307, ""), Kind::Info),
            (answer(200, "{}"), Kind::Info),
            (Reply::NotSent("refused".to_owned()), Kind::Fail),
            (Reply::Lost("timeout".to_owned()), Kind::Info),
        ] {
            let completion = written::<Registered>(&reply).expect_err("none was acknowledged");
            assert_eq!(completion.kind, kind, "{reply:?}");
            assert!(completion.error.is_some());
        }
    }

    #[test]
    fn reads_are_understood_or_fail() {
        let (registered, index) =
            read::<Registered>(&answer(200, r#"{"JobModifyIndex":3}"#)).expect("it is an answer");
        assert_eq!((registered.job_modify_index, index), (3, 4));
        for reply in [
            answer(404, "404 page not found"),
            answer(500, "No cluster leader"),
            answer(200, "{}"),
            Reply::Lost("timeout".to_owned()),
            Reply::NotSent("refused".to_owned()),
        ] {
            let completion = read::<Registered>(&reply).expect_err("none was answered");
            assert_eq!(completion.kind, Kind::Fail, "{reply:?}");
        }
        assert!(is_not_found(&answer(404, "job not found"), "job not found"));
        assert!(!is_not_found(&answer(404, "unknown path"), "job not found"));
    }
}
