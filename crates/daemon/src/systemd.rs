//! What systemd asks of a daemon: sockets that it has made, readiness, what goes on, and the watchdog.
//!
//! Without systemd none of it does anything. The watchdog is told that the daemon lives when each reactor has answered:
//! one that is stuck is restarted.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use sd_notify::NotifyState;
use sheave_serve::{Listener, inherited};

use crate::daemon::Daemon;
use crate::failure::{self, Failure};

/// The sockets that systemd listens on for this process.
pub fn listeners() -> Result<Vec<Listener>, Failure> {
    inherited::take().into_iter().map(Listener::inherited).collect::<Result<_, _>>().map_err(failure::serve)
}

/// Tells it; nobody there is nobody to tell.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// All is served.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The configuration is read again: begin, then [`ready`].
pub fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// The end has begun.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Answers the watchdog while it is there.
pub struct Watchdog {
    thread: Option<(JoinHandle<()>, UnixStream)>,
}

impl Watchdog {
    /// Begins, if systemd wants to hear from this process.
    pub fn start(daemon: &Arc<Daemon>) -> Watchdog {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let Some(usec) = number("WATCHDOG_USEC").filter(|usec| for_us && *usec > 0) else {
            return Watchdog { thread: None };
        };
        let Ok((ends, told)) = UnixStream::pair() else { return Watchdog { thread: None } };
        let (daemon, half) = (daemon.clone(), Duration::from_micros(usec / 2));
        let run = move || {
            loop {
                if daemon.server.is_alive(half) {
                    tell(&[NotifyState::Watchdog]);
                }
                let wait = Timespec { tv_sec: half.as_secs() as i64, tv_nsec: half.subsec_nanos().into() };
                // Readable: the other end is closed.
                if matches!(rustix::event::poll(&mut [PollFd::new(&told, PollFlags::IN)], Some(&wait)), Ok(1..)) {
                    return;
                }
            }
        };
        Watchdog { thread: Some((std::thread::spawn(run), ends)) }
    }

    /// Ends it, so that nobody but the caller has the daemon.
    pub fn stop(mut self) {
        if let Some((thread, ends)) = self.thread.take() {
            drop(ends);
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}
