//! A ring as the engine of a server: its kernel ring also works on sockets, and one wait covers both.
//!
//! Owns the calls of such a server's loop: [`Ring::issue`] hands I/O to the devices without a system call,
//! [`Ring::wait_any`] makes the single system call that sends everything and waits for anything, and
//! [`Ring::take_socket_events`] and [`Ring::for_each_ready`] return what has ended. An operation on a socket is not a
//! request: it has no SQE, and [`Ring::drain`] does not wait for it.

use std::time::Duration;

use sheave_blk::DeviceError;
use sheave_blk::ctx::sockets::{SocketEvent, Sockets};

use crate::cqe::Cqe;
use crate::error::RingError;
use crate::ring::Ring;

impl Ring {
    /// Lends the kernel ring for operations on sockets. The next wait sends the prepared operations.
    ///
    /// # Errors
    ///
    /// The reason why the kernel ring cannot be set up.
    #[doc(hidden)]
    pub fn sockets<R>(&mut self, with: impl FnOnce(Sockets<'_>) -> R) -> Result<R, RingError> {
        let mut inner = self.state();
        match inner.io.sockets() {
            Ok(sockets) => Ok(with(sockets)),
            Err(error) => Err(RingError::Device(DeviceError::Host {
                what: "setting io_uring up".into(),
                fix: error.to_string(),
                source: std::io::Error::from(std::io::ErrorKind::Unsupported),
            })),
        }
    }

    /// Reports a kernel ring that has failed: operations on sockets that were in flight give no event any more.
    ///
    /// # Errors
    ///
    /// The failure of the kernel ring.
    #[doc(hidden)]
    pub fn kernel_failure(&mut self) -> Result<(), RingError> {
        let Some(error) = self.state().io.kernel_failure().cloned() else { return Ok(()) };
        let what = "waiting for sockets and devices".into();
        Err(RingError::Device(DeviceError::Kring { what, source: Box::new(error) }))
    }

    /// Appends the ended operations on sockets to `to`.
    #[doc(hidden)]
    pub fn take_socket_events(&mut self, to: &mut Vec<SocketEvent>) {
        self.state().io.take_socket_events(to);
    }

    /// Submits the queued operations to the devices, and reaps the completions that are ready. Makes no system call:
    /// the next [`Ring::wait_any`] sends what goes to the kernel. Returns the number of SQEs taken.
    ///
    /// # Errors
    ///
    /// Returns [`RingError::Busy`] as [`Ring::submit`] does.
    #[doc(hidden)]
    pub fn issue(&mut self) -> Result<u32, RingError> {
        self.state().submit_unsent()
    }

    /// Sends everything prepared, without a wait. Returns false if there was nothing to send.
    #[doc(hidden)]
    pub fn send(&mut self) -> bool {
        let io = &mut self.state().io;
        let has_unsent = io.has_unsent();
        io.commit();
        has_unsent
    }

    /// Returns true if the kernel has completions that [`Ring::wait_any`] would hand out.
    #[doc(hidden)]
    pub fn has_events(&mut self) -> bool {
        self.state().io.has_kernel_events()
    }

    /// Sends everything prepared and waits, at most `timeout`, until I/O or an operation on a socket has ended, or
    /// another thread has woken the ring. May return without any of these. Waits for `wanted` completions of the kernel
    /// for a few milliseconds, then for one.
    #[doc(hidden)]
    pub fn wait_any(&mut self, wanted: u32, timeout: Option<Duration>) {
        self.state().wait_any(wanted, timeout);
    }

    /// Passes the available CQEs to `each` and consumes them, without looking for more. Returns their number.
    #[doc(hidden)]
    pub fn for_each_ready(&mut self, mut each: impl FnMut(&Cqe)) -> u32 {
        let mut inner = self.state();
        let ready = inner.core.queues.cq_ready();
        let head = inner.core.queues.cq_head();
        if !inner.core.owned.is_unused() {
            inner.drop_owned(head, ready);
        }
        let (row, rest) = inner.core.queues.cq_rows(head, ready);
        row.iter().for_each(&mut each);
        rest.iter().for_each(&mut each);
        inner.core.queues.cq_advance(head.wrapping_add(ready));
        ready
    }
}
