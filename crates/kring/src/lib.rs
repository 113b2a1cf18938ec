//! The one kernel io_uring that a Sheave ring may own: driver I/O, sockets and wake-ups are waited for in its single
//! enter.
//!
//! Not covered by the stability promise of the crate `sheave`: public items here may change with any version.
//!
//! Owns the set-up of the ring on each kernel version ([`setup`]), its tables of registered files and buffers (`table`,
//! `register`), its queues in memory shared with the kernel (`rings`), the preparation of operations (`prep`), and the
//! one system call that submits, runs completions and waits (`enter`). Does not own the meaning of an operation (the
//! `host` driver), the memory that I/O touches (the code that prepared the operation), or timeouts of requests (the
//! block layer). No type of the `io_uring` crate is public.
//!
//! Invariants, cited by the code below:
//!
//! - I1. One thread: the kernel ties ring, task work and registered ring to the thread that made them, so a
//!   [`KernelRing`] is neither `Send` nor `Sync`.
//! - I2. Each prepared operation has exactly one CQE that ends it; `in_flight` is the number of operations entered
//!   minus the number of these CQEs reaped. Only a multishot operation has earlier CQEs, whose flags announce more. A
//!   signal has a CQE only if it fails, and is not counted (E1 of `events`).
//! - I3. Memory that an operation names outlives its CQE: the caller promises that with `unsafe`, and dropping the ring
//!   waits for all that is in flight, so that the kernel writes nothing after the ring is gone.
//! - I4. `enter` makes no system call if there is nothing to submit, nothing to wait for and no completion to run.
//! - I5. A wait never outlasts the operations in flight: a wait for more completions than can come is shortened.
//!
//! Called by the `host` driver's hardware queue and by the ring that sleeps in it.

mod address;
mod driver_ops;
mod enter;
mod error;
mod events;
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

/// A kernel io_uring with the newest features that this kernel has.
///
/// I1 is checked by the compiler:
///
/// ```compile_fail,E0277
/// fn sendable<T: Send>() {}
/// sendable::<sheave_kring::KernelRing>();
/// ```
pub struct KernelRing {
    ring: IoUring,
    /// The ring's queues. Entries between the SQ's head and tail are prepared and not yet taken by the kernel.
    rings: rings::Rings,
    /// File argument of `io_uring_enter`: the registered index if `features.registered_ring`, else the descriptor.
    enter_fd: i32,
    /// Flags of every enter.
    enter_flags: u32,
    /// Number of operations taken by the kernel whose CQE is not yet reaped (I2).
    in_flight: u32,
    /// `user_data` of the armed wake-up poll, if one is armed. This poll and the alarm are the only operations that are
    /// not I/O.
    wake: Option<u64>,
    /// True once the kernel has taken that poll, so that `in_flight` counts it.
    wake_taken: bool,
    /// `user_data` of the armed alarm, if one is armed.
    alarm: Option<u64>,
    /// True once the kernel has taken the alarm, so that `in_flight` counts it.
    alarm_taken: bool,
    /// Time of the alarm; the kernel reads it when it takes the operation.
    alarm_time: Box<types::Timespec>,
    files: table::FileTable,
    buffers: table::BufferTable,
    /// Receive buffers by group id. Declared after `ring`: closing the ring ends the kernel's access (S1 of `sockets`).
    recv: Vec<(u16, recv_buffers::RecvBuffers)>,
    /// True once a multishot operation was prepared: from then on CQEs are checked for those that end no operation
    /// (I2).
    multishot: bool,
    /// `user_data` of signals, once one was prepared (E1 of `events`).
    signal: Option<u64>,
    /// Number of signals among the prepared operations.
    signals: u32,
    features: KringFeatures,
    notices: Vec<String>,
    /// Results of the next enters, which then make no system call.
    #[cfg(test)]
    simulated: std::collections::VecDeque<Result<u32, i32>>,
    /// Not `Send` (I1).
    one_thread: PhantomData<*const ()>,
}

impl KernelRing {
    /// Sets up a ring with room for `entries` operations between two enters (rounded up to a power of two).
    ///
    /// Newer set-up flags are tried first and dropped step by step if the kernel does not know them.
    /// [`features`](Self::features) returns the result, [`notices`](Self::notices) the consequences that a user should
    /// know.
    ///
    /// # Errors
    ///
    /// Names what forbids io_uring on this machine, and how to allow it.
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
            signal: None,
            signals: 0,
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

    /// Returns the features of this ring on this kernel.
    pub fn features(&self) -> &KringFeatures {
        &self.features
    }

    /// Returns messages for the user about missing features and their cost, each once.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Returns the number of operations prepared and not yet entered.
    #[inline]
    pub fn pending(&self) -> u32 {
        self.rings.pending()
    }

    /// Returns the number of operations entered whose completion is not yet reaped.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Makes the kernel signal the eventfd `bell` whenever an operation has completed, or needs an enter to complete. A
    /// poll of the ring's own descriptor reports completions only.
    ///
    /// # Errors
    /// If there is an eventfd already, or no memory.
    pub fn register_eventfd(&self, bell: BorrowedFd<'_>) -> std::io::Result<()> {
        self.ring.submitter().register_eventfd(bell.as_raw_fd())
    }

    /// Returns the number of operations prepared or entered that are I/O: all except the wake-up and the alarm.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        (self.in_flight + self.pending()).saturating_sub(self.watches())
    }

    /// Returns the number of armed operations that are not I/O: the wake-up and the alarm.
    #[inline]
    fn watches(&self) -> u32 {
        u32::from(self.wake.is_some()) + u32::from(self.alarm.is_some())
    }

    /// Returns the number of operations that can be prepared before the next enter.
    #[inline]
    pub fn space(&self) -> u32 {
        self.rings.space()
    }

    /// Registers the ring's own descriptor with the kernel: an enter then skips its lookup (about 20 ns).
    fn register_self(&mut self) {
        // A thread has 16 slots for registered rings. A ring made when they are used up is entered by its descriptor.
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
