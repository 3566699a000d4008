//! File work of requests: a few threads, and a time limit for each piece of work. If a file system
//! hangs or a folder takes very long to read, only the requests for it suffer. The number of file
//! answers under way is bounded; one is under way until its client has read all of it.

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::TryStreamExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::HttpError;

/// Pieces of file work at a time; each has a thread.
const WORKERS_MAX: usize = 16;
/// How long a piece may wait for a thread, and then take.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Requests for files at a time: a log that is followed for hours is one of them.
const READERS_MAX: usize = 256;

/// Places of requests for files.
#[derive(Clone)]
pub(crate) struct Readers(Arc<Semaphore>);

impl Default for Readers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(READERS_MAX)))
    }
}

/// Answers a request that finds a place. The parts of the answer hold it until they are written.
pub(super) async fn take_place(
    State(readers): State<Readers>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(place) = readers.0.try_acquire_owned() else {
        return HttpError::Crowded.into_response();
    };
    let place = Arc::new(place);
    let (head, body) = next.run(request).await.into_parts();
    let keep_place = move |part| Bytes::from_owner(Part { part, _place: Arc::clone(&place) });
    Response::from_parts(head, Body::from_stream(body.into_data_stream().map_ok(keep_place)))
}

/// Bytes of an answer, and the place of the request.
struct Part {
    part: Bytes,
    _place: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.part
    }
}

/// Threads for file work.
#[derive(Clone)]
pub(crate) struct FileWork {
    places: Arc<Semaphore>,
    time_max: Duration,
}

impl Default for FileWork {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(WORKERS_MAX)), time_max: TIME_MAX }
    }
}

impl FileWork {
    /// Does a piece of work on a thread for it. One that takes too long keeps its thread, and
    /// nobody waits for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, HttpError> + Send + 'static,
    ) -> Result<T, HttpError> {
        let place = timeout(self.time_max, Arc::clone(&self.places).acquire_owned());
        let place = place.await.map_err(|_| HttpError::Busy)?.map_err(io::Error::other)?;
        let work = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(place);
            done
        });
        timeout(self.time_max, work)
            .await
            .map_err(|_| HttpError::Slow)?
            .map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc;

    use axum::{Router, http::StatusCode, middleware::from_fn_with_state, routing::get};
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    #[tokio::test]
    async fn a_request_has_its_place_until_the_last_part_of_the_answer_is_gone() {
        let readers = Readers(Arc::new(Semaphore::new(1)));
        let router = Router::new()
            .route("/", get(async || "text"))
            .layer(from_fn_with_state(readers, take_place));
        let service = TowerToHyperService::new(router);
        let ask = async || service.call(Request::new(Body::empty())).await.unwrap();
        let first = ask().await;
        assert_eq!(ask().await.status(), StatusCode::SERVICE_UNAVAILABLE, "it is not read yet");
        let text = axum::body::to_bytes(first.into_body(), 99).await.unwrap();
        assert_eq!(text, "text");
        drop(text);
        assert_eq!(ask().await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn work_that_hangs_costs_its_thread_and_a_limited_time() {
        let places = Arc::new(Semaphore::new(2));
        let work = FileWork { places, time_max: Duration::from_millis(50) };
        let (go_on, hang) = mpsc::sync_channel::<()>(1);
        let (release, hang_too) = mpsc::sync_channel::<()>(1);
        let first = work.run(move || Ok(hang.recv().is_err())).await;
        assert!(matches!(first, Err(HttpError::Slow)), "{first:?}");
        assert_eq!(work.run(|| Ok(7)).await.unwrap(), 7, "the other thread");
        let second = work.run(move || Ok(hang_too.recv().is_err())).await;
        assert!(matches!(second, Err(HttpError::Slow)), "{second:?}");
        let third = work.run(|| Ok(7)).await;
        assert!(matches!(third, Err(HttpError::Busy)), "{third:?}");
        drop((go_on, release));
        let patient = FileWork { time_max: Duration::from_mins(1), ..work };
        assert_eq!(patient.run(|| Ok(7)).await.unwrap(), 7, "the threads are free again");
    }
}
