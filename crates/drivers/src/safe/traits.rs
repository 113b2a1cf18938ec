//! What a driver without unsafe code implements, and what it is given to do so.
//!
//! Owns the two traits and the handle that wakes a ring. What the adapter does with them is in `queue`.

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
    /// What a request may look like; nothing else comes.
    fn limits(&self) -> Limits;

    /// What the device can do. Without `fua` and `volatile_cache` no flush ever comes.
    fn capabilities(&self) -> Capabilities;

    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Opens one ring's way into the device, on the ring's thread.
    ///
    /// # Errors
    ///
    /// Why there is none; the attach fails with it.
    fn open_queue(&self, open: &Open) -> Result<Box<dyn SafeQueue>, DeviceError>;

    /// What the queues want of the kernel ring of their ring: `None` for a driver that has no use for it. A ring where
    /// there can be no kernel ring then refuses the device, and says why.
    fn kernel(&self) -> Option<KernelUse> {
        None
    }

    /// Locks what the device stands on against other processes; the devices below are claimed in any case.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Claimed`] names who has it.
    fn claim(&self, _: Sharing) -> Result<Claim, DeviceError> {
        Ok(Claim::nothing())
    }

    /// What is known of the content from this byte on: extents that follow one another, some thousands at most. None
    /// when nothing is known: whoever copies the device reads the rest of it. Called by the threads of copies, never by
    /// a ring; it may block for as long as a request may take.
    ///
    /// # Errors
    ///
    /// What the device says of itself cannot be right; the copy ends with it.
    fn extents(&self, _from: u64) -> Result<Vec<Extent>, DeviceError> {
        Ok(Vec::new())
    }

    /// What the user should know, in plain words, once.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What becomes of a request after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request must end"]
#[non_exhaustive]
pub enum Step {
    /// It ends, at once or when its last child has ended.
    End(Status),
    /// It waits: for a child, an operation of the kernel ring, or a poll that ends it by its id.
    Wait,
}

/// What a queue waits for beside the devices below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitsFor {
    /// Nothing: its requests wait for their children.
    Nothing,
    /// A poll would do something now.
    Now,
    /// A poll will do something at this time; see [`Polled::now`].
    At(PreciseTs),
    /// Another thread will call [`Waker::wake`].
    Waker,
}

/// One ring's way into a device. All calls come from the ring's thread, and none may block.
pub trait SafeQueue: Debug {
    /// A request has come.
    fn start(&mut self, rq: &mut Request<'_>) -> Step;

    /// A child of a request has ended. Unless a driver says otherwise, the request ends with its last child, with the
    /// first error of all.
    fn child_ended(&mut self, rq: &mut Request<'_>, child: ChildEnd) -> Step {
        let _ = child;
        if rq.children() == 0 { Step::End(rq.joined()) } else { Step::Wait }
    }

    /// All requests of a batch have come: a driver that sends them together does it now.
    fn commit(&mut self, rqs: &mut Polled<'_>) {
        let _ = rqs;
    }

    /// Something came of an operation that [`Polled`] began on the kernel ring.
    fn op_ended(&mut self, rqs: &mut Polled<'_>, end: OpEnd<'_>) {
        let _ = (rqs, end);
    }

    /// The ring looks for completions. A driver that has [asked](SafeDriver::kernel) for the kernel ring is polled also
    /// when it has no request, for the first time when the ring that has attached it polls.
    fn poll(&mut self, rqs: &mut Polled<'_>) {
        let _ = rqs;
    }

    /// What a ring that wants to sleep waits for.
    fn waits_for(&self) -> WaitsFor {
        WaitsFor::Nothing
    }

    /// A request without children takes longer than the device's time limit; asked again each time it does. When it is
    /// to end, the operations that hold it are cancelled, and it ends after them. The driver is not asked about one
    /// that it has ended already and that waits for such an operation: that is cancelled, and the driver hears of its
    /// end.
    fn timed_out(&mut self, rq: &mut Request<'_>) -> Step {
        let _ = rq;
        Step::End(Status::Timeout)
    }
}

/// What a driver gets to open a queue.
#[derive(Clone, Debug)]
pub struct Open {
    pub(super) depth: u16,
    pub(super) lower: usize,
    pub(super) remote: Remote,
}

impl Open {
    /// Requests that the queue gets at a time, at most: [`RequestId::slot`](super::RequestId::slot) is below it.
    pub fn depth(&self) -> usize {
        usize::from(self.depth) + 1
    }

    /// How many devices there are below.
    pub fn lower(&self) -> usize {
        self.lower
    }

    /// A handle by which another thread has the ring poll this queue.
    pub fn waker(&self) -> Waker {
        Waker(self.remote.clone())
    }
}

/// Wakes the ring of a queue from another thread, so that it polls.
#[derive(Clone, Debug)]
pub struct Waker(Remote);

impl Waker {
    /// Has the ring poll soon, also when it sleeps. What the poll is to find must be there before the call.
    pub fn wake(&self) {
        self.0.wake();
    }
}
