//! Sockets that somebody has made for this process: systemd, for a socket unit (`LISTEN_FDS`).
#![allow(unsafe_code)] // Descriptors that come as numbers.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::io::FdFlags;
use sheave_base::sync::atomic::{AtomicBool, Ordering};

/// The first of them.
const FIRST: RawFd = 3;
/// Most that are taken.
const MOST: u32 = 64;

/// They were taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes them; each call after the first gets none. To be called before this process opens anything.
pub fn take() -> Vec<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    // Relaxed: the flag carries nothing but itself.
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(MOST) as RawFd;
    let is_open = |fd: &RawFd| std::path::Path::new(&format!("/proc/self/fd/{fd}")).exists();
    let own = |fd: RawFd| {
        // SAFETY: who has started this process says, by the process's own number, that these descriptors are for it;
        // it is open; and they are taken once (the flag above), so nobody else in the process has them.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A command that is run later is not to have it; where that cannot be said it has it, which harms nobody.
        let _ = rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC);
        fd
    };
    (FIRST..FIRST + count).filter(is_open).map(own).collect()
}
