//! Disks that break promises, and the outcomes for a pool on one.
//!
//! Owns [`explore_broken`]: a run on a disk that [lies](Lie), read completely through rings while the pool is in use,
//! after it was closed, and after crashes. The contents read have a [`Standing`]; this table has the worst that is
//! allowed:
//!
//! | broken promise | checksums | in use, and closed and opened | after a crash |
//! |---|---|---|---|
//! | a write lands elsewhere | yes | kept or told | kept, told or older; foreign only if a region was open (V16) |
//! | a write lands elsewhere | no | out of contract | out of contract |
//! | a flush or FUA that does nothing, or is late | yes | kept | kept, told or older; foreign only as above |
//! | a flush or FUA that does nothing, or is late | no | kept | out of contract |
//!
//! *Older* is out of contract too: a disk that has lost all writes after some time is the disk of that time, and its
//! checksums are right. `check` must find the cause of every refusal, and a scrub every block that is refused, so that
//! the operator can act on it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_vol::{Checksum, Pool, ScrubOptions, made_at};

use crate::check::check_image;
use crate::disk::{DiskOptions, Image, Lie, Media, SECTOR, SimDisk};
use crate::engine::{Engine, Rings, Want};
use crate::model::{Model, Past, Served, Standing};
use crate::setup::Setup;
use crate::tag::identify;
use crate::threads::{MADE_AT, Threads};
use crate::world::{Counters, World};

const OPS: usize = 200;
const CUTS: usize = 12;
/// Bytes read at a time. A range that is refused is read again block by block.
const LONG: u64 = 64 << 10;
const BLOCK: u64 = 4096;
/// Number of turns after which a read that has not ended counts as stuck.
const MAX_TURNS: u32 = 100_000;

/// Numbers of pools that came to each outcome, and of misdirected writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of writes that landed elsewhere.
    pub misdirected: u64,
    /// Number of pools in which everything was as it must be.
    pub kept: u64,
    /// Number of pools that reported the damage, by a failed read or by a volume that does not open.
    pub told: u64,
    /// Number of pools that did not open, with an error that names the reason.
    pub refused: u64,
    /// Number of pools that served older state: out of contract.
    pub older: u64,
    /// Number of pools that served contents that were never there: out of contract, unless the pool has no checksums or
    /// the contents were in a region that was open.
    pub foreign: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.misdirected += other.misdirected;
        self.kept += other.kept;
        self.told += other.told;
        self.refused += other.refused;
        self.older += other.older;
        self.foreign += other.foreign;
    }

    fn count(&mut self, standing: Standing) {
        match standing {
            Standing::Kept => self.kept += 1,
            Standing::Told => self.told += 1,
            Standing::Older => self.older += 1,
            Standing::Foreign => self.foreign += 1,
        }
    }
}

/// Explores the run of a seed on a disk that breaks the promise `lie`. Returns an error if the pool came to
/// a standing that the table above does not allow.
pub fn explore_broken(seed: u64, lie: Lie, checksums: bool) -> Result<Tally, String> {
    made_at::fix(Some(MADE_AT));
    let setup = setup_of(seed, lie, checksums);
    let explorer = Broken { setup: &setup, lie, threads: Threads::new(), tally: Tally::default() };
    explorer.explore().map_err(|why| format!("seed {seed}, {lie:?}, {:?}: {why}", setup.checksum))
}

fn setup_of(seed: u64, lie: Lie, checksums: bool) -> Setup {
    let setup = Setup::draw(seed, OPS).with_lie(lie);
    let mut setup = if checksums { setup.with_checksums() } else { setup };
    // Every block is read often, so volumes are small and few. Opening again is left to `open`, which judges the
    // result.
    (setup.huge, setup.crowd, setup.mix.reopen, setup.overlap) = (0, 0, 0, true);
    // If two writes to one block overlap in time, the pool takes the block's checksum from the data that it reads back.
    // A misdirected write would then pass for good data.
    setup.twice = 0;
    setup.mix.write = setup.mix.write.max(60);
    setup.max_volumes = setup.max_volumes.min(7);
    setup.max_volume_bytes = setup.max_volume_bytes.min(512 << 10);
    setup
}

struct Broken<'a> {
    setup: &'a Setup,
    lie: Lie,
    threads: Threads,
    tally: Tally,
}

/// The facts against which a pool is judged.
struct Known<'a> {
    model: &'a Model,
    past: &'a Past,
    crashed: bool,
}

impl Broken<'_> {
    fn explore(mut self) -> Result<Tally, String> {
        let setup = self.setup;
        let before = Image::new(setup.size_bytes);
        let disk = SimDisk::new(before.clone(), setup.disk.clone());
        Pool::create(&disk.device(), &setup.create_options()).map_err(|error| format!("making the pool: {error}"))?;
        let from = disk.time();
        let pool = Pool::open(&disk.device(), &setup.open_options()).map_err(|error| format!("opening: {error}"))?;
        let (model, rng) = (Model::new(), Rng::new(setup.seed).fork(1));
        let mut world = World::new(setup, (pool, disk.clone()), &self.threads, model, Counters::default(), rng);
        world.run(setup.ops)?;
        self.tally.misdirected = disk.failures().misdirected;
        let past = Past::of(world.history().events.iter().map(|(_, event)| event));
        let known = Known { model: &world.model().clone(), past: &past, crashed: false };
        self.judge(world.pool()?, &disk, &known)?;
        let used = disk.time();
        world.close()?;
        self.open(disk.image(), &known).map_err(|why| format!("after it was closed: {why}"))?;
        let (history, _) = world.abandon();
        let mut media = Media::new(before, Some(self.lie));
        let (log, mut model, mut happened, mut taken) = (disk.log(), Model::new(), 0, 0);
        let mut rng = Rng::new(setup.seed).fork(2);
        let mut cuts: Vec<usize> = (0..CUTS).map(|_| rng.between(from as u64, used as u64) as usize).collect();
        cuts.sort_unstable();
        for at in cuts {
            log[taken..at].iter().for_each(|step| media.step(step));
            taken = at;
            while let Some((_, event)) = history.events.get(happened).filter(|(time, _)| *time <= at) {
                model.apply(event);
                happened += 1;
            }
            let (image, cut) = media.crash(&mut rng);
            let known = Known { model: &model, past: &past, crashed: true };
            self.open(image, &known).map_err(|why| format!("cut at step {at}, {cut}: {why}"))?;
        }
        Ok(self.tally)
    }

    /// Opens the pool on an image, and judges it.
    fn open(&mut self, image: Image, known: &Known<'_>) -> Result<(), String> {
        let disk = SimDisk::new(image.clone(), DiskOptions { lie: None, slow: 0, ..self.setup.disk.clone() });
        match Pool::open(&disk.device(), &self.setup.open_options()) {
            Ok(pool) => self.judge(&pool, &disk, known),
            Err(error) => {
                if check_image(&image).is_ok_and(|report| report.is_clean()) {
                    return Err(format!("the pool does not open ({error}), and check finds nothing"));
                }
                self.tally.refused += 1;
                Ok(())
            }
        }
    }

    /// Reads the whole contents of a pool and judges them.
    fn judge(&mut self, pool: &Pool, disk: &SimDisk, known: &Known<'_>) -> Result<(), String> {
        disk.hold(false);
        let info = pool.info();
        let mut reader = Reader { engine: Rings::new(&self.threads), threads: &self.threads, next: 1 };
        let damaged: Vec<String> = info.damaged.into_iter().map(|(name, _)| name).collect();
        let mut found = BTreeMap::new();
        for volume in pool.volumes().into_iter().filter(|volume| !damaged.contains(&volume.name)) {
            let open = pool.open_volume(&volume.name);
            let open = open.map_err(|error| format!("opening '{}': {error}", volume.name))?;
            let served = reader.read_all(&(Arc::new(open) as Arc<dyn File>), self.setup.seed);
            found.insert(volume.name.clone(), served.map_err(|why| format!("reading '{}': {why}", volume.name))?);
        }
        drop(reader);
        let (standing, why) = known.model.standing(&found, &damaged, known.past, known.crashed);
        let summed = self.setup.checksum != Checksum::None;
        let most = match (self.lie, known.crashed, summed) {
            (Lie::Misdirects, _, false) | (_, true, false) => Standing::Foreign,
            (Lie::Misdirects, false, true) => Standing::Told,
            (_, false, _) => Standing::Kept,
            (_, true, true) if info.rebuilt_checksums > 0 => Standing::Foreign,
            (_, true, true) => Standing::Older,
        };
        if standing > most {
            return Err(format!("{standing:?} is served, and nobody told ({most:?} may be): {why}"));
        }
        self.tally.count(standing);
        let refused = found.values().any(|served| served.sectors.iter().any(Option::is_none));
        let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(()));
        match report {
            Ok(report) if refused && report.is_clean() => Err(format!("a scrub finds nothing, and {why}")),
            _ => Ok(()),
        }
    }
}

struct Reader<'a> {
    engine: Rings,
    threads: &'a Threads,
    next: u64,
}

impl Reader<'_> {
    fn read_all(&mut self, file: &Arc<dyn File>, seed: u64) -> Result<Served, String> {
        let size = file.size_bytes();
        let mut sectors = Vec::with_capacity((size / SECTOR as u64) as usize);
        for pos in (0..size).step_by(LONG as usize) {
            let end = (pos + LONG).min(size);
            if let Some(bytes) = self.read(file, pos, end - pos)? {
                sectors.extend(bytes.chunks(SECTOR).map(|bytes| Some(identify(seed, bytes))));
                continue;
            }
            for pos in (pos..end).step_by(BLOCK as usize) {
                let len = BLOCK.min(end - pos);
                match self.read(file, pos, len)? {
                    Some(bytes) => sectors.extend(bytes.chunks(SECTOR).map(|bytes| Some(identify(seed, bytes)))),
                    None => sectors.extend((0..len / SECTOR as u64).map(|_| None)),
                }
            }
        }
        self.engine.detach(file);
        Ok(Served { size, sectors })
    }

    /// Reads a range of a file. Returns `None` if a checksum does not match.
    fn read(&mut self, file: &Arc<dyn File>, pos: u64, len: u64) -> Result<Option<Vec<u8>>, String> {
        self.next += 1;
        self.engine.submit(self.next, file, pos, Want::Read(len as usize));
        for _ in 0..MAX_TURNS {
            if let Some(ended) = self.engine.turn().pop() {
                return match ended.status {
                    Status::Ok => Ok(Some(ended.data)),
                    Status::Protection => Ok(None),
                    status => Err(format!("{len} bytes at {pos}: {status}")),
                };
            }
            self.threads.running().into_iter().for_each(|call| self.threads.step(call, false));
        }
        Err(format!("{len} bytes at {pos}: the read does not end"))
    }
}
