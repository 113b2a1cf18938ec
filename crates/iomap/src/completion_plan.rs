//! The completion plan: where an I/O completes, decided once at submission.
//!
//! Owns the places and the only allowed change of a plan; what decides for a place is in [`decision`](crate::decision).
//! What each place may do:
//!
//! | plan | runs | may block |
//! |---|---|---|
//! | `Inline` | where the device's completion is reaped | no |
//! | `Task` | in the issuer's task work, on the ring's thread | no |
//! | `Worker` | on a worker thread | yes |
//!
//! Invariants:
//! - I1: decided at submission from what the mappings say (pure overwrite or not) and what the kiocb asks.
//! - I2: later only demoted, `Inline` -> `Task` -> `Worker`; [`CompletionPlan::demote`] is the only change.
//! - I3: code that may block takes a [`MayBlock`] token, and only workers make one.

use std::marker::PhantomData;

/// Where an I/O completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum CompletionPlan {
    /// Where the completion is reaped.
    #[default]
    Inline,
    /// In the issuer's task work.
    Task,
    /// On a worker.
    Worker,
}

impl CompletionPlan {
    /// The later of both: a plan never gets better (I2).
    #[inline]
    #[must_use]
    pub fn demote(self, to: CompletionPlan) -> CompletionPlan {
        self.max(to)
    }
}

/// Proof that the code runs where it may block (I3). What completes inline has none and cannot make one up:
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
/// It stays on the thread that made it, so no worker can lend its own to a ring:
///
/// ```compile_fail,E0277
/// let token = sheave_iomap::completion_plan::MayBlock::on_worker();
/// std::thread::spawn(move || drop(token));
/// ```
///
/// With a token all of it is allowed:
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
    /// For worker threads, and for threads of the caller's own that drive no ring.
    #[must_use]
    pub fn on_worker() -> MayBlock<'static> {
        MayBlock(None, PhantomData)
    }

    /// For worker threads, of work that somebody may want to end early: `asked` says so.
    #[must_use]
    pub fn until(asked: &dyn Fn() -> bool) -> MayBlock<'_> {
        MayBlock(Some(asked), PhantomData)
    }

    /// Whether somebody wants the work to end early: a request was cancelled, or its ring goes. What waits for long
    /// looks now and then, and gives up with `Status::Canceled`.
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
