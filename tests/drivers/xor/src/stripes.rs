//! What all rings of the device share: which stripes are being written, and which device is lost.
//!
//! A write reads a stripe's parity before it changes it, so two writes of one stripe go one after the other, also when
//! they are those of two rings; so do reads of what is computed from the parity. Who finds a stripe taken leaves
//! its waker, and tries again when that is called.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use sheave::drivers::Waker;

#[derive(Debug)]
pub(crate) struct Stripes(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Stripes that a request has, and the queues that wait for them, each once.
    taken: HashMap<u64, Vec<(u64, Waker)>>,
    queues: u64,
    lost: Option<usize>,
}

impl Stripes {
    pub(crate) fn new(lost: Option<usize>) -> Stripes {
        Stripes(Mutex::new(State { taken: HashMap::new(), queues: 0, lost }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A number for another queue.
    pub(crate) fn new_queue(&self) -> u64 {
        let mut state = self.state();
        state.queues += 1;
        state.queues
    }

    /// Takes a stripe for this queue; false when another request has it, and then the waker is called when it may be
    /// free.
    pub(crate) fn lock(&self, stripe: u64, queue: u64, waker: &Waker) -> bool {
        let mut state = self.state();
        if let Some(waiting) = state.taken.get_mut(&stripe) {
            if waiting.iter().all(|(other, _)| *other != queue) {
                waiting.push((queue, waker.clone()));
            }
            return false;
        }
        state.taken.insert(stripe, Vec::new());
        true
    }

    pub(crate) fn unlock(&self, stripe: Option<u64>) {
        let waiting = stripe.and_then(|stripe| self.state().taken.remove(&stripe));
        waiting.into_iter().flatten().for_each(|(_, waker)| waker.wake());
    }

    /// The device that is lost.
    pub(crate) fn lost(&self) -> Option<usize> {
        self.state().lost
    }

    /// A device has failed; false when another one had before.
    pub(crate) fn lose(&self, device: usize) -> bool {
        *self.state().lost.get_or_insert(device) == device
    }
}
