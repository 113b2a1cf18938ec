//! The completion plan: the place where an I/O completes, decided once at submission.
//!
//! Owns the places and the only allowed change of a plan; the rules that choose a place are in
//! [`decision`](crate::decision).
//!
//! | plan | runs | may block |
//! |---|---|---|
//! | `Inline` | where the device's completion is reaped | no |
//! | `Task` | in the issuer's task work, on the ring's thread | no |
//! | `Worker` | on a worker thread | yes |
//!
//! Invariants:
//! - I1: decided at submission from the mappings (pure overwrite or not) and the flags of the kiocb.
//! - I2: later only demoted, `Inline` -> `Task` -> `Worker`; [`CompletionPlan::demote`] is the only change.
//! - I3: code that may block takes a [`MayBlock`] token, and only workers make one.

use std::marker::PhantomData;

/// Place where an I/O completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum CompletionPlan {
    /// The I/O completes where the device's completion is reaped.
    #[default]
    Inline,
    /// The I/O completes in the issuer's task work.
    Task,
    /// The I/O completes on a worker.
    Worker,
}

impl CompletionPlan {
    /// Returns the later of `self` and `to`: a plan is never moved to an earlier place (I2).
    #[inline]
    #[must_use]
    pub fn demote(self, to: CompletionPlan) -> CompletionPlan {
        self.max(to)
    }
}

/// Proof that the code runs where it may block (I3). Code that completes inline has no token and cannot make one:
///
/// ```compile_fail,E0423
/// use sheave_iomap::completion_plan::MayBlock;
/// use sheave_iomap::{File, dio, kiocb::Kiocb};
///
/// fn end_io_inline(file: &dyn File, kiocb: &mut Kiocb) {
///     let _ = dio::end_write(file, kiocb, &[], &MayBlock(()));
/// }
/// ```
///
/// A token stays on the thread that made it, so no worker can lend its own to a ring:
///
/// ```compile_fail,E0277
/// let token = sheave_iomap::completion_plan::MayBlock::on_worker();
/// std::thread::spawn(move || drop(token));
/// ```
///
/// Code that holds a token may call every function:
///
/// ```
/// # use sheave_iomap::{RawFile, completion_plan::MayBlock, dio, kiocb::Kiocb};
/// # let device = sheave_drivers::open_device("null:")?;
/// let token = MayBlock::on_worker();
/// let done = dio::end_write(&RawFile::new(device), &Kiocb::started(0, 512, 0), &[], &token);
/// assert_eq!(done, 0);
/// # Ok::<(), sheave_blk::DeviceError>(())
/// ```
pub struct MayBlock<'a>(Option<&'a dyn Fn() -> bool>, PhantomData<*const ()>);

impl MayBlock<'_> {
    /// Makes the token of a worker thread, or of a caller's own thread that drives no ring.
    #[must_use]
    pub fn on_worker() -> MayBlock<'static> {
        MayBlock(None, PhantomData)
    }

    /// Makes the token of a worker thread whose work may be cancelled. `asked` returns true once the work is cancelled.
    #[must_use]
    pub fn until(asked: &dyn Fn() -> bool) -> MayBlock<'_> {
        MayBlock(Some(asked), PhantomData)
    }

    /// Returns true once the work is to end early: its request was cancelled, or its ring is being dropped. A long wait
    /// polls this now and then, and gives up with `Status::Canceled`.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_some_and(|asked| asked())
    }
}

impl std::fmt::Debug for MayBlock<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MayBlock").field("is_cancelled", &self.is_cancelled()).finish()
    }
}
