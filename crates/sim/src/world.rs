//! A pool on a simulated disk with engines at work on it, and the model beside it.
//!
//! Owns [`World`]: it carries operations out on both, checks every read against the model at once, and keeps what
//! happened, stamped with the disk's time, so that crashes can be cut out of it later. Which operations there are and
//! which is next is drawn in `act`.

mod act;

use std::collections::BTreeMap;

use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_vol::{AddOptions, Pool, PoolError, Volume};

use crate::audit::audit;
use crate::disk::{SECTOR, SimDisk};
use crate::engine::{Direct, Ended, Engine, Rings, Want};
use crate::model::{Change, Event, Model};
use crate::observe::observe;
use crate::rng::Rng;
use crate::setup::Setup;
use crate::tag::{Value, identify};

/// Turns without an end after which a request is stuck.
const MAX_TURNS: u32 = 200_000;

/// Numbers that are never used twice, also after a crash.
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
enum Pending {
    Write { len: u64, grows: bool },
    Read { volume: u32, sector: u64, since: u64 },
    Sync,
}

/// What happened in a run: enough to cut it anywhere.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Events of the model, with the disk's time.
    pub events: Vec<(usize, Event)>,
    /// The same in words, with reads.
    pub trace: Vec<(usize, String)>,
    /// When the spare disk began to be added to the pool, and when that had ended.
    pub grew: Option<(usize, Option<usize>)>,
}

impl History {
    /// Whether the pool may have the spare disk after a crash at this time, and whether it must.
    #[must_use]
    pub fn may_and_must_have_grown(&self, time: usize) -> (bool, bool) {
        self.grew.map_or((false, false), |(from, to)| (from <= time, to.is_some_and(|to| to <= time)))
    }
}

/// A pool at work.
pub struct World {
    setup: Setup,
    disk: SimDisk,
    pool: Option<Pool>,
    engines: Vec<Box<dyn Engine>>,
    files: BTreeMap<u32, Arc<dyn File>>,
    model: Model,
    counters: Counters,
    pending: BTreeMap<u64, Pending>,
    history: History,
    /// Each operation draws from a fork of its own.
    base: Rng,
    rng: Rng,
    /// Operations that the pool refused because it was full.
    refused: u64,
    /// The last operation before the pool got the spare disk, and what was free then.
    free_before_growth: Option<(u64, u64)>,
}

impl World {
    /// A world around a pool that is open on the disk; the model says what is in it.
    #[must_use]
    pub fn new(setup: &Setup, disk: SimDisk, pool: Pool, model: Model, counters: Counters, rng: Rng) -> World {
        let mut world = World {
            setup: setup.clone(),
            disk,
            pool: Some(pool),
            engines: Vec::new(),
            files: BTreeMap::new(),
            model,
            counters,
            pending: BTreeMap::new(),
            history: History::default(),
            base: rng.clone(),
            rng,
            refused: 0,
            free_before_growth: None,
        };
        world.start_engines();
        world
    }

    fn start_engines(&mut self) {
        let engine = |_| -> Box<dyn Engine> {
            if self.setup.rings { Box::new(Rings::new(&self.disk)) } else { Box::new(Direct::new(&self.disk.device())) }
        };
        self.engines = (0..self.setup.engines).map(engine).collect();
    }

    /// The model as it is now.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Numbers that the next run goes on with.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Operations that the pool refused because it was full.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// What happened.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Compares everything that the pool holds with the model, when nothing is under way; flushes the pool first, for
    /// what is shared loses an owner with the commit.
    pub fn verify(&mut self) -> Result<(), String> {
        self.sync_pool()?;
        let found = observe(self.pool()?, &self.disk.image(), self.setup.seed)?;
        self.model.is_readable(&found)?;
        audit(self.pool()?)
    }

    fn pool(&self) -> Result<&Pool, String> {
        self.pool.as_ref().ok_or_else(|| "the pool is closed".to_string())
    }

    fn note(&mut self, text: String) {
        self.history.trace.push((self.disk.time(), text));
    }

    fn record(&mut self, event: Event) {
        self.model.apply(&event);
        self.history.events.push((self.disk.time(), event));
    }

    /// The number for the next operation.
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

    /// Sends a request to one of the engines.
    fn submit(
        &mut self,
        volume: u32,
        name: &str,
        pos: u64,
        want: Want,
        pending: Pending,
        op: u64,
    ) -> Result<(), String> {
        let file = self.file(volume, name)?;
        self.pending.insert(op, pending);
        let engine = self.rng.below(self.engines.len() as u64) as usize;
        self.engines[engine].submit(op, &file, pos, want);
        Ok(())
    }

    /// Lets one engine go one step.
    fn turn(&mut self, engine: usize) -> Result<(), String> {
        let calm = self.engines.iter().all(|one| one.counted() == 0);
        for ended in self.engines[engine].turn(calm) {
            self.ended(ended)?;
        }
        Ok(())
    }

    /// Lets all engines go on until no request is left.
    pub fn drain(&mut self) -> Result<(), String> {
        for _ in 0..MAX_TURNS {
            if self.engines.iter().all(|engine| engine.busy() == 0) {
                return Ok(());
            }
            for engine in 0..self.engines.len() {
                self.turn(engine)?;
            }
        }
        Err(format!("requests that do not end: {:?}", self.pending))
    }

    fn ended(&mut self, ended: Ended) -> Result<(), String> {
        let Ended { op, status, data } = ended;
        let Some(pending) = self.pending.remove(&op) else { return Err(format!("request {op} ended twice")) };
        self.note(format!("request {op} has ended: {status}"));
        match pending {
            Pending::Write { len, grows } => {
                self.record(Event::Wrote { op, ok: status.is_ok() });
                match status {
                    Status::Ok => Ok(()),
                    // It has given back what it had.
                    Status::NoSpc if grows => self.note_refused(),
                    Status::NoSpc => self.check_full(op, len),
                    status => Err(format!("write {op} failed: {status}")),
                }
            }
            Pending::Sync => {
                self.record(Event::Synced { op, ok: status.is_ok() });
                if status.is_ok() { Ok(()) } else { Err(format!("flush {op} failed: {status}")) }
            }
            Pending::Read { volume, sector, since } => {
                if !status.is_ok() {
                    return Err(format!("read {op} failed: {status}"));
                }
                let checked = self.check_read(op, volume, sector, since, &data);
                self.model.end_read(since);
                checked
            }
        }
    }

    fn check_read(&self, op: u64, volume: u32, first: u64, since: u64, data: &[u8]) -> Result<(), String> {
        let Some(known) = self.model.volume(volume) else { return Err(format!("read {op} of no volume")) };
        for (at, bytes) in data.chunks(SECTOR).enumerate() {
            let sector = first + at as u64;
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

    /// A write was refused for want of space: there must be little, or have been before the pool grew, if it was under
    /// way then: what it found may be told later.
    fn check_full(&mut self, op: u64, len: u64) -> Result<(), String> {
        self.refused += 1;
        let info = self.pool()?.info();
        let before = self.free_before_growth.filter(|(last, _)| op <= *last);
        let free = before.map_or(info.free_bytes, |(_, free)| free.min(info.free_bytes));
        // Every unit that the write touches, copied, and one more at each end.
        let most = len.next_multiple_of(info.unit_bytes) + 2 * info.unit_bytes;
        if free > most {
            return Err(format!("a write of {len} bytes found the pool full, with {free} bytes free"));
        }
        Ok(())
    }

    /// Makes a change to volumes as a whole: by the pool, and by the model.
    fn change(&mut self, change: Change) -> Result<(), String> {
        self.drain()?;
        self.note(change.to_string());
        self.record(Event::Change(change.clone()));
        let result = self.call(&change);
        self.note(format!("-> {}", result.as_ref().map_or_else(ToString::to_string, |()| "done".into())));
        self.record(Event::Changed { ok: result.is_ok() });
        match result {
            Ok(()) => Ok(()),
            Err(PoolError::Full { .. }) if !matches!(change, Change::Delete { .. }) => {
                self.refused += 1;
                Ok(())
            }
            Err(error) => Err(format!("{change}: {error}")),
        }
    }

    fn call(&mut self, change: &Change) -> Result<(), PoolError> {
        let closed = || PoolError::Invalid { what: "the pool is closed".into(), fix: "Open it".into() };
        let pool = self.pool.clone().ok_or_else(closed)?;
        match change {
            Change::Create { name, size, max: None, .. } => pool.create_volume(name, *size).map(drop),
            Change::Create { name, size, max: Some(max), .. } => {
                pool.create_growing_volume(name, *size, *max).map(drop)
            }
            Change::Limit { name, max } => pool.set_max_size(name, *max),
            Change::Copy { source, name, snapshot: true, .. } => pool.snapshot(source, name),
            Change::Copy { source, name, .. } => pool.clone_volume(source, name),
            Change::Rollback { name, snapshot } => pool.rollback(name, snapshot),
            Change::Rename { name, new } => pool.rename(name, new),
            Change::Resize { name, size } => pool.resize(name, *size),
            Change::Delete { name } => {
                if let Some(id) = self.model.volumes().get(name).map(|volume| volume.id)
                    && let Some(file) = self.files.remove(&id)
                {
                    self.engines.iter_mut().for_each(|engine| engine.detach(&file));
                }
                pool.delete(name)
            }
        }
    }

    /// Flushes the whole pool.
    fn sync_pool(&mut self) -> Result<(), String> {
        let op = self.op();
        self.note(format!("flush {op} of the pool"));
        self.record(Event::Sync { op, volume: None });
        let result = self.pool()?.sync();
        self.record(Event::Synced { op, ok: result.is_ok() });
        result.map_err(|error| format!("flushing the pool: {error}"))
    }

    /// Adds the spare disk, if there still is one; requests stay under way.
    fn grow(&mut self) -> Result<(), String> {
        let Some(spare) = self.disk.spare() else { return self.go_on() };
        self.note("add the spare disk".into());
        self.history.grew = Some((self.disk.time(), None));
        let before = self.pool()?.info();
        self.free_before_growth = Some((self.counters.next_op, before.free_bytes));
        let size = self.pool()?.add_member(&spare, &AddOptions::default());
        let size = size.map_err(|error| format!("adding the spare disk: {error}"))?;
        self.history.grew = self.history.grew.map(|(from, _)| (from, Some(self.disk.time())));
        self.note("-> done".into());
        self.disk.has_grown();
        let info = self.pool()?.info();
        if size != before.size_bytes + spare.size_bytes() || info.size_bytes != size || info.members.len() < 2 {
            return Err(format!("a disk of {} bytes was added: {info:?}, before: {before:?}", spare.size_bytes()));
        }
        Ok(())
    }

    /// Closes the pool, which must not lose anything, and opens it again.
    fn reopen(&mut self) -> Result<(), String> {
        self.drain()?;
        self.note("close and open".into());
        self.close()?;
        let options = self.setup.open_options();
        let pool = Pool::open(&self.disk.device(), &options).map_err(|error| format!("opening again: {error}"))?;
        if pool.info().recovered {
            return Err("a pool that was closed had to be recovered".into());
        }
        self.pool = Some(pool);
        self.start_engines();
        Ok(())
    }

    /// Closes the pool.
    pub fn close(&mut self) -> Result<(), String> {
        self.drain()?;
        self.engines.clear();
        self.files.clear();
        let op = self.op();
        self.record(Event::Sync { op, volume: None });
        let pool = self.pool.take().ok_or("the pool is closed")?;
        let result = pool.close();
        self.record(Event::Synced { op, ok: result.is_ok() });
        result.map_err(|error| format!("closing: {error}"))
    }

    /// Ends the run as a process does that is killed: nothing is closed, what the disk has stays.
    #[must_use]
    pub fn abandon(mut self) -> (History, Counters) {
        self.engines.clear();
        self.files.clear();
        self.pool = None;
        (std::mem::take(&mut self.history), self.counters)
    }
}

impl Drop for World {
    /// A panic in what is simulated is a failure too: what led to it is told.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hidden = self.history.trace.len().saturating_sub(40);
            self.history.trace[hidden..].iter().for_each(|(at, text)| eprintln!("{at:6} {text}"));
            eprintln!("in the run of seed {}", self.setup.seed);
        }
    }
}
