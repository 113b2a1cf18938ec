//! Interface to systemd: passed sockets, readiness, status and the watchdog.
//!
//! Without systemd these functions do nothing. The watchdog is notified only when every reactor has responded, so that
//! a daemon with a stuck one is restarted.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use sheave_serve::{Listener, inherited};

use crate::daemon::Daemon;
use crate::failure::{self, Failure};
use crate::ticker::Ticker;

/// Returns the listening sockets that systemd passed to this process.
pub fn listeners() -> Result<Vec<Listener>, Failure> {
    inherited::take().into_iter().map(Listener::inherited).collect::<Result<_, _>>().map_err(failure::serve)
}

/// Sends a notification. Fails if there is no systemd, which is ignored.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// Reports that everything is served.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Updates the status text.
pub fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// Reports the start of a reload, which ends with [`ready`].
pub fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// Reports that the shutdown has begun.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Reports that another process, which has taken over, is the main one of the service.
pub(crate) fn main_is(pid: rustix::process::Pid) {
    tell(&[NotifyState::MainPid(pid.as_raw_nonzero().get().cast_unsigned())]);
}

/// Starts notifying the watchdog, if systemd expects that of this process, until the ticker is stopped.
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
