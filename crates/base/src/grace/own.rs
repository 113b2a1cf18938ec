//! The rings of a thread: a wait for a grace on this thread runs them meanwhile.
//!
//! Owns the list of what a thread has that counts I/O and can end it: a ring puts itself in when it is made. A thread
//! that writes asynchronously and then waits for these writes, without reaping, would wait for itself; so a wait runs
//! what is ready of the thread's own rings, again and again. Does not own what that is.
//!
//! Invariants:
//! - O1: a ring is called by its own thread only, and never from within such a call: what a file does in a ring's
//!   completions may wait itself, and then no ring of the thread is run.
//! - O2: a ring that is in use answers by doing nothing.
//!
//! Called by rings ([`register`]) and by all that wait for a grace, or for somebody who may ([`complete_own`]).

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::{Rc, Weak};

/// What a thread has that counts I/O in graces and can end it.
pub trait Complete {
    /// Ends what is ready to end, without waiting. Does nothing when it is in use (O2): the wait may be in one of its
    /// own calls.
    fn complete(&self);
}

thread_local! {
    static OWN: RefCell<Vec<(u64, Weak<dyn Complete>)>> = const { RefCell::new(Vec::new()) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// A place in the list of its thread; it leaves with this.
#[derive(Debug)]
pub struct Registered {
    id: u64,
    /// It stays on its thread (O1).
    own: PhantomData<*const ()>,
}

/// Puts a ring into the list of this thread.
#[must_use]
pub fn register(ring: &Rc<impl Complete + 'static>) -> Registered {
    let id = NEXT.get();
    NEXT.set(id + 1);
    let ring: Weak<dyn Complete> = Rc::downgrade(&(Rc::clone(ring) as Rc<dyn Complete>));
    // The list may be gone when the thread ends: then no wait of this thread runs its rings.
    let _ = OWN.try_with(|own| own.borrow_mut().push((id, ring)));
    Registered { id, own: PhantomData }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // As in `register`.
        let _ = OWN.try_with(|own| own.borrow_mut().retain(|(id, _)| *id != self.id));
    }
}

/// Ends the call in which rings are run, also by a panic.
struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(false);
    }
}

/// Runs what is ready of this thread's own rings. Holds no lock that their files may want: call it without one. False
/// when there is none, or one of them is being run already.
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

/// Whether this thread has rings of its own that it may run.
#[must_use]
pub fn has_own() -> bool {
    !RUNNING.get() && OWN.try_with(|own| !own.borrow().is_empty()).unwrap_or(false)
}
