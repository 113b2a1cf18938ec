//! What a run is: the disk, the pool and the mix of operations, all drawn from its seed.

use std::time::Duration;

use sheave_vol::{Checksum, CreateOptions, OpenOptions, WhenFull};

use crate::disk::{DiskOptions, Errors, Lie};
use crate::tally::Tally;
use sheave_base::rng::Rng;

const KIB: u64 = 1 << 10;
/// What a small pool keeps for metadata.
const RESERVE_BYTES: u64 = 512 * KIB;

/// How often each kind of operation is drawn, against the others.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Writes.
    pub write: u64,
    /// Reads.
    pub read: u64,
    /// Flushes of one volume.
    pub sync: u64,
    /// Discards and write-zeroes.
    pub zero: u64,
    /// Requests get time to go on.
    pub turn: u64,
    /// Creating volumes.
    pub create: u64,
    /// Snapshots and clones.
    pub copy: u64,
    /// Deletes.
    pub delete: u64,
    /// Resizes.
    pub resize: u64,
    /// Rollbacks.
    pub rollback: u64,
    /// Renames.
    pub rename: u64,
    /// Flushes of the pool.
    pub pool_sync: u64,
    /// Closing and opening.
    pub reopen: u64,
    /// Adding the spare disk, or taking in what the disk has grown by.
    pub grow: u64,
    /// Scrubs of the open pool.
    pub scrub: u64,
    /// Reads that the disk holds for long, while the same place is written, discarded, copied, cut off.
    pub stare: u64,
    /// Free space goes back to the disk, by discards.
    pub trim: u64,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Decides everything below, and everything that happens.
    pub seed: u64,
    /// Operations.
    pub ops: usize,
    /// Bytes of the device.
    pub size_bytes: u64,
    /// Bytes of an allocation unit.
    pub unit_bytes: u64,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Checksums of data.
    pub checksum: Checksum,
    /// Copies of each page of metadata.
    pub copies: u8,
    /// Engines at work side by side.
    pub engines: usize,
    /// They are rings.
    pub rings: bool,
    /// Volumes that there may be, snapshots included.
    pub max_volumes: usize,
    /// Most bytes of a volume.
    pub max_volume_bytes: u64,
    /// Of a hundred requests, those that are long and anywhere.
    pub long: u64,
    /// Of a hundred writes to what is being written, those that go there all the same.
    pub twice: u64,
    /// Of a hundred volumes, those that are huge: their maps have several levels, and hardly anything in them.
    pub huge: u64,
    /// Volumes that there are from the beginning.
    pub crowd: u32,
    /// Commits have several journal blocks.
    pub bulk: bool,
    /// Of a hundred volumes, those that grow.
    pub growing: u64,
    /// Calls on the pool take their time, while requests and other calls go on; else all that was begun ends before.
    pub overlap: bool,
    /// Of a hundred gaps between two holds of the pool's lock, those in which others come between; and of a hundred of
    /// those, the ones in which much does.
    pub gaps: (u64, u64),
    /// Of a hundred steps of a call, those in which the time of its waits is up.
    pub impatience: u64,
    /// Bytes that the disk has behind the pool, which was made when it was smaller: other things lay there.
    pub behind: u64,
    /// The disk.
    pub disk: DiskOptions,
    /// The operations.
    pub mix: Mix,
    /// Operations that are left out, by number: how a failure is made small.
    pub skip: Vec<usize>,
}

impl Setup {
    /// The run of this seed.
    #[must_use]
    pub fn draw(seed: u64, ops: usize) -> Setup {
        let mut rng = Rng::new(seed).fork(0x5e7);
        let unit_bytes = *rng.pick(&[4, 4, 8, 16, 32, 64, 64, 64, 128, 256, 1024]) * KIB;
        // Small ones are full soon; large ones have room for everything.
        let small = rng.percent(35);
        // Tiny ones use a unit again soon after somebody has let it go.
        let tiny = small && unit_bytes >= 16 * KIB && rng.percent(40);
        let units = draw_units(&mut rng, small, tiny);
        let journal_bytes = *rng.pick(&[64, 64, 96, 256]) * KIB;
        // A small pool has room for little beyond its reserve.
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
        // Commits of several journal blocks: many small units between two flushes.
        let bulk = !small && unit_bytes <= 8 * KIB && rng.percent(50);
        // Space that goes from one to the other before anything is flushed.
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

    /// The run of this seed, with all that a seed decides about the disk and the pool.
    #[must_use]
    pub fn of_run(seed: u64, ops: usize) -> Setup {
        let setup = Setup::draw(seed, ops);
        // A quarter of the pools get another disk on the way.
        let setup = match Rng::new(seed).fork(0x641).below(100) {
            0..25 => setup.with_spare(),
            25..35 => setup.with_room_behind(),
            _ => setup,
        };
        let setup = if Rng::new(seed).fork(0x642).percent(50) { setup.with_checksums() } else { setup };
        let setup = if Rng::new(seed).fork(0x643).percent(25) { setup.with_two_copies() } else { setup };
        setup.with_focus().with_failures()
    }

    /// A quarter of the runs do much of something that goes wrong in few ways, each of them rare.
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

    /// This run with many reads that the disk holds for long, and little space, so that a unit is soon somebody else's.
    #[must_use]
    pub fn with_slow_reads(mut self) -> Setup {
        (self.overlap, self.huge, self.crowd) = (true, 0, 0);
        (self.mix.stare, self.mix.write, self.mix.pool_sync) = (12, 50, 8);
        (self.unit_bytes, self.max_volume_bytes, self.max_volumes) = (64 * KIB, 512 * KIB, 5);
        (self.size_bytes, self.disk.spare, self.behind, self.mix.grow) = (3 << 20, 0, 0, 0);
        self
    }

    /// This run with much free space that goes back to the disk, which then gives anything there, beside all that
    /// takes space and lets it go.
    #[must_use]
    pub fn with_trims(mut self) -> Setup {
        (self.overlap, self.huge, self.crowd) = (true, 0, 0);
        (self.mix.trim, self.mix.zero, self.mix.delete, self.mix.copy) = (8, 12, 6, 6);
        self.disk.slow = self.disk.slow.max(10);
        self
    }

    /// This run with volumes that grow alone, which are cut, made larger and rolled back while they are written.
    #[must_use]
    pub fn with_cuts(mut self) -> Setup {
        (self.growing, self.overlap, self.huge, self.crowd) = (100, true, 0, 0);
        (self.mix.resize, self.mix.rollback, self.mix.copy) = (14, 5, 5);
        (self.mix.write, self.max_volumes, self.disk.slow) = (50, 4, self.disk.slow.max(15));
        self
    }

    /// This run with volumes that grow by many small units between two flushes: commits have many blocks.
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

    /// This run with a journal many of whose writes fail while volumes are copied and rolled back. Copies are of few
    /// units, and what is done is done to one of them and to its source, so that what a commit that failed had taken is
    /// soon written to again; checkpoints are rare, so that a crash finds what the journal alone has.
    #[must_use]
    pub fn with_failing_commits(mut self) -> Setup {
        (self.overlap, self.huge, self.crowd, self.bulk) = (true, 0, 0, false);
        self.gaps = (50, 40);
        (self.growing, self.disk.host, self.disk.spare, self.behind, self.mix.grow) = (0, None, 0, 0, 0);
        self.disk.errors = Errors { journal: 250, ..Errors::default() };
        // Commits take long, so that copies are recorded while one is under way.
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

    /// Some pools have huge volumes, some have hundreds.
    fn with_many_or_huge(mut self) -> Setup {
        let mut rng = Rng::new(self.seed).fork(0x8a9);
        match rng.below(100) {
            0..12 => self.huge = *rng.pick(&[30, 70]),
            12..16 => {
                self.crowd = rng.between(100, 400) as u32;
                self.max_volumes += self.crowd as usize;
                // Their entries in the table, twice, in pools of all sizes.
                self.size_bytes += 1 << 20;
            }
            _ => {}
        }
        self
    }

    /// Most runs have much under way at a time.
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

    /// This run on a disk that lies.
    #[must_use]
    pub fn with_lie(mut self, lie: Lie) -> Setup {
        self.disk.lie = Some(lie);
        self
    }

    /// This run on a disk of which some requests fail, so many of a thousand of each kind.
    #[must_use]
    pub fn with_errors(mut self, errors: Errors) -> Setup {
        (self.overlap, self.disk.errors) = (true, errors);
        self
    }

    /// This run on a disk on which something fails now and then: which kind of request and how often, or its file
    /// system is full. A third of the runs have this.
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

    /// This run in a file system that is full; of a hundred requests that find no room, so many make some.
    #[must_use]
    pub fn with_full_host(mut self, frees: u64) -> Setup {
        self.disk.host = Some(frees);
        self
    }

    /// This run in a file system that is full, to which the pool's file is copied after most crashes without its blank
    /// pages: then nothing has space that the first checkpoint could take, and the pool is opened for deletes alone.
    #[must_use]
    pub fn with_sparse_copies(self) -> Setup {
        let mut setup = self.with_full_host(0);
        (setup.disk.copied, setup.disk.errors) = (80, Errors::default());
        (setup.huge, setup.crowd, setup.bulk) = (0, 0, false);
        // Few checkpoints, for these leave pages that have space.
        (setup.unit_bytes, setup.journal_bytes, setup.size_bytes) = (64 * KIB, 256 * KIB, 16 << 20);
        (setup.max_volumes, setup.max_volume_bytes) = (7, 512 * KIB);
        (setup.disk.spare, setup.behind) = (0, 0);
        (setup.mix.create, setup.mix.copy, setup.mix.write, setup.mix.sync) = (8, 4, 40, 4);
        (setup.mix.delete, setup.mix.zero, setup.mix.trim, setup.mix.grow) = (0, 1, 0, 0);
        (setup.mix.reopen, setup.mix.rollback, setup.mix.resize) = (0, 1, 1);
        setup
    }

    /// This run on a pool with checksums, whose volumes have blocks of 4 KiB.
    #[must_use]
    pub fn with_checksums(mut self) -> Setup {
        self.checksum = Checksum::Crc32c;
        self.disk.logical_block = 4096;
        self
    }

    /// This run on a pool with two copies of its metadata, which takes as much again of what a pool keeps for that.
    #[must_use]
    pub fn with_two_copies(mut self) -> Setup {
        self.copies = 2;
        self.size_bytes += RESERVE_BYTES.max(2 * self.unit_bytes);
        self
    }

    /// This run with a spare disk that the pool gets at some time.
    #[must_use]
    pub fn with_spare(mut self) -> Setup {
        let mut rng = Rng::new(self.seed).fork(0x640);
        self.disk.spare = rng.between(2, 64) * self.unit_bytes;
        // Then a place in the pool is the same place on the disk, which is as large: a pool takes in what a disk has
        // grown by before it takes another.
        self.size_bytes = self.size_bytes.next_multiple_of(self.unit_bytes);
        self.behind = 0;
        self.mix.grow = *rng.pick(&[1, 2, 5]);
        self
    }

    /// This run on a disk that has become larger since the pool was made, which takes that in at some time.
    #[must_use]
    pub fn with_room_behind(mut self) -> Setup {
        let mut rng = Rng::new(self.seed).fork(0x645);
        (self.disk.spare, self.disk.members) = (0, 1);
        self.behind = rng.between(2, 64) * self.unit_bytes;
        self.size_bytes = self.size_bytes.next_multiple_of(self.unit_bytes);
        self.mix.grow = *rng.pick(&[1, 2, 5]);
        self
    }

    /// What kind of run it is.
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

    /// How the pool is made.
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

    /// How it is opened.
    #[must_use]
    pub fn open_options(&self) -> OpenOptions {
        // The world calls for each background discard itself: a thread of the pool's own would come when it likes.
        OpenOptions::default()
            .when_full(WhenFull::Error)
            .discard_thread(false)
            .longest_idle(Duration::MAX)
            // A run looks at no clock; checkpoints look who owns the pool all the same.
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

/// Half of the runs have a bit of everything, the others do more of something.
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
