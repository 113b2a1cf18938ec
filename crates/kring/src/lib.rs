//! The one kernel io_uring that a Sheave ring may own: driver I/O, sockets and wake-ups wait in its single enter.
//!
//! No part of what the crate `sheave` promises: what is public here may change with any version.
//!
//! Owns: the set-up of the ring for whatever kernel is below ([`setup`]), its tables of registered files and buffers
//! (`table`, `register`), its queues in memory shared with the kernel (`rings`), the preparation of operations (`prep`)
//! and the one system call that submits, runs completions and waits (`enter`). Does not own: what an operation means
//! (the `host` driver), memory that I/O touches (whoever prepared the operation), or time-outs of requests (the block
//! layer). No type of the `io_uring` crate is public.
//!
//! Invariants, cited by the code below:
//!
//! - I1. One thread: the kernel ties ring, task work and registered ring to the thread that made them, so a
//!   [`KernelRing`] is neither `Send` nor `Sync`.
//! - I2. Each operation prepared gives exactly one CQE that ends it; `in_flight` is what was entered minus what was
//!   reaped of these. Only a multishot receive gives others before, which say that more will come.
//! - I3. Memory that an operation names outlives its CQE: the caller promises it by `unsafe`, and dropping the ring
//!   waits for all that is in flight, so that nothing is written after its owner believes the ring gone.
//! - I4. `enter` makes no system call when there is nothing to submit, nothing to wait for and no completion to run.
//! - I5. Waiting never outlasts what is in flight: a wait for completions that cannot come returns at once.
//!
//! Called by the `host` driver's hardware queue and by the ring that sleeps in it.

mod address;
mod driver_ops;
mod enter;
mod error;
mod prep;
mod recv_buffers;
mod register;
mod restrict;
mod rings;
mod setup;
mod sockets;
mod sys;
mod table;

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::{IoUring, types};

pub use address::Address;
pub use driver_ops::{Direction, OpTime};
pub use error::KringError;
pub use prep::{Full, IoVec, KOp, MAX_RW_BYTES, MAX_SEGMENTS, RwOp, Target};
pub use restrict::restrict_rings;
pub use rings::Completed;
pub use setup::{BUFFER_SLOTS, FILE_SLOTS, KringAvoid, KringFeatures, KringOpts, is_allowed};
pub use sockets::Message;

/// A kernel io_uring, set up as well as this kernel allows.
///
/// I1, held by the compiler:
///
/// ```compile_fail,E0277
/// fn sendable<T: Send>() {}
/// sendable::<sheave_kring::KernelRing>();
/// ```
pub struct KernelRing {
    ring: IoUring,
    /// The ring's queues. What is between the SQ's head and tail is prepared and not taken by the kernel.
    rings: rings::Rings,
    /// What to pass to `io_uring_enter` as its file: the registered index if `features.registered_ring`, else the fd.
    enter_fd: i32,
    /// The flags that every enter carries.
    enter_flags: u32,
    /// Taken by the kernel, CQE not yet reaped (I2).
    in_flight: u32,
    /// `user_data` of the armed wake-up poll, if one is armed: with the alarm the only operation that is not I/O.
    wake: Option<u64>,
    /// Whether the kernel has taken that poll, so that `in_flight` counts it.
    wake_taken: bool,
    /// `user_data` of the armed alarm, if one is armed.
    alarm: Option<u64>,
    /// Whether the kernel has taken the alarm, so that `in_flight` counts it.
    alarm_taken: bool,
    /// When the alarm rings; the kernel reads it when it takes the operation.
    alarm_time: Box<types::Timespec>,
    files: table::FileTable,
    buffers: table::BufferTable,
    /// By number of their group. Dropped after `ring`, which the kernel's use of them ends with (S1 of `sockets`).
    recv: Vec<(u16, recv_buffers::RecvBuffers)>,
    /// A multishot operation was prepared once: from then on CQEs are looked at for those that end nothing (I2).
    multishot: bool,
    features: KringFeatures,
    notices: Vec<String>,
    /// What the next enters give instead of entering.
    #[cfg(test)]
    simulated: std::collections::VecDeque<Result<u32, i32>>,
    /// I1.
    one_thread: PhantomData<*const ()>,
}

impl KernelRing {
    /// Sets up a ring with room for `entries` operations between two enters (rounded up to a power of two).
    ///
    /// Newer set-up flags are tried first and left away step by step when the kernel does not know them;
    /// [`features`](Self::features) tells what it came to, [`notices`](Self::notices) what is worth telling a person.
    ///
    /// # Errors
    ///
    /// Says what forbids io_uring here, and how to allow it.
    pub fn new(entries: u32, opts: KringOpts) -> Result<Self, KringError> {
        let (ring, mut features) = setup::build(entries, &opts)?;
        let rings = rings::Rings::new(&ring).map_err(|errno| KringError::from_setup(errno, opts.iopoll))?;
        let mut notices = Vec::new();
        let files = table::FileTable::new(&ring, &mut features, &mut notices);
        table::register_buffer_table(&ring, &mut features, &mut notices);
        if restrict::is_wanted() {
            restrict::enable(&ring)
                .map_err(|error| KringError::from_setup(error.raw_os_error().unwrap_or(libc::EIO), opts.iopoll))?;
        }
        setup::may_enter(ring.as_raw_fd())?;
        let mut this = Self {
            enter_fd: ring.as_raw_fd(),
            enter_flags: 0,
            ring,
            rings,
            in_flight: 0,
            wake: None,
            wake_taken: false,
            alarm: None,
            alarm_taken: false,
            alarm_time: Box::default(),
            files,
            buffers: table::BufferTable::default(),
            recv: Vec::new(),
            multishot: false,
            features,
            notices,
            #[cfg(test)]
            simulated: Default::default(),
            one_thread: PhantomData,
        };
        if !opts.avoid.registered_ring {
            this.register_self();
        }
        Ok(this)
    }

    /// What this kernel gave us.
    pub fn features(&self) -> &KringFeatures {
        &self.features
    }

    /// Plain words about what does not work here and what that costs, each told once.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Operations prepared and not yet entered.
    #[inline]
    pub fn pending(&self) -> u32 {
        self.rings.pending()
    }

    /// Operations entered whose completion was not reaped yet.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// From now on the kernel rings this eventfd whenever something has completed, or wants an enter to complete. Its
    /// own descriptor tells a poll of the first alone.
    ///
    /// # Errors
    /// When there is one already, or no memory.
    pub fn register_eventfd(&self, bell: BorrowedFd<'_>) -> std::io::Result<()> {
        self.ring.submitter().register_eventfd(bell.as_raw_fd())
    }

    /// Operations prepared or entered that are I/O: all but the wake-up and the alarm.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        (self.in_flight + self.pending()).saturating_sub(self.watches())
    }

    /// The wake-up and the alarm, as far as they are armed.
    #[inline]
    fn watches(&self) -> u32 {
        u32::from(self.wake.is_some()) + u32::from(self.alarm.is_some())
    }

    /// Operations that can still be prepared before the next enter.
    #[inline]
    pub fn space(&self) -> u32 {
        self.rings.space()
    }

    /// Registers the ring's own descriptor with the kernel: an enter then skips looking it up (about 20 ns).
    fn register_self(&mut self) {
        // A thread has 16 such slots; a ring made after they are used up goes by its descriptor, and nobody minds.
        if let Ok(index) = sys::register_ring_fd(self.ring.as_raw_fd()) {
            self.enter_fd = index;
            self.enter_flags = sys::ENTER_REGISTERED_RING;
            self.features.registered_ring = true;
        }
    }
}

impl std::fmt::Debug for KernelRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelRing").field("pending", &self.pending()).field("in_flight", &self.in_flight).finish()
    }
}

impl AsRawFd for KernelRing {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        self.wait_out();
        if self.features.registered_ring {
            // The thread's table holds a reference: without this the ring would live until the thread ends.
            sys::unregister_ring_fd(self.ring.as_raw_fd(), self.enter_fd);
        }
    }
}

#[cfg(test)]
mod tests;
