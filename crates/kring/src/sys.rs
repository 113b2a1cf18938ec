//! System calls that the `io_uring` crate does not offer: enter and (un)register with a registered ring.
//!
//! The crate can register a ring, but forgets the index with the borrow it was registered through. The functions are
//! safe: a wrong descriptor or index is an errno, and every pointer is to a value that outlives the call.
#![allow(unsafe_code)] // raw system calls

use std::os::fd::RawFd;
use std::time::Duration;

/// Flag of an enter: its file argument is a registered ring index, not a descriptor.
pub(super) const ENTER_REGISTERED_RING: u32 = 1 << 4;
/// Flag of an enter: runs completions, and waits for `min_complete` of them.
pub(super) const ENTER_GETEVENTS: u32 = 1;
/// Flag of an enter: its last argument is a [`GeteventsArg`].
pub(super) const ENTER_EXT_ARG: u32 = 1 << 3;
/// Flag of an enter: the wait does not count as waiting for I/O (since 6.15).
pub(super) const ENTER_NO_IOWAIT: u32 = 1 << 7;

/// Number of bytes of `struct io_uring_params`.
const PARAMS_BYTES: usize = 120;
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;
/// Value of `offset` in [`RsrcUpdate`] that stands for any free index.
const ANY_INDEX: u32 = u32::MAX;

#[repr(C)]
struct RsrcUpdate {
    offset: u32,
    resv: u32,
    data: u64,
}

#[repr(C)]
struct Timespec {
    sec: i64,
    nsec: i64,
}

#[repr(C)]
struct GeteventsArg {
    sigmask: u64,
    sigmask_size: u32,
    min_wait_us: u32,
    ts: u64,
}

const _: () = assert!(size_of::<RsrcUpdate>() == 16 && size_of::<GeteventsArg>() == 24);

fn result(ret: libc::c_long) -> Result<u32, i32> {
    u32::try_from(ret).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Limits of the wait of an enter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Patience {
    /// Longest wait; unlimited if `None`. The kernel must have `ENTER_EXT_ARG`.
    pub timeout: Option<Duration>,
    /// Microseconds after which one completion is enough; 0 for no such time. The kernel must support that (since
    /// 6.12).
    pub gather_us: u32,
}

/// Calls `io_uring_enter`. Returns the number of operations taken, or an errno.
#[inline]
pub(super) fn enter(fd: i32, to_submit: u32, min_complete: u32, flags: u32, patience: Patience) -> Result<u32, i32> {
    if patience.timeout.is_none() && patience.gather_us == 0 {
        let null = std::ptr::null::<u8>();
        // SAFETY: no memory is passed; the rings that the kernel reads belong to the caller's `IoUring`.
        return result(unsafe {
            libc::syscall(libc::SYS_io_uring_enter, fd, to_submit, min_complete, flags, null, 0usize)
        });
    }
    let ts = patience.timeout.map(|timeout| Timespec {
        sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        nsec: i64::from(timeout.subsec_nanos()),
    });
    let ts = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let arg = GeteventsArg { sigmask: 0, sigmask_size: 0, min_wait_us: patience.gather_us, ts: ts as u64 };
    let (flags, size) = (flags | ENTER_EXT_ARG, size_of::<GeteventsArg>());
    // SAFETY: `arg` and the `Timespec` it points to (if any) live until the call returns, in the kernel's layout.
    result(unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, to_submit, min_complete, flags, &raw const arg, size) })
}

/// Calls `io_uring_setup` with no entries, which sets up nothing. Returns the errno, which shows if this process may
/// make rings at all.
pub(super) fn setup_nothing() -> i32 {
    let params = [0u8; PARAMS_BYTES];
    // SAFETY: the array has as many bytes as the kernel reads, and lives through the call.
    result(unsafe { libc::syscall(libc::SYS_io_uring_setup, 0, params.as_ptr()) }).err().unwrap_or(0)
}

/// Registers the ring `fd` with the calling thread and returns its index.
pub(super) fn register_ring_fd(fd: RawFd) -> Result<i32, i32> {
    let mut update = RsrcUpdate { offset: ANY_INDEX, resv: 0, data: u64::from(fd.cast_unsigned()) };
    let arg = &raw mut update;
    // SAFETY: `update` lives through the call, in which the kernel writes the index to it.
    result(unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, arg, 1) })?;
    i32::try_from(update.offset).map_err(|_| libc::EINVAL)
}

/// Unregisters the index that [`register_ring_fd`] returned.
pub(super) fn unregister_ring_fd(fd: RawFd, index: i32) {
    let update = RsrcUpdate { offset: index.cast_unsigned(), resv: 0, data: 0 };
    let arg = &raw const update;
    // SAFETY: `update` lives through the call and is only read. A failure leaves the index to the thread's end.
    let _ = result(unsafe { libc::syscall(libc::SYS_io_uring_register, fd, UNREGISTER_RING_FDS, arg, 1) });
}

/// Waits until the ring `fd` has a completion, or `timeout` (rounded up to milliseconds) passes.
pub(super) fn poll_in(fd: RawFd, timeout: Option<Duration>) -> Result<u32, i32> {
    let timeout_ms = match timeout {
        None => -1,
        Some(t) => i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
    };
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one `pollfd` that lives through the call.
    result(libc::c_long::from(unsafe { libc::poll(&raw mut poll, 1, timeout_ms) }))
}
