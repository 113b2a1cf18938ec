//! Opening where the file system below has no space left for the first checkpoint: the pool is read, and takes deletes.
//!
//! An opening after a crash has pages of metadata to write that the journal has changed. Where neither the pages that
//! the pool keeps nor any free unit has space on the host, the checkpoint cannot be written. But the blocks of the
//! journal were written when the pool was made, and a delete is one record. So the opening goes on where the crash cut
//! off, in the same incarnation, as if the process had never ended: deletes are appended to the journal, and nothing
//! else is taken. What a delete frees is punched, which gives the host space back, and as soon as that is enough the
//! checkpoint is written and the pool takes everything.
//!
//! The same is done where a damaged map leaves no page for the checkpoint, or must not be in it
//! ([`quarantine`](crate::state::quarantine)): deletes remove that cause too.
//!
//! Owns the way into [`Phase::DeletesOnly`] and out of it. Does not own the search for space
//! ([`stock`](crate::engine::stock)), nor what each operation does in that phase.
//!
//! - C1: nothing is written before the first checkpoint but the journal, and the superblocks of a pool that was closed,
//!   which say that it is open again. Of the journal only blocks that no recovery needs: the first behind the last
//!   commit, and those of a commit that was torn.
//! - C2: the blocks of a torn commit are blank, durably, before a commit takes its number: else its last blocks would
//!   follow the new one, and be replayed as a commit of their own.
//! - C3: a delete begins only when the block of the journal that it will be in has space, and is blank or has what
//!   could not be written (C5). It blanks that while no commit is under way: a flush of anybody commits deletes that
//!   are not durable yet, into this very block.
//! - C4: free units are punched only where a flush has made all durable that says so (H1 of
//!   [`stock`](crate::engine::stock)), and while nobody else can take them: data and metadata take none in this phase.
//! - C5: a block of the journal that could not be written is written again, before any other: a block behind one that
//!   is not there would say that records are lost. What the device may have of it are records that the next write has
//!   too, for deletes are not undone, and all that wait fit one block.
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

/// Units that are punched in one go, at most.
const MOST_AT_ONCE: u64 = 1 << 14;
/// Deletes that may wait for the journal to be writable again: they fit one block (C5).
const MOST_WAITING: usize = 256;
/// What errors say was to be done.
const DELETING: &str = "deleting a volume";

impl PoolInner {
    /// Whether the first checkpoint has space for certain. Gives free units back to the host if that is what it takes.
    /// Before anybody else has the pool, or in [`Phase::DeletesOnly`]; all that was read is durable (H1).
    pub(crate) fn find_room(&self) -> Result<bool, Status> {
        if !self.lock().has_pages_for_first() {
            return Ok(false);
        }
        if !self.io.is_sparse() || self.lock().first_is_bare() {
            return Ok(true);
        }
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
        // The last page that was tried may have had space, and that is not why there is no room.
        if refused {
            self.note_host(Status::NoSpc);
        }
        Ok(false)
    }

    /// Writes the free pages that the first checkpoint will take. Units of metadata have been written as a whole, but a
    /// copy of the file may have holes where they were blank. Pages that have no space stay out of use; whether there
    /// were any.
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

    /// Before anything else is written: what was recovered becomes a checkpoint, and journal blocks of the opening
    /// before count no more.
    /// Only a superblock of that checkpoint says so: one that the list of losses goes into before it is durable
    /// (L4 of [`loss`](crate::engine::loss)) needs these blocks.
    pub(crate) fn begin_incarnation(&self) -> Result<(), Status> {
        let mut state = self.lock();
        state.incarnation = state.sb.incarnation + 1;
        state.owner = made_at::random(state.incarnation)?;
        state.next.require();
        drop(state);
        self.commit()
    }

    /// The pool is open for deletes alone; blocks of a torn commit have numbers up to `highest_seq`.
    pub(crate) fn begin_deletes_only(&self, highest_seq: u64) -> Result<(), Status> {
        let mut state = self.lock();
        let (ring, first) = (Ring::of(&state.sb), state.next_seq);
        let end = (state.sb.replay_seq + u64::from(ring.blocks)).min(highest_seq.max(first) + 1);
        // No block of the journal is left for a delete. A pool with a damaged map can be read even so.
        if end <= first && state.quarantine.is_none() {
            return Err(Status::NoSpc);
        }
        state.phase = state.phase.after(Event::NoRoom);
        let closed = state.sb.clean;
        drop(state);
        if closed {
            self.say_open()?;
        }
        // C2. From the first on: without it none of the others is replayed.
        (first..end).try_for_each(|seq| self.io.write(ring.address(seq), &[0; BLOCK]))?;
        self.flush()
    }

    /// A pool that was closed has nothing in its journal that counts: before a delete is appended, both superblocks say
    /// that it is open again. Until the second does, the first one's content and an empty journal are what there is.
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

    /// The lock, when a delete may begin (C3).
    pub(crate) fn begin_delete(&self) -> Result<MutexGuard<'_, State>, PoolError> {
        loop {
            if self.read_only || self.lock().phase != Phase::DeletesOnly {
                self.check_writable(DELETING)?;
                return Ok(self.lock());
            }
            let blank = self.between_commits(|| self.blank_next())?;
            let state = self.lock();
            // A commit that began behind this may have taken the block.
            if state.next_seq == blank {
                return Ok(state);
            }
        }
    }

    /// Blanks the block of the journal that the next commit will begin with; its number. While no commit is under way.
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

    /// After a delete: the pool takes everything again, if the host has space now. Whether it just became so.
    pub(crate) fn leave_deletes_only(&self) -> bool {
        let _one = self.structural();
        if self.lock().phase != Phase::DeletesOnly {
            return false;
        }
        self.let_go();
        // An error is one of the device, and the next write or flush says it.
        if !matches!(self.find_room(), Ok(true)) {
            return false;
        }
        let mut state = self.lock();
        state.phase = state.phase.after(Event::Room);
        drop(state);
        // If it fails, it waits for the next commit.
        self.begin_incarnation().is_ok()
    }

    /// The error of what a pool that takes deletes alone does not do, or cannot.
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

    /// Gives all free units back to the host (C4), whether the pool is set to discard or not: without space it cannot
    /// even be opened.
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
    /// A commit that begins with this number could not be written: the next one takes the number again (C5).
    pub(crate) fn number_again(&mut self, first: u64, commit: &Commit) {
        if self.phase == Phase::DeletesOnly && commit.blocks() == 1 {
            self.next_seq = first;
        }
    }

    /// Whether the first checkpoint of an opening has nothing to write but superblocks.
    fn first_is_bare(&self) -> bool {
        let sums = self.sums.as_ref().map_or(0, Regions::pages_due);
        let nothing_kept = self.kept.rewrite.is_none();
        nothing_kept && self.sb.clean
            || (nothing_kept && self.next_seq == self.sb.replay_seq && self.tree.dirty_nodes() + sums == 0)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
