//! File work of requests: few threads, and a limited time for each piece. A file system that hangs, or
//! a folder that takes for ever to read, costs those who ask for it, and nothing else of the agent.

use std::{io, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, time::timeout};

use super::HttpError;

/// Pieces of file work at a time; each has a thread.
const WORKERS_MAX: usize = 16;
/// How long a piece may wait for a thread, and then take.
const TIME_MAX: Duration = Duration::from_secs(10);

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
    /// Does a piece of work on a thread for it. One that takes too long keeps its thread, and nobody waits for it.
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

    use super::*;

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
