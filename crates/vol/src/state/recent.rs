//! Changes that no commit has made durable yet, written to memory that outlives the process.
//!
//! Owns the [file of recent changes](crate::format::recent) of an open pool. A write is acknowledged after its change
//! is there, so that it survives the death of the process (V35). Each change is a record of the journal, in the order
//! in which the changes were made, so recovery replays them after the journal. Does not own the file's place.
//!
//! - C1: a change is appended under the lock under which it is made, after the data that it names was written.
//! - C2: commits take the changes at one moment ([`Recent::take`]). What is appended from then on is not in the commit,
//!   and is kept until a later commit is durable.
//! - C3: changes that are acknowledged without a commit are here, and those that writes build on before they are
//!   durable: rollbacks, and changes of sizes. If such a change is undone, changes are missing (C4). Other changes of
//!   the table are durable before anything builds on them.
//! - C4: the ring is never overwritten: if it is full, changes are missing until a commit has taken everything.
//!   Operations make a commit when it is half full ([`State::is_overdue`](crate::state::State::is_overdue)), so that
//!   does not happen while commits succeed.
//! - C5: a commit that fails may be on the device all the same. Its mark stays beside that of the last good one, until
//!   a checkpoint has made both void.
//!
//! No call here makes a system call or waits.

use sheave_base::lasting::Lasting;
use sheave_base::sync::Arc;

use crate::device::recent::{Kept, Named};
use crate::format::recent::{self, HEAD, MAGIC, MARKS, MISSING, MOST_NUMBERS, Mark, RECORDS, encode, set_head};
use crate::format::record::Record;
use crate::format::superblock::Geometry;
use crate::state::State;

/// Count of numbers in the ring.
const RING: u64 = recent::RING as u64;

/// The last record, if it maps a unit: further blocks of that unit are added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    volume: u32,
    unit: u64,
    phys: u64,
    /// Index of its written bits.
    bits: usize,
}

/// The recent changes of an open pool.
#[derive(Debug)]
pub(crate) struct Recent {
    file: Arc<Lasting>,
    /// The file's name and lock; `None` for memory.
    named: Option<Named>,
    geometry: Geometry,
    /// Position behind the last record.
    head: u64,
    /// Position of the first record that may be needed.
    tail: u64,
    /// Position of the first record that the commit under way does not contain.
    taken: u64,
    /// Place of the mark of the last durable commit.
    place: usize,
    /// Place of the mark of the commit under way.
    next: usize,
    /// Place of the mark of a commit that has failed (C5).
    failed: Option<usize>,
    last: Option<Last>,
    keeps: Keeps,
}

/// The changes that are kept (C4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    All,
    /// Changes were missing when the commit under way began: the file is of use when that commit is durable.
    SinceCommit,
    /// Changes are missing (C4).
    Nothing,
}

impl Recent {
    /// Begins a file for the opening, whose state is durable.
    pub(crate) fn begin(kept: Kept, state: &State) -> Recent {
        let opening = kept.opening(&state.sb);
        let (file, named) = (kept.memory, kept.file);
        file.put(0, 0);
        opening.put(&file);
        file.put(HEAD, 0);
        file.put(MISSING, 0);
        [1, 2].into_iter().for_each(|place| Mark::clear(&file, place));
        Mark { generation: state.first_generation(), seq: state.durable_seq, position: 0 }.put(&file, 0);
        file.put(0, MAGIC);
        let geometry = state.sb.geometry();
        let (head, tail, taken, place, next) = (0, 0, 0, 0, 1);
        Recent { file, named, geometry, head, tail, taken, place, next, failed: None, last: None, keeps: Keeps::All }
    }

    /// Ends the file: nothing of it will be replayed.
    pub(crate) fn end(&self) {
        self.file.put(0, 0);
        self.named.iter().for_each(Named::remove);
    }

    /// Returns true if all changes of the present are here.
    pub(crate) fn is_complete(&self) -> bool {
        self.keeps == Keeps::All && !self.file.is_cut_off()
    }

    /// Returns the count of numbers that the written bits of a unit take.
    #[inline]
    pub(crate) fn words(&self) -> usize {
        self.geometry.entry_words
    }

    /// Returns true if a commit should make room.
    #[inline]
    pub(crate) fn is_half_full(&self) -> bool {
        self.head - self.tail > RING / 2
    }

    /// Makes room for a record of `count` numbers. Returns the index of its first number, or `None` if there is no
    /// room.
    #[inline]
    fn room(&mut self, count: usize) -> Option<usize> {
        if self.keeps == Keeps::Nothing {
            return None;
        }
        let left = RING - self.head % RING;
        let skipped = if left < count as u64 { left } else { 0 };
        if self.head + skipped + count as u64 - self.tail > RING {
            self.miss();
            return None;
        }
        if skipped > 0 {
            self.file.put(RECORDS + (self.head % RING) as usize, 0);
            self.head += skipped;
        }
        Some(RECORDS + (self.head % RING) as usize)
    }

    #[inline]
    fn publish(&mut self, count: usize) {
        self.head += count as u64;
        self.file.put(HEAD, self.head);
    }

    /// Appends a change, unless nothing builds on it before it is durable (C3).
    pub(crate) fn push(&mut self, record: &Record) {
        self.last = None;
        match record {
            Record::Set { .. } | Record::Run { .. } | Record::Resize { .. } => {}
            Record::Mark { .. } | Record::Intent { .. } | Record::Rollback { .. } => {}
            _ => return,
        }
        let mut numbers = [0; MOST_NUMBERS];
        let count = encode(&self.geometry, record, &mut numbers);
        let Some(at) = self.room(count) else { return };
        self.file.put_all(at, &numbers[..count]);
        self.publish(count);
    }

    /// Appends the present state of a unit that has space and at least one written block.
    #[inline]
    pub(crate) fn set(&mut self, volume: u32, unit: u64, phys: u64, written: &[u64]) {
        let words = self.geometry.entry_words;
        // The written bits of the last record are replaced by newer ones in one store if they are one number.
        if let Some(last) = self.last
            && (last.volume, last.unit, last.phys) == (volume, unit, phys)
            && words == 1
        {
            self.file.put(last.bits, written[0]);
            return;
        }
        let count = 3 + words;
        let Some(at) = self.room(count) else { return };
        match written {
            [bits] => self.file.put_all(at, &[set_head(volume, count), unit, phys, *bits]),
            _ => {
                self.file.put_all(at, &[set_head(volume, count), unit, phys]);
                self.file.put_all(at + 3, &written[..words]);
            }
        }
        self.publish(count);
        self.last = Some(Last { volume, unit, phys, bits: at + 3 });
    }

    /// Called when a commit takes all changes (C2).
    pub(crate) fn take(&mut self) {
        self.taken = self.head;
        self.last = None;
        if self.keeps == Keeps::Nothing {
            // Only the mark of this commit will be valid, because the records before it are incomplete.
            (0..MARKS.len()).for_each(|place| Mark::clear(&self.file, place));
            (self.tail, self.failed, self.keeps) = (self.head, None, Keeps::SinceCommit);
        }
    }

    /// Called before the commit that has taken the changes is written: tells by what it will be known.
    pub(crate) fn mark(&mut self, generation: u64, seq: u64) {
        let is_free = |place: &usize| *place != self.place && Some(*place) != self.failed;
        self.next = (0..MARKS.len()).find(is_free).unwrap_or(self.next);
        Mark { generation, seq, position: self.taken }.put(&self.file, self.next);
    }

    /// Called when that commit is durable.
    pub(crate) fn landed(&mut self) {
        if self.keeps == Keeps::Nothing {
            return;
        }
        self.failed.take().iter().for_each(|place| Mark::clear(&self.file, *place));
        (self.place, self.tail) = (self.next, self.taken);
        if self.keeps == Keeps::SinceCommit {
            self.keeps = Keeps::All;
            self.file.put(MISSING, 0);
        }
    }

    /// Called when that commit has failed (C5).
    pub(crate) fn failed(&mut self) {
        self.failed = Some(self.next);
    }

    /// Called when a change cannot be kept here, or was undone (C3, C4).
    #[cold]
    pub(crate) fn miss(&mut self) {
        self.file.put(MISSING, 1);
        (self.keeps, self.last) = (Keeps::Nothing, None);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use sheave_base::rng::Rng;

    use super::*;
    use crate::format::recent::{NUMBERS, read};
    use crate::options::with_recent_memory;
    use crate::{CreateOptions, OpenOptions, Pool};

    fn pool() -> (Pool, Arc<Lasting>) {
        let device = sheave_drivers::open_device("ram:size=32M").expect("a device");
        Pool::create(&device, &CreateOptions::default()).expect("made");
        let memory = Arc::new(Lasting::in_memory(NUMBERS).expect("memory"));
        let options = with_recent_memory(OpenOptions::default(), Some(memory.clone()));
        (Pool::open(&device, &options).expect("opened"), memory)
    }

    /// Returns the records that a recovery would replay.
    fn left(pool: &Pool, memory: &Arc<Lasting>) -> Vec<Record> {
        found(pool, memory, [0; 2]).expect("a mark is valid")
    }

    /// Returns the records that a recovery on this boot would replay; `None` if the file is of no use to it.
    fn found(pool: &Pool, memory: &Arc<Lasting>, boot: [u64; 2]) -> Option<Vec<Record>> {
        let state = pool.inner.lock();
        let opening = Kept { boot, ..Kept::in_memory(memory.clone()) }.opening(&state.sb);
        read(memory, &opening, &state.sb, state.durable_seq).expect("it is whole")
    }

    /// C2, C4, F1: records of all lengths go around the ring several times, while commits take and land at any moments.
    #[test]
    fn the_records_behind_the_last_commit_are_found_however_often_the_ring_has_gone_around() {
        let (pool, memory) = pool();
        let mut rng = Rng::new(7);
        let (mut kept, mut taken): (Vec<Record>, Option<usize>) = (Vec::new(), None);
        let mut around = 0;
        for round in 0..900_000u64 {
            let mut guard = pool.inner.lock();
            let (generation, seq) = (guard.first_generation(), guard.durable_seq);
            let recent = guard.recent.as_mut().expect("it is kept");
            if recent.is_half_full() || rng.below(40_000) == 0 {
                match taken.take() {
                    None => {
                        recent.take();
                        // The commit gets the number that the durable one has, so that this test needs no journal.
                        recent.mark(generation, seq);
                        taken = Some(kept.len());
                    }
                    Some(count) => {
                        recent.landed();
                        (0..3).filter(|place| *place != recent.place).for_each(|place| Mark::clear(&memory, place));
                        kept.drain(..count);
                        around = recent.head / RING;
                    }
                }
            }
            let record = match rng.below(8) {
                0 => Record::Run { volume: 1, unit: round, count: 1 + rng.below(255), phys: 0 },
                1 => Record::Intent { first: round, count: 1 },
                2 => Record::Resize { volume: 1 + rng.below(9) as u32, size: rng.below(1 << 40) },
                _ => Record::Set { volume: 3, unit: round, phys: 9 + rng.below(200), written: [1, 0, 0, 0] },
            };
            match &record {
                Record::Set { volume, unit, phys, written } => recent.set(*volume, *unit, *phys, &written[..1]),
                other => recent.push(other),
            }
            assert!(recent.is_complete(), "round {round}");
            kept.push(record);
            drop(guard);
            if round % 5_000 == 0 {
                assert!(left(&pool, &memory) == kept[taken.unwrap_or(0)..], "round {round}");
            }
        }
        assert!(around >= 3, "{around}");
        if let Some(count) = taken {
            let mut state = pool.inner.lock();
            state.recent.as_mut().expect("it is kept").landed();
            kept.drain(..count);
        }
        assert!(left(&pool, &memory) == kept, "{} records", kept.len());
    }

    /// Further blocks of a unit need no further record, unless a commit has taken the first one.
    #[test]
    fn one_record_has_all_blocks_of_a_unit_that_are_written_one_after_the_other() {
        let (pool, memory) = pool();
        let set = |phys, bits| Record::Set { volume: 1, unit: 5, phys, written: [bits, 0, 0, 0] };
        let keep = |phys: u64, bits: u64| {
            let mut state = pool.inner.lock();
            state.recent.as_mut().expect("it is kept").set(1, 5, phys, &[bits]);
        };
        keep(9, 1);
        keep(9, 3);
        assert_eq!(left(&pool, &memory), [set(9, 3)]);
        keep(10, 3);
        keep(10, 7);
        assert_eq!(left(&pool, &memory), [set(9, 3), set(10, 7)], "another unit of the pool");
        pool.inner.lock().recent.as_mut().expect("it is kept").take();
        keep(10, 15);
        assert_eq!(left(&pool, &memory), [set(9, 3), set(10, 7), set(10, 15)], "a commit has taken the record before");
    }

    /// C4: what has no room is missing, and nothing is replayed until a commit has taken everything.
    #[test]
    fn a_ring_that_is_full_says_so() {
        let (pool, memory) = pool();
        {
            let mut state = pool.inner.lock();
            let recent = state.recent.as_mut().expect("it is kept");
            (0..RING / 4 + 1).for_each(|unit| recent.set(1, unit, 9, &[1]));
            assert!(!recent.is_complete());
        }
        assert!(pool.info().no_recent.expect("a reason").contains("too much has changed"));
        assert_eq!(found(&pool, &memory, [0; 2]), None);
        pool.create_volume("v", 1 << 20).expect("a commit");
        assert_eq!((pool.info().no_recent, left(&pool, &memory)), (None, Vec::new()));
        assert_eq!(found(&pool, &memory, [1, 0]), None, "after another boot");
    }
}
