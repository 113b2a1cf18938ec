//! Opening a pool for deletes alone, if the host has no space for the first checkpoint.
//!
//! An opening after a crash has pages of metadata to write, those that the journal has changed. If neither the pages
//! that the pool keeps free nor any free unit has space on the host, that checkpoint cannot be written. But the blocks
//! of the journal were written when the pool was made, and a delete is one record. So the opening continues where the
//! crash ended, in the same incarnation, as if the process had not stopped: it appends deletes to the journal, and
//! accepts no other change. The units that a delete frees are punched, which gives the host space back. As soon as the
//! space suffices, the checkpoint is written and the pool accepts all changes.
//!
//! The same is done if a damaged map leaves no page for the checkpoint, or rules one out
//! ([`quarantine`](crate::state::quarantine)): deletes remove that cause too.
//!
//! Owns the way into [`Phase::DeletesOnly`] and out of it. Does not own the search for space
//! ([`stock`](crate::engine::stock)), nor what each operation does in that phase.
//!
//! - C1: before the first checkpoint only the journal is written, and the superblocks of a closed pool, to record that
//!   it is open again. Only journal blocks that no recovery needs are written: the first one behind the last commit,
//!   and those of a torn commit.
//! - C2: the blocks of a torn commit are blanked, durably, before another commit takes its number. Otherwise the last
//!   blocks of the torn commit would follow the new one, and be replayed as a commit of their own.
//! - C3: a delete begins only when the journal block for its record has space, and is blank or contains what could not
//!   be written (C5). The block is blanked while no commit is under way: a flush by any thread commits deletes that are
//!   not durable yet, into this very block.
//! - C4: free units are punched only after a flush has made durable that they are free (H1 of
//!   [`stock`](crate::engine::stock)), and while nobody else can take them: data and metadata take none in this phase.
//! - C5: a journal block whose write failed is written again, before any other: a block behind a missing one would be
//!   read as proof that records are lost. If the failed write reached the device, its records are in the next write
//!   too, because deletes are not undone, and all waiting records fit one block.
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

/// Most units per punch.
const MOST_AT_ONCE: u64 = 1 << 14;
/// Most deletes that wait for the journal to be writable again: they fit one block (C5).
const MOST_WAITING: usize = 256;
/// The operation, as error messages name it.
const DELETING: &str = "deleting a volume";

impl PoolInner {
    /// Returns true if the host certainly has space for the first checkpoint. Punches free units if that is needed.
    /// Called before anybody else has the pool, or in [`Phase::DeletesOnly`]; all that was read is durable (H1).
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
    /// units were written as a whole, but a copy of the pool file may have holes in place of blank pages. Pages without
    /// space stay out of use. Returns true if there were any.
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

    /// Called before anything else is written: makes a checkpoint of the recovered state, in a new incarnation. The
    /// journal blocks of the previous opening become void with the superblock of this checkpoint and not earlier: a
    /// superblock with a list of losses, which may be written before (L4 of [`loss`](crate::engine::loss)), still needs
    /// them.
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
        // A delete needs a free block in the journal. A pool with a damaged map is opened even without one, so that it
        // can be read.
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

    /// Writes both superblocks without the mark that the pool was closed. The journal of a closed pool is not replayed,
    /// so this comes before a delete is appended. After a crash before the second superblock is durable, the pool opens
    /// at its checkpoint with an empty journal.
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
            // A commit may have taken the block since: then blank the next one.
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
        // If it fails, the next commit makes the checkpoint again.
        self.begin_incarnation().is_ok()
    }

    /// The error for an operation that a pool in [`Phase::DeletesOnly`] refuses or cannot complete.
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

    /// Gives all free units back to the host (C4), even in a pool that is not set to discard: without space on the host
    /// the pool could not even be opened.
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

    /// True if the first checkpoint of an opening writes nothing but superblocks.
    fn first_is_bare(&self) -> bool {
        let sums = self.sums.as_ref().map_or(0, Regions::pages_due);
        let nothing_kept = self.kept.rewrite.is_none();
        nothing_kept && self.sb.clean
            || (nothing_kept && self.next_seq == self.sb.replay_seq && self.tree.dirty_nodes() + sums == 0)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
