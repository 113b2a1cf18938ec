//! A mark that says where its owner is: cheap to set for the owner, who does it all the time, and dear to look at for
//! another thread, which does it seldom.
//!
//! Owns the mark, and the barrier that the other thread pays for both. The owner [enters](Mark::enter), then reads
//! something that the other thread writes (a gate); the other thread writes that, calls [`barrier`], then looks at the
//! mark. Without a barrier each could miss what the other wrote, for a processor lets a load pass an earlier store.
//! With a full barrier on both sides one of them sees it, but the owner's costs it a locked instruction each time. So
//! the other thread asks the kernel to run a barrier on every processor where a thread of this process runs
//! (`membarrier(2)`, private and expedited, since Linux 4.14), and the owner keeps its compiler from swapping the two.
//!
//! * I1: after the other thread's write and [`barrier`], a mark that is not set means that its owner will see the write
//!   when it enters the next time, and that all that it did before it left is visible.
//! * I2: where the kernel has no such call, or a sandbox forbids it, the owner runs a full barrier itself. Which of the
//!   two it is, is decided once in a process, before the first mark.
//! * I3: if a call that the kernel has once promised fails later, [`barrier`] says so, and its caller knows nothing.
//!
//! Called by the gate of a block device's queue.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether an owner is inside of what the mark is about.
#[derive(Debug)]
pub struct Mark {
    set: AtomicBool,
    /// The other side pays for the barrier (I2).
    other_side_pays: bool,
}

impl Mark {
    /// A mark that is not set.
    #[must_use]
    #[allow(clippy::new_without_default)] // It registers the process with the kernel.
    pub fn new() -> Mark {
        Mark::with(host::is_registered())
    }

    fn with(other_side_pays: bool) -> Mark {
        Mark { set: AtomicBool::new(false), other_side_pays }
    }

    /// Sets the mark. What the owner reads behind it is at least as new as what was written before a [`barrier`] after
    /// which the mark was seen not to be set. For the owner alone.
    #[inline(always)]
    pub fn enter(&self) {
        // Relaxed: the barriers order it, against what is read behind it.
        self.set.store(true, Ordering::Relaxed);
        if self.other_side_pays {
            host::light_barrier();
        } else {
            full_barrier();
        }
    }

    /// Clears the mark. For the owner alone.
    #[inline(always)]
    pub fn leave(&self) {
        // Release: what was done inside happened before; pairs with the load in `is_set`.
        self.set.store(false, Ordering::Release);
    }

    /// Whether the mark is set; see [`barrier`].
    #[must_use]
    pub fn is_set(&self) -> bool {
        // Acquire: pairs with the store in `leave`.
        self.set.load(Ordering::Acquire)
    }
}

/// The owner's barrier where the other side cannot pay. Cold: where it can, the way of every I/O goes straight on.
#[cold]
#[inline(never)]
fn full_barrier() {
    // SeqCst: pairs with the fence in `barrier_for`. Whichever is second sees what came before the first.
    fence(Ordering::SeqCst);
}

/// Whether the other side pays for the barrier in this process; else the owner of each mark does (I2).
#[must_use]
pub fn other_side_pays() -> bool {
    host::is_registered()
}

/// Orders what this thread has written before what marks it looks at afterwards, against every owner of a [`Mark`]
/// (I1). False: it could not be done, and marks tell nothing (I3).
#[must_use = "without the barrier a mark tells nothing"]
pub fn barrier() -> bool {
    barrier_for(host::is_registered())
}

fn barrier_for(other_side_pays: bool) -> bool {
    if other_side_pays {
        return host::heavy_barrier();
    }
    // SeqCst: pairs with the fence in `full_barrier`.
    fence(Ordering::SeqCst);
    true
}

/// The kernel's part.
#[cfg(not(any(shuttle, loom)))]
mod host {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    use rustix::thread::{MembarrierCommand, membarrier};

    /// Whether the process has registered for the barrier. The first call asks the kernel.
    pub(super) fn is_registered() -> bool {
        // Not `sync`: asked once in a process, before there is any mark.
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
    }

    #[inline(always)]
    pub(super) fn light_barrier() {
        // SeqCst: for the compiler alone; pairs with `heavy_barrier`.
        compiler_fence(Ordering::SeqCst);
    }

    pub(super) fn heavy_barrier() -> bool {
        let barrier = || membarrier(MembarrierCommand::PrivateExpedited);
        // A process that has forked or replaced itself may have to register anew.
        barrier().or_else(|_| membarrier(MembarrierCommand::RegisterPrivateExpedited).and_then(|()| barrier())).is_ok()
    }
}

/// What the kernel promises, as a model checker knows it: together the two barriers order as two full ones do.
#[cfg(any(shuttle, loom))]
mod host {
    use super::{Ordering, fence};

    pub(super) fn is_registered() -> bool {
        true
    }

    pub(super) fn light_barrier() {
        // SeqCst: pairs with `heavy_barrier`.
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy_barrier() -> bool {
        // SeqCst: pairs with `light_barrier`.
        fence(Ordering::SeqCst);
        true
    }
}

#[cfg(all(test, any(shuttle, loom)))]
mod model {
    //! The mark under a model checker: an owner that passes a gate, and a thread that closes it.

    use super::*;
    use crate::model::explore;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::{Arc, thread};

    struct Passage {
        mark: Mark,
        closed: AtomicU32,
        /// Written inside, Relaxed: so that the mark alone orders it.
        inside: AtomicU32,
    }

    impl Passage {
        fn pass(&self) {
            self.mark.enter();
            if self.closed.load(Ordering::Relaxed) == 0 {
                self.inside.fetch_add(1, Ordering::Relaxed);
            }
            self.mark.leave();
        }
    }

    fn explore_closing(name: &str, other_side_pays: bool) {
        explore(name, move || {
            let (closed, inside) = (AtomicU32::new(0), AtomicU32::new(0));
            let passage = Arc::new(Passage { mark: Mark::with(other_side_pays), closed, inside });
            let owner = Arc::clone(&passage);
            let owner = thread::spawn(move || {
                owner.pass();
                owner.pass();
            });
            passage.closed.store(1, Ordering::Relaxed);
            assert!(barrier_for(other_side_pays));
            if !passage.mark.is_set() {
                let seen = passage.inside.load(Ordering::Relaxed);
                owner.join().expect("owner");
                let after = passage.inside.load(Ordering::Relaxed);
                assert_eq!(seen, after, "the owner went in through a closed gate, or had been in and nobody saw it");
            } else {
                owner.join().expect("owner");
            }
        });
    }

    #[test]
    fn model_nobody_passes_a_closed_gate_where_the_other_side_pays() {
        explore_closing("a mark and a heavy barrier", true);
    }

    #[test]
    fn model_nobody_passes_a_closed_gate_where_the_owner_pays() {
        explore_closing("a mark and two full barriers", false);
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_set_between_enter_and_leave() {
        for other_side_pays in [false, true] {
            let mark = Mark::with(other_side_pays);
            assert!(!mark.is_set());
            mark.enter();
            assert!(mark.is_set());
            mark.leave();
            assert!(!mark.is_set());
        }
        assert!(barrier(), "the kernel takes back what it has promised");
    }
}
