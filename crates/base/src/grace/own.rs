//! The rings of a thread: a thread that waits for a grace runs its own rings meanwhile.
//!
//! Owns the list of a thread's objects that count I/O and can end it: a ring registers itself when it is made. A thread
//! that writes asynchronously and then waits for these writes without reaping would wait for itself, so a wait
//! repeatedly runs the work that is ready in the thread's own rings. Does not own that work.
//!
//! Invariants:
//! - O1: a ring is called by its own thread only, and never recursively: a file may itself wait in a ring's
//!   completions, and then no ring of the thread is run.
//! - O2: a ring that is in use does nothing when it is called.
//!
//! Called by rings ([`register`]) and by every wait for a grace, or for a thread that may wait for one
//! ([`complete_own`]).

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::{Rc, Weak};

/// An object of a thread that counts I/O in graces and can end it.
pub trait Complete {
    /// Ends all work that is ready, without waiting. Does nothing while the object is in use (O2): the wait may be
    /// inside one of its own calls.
    fn complete(&self);
}

thread_local! {
    static OWN: RefCell<Vec<(u64, Weak<dyn Complete>)>> = const { RefCell::new(Vec::new()) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Membership in the list of the thread, until dropped.
#[derive(Debug)]
pub struct Registered {
    id: u64,
    /// Not `Send`: it stays on its thread (O1).
    own: PhantomData<*const ()>,
}

/// Adds a ring to the list of this thread.
#[must_use]
pub fn register(ring: &Rc<impl Complete + 'static>) -> Registered {
    let id = NEXT.get();
    NEXT.set(id + 1);
    let ring: Weak<dyn Complete> = Rc::downgrade(&(Rc::clone(ring) as Rc<dyn Complete>));
    // The list is gone while the thread ends: then waits of this thread run no rings.
    let _ = OWN.try_with(|own| own.borrow_mut().push((id, ring)));
    Registered { id, own: PhantomData }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // As in `register`.
        let _ = OWN.try_with(|own| own.borrow_mut().retain(|(id, _)| *id != self.id));
    }
}

/// Clears [`RUNNING`] when dropped, also after a panic.
struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(false);
    }
}

/// Runs the work that is ready in this thread's own rings. The caller must not hold a lock that their files may take.
/// Returns false if the thread has no ring, or one of them is running already.
pub fn complete_own() -> bool {
    let rings: Vec<Rc<dyn Complete>> =
        OWN.try_with(|own| own.borrow().iter().filter_map(|(_, ring)| ring.upgrade()).collect()).unwrap_or_default();
    if rings.is_empty() || RUNNING.replace(true) {
        return false;
    }
    let _running = Running;
    rings.iter().for_each(|ring| ring.complete());
    true
}

/// Returns true if this thread has rings of its own that it may run now.
#[must_use]
pub fn has_own() -> bool {
    !RUNNING.get() && OWN.try_with(|own| !own.borrow().is_empty()).unwrap_or(false)
}
