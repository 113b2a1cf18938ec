//! Keeps a file that is cut off under its mapping from ending the process.
//!
//! Owns the handler of SIGBUS and the table of watched mappings. An access to a mapped page beyond the end of its file
//! raises SIGBUS. If the address lies in a watched mapping, the handler marks the mapping as broken, maps a page of
//! zeroes over the missing one, and the access is repeated. Any other SIGBUS goes to the action that was installed
//! before.
//!
//! Invariants:
//! - S1: the handler calls only functions that are safe in signal handlers, takes no lock, allocates nothing, and
//!   restores errno.
//! - S2: a slot with a `start` above [`RESERVED`] describes a range that is mapped: `start` is written last by
//!   [`Slot::watch`], and cleared before the range is unmapped.
//! - S3: only the owner of a slot writes it, between the reservation and [`Guard::forget`]. The handler writes `broken`
//!   alone.
#![allow(unsafe_code)] // Signal handlers, and mapping over a page.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::io::Errno;

/// Number of mappings that can be watched at once; one more mapping is refused. Enough for 60 devices with all 64
/// regions each, or a thousand of the usual kind.
pub const SLOTS: usize = 4096;

/// `start` of a slot that belongs to nobody.
const FREE: usize = 0;
/// `start` of a slot that is being filled. No mapping begins at address 1.
const RESERVED: usize = 1;

struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Size of the pages of the mapping.
    page: AtomicUsize,
    broken: AtomicBool,
}

static TABLE: [Entry; SLOTS] = [const {
    Entry {
        start: AtomicUsize::new(FREE),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    }
}; SLOTS];

/// One more than the highest index that was ever used, for the handler.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The action before ours. Set before our handler is installed, so that the handler always finds it.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();

/// Number of pages that were missing so far, in all mappings.
static MISSING: AtomicUsize = AtomicUsize::new(0);

/// Returns a number that changes whenever a mapping of this process breaks, so that the owners of queues look at their
/// mappings only then.
#[inline]
pub fn any_broken() -> usize {
    MISSING.load(Ordering::Relaxed)
}

/// A slot of the table that is reserved for a mapping that is about to be made.
#[derive(Debug)]
pub struct Slot {
    index: usize,
}

/// Reserves a slot. Installs the handler at the first call.
///
/// # Errors
///
/// Fails if the handler cannot be installed, or with `EMFILE` if all slots are taken.
pub fn reserve() -> Result<Slot, Errno> {
    (*INSTALLED.get_or_init(install))?;
    for (index, entry) in TABLE.iter().enumerate() {
        // Pairs with the store in `Guard::forget`.
        let take = || entry.start.compare_exchange(FREE, RESERVED, Ordering::Acquire, Ordering::Relaxed);
        if entry.start.load(Ordering::Relaxed) == FREE && take().is_ok() {
            USED.fetch_max(index + 1, Ordering::Relaxed);
            return Ok(Slot { index });
        }
    }
    Err(Errno::MFILE)
}

impl Slot {
    /// Begins to watch a range of mapped memory, whose pages have this size. The owner unmaps the range after
    /// [`Guard::forget`] alone.
    pub fn watch(self, start: usize, len: usize, page: usize) -> Guard {
        let entry = &TABLE[self.index];
        entry.broken.store(false, Ordering::Relaxed);
        entry.end.store(start + len, Ordering::Release); // Pairs with the load in `mend`.
        entry.page.store(page, Ordering::Release); // Pairs with the load in `mend`.
        entry.start.store(start, Ordering::Release); // Pairs with the load in `mend`.
        let guard = Guard { index: self.index };
        std::mem::forget(self);
        guard
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        TABLE[self.index].start.store(FREE, Ordering::Release); // Pairs with the exchange in `reserve`.
    }
}

/// Watches a mapping until [`Guard::forget`].
#[derive(Debug)]
pub struct Guard {
    index: usize,
}

impl Guard {
    /// True if a page of the mapping was missing.
    #[inline]
    #[must_use]
    pub fn is_broken(&self) -> bool {
        TABLE[self.index].broken.load(Ordering::Relaxed)
    }

    /// Ends the watch. Called once, before the range is unmapped.
    pub fn forget(&mut self) {
        TABLE[self.index].start.store(FREE, Ordering::Release); // Pairs with the exchange in `reserve`.
    }
}

fn install() -> Result<(), Errno> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null action only asks for the present one, which the kernel writes to `before`. All bytes zero are a
    // valid sigaction.
    let before = unsafe {
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
        }
        before.assume_init()
    };
    let _ = BEFORE.set(before);
    // SAFETY: all bytes zero are a valid sigaction; the handler has the signature that SA_SIGINFO demands and keeps S1.
    let installed = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handle as extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        // SA_ONSTACK: threads of the standard library have a stack for signals. Without SA_NODEFER a second fault in
        // the handler would end the process, as it should.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    if installed != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    Ok(())
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is a variable of this thread, which always exists.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo_t to a handler with SA_SIGINFO.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Only the kernel's codes for faults are positive; another process can send the signal with any address.
    if code <= 0 || !mend(addr) {
        chain(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Maps a page of zeroes at `addr` if a watched mapping has this address. Returns false if none has, or if that failed.
fn mend(addr: usize) -> bool {
    for entry in &TABLE[..USED.load(Ordering::Relaxed).min(SLOTS)] {
        let start = entry.start.load(Ordering::Acquire); // Pairs with the store in `Slot::watch`.
        // Acquire for the second look at `start`: pairs with the stores in `Slot::watch` for another mapping.
        let (end, page) = (entry.end.load(Ordering::Acquire), entry.page.load(Ordering::Acquire));
        if start <= RESERVED || addr < start || addr >= end {
            continue;
        }
        // The numbers are those of one mapping only if the slot still has it.
        if entry.start.load(Ordering::Relaxed) != start {
            continue;
        }
        // Before the page appears: whoever reads zeroes there afterwards can see the mark.
        entry.broken.store(true, Ordering::Relaxed);
        MISSING.fetch_add(1, Ordering::Relaxed);
        let at = addr & !(page - 1);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the page lies in a range that stays mapped while the faulting access borrows it (S2), so no
        // foreign mapping is replaced. mmap is a plain system call, which is safe in a handler.
        let mapped = unsafe { libc::mmap(at as *mut libc::c_void, page, prot, flags, -1, 0) };
        return mapped != libc::MAP_FAILED;
    }
    false
}

/// Passes the signal on to the action that was installed before.
fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().copied();
    let (handler, flags) = before.map_or((libc::SIG_DFL, 0), |before| (before.sa_sigaction, before.sa_flags));
    match handler {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The default action: the access is repeated after the return and ends the process with its own signal. A
            // fault cannot be ignored, and the kernel does not do it either.
            // SAFETY: all bytes zero are a valid sigaction, whose handler is SIG_DFL.
            unsafe {
                let action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                libc::sigaction(signal, &action, std::ptr::null_mut());
                if (*info).si_code <= 0 {
                    libc::raise(signal); // Sent by a process: no access will repeat it.
                }
            }
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: an action with SA_SIGINFO has a handler of this type.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: an action without SA_SIGINFO has a handler of this type.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
