//! What systemd asks of a daemon: sockets that it has made, readiness, what goes on, and the watchdog.
//!
//! Without systemd none of it does anything. The watchdog is told that the daemon lives when each reactor has answered:
//! one that is stuck is restarted.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use sheave_serve::{Listener, inherited};

use crate::daemon::Daemon;
use crate::failure::{self, Failure};
use crate::ticker::Ticker;

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

/// What is served and what is wrong, in a line.
pub fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
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

/// Answers the watchdog, if systemd wants to hear from this process, until the ticker is stopped.
pub(crate) fn watchdog(daemon: &Arc<Daemon>) -> Option<Ticker> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let usec = number("WATCHDOG_USEC").filter(|usec| for_us && *usec > 0)?;
    let (daemon, half) = (daemon.clone(), Duration::from_micros(usec / 2));
    let answer = move || {
        if daemon.server.is_alive(half) {
            tell(&[NotifyState::Watchdog]);
        }
    };
    Ticker::start("sheave-watchdog", half, answer).ok()
}
