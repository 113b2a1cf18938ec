//! Upgrades a pool that an older program made to the features of this one.
//!
//! Opening a pool changes nothing of its format, so that the program that made it can still open it. Some features are
//! safe only if every program that opens the pool supports them. Such a feature waits for an upgrade. Owns the list of
//! these features: marks of bad blocks, identities of volumes, numbers of owners, and copies of the superblock.
//!
//! - U1: an upgrade is a checkpoint, followed by a second one for changes that may begin only when older programs are
//!   kept out. An upgrade that is cut off leaves the old pool, the new one, or a pool that lacks a feature which the
//!   next upgrade adds.
//! - U2: without an upgrade nothing is written that an older program would refuse or misunderstand. The one exception
//!   is the list of volumes that may have lost data: users must see it at once, and acknowledging removes it.
//!
//! Called by [`Pool`](crate::Pool).

use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::settings::Checksum;
use crate::format::superblock::{COPY_GRID, LEAST_ON_GRID, Superblock, copy_places};
use crate::format::{BLOCK, COPIES as COUNT};
use crate::info::Upgrade;
use crate::state::State;
use crate::state::account::Spender;
use sheave_base::status::Status;

/// Marks of bad blocks (contract V16).
const MARKS: Upgrade = Upgrade {
    name: "marks",
    lacks: "a block whose checksum was found wrong may count as good after a crash",
    gives: "a block whose checksum was found wrong stays bad, after a crash too, until it is written anew",
};

/// Identities of volumes. Volumes made before an upgrade have none after it.
const IDENTITIES: Upgrade = Upgrade {
    name: "identities",
    lacks: "two snapshots of one name that were taken in one second, with data in the same places, cannot be told from \
            each other by import-diff, and what a copy leaves that is killed stays until somebody deletes it",
    gives: "each new volume and snapshot has an identity, which its copies in other pools keep, and what a copy leaves \
            that is killed goes when the pool is opened the next time",
};

/// Numbers of owners (contract V30).
const OWNERS: Upgrade = Upgrade {
    name: "owners",
    lacks: "two programs that open the pool at the same moment, by two paths to its bytes, may pass for one, and an \
            older copy of a member for the member",
    gives: "each opening has a random number in the superblock, and who has lost the pool to another stops; labels \
            tell a member that is an older copy",
};

/// Copies of the superblock (contract V32).
const COPIES: Upgrade = Upgrade {
    name: "copies",
    lacks: "both superblocks lie in the first 8 KiB of its first device: what is written there by mistake \
            costs the pool",
    gives: "the superblock has copies in the middle and near the end of that device, from which a repair writes \
            it anew",
};

/// Returns the features that the pool lacks.
pub(crate) fn missing(sb: &Superblock) -> Vec<&'static Upgrade> {
    let lacks = [
        (sb.checksum != Checksum::None && !sb.marks, &MARKS),
        (!sb.identities, &IDENTITIES),
        (sb.owner == [0; 16] || sb.labels_at == 0, &OWNERS),
        (sb.copies == [0; 2] && copy_places(sb.members[0].1, sb.unit_bytes.into()).is_some(), &COPIES),
    ];
    lacks.into_iter().filter_map(|(lacks, upgrade)| lacks.then_some(upgrade)).collect()
}

impl PoolInner {
    /// Gives the pool the features it lacks, durably. Returns them.
    pub(crate) fn upgrade(&self) -> Result<Vec<&'static Upgrade>, PoolError> {
        let _one = self.structural();
        self.check_writable("upgrading the pool")?;
        let state = self.lock();
        let all = missing(&state.sb);
        if all.is_empty() {
            return Ok(all);
        }
        let marked = || self.sums.as_ref().map_or_else(Vec::new, |sums| sums.marked_regions());
        // Two pages for each region with marks: its own, and an index page above it. The number may grow between calls:
        // the lock is released where a checkpoint is written to make room.
        let cost = |_: &State| 2 * marked().len() as u64;
        let mut state = self.afford(state, "upgrading the pool", Spender::Table, cost)?;
        if let Some(regions) = state.sums.as_mut().filter(|_| all.contains(&&MARKS)) {
            regions.learn_marks(&marked());
        }
        state.sb.marks = state.sb.checksum != Checksum::None;
        state.sb.identities = true;
        if all.contains(&&COPIES) {
            drop(state);
            let copies = self.make_room_for_copies();
            state = self.lock();
            state.sb.copies = copies.map_err(|status| self.failed("upgrading", self.device.name(), status))?;
        }
        state.numbered = true;
        state.next.require();
        self.mark_unsynced();
        drop(state);
        self.durable_at_last("upgrading", self.device.name())?;
        // This must come after the checkpoint: labels with new fields may be written only to a pool whose superblock
        // older programs refuse.
        let mut state = self.lock();
        state.sb.labels_at = state.sb.labels_at.max(1);
        state.next.require();
        drop(state);
        self.durable_at_last("upgrading", self.device.name())?;
        Ok(all)
    }

    /// Takes free units for the copies of the superblock, as near as possible to their places in a new pool. Returns
    /// zeroes if no unit is free at a possible place: the pool then still lacks copies.
    fn make_room_for_copies(&self) -> Result<[u64; COUNT], Status> {
        let first = self.lock().sb.members[0].1;
        let mut places = copy_places(first, self.map.geometry.unit_bytes()).unwrap_or_default();
        for at in 0..COUNT {
            let Some(found) = self.take_copy_unit(places[at], first)? else {
                self.let_copy_units_go(&places[..at]);
                return Ok([0; COUNT]);
            };
            places[at] = found;
        }
        let mut state = self.lock();
        for at in places {
            let unit = at >> self.map.geometry.unit_shift;
            state.tree.units.release_meta(unit);
            let fixed = state.tree.units.fix(unit);
            debug_assert!(fixed, "it was this one's a moment ago, under the same lock");
        }
        state.set_reserve();
        Ok(places)
    }

    /// Takes the free unit nearest to `wanted`, and writes to it so that the host has space for it. Returns its
    /// address.
    fn take_copy_unit(&self, wanted: u64, first_member: u64) -> Result<Option<u64>, Status> {
        let grid = if first_member >= LEAST_ON_GRID { COPY_GRID } else { self.map.geometry.unit_bytes() };
        let mut all: Vec<u64> = (0..first_member / grid).map(|at| at * grid).collect();
        all.sort_by_key(|at| at.abs_diff(wanted));
        let shift = self.map.geometry.unit_shift;
        let mut state = self.lock();
        let Some(at) = all.into_iter().find(|at| state.tree.units.next_free(at >> shift) == Some(at >> shift)) else {
            return Ok(None);
        };
        let taken = state.tree.units.claim_meta(at >> shift);
        debug_assert!(taken, "it is free, under the same lock");
        drop(state);
        let written = self.write_new(at, &[0; BLOCK]);
        if written.is_err() {
            self.let_copy_units_go(&[at]);
        }
        written.map(|()| Some(at))
    }

    fn let_copy_units_go(&self, places: &[u64]) {
        let mut state = self.lock();
        places.iter().for_each(|at| state.tree.units.release_meta(at >> self.map.geometry.unit_shift));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::{Arc, Mutex, Weak};

    use sheave_base::status::Status;
    use sheave_drivers::open_device;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::WriteDone;
    use sheave_iomap::mapping::Intent;
    use sheave_iomap::{File, IoMemory, SummedDone};

    use super::*;
    use crate::device::block_io::{BlockIo, DeviceIo};
    use crate::engine::sums::verify::Look;
    use crate::format::superblock::Superblock;
    use crate::format::{BLOCK, SUPERBLOCKS};
    use crate::{CreateOptions, OpenOptions, Pool, Volume};

    /// A block that a reader finds bad while the pool's next own write is in flight.
    type Finder = Arc<Mutex<Option<(Weak<PoolInner>, u64)>>>;

    struct Found {
        io: DeviceIo,
        finder: Finder,
    }

    impl BlockIo for Found {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            self.io.read(at, buf)
        }

        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
            let found = self.finder.lock().unwrap().take();
            if let Some((pool, block)) = found.and_then(|(pool, block)| Some((pool.upgrade()?, block))) {
                let look = pool.sums.as_ref().unwrap().settle(&self.io, block, &mut [0; BLOCK]);
                let Ok(Look::Bad(found)) = look else { panic!("it has rotted: {look:?}") };
                assert_eq!(pool.mark(found), Ok(true), "nobody writes to it");
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
    }

    fn write(volume: &Volume, pos: u64) -> u64 {
        let (may_block, mut data) = (MayBlock::on_worker(), [1; BLOCK]);
        let mapping = loop {
            match volume.map(pos, BLOCK as u64, Intent::Write) {
                Ok(mapping) => break mapping,
                Err(_) => {
                    volume.map_blocking(pos, BLOCK as u64, Intent::Write, &may_block).map(drop).expect("has space")
                }
            }
        };
        volume.begin_write(&mapping);
        volume.pool().io.write(mapping.addr, &data).expect("it writes");
        let (addr, pieces) = (mapping.addr, [mapping]);
        IoMemory::over(&mut data, |memory| {
            let done = SummedDone::of_write(WriteDone::new(pos, BLOCK as u64, Status::Ok, &pieces), memory);
            volume.end_summed(&done).expect("nobody else writes");
        });
        let done = WriteDone::new(pos, BLOCK as u64, Status::Ok, &pieces);
        volume.end_write(done, &may_block).expect("it ends");
        addr >> 12
    }

    /// V16: an upgrade has to write a checkpoint first to make room. Meanwhile a block in a region without marks is
    /// found bad, and is reported bad. After the upgrade it must stay bad, even after a crash.
    #[test]
    fn a_block_marked_bad_during_an_upgrade_stays_bad() {
        let device = open_device("ram:size=64M").expect("opens");
        let options = CreateOptions { checksum: Checksum::Crc32c, ..CreateOptions::default() };
        Pool::create(&device, &options).expect("formats");
        // State that a program without marks leaves.
        let io = DeviceIo::new(&device).expect("attaches");
        for at in SUPERBLOCKS {
            let mut block = [0; BLOCK];
            io.read(at, &mut block).expect("it reads");
            let mut sb = Superblock::decode(&block, at, u64::MAX).expect("intact");
            (sb.marks, sb.identities) = (false, false);
            sb.encode(&mut block);
            io.write(at, &block).expect("it writes");
        }
        let finder = Finder::default();
        let io = Box::new(Found { io, finder: Arc::clone(&finder) });
        let pool = Pool::open_through(&device, io, &OpenOptions::default()).expect("opens");
        let volume = pool.create_volume("v", 1 << 40).expect("creates");
        let block = write(&volume, 0);
        // Makes pages dirty; a checkpoint makes them clean.
        (1..60).for_each(|slot| _ = write(&volume, slot << 32));
        let mut state = pool.inner.lock();
        let free = state.tree.pages.available(&state.tree.units);
        let wanted = state.pages_due() + state.table.bare_pages();
        state.spare_pages = 2 * (free - wanted + 1);
        assert!(!state.can_pay(0, Spender::Table) && state.can_pay_after_checkpoint(2, Spender::Table));
        drop(state);
        DeviceIo::new(&device).expect("attaches").write(block << 12, &[9; BLOCK]).expect("it rots");
        *finder.lock().unwrap() = Some((Arc::downgrade(&pool.inner), block));
        assert_eq!(pool.upgrade().expect("upgrades").len(), 2);
        assert!(finder.lock().unwrap().is_none() && pool.info().bad_blocks == 1, "it was found meanwhile");
        drop((volume, pool));
        let pool = Pool::open(&device, &OpenOptions::default()).expect("opens");
        assert_eq!(pool.info().bad_blocks, 1);
    }
}
