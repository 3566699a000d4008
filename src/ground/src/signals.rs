//! What a server or an agent is asked by signals: to stop (SIGTERM, SIGINT) or to read its
//! configuration again (SIGHUP). SIGUSR1 and SIGUSR2, which would end a process at once, are
//! ignored with a line in the log.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Stop,
    Reload,
}

/// The signals of this process, from [`Signals::listen`] on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: [(Signal, &'static str); 2],
}

impl Signals {
    /// Takes the signals over. Fails where the system gives no way to listen for one.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user: [
                (signal(SignalKind::user_defined1())?, "SIGUSR1"),
                (signal(SignalKind::user_defined2())?, "SIGUSR2"),
            ],
        })
    }

    /// Waits for the next signal that asks for something. May be dropped at any time.
    pub async fn next(&mut self) -> Asked {
        let [(user1, name1), (user2, name2)] = &mut self.user;
        loop {
            let ignored = tokio::select! {
                _ = self.terminate.recv() => return Asked::Stop,
                _ = self.interrupt.recv() => return Asked::Stop,
                _ = self.hangup.recv() => return Asked::Reload,
                _ = user1.recv() => *name1,
                _ = user2.recv() => *name2,
            };
            tracing::info!(
                signal = ignored,
                "a signal is ignored: SIGTERM stops, SIGHUP reads the configuration again"
            );
        }
    }
}
