//! Interface of a driver without unsafe code.
//!
//! Owns the two traits and the handle that wakes a ring. The adapter that calls them is in `queue`.

use std::fmt::Debug;

use sheave_base::clock::PreciseTs;
use sheave_base::status::Status;
use sheave_blk::DeviceError;
use sheave_blk::claim::{Claim, Sharing};
use sheave_blk::driver::{Capabilities, Extent, Remote};
use sheave_blk::limits::Limits;

use super::kernel::{KernelUse, OpEnd};
use super::request::{ChildEnd, Polled, Request};

/// A device, shared by all rings.
pub trait SafeDriver: Debug + Send + Sync + 'static {
    /// Returns the limits of requests; the block layer sends no request beyond them.
    fn limits(&self) -> Limits;

    /// Returns the capabilities of the device. Without `fua` and `volatile_cache` no flush is sent.
    fn capabilities(&self) -> Capabilities;

    /// Returns the size in bytes.
    fn size_bytes(&self) -> u64;

    /// Opens the hardware queue of one ring, on the ring's thread.
    ///
    /// # Errors
    ///
    /// The attach fails with this error.
    fn open_queue(&self, open: &Open) -> Result<Box<dyn SafeQueue>, DeviceError>;

    /// Returns the driver's needs on the kernel ring of each ring; `None` if it does not use it. A ring that cannot
    /// have a kernel ring then refuses the device with the reason.
    fn kernel(&self) -> Option<KernelUse> {
        None
    }

    /// Locks the resources of the device against other processes; the devices below are claimed in any case.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Claimed`] names the owner.
    fn claim(&self, _: Sharing) -> Result<Claim, DeviceError> {
        Ok(Claim::nothing())
    }

    /// Returns the known extents of the content from byte `from` on. They are contiguous, and at most some thousands.
    /// Returns no extents if nothing is known: a copy of the device then reads the rest. Called by the threads of
    /// copies, never by a ring; may block for as long as a request may take.
    ///
    /// # Errors
    ///
    /// The description of the content is inconsistent; the copy ends with this error.
    fn extents(&self, _from: u64) -> Result<Vec<Extent>, DeviceError> {
        Ok(Vec::new())
    }

    /// Returns messages for the user, once each.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Next step of a request after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request must end"]
#[non_exhaustive]
pub enum Step {
    /// The request ends, at once or when its last child has ended.
    End(Status),
    /// The request waits for a child, an operation of the kernel ring, or a poll that ends it by its id.
    Wait,
}

/// Event that a queue waits for besides the devices below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitsFor {
    /// No event: its requests wait for their children.
    Nothing,
    /// A poll would make progress now.
    Now,
    /// A poll will make progress at this time; see [`Polled::now`].
    At(PreciseTs),
    /// Another thread will call [`Waker::wake`].
    Waker,
}

/// Hardware queue of one ring. All calls come from the ring's thread, and none may block.
pub trait SafeQueue: Debug {
    /// Starts a request.
    fn start(&mut self, rq: &mut Request<'_>) -> Step;

    /// Called when a child of a request has ended. By default the request ends with its last child, with the first
    /// error of all.
    fn child_ended(&mut self, rq: &mut Request<'_>, child: ChildEnd) -> Step {
        let _ = child;
        if rq.children() == 0 { Step::End(rq.joined()) } else { Step::Wait }
    }

    /// Called after all requests of a batch were started: a driver that sends them together does so now.
    fn commit(&mut self, rqs: &mut Polled<'_>) {
        let _ = rqs;
    }

    /// Reports a result of an operation that [`Polled`] began on the kernel ring.
    fn op_ended(&mut self, rqs: &mut Polled<'_>, end: OpEnd<'_>) {
        let _ = (rqs, end);
    }

    /// Called when the ring looks for completions. A driver that [uses](SafeDriver::kernel) the kernel ring is polled
    /// even without a request, for the first time in the first poll after the attach.
    fn poll(&mut self, rqs: &mut Polled<'_>) {
        let _ = rqs;
    }

    /// Returns the event that the queue waits for. Called before the ring sleeps.
    fn waits_for(&self) -> WaitsFor {
        WaitsFor::Nothing
    }

    /// Called when a request without children exceeds the device's timeout, and again after each further timeout. If
    /// the driver ends it, the operations that hold it are cancelled, and it ends after them. Not called for a request
    /// that the driver has ended already and that waits for such an operation: the operation is cancelled, and its end
    /// is reported.
    fn timed_out(&mut self, rq: &mut Request<'_>) -> Step {
        let _ = rq;
        Step::End(Status::Timeout)
    }
}

/// Arguments of [`SafeDriver::open_queue`].
#[derive(Clone, Debug)]
pub struct Open {
    pub(super) depth: u16,
    pub(super) lower: usize,
    pub(super) remote: Remote,
}

impl Open {
    /// Returns the largest number of requests that the queue has at a time: [`RequestId::slot`](super::RequestId::slot)
    /// is below it.
    pub fn depth(&self) -> usize {
        usize::from(self.depth) + 1
    }

    /// Returns the number of devices below.
    pub fn lower(&self) -> usize {
        self.lower
    }

    /// Returns a handle with which another thread requests a poll of this queue.
    pub fn waker(&self) -> Waker {
        Waker(self.remote.clone())
    }
}

/// Wakes the ring of a queue from another thread, so that it polls.
#[derive(Clone, Debug)]
pub struct Waker(Remote);

impl Waker {
    /// Requests a poll of the ring soon, even if the ring sleeps. Data for the poll must be in place before the call.
    pub fn wake(&self) {
        self.0.wake();
    }
}
