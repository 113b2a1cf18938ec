//! A ring as the engine of a server: its kernel ring also works on sockets, and one wait is for both.
//!
//! Owns the calls by which such a server goes round: [`Ring::issue`] hands I/O to the devices without a system call,
//! [`Ring::wait_any`] makes the one system call that sends everything and waits for anything, and
//! [`Ring::take_socket_events`] and [`Ring::for_each_ready`] give what has ended. What is done with sockets is not a
//! request: it has no SQE, and is not waited for by [`Ring::drain`].

use std::time::Duration;

use sheave_blk::DeviceError;
use sheave_blk::ctx::sockets::{SocketEvent, Sockets};

use crate::cqe::Cqe;
use crate::error::RingError;
use crate::ring::Ring;

impl Ring {
    /// Lends the kernel ring for operations on sockets. What is prepared is sent by the next wait.
    ///
    /// # Errors
    ///
    /// Why there can be no kernel ring here.
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

    /// Tells of a kernel ring that has failed: operations on sockets that were on their way give no event any more.
    ///
    /// # Errors
    ///
    /// Why it takes nothing.
    #[doc(hidden)]
    pub fn kernel_failure(&mut self) -> Result<(), RingError> {
        let Some(error) = self.state().io.kernel_failure().cloned() else { return Ok(()) };
        let what = "waiting for sockets and devices".into();
        Err(RingError::Device(DeviceError::Kring { what, source: Box::new(error) }))
    }

    /// Moves the operations on sockets that have ended to the end of a list.
    #[doc(hidden)]
    pub fn take_socket_events(&mut self, to: &mut Vec<SocketEvent>) {
        self.state().io.take_socket_events(to);
    }

    /// Submits what was pushed to the devices, and reaps what they have completed at once. Makes no system call: what
    /// goes to the kernel is sent by the next [`Ring::wait_any`]. How many SQEs were taken.
    ///
    /// # Errors
    ///
    /// [`RingError::Busy`], as [`Ring::submit`].
    #[doc(hidden)]
    pub fn issue(&mut self) -> Result<u32, RingError> {
        self.state().submit_unsent()
    }

    /// Sends everything that is prepared and waits until something has ended: I/O, an operation on a socket, or
    /// another thread woke the ring; at most `timeout`. It may return without any of these. Of completions of the
    /// kernel it waits for `wanted`, for a few milliseconds, then for one.
    #[doc(hidden)]
    pub fn wait_any(&mut self, wanted: u32, timeout: Option<Duration>) {
        self.state().wait_any(wanted, timeout);
    }

    /// Shows `each` the CQEs that there are, without looking for more, and takes them; how many.
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
