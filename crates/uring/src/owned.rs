//! Memory that operations own, from the push to the completion.
//!
//! Owns the table of such memory. An SQE of the typed interface is like one filled by hand, except that its user data
//! is the number of a place in the table (its *key*). The place holds the caller's user data and the memory. The
//! caller's user data is put back when a request takes a slot or its CQE is read. A key is distinguished from other
//! user data by rows of positions (in SQ and CQ), by [`REQ_OWNS_BUF`] (in a request), and by a bit of the owner (in a
//! plain record).
//!
//! Invariants:
//! - O1: a place is in use from the push of an operation until its completion is read, or until its end if it posts no
//!   completion. Meanwhile exactly one SQE, request, record or CQE has its key.
//! - O2: memory is returned or dropped only after the device is done with it: when its place is freed.
//!
//! [`REQ_OWNS_BUF`]: crate::req::REQ_OWNS_BUF

use std::collections::VecDeque;

use crate::io_buf::Memory;

const NONE: u32 = u32::MAX;

/// An operation that owns memory. One cache line.
#[derive(Debug)]
#[repr(align(64))]
struct OwnedSlot {
    memory: Option<Memory>,
    user_data: u64,
    /// Next free place, while this one is free.
    next_free: u32,
}

/// Alignment that the device requires of an I/O that had another one; in powers of two. Zeroes: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Detail {
    /// Offset and length are multiples of this many bytes.
    pub(crate) block_shift: u8,
    /// The memory begins at a multiple of this many bytes.
    pub(crate) memory_shift: u8,
}

#[derive(Debug)]
pub(crate) struct OwnedTable {
    places: Vec<OwnedSlot>,
    first_free: u32,
    /// SQEs whose user data are keys.
    pub(crate) sq: KeyRows,
    /// CQEs whose user data are keys.
    pub(crate) cq: KeyRows,
    /// Required alignments, by key, of operations that failed because of their alignment.
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
    /// Returns true if no operation of the ring ever owned memory.
    #[inline(always)]
    pub(crate) fn is_unused(&self) -> bool {
        self.places.is_empty()
    }

    /// Stores the memory of the operation whose SQE is at `sq_at`. Returns the key that replaces its user data. Returns
    /// the memory if every place is in use.
    #[inline(always)]
    pub(crate) fn put(&mut self, sq_at: u32, user_data: u64, memory: Memory) -> Result<u64, Memory> {
        let key = self.first_free;
        let Some(place) = self.places.get_mut(key as usize) else { return Err(memory) };
        self.first_free = place.next_free;
        place.user_data = user_data;
        debug_assert!(place.memory.is_none(), "O1: a place is freed without memory");
        // The old value is `None`. Forgetting it saves the test that a drop would make.
        std::mem::forget(place.memory.replace(memory));
        self.sq.add(sq_at, 1);
        Ok(u64::from(key))
    }

    /// Does [`put`](Self::put) into an additional place. The number of places is the largest number ever in use at
    /// once, which the sizes of the queues bound.
    #[cold]
    #[inline(never)]
    pub(crate) fn put_in_new_place(&mut self, sq_at: u32, user_data: u64, memory: Memory) -> u64 {
        let key = self.places.len();
        self.places.push(OwnedSlot { memory: Some(memory), user_data, next_free: NONE });
        self.sq.add(sq_at, 1);
        key as u64
    }

    #[inline(always)]
    pub(crate) fn user_data(&self, key: u32) -> u64 {
        self.places[key as usize].user_data
    }

    /// Stores the alignment that the device requires.
    pub(crate) fn explain(&mut self, key: u32, detail: Detail) {
        self.details.push((key, detail));
    }

    /// Does [`end`](Self::end) for a failed operation. Also returns the required alignment.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_failed(&mut self, key: u32) -> (u64, Option<Memory>, Detail) {
        let at = self.details.iter().position(|(of, _)| *of == key);
        let detail = at.map(|at| self.details.swap_remove(at).1).unwrap_or_default();
        let (user_data, memory) = self.end(key);
        (user_data, memory, detail)
    }

    /// Frees the place of an operation whose completion is read, or that posts none (O2). Returns the caller's user
    /// data and the memory.
    #[inline(always)]
    pub(crate) fn end(&mut self, key: u32) -> (u64, Option<Memory>) {
        let place = &mut self.places[key as usize];
        place.next_free = self.first_free;
        self.first_free = key;
        (place.user_data, place.memory.take())
    }
}

/// Consecutive entries of a queue, from one position to before another. Positions do not wrap at the queue's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    from: u32,
    to: u32,
}

/// Set of the entries of a queue whose user data are keys.
///
/// Rows that were taken from the queue stay until the next [`KeyRows::look`], which drops them. Entries are taken only
/// after a look, so every row lies within one length of the queue: comparisons of positions that wrap depend on that.
#[derive(Debug, Default)]
pub(crate) struct KeyRows {
    last: Row,
    /// Rows before it. Only a mix of entries with and without keys gives any.
    rows: VecDeque<Row>,
}

impl KeyRows {
    /// Marks `many` entries, starting at position `at`, as ones whose user data is a key.
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

    /// Returns the number of entries from `head` on, at most `most`, that all have a key, or all have none; the `bool`
    /// is true if they have one. `head` must be the next entry that is taken.
    #[inline(always)]
    pub(crate) fn look(&mut self, head: u32, most: u32) -> (u32, bool) {
        let Row { from, to } = self.last;
        if from == to {
            return (most, false);
        }
        // Fast path: there is one row, and `head` lies within it.
        if self.rows.is_empty() && head.wrapping_sub(from) < to.wrapping_sub(from) {
            return (most.min(to.wrapping_sub(head)), true);
        }
        self.look_at_rows(head, most)
    }

    /// Unmarks the entry at `at`: the first one of the row that the last [`look`](Self::look) returned.
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
mod tests {
    use super::{Detail, KeyRows, OwnedTable};
    use crate::io_buf::Memory;

    fn put(table: &mut OwnedTable, sq_at: u32, user_data: u64) -> u32 {
        let memory = Memory::new(vec![user_data as u8]);
        table.put(sq_at, user_data, memory).unwrap_or_else(|back| table.put_in_new_place(sq_at, user_data, back)) as u32
    }

    fn byte(memory: Memory) -> u8 {
        Memory::into_value::<Vec<u8>>(Some(memory)).expect("what was put")[0]
    }

    fn end(table: &mut OwnedTable, key: u32) -> (u64, Option<u8>) {
        let (user_data, memory) = table.end(key);
        (user_data, memory.map(byte))
    }

    #[test]
    fn a_key_is_used_again_when_its_operation_was_read() {
        let mut table = OwnedTable::default();
        assert!(table.is_unused());
        let (a, b) = (put(&mut table, 0, 10), put(&mut table, 1, 11));
        assert_ne!(a, b);
        assert_eq!(end(&mut table, b), (11, Some(11)));
        assert_eq!(put(&mut table, 2, 12), b);
        assert_eq!((table.user_data(a), table.user_data(b)), (10, 12));
        assert_eq!(end(&mut table, a), (10, Some(10)));
        assert_eq!(end(&mut table, b), (12, Some(12)));
        let (first, second, third) = (put(&mut table, 3, 1), put(&mut table, 4, 2), put(&mut table, 5, 3));
        assert_eq!((first, second), (b, a), "the place that was freed last is in the cache");
        assert!(![a, b].contains(&third));
        assert!(!table.is_unused());
    }

    #[test]
    fn a_required_alignment_is_returned_only_with_its_operation() {
        let mut table = OwnedTable::default();
        let detail = Detail { block_shift: 9, memory_shift: 2 };
        for expected in [detail, Detail::default()] {
            let (first, other) = (put(&mut table, 0, 1), put(&mut table, 1, 2));
            if expected == detail {
                table.explain(first, detail);
            }
            for (key, user_data, expected) in [(other, 2, Detail::default()), (first, 1, expected)] {
                let (told, memory, detail) = table.end_failed(key);
                assert_eq!((told, memory.map(byte), detail), (user_data, Some(user_data as u8), expected));
            }
        }
    }

    /// Adds and takes entries at random, some at a time, across the wrap of positions. Each look must agree with a list
    /// of all entries, also after rows that were taken without another look.
    #[test]
    fn rows_end_where_keys_end() {
        let mut rng = sheave_base::rng::Rng::new(1);
        for _ in 0..400 {
            let mut rows = KeyRows::default();
            let often = rng.below(9);
            let has_key: Vec<bool> = (0..100).map(|_| rng.below(8) < often).collect();
            let (start, batch) = (u32::MAX - 50, rng.between(1, 100) as usize);
            let at = |index: usize| start.wrapping_add(index as u32);
            let (mut head, mut filled) = (0, 0);
            while head < has_key.len() {
                while filled < has_key.len() && filled < head + batch {
                    let alike = has_key[filled..].iter().take_while(|has| **has == has_key[filled]).count();
                    let many = alike.min(rng.between(1, 5) as usize).min(head + batch - filled);
                    if has_key[filled] {
                        rows.add(at(filled), many as u32);
                    }
                    filled += many;
                }
                let most = rng.between(1, (filled - head) as u64) as usize;
                let alike = has_key[head..head + most].iter().take_while(|has| **has == has_key[head]).count();
                assert_eq!(rows.look(at(head), most as u32), (alike as u32, has_key[head]), "{head} {has_key:?}");
                if has_key[head] && rng.percent(20) {
                    rows.took(at(head));
                    head += 1;
                } else {
                    head += rng.between(1, alike as u64) as usize;
                }
            }
            assert_eq!(rows.look(at(100), 7), (7, false));
            rows.add(at(103), 1);
            assert_eq!((rows.look(at(100), 7), rows.look(at(103), 7)), ((3, false), (1, true)));
            rows.took(at(103));
            assert!(!rows.look(at(103), 7).1, "it has its key no more");
        }
    }
}
