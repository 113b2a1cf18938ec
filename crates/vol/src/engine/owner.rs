//! The owner number: by it, an opening finds out that another opening has taken the pool for writing since, and stops.
//!
//! Claims keep two programs from opening one pool. They fail if the bytes can be reached by two names whose connection
//! the host cannot see: a loop device, a device mapper table, two paths to one disk of a network, a shared image. So
//! each opening for writing writes a random number of 128 bits into its superblocks, and reads it back from time to
//! time while it writes: this is a *look*. Owns the looks, and the end of an opening that has lost its pool. Does not
//! own claims ([`sheave_blk::claim`]), nor fencing, which only a device can do.
//!
//! - O1: every superblock, of a checkpoint or with a list of losses, is written only after a look has found that this
//!   opening still has the pool.
//! - O2: commits begin, and units are given to volumes or discarded, only within
//!   [`OpenOptions::owner_every`](crate::OpenOptions::owner_every) after a look. Within that time the check costs no
//!   I/O.
//! - O3: an opening that has lost its pool writes nothing any more: it rings its alarm, as after a failed flush, but
//!   writes no list of losses.
//! - O4: a look that can read neither superblock is an I/O error for its caller; the next one looks again.
//!
//! One case remains: overwrites of blocks that only one volume has are I/O of rings, without a look. They continue
//! until any other operation looks.
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

/// The superblocks that a look may find if no other opening has written.
struct Known {
    /// Incarnation and owner number of this opening, and of the previous one.
    ours: [(u64, [u8; 16]); 2],
    pool: [u8; 16],
    /// Generation that is certainly on the device, and the highest that this opening may have written.
    generations: (u64, u64),
}

impl PoolInner {
    /// Checks the owner of the pool if the last look is too old (O2).
    pub(crate) fn look_if_due(&self) -> Result<(), Status> {
        let mut state = self.lock();
        if !self.look_is_due(&state) {
            return Ok(());
        }
        // Set before the read, so that other threads continue during the read instead of looking too.
        state.looked = Instant::now();
        drop(state);
        self.look(None)
    }

    /// True if the last look at the owner is too old.
    pub(crate) fn look_is_due(&self, state: &State) -> bool {
        !self.read_only && state.looked.elapsed() > self.owner_every
    }

    /// Checks the owner of the pool. `plan` is a checkpoint that may be on the device in part. Not called under the
    /// pool's lock.
    ///
    /// # Errors
    ///
    /// `IoErr` when another opening owns the pool, which takes no changes from then on; or the error of the read (O4).
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

    /// Returns a description of the other owner of the pool, if there is one. Called outside of commits, unlike `look`.
    pub(crate) fn look_beside(&self) -> Result<Option<String>, Status> {
        for last in [false, true] {
            let found = self.read_slots()?;
            let mut known = self.lock().known(None);
            // A commit may have written a superblock and not recorded it yet: accept any higher generation.
            known.generations.1 = u64::MAX;
            let who = stranger(&found, &known);
            // A checkpoint may have been completed after the read, which then returned a superblock too old for
            // `known`: read once more.
            if who.is_none() || last {
                return Ok(who.inspect(|who| self.lose(who.clone())));
            }
        }
        Ok(None)
    }

    /// Reads both superblocks. An unreadable one becomes `None`: an opening that takes the pool writes both anyway.
    fn read_slots(&self) -> Result<[Option<Superblock>; 2], Status> {
        let mut bytes = [[0; BLOCK]; 2];
        let read = [0, 1].map(|slot| read_again(&*self.io, SUPERBLOCKS[slot], &mut bytes[slot]));
        if let [Err(status), Err(_)] = read {
            return Err(status);
        }
        let decode = |slot: usize| Superblock::decode(&bytes[slot], SUPERBLOCKS[slot], u64::MAX).ok();
        Ok([0, 1].map(|slot| read[slot].is_ok().then(|| decode(slot)).flatten()))
    }

    /// Records that another opening has the pool. From then on nothing is written (O3).
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
            // During the write of a list of losses any higher generation may be there.
            generations: (self.sb.generation, if self.phase.is_degraded() { u64::MAX } else { most }),
        }
    }

    /// The owner number for the next superblock: zero in a pool that was not upgraded to have one.
    pub(crate) fn owner_to_write(&self) -> [u8; 16] {
        if self.numbered { self.owner } else { [0; 16] }
    }
}

/// Describes the opening that has the pool now; `None` if it is still this one.
///
/// Two damaged superblocks are no evidence of another opening: the next checkpoint writes them anew. The same goes for
/// one damaged superblock beside an older one.
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
