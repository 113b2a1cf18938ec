//! The owner number: an opening notices that another has opened the pool for writing since, and stops.
//!
//! Claims keep two programs from opening one pool. They fail where the bytes have two names that nobody can connect: a
//! loop device, a device mapper table, two paths to one disk of a network, a shared image. So each opening for writing
//! has a random number of 128 bits in its superblocks, and looks there again for as long as it writes. Owns that look,
//! and how an opening ends that has lost its pool. Does not own claims
//! ([`sheave_blk::claim`]), nor fencing, which only a device can do.
//!
//! - O1: no superblock is written, by a checkpoint or for a list of losses, before a look has found the pool to be this
//!   opening's.
//! - O2: no commit begins, no unit is given to a volume and none is discarded later than
//!   [`OpenOptions::owner_every`](crate::OpenOptions::owner_every) after the last look. Below that a look costs
//!   nothing.
//! - O3: an opening that has lost its pool writes nothing any more: it rings its alarm, as after a flush that failed,
//!   and unlike then writes no list.
//! - O4: a look that reads neither superblock is an I/O error of who asked for it, and the next one looks again.
//!
//! What cannot be kept away: overwrites of blocks that a volume has for itself are I/O of rings alone, in which nobody
//! looks. They go on until the next look of anybody.
//!
//! Called by commits, checkpoints, writes to new space, discards, and by
//! [`Pool::check_owner`](crate::Pool::check_owner).

use std::time::Instant;

use sheave_base::status::Status;

use crate::device::reader::read_again;
use crate::engine::inner::PoolInner;
use crate::format::superblock::{Superblock, choose};
use crate::format::{BLOCK, SUPERBLOCKS};
use crate::state::State;
use crate::state::phase::Event;
use crate::state::plan::{Plan, Reached};

/// What a look may find, besides the newest superblock.
struct Known {
    /// The opening and its number, as this one writes them, and as the one before has.
    ours: [(u64, [u8; 16]); 2],
    pool: [u8; 16],
    /// Generation that is on the device for certain, and the highest that this opening may have written.
    generations: (u64, u64),
}

impl PoolInner {
    /// Looks who owns the pool if nobody has looked for a while (O2).
    pub(crate) fn look_if_due(&self) -> Result<(), Status> {
        let mut state = self.lock();
        if !self.look_is_due(&state) {
            return Ok(());
        }
        // Before it reads: others go on meanwhile.
        state.looked = Instant::now();
        drop(state);
        self.look(None)
    }

    /// Whether nobody has looked for a while who owns the pool.
    pub(crate) fn look_is_due(&self, state: &State) -> bool {
        !self.read_only && state.looked.elapsed() > self.owner_every
    }

    /// Looks who owns the pool; `plan` is a checkpoint that may be on the device in part. Not under the pool's lock.
    ///
    /// # Errors
    ///
    /// `IoErr` when it is another: from then on the pool takes nothing. What reading says that fails (O4).
    pub(crate) fn look(&self, plan: Option<&Plan>) -> Result<(), Status> {
        let found = self.read_slots()?;
        let known = self.lock().known(plan);
        match stranger(&found, &known) {
            None => {
                self.lock().looked = Instant::now();
                Ok(())
            }
            Some(who) => {
                self.lose(who);
                Err(Status::IoErr)
            }
        }
    }

    /// Who else owns the pool, for who asks beside commits.
    pub(crate) fn look_beside(&self) -> Result<Option<String>, Status> {
        for last in [false, true] {
            let found = self.read_slots()?;
            let mut known = self.lock().known(None);
            // A commit may have written a superblock that it does not know to be there yet.
            known.generations.1 = u64::MAX;
            let who = stranger(&found, &known);
            // Or it has landed behind the reading: then what was read is old, and the next is not.
            if who.is_none() || last {
                return Ok(who.inspect(|who| self.lose(who.clone())));
            }
        }
        Ok(None)
    }

    /// Both superblocks. One that cannot be read is none: whoever opens the pool writes both.
    fn read_slots(&self) -> Result<[Option<Superblock>; 2], Status> {
        let mut bytes = [[0; BLOCK]; 2];
        let read = [0, 1].map(|slot| read_again(&*self.io, SUPERBLOCKS[slot], &mut bytes[slot]));
        if let [Err(status), Err(_)] = read {
            return Err(status);
        }
        let decode = |slot: usize| Superblock::decode(&bytes[slot], SUPERBLOCKS[slot], u64::MAX).ok();
        Ok([0, 1].map(|slot| read[slot].is_ok().then(|| decode(slot)).flatten()))
    }

    /// The pool is another's: nothing is written any more (O3).
    #[cold]
    fn lose(&self, who: String) {
        let mut state = self.lock();
        state.phase = state.phase.after(Event::OwnerLost);
        state.taken_by.get_or_insert(who);
        drop(state);
        self.alarm.ring(Status::Conflict);
        self.wake();
    }
}

impl State {
    fn known(&self, plan: Option<&Plan>) -> Known {
        let most = match plan.or(self.next.plan()) {
            Some(plan) if plan.reached != Reached::Pages => plan.sb.generation + 1,
            _ => self.sb.generation,
        };
        Known {
            ours: [(self.incarnation, self.owner_to_write()), (self.sb.incarnation, self.sb.owner)],
            pool: self.sb.pool,
            // While a list of losses is written no generation says anything.
            generations: (self.sb.generation, if self.phase.is_degraded() { u64::MAX } else { most }),
        }
    }

    /// The number as the next superblock has it: none in a pool that was not upgraded to have one.
    pub(crate) fn owner_to_write(&self) -> [u8; 16] {
        if self.numbered { self.owner } else { [0; 16] }
    }
}

/// Who has opened the pool since, in words; none if it is this opening's still.
///
/// Two superblocks that are damaged are nobody's, and the next checkpoint writes them anew. So does one that is
/// damaged, beside which lies what was there before it.
fn stranger(found: &[Option<Superblock>; 2], known: &Known) -> Option<String> {
    let newest = match found {
        [Some(a), Some(b)] => choose([Ok(a.clone()), Ok(b.clone())]).map_or(b.clone(), |(newest, _)| newest),
        [Some(one), None] | [None, Some(one)] => one.clone(),
        [None, None] => return None,
    };
    if found.iter().flatten().any(|sb| sb.pool != known.pool) {
        return Some("another pool lies there by now".into());
    }
    let is_ours = known.ours.contains(&(newest.incarnation, newest.owner)) && newest.generation <= known.generations.1;
    let is_left = found.contains(&None) && newest.generation < known.generations.0;
    if is_ours || is_left {
        return None;
    }
    let own = known.ours[0].0;
    Some(match newest.incarnation {
        other if other > own => format!("it was opened for writing elsewhere (opening {other}, this one is {own})"),
        other if other < own => {
            format!("an older opening goes on writing to it elsewhere (opening {other}, this one is {own})")
        }
        _ => format!("it was opened for writing elsewhere at the same moment (both are opening {own})"),
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests;
