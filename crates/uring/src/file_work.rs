//! What the completions of a file wait for: its completion work and its syncs, each in batches.
//!
//! Owns who is in which batch. While a worker does one for a file, what comes meanwhile waits and goes together in the
//! next: one hand-over for many writes, one commit of the file for many FSYNCs and synchronous writes. A batch of syncs
//! is with the io-wq under the slot of its first member, one of completion work under that of its last: the leader.
//!
//! Invariants:
//! - I1: at most one batch of each kind runs for a file of a ring, so a file sees the ends of one ring's writes in
//!   order.
//! - I2: a sync begins after everybody in its batch asked for it: who comes later waits for the next.
//! - I3: who is in a batch ends with it at the latest, whatever becomes of it: panics, refused threads, errors.
//! - I4: a write that wants no sync ends when its completion work is done, however long that of the next one takes.
//!   Those that want one share it, and so wait for the batch.

use sheave_base::sync::{Arc, Mutex, MutexGuard};
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::kiocb::IOCB_NEED_SYNC;
use sheave_iomap::{File, Kiocb, Mapping, dio};

/// Slots that wait for the same, and those that are being served.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    running: Vec<u32>,
    waiting: Vec<u32>,
}

impl Batch {
    /// Lets a slot wait for the next batch.
    pub(crate) fn push(&mut self, slot: u32) {
        self.waiting.push(slot);
    }

    /// Begins the next batch, if none runs (I1) and there is one; its slots, the leader first.
    pub(crate) fn start(&mut self) -> Option<&[u32]> {
        if !self.running.is_empty() || self.waiting.is_empty() {
            return None;
        }
        std::mem::swap(&mut self.running, &mut self.waiting);
        Some(&self.running)
    }

    /// Ends the batch: what was in it. Give the room back with [`Batch::put_room`].
    pub(crate) fn end(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.running)
    }

    /// The list of [`Batch::end`], for the next.
    pub(crate) fn put_room(&mut self, mut list: Vec<u32>) {
        list.clear();
        if self.running.capacity() == 0 {
            self.running = list;
        }
    }
}

/// A write whose data is on the device.
#[derive(Debug)]
struct Ended {
    slot: u32,
    kiocb: Kiocb,
    /// Where its pieces end in the list of all; they begin where those of the write before end.
    pieces_end: usize,
}

/// The writes of a batch as a worker has them, and their results.
#[derive(Debug, Default)]
pub(crate) struct EndList {
    list: Vec<Ended>,
    pieces: Vec<Mapping>,
    /// The result of each, once its work is done.
    results: Vec<Option<i32>>,
}

impl EndList {
    /// Begins another batch.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.pieces.clear();
        self.results.clear();
    }

    /// Appends a write and the mappings that it used.
    pub(crate) fn push(&mut self, slot: u32, kiocb: &Kiocb, pieces: &[Mapping]) {
        self.pieces.extend_from_slice(pieces);
        self.list.push(Ended { slot, kiocb: *kiocb, pieces_end: self.pieces.len() });
        self.results.push(None);
    }

    /// The completion work of all, in order. `tell` hears of each that ends alone as soon as it has (I4).
    pub(crate) fn run(&mut self, file: &dyn File, token: &MayBlock<'_>, mut tell: impl FnMut(u32, i32)) {
        let mut from = 0;
        for at in 0..self.list.len() {
            let Ended { slot, kiocb, pieces_end } = &self.list[at];
            let res = dio::end_write(file, kiocb, &self.pieces[from..*pieces_end], token);
            (from, self.results[at]) = (*pieces_end, Some(res));
            if self.ends_alone(at) {
                tell(*slot, res);
            }
        }
    }

    /// Whether a write ends by itself, and not with the batch: every one but the leader, which is the batch to the
    /// io-wq, and those that want a sync, which all those of a batch share.
    pub(crate) fn ends_alone(&self, at: usize) -> bool {
        at + 1 < self.list.len() && self.list[at].kiocb.flags & IOCB_NEED_SYNC == 0
    }

    /// How many writes end by themselves.
    pub(crate) fn alone(&self) -> usize {
        (0..self.list.len()).filter(|&at| self.ends_alone(at)).count()
    }

    /// The result of one; `None` when it was not reached (I3).
    pub(crate) fn result(&self, at: usize) -> Option<i32> {
        self.results.get(at).copied().flatten()
    }
}

/// The batches of an open file.
#[derive(Debug, Default)]
pub(crate) struct FileWork {
    /// Writes that wait for `end_write`.
    pub(crate) ends: Batch,
    /// Writes and FSYNCs that wait for a sync.
    pub(crate) syncs: Batch,
    list: Arc<Mutex<EndList>>,
}

impl FileWork {
    /// With room for batches of all of a ring's slots, with two pieces each, so that none is made in the middle of I/O.
    pub(crate) fn with_room(slots: u32) -> FileWork {
        let room = slots as usize;
        let batch = || Batch { running: Vec::with_capacity(room), waiting: Vec::with_capacity(room) };
        let list = EndList {
            list: Vec::with_capacity(room),
            pieces: Vec::with_capacity(2 * room),
            results: Vec::with_capacity(room),
        };
        FileWork { ends: batch(), syncs: batch(), list: Arc::new(Mutex::new(list)) }
    }

    /// The list of the batch of ends that runs, or is about to.
    pub(crate) fn list(&self) -> &Arc<Mutex<EndList>> {
        &self.list
    }
}

/// The list, also after a file has panicked under its lock: what it had done is still right.
pub(crate) fn lock(list: &Mutex<EndList>) -> MutexGuard<'_, EndList> {
    list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(all(test, not(shuttle)))]
mod tests;
