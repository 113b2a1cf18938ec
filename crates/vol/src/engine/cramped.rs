//! Opening a pool for deletes alone, if the host has no space for the first checkpoint.
//!
//! After a crash, an opening has to write the pages of metadata that the journal has changed. This first checkpoint
//! cannot be written if the host has space for neither the pages that the pool keeps free nor any free unit. But the
//! blocks of the journal were written when the pool was made, and a delete is one record. So the opening continues
//! where the crash ended, in the same incarnation, as if the process had not stopped: it appends deletes to the
//! journal, and accepts no other change. The units that a delete frees are punched, which returns their space to the
//! host. As soon as the space suffices, the checkpoint is written and the pool accepts all changes.
//!
//! The same is done if a damaged map leaves no page for the checkpoint, or makes a checkpoint impossible
//! ([`quarantine`](crate::state::quarantine)): deletes remove that cause too.
//!
//! Owns the change into [`Phase::DeletesOnly`] and out of it. Does not own the search for space
//! ([`stock`](crate::engine::stock)), nor the behaviour of each operation in that phase.
//!
//! - C1: before the first checkpoint, only journal blocks that no recovery needs are written: the first one behind the
//!   last commit, and the blocks of a torn commit. In a closed pool the superblocks are written too, to record that it
//!   is open again.
//! - C2: the blocks of a torn commit are blanked, durably, before another commit takes its number. Otherwise the last
//!   blocks of the torn commit would follow the new one, and be replayed as a commit of their own.
//! - C3: a delete begins only when the journal block for its record has space, and is blank or contains what could not
//!   be written (C5). The block is blanked while no commit is under way, because a flush by any thread may write
//!   deletes that are not durable yet into this very block.
//! - C4: free units are punched only after a flush has made durable that they are free (H1 of
//! - C5: a journal block whose write failed is written again before any other block: a block behind a missing one would
//!   prove to the next reader that records are lost. If the failed write reached the device, its records are in the
//!   next write too, because deletes are not undone, and all waiting records fit one block.
//!
//! Called by opening and by deletes.

use sheave_base::status::Status;
use sheave_base::sync::MutexGuard;

use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::BLOCK;
use crate::format::journal::{Commit, Ring};
use crate::format::page::second_address;
use crate::format::superblock::Superblock;
use crate::made_at;
use crate::state::State;
use crate::state::phase::{Event, Phase};
use crate::state::sums::regions::Regions;

/// Largest number of units per punch.
const MOST_AT_ONCE: u64 = 1 << 14;
/// Largest number of deletes that wait until the journal is writable again: they fit one block (C5).
const MOST_WAITING: usize = 256;
/// Name of the operation in error messages.
const DELETING: &str = "deleting a volume";

impl PoolInner {
    /// Returns true if the host certainly has space for the first checkpoint. Punches free units if that is needed.
    /// Called before anybody else uses the pool, or in [`Phase::DeletesOnly`]. Everything that was read is durable by
    /// then (H1).
    pub(crate) fn find_room(&self) -> Result<bool, Status> {
        if !self.lock().has_pages_for_first() {
            return Ok(false);
        }
        if !self.io.is_sparse() || self.lock().first_is_bare() {
            return Ok(true);
        }
        // The first round only tries the free pages, which may be enough. The second one punches first.
        let mut refused = false;
        for punch in [false, true] {
            if punch {
                self.punch_free()?;
                self.stock_for_first()?;
            }
            refused |= self.prove_pages()?;
            let state = self.lock();
            if state.tree.pages.stock() >= state.pages_due() {
                return Ok(true);
            }
        }
        // Record that the host is full again: the last page tried may have had space, which cleared that record, but
        // the pages together do not suffice.
        if refused {
            self.note_host(Status::NoSpc);
        }
        Ok(false)
    }

    /// Writes the free pages that the first checkpoint will take, to prove that the host has space for them. Their
    /// units were once written completely, but a copy of the pool file may have holes in place of blank pages. Pages
    /// without space are not used any more. Returns true if there were any.
    fn prove_pages(&self) -> Result<bool, Status> {
        let (mut good, mut refused, mut result) = (Vec::new(), false, Ok(()));
        let mut state = self.lock();
        while result.is_ok() {
            let wanted = state.pages_due().saturating_sub(good.len() as u64).min(state.tree.pages.stock());
            let State { tree, .. } = &mut *state;
            let Some(pages) = tree.pages.take(wanted, &mut tree.units).filter(|pages| !pages.is_empty()) else { break };
            let seconds = tree.pages.seconds_of(&pages);
            drop(state);
            let unit_bytes = self.map.geometry.unit_bytes();
            for (at, page) in pages.into_iter().enumerate() {
                let second = seconds.get(at).map(|unit| second_address(page, *unit, unit_bytes));
                let mut both = [Some(page), second].into_iter().flatten();
                match both.try_for_each(|at| self.write_new(at, &[0; BLOCK])) {
                    Err(Status::NoSpc) => refused = true,
                    written => {
                        good.push(page);
                        result = result.and(written);
                    }
                }
            }
            state = self.lock();
        }
        let State { tree, .. } = &mut *state;
        tree.pages.put(&good, &mut tree.units);
        result.map(|()| refused)
    }

    /// Makes a checkpoint of the recovered state, in a new incarnation. Called before almost anything else is written.
    /// The superblock of this checkpoint makes the journal blocks of the previous opening void, and nothing earlier may
    /// do so: a superblock with a list of losses, which may be written before (L4 of [`loss`](crate::engine::loss)),
    /// still needs them.
    pub(crate) fn begin_incarnation(&self) -> Result<(), Status> {
        let mut state = self.lock();
        state.incarnation = state.sb.incarnation + 1;
        state.owner = made_at::random(state.incarnation)?;
        state.next.require();
        drop(state);
        self.commit()
    }

    /// Opens the pool for deletes alone. `highest_seq` is the highest number that a block of a torn commit may have.
    pub(crate) fn begin_deletes_only(&self, highest_seq: u64) -> Result<(), Status> {
        let mut state = self.lock();
        let (ring, first) = (Ring::of(&state.sb), state.next_seq);
        let end = (state.sb.replay_seq + u64::from(ring.blocks)).min(highest_seq.max(first) + 1);
        // A delete needs a free block in the journal. A pool with a damaged map is opened even without a free block, so
        // that it can be read.
        if end <= first && state.quarantine.is_none() {
            return Err(Status::NoSpc);
        }
        state.phase = state.phase.after(Event::NoRoom);
        let closed = state.sb.clean;
        drop(state);
        if closed {
            self.say_open()?;
        }
        // C2. In ascending order: without the first block none of the others is replayed.
        (first..end).try_for_each(|seq| self.io.write(ring.address(seq), &[0; BLOCK]))?;
        self.flush()
    }

    /// Writes both superblocks without the flag that the pool is closed. The journal of a closed pool is not replayed,
    /// so this precedes the first delete. If a crash comes before the second superblock is durable, the pool opens at
    /// its checkpoint with an empty journal.
    fn say_open(&self) -> Result<(), Status> {
        let sb = Superblock { clean: false, ..self.lock().sb.twin() };
        let twin = sb.twin();
        for sb in [&sb, &twin] {
            let mut block = [0; BLOCK];
            let at = sb.encode(&mut block);
            self.io.write(at, &block)?;
            self.flush()?;
        }
        self.lock().sb = twin;
        Ok(())
    }

    /// Returns the lock when a delete may begin (C3).
    pub(crate) fn begin_delete(&self) -> Result<MutexGuard<'_, State>, PoolError> {
        loop {
            if self.read_only || self.lock().phase != Phase::DeletesOnly {
                self.check_writable(DELETING)?;
                return Ok(self.lock());
            }
            let blank = self.between_commits(|| self.blank_next())?;
            let state = self.lock();
            // A commit may have taken the block in the meantime: then blank the next one.
            if state.next_seq == blank {
                return Ok(state);
            }
        }
    }

    /// Blanks the journal block in which the next commit will begin, and returns its number. Called while no commit is
    /// under way.
    fn blank_next(&self) -> Result<u64, PoolError> {
        let state = self.lock();
        let (ring, seq) = (Ring::of(&state.sb), state.next_seq);
        let free = ring.free(seq, state.sb.replay_seq);
        let waiting = state.pending.len();
        drop(state);
        if waiting >= MOST_WAITING {
            return Err(self.failed(DELETING, self.device.name(), Status::IoErr));
        }
        if free == 0 {
            return Err(self.deletes_only(format!("{DELETING}: the journal has no block left for it")));
        }
        let blanked = self.io.write(ring.address(seq), &[0; BLOCK]);
        blanked.map_err(|status| self.failed(DELETING, self.device.name(), status))?;
        Ok(seq)
    }

    /// Called after a delete. If the host has space now, the pool takes all changes again. Returns true if that just
    /// happened.
    pub(crate) fn leave_deletes_only(&self) -> bool {
        let _one = self.structural();
        if self.lock().phase != Phase::DeletesOnly {
            return false;
        }
        self.let_go();
        // An error comes from the device: the next write or flush returns it too.
        if !matches!(self.find_room(), Ok(true)) {
            return false;
        }
        let mut state = self.lock();
        state.phase = state.phase.after(Event::Room);
        drop(state);
        // If this fails, the next commit makes the checkpoint again.
        self.begin_incarnation().is_ok()
    }

    /// Returns the error for an operation that a pool in [`Phase::DeletesOnly`] refuses or cannot complete.
    pub(crate) fn deletes_only(&self, what: String) -> PoolError {
        let state = self.lock();
        let damaged = state.table.first_damaged().map(|(vol, damage)| (vol.name.clone(), damage.clone()));
        drop(state);
        match damaged {
            Some((volume, damage)) => PoolError::DamagedMap { what, volume, damage },
            None if self.is_host_full(Status::NoSpc) => self.host_is_full(what),
            None => PoolError::Full { what },
        }
    }

    /// Returns the space of all free units to the host (C4), even in a pool that is not set to discard. Without space
    /// on the host the pool could not even be opened.
    fn punch_free(&self) -> Result<(), Status> {
        if !self.takes_back() {
            return Ok(());
        }
        let shift = self.map.geometry.unit_shift;
        let mut from = 0;
        loop {
            let state = self.lock();
            let units = &state.tree.units;
            let Some(first) = units.next_free(from) else { return Ok(()) };
            let mut end = first + 1;
            while end - first < MOST_AT_ONCE && units.next_free(end) == Some(end) {
                end += 1;
            }
            drop(state);
            self.io.discard(first << shift, (end - first) << shift)?;
            from = end;
        }
    }
}

impl State {
    /// Called when a commit whose first block is `first` could not be written: the next commit reuses that number (C5).
    pub(crate) fn number_again(&mut self, first: u64, commit: &Commit) {
        if self.phase == Phase::DeletesOnly && commit.blocks() == 1 {
            self.next_seq = first;
        }
    }

    /// Returns true if the first checkpoint of an opening writes nothing but superblocks.
    fn first_is_bare(&self) -> bool {
        let sums = self.sums.as_ref().map_or(0, Regions::pages_due);
        let nothing_kept = self.kept.rewrite.is_none();
        nothing_kept && self.sb.clean
            || (nothing_kept && self.next_seq == self.sb.replay_seq && self.tree.dirty_nodes() + sums == 0)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::{Duration, Instant};

    use sheave_base::status::Status;

    use crate::device::block_io::BlockIo;
    use crate::engine::stock::tests::Rig;
    use crate::format::JOURNAL_START;
    use crate::format::journal::Ring;
    use crate::{CheckOptions, Checksum, OpenOptions, Pool, PoolError, check_device};

    /// Returns a pool that crashed with changes of volume `kept` only in the journal, on a host without space for a
    /// page.
    fn cut_off(checksum: Checksum, changes: u64) -> Rig {
        let rig = Rig::new(60 << 20, checksum);
        let pool = rig.open().unwrap();
        let [kept, gone] = ["kept", "gone"].map(|name| pool.create_volume(name, 1 << 40).unwrap());
        (0..8).for_each(|unit| rig.write(&gone, unit, 5).unwrap());
        kept.pool().checkpoint().unwrap();
        for at in 0..changes {
            rig.write(&kept, at << 14, 7).unwrap();
            pool.sync().unwrap();
        }
        // Only used pages and data have space, as in a copy of the pool file that leaves out blocks of zeroes.
        let used = in_use(&pool);
        drop((kept, gone, pool));
        fill_host(&rig, &used);
        rig
    }

    /// Takes the space of all blocks that are not in `used`, and leaves no room on the host for others.
    fn fill_host(rig: &Rig, used: &std::collections::HashSet<u64>) {
        let mut host = rig.host.lock().unwrap();
        host.written.retain(|block| used.contains(block));
        host.room = 0;
    }

    /// Returns the blocks of the pool with content: data, and metadata that is not blank.
    fn in_use(pool: &Pool) -> std::collections::HashSet<u64> {
        let inner = &pool.inner;
        let units = inner.geometry.first_unit..inner.lock().tree.units.counts().total;
        let blank = |block: u64| {
            let mut bytes = [0; 4096];
            inner.io.read(block << 12, &mut bytes).unwrap();
            bytes == [0; 4096]
        };
        let free = |unit: u64| inner.lock().tree.units.next_free(unit) == Some(unit);
        let blocks = units.filter(|unit| !free(*unit)).flat_map(|unit| (unit << 4)..(unit + 1) << 4);
        let journal = 0..2 + u64::from(inner.lock().sb.journal_blocks);
        blocks.filter(|block| !blank(*block)).chain(journal).collect()
    }

    fn is_clean(rig: &Rig) {
        let report = check_device(&rig.device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }

    #[test]
    fn a_delete_needs_no_space_and_gives_it_back() {
        for checksum in [Checksum::None, Checksum::Crc32c] {
            let rig = cut_off(checksum, 5);
            for crash in [true, false] {
                let pool = rig.open().unwrap_or_else(|error| panic!("{checksum:?}: {error}"));
                assert!(pool.info().deletes_only && pool.info().host_full, "{:?}", pool.info());
                let kept = pool.open_volume("kept").unwrap();
                (0..5).for_each(|at| assert_eq!(rig.read(&kept, at << 14), 7));
                assert!(rig.write(&kept, 0, 8).is_err(), "it is read");
                let refused = [
                    pool.create_volume("new", 4096).map(drop),
                    pool.snapshot("kept", "s"),
                    pool.rename("kept", "other"),
                    pool.resize("kept", 1 << 20),
                    pool.set_discard(true),
                ];
                for error in refused.map(Result::unwrap_err) {
                    let words = error.to_string();
                    assert!(matches!(error, PoolError::HostFull { .. }) && words.contains("deletes only"), "{words}");
                }
                pool.sync().unwrap();
                drop(kept);
                if crash {
                    drop(pool);
                } else {
                    pool.close().unwrap();
                }
                is_clean(&rig);
            }
            let pool = rig.open().unwrap();
            pool.delete("gone").unwrap();
            // The space of the volume is enough: the pool takes all changes again.
            let info = pool.info();
            assert!(!info.deletes_only && info.volumes == 1, "{info:?}");
            let kept = pool.open_volume("kept").unwrap();
            rig.write(&kept, 0, 8).unwrap();
            pool.sync().unwrap();
            drop((kept, pool));
            is_clean(&rig);
            let pool = rig.open().unwrap();
            let kept = pool.open_volume("kept").unwrap();
            assert_eq!((rig.read(&kept, 0), rig.read(&kept, 1 << 14)), (8, 7));
            drop(kept);
            pool.close().unwrap();
            is_clean(&rig);
        }
    }

    /// Returns a pool that crashed as in [`cut_off`], with six more volumes, which are empty.
    fn with_empty_volumes() -> Rig {
        let rig = Rig::new(60 << 20, Checksum::None);
        let pool = rig.open().unwrap();
        let kept = pool.create_volume("kept", 1 << 40).unwrap();
        (0..6).for_each(|number| drop(pool.create_volume(&format!("v{number}"), 1 << 20).unwrap()));
        kept.pool().checkpoint().unwrap();
        (0..5).for_each(|at| rig.write(&kept, at << 14, 7).unwrap());
        pool.sync().unwrap();
        let used = in_use(&pool);
        drop((kept, pool));
        fill_host(&rig, &used);
        rig
    }

    /// C5: the write of a delete's block fails, with the block on the device or not. The next write goes to the same
    /// block.
    #[test]
    fn a_delete_whose_block_could_not_be_written_is_written_there_again() {
        for is_done in [false, true] {
            let rig = with_empty_volumes();
            let pool = rig.open().unwrap();
            let state = pool.inner.lock();
            let (seq, ring) = (state.next_seq, Ring::of(&state.sb));
            drop(state);
            // The blanking of the block succeeds.
            rig.host.lock().unwrap().fails = Some((ring.address(seq) >> 12, 1, is_done));
            pool.delete("v0").unwrap();
            assert_eq!(pool.inner.lock().next_seq, seq + 1);
            assert_eq!(rig.host.lock().unwrap().fails, None, "it has failed once");
            drop(pool);
            is_clean(&rig);
            let pool = rig.open().unwrap_or_else(|error| panic!("it opens again: {error}"));
            assert_eq!(pool.info().volumes, 6);
            pool.delete("v1").unwrap();
            drop(pool);
            assert_eq!(rig.open().unwrap().info().volumes, 5);
            is_clean(&rig);
        }
    }

    /// Deletes that free no space are durable too, one after the other.
    #[test]
    fn deletes_are_durable_one_by_one() {
        let rig = with_empty_volumes();
        for number in 0..6 {
            let pool = rig.open().unwrap();
            assert!(pool.info().deletes_only && pool.info().volumes == 7 - number, "{number}: {:?}", pool.info());
            pool.delete(&format!("v{number}")).unwrap();
            assert!(pool.info().deletes_only, "it had nothing");
            drop(pool);
            is_clean(&rig);
        }
        // The host has space again: all changes are taken.
        rig.set_room(1 << 20);
        let pool = rig.open().unwrap();
        assert!(!pool.info().deletes_only && pool.info().volumes == 1);
        let kept = pool.open_volume("kept").unwrap();
        (0..5).for_each(|at| assert_eq!(rig.read(&kept, at << 14), 7));
    }

    /// C2: the rest of a torn commit is not replayed after a delete.
    #[test]
    fn the_end_of_a_torn_commit_is_not_replayed_behind_a_delete() {
        let rig = Rig::new(60 << 20, Checksum::None);
        let pool = rig.open().unwrap();
        let kept = pool.create_volume("kept", 1 << 40).unwrap();
        drop(pool.create_volume("gone", 1 << 20).unwrap());
        kept.pool().checkpoint().unwrap();
        rig.write(&kept, 0, 7).unwrap();
        pool.sync().unwrap();
        let first = kept.pool().lock().next_seq;
        let blocks = u64::from(kept.pool().lock().sb.journal_blocks);
        // A commit of several blocks, of which the first never reaches the device.
        let place = |seq: u64| JOURNAL_START + seq % blocks * 4096;
        let mut old = [0; 4096];
        pool.inner.io.read(place(first), &mut old).unwrap();
        (1..400).for_each(|at| rig.write(&kept, at * 3, 9).unwrap());
        pool.sync().unwrap();
        let last = kept.pool().lock().next_seq;
        assert!(last - first > 2, "{first} to {last}");
        pool.inner.io.write(place(first), &old).unwrap();
        let used = in_use(&pool);
        drop((kept, pool));
        fill_host(&rig, &used);
        // The units of the torn commit are free but have space; take it away, as if the host had used it for others.
        let pool = Pool::open(&rig.device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        let used = in_use(&pool);
        drop(pool);
        rig.host.lock().unwrap().written.retain(|block| used.contains(block));
        let pool = rig.open().unwrap();
        assert!(pool.info().deletes_only, "{:?}", pool.info());
        for seq in first..last {
            let mut left = [1; 4096];
            pool.inner.io.read(place(seq), &mut left).unwrap();
            assert!(left == [0; 4096], "block {seq} of {first} to {last} is blank before a delete takes its number");
        }
        pool.delete("gone").unwrap();
        drop(pool);
        let pool = Pool::open(&rig.device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        let kept = pool.open_volume("kept").unwrap();
        assert_eq!(pool.info().volumes, 1);
        assert_eq!((rig.read(&kept, 0), rig.read(&kept, 399 * 3)), (7, 0), "the torn commit is no commit");
        drop(kept);
        is_clean(&rig);
    }

    /// C3: a delete whose journal block has no space is refused before it changes anything.
    #[test]
    fn a_delete_that_finds_no_block_of_the_journal_is_refused_before_it_begins() {
        let rig = with_empty_volumes();
        let pool = Pool::open(&rig.device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        let state = pool.inner.lock();
        let (next, blocks) = (state.next_seq, u64::from(state.sb.journal_blocks));
        drop(state);
        drop(pool);
        // The next block has space, the blocks behind it have none.
        let journal = JOURNAL_START / 4096..JOURNAL_START / 4096 + blocks;
        let used: Vec<u64> = (0..=next).map(|seq| journal.start + seq % blocks).collect();
        rig.host.lock().unwrap().written.retain(|block| !journal.contains(block) || used.contains(block));
        let pool = rig.open().unwrap();
        assert!(pool.info().deletes_only && next + 1 < blocks, "{:?}", pool.info());
        pool.delete("v0").unwrap();
        let error = pool.delete("v1").unwrap_err();
        assert!(matches!(error, PoolError::HostFull { .. }), "{error}");
        drop(pool.open_volume("v1").unwrap());
        assert_eq!(pool.info().volumes, 6, "it did not begin");
        rig.set_room(1 << 20);
        pool.delete("v1").unwrap();
        assert_eq!((pool.info().volumes, pool.info().deletes_only), (5, false));
        drop(pool);
        is_clean(&rig);
    }

    /// Free units whose space the first search of an opening misses are punched, so that the host has space for others.
    #[test]
    fn free_units_are_punched_for_the_first_checkpoint() {
        let rig = cut_off(Checksum::None, 5);
        // The last unit of the pool: 16 blocks.
        let end = rig.device.size_bytes() >> 12;
        let mut host = rig.host.lock().unwrap();
        host.written.extend(end - 16..end);
        drop(host);
        let pool = rig.open().unwrap();
        assert!(!pool.info().deletes_only, "{:?}", pool.info());
        pool.close().unwrap();
        is_clean(&rig);
    }

    /// A pool has space again, but its first checkpoint cannot be written, and the flush after it fails. The list of
    /// losses then goes into a superblock of the former opening, whose journal is still to be replayed.
    #[test]
    fn a_first_checkpoint_that_fails_leaves_the_journal_to_be_replayed() {
        for slot in [0, 1] {
            let rig = cut_off(Checksum::None, 5);
            let pool = rig.open().unwrap();
            assert!(pool.info().deletes_only, "{:?}", pool.info());
            rig.host.lock().unwrap().fails = Some((slot, 0, false));
            pool.delete("gone").unwrap();
            assert!(!pool.info().deletes_only, "there is room");
            assert_eq!(rig.host.lock().unwrap().fails, None, "a superblock of the first checkpoint was not written");
            pool.check_owner().unwrap();
            let kept = pool.open_volume("kept").unwrap();
            rig.write(&kept, 0, 8).unwrap();
            pool.inner.alarm.ring(Status::IoErr);
            assert!(pool.sync().is_err(), "the flush has failed");
            drop((kept, pool));
            is_clean(&rig);
            let pool = rig.open().unwrap();
            assert_eq!(pool.info().lost, ["kept"], "slot {slot}");
            assert_eq!(pool.info().volumes, 1, "slot {slot}: the delete was durable");
            let kept = pool.open_volume("kept").unwrap();
            (1..5).for_each(|at| assert_eq!(rig.read(&kept, at << 14), 7, "slot {slot}: commit {at} was durable"));
        }
    }

    /// Treatment of writes to one block.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    enum Act {
        #[default]
        Pass,
        /// Fails writes that do not blank the block.
        Fail,
        /// Lets the next write that blanks the block wait.
        Hold,
        /// A write waits.
        Held,
    }

    #[derive(Default)]
    struct Door {
        /// Address of the block, and its treatment.
        act: Mutex<(u64, Act)>,
        changed: Condvar,
    }

    impl Door {
        fn set(&self, act: (u64, Act)) {
            *self.act.lock().unwrap() = act;
            self.changed.notify_all();
        }

        fn wait_while(&self, act: Act) {
            drop(self.changed.wait_while(self.act.lock().unwrap(), |now| now.1 == act).unwrap());
        }
    }

    /// A disk that treats writes to one block as `Door::act` says.
    struct Gate {
        io: Box<dyn BlockIo>,
        door: Arc<Door>,
    }

    impl BlockIo for Gate {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            self.io.read(at, buf)
        }

        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
            let (block, act) = *self.door.act.lock().unwrap();
            match (act, buf.iter().all(|byte| *byte == 0)) {
                (Act::Fail, false) if at == block => return Err(Status::IoErr),
                (Act::Hold, true) if at == block => {
                    self.door.set((block, Act::Held));
                    self.door.wait_while(Act::Held);
                }
                _ => {}
            }
            self.io.write(at, buf)
        }

        fn flush(&self) -> Result<(), Status> {
            self.io.flush()
        }

        fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
            self.io.discard(at, len)
        }

        fn size_bytes(&self) -> u64 {
            self.io.size_bytes()
        }

        fn is_sparse(&self) -> bool {
            self.io.is_sparse()
        }
    }

    /// C3: a flush makes an earlier delete durable in the very block that the next delete is about to blank.
    #[test]
    fn a_delete_blanks_no_block_that_a_flush_has_just_written() {
        let rig = with_empty_volumes();
        let door = Arc::new(Door::default());
        let pool = rig.open_on(|io| Box::new(Gate { io, door: Arc::clone(&door) }));
        let state = pool.inner.lock();
        let block = Ring::of(&state.sb).address(state.next_seq);
        drop(state);
        door.set((block, Act::Fail));
        let error = pool.delete("v0").unwrap_err();
        assert!(matches!(error, PoolError::NotDurable { .. }), "{error}");
        door.set((block, Act::Hold));
        std::thread::scope(|scope| {
            let deleted = scope.spawn(|| pool.delete("v1"));
            door.wait_while(Act::Hold);
            let synced = scope.spawn(|| pool.sync());
            // The sync waits for the delete, or ends by itself.
            let until = Instant::now() + Duration::from_millis(500);
            while !synced.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            door.set((block, Act::Pass));
            deleted.join().unwrap().unwrap();
            synced.join().unwrap().unwrap();
        });
        drop(pool);
        is_clean(&rig);
        assert_eq!(rig.open().unwrap().info().volumes, 5);
    }
}
