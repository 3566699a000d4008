//! SIGINT, SIGTERM and SIGHUP (the terminal was closed) as messages on a channel.
//!
//! Must never end the process by itself: whoever holds the receiver decides what stopping means.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// Signals kept while nobody reads; more are dropped.
const PENDING_MAX: usize = 8;

/// One message per signal from now on.
pub(crate) fn stop_requests() -> io::Result<Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (sender, receiver) = sync_channel(PENDING_MAX);
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        )
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            loop {
                let event = tokio::select! {
                    event = interrupt.recv() => event,
                    event = terminate.recv() => event,
                    event = hangup.recv() => event,
                };
                if event.is_none() || !forward(&sender) {
                    return;
                }
            }
        });
    })?;
    Ok(receiver)
}

/// False when nobody listens any more.
fn forward(sender: &SyncSender<()>) -> bool {
    match sender.try_send(()) {
        Ok(()) | Err(std::sync::mpsc::TrySendError::Full(())) => true,
        Err(std::sync::mpsc::TrySendError::Disconnected(())) => false,
    }
}
