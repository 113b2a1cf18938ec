//! A pool on a simulated disk with engines at work on it, and the model beside it.
//!
//! Owns [`World`]. It applies each operation to the pool and to the model, checks every read against the model when the
//! read ends, and records events with the disk's time, so that [`explore`](mod@crate::explore) can cut the run at any
//! of them. `act` draws the next operation; `calls` has the calls on the pool, which take several steps while I/O goes
//! on.

mod act;
mod calls;
mod doubt;
mod job;
mod met;

use std::collections::{BTreeMap, BTreeSet};

use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_vol::{Checksum, Pool, Volume, with_recent_memory};

use crate::audit::{audit, audit_metadata};
use crate::disk::{Failures, Lie, SECTOR, SimDisk};
use crate::engine::{Direct, Ended, Engine, Rings, Want};
use crate::model::{Change, Event, Model};
use crate::observe::observe;
use crate::setup::Setup;
use crate::tag::{Value, identify};
use crate::tally::Tally;
use crate::threads::Threads;
use job::PoolCall;
use sheave_base::rng::Rng;

/// Number of turns of the engines after which a request that has not ended counts as stuck.
const MAX_TURNS: u32 = 200_000;

/// The next unused numbers. The run after a crash continues with them, so that no number is used twice.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    next_op: u64,
    next_value: Value,
    next_volume: u32,
}

impl Default for Counters {
    fn default() -> Self {
        Counters { next_op: 1, next_value: 1, next_volume: 1 }
    }
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    volume: u32,
    what: Doing,
    pos: u64,
    len: u64,
    /// True if a call under way may cut off the range before the request gets there; then the request may fail.
    may_fail: bool,
    /// Value of [`World::given_back`] when the request was issued.
    given_back: u64,
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Write {
        grows: bool,
        dsync: bool,
    },
    Zero,
    /// `slow` is true if the disk holds the read for long.
    Read {
        since: u64,
        slow: bool,
    },
    Sync,
}

impl Pending {
    fn end(&self) -> u64 {
        self.pos + self.len
    }

    fn writes(&self) -> bool {
        matches!(self.what, Doing::Write { .. } | Doing::Zero)
    }
}

/// The range of a slow read, to which most I/O goes for a while.
#[derive(Clone, Copy, Debug)]
struct Hot {
    /// Family of the volume that is read: all volumes that may share units with it.
    family: u32,
    pos: u64,
    /// Number of operations until I/O spreads out again.
    ops: u64,
}

/// The events of a run with their times: enough to cut the run at any of them.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Events of the model, with the disk's time.
    pub events: Vec<(usize, Event)>,
    /// The events and the reads in words, with the disk's time.
    pub trace: Vec<(usize, String)>,
    /// Time at which the addition of the spare disk began, and the time at which it had ended.
    pub grew: Option<(usize, Option<usize>)>,
}

impl History {
    /// Returns two bools: true if the pool may have the spare disk after a crash at `time`, and true if it must have
    /// it.
    #[must_use]
    pub fn may_and_must_have_grown(&self, time: usize) -> (bool, bool) {
        self.grew.map_or((false, false), |(from, to)| (from <= time, to.is_some_and(|to| to <= time)))
    }
}

pub struct World {
    setup: Setup,
    disk: SimDisk,
    pool: Option<Pool>,
    engines: Vec<Box<dyn Engine>>,
    threads: Threads,
    calls: Vec<PoolCall>,
    files: BTreeMap<u32, Arc<dyn File>>,
    model: Model,
    counters: Counters,
    pending: BTreeMap<u64, Pending>,
    history: History,
    /// Forked for each operation, so that leaving out one operation does not change the draws of the others.
    base: Rng,
    rng: Rng,
    refused: u64,
    /// Number of bytes that trims and discards returned to the disk.
    trimmed: u64,
    /// True if a call failed on the disk and only a crash shows whether it took effect. No operation begins any more.
    in_doubt: bool,
    /// A change that failed on the disk, and true if the pool reported it as made. The next flush of the pool settles
    /// it.
    unsettled: Option<(Change, bool)>,
    /// Numbers of the volumes that grow and on which a DSYNC write failed, which may have raised their size.
    resized: BTreeSet<u32>,
    /// Number of the last operation that began before a flush failed. No later one may succeed (V25).
    degraded: Option<u64>,
    hot: Option<Hot>,
    /// Counts the begins and ends of all operations that free space or take some for a while. If it is unchanged over a
    /// write, the free space during the write was stable.
    given_back: u64,
    tally: Tally,
    /// Counters of failed commits when [`World::inspect`] ran last.
    #[cfg(debug_assertions)]
    inspected: [u64; 3],
}

impl World {
    /// Returns a world around `pool`, which is open on `disk` and has the contents of `model`.
    #[must_use]
    pub fn new(
        setup: &Setup,
        (pool, disk): (Pool, SimDisk),
        threads: &Threads,
        model: Model,
        counters: Counters,
        rng: Rng,
    ) -> World {
        let mut world = World {
            setup: setup.clone(),
            disk,
            pool: Some(pool),
            engines: Vec::new(),
            threads: threads.clone(),
            calls: Vec::new(),
            files: BTreeMap::new(),
            model,
            counters,
            pending: BTreeMap::new(),
            history: History::default(),
            base: rng.clone(),
            rng,
            refused: 0,
            trimmed: 0,
            in_doubt: false,
            unsettled: None,
            resized: BTreeSet::new(),
            degraded: None,
            hot: None,
            given_back: 0,
            tally: Tally::default(),
            #[cfg(debug_assertions)]
            inspected: [0; 3],
        };
        world.threads.set_gaps(world.rng.fork(0x6a9).draw(), setup.gaps);
        world.start_engines();
        world
    }

    fn start_engines(&mut self) {
        let engine = |_| -> Box<dyn Engine> {
            match self.setup.rings {
                true => Box::new(Rings::new(&self.threads)),
                false => Box::new(Direct::new(&self.disk.device(), &self.threads)),
            }
        };
        self.engines = (0..self.setup.engines).map(engine).collect();
    }

    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the numbers with which the run after a crash continues.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    #[must_use]
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    #[must_use]
    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }

    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns true if a call on the pool failed and only a crash shows whether it took effect.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Returns true if a flush of the disk has failed, or a write with FUA: from then on the pool takes no changes
    /// (V25).
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.disk.failures().flushes > 0
    }

    /// Returns true if any request has failed on the disk.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.disk.failures() != Failures::default()
    }

    /// Compares all contents of the pool with the model, while nothing is under way. Flushes the pool first, because a
    /// shared unit loses an owner only with the commit, and the audit compares owners.
    pub fn verify(&mut self) -> Result<(), String> {
        if self.is_degraded() {
            self.drain()?;
            if self.pool()?.sync().is_ok() {
                return Err("V25: a flush has failed, and one after it ended well".into());
            }
            let found = observe(self.pool()?, &self.disk.image(), self.setup.seed)?;
            return self.model.is_readable(&found);
        }
        self.sync_pool()?;
        self.measure_cut()?;
        let found = observe(self.pool()?, &self.disk.image(), self.setup.seed)?;
        self.model.is_readable(&found)?;
        audit(self.pool()?)?;
        // A full file system keeps pages mapped that the audit expects to be holes.
        if self.setup.disk.host.is_none() {
            audit_metadata(self.pool()?, &self.disk)?;
        }
        Ok(())
    }

    /// Returns the pool, or an error once it has been closed.
    pub fn pool(&self) -> Result<&Pool, String> {
        self.pool.as_ref().ok_or_else(|| "the pool is closed".to_string())
    }

    fn note(&mut self, text: String) {
        self.history.trace.push((self.disk.time(), text));
    }

    fn record(&mut self, event: Event) {
        self.model.apply(&event);
        self.history.events.push((self.disk.time(), event));
    }

    fn op(&mut self) -> u64 {
        self.counters.next_op += 1;
        self.counters.next_op
    }

    fn file(&mut self, id: u32, name: &str) -> Result<Arc<dyn File>, String> {
        if let Some(file) = self.files.get(&id) {
            return Ok(Arc::clone(file));
        }
        let volume: Volume = self.pool()?.open_volume(name).map_err(|error| format!("opening '{name}': {error}"))?;
        let file: Arc<dyn File> = Arc::new(volume);
        self.files.insert(id, Arc::clone(&file));
        Ok(file)
    }

    /// Sends a request to an engine drawn at random.
    fn submit(&mut self, name: &str, want: Want, pending: Pending, op: u64) -> Result<(), String> {
        let file = self.file(pending.volume, name)?;
        let pending = Pending {
            may_fail: self.may_be_cut_off(pending.volume, pending.end()),
            given_back: self.given_back,
            ..pending
        };
        if matches!(pending.what, Doing::Zero | Doing::Sync) {
            self.given_back += 1;
        }
        self.pending.insert(op, pending);
        self.note_io(pending.volume);
        let engine = self.rng.below(self.engines.len() as u64) as usize;
        self.engines[engine].submit(op, &file, pending.pos, want);
        Ok(())
    }

    /// Lets engine or call `number` make one step. Calls follow the engines in the numbering.
    fn step(&mut self, number: usize) -> Result<(), String> {
        self.disk.tick();
        let failures = self.disk.failures();
        if number < self.engines.len() {
            let all = self.engines[number].turn();
            self.met_failures(&failures);
            return all.into_iter().try_for_each(|ended| self.ended(ended));
        }
        if let Some(&call) = self.threads.running().get(number - self.engines.len()) {
            let time_up = self.rng.percent(self.setup.impatience);
            self.threads.step(call, time_up);
            self.met_failures(&failures);
        }
        self.end_calls()
    }

    /// Returns the number of engines and calls that can be stepped.
    fn steppable(&self) -> usize {
        self.engines.len() + self.threads.running().len()
    }

    fn is_idle(&self) -> bool {
        self.engines.iter().all(|engine| engine.busy() == 0) && self.threads.running().is_empty()
    }

    /// Steps everything until no request and no call is left.
    pub fn drain(&mut self) -> Result<(), String> {
        self.disk.hold(false);
        for _ in 0..MAX_TURNS {
            if self.is_idle() {
                return self.end_calls();
            }
            (0..self.steppable()).try_for_each(|number| self.step(number))?;
        }
        Err(self.stuck())
    }

    /// Steps engines and calls in random order until `done` returns true.
    fn go_on_until(&mut self, done: impl Fn(&World) -> bool) -> Result<(), String> {
        for _ in 0..MAX_TURNS {
            if done(self) {
                return Ok(());
            }
            let number = self.rng.below(self.steppable() as u64) as usize;
            self.step(number)?;
        }
        Err(self.stuck())
    }

    fn stuck(&self) -> String {
        let engines: Vec<String> = self.engines.iter().map(|engine| format!("\n  {}", engine.describe())).collect();
        let (held, engines) = (self.disk.held(), engines.concat());
        format!("what does not end: {:?}, calls {:?}, {held} with the disk{engines}", self.pending, self.calls)
    }

    fn ended(&mut self, ended: Ended) -> Result<(), String> {
        let Ended { op, status, data } = ended;
        let Some(pending) = self.pending.remove(&op) else { return Err(format!("request {op} ended twice")) };
        self.note(format!("request {op} has ended: {status}"));
        // A cut does not excuse the failure of a write to a volume that grows: a write that comes after the cut raises
        // the size again.
        let may_fail = pending.may_fail && !matches!(pending.what, Doing::Write { grows: true, .. });
        let cut_off = may_fail && matches!(status, Status::NoSpc | Status::Invalid | Status::IoErr);
        let cut_off = cut_off || self.is_expected(status);
        let reads = matches!(pending.what, Doing::Read { .. });
        if status.is_ok() && !reads && self.degraded.is_some_and(|since| op > since) {
            return Err(format!("V25: request {op} began after a flush had failed, and ended well"));
        }
        match pending.what {
            Doing::Write { grows, dsync } => {
                self.record(Event::Wrote { op, ok: status.is_ok() });
                if grows && dsync && !status.is_ok() {
                    self.resized.insert(pending.volume);
                }
                match status {
                    Status::Ok => Ok(()),
                    _ if cut_off => Ok(()),
                    // A failed write gave its units back, so `check_full` could not see how little space the write
                    // found.
                    Status::NoSpc if grows => self.note_refused(),
                    Status::NoSpc => self.check_full(op, &pending),
                    status => Err(format!("write {op} failed: {status}")),
                }
            }
            Doing::Zero => {
                self.given_back += 1;
                self.record(Event::Wrote { op, ok: status.is_ok() });
                match status {
                    Status::NoSpc if !cut_off => self.check_full(op, &pending),
                    status if status.is_ok() || cut_off => Ok(()),
                    status => Err(format!("discard {op} failed: {status}")),
                }
            }
            Doing::Sync => {
                self.given_back += 1;
                self.record(Event::Synced { op, ok: status.is_ok() });
                if status.is_ok() || cut_off { Ok(()) } else { Err(format!("flush {op} failed: {status}")) }
            }
            Doing::Read { since, .. } => {
                let checked = match status {
                    Status::Ok => self.check_read(op, &pending, since, &data),
                    _ if cut_off => Ok(()),
                    status => Err(format!("read {op} failed: {status}")),
                };
                self.model.end_read(since);
                checked
            }
        }
    }

    /// Returns true if a fault of the simulated disk explains `status`.
    fn is_expected(&self, status: Status) -> bool {
        match status {
            Status::IoErr => self.setup.disk.errors.any(),
            Status::NoSpc => self.setup.disk.host.is_some(),
            Status::Protection => self.misdirects(),
            _ => false,
        }
    }

    /// Returns true if the disk puts some writes in a wrong place.
    fn misdirects(&self) -> bool {
        self.setup.disk.lie == Some(Lie::Misdirects)
    }

    fn check_read(&self, op: u64, pending: &Pending, since: u64, data: &[u8]) -> Result<(), String> {
        let volume = pending.volume;
        if self.misdirects() && self.setup.checksum == Checksum::None {
            return Ok(()); // Without checksums a misdirected write cannot be told from a good one.
        }
        let Some(known) = self.model.volume(volume) else { return Err(format!("read {op} of no volume")) };
        for (at, bytes) in data.chunks(SECTOR).enumerate() {
            let sector = pending.pos / SECTOR as u64 + at as u64;
            let seen = identify(self.setup.seed, bytes);
            let fits = seen.value_at(sector).is_some_and(|value| known.readable(sector, since).any(|may| may == value));
            if !fits {
                let may: Vec<Value> = known.readable(sector, since).collect();
                return Err(format!("read {op} of volume {volume}, sector {sector}: {seen}; may be there: {may:?}"));
            }
        }
        Ok(())
    }

    fn note_refused(&mut self) -> Result<(), String> {
        self.refused += 1;
        Ok(())
    }

    /// Checks that there was little free space when a write was refused for want of space. Space that others hold for a
    /// while counts as taken. Accepts the refusal if space was given back meanwhile, because that may have come too
    /// late for this write.
    fn check_full(&mut self, op: u64, pending: &Pending) -> Result<(), String> {
        self.refused += 1;
        if pending.given_back != self.given_back || !self.calls.is_empty() {
            return Ok(());
        }
        let info = self.pool()?.info();
        // A write may copy every unit that it touches, and its two ends may touch one unit more each.
        let most = |len: u64| len.next_multiple_of(info.unit_bytes) + 2 * info.unit_bytes;
        let others: u64 = self.pending.values().filter(|one| one.writes()).map(|one| most(one.len)).sum();
        let free = info.free_bytes;
        if free > most(pending.len) + others {
            let len = pending.len;
            return Err(format!("write {op} of {len} bytes found the pool full, with {free} bytes free"));
        }
        Ok(())
    }

    fn sync_pool(&mut self) -> Result<(), String> {
        self.drain()?;
        let op = self.op();
        self.note(format!("flush {op} of the pool"));
        self.record(Event::Sync { op });
        let result = self.pool()?.sync();
        self.record(Event::Synced { op, ok: result.is_ok() });
        result.map_err(|error| format!("flushing the pool: {error}"))
    }

    /// Closes the pool and opens it again. Opening must need no recovery.
    fn reopen(&mut self) -> Result<(), String> {
        self.drain()?;
        self.note("close and open".into());
        self.close()?;
        let options = with_recent_memory(self.setup.open_options(), self.disk().recent());
        let pool = Pool::open(&self.disk.device(), &options).map_err(|error| format!("opening again: {error}"))?;
        if pool.info().recovered {
            return Err("a pool that was closed had to be recovered".into());
        }
        self.pool = Some(pool);
        #[cfg(debug_assertions)]
        {
            self.inspected = [0; 3];
        }
        self.start_engines();
        Ok(())
    }

    /// Ends everything under way and closes the pool.
    pub fn close(&mut self) -> Result<(), String> {
        self.drain()?;
        self.engines.clear();
        self.files.clear();
        let op = self.op();
        self.record(Event::Sync { op });
        self.inspect()?;
        let pool = self.pool.take().ok_or("the pool is closed")?;
        let result = pool.close();
        self.record(Event::Synced { op, ok: result.is_ok() });
        result.map_err(|error| format!("closing: {error}"))
    }

    /// Ends the run like SIGKILL ends a process: nothing is closed, and the disk keeps its contents.
    #[must_use]
    pub fn abandon(mut self) -> (History, Counters) {
        self.give_up();
        self.engines.clear();
        self.files.clear();
        self.pool = None;
        (std::mem::take(&mut self.history), self.counters)
    }

    /// Abandons requests and calls under way, so that no simulated thread waits for them.
    fn give_up(&mut self) {
        self.disk.hold(false);
        self.threads.give_up();
        self.calls.clear();
    }
}

impl Drop for World {
    /// Prints the last events if a panic unwinds through a run, because a panic is a finding and the trace leads to its
    /// cause.
    fn drop(&mut self) {
        self.give_up();
        if std::thread::panicking() {
            let hidden = self.history.trace.len().saturating_sub(40);
            self.history.trace[hidden..].iter().for_each(|(at, text)| eprintln!("{at:6} {text}"));
            eprintln!("in the run of seed {}", self.setup.seed);
        }
    }
}
