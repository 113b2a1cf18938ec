//! The parameters of a run: the disk, the pool and the mix of operations, all drawn from its seed.

use std::time::Duration;

use sheave_vol::{Checksum, CreateOptions, OpenOptions, WhenFull};

use crate::disk::{DiskOptions, Errors, Lie};
use crate::tally::Tally;
use sheave_base::rng::Rng;

const KIB: u64 = 1 << 10;
/// Bytes that a small pool reserves for metadata.
const RESERVE_BYTES: u64 = 512 * KIB;

/// Relative frequencies of the kinds of operations.
#[derive(Clone, Debug)]
pub struct Mix {
    pub write: u64,
    pub read: u64,
    /// Flushes of one volume.
    pub sync: u64,
    /// Discards and write-zeroes.
    pub zero: u64,
    /// Steps of engines and calls, without a new request.
    pub turn: u64,
    pub create: u64,
    /// Snapshots and clones.
    pub copy: u64,
    pub delete: u64,
    pub resize: u64,
    pub rollback: u64,
    pub rename: u64,
    /// Flushes of the pool.
    pub pool_sync: u64,
    /// Closing and opening the pool.
    pub reopen: u64,
    /// Additions of the spare disk, or of the room by which the disk has grown.
    pub grow: u64,
    /// Scrubs of the open pool.
    pub scrub: u64,
    /// Reads that the disk holds for long while their range is written, discarded, copied and cut off.
    pub stare: u64,
    /// Trims and discards of free space.
    pub trim: u64,
}

#[derive(Clone, Debug)]
pub struct Setup {
    /// Seed of the run. It decides every field below, and everything that happens.
    pub seed: u64,
    /// Number of operations.
    pub ops: usize,
    pub size_bytes: u64,
    /// Bytes of an allocation unit.
    pub unit_bytes: u64,
    pub journal_bytes: u64,
    pub checksum: Checksum,
    /// Number of copies of each metadata page.
    pub copies: u8,
    /// Number of engines that issue I/O at the same time.
    pub engines: usize,
    /// True if the engines are rings; otherwise they call the volumes directly.
    pub rings: bool,
    /// Largest number of volumes, snapshots included.
    pub max_volumes: usize,
    pub max_volume_bytes: u64,
    /// Percentage of requests that are long and lie anywhere in the volume.
    pub long: u64,
    /// Percentage of writes that are issued although another write to their range is under way.
    pub twice: u64,
    /// Percentage of volumes that are huge, so that their maps have several levels and few entries.
    pub huge: u64,
    /// Number of volumes created at the beginning.
    pub crowd: u32,
    /// True if commits have several journal blocks.
    pub bulk: bool,
    /// Percentage of volumes that grow.
    pub growing: u64,
    /// True if calls on the pool take several steps, while requests and other calls are under way. Otherwise everything
    /// under way ends before the next operation.
    pub overlap: bool,
    /// Gaps between two holds of the pool's lock. The first number is the percentage of releases of the lock at which
    /// other threads run before it is taken again. The second is the percentage of those gaps in which they run for
    /// long.
    pub gaps: (u64, u64),
    /// Percentage of a call's steps at which its timed wait expires.
    pub impatience: u64,
    /// Number of bytes of the disk behind the end of the pool, which was made when the disk was smaller. They hold
    /// leftovers of earlier use.
    pub behind: u64,
    pub disk: DiskOptions,
    pub mix: Mix,
    /// Numbers of operations that are left out. `shrink` sets them to reduce a failure.
    pub skip: Vec<usize>,
}

impl Setup {
    /// Draws the base parameters of a run from `seed`.
    #[must_use]
    pub fn draw(seed: u64, ops: usize) -> Setup {
        let mut rng = Rng::new(seed).fork(0x5e7);
        let unit_bytes = *rng.pick(&[4, 4, 8, 16, 32, 64, 64, 64, 128, 256, 1024]) * KIB;
        // Small pools fill up soon; large ones never run out of space.
        let small = rng.percent(35);
        // Tiny pools reuse a unit soon after it is freed.
        let tiny = small && unit_bytes >= 16 * KIB && rng.percent(40);
        let units = draw_units(&mut rng, small, tiny);
        let journal_bytes = *rng.pick(&[64, 64, 96, 256]) * KIB;
        // Just enough space for the reserve, the journal and `units` units of data.
        let reserve = (RESERVE_BYTES / unit_bytes).max(2) + 3;
        let tight = (units + reserve) * unit_bytes + journal_bytes;
        let size_bytes = if small { tight } else { (units * unit_bytes).clamp(2 << 20, 96 << 20) };
        let logical_block = if rng.percent(20) { 4096 } else { 512 };
        let max_delay = *rng.pick(&[0, 2, 6]);
        let members = if rng.percent(15) { 2 } else { 1 };
        let disk = DiskOptions {
            seed: rng.draw(),
            logical_block,
            fua: rng.percent(70),
            max_delay,
            lie: None,
            members,
            spare: 0,
            ..DiskOptions::default()
        };
        let mut mix = draw_mix(&mut rng);
        // Many small units written between two flushes make commits of several journal blocks.
        let bulk = !small && unit_bytes <= 8 * KIB && rng.percent(50);
        // Few flushes in little space, so units pass from one volume to another before anything is durable.
        if tiny {
            (mix.write, mix.zero, mix.sync, mix.pool_sync) = (40, 20, 6, 4);
        } else if small && rng.percent(50) {
            (mix.write, mix.zero, mix.sync, mix.pool_sync, mix.copy, mix.resize) = (50, 25, 2, 0, 1, 1);
        }
        if bulk {
            (mix.write, mix.sync, mix.turn) = (60, 3, 90);
        }
        let max_volume_bytes = if small { units * unit_bytes * 3 / 4 } else { *rng.pick(&[128, 256, 512, 1024]) * KIB };
        let (engines, max_volumes) = (rng.between(1, 3) as usize, rng.between(2, 7) as usize);
        let checksum = Checksum::None;
        Setup {
            seed,
            ops,
            size_bytes,
            unit_bytes,
            journal_bytes,
            checksum,
            copies: 1,
            engines,
            rings: !seed.is_multiple_of(3),
            max_volumes,
            max_volume_bytes: if bulk { 1 << 20 } else { max_volume_bytes.min(2 << 20) },
            long: if small || bulk { 60 } else { 10 },
            bulk,
            growing: *Rng::new(seed).fork(0x96f).pick(if bulk { &[0, 40, 100] } else { &[0, 0, 40, 100] }),
            twice: 10,
            huge: 0,
            crowd: 0,
            overlap: false,
            gaps: (0, 0),
            impatience: 0,
            behind: 0,
            disk,
            mix,
            skip: Vec::new(),
        }
        .with_overlap()
        .with_many_or_huge()
    }

    /// Draws a run from `seed` with everything that a seed decides: the base, another disk, checksums, copies of
    /// metadata, a focus and failures.
    #[must_use]
    pub fn of_run(seed: u64, ops: usize) -> Setup {
        let setup = Setup::draw(seed, ops);
        // A quarter of the pools get another disk during the run, a tenth a disk that has grown.
        let setup = match Rng::new(seed).fork(0x641).below(100) {
            0..25 => setup.with_spare(),
            25..35 => setup.with_room_behind(),
            _ => setup,
        };
        let setup = if Rng::new(seed).fork(0x642).percent(50) { setup.with_checksums() } else { setup };
        let setup = if Rng::new(seed).fork(0x643).percent(25) { setup.with_two_copies() } else { setup };
        setup.with_focus().with_failures()
    }

    /// Concentrates a third of the runs on one situation in which only rare interleavings fail.
    fn with_focus(self) -> Setup {
        let mut rng = Rng::new(self.seed).fork(0xf0c);
        match rng.below(100) {
            0..7 => self.with_slow_reads(),
            7..12 => self.with_long_commits(),
            12..20 => {
                let huge = *rng.pick(&[0, 0, 70]);
                Setup { huge, ..self.with_cuts() }
            }
            20..25 => self.with_trims(),
            25..33 => self.with_failing_commits(),
            _ => self,
        }
    }

    /// Sets many slow reads and little space, so that a unit that is being read soon belongs to another volume.
    #[must_use]
    pub fn with_slow_reads(mut self) -> Setup {
        (self.overlap, self.huge, self.crowd) = (true, 0, 0);
        (self.mix.stare, self.mix.write, self.mix.pool_sync) = (12, 50, 8);
        (self.unit_bytes, self.max_volume_bytes, self.max_volumes) = (64 * KIB, 512 * KIB, 5);
        (self.size_bytes, self.disk.spare, self.behind, self.mix.grow) = (3 << 20, 0, 0, 0);
        self
    }

    /// Sets many trims, during operations that take and free space. The disk returns arbitrary data for a trimmed
    /// sector.
    #[must_use]
    pub fn with_trims(mut self) -> Setup {
        (self.overlap, self.huge, self.crowd) = (true, 0, 0);
        (self.mix.trim, self.mix.zero, self.mix.delete, self.mix.copy) = (8, 12, 6, 6);
        self.disk.slow = self.disk.slow.max(10);
        self
    }

    /// Sets volumes that all grow, and that are cut, enlarged and rolled back while they are written.
    #[must_use]
    pub fn with_cuts(mut self) -> Setup {
        (self.growing, self.overlap, self.huge, self.crowd) = (100, true, 0, 0);
        (self.mix.resize, self.mix.rollback, self.mix.copy) = (14, 5, 5);
        (self.mix.write, self.max_volumes, self.disk.slow) = (50, 4, self.disk.slow.max(15));
        self
    }

    /// Sets volumes that grow, and many small units between two flushes, so that commits have many blocks.
    #[must_use]
    pub fn with_long_commits(mut self) -> Setup {
        (self.growing, self.bulk, self.huge, self.crowd) = (100, true, 0, 0);
        (self.unit_bytes, self.size_bytes, self.journal_bytes) = (4 * KIB, 24 << 20, 256 * KIB);
        (self.max_volume_bytes, self.max_volumes, self.long) = (2 << 20, 2, 190);
        (self.mix.write, self.mix.sync, self.mix.pool_sync) = (60, 2, 1);
        (self.mix.copy, self.mix.resize, self.mix.delete, self.mix.turn) = (0, 1, 0, 90);
        (self.mix.create, self.mix.reopen, self.mix.rename) = (1, 0, 0);
        self
    }

    /// Sets a journal in which a quarter of the writes fail while volumes are copied and rolled back. Copies have few
    /// units, and operations stay with a copy and its source, so that the units of a failed commit are soon written
    /// again. Checkpoints are rare, so that after a crash most changes are in the journal alone.
    #[must_use]
    pub fn with_failing_commits(mut self) -> Setup {
        (self.overlap, self.huge, self.crowd, self.bulk) = (true, 0, 0, false);
        self.gaps = (50, 40);
        (self.growing, self.disk.host, self.disk.spare, self.behind, self.mix.grow) = (0, None, 0, 0, 0);
        self.disk.errors = Errors { journal: 250, ..Errors::default() };
        // Slow commits, so that copies are recorded while a commit is under way.
        (self.disk.slow, self.disk.pauses, self.disk.max_delay, self.engines) = (3, 100, 6, 3);
        (self.unit_bytes, self.journal_bytes) = (*Rng::new(self.seed).fork(0xfa1).pick(&[4, 16, 64]) * KIB, 256 * KIB);
        (self.disk.journal, self.size_bytes, self.max_volumes) = (self.journal_bytes, 16 << 20, 6);
        self.max_volume_bytes = 12 * self.unit_bytes;
        (self.mix.write, self.mix.zero, self.mix.sync, self.mix.pool_sync) = (60, 4, 8, 8);
        (self.mix.copy, self.mix.delete, self.mix.rollback, self.mix.create) = (24, 4, 6, 1);
        (self.mix.resize, self.mix.reopen, self.mix.scrub, self.mix.trim, self.mix.stare) = (1, 0, 0, 0, 0);
        (self.mix.read, self.mix.rename, self.mix.turn) = (4, 0, 30);
        self
    }

    /// Gives an eighth of the runs huge volumes, and a few others hundreds of volumes.
    fn with_many_or_huge(mut self) -> Setup {
        let mut rng = Rng::new(self.seed).fork(0x8a9);
        match rng.below(100) {
            0..12 => self.huge = *rng.pick(&[30, 70]),
            12..16 => {
                self.crowd = rng.between(100, 400) as u32;
                self.max_volumes += self.crowd as usize;
                // The volume table has an entry for each, in two copies; pools of every size need room for it.
                self.size_bytes += 1 << 20;
            }
            _ => {}
        }
        self
    }

    /// Lets 85 % of the runs have requests and calls under way at the same time.
    fn with_overlap(mut self) -> Setup {
        let mut rng = Rng::new(self.seed).fork(0x0e1);
        self.overlap = rng.percent(85);
        self.disk.pauses = *rng.pick(&[100, 50, 20]);
        self.disk.slow = if self.overlap { *rng.pick(&[0, 5, 15, 30]) } else { 0 };
        self.mix.stare = if self.overlap { *rng.pick(&[0, 1, 3, 6]) } else { 0 };
        self.impatience = 0;
        self.gaps.0 = if self.overlap { *rng.pick(&[0, 5, 20, 50]) } else { 0 };
        self.gaps.1 = *rng.pick(&[0, 0, 10, 40]);
        self
    }

    /// Sets the promise that the disk breaks.
    #[must_use]
    pub fn with_lie(mut self, lie: Lie) -> Setup {
        self.disk.lie = Some(lie);
        self
    }

    /// Sets the failures of requests, per thousand of each kind.
    #[must_use]
    pub fn with_errors(mut self, errors: Errors) -> Setup {
        (self.overlap, self.disk.errors) = (true, errors);
        self
    }

    /// Lets about a third of the runs have a disk whose requests fail now and then, or whose file system is full.
    #[must_use]
    pub fn with_failures(self) -> Setup {
        let mut rng = Rng::new(self.seed).fork(0xe44);
        if self.disk.errors.any() {
            return self;
        }
        match rng.below(100) {
            0..8 => self.with_errors(Errors { read: 10, write: 10, flush: 0, journal: 0 }),
            8..13 => self.with_errors(Errors { read: 0, write: 60, flush: 0, journal: 0 }),
            13..16 => self.with_errors(Errors { read: 60, write: 0, flush: 0, journal: 0 }),
            16..21 => self.with_errors(Errors { read: 0, write: 0, flush: 15, journal: 0 }),
            21..24 => self.with_errors(Errors { read: 5, write: 5, flush: 5, journal: 0 }),
            24..34 => self.with_full_host(*rng.pick(&[0, 5, 30])),
            _ => self,
        }
    }

    /// Puts the disk into a full file system. `frees` is the percentage of refused requests after which some space is
    /// freed.
    #[must_use]
    pub fn with_full_host(mut self, frees: u64) -> Setup {
        self.disk.host = Some(frees);
        self
    }

    /// Puts the disk into a full file system. After most crashes, replaces the pool's file by a copy with holes for
    /// blank pages. Then no page has the space that the first checkpoint needs, so the pool can only delete volumes.
    #[must_use]
    pub fn with_sparse_copies(self) -> Setup {
        let mut setup = self.with_full_host(0);
        (setup.disk.copied, setup.disk.errors) = (80, Errors::default());
        (setup.huge, setup.crowd, setup.bulk) = (0, 0, false);
        // Checkpoints allocate pages and leave them allocated, so there must be few checkpoints.
        (setup.unit_bytes, setup.journal_bytes, setup.size_bytes) = (64 * KIB, 256 * KIB, 16 << 20);
        (setup.max_volumes, setup.max_volume_bytes) = (7, 512 * KIB);
        (setup.disk.spare, setup.behind) = (0, 0);
        (setup.mix.create, setup.mix.copy, setup.mix.write, setup.mix.sync) = (8, 4, 40, 4);
        (setup.mix.delete, setup.mix.zero, setup.mix.trim, setup.mix.grow) = (0, 1, 0, 0);
        (setup.mix.reopen, setup.mix.rollback, setup.mix.resize) = (0, 1, 1);
        setup
    }

    /// Gives the pool checksums, which need blocks of 4 KiB.
    #[must_use]
    pub fn with_checksums(mut self) -> Setup {
        self.checksum = Checksum::Crc32c;
        self.disk.logical_block = 4096;
        self
    }

    /// Gives the pool two copies of its metadata, and space for the second copy.
    #[must_use]
    pub fn with_two_copies(mut self) -> Setup {
        self.copies = 2;
        self.size_bytes += RESERVE_BYTES.max(2 * self.unit_bytes);
        self
    }

    /// Gives the run a spare disk, which it adds to the pool at some time.
    #[must_use]
    pub fn with_spare(mut self) -> Setup {
        let mut rng = Rng::new(self.seed).fork(0x640);
        self.disk.spare = rng.between(2, 64) * self.unit_bytes;
        // A pool takes in the room of a disk that has grown before it takes another disk. If its size is a multiple of
        // the unit, there is no such room, and an offset in the pool is the same offset on the disk.
        self.size_bytes = self.size_bytes.next_multiple_of(self.unit_bytes);
        self.behind = 0;
        self.mix.grow = *rng.pick(&[1, 2, 5]);
        self
    }

    /// Makes the disk larger than the pool, which extends to the end of the disk at some time.
    #[must_use]
    pub fn with_room_behind(mut self) -> Setup {
        let mut rng = Rng::new(self.seed).fork(0x645);
        (self.disk.spare, self.disk.members) = (0, 1);
        self.behind = rng.between(2, 64) * self.unit_bytes;
        self.size_bytes = self.size_bytes.next_multiple_of(self.unit_bytes);
        self.mix.grow = *rng.pick(&[1, 2, 5]);
        self
    }

    /// Counts the properties of this run.
    pub fn count(&self, tally: &mut Tally) {
        let Setup { disk, .. } = self;
        tally.count("pools");
        let kinds = [
            (self.checksum != Checksum::None, "with checksums"),
            (self.copies > 1, "with two copies of their metadata"),
            (self.rings, "whose I/O goes through rings"),
            (self.overlap, "with I/O under way during calls"),
            (self.growing > 0, "with volumes that grow"),
            (self.huge > 0, "with huge volumes"),
            (self.crowd > 0, "with hundreds of volumes"),
            (self.size_bytes <= 60 * self.unit_bytes + (2 << 20), "with little space"),
            (self.bulk, "with commits of many blocks"),
            (self.mix.stare > 0, "with slow reads"),
            (disk.members > 1, "of several disks"),
            (disk.spare > 0, "that get another disk"),
            (self.behind > 0, "on a disk that has grown"),
            (disk.slow > 0, "on a disk that holds requests for long"),
            (disk.errors.read > 0, "whose reads may fail"),
            (disk.errors.write > 0, "whose writes may fail"),
            (disk.errors.flush > 0, "whose flushes may fail"),
            (disk.errors.journal > 0, "whose commits may fail"),
            (disk.host.is_some(), "in a full file system"),
        ];
        kinds.into_iter().for_each(|(is_so, kind)| tally.count_if(is_so, format!("pools {kind}")));
    }

    #[must_use]
    pub fn create_options(&self) -> CreateOptions {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&self.seed.to_le_bytes());
        uuid[15] = 1;
        CreateOptions::default()
            .unit_bytes(self.unit_bytes)
            .journal_bytes(Some(self.journal_bytes))
            .checksum(self.checksum)
            .metadata_copies(Some(self.copies))
            .discard(true)
            .uuid(Some(uuid))
    }

    /// Returns options without a thread of the pool's own and without a clock, either of which would make a run
    /// unrepeatable.
    #[must_use]
    pub fn open_options(&self) -> OpenOptions {
        // The world calls for background discards itself, at times that the seed decides.
        OpenOptions::default()
            .when_full(WhenFull::Error)
            .discard_thread(false)
            .longest_idle(Duration::MAX)
            // A run reads no clock, so the owner is not checked at intervals. Checkpoints still check who owns the
            // pool.
            .owner_every(Duration::MAX)
    }
}

fn draw_units(rng: &mut Rng, small: bool, tiny: bool) -> u64 {
    match (small, tiny) {
        (_, true) => rng.between(6, 14),
        (true, false) => rng.between(24, 60),
        (false, false) => rng.between(150, 400),
    }
}

/// Draws a mix: half of the runs have a little of everything, the others more of one group.
fn draw_mix(rng: &mut Rng) -> Mix {
    let mut mix = Mix {
        write: 30,
        read: 8,
        sync: 6,
        zero: 5,
        turn: 40,
        create: 3,
        copy: 4,
        delete: 3,
        resize: 2,
        rollback: 1,
        rename: 1,
        pool_sync: 1,
        reopen: 1,
        grow: 0,
        scrub: 1,
        stare: 0,
        trim: 1,
    };
    match rng.below(8) {
        0 => (mix.write, mix.sync) = (60, 12),
        1 => (mix.copy, mix.delete, mix.rollback) = (12, 8, 4),
        2 => (mix.zero, mix.resize) = (20, 8),
        3 => (mix.reopen, mix.create, mix.rename) = (6, 8, 5),
        _ => {}
    }
    mix
}
