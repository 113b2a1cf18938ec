//! Taking a pool that an older program made to what this one knows.
//!
//! Opening a pool changes nothing of its format, so that the program that made it can still open it. What is only safe
//! when every program that opens the pool knows it waits for an upgrade. Owns the list of these things: marks of bad
//! blocks, identities of volumes, and numbers of owners.
//!
//! - U1: an upgrade is a checkpoint, and a second one where programs that do not know what it brings must be kept out
//!   before anything else is changed: cut off anywhere, the pool is the old one, or the new one, or lacks what the next
//!   upgrade gives.
//! - U2: without it nothing is written that the older program would refuse or misunderstand, but for the list of
//!   volumes that may have lost data: that one is to be seen before anybody goes on, and goes when it is acknowledged.
//!
//! Called by [`Pool`](crate::Pool).

use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::settings::Checksum;
use crate::format::superblock::Superblock;
use crate::info::Upgrade;
use crate::state::State;
use crate::state::account::Spender;

/// The marks of bad blocks (contract V16).
const MARKS: Upgrade = Upgrade {
    name: "marks",
    lacks: "a block whose checksum was found wrong may count as good after a crash",
    gives: "a block whose checksum was found wrong stays bad, after a crash too, until it is written anew",
};

/// The identities of volumes. What was made before an upgrade has none after it.
const IDENTITIES: Upgrade = Upgrade {
    name: "identities",
    lacks: "two snapshots of one name that were taken in one second, with data in the same places, cannot be told from \
            each other by import-diff, and what a copy leaves that is killed stays until somebody deletes it",
    gives: "each new volume and snapshot has an identity, which its copies in other pools keep, and what a copy leaves \
            that is killed goes when the pool is opened the next time",
};

/// The numbers of owners (contract V30).
const OWNERS: Upgrade = Upgrade {
    name: "owners",
    lacks: "two programs that open the pool at the same moment, by two paths to its bytes, may pass for one, and an older \
            copy of a member for the member",
    gives: "each opening has a random number in the superblock, and who has lost the pool to another stops; labels tell \
            a member that is an older copy",
};

/// What the pool lacks.
pub(crate) fn missing(sb: &Superblock) -> Vec<&'static Upgrade> {
    let lacks = [
        (sb.checksum != Checksum::None && !sb.marks, &MARKS),
        (!sb.identities, &IDENTITIES),
        (sb.owner == [0; 16] || sb.labels_at == 0, &OWNERS),
    ];
    lacks.into_iter().filter_map(|(lacks, upgrade)| lacks.then_some(upgrade)).collect()
}

impl PoolInner {
    /// Gives the pool what it lacks; what that was. Durable when this returns.
    pub(crate) fn upgrade(&self) -> Result<Vec<&'static Upgrade>, PoolError> {
        let _one = self.structural();
        self.check_writable("upgrading the pool")?;
        let state = self.lock();
        let all = missing(&state.sb);
        if all.is_empty() {
            return Ok(all);
        }
        let marked = || self.sums.as_ref().map_or_else(Vec::new, |sums| sums.marked_regions());
        // For each region with marks a page, and an index page above it. There may be more of them each time: the lock
        // is let go where a checkpoint is written for the room.
        let cost = |_: &State| 2 * marked().len() as u64;
        let mut state = self.afford(state, "upgrading the pool", Spender::Table, cost)?;
        if let Some(regions) = state.sums.as_mut().filter(|_| all.contains(&&MARKS)) {
            regions.learn_marks(&marked());
        }
        state.sb.marks = state.sb.checksum != Checksum::None;
        state.sb.identities = true;
        state.numbered = true;
        state.next.require();
        self.mark_unsynced();
        drop(state);
        self.durable_at_last("upgrading", self.device.name())?;
        // Labels that say more than before are written to a pool only that older programs refuse by its superblock.
        let mut state = self.lock();
        state.sb.labels_at = state.sb.labels_at.max(1);
        state.next.require();
        drop(state);
        self.durable_at_last("upgrading", self.device.name())?;
        Ok(all)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
