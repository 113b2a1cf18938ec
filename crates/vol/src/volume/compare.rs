//! Compares two volumes of a pool byte by byte where their maps do not decide.
//!
//! The first write to a part of a unit that a snapshot shares copies all of the unit, and its group
//! ([`relocate`](super::relocate)). In the maps all of that has changed, up to 64 times as much as was written. Here
//! such blocks are compared, and those that read the same in both volumes are left out.
//!
//! Owns the choice of the blocks to read, and the proof that two blocks are the same. An increment that lacks a changed
//! block is a wrong backup, so:
//!
//! - D1: a block is left out only if its bytes were read on both sides and are the same. Checksums that differ prove
//!   that blocks differ, and save the reads. Equal checksums prove nothing, since a CRC can be made to collide.
//! - D2: a block that cannot be read, is marked bad, or does not match its own checksum counts as changed. Whoever
//!   reads it then gets the error.
//! - D3: only blocks are read that both volumes have, in different places. The maps decide about data that lies in one
//!   place, or in one volume alone.
//! - D4: units keep their contents while they are read: the I/O is counted in the graces of both volumes before the
//!   lock is released under which the units were found.
//!
//! One batch of [`BATCH`] bytes of either side is read at a time. No lock and no grace is held between batches.

use sheave_base::grace::{Grace, Phase, Seat};
use sheave_base::status::Status;
use sheave_base::sync::Arc;

use super::changes::{add, changed_at, shared_end, snapshot_of};
use crate::device::sweep::Sweep;
use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::BLOCK_SHIFT;
use crate::format::{BLOCK, BLOCK_BYTES};
use crate::info::{Differences, Extent};
use crate::state::sums::crc;
use crate::state::table::VolumeCore;

/// Bytes of one side after which a batch is compared.
const BATCH: u64 = 1 << 20;
/// Largest number of steps of a batch, all under one hold of the lock.
const STEPS: u32 = 4096;

/// The volume that another is compared with.
pub(super) enum Base<'a> {
    /// An open volume, which cannot be deleted meanwhile.
    Open(&'a Arc<VolumeCore>),
    /// The snapshot of this number, which may be deleted between two batches.
    Snapshot(u32),
}

/// Returns the differences of a range. Calls `go_on` before each batch with the result so far; the comparison ends if
/// it returns false.
pub(super) fn differences(
    pool: &PoolInner,
    core: &Arc<VolumeCore>,
    base: &Base<'_>,
    (pos, len): (u64, u64),
    go_on: &mut dyn FnMut(&Differences) -> bool,
) -> Result<Differences, PoolError> {
    let end = pos.saturating_add(len).min(core.size());
    let (base, snapshot) = match base {
        Base::Open(base) => (Arc::clone(base), None),
        Base::Snapshot(number) => (Arc::clone(snapshot_of(&pool.lock(), *number)?), Some(*number)),
    };
    let seats = [Grace::seat(core.top.grace()), Grace::seat(base.top.grace())];
    let mut comparison = Comparison { pool, core, base: &base, snapshot, seats, sweep: None };
    let mut told = Differences { extents: Vec::new(), upto: pos, read_bytes: 0 };
    while told.upto < end && go_on(&told) {
        let batch = comparison.gather(told.upto, end)?;
        let read = comparison.settle(&batch, &mut told.extents);
        comparison.let_go(batch.pinned);
        told.read_bytes += read.map_err(|status| PoolError::Io {
            what: "comparing two volumes".into(),
            status,
            fix: "Give the program more memory, and try again".into(),
        })?;
        told.upto = batch.upto;
    }
    Ok(told)
}

struct Comparison<'a> {
    pool: &'a PoolInner,
    core: &'a VolumeCore,
    base: &'a VolumeCore,
    /// Number of the base, if it is a snapshot that may be deleted meanwhile.
    snapshot: Option<u32>,
    /// A seat in the grace of each volume.
    seats: [Seat; 2],
    /// Memory for a batch of both sides, allocated when something must be read.
    sweep: Option<Sweep>,
}

/// Extents in one part of the volumes that differ by the maps.
struct Batch {
    /// The extents, each with the address of the base's data if both volumes have data.
    found: Vec<(Extent, Option<u64>)>,
    /// Position at which the next batch begins.
    upto: u64,
    /// The phases in which the reads of this batch are counted in the graces of both volumes, so that no unit is freed
    /// meanwhile (D4). `None` if the batch has nothing to read.
    pinned: Option<[Phase; 2]>,
}

/// A block that both volumes have, in different places.
#[derive(Clone, Copy)]
struct Pair {
    /// Addresses of the whole blocks.
    now: u64,
    before: u64,
    /// Start and end of the part of the block that is compared. The ends of a volume and of a range may lie within a
    /// block.
    from: usize,
    to: usize,
}

impl Comparison<'_> {
    fn gather(&self, pos: u64, end: u64) -> Result<Batch, PoolError> {
        let mut batch = Batch { found: Vec::new(), upto: pos, pinned: None };
        let mut bytes = 0;
        let state = self.pool.lock();
        if let Some(number) = self.snapshot {
            // The map of a snapshot that exists now cannot change before the lock is released.
            snapshot_of(&state, number)?;
        }
        for _ in 0..STEPS {
            if batch.upto >= end || bytes >= BATCH {
                break;
            }
            if let Some(shared) = shared_end(self.pool, self.core, self.base, batch.upto) {
                batch.upto = shared.min(end);
                continue;
            }
            let step = changed_at(self.pool, &state, self.core, self.base, batch.upto, end);
            batch.upto = step.end;
            let Some(extent) = step.extent else { continue };
            bytes += step.before.map_or(0, |_| extent.len);
            batch.found.push((extent, step.before));
        }
        if bytes > 0 {
            batch.pinned = Some([0, 1].map(|side| {
                let seat: &Seat = &self.seats[side];
                seat.enter();
                let phase = seat.count();
                seat.leave();
                phase
            }));
        }
        Ok(batch)
    }

    fn let_go(&self, pinned: Option<[Phase; 2]>) {
        let Some(phases) = pinned else { return };
        self.seats.iter().zip(phases).for_each(|(seat, phase)| seat.uncount(phase));
    }

    /// Appends the differences in a batch to `told`. Returns the number of bytes that were read.
    fn settle(&mut self, batch: &Batch, told: &mut Vec<Extent>) -> Result<u64, Status> {
        let pairs = batch.found.iter().flat_map(|(extent, before)| before.map(|before| pairs_of(*extent, before)));
        let pairs: Vec<Pair> = pairs.flatten().filter(|pair| self.may_be_same(pair)).collect();
        let same = self.read_and_compare(&pairs)?;
        // Pairs and extents are both in the order of the volume.
        let mut same = pairs.iter().zip(same).filter(|(_, same)| *same).map(|(pair, _)| pair.now).peekable();
        for (extent, before) in &batch.found {
            if before.is_none() {
                add(told, *extent);
                continue;
            }
            for part in blocks_of(*extent) {
                // A pair has the address of its whole block.
                if same.next_if_eq(&(part.addr & !(BLOCK_BYTES - 1))).is_none() {
                    add(told, part);
                }
            }
        }
        debug_assert!(same.next().is_none(), "every block that is the same was met");
        Ok(2 * pairs.len() as u64 * BLOCK_BYTES)
    }

    /// Returns false if checksums prove that the blocks differ, or if one of them is known to be bad (D1, D2).
    fn may_be_same(&self, pair: &Pair) -> bool {
        let Some(sums) = &self.pool.sums else { return true };
        let (now, before) = (pair.now >> BLOCK_SHIFT, pair.before >> BLOCK_SHIFT);
        let sum = sums.get(now);
        // A checksum covers the whole block and proves nothing about a part.
        let differ = sum != sums.get(before) && (pair.from, pair.to) == (0, BLOCK);
        sum.is_some() && !differ && !sums.is_marked(now) && !sums.is_marked(before)
    }

    /// Reads the blocks of all pairs. Returns true for each pair whose blocks are the same.
    fn read_and_compare(&mut self, pairs: &[Pair]) -> Result<Vec<bool>, Status> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        // A batch ends with the step that fills it, so it may be one unit longer. Plus two, because a range may begin
        // and end within a block.
        let most = ((BATCH + self.pool.map.geometry.unit_bytes()) >> BLOCK_SHIFT) + 2;
        let sweep = match &mut self.sweep {
            Some(sweep) => sweep,
            none => none.insert(Sweep::new(2 * most as usize)?),
        };
        debug_assert!(2 * pairs.len() <= sweep.most());
        let addresses: Vec<u64> =
            pairs.iter().map(|pair| pair.now).chain(pairs.iter().map(|pair| pair.before)).collect();
        sweep.read(&*self.pool.io, &addresses);
        let is_good = |at: u64, block: &[u8]| match &self.pool.sums {
            Some(sums) => sums.get(at >> BLOCK_SHIFT) == Some(crc(block)),
            None => true,
        };
        let same = pairs.iter().enumerate().map(|(number, pair)| {
            let (Ok(now), Ok(before)) = (sweep.block(number), sweep.block(pairs.len() + number)) else { return false };
            now[pair.from..pair.to] == before[pair.from..pair.to]
                && is_good(pair.now, now)
                && is_good(pair.before, before)
        });
        Ok(same.collect())
    }
}

/// Splits an extent at block boundaries.
fn blocks_of(extent: Extent) -> impl Iterator<Item = Extent> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == extent.len {
            return None;
        }
        let (pos, addr) = (extent.pos + done, extent.addr + done);
        let len = (BLOCK_BYTES - addr % BLOCK_BYTES).min(extent.len - done);
        done += len;
        Some(Extent { pos, addr, len, ..extent })
    })
}

fn pairs_of(extent: Extent, before: u64) -> impl Iterator<Item = Pair> {
    blocks_of(extent).map(move |part| {
        // Units begin at block boundaries, so a place has the same offset in its block on either side.
        let from = (part.addr % BLOCK_BYTES) as usize;
        let now = part.addr - from as u64;
        let before = before + (part.addr - extent.addr) - from as u64;
        Pair { now, before, from, to: from + part.len as usize }
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    use sheave_base::grace::Grace;
    use sheave_base::status::Status;
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::WriteDone;
    use sheave_iomap::mapping::Intent;

    use crate::block_io::DeviceIo;
    use crate::{BlockIo, CreateOptions, Extent, OpenOptions, Pool, Volume};

    const UNIT: u64 = 65536;
    const BLOCK: u64 = 4096;

    /// Behaviour of the device's reads.
    #[derive(Default)]
    struct Reads {
        /// Places that cannot be read.
        bad: Range<u64>,
        /// Graces that each read should hold up.
        held: Vec<Arc<Grace>>,
        /// Reads that held up all of them, and reads that did not.
        counts: (u32, u32),
    }

    struct Watched {
        io: DeviceIo,
        reads: Arc<Mutex<Reads>>,
    }

    impl BlockIo for Watched {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            let mut reads = self.reads.lock().unwrap();
            // A grace period that nobody holds up ends within three looks.
            let is_held = |grace: &Arc<Grace>| {
                let ticket = grace.start();
                (0..4).all(|_| !grace.is_over(ticket))
            };
            match reads.held.iter().all(is_held) {
                true => reads.counts.0 += 1,
                false => reads.counts.1 += 1,
            }
            if at < reads.bad.end && reads.bad.start < at + buf.len() as u64 {
                return Err(Status::Medium);
            }
            self.io.read(at, buf)
        }

        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
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

    /// Returns a volume, one block of which was written after its snapshot, and that snapshot.
    fn written() -> (Pool, [Volume; 2], Arc<Mutex<Reads>>) {
        let device = open_device("ram:size=64M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let reads = Arc::<Mutex<Reads>>::default();
        let io = Box::new(Watched { io: DeviceIo::new(&device).unwrap(), reads: Arc::clone(&reads) });
        let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
        let volume = pool.create_volume("v", 1 << 20).unwrap();
        (0..4).for_each(|unit| write(&pool, &volume, unit * UNIT, &[unit as u8 + 1; UNIT as usize]));
        pool.snapshot("v", "s").unwrap();
        write(&pool, &volume, 5 * BLOCK, &[9; BLOCK as usize]);
        let base = pool.open_volume("s").unwrap();
        (pool, [volume, base], reads)
    }

    fn write(pool: &Pool, volume: &Volume, pos: u64, bytes: &[u8]) {
        let may_block = MayBlock::on_worker();
        let mapping = volume.map_blocking(pos, bytes.len() as u64, Intent::Write, &may_block).unwrap();
        pool.inner.io.write(mapping.addr, bytes).unwrap();
        let pieces = [mapping];
        volume.end_write(WriteDone::new(pos, bytes.len() as u64, Status::Ok, &pieces), &may_block).unwrap();
    }

    /// Returns the differences as block numbers: the first, and the one behind the last.
    fn told(volumes: &[Volume; 2]) -> Vec<(u64, u64)> {
        let told = volumes[0].differences_since(&volumes[1], 0, u64::MAX, &mut |_| true).unwrap();
        told.extents.iter().map(|Extent { pos, len, .. }| (pos / BLOCK, (pos + len) / BLOCK)).collect()
    }

    #[test]
    fn compared_units_are_pinned_by_both_graces() {
        let (_pool, volumes, reads) = written();
        for held in 0..2 {
            *reads.lock().unwrap() =
                Reads { held: vec![Arc::clone(volumes[held].core.top.grace())], ..Reads::default() };
            assert_eq!(told(&volumes), [(5, 6)]);
            let counts = reads.lock().unwrap().counts;
            assert!(counts.0 > 0 && counts.1 == 0, "volume {held}: {counts:?}");
        }
        // Nothing holds the graces up afterwards.
        for volume in &volumes {
            let ticket = volume.core.top.grace().start();
            assert!((0..4).any(|_| volume.core.top.grace().is_over(ticket)));
        }
    }

    #[test]
    fn a_block_that_cannot_be_read_is_a_difference_and_its_neighbours_are_compared() {
        let (_pool, volumes, reads) = written();
        for volume in &volumes {
            let place = volume.extents(9 * BLOCK, BLOCK).unwrap()[0].addr;
            *reads.lock().unwrap() = Reads { bad: place..place + 1, ..Reads::default() };
            assert_eq!(told(&volumes), [(5, 6), (9, 10)]);
        }
    }
}
