//! The memory that operations own, from the push to the completion.
//!
//! Owns a table beside the way of an I/O, which decides nothing there: an SQE of the typed interface is like one that
//! was filled by hand, but for its user data, which is the number of a place of the table (its *key*). The caller's
//! own user data lies in that place, with the memory, and is put back when a request takes a slot or its CQE is read.
//! Whose user data is a key is noted for the SQEs that wait and for the CQEs until they are read (the rows in which
//! they lie), for requests ([`REQ_OWNS_BUF`]) and for plain records (a bit of their owner).
//!
//! Invariants:
//! - O1: a place is in use from the push of an operation to the reading of its completion, or to its end when it posts
//!   none; meanwhile one SQE, request, record or CQE has its key, and nobody else.
//! - O2: memory is given back or dropped when the device is done with it, and not before: when its place is freed.
//!
//! [`REQ_OWNS_BUF`]: crate::req::REQ_OWNS_BUF

use std::collections::VecDeque;

use crate::io_buf::Memory;

/// The key of no place.
const NONE: u32 = u32::MAX;

/// An operation that owns memory. One line of the cache.
#[derive(Debug)]
#[repr(align(64))]
struct OwnedSlot {
    memory: Option<Memory>,
    user_data: u64,
    /// The next free place, while this one is free.
    next_free: u32,
}

/// What the device wants of the place and the memory of an I/O, where it had something else; in powers of two. Zeroes
/// say nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Detail {
    /// Offset and length are multiples of this many bytes.
    pub(crate) block_shift: u8,
    /// The memory begins at a multiple of so many.
    pub(crate) memory_shift: u8,
}

/// The table of a ring.
#[derive(Debug)]
pub(crate) struct OwnedTable {
    places: Vec<OwnedSlot>,
    first_free: u32,
    /// The SQEs whose user data are keys.
    pub(crate) sq: KeyRows,
    /// The CQEs whose user data are keys.
    pub(crate) cq: KeyRows,
    /// What more there is to say of the errors of some operations.
    details: Vec<(u32, Detail)>,
}

impl Default for OwnedTable {
    fn default() -> OwnedTable {
        OwnedTable {
            places: Vec::new(),
            first_free: NONE,
            sq: KeyRows::default(),
            cq: KeyRows::default(),
            details: Vec::new(),
        }
    }
}

impl OwnedTable {
    /// Whether no operation of the ring ever owned anything.
    #[inline(always)]
    pub(crate) fn is_unused(&self) -> bool {
        self.places.is_empty()
    }

    /// Takes the memory of the operation whose SQE is at this position; the key that is its user data from now on.
    /// Gives the memory back when every place is in use.
    #[inline(always)]
    pub(crate) fn put(&mut self, sq_at: u32, user_data: u64, memory: Memory) -> Result<u64, Memory> {
        let key = self.first_free;
        let Some(place) = self.places.get_mut(key as usize) else { return Err(memory) };
        self.first_free = place.next_free;
        place.user_data = user_data;
        debug_assert!(place.memory.is_none(), "O1: a place is freed without memory");
        // What was there is nothing, which need not be dropped.
        std::mem::forget(place.memory.replace(memory));
        self.sq.add(sq_at, 1);
        Ok(u64::from(key))
    }

    /// As [`put`](Self::put), into one more place: there are as many as were ever in use together, which the sizes of
    /// the queues bound.
    #[cold]
    #[inline(never)]
    pub(crate) fn put_in_new_place(&mut self, sq_at: u32, user_data: u64, memory: Memory) -> u64 {
        let key = self.places.len();
        self.places.push(OwnedSlot { memory: Some(memory), user_data, next_free: NONE });
        self.sq.add(sq_at, 1);
        key as u64
    }

    /// The caller's user data of an operation.
    #[inline(always)]
    pub(crate) fn user_data(&self, key: u32) -> u64 {
        self.places[key as usize].user_data
    }

    /// Notes what the device would have wanted.
    pub(crate) fn explain(&mut self, key: u32, detail: Detail) {
        self.details.push((key, detail));
    }

    /// As [`end`](Self::end), of an operation that failed: also what there is to say of its error.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_failed(&mut self, key: u32) -> (u64, Option<Memory>, Detail) {
        let at = self.details.iter().position(|(of, _)| *of == key);
        let detail = at.map(|at| self.details.swap_remove(at).1).unwrap_or_default();
        let (user_data, memory) = self.end(key);
        (user_data, memory, detail)
    }

    /// The operation has ended, and its completion is read or was not asked for (O2): the caller's user data, and the
    /// memory.
    #[inline(always)]
    pub(crate) fn end(&mut self, key: u32) -> (u64, Option<Memory>) {
        let place = &mut self.places[key as usize];
        place.next_free = self.first_free;
        self.first_free = key;
        (place.user_data, place.memory.take())
    }
}

/// Entries in a row: from one position of a queue, which counts on without end, to before another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    from: u32,
    to: u32,
}

/// Which entries of a queue have keys as their user data.
///
/// Rows that were taken from the queue stay until the next look, which forgets them. Whoever takes entries has looked
/// before ([`KeyRows::look`]), so that no row is older than the queue is long.
#[derive(Debug, Default)]
pub(crate) struct KeyRows {
    /// The row that was added last.
    last: Row,
    /// The rows before it: there are some only where entries with keys and others mix.
    rows: VecDeque<Row>,
}

impl KeyRows {
    /// The user data of so many entries from this position on are keys.
    #[inline(always)]
    pub(crate) fn add(&mut self, at: u32, many: u32) {
        if self.last.to != at {
            self.begin(at);
        }
        self.last.to = at.wrapping_add(many);
    }

    #[cold]
    #[inline(never)]
    fn begin(&mut self, at: u32) {
        if self.last.from != self.last.to {
            self.rows.push_back(self.last);
        }
        self.last = Row { from: at, to: at };
    }

    /// How many of the entries from `head` on, which is the next that is taken, `most` at most, all have a key, or all
    /// have none; and which.
    #[inline(always)]
    pub(crate) fn look(&mut self, head: u32, most: u32) -> (u32, bool) {
        let Row { from, to } = self.last;
        if from == to {
            return (most, false);
        }
        // One row, which has begun.
        if self.rows.is_empty() && head.wrapping_sub(from) < to.wrapping_sub(from) {
            return (most.min(to.wrapping_sub(head)), true);
        }
        self.look_at_rows(head, most)
    }

    /// The entry at this position, which is the first of the row that was looked at, has its key no more.
    pub(crate) fn took(&mut self, at: u32) {
        let first = self.rows.front_mut().unwrap_or(&mut self.last);
        first.from = at.wrapping_add(1);
    }

    #[inline(never)]
    fn look_at_rows(&mut self, head: u32, most: u32) -> (u32, bool) {
        let is_taken = |row: &Row| head.wrapping_sub(row.to) as i32 >= 0;
        while self.rows.front().is_some_and(is_taken) {
            self.rows.pop_front();
        }
        if self.rows.is_empty() && is_taken(&self.last) {
            self.last.from = self.last.to;
            return (most, false);
        }
        let first = self.rows.front().unwrap_or(&self.last);
        let before = first.from.wrapping_sub(head);
        if before as i32 > 0 { (most.min(before), false) } else { (most.min(first.to.wrapping_sub(head)), true) }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
