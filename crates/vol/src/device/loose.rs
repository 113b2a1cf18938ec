//! Loose roots: the search of a whole device for the newest checkpoint, for a pool that has lost both superblocks and
//! all copies of them.
//!
//! Each checkpoint also writes its superblock into one of its pages, to which no other page refers. Owns the search for
//! the newest of these roots. The pages that the root refers to may be missing; the caller's walk of its trees verifies
//! their checksums.
//!
//! - R1: a root is used only if no page of its pool belongs to a later checkpoint. Later pages exist if a program that
//!   writes no roots has used the pool, or if a checkpoint was cut off. In both cases the root may be old, and the
//!   space of its data may hold other data.
//! - R2: if the device has several pools, the search chooses the one that was made last, and in it the newest root. If
//!   two roots are equally good, the search returns an error.
//! - R3: the memory of the search is bounded, whatever the device contains.
//!
//! Called by the check and by a rescue.

use std::collections::HashMap;

use sheave_base::buf::Buf;
use sheave_base::status::Status;

use crate::device::block_io::BlockIo;
use crate::device::copies::Copied;
use crate::format::block::{Block, identify};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, MAGIC, kind};

/// Bytes of one read.
const PIECE: usize = 1 << 20;
/// Largest number of pools whose pages the search records (R3).
const MOST_POOLS: usize = 4096;

#[derive(Default)]
struct Search {
    best: Option<(u64, Superblock)>,
    /// True if another root is as good as `best`.
    tied: bool,
    /// True if there are roots of other pools.
    others: bool,
    /// Generation of the latest checkpoint of any page, by pool.
    latest: HashMap<[u8; 16], u64>,
}

/// Finds the newest root on a device. Returns `None` if there is no root, and a message if none can be chosen. Calls
/// `tell` with the number of bytes of each piece that was read.
pub(crate) fn find(io: &dyn BlockIo, tell: &mut dyn FnMut(u64)) -> Result<Option<Copied>, String> {
    let mut search = Search::default();
    let mut memory = Buf::zeroed(PIECE, BLOCK).map_err(|_| Status::NoMem.to_string())?;
    let size = io.size_bytes() / BLOCK as u64 * BLOCK as u64;
    for from in (0..size).step_by(PIECE) {
        let len = (size - from).min(PIECE as u64) as usize;
        let bytes = &mut memory[..len];
        let whole = io.read(from, bytes).is_ok();
        let (blocks, _) = bytes.as_chunks_mut::<BLOCK>();
        for (block, at) in blocks.iter_mut().zip((from..).step_by(BLOCK)) {
            if whole || io.read(at, block).is_ok() {
                search.see(at, block);
            }
        }
        tell(len as u64);
    }
    search.end()
}

impl Search {
    fn see(&mut self, at: u64, block: &Block) {
        // Precedes the check of the checksum, because computing a checksum for every block of data would take too long.
        if !block.starts_with(&MAGIC) {
            return;
        }
        // A volume may contain another pool. The pages of that pool lie at other addresses than those in their headers.
        let Some((head, _)) = identify(block).ok().filter(|(head, _)| head.address == at) else { return };
        match head.kind {
            kind::ROOT => _ = Superblock::decode_root(block, at, u64::MAX).map(|sb| self.take(at, sb)),
            kind::LEAF | kind::INDEX | kind::TABLE | kind::SUMS | kind::KEPT
                if self.latest.len() < MOST_POOLS || self.latest.contains_key(&head.pool) =>
            {
                let latest = self.latest.entry(head.pool).or_default();
                *latest = head.generation.max(*latest);
            }
            _ => {}
        }
    }

    /// Replaces the best root by `sb` if that is better (R2).
    fn take(&mut self, at: u64, sb: Superblock) {
        let Some((_, best)) = &self.best else {
            self.best = Some((at, sb));
            return;
        };
        let same = best.pool == sb.pool;
        self.others |= !same;
        let age = |sb: &Superblock| if same { (sb.incarnation, sb.generation) } else { (sb.created, 0) };
        match age(&sb).cmp(&age(best)) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => self.tied |= sb != *best,
            std::cmp::Ordering::Greater => (self.best, self.tied) = (Some((at, sb)), false),
        }
    }

    fn end(self) -> Result<Option<Copied>, String> {
        let Some((at, sb)) = self.best else { return Ok(None) };
        if self.tied {
            return Err(format!(
                "there are two roots of the same age, one of them at byte {at}: which of them is that of the pool \
                 cannot be told"
            ));
        }
        let latest = self.latest.get(&sb.pool).copied().unwrap_or(0);
        let full = self.latest.len() >= MOST_POOLS;
        // If the table of pools is full, the pages of a later checkpoint may be missing from it.
        if latest > sb.generation || full {
            return Err(format!(
                "the newest root, at byte {at}, is of checkpoint {}, and there are pages of a later one ({latest}): \
                 what the root says may be old, and its space in use for other data",
                sb.generation
            ));
        }
        Ok(Some(Copied { sb, at, others: self.others, is_loose: true }))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use sheave_blk::Device;
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::WriteDone;
    use sheave_iomap::mapping::Intent;

    use super::*;
    use crate::device::block_io::DeviceIo;
    use crate::format::{BLOCK_BYTES, SUPERBLOCKS};
    use crate::{CheckOptions, CheckReport, Checksum, CreateOptions, FindingKind, OpenOptions, Pool, check_device};

    const SIZE: usize = 24 << 20;
    const UNIT: u64 = 65536;

    fn device() -> Device {
        open_device(&format!("ram:size={SIZE}")).unwrap()
    }

    fn read(device: &Device, at: u64, bytes: &mut [u8]) {
        DeviceIo::new(device).unwrap().read(at, bytes).unwrap();
    }

    fn put(device: &Device, at: u64, bytes: &[u8]) {
        DeviceIo::new(device).unwrap().write(at, bytes).unwrap();
    }

    fn copy_of(device: &Device) -> Device {
        let (mut bytes, copy) = (vec![0; SIZE], self::device());
        read(device, 0, &mut bytes);
        put(&copy, 0, &bytes);
        copy
    }

    fn write(pool: &Pool, name: &str, pos: u64) {
        let (volume, token) = (pool.open_volume(name).unwrap(), MayBlock::on_worker());
        let piece = volume.map_blocking(pos, BLOCK_BYTES, Intent::Write, &token).unwrap();
        pool.inner.io.write(piece.addr, &[pos as u8 ^ 0x5a; BLOCK]).unwrap();
        volume.end_write(WriteDone::new(pos, BLOCK_BYTES, Status::Ok, &[piece]), &token).unwrap();
    }

    fn holds(pool: &Pool, name: &str, units: std::ops::Range<u64>) {
        let volume = pool.open_volume(name).unwrap();
        for unit in units {
            let piece = volume.map(unit * UNIT, BLOCK_BYTES, Intent::Read).unwrap();
            let mut block = [0; BLOCK];
            pool.inner.io.read(piece.addr, &mut block).unwrap();
            assert_eq!(block, [(unit * UNIT) as u8 ^ 0x5a; BLOCK], "unit {unit} of '{name}'");
        }
    }

    /// Makes a pool that was opened several times and written to between checkpoints. The pool is closed, or left as by
    /// a crash, with records in the journal.
    fn used(options: &CreateOptions, close: bool) -> Device {
        let device = device();
        Pool::create(&device, options).unwrap();
        for round in 0..3 {
            let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
            let name = format!("v{round}");
            drop(pool.create_volume(&name, 1 << 30).unwrap());
            (0..5).for_each(|unit| write(&pool, &name, unit * UNIT));
            pool.inner.checkpoint().unwrap();
            (5..10).for_each(|unit| write(&pool, &name, unit * UNIT));
            pool.sync().unwrap();
            if close || round < 2 {
                pool.close().unwrap();
            }
        }
        device
    }

    /// Overwrites both superblocks and their copies with zeroes.
    fn ruin(device: &Device) {
        let mut block = [0; BLOCK];
        read(device, 0, &mut block);
        let copies = Superblock::decode(&block, 0, u64::MAX).unwrap().copies;
        assert!(copies.iter().all(|at| *at != 0), "{copies:?}");
        SUPERBLOCKS.into_iter().chain(copies).for_each(|at| put(device, at, &[0x33; BLOCK]));
    }

    fn checked(device: &Device, repair: bool) -> CheckReport {
        check_device(device, &CheckOptions::default().repair(repair)).unwrap()
    }

    fn is_refused(device: &Device, words: &str) {
        for repair in [false, true] {
            let report = checked(device, repair);
            assert!(!report.is_repairable() && !report.repaired, "{:?}", report.findings);
            let told =
                report.findings.iter().any(|found| found.kind == FindingKind::NoPool && found.means.contains(words));
            assert!(told, "{:?}", report.findings);
        }
    }

    fn root(device: &Device) -> Copied {
        find(&DeviceIo::new(device).unwrap(), &mut |_| ()).unwrap().expect("there is one")
    }

    #[test]
    fn a_pool_without_superblocks_and_copies_is_rebuilt_from_its_newest_root() {
        for checksum in [Checksum::None, Checksum::Crc32c] {
            for (close, copies) in [(true, 1), (false, 1), (true, 2), (false, 2)] {
                let device =
                    used(&CreateOptions { checksum, metadata_copies: Some(copies), ..Default::default() }, close);
                ruin(&device);
                let error = Pool::open(&device, &OpenOptions::default()).unwrap_err().to_string();
                assert!(error.contains("no pool"), "an opening that writes looks for no root: {error}");
                let rescued = Pool::open(&device, &OpenOptions { rescue: true, ..OpenOptions::default() }).unwrap();
                (0..3).for_each(|round| holds(&rescued, &format!("v{round}"), 0..10));
                drop(rescued);
                let report = checked(&device, false);
                assert!(report.is_repairable(), "{:?}", report.findings);
                let slots = report.findings.iter().filter(|found| found.place.what.starts_with("superblock "));
                assert_eq!(slots.filter(|found| found.means.contains("the root at byte")).count(), 2, "{report:?}");
                assert!(checked(&device, true).repaired);
                let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
                (0..3).for_each(|round| holds(&pool, &format!("v{round}"), 0..10));
                pool.close().unwrap();
                assert!(checked(&device, false).is_clean());
            }
        }
    }

    /// If the newest root may not be the last state, nothing is repaired, and the error says why.
    #[test]
    fn a_root_that_may_be_old_or_is_not_whole_is_refused() {
        let whole = used(&CreateOptions::default(), true);
        let newest = root(&whole);
        // A page of the root's checkpoint is missing, as after a checkpoint that was cut off.
        let device = copy_of(&whole);
        ruin(&device);
        put(&device, newest.sb.table.address, &[0; BLOCK]);
        is_refused(&device, "not all pages are there");
        // The newest root is lost, and the previous one is intact.
        let device = copy_of(&whole);
        ruin(&device);
        put(&device, newest.at, &[0; BLOCK]);
        is_refused(&device, "pages of a later one");
        // A second root has the same age and another content.
        let device = copy_of(&whole);
        ruin(&device);
        let (mut block, mut other) = ([0; BLOCK], newest.sb.clone());
        other.owner[3] ^= 1;
        other.encode_root(&mut block, 23 << 20);
        put(&device, 23 << 20, &block);
        is_refused(&device, "of the same age");
        // The journal has blocks of a later opening, whose root is lost.
        let device = copy_of(&whole);
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        write(&pool, "v0", 20 * UNIT);
        pool.sync().unwrap();
        drop(pool);
        ruin(&device);
        let later = root(&device);
        assert!(later.sb.generation > newest.sb.generation, "an opening writes a root of its own");
        put(&device, later.at, &[0; BLOCK]);
        let report = checked(&device, true);
        assert!(!report.repaired && !report.is_repairable(), "{:?}", report.findings);
        // The device has no root.
        let device = copy_of(&whole);
        ruin(&device);
        let mut block = [0; BLOCK];
        for at in (0..SIZE as u64).step_by(BLOCK) {
            read(&device, at, &mut block);
            if identify(&block).is_ok_and(|(head, _)| head.kind == kind::ROOT) {
                put(&device, at, &[0; BLOCK]);
            }
        }
        is_refused(&device, "Without a superblock there is no pool");
    }

    /// Pages and roots of an older pool may be left on the device: the pool that was made last is chosen. A pool inside
    /// a volume is ignored, and so is a root at another address than its own.
    #[test]
    fn what_is_left_of_other_pools_is_passed_over() {
        let device = used(&CreateOptions::default(), true);
        let old = root(&device);
        let mut block = [0; BLOCK];
        read(&device, old.at, &mut block);
        put(&device, old.at + 4 * UNIT, &block);
        assert_eq!(root(&device).at, old.at, "a block in another place is none");
        let mut newer = old.sb.clone();
        (newer.pool, newer.created) = ([7; 16], old.sb.created + 1);
        newer.encode_root(&mut block, 22 << 20);
        put(&device, 22 << 20, &block);
        let found = root(&device);
        assert!(found.sb.pool == [7; 16] && found.others);
        (newer.pool, newer.created) = ([8; 16], old.sb.created + 1);
        newer.encode_root(&mut block, 21 << 20);
        put(&device, 21 << 20, &block);
        let tied = find(&DeviceIo::new(&device).unwrap(), &mut |_| ()).err();
        assert!(tied.is_some_and(|words| words.contains("of the same age")));
    }
}
