//! Batches of a file: completion work of writes, and syncs.
//!
//! Owns the members of each batch. While a worker runs one batch of a file, requests that arrive meanwhile wait and
//! form the next: one hand-over for many writes, one commit of the file for many FSYNCs and synchronous writes. The
//! io-wq knows a batch by the slot of its leader: the first member of a batch of syncs, the last of a batch of
//! completion work.
//!
//! Invariants:
//! - I1: at most one batch of each kind runs for a file of a ring, so a file sees the ends of one ring's writes in
//!   order.
//! - I2: a sync begins after every member of its batch was submitted: later requests wait for the next batch.
//! - I3: a member of a batch ends with it at the latest, also on panics, refused threads and errors.
//! - I4: a write that needs no sync ends when its own completion work is done, and does not wait for the next write's.
//!   Writes that need a sync share one, and so wait for the batch.

use sheave_base::sync::{Arc, Mutex, MutexGuard};
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::kiocb::IOCB_NEED_SYNC;
use sheave_iomap::{File, Kiocb, Mapping, dio};

/// Slots of one kind of work: those being served, and those that wait for the next batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    running: Vec<u32>,
    waiting: Vec<u32>,
}

impl Batch {
    /// Adds a slot to the next batch.
    pub(crate) fn push(&mut self, slot: u32) {
        self.waiting.push(slot);
    }

    /// Begins the next batch unless one runs (I1) or none is waiting. Returns its slots.
    pub(crate) fn start(&mut self) -> Option<&[u32]> {
        if !self.running.is_empty() || self.waiting.is_empty() {
            return None;
        }
        std::mem::swap(&mut self.running, &mut self.waiting);
        Some(&self.running)
    }

    /// Ends the batch. Returns its slots; the caller gives the list back with [`Batch::put_room`].
    pub(crate) fn end(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.running)
    }

    /// Reuses the allocation of the list from [`Batch::end`].
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
    /// End of its pieces in `EndList::pieces`; they begin at the end of the write before.
    pieces_end: usize,
}

/// Writes of a batch of completion work, as a worker runs them, and their results.
#[derive(Debug, Default)]
pub(crate) struct EndList {
    list: Vec<Ended>,
    pieces: Vec<Mapping>,
    /// Result of each write; `None` until its work is done.
    results: Vec<Option<i32>>,
}

impl EndList {
    /// Empties the list for another batch.
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

    /// Runs the completion work of all writes in order. Calls `tell` with the slot and result of each write that ends
    /// alone, as soon as it has ended (I4).
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

    /// Returns true if a write ends before the batch does. The last write does not, because the io-wq knows the batch
    /// by its slot; nor do writes that need a sync, which they share.
    pub(crate) fn ends_alone(&self, at: usize) -> bool {
        at + 1 < self.list.len() && self.list[at].kiocb.flags & IOCB_NEED_SYNC == 0
    }

    /// Number of writes that end before the batch does.
    pub(crate) fn alone(&self) -> usize {
        (0..self.list.len()).filter(|&at| self.ends_alone(at)).count()
    }

    /// Returns the result of a write, or `None` if the batch ended before its work was done (I3).
    pub(crate) fn result(&self, at: usize) -> Option<i32> {
        self.results.get(at).copied().flatten()
    }
}

/// The batches of an open file.
#[derive(Debug, Default)]
pub(crate) struct FileWork {
    /// Writes that wait for their completion work (`end_write`).
    pub(crate) ends: Batch,
    /// Writes and FSYNCs that wait for a sync.
    pub(crate) syncs: Batch,
    list: Arc<Mutex<EndList>>,
}

impl FileWork {
    /// Allocates room for batches of all slots of a ring, two pieces each, so that I/O does not allocate.
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

    /// Returns the write list of the batch of completion work that runs or is about to.
    pub(crate) fn list(&self) -> &Arc<Mutex<EndList>> {
        &self.list
    }
}

/// Locks the list, also after a file panicked under the lock: the results recorded until then are valid.
pub(crate) fn lock(list: &Mutex<EndList>) -> MutexGuard<'_, EndList> {
    list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn slots_pushed_during_a_batch_form_the_next() {
        let mut batch = Batch::default();
        assert_eq!(batch.start(), None, "nobody waits");
        batch.push(3);
        batch.push(1);
        assert_eq!(batch.start(), Some(&[3, 1][..]));
        batch.push(2);
        assert_eq!(batch.start(), None, "one runs");
        let ended = batch.end();
        assert_eq!(ended, [3, 1]);
        batch.put_room(ended);
        assert_eq!(batch.start(), Some(&[2][..]));
        batch.push(4);
        assert_eq!(batch.end(), [2]);
        assert_eq!(batch.start(), Some(&[4][..]));
    }
}
