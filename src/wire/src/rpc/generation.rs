//! The generation on every call between processes: the caller names its own, and a server refuses
//! another one before it looks at the message.
//!
//! Both ends log a refusal, at most once in [`PAUSE`], since peers and agents try again for ever.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fsm::{GENERATION, generation};
use ground::rt::Instant;
use tonic::{Code, Request, Status, metadata::MetadataMap, service::Interceptor};

/// Names the caller's generation, and in a refusal the server's.
const HEADER: &str = "quorate-generation";
/// Time between two log lines that say the same.
const PAUSE: Duration = Duration::from_secs(10);
const WHAT_TO_DO: &str = "run binaries of one generation on all servers and agents";

/// Puts a generation on a request.
pub(super) fn stamp(metadata: &mut MetadataMap, generation: u16) {
    metadata.insert(HEADER, generation.into());
}

/// Puts this binary's generation on every request of a generated client.
#[derive(Clone, Copy)]
pub struct Stamped;

impl Interceptor for Stamped {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        stamp(request.metadata_mut(), GENERATION);
        Ok(request)
    }
}

/// Whether a call was refused because its two ends are of different generations.
pub fn is_refusal(status: &Status) -> bool {
    status.code() == Code::Unimplemented && status.metadata().contains_key(HEADER)
}

fn refusal(caller: Option<u32>) -> Status {
    let caller = caller
        .map_or("names no generation".to_owned(), |caller| format!("is of generation {caller}"));
    let text =
        format!("the caller {caller}, this server is of generation {GENERATION}: {WHAT_TO_DO}");
    let mut metadata = MetadataMap::new();
    stamp(&mut metadata, GENERATION);
    Status::with_metadata(Code::Unimplemented, text, metadata)
}

/// Refuses callers of another generation: the interceptor of all services of a server.
#[derive(Clone, Default)]
pub struct Check(Arc<Paced>);

impl Interceptor for Check {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let named = request.metadata().get(HEADER);
        let named = named.and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        if named.is_some_and(|named| generation::check(named).is_ok()) {
            return Ok(request);
        }
        let status = refusal(named);
        if self.0.is_due() {
            let from = request.remote_addr().map(|address| address.to_string());
            tracing::warn!(from, message = status.message(), "refused a call");
        }
        Err(status)
    }
}

/// Limits a repeated log line to one in [`PAUSE`].
#[derive(Default)]
pub(super) struct Paced(Mutex<Option<Instant>>);

impl Paced {
    /// Whether the last line is long enough ago; if so, this one counts as logged now.
    pub(super) fn is_due(&self) -> bool {
        self.is_due_at(Instant::now())
    }

    fn is_due_at(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now.duration_since(last) >= PAUSE);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn call(check: &mut Check, generation: Option<&str>) -> Result<Request<()>, Status> {
        let mut request = Request::new(());
        if let Some(generation) = generation {
            request.metadata_mut().insert(HEADER, generation.parse().unwrap());
        }
        check.call(request)
    }

    #[test]
    fn a_caller_of_the_own_generation_is_let_through_and_any_other_is_told_both() {
        let mut check = Check::default();
        assert!(check.call(Stamped.call(Request::new(())).unwrap()).is_ok());
        let newer = (GENERATION + 1).to_string();
        let of_newer = format!("the caller is of generation {newer}");
        let cases = [
            (Some("1"), "the caller is of generation 1"),
            (Some(newer.as_str()), &of_newer),
            (Some("two"), "the caller names no generation"),
            (None, "the caller names no generation"),
        ];
        for (named, caller) in cases {
            let status = call(&mut check, named).unwrap_err();
            assert!(is_refusal(&status));
            let expected =
                format!("{caller}, this server is of generation {GENERATION}: {WHAT_TO_DO}");
            assert_eq!(status.message(), expected);
        }
        assert!(!is_refusal(&Status::unimplemented("another method")));
    }

    #[test]
    fn equal_complaints_are_logged_once_in_a_while() {
        let (paced, now) = (Paced::default(), Instant::now());
        assert!(paced.is_due_at(now));
        assert!(!paced.is_due_at(now + PAUSE / 2));
        assert!(paced.is_due_at(now + PAUSE));
    }
}
