//! Sockets inherited from the process that started this one: systemd, for a socket unit (`LISTEN_FDS`).
#![allow(unsafe_code)] // Descriptors that come as numbers.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::io::FdFlags;
use sheave_base::sync::atomic::{AtomicBool, Ordering};

/// First inherited descriptor (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// Most descriptors that are taken.
const MOST: u32 = 64;

/// Set by the first call of `take`.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the inherited descriptors. Each call after the first returns none. Must be called before this process opens
/// any descriptor.
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
        // SAFETY: the process that started this one says, by this process's id, that these descriptors are for it; each
        // is open; and they are taken once (the flag above), so that no other code in this process owns them.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A child process must not inherit it. If the flag cannot be set, it does, which is harmless.
        let _ = rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC);
        fd
    };
    (FIRST..FIRST + count).filter(is_open).map(own).collect()
}
