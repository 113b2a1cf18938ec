//! The memory that operations own, from the push to the completion.
//!
//! Owns a table beside the way of an I/O, which decides nothing there: an SQE of the typed interface is like one that
//! was filled by hand, but for its user data, which is the number of a place of the table (its *key*). The caller's
//! own user data lies in that place, with the memory, and is put back when the request takes a slot or posts its CQE.
//! Whose user data is a key is noted for the SQEs that wait (the rows in which they lie), for requests
//! ([`REQ_OWNS_BUF`]), for plain records (a bit of their owner) and for CQEs until they are read (the key).
//!
//! Invariants:
//! - O1: a place is in use from the push of an operation to the reading of its completion, or to its end when it posts
//!   none; meanwhile one SQE, request, record or CQE has its key, and nobody else.
//! - O2: memory is given back or dropped when the device is done with it, and not before: when its place is freed.
//!
//! [`REQ_OWNS_BUF`]: crate::req::REQ_OWNS_BUF

use std::collections::VecDeque;

use crate::io_buf::Memory;

/// No place, where a key plus one is kept.
const NONE: u32 = 0;

/// An operation that owns memory.
#[derive(Debug)]
struct OwnedSlot {
    user_data: u64,
    memory: Option<Memory>,
    /// The next free place plus one, while this one is free.
    next_free: u32,
}

/// SQEs in a row whose user data are keys: from one position of the SQ, which counts on without end, to before another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    from: u32,
    to: u32,
}

impl Row {
    #[inline(always)]
    fn is_empty(self) -> bool {
        self.from == self.to
    }
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
    /// The first free place plus one.
    first_free: u32,
    /// The row that was pushed last, as far as it waits in the SQ. If it is empty, there are none before it either.
    last: Row,
    /// The rows before it: there are some only where typed operations and SQEs that were filled by hand mix.
    rows: VecDeque<Row>,
    /// The key plus one of each CQE that can be read, by its index.
    cq: Box<[u32]>,
    /// What more there is to say of the errors of some operations.
    details: Vec<(u32, Detail)>,
}

impl OwnedTable {
    pub(crate) fn new(cq_entries: u32) -> OwnedTable {
        OwnedTable {
            places: Vec::new(),
            first_free: NONE,
            last: Row::default(),
            rows: VecDeque::new(),
            cq: vec![NONE; cq_entries as usize].into(),
            details: Vec::new(),
        }
    }

    /// Whether no operation of the ring ever owned anything.
    #[inline(always)]
    pub(crate) fn is_unused(&self) -> bool {
        self.places.is_empty()
    }

    /// Takes the memory of the operation whose SQE is at this position; the key that is its user data from now on.
    #[inline(always)]
    pub(crate) fn put(&mut self, sq_at: u32, user_data: u64, memory: Memory) -> u64 {
        let key = match self.first_free.checked_sub(1) {
            Some(key) => key,
            None => self.grow(),
        };
        let place = &mut self.places[key as usize];
        self.first_free = place.next_free;
        place.user_data = user_data;
        debug_assert!(place.memory.is_none(), "O1: a place is freed without memory");
        // What was there is nothing, which need not be dropped.
        std::mem::forget(place.memory.replace(memory));
        if self.last.to != sq_at {
            self.begin_row(sq_at);
        }
        self.last.to = sq_at.wrapping_add(1);
        u64::from(key)
    }

    /// One more place: as many as were ever in use together, which the sizes of the queues bound.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> u32 {
        self.places.push(OwnedSlot { user_data: 0, memory: None, next_free: NONE });
        self.places.len() as u32 - 1
    }

    #[inline(never)]
    fn begin_row(&mut self, sq_at: u32) {
        if !self.last.is_empty() {
            self.rows.push_back(self.last);
        }
        self.last = Row { from: sq_at, to: sq_at };
    }

    /// How many of the SQEs from this position on, `most` at most, are all such whose user data is a key, or all such
    /// where it is not; and which.
    #[inline(always)]
    pub(crate) fn row(&self, sq_head: u32, most: u32) -> (u32, bool) {
        if self.last.is_empty() { (most, false) } else { self.row_of(sq_head, most) }
    }

    #[inline]
    fn row_of(&self, sq_head: u32, most: u32) -> (u32, bool) {
        let first = *self.rows.front().unwrap_or(&self.last);
        match first.from.wrapping_sub(sq_head) {
            0 => (most.min(first.to.wrapping_sub(sq_head)), true),
            before => (most.min(before), false),
        }
    }

    /// So many SQEs from this position on, which are in one row and whose user data are keys, are taken.
    #[inline]
    pub(crate) fn left_sq(&mut self, sq_head: u32, many: u32) {
        let first = self.rows.front_mut().unwrap_or(&mut self.last);
        debug_assert_eq!(first.from, sq_head, "SQEs are taken in order");
        first.from = first.from.wrapping_add(many);
        if first.is_empty() && !self.rows.is_empty() {
            self.rows.pop_front();
        }
    }

    /// Whether the user data of the SQE at this position, which is the next one, is a key; if so, it is taken.
    #[inline(always)]
    pub(crate) fn take_from_sq(&mut self, sq_head: u32) -> bool {
        let (_, is_owned) = self.row(sq_head, 1);
        if is_owned {
            self.left_sq(sq_head, 1);
        }
        is_owned
    }

    /// The caller's user data of an operation.
    #[inline(always)]
    pub(crate) fn user_data(&self, key: u32) -> u64 {
        self.places[key as usize].user_data
    }

    /// Notes that the CQE with this index belongs to an operation; the caller's user data.
    #[inline(always)]
    pub(crate) fn posted(&mut self, key: u32, cq_index: u32) -> u64 {
        self.cq[cq_index as usize] = key + 1;
        self.user_data(key)
    }

    /// Notes what the device would have wanted.
    pub(crate) fn explain(&mut self, key: u32, detail: Detail) {
        self.details.push((key, detail));
    }

    /// What belongs to the CQE with this index, which was read, and what there is to say of its error.
    #[inline(always)]
    pub(crate) fn read(&mut self, cq_index: u32, failed: bool) -> (Option<Memory>, Detail) {
        if self.is_unused() {
            return Default::default();
        }
        let Some(key) = self.cq[cq_index as usize].checked_sub(1) else { return Default::default() };
        self.cq[cq_index as usize] = NONE;
        let detail = if failed { self.take_detail(key) } else { Detail::default() };
        (self.end(key), detail)
    }

    #[cold]
    fn take_detail(&mut self, key: u32) -> Detail {
        let at = self.details.iter().position(|(of, _)| *of == key);
        at.map(|at| self.details.swap_remove(at).1).unwrap_or_default()
    }

    /// The operation has ended, and its completion is read or was not asked for (O2).
    #[inline(always)]
    pub(crate) fn end(&mut self, key: u32) -> Option<Memory> {
        let place = &mut self.places[key as usize];
        place.next_free = self.first_free;
        self.first_free = key + 1;
        place.memory.take()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
