//! A mark that shows whether its owner is inside a section. Setting it, which the owner does all the time, is cheap.
//! Checking it, which another thread does seldom, is expensive.
//!
//! Owns the mark and the barrier that the other thread pays for both. The owner [enters](Mark::enter), then reads
//! something that the other thread writes (a gate). The other thread writes it, calls [`barrier`], then checks the
//! mark. Without a barrier each could miss the other's write, because a processor lets a load pass an earlier store. A
//! full barrier on both sides prevents that, but then the owner executes a locked instruction each time. So the other
//! thread has the kernel run a barrier on every processor that runs a thread of this process (`membarrier(2)`, private
//! and expedited, since Linux 4.14), and the owner needs only a compiler fence.
//!
//! * I1: if a mark is found clear after the other thread's write and [`barrier`], its owner sees the write when it
//!   enters the next time, and everything that the owner did before it left is visible.
//! * I2: where the kernel lacks the call, or a sandbox forbids it, the owner runs a full barrier itself. The choice is
//!   made once per process, before the first mark.
//! * I3: [`barrier`] returns false if a call fails that the kernel accepted before; marks must not be trusted then.
//!
//! Called by the gate of a block device's queue.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// A flag that its owner sets while it is inside a section.
#[derive(Debug)]
pub struct Mark {
    set: AtomicBool,
    /// True if the other thread executes the barrier for both (I2).
    other_side_pays: bool,
}

impl Mark {
    /// Makes a mark that is not set.
    #[must_use]
    #[allow(clippy::new_without_default)] // It registers the process with the kernel.
    pub fn new() -> Mark {
        Mark::with(host::is_registered())
    }

    fn with(other_side_pays: bool) -> Mark {
        Mark { set: AtomicBool::new(false), other_side_pays }
    }

    /// Sets the mark. If another thread found the mark clear after its [`barrier`], reads after this call see
    /// everything that it wrote before the barrier. For the owner alone.
    #[inline(always)]
    pub fn enter(&self) {
        // Relaxed: the barriers order it against later reads.
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
        // Release: pairs with the load in `is_set`, which then sees everything done inside the section.
        self.set.store(false, Ordering::Release);
    }

    /// Returns true if the mark is set. A clear mark proves nothing unless [`barrier`] was called before.
    #[must_use]
    pub fn is_set(&self) -> bool {
        // Acquire: pairs with the store in `leave`.
        self.set.load(Ordering::Acquire)
    }
}

/// Barrier of an owner that must execute it itself. Cold, so that the usual path of an I/O has no jump.
#[cold]
#[inline(never)]
fn full_barrier() {
    // SeqCst: pairs with the fence in `barrier_for`. The thread whose fence is second sees the other's earlier writes.
    fence(Ordering::SeqCst);
}

/// Returns true if the checking thread executes the barrier in this process, and false if the owner of each mark does
/// (I2).
#[must_use]
pub fn other_side_pays() -> bool {
    host::is_registered()
}

/// Heavy side of the asymmetric barrier: orders this thread's earlier stores before its later reads of any [`Mark`]
/// (I1). Returns false if the kernel has refused the call; marks must not be trusted then (I3).
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

/// Calls to the kernel.
#[cfg(not(any(shuttle, loom)))]
mod host {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    use rustix::thread::{MembarrierCommand, membarrier};

    /// Returns true if the process is registered for the barrier. The first call registers it.
    pub(super) fn is_registered() -> bool {
        // Not from `sync`: runs once per process, before there is any mark.
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
        // A process may have to register again after a fork or an exec.
        barrier().or_else(|_| membarrier(MembarrierCommand::RegisterPrivateExpedited).and_then(|()| barrier())).is_ok()
    }
}

/// The kernel's promise for a model checker: together the two barriers order like two full ones.
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
        /// A value that is written inside the section with Relaxed, so that only the mark orders it.
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
