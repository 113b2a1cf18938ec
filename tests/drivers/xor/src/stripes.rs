//! State that all rings of the device share: the stripes that are being written, and the lost device.
//!
//! A write reads a stripe's parity before it changes it, so two writes of one stripe run one after the other, even if
//! they are on different rings. The same is true of reads that are computed from the parity. A queue that finds a
//! stripe taken leaves its waker, and tries again when that waker is called.

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

    /// Returns a number for a new queue.
    pub(crate) fn new_queue(&self) -> u64 {
        let mut state = self.state();
        state.queues += 1;
        state.queues
    }

    /// Takes a stripe for this queue. Returns false if another request has it; the waker is then called when it may be
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

    /// Returns the lost device.
    pub(crate) fn lost(&self) -> Option<usize> {
        self.state().lost
    }

    /// Records that a device has failed. Returns false if another one had failed before.
    pub(crate) fn lose(&self, device: usize) -> bool {
        *self.state().lost.get_or_insert(device) == device
    }
}
