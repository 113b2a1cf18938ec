//! Exploration: a run is cut at many steps, each cut is recovered, recovery is cut again, and work goes on after it.
//!
//! Owns [`explore`]. A run happens once; every crash is then derived from its log. For each crash, the pool is opened
//! on the contents that the crash left, all its contents are compared with the model, and `check` must find nothing.
//! Some recoveries are cut too, with the same model, because recovery may be interrupted at any time. After other
//! recoveries work goes on, and that work is cut like the first run.

mod deletes;
mod failure;

use std::collections::BTreeMap;

use sheave_vol::format::JOURNAL_START;
use sheave_vol::{Pool, PoolError, made_at, with_recent_memory};

use crate::audit::{audit, scrubs_clean};
use crate::check::check_image;
use crate::disk::{Cut, DiskOptions, Errors, Failures, Fate, Image, Left, Media, PAGE, SECTOR, SimDisk, Step};
use crate::model::Model;
use crate::observe::observe;
use crate::setup::Setup;
use crate::tally::Tally;
use crate::threads::{MADE_AT, Threads};
use crate::world::{Counters, History, World};
use sheave_base::rng::{Rng, mix};

pub use failure::Failure;

/// Largest depth of crashes within the work that follows a crash.
const MAX_DEPTH: u32 = 3;

/// One run, and the amount of crashes and recoveries to derive from it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub setup: Setup,
    /// Number of steps at which the run is cut. All steps are cut if the run has no more than these.
    pub cuts: usize,
    /// Percentage of recoveries that are cut too.
    pub nested: u64,
    /// Percentage of recoveries after which work goes on.
    pub go_on: u64,
}

impl Plan {
    /// Returns the plan of a seed.
    #[must_use]
    pub fn new(seed: u64, ops: usize, cuts: usize) -> Plan {
        let setup = Setup::of_run(seed, ops);
        // Only work after the crash could mistake the rest of a torn commit in the journal for a later commit.
        let go_on = if setup.bulk { 30 } else { 12 };
        Plan { setup, cuts, nested: 15, go_on }
    }
}

/// Figures of an exploration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub crashes: u64,
    /// Number of crashes in the middle of a recovery.
    pub nested: u64,
    /// Number of steps of all disks.
    pub steps: u64,
    /// Number of operations that a full pool refused.
    pub refused: u64,
    /// Number of bytes of free space that were discarded on the disk.
    pub trimmed: u64,
    /// Numbers of requests that the disk failed.
    pub failures: Failures,
    /// Number of crashes that left a commit without its first block.
    pub headless: u64,
    /// Number of crashes after which the pool had an added disk.
    pub grown: u64,
    /// Counts of the situations that the runs have met.
    pub tally: Tally,
    /// A hash of everything that happened: equal for equal runs.
    pub trace: u64,
}

/// Runs the plan. Equal plans give equal runs, to the byte.
pub fn explore(plan: &Plan) -> Result<Report, Box<Failure>> {
    made_at::fix(Some(MADE_AT));
    let (path, trace, threads) = (Vec::new(), Vec::new(), Threads::new());
    let mut explorer = Explorer { plan, report: Report::default(), path, trace, threads };
    match explorer.start() {
        Ok(()) => Ok(explorer.report),
        Err(why) => {
            let (setup, cuts) = (plan.setup.clone(), plan.cuts);
            Err(Box::new(Failure { setup, cuts, why, path: explorer.path, trace: explorer.trace }))
        }
    }
}

struct Explorer<'a> {
    plan: &'a Plan,
    report: Report,
    /// The crashes that led here, in words.
    path: Vec<String>,
    /// The events before the crash, in words.
    trace: Vec<String>,
    threads: Threads,
}

/// A run that can be cut.
struct Run {
    /// The contents of the disk before the run.
    before: Image,
    log: Vec<Step>,
    history: History,
    /// The model at the beginning of the run.
    model: Model,
    counters: Counters,
    /// Number of the first step at which the run may be cut.
    from: usize,
    /// True if the pool had the spare disk, or the space by which the disk has grown, from the beginning.
    grown: bool,
    lies: bool,
    /// True if a flush failed and the pool was dropped afterwards.
    degraded: bool,
    /// True if a request failed on the disk.
    failed: bool,
    /// Copies of the recent changes, each by the step that it precedes.
    left: BTreeMap<usize, Left>,
}

/// Facts about a pool before it is opened after a crash.
#[derive(Clone, Copy)]
struct Known {
    counters: Counters,
    /// True if the pool may have the spare disk, or the space by which the disk has grown.
    may_have_grown: bool,
    must_have_grown: bool,
    /// True if the pool has the list of volumes that lost acknowledged writes (V25).
    listed: bool,
    /// True if the journal has a commit without its first block ([`headless_commit`]).
    headless: bool,
}

impl Explorer<'_> {
    fn disk(&self, image: Image, part: u64) -> SimDisk {
        let seed = mix(self.plan.setup.disk.seed ^ mix(part));
        SimDisk::new(image, DiskOptions { seed, lie: None, ..self.plan.setup.disk.clone() })
    }

    fn start(&mut self) -> Result<(), String> {
        let setup = &self.plan.setup;
        let made = SimDisk::new(Image::new(setup.size_bytes + setup.disk.spare), setup.disk.clone());
        let created = Pool::create(&made.device(), &setup.create_options());
        created.map_err(|error| format!("making the pool: {error}"))?;
        let (before, disk) = match setup.behind {
            0 => (Image::new(setup.size_bytes + setup.disk.spare), made),
            behind => {
                let before = with_old_things(made.image(), behind);
                (before.clone(), SimDisk::new(before, setup.disk.clone()))
            }
        };
        let from = disk.time();
        let opened = open(setup, disk.with_recent(None))?;
        let mut rng = Rng::new(setup.seed).fork(1);
        opened.1.fill_host(rng.below(setup.size_bytes / 2 / PAGE as u64));
        setup.count(&mut self.report.tally);
        let mut world = World::new(setup, opened, &self.threads, Model::new(), Counters::default(), rng);
        world.populate()?;
        // Most crashes should come while the whole crowd exists.
        let from = if setup.crowd > 0 { world.disk().time() } else { from };
        self.work(world, before, Model::new(), (from, false), setup.ops, 0)
    }

    /// Lets `world` work, then cuts its run.
    fn work(
        &mut self,
        mut world: World,
        before: Image,
        model: Model,
        (from, grown): (usize, bool),
        ops: usize,
        depth: u32,
    ) -> Result<(), String> {
        let worked = world.run(ops).and_then(|()| if world.is_in_doubt() { Ok(()) } else { world.verify() });
        if let Err(why) = worked {
            self.trace = world.history().trace.iter().map(|(at, text)| format!("{at:6} {text}")).collect();
            return Err(why);
        }
        self.report.refused += world.refused();
        self.report.trimmed += world.trimmed();
        self.report.tally.add(world.tally());
        self.report.tally.count_if(world.has_failed(), "compared without a crash after something failed");
        let (failures, degraded) = (world.disk().failures(), world.is_degraded());
        let failed = world.has_failed();
        self.report.failures.add(&failures);
        let disk = world.disk().clone();
        let (history, counters) = world.abandon();
        // Taken after the world has gone, so that the log has what the pool wrote when it was dropped.
        let (log, left) = (disk.log(), disk.left());
        for (at, text) in &history.trace {
            self.mark(mix(*at as u64) ^ crate::disk::image::hash_bytes(text.as_bytes()));
        }
        let lies = depth == 0 && self.plan.setup.disk.lie.is_some();
        let run = Run { before, log, history, model, counters, from, grown, lies, degraded, failed, left };
        let cuts = if depth == 0 { self.plan.cuts } else { 4 };
        self.cut(&run, cuts, depth)
    }

    /// Adds `what` to the hash of everything that happened.
    fn mark(&mut self, what: u64) {
        self.report.trace = mix(self.report.trace ^ what);
    }

    /// Returns the steps at which a commit of several journal blocks has just arrived at the disk.
    fn commits(&self, log: &[Step], from: usize) -> Vec<usize> {
        let journal = JOURNAL_START..JOURNAL_START + self.plan.setup.journal_bytes;
        let is_commit = |step: &Step| {
            matches!(step, Step::Write { sector, data, .. }
                if journal.contains(&(sector * SECTOR as u64)) && data.len() > PAGE)
        };
        (from..log.len()).filter(|&at| is_commit(&log[at])).map(|at| at + 1).collect()
    }

    /// Cuts a run at many steps, and recovers each.
    fn cut(&mut self, run: &Run, cuts: usize, depth: u32) -> Result<(), String> {
        run.log.iter().for_each(|step| self.mark(step.hash()));
        self.report.steps += run.log.len() as u64;
        let mut rng = Rng::new(self.plan.setup.seed).fork(2 + self.report.crashes);
        let mut steps = choose(&run.log, run.from, cuts, &mut rng);
        let commits = self.commits(&run.log, run.from);
        if !commits.is_empty() {
            for at in &mut steps {
                *at = if rng.percent(25) { *rng.pick(&commits) } else { *at };
            }
            steps.sort_unstable();
        }
        let lie = if run.lies { self.plan.setup.disk.lie } else { None };
        let mut media = Media::new(run.before.clone(), lie);
        let mut model = run.model.clone();
        let (mut taken, mut happened) = (0, 0);
        for at in steps {
            run.log[taken..at].iter().for_each(|step| media.step(step));
            taken = at;
            while let Some((time, event)) = run.history.events.get(happened)
                && *time <= at
            {
                model.apply(event);
                happened += 1;
            }
            let headless = commits.binary_search(&at).is_ok() && rng.percent(50);
            // The process alone dies, and the machine goes on.
            let left = run.left.get(&at).filter(|left| left.is_complete() && !run.degraded && !run.lies && !headless);
            let (image, cut) = match left {
                Some(_) => media.die(&mut rng),
                None if headless => headless_commit(&media, &mut rng),
                None => media.crash(&mut rng),
            };
            self.report.tally.count_if(left.is_some(), "deaths of the process alone");
            self.report.crashes += 1;
            self.report.headless += u64::from(headless);
            self.report.nested += u64::from(depth > 0);
            self.report.tally.count_if(model.is_changing(), "crashes within a call that changes a volume");
            self.report.tally.count_if(model.is_busy(), "crashes with I/O under way");
            self.report.tally.count_if(run.failed, "crashes of runs in which something failed");
            let told = self.path.len();
            let what = if left.is_some() { "died" } else { "cut" };
            self.path.push(format!("{what} at step {at} of {}: {cut}", run.log.len()));
            let (may, must) = run.history.may_and_must_have_grown(at);
            let known = Known {
                counters: run.counters,
                may_have_grown: may || run.grown,
                must_have_grown: must || run.grown,
                listed: run.degraded && at == run.log.len(),
                headless,
            };
            if let Err(why) = self.recover(image, &model, (known, left), &mut rng, depth) {
                if self.trace.is_empty() {
                    let past = run.history.trace.iter().take_while(|(time, _)| *time <= at);
                    self.trace = past.map(|(time, text)| format!("{time:6} {text}")).collect();
                }
                return Err(why);
            }
            self.path.truncate(told);
        }
        Ok(())
    }

    /// Opens the pool on the contents that a crash left, and compares.
    fn recover(
        &mut self,
        image: Image,
        model: &Model,
        (known, left): (Known, Option<&Left>),
        rng: &mut Rng,
        depth: u32,
    ) -> Result<(), String> {
        let setup = &self.plan.setup;
        // An opening that is cut off by a crash of the machine loses what an earlier death had left.
        let image = if setup.disk.errors.any() && rng.percent(30) && left.is_none() {
            self.stumble(image, rng)?
        } else {
            image
        };
        let copied = setup.disk.copied > 0 && rng.percent(setup.disk.copied);
        let journal_end = JOURNAL_START + setup.journal_bytes;
        let image = if copied { image.sparse_from(journal_end) } else { image };
        let disk = self.disk(image.clone(), self.report.crashes).with_recent(left);
        disk.fill_host(if copied { 0 } else { *rng.pick(&[0, 0, 100]) });
        disk.share_host(copied);
        let (pool, disk) = open(setup, disk)?;
        disk.share_host(false);
        let (info, Known { may_have_grown: may, must_have_grown: must, .. }) = (pool.info(), known);
        let grown = info.size_bytes > setup.size_bytes;
        if (grown && !may) || (!grown && must) {
            return Err(format!("V14, V22: the pool has grown: {grown}; it may: {may}, it must: {must}"));
        }
        self.report.grown += u64::from(grown);
        let found = observe(&pool, &disk.image(), setup.seed)?;
        let settled = if left.is_some() { model.settle_alive(&found)? } else { model.settle(&found)? };
        if known.listed {
            model.is_told(&found, &info.lost)?;
        }
        audit(&pool)?;
        scrubs_clean(&pool)?;
        self.report.tally.count_if(info.deletes_only, "openings for deletes alone");
        if info.deletes_only && left.is_some() {
            // No checkpoint has made durable what the death of the process had left, so a crash may still lose it.
            return Ok(());
        }
        if info.deletes_only {
            return self.delete_some((pool, disk), (image, settled, known.counters), grown, rng, depth);
        }
        let opened = disk.time();
        let deeper = depth + 1 < MAX_DEPTH;
        if deeper && (known.headless || rng.percent(self.plan.go_on)) {
            let mut setup = setup.clone();
            if known.headless {
                // Commits of one block each overwrite the journal up to the rest of the headless one.
                (setup.mix.write, setup.mix.sync, setup.mix.turn, setup.long) = (20, 20, 60, 0);
            }
            let (pool, threads) = ((pool, disk.clone()), &self.threads);
            let world = World::new(&setup, pool, threads, settled.clone(), known.counters, rng.fork(3));
            self.check(&disk.image())?;
            return self.work(world, image, settled, (opened, grown), setup.ops / 4, depth + 1);
        }
        drop(pool);
        self.check(&disk.image())?;
        // A recovery that is cut by a crash of the machine has no recent changes, so it is another one.
        if deeper && rng.percent(self.plan.nested) && left.is_none() {
            let history = History::default();
            let (log, model, counters) = (disk.log(), model.clone(), known.counters);
            let (lies, degraded, failed) = (false, false, false);
            let (before, from, left) = (image, 0, BTreeMap::new());
            let run = Run { before, log, history, model, counters, from, grown, lies, degraded, failed, left };
            self.path.push("in the recovery".into());
            self.cut(&run, 3, depth + 1)?;
            self.path.pop();
        }
        Ok(())
    }

    /// Opens the pool on a disk that fails now and then, and crashes it. Opening may succeed, or fail with an error of
    /// the disk. Returns the disk's contents after the crash.
    fn stumble(&mut self, image: Image, rng: &mut Rng) -> Result<Image, String> {
        let setup = &self.plan.setup;
        let errors = rng.pick(&[(50, 0, 0), (200, 0, 0), (0, 80, 0), (0, 0, 100), (20, 20, 20)]);
        let errors = Errors { read: errors.0, write: errors.1, flush: errors.2, journal: 0 };
        let seed = rng.draw();
        let disk = SimDisk::new(image, DiskOptions { seed, lie: None, errors, slow: 0, ..setup.disk.clone() });
        disk.hold(true);
        let opened = open_as(setup, disk.clone());
        disk.hold(false);
        match opened {
            Ok(_) | Err(PoolError::Io { .. } | PoolError::Degraded { .. }) => {}
            // Neither superblock could be read, and a copy could.
            Err(PoolError::Format { .. }) if errors.read > 0 => {}
            Err(error) => return Err(format!("the pool does not open on a disk that fails: {error}")),
        }
        drop(opened);
        self.report.failures.add(&disk.failures());
        self.report.tally.count_if(disk.failures() != Failures::default(), "openings on a disk that failed meanwhile");
        let (left, cut) = disk.crash(rng);
        self.path.push(format!("opened on a disk that fails ({errors:?}), then {cut}"));
        Ok(left)
    }

    /// Checks that `check` finds nothing, and that the numbers of units in its report add up.
    fn check(&self, image: &Image) -> Result<(), String> {
        let report = check_image(image).map_err(|error| format!("check fails: {error}"))?;
        if !report.is_clean() {
            let findings: Vec<String> = report.findings.iter().map(|finding| format!("\n  {finding}")).collect();
            return Err(format!("check finds{}", findings.concat()));
        }
        let totals = report.totals;
        let sum = totals.reserved_units + totals.metadata_units + totals.data_units + totals.free_units;
        if sum != totals.units {
            return Err(format!("check's units do not add up to {}: {totals:?}", totals.units));
        }
        Ok(())
    }
}

/// Extends the disk of a pool by `behind` bytes. In turn they hold zeroes, noise, and blocks of the same pool like an
/// older copy of it would have left them.
fn with_old_things(mut image: Image, behind: u64) -> Image {
    let (size, block) = (image.size_bytes(), PAGE as u64);
    image.grow(size + behind);
    for (number, at) in (size..size + behind).step_by(PAGE).enumerate() {
        let mut bytes = [0xa5; PAGE];
        if number % 3 == 2 {
            image.read(number as u64 % (size / block) * block / SECTOR as u64, &mut bytes);
        }
        if number % 3 > 0 {
            image.write(at / SECTOR as u64, &bytes);
        }
    }
    image
}

/// Opens the pool. Tries it without the spare disk first, which must be refused exactly if the pool has that disk.
fn open(setup: &Setup, disk: SimDisk) -> Result<(Pool, SimDisk), String> {
    open_as(setup, disk).map_err(|error| format!("the pool does not open: {error}"))
}

fn open_as(setup: &Setup, disk: SimDisk) -> Result<(Pool, SimDisk), PoolError> {
    let options = with_recent_memory(setup.open_options(), disk.recent());
    match Pool::open(&disk.device(), &options) {
        Err(PoolError::Members { .. }) if disk.spare().is_some() => {
            let disk = disk.joined()?;
            Ok((Pool::open(&disk.device(), &options)?, disk))
        }
        opened => Ok((opened?, disk)),
    }
}

/// Returns the contents left when a commit that has just arrived loses its first block and nothing else. Recovery must
/// never take the other blocks of that commit for blocks of a later commit.
fn headless_commit(media: &Media, rng: &mut Rng) -> (Image, Cut) {
    let loose = media.loose();
    let mut cut = Cut::draw(&loose, rng);
    if let Some(last) = cut.fates.last_mut() {
        // The mask clears the first eight sectors, which are the first block.
        *last = Fate::Torn(!0xff);
    }
    (media.crash_as(&cut), cut)
}

/// Draws `cuts` of the steps at which the run is cut, or takes all of them if there are no more. About half of the
/// drawn ones are next to a flush, because most writes are not durable yet at that point. Returns them in ascending
/// order.
fn choose(log: &[Step], from: usize, cuts: usize, rng: &mut Rng) -> Vec<usize> {
    let to = log.len();
    if to - from < cuts {
        return (from..=to).collect();
    }
    let flushes: Vec<usize> = (from..to).filter(|&at| matches!(log[at], Step::Flush { .. })).collect();
    let mut steps: Vec<usize> = (0..cuts)
        .map(|_| match flushes.as_slice() {
            flushes @ [_, ..] if rng.percent(50) => rng.pick(flushes) + rng.below(2) as usize,
            _ => rng.between(from as u64, to as u64) as usize,
        })
        .collect();
    steps.sort_unstable();
    steps
}
