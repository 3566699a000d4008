//! The end of a server: whether it stops, and why it cannot go on.

use std::sync::atomic::{AtomicBool, Ordering};

use ground::rt::watch;

/// Tells every task of a server to stop, and the process why it has to end.
#[derive(Debug)]
pub struct Lifecycle {
    stopping: watch::Sender<bool>,
    failed: watch::Sender<Option<String>>,
    starts_anew: AtomicBool,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            stopping: watch::channel(false).0,
            failed: watch::channel(None).0,
            starts_anew: AtomicBool::new(false),
        }
    }

    /// Becomes true when the server stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Holds the reason once the process has to end.
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.failed.subscribe()
    }

    /// Keeps the first reason: later ones follow from it.
    pub fn fail(&self, why: String) {
        tracing::error!(%why, "this server cannot go on");
        self.end(why);
    }

    /// This server ends, and whoever runs it starts it again at once.
    pub(crate) fn start_anew(&self, why: String) {
        tracing::warn!(%why, "this server starts anew");
        self.starts_anew.store(true, Ordering::Release);
        self.end(why);
    }

    /// Whether a server that cannot go on is to be started again at once.
    pub(crate) fn starts_anew(&self) -> bool {
        self.starts_anew.load(Ordering::Acquire)
    }

    fn end(&self, why: String) {
        self.failed.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert(why);
            is_first
        });
    }
}
