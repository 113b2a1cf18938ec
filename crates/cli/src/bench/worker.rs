//! The threads of a run. They go through the phases together, each with its own ring.
//!
//! ```text
//! setup -> [fill] -> run (or compare) -> [read back]
//! ```
//!
//! * I1. Every thread passes every gate, whether its phase succeeded or not. After a gate at which a thread has
//!   reported a failure, no thread continues. So no thread waits for one that has ended.
//! * I2. The run is timed between two gates: from the moment when all threads are ready until the last thread has
//!   reaped its last I/O.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use hdrhistogram::Histogram;
use sheave::Device;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_daemon::failure::Failure;
use sheave_drivers::ram::RamMemory;
use sheave_load::LoadError;
use sheave_load::cpu::{self, CpuMeter, Spent, Watch};
use sheave_load::live::Counts;
use sheave_load::looper::{Driven, IoError, Looper, Until};
use sheave_load::pace::Pace;
use sheave_load::pattern::Pattern;
use sheave_load::verify::checker::Task;
use sheave_load::verify::{Checked, Checker, Tally, Wrong};

use crate::bench::board::{Board, Goal, Phase};
use crate::bench::compare::{self, Arena, Comparison};
use crate::bench::plan::{Part, Plan};
use crate::bench::subject::RawPeer;

/// State that all threads of a run share.
pub struct Crew {
    pub plan: Plan,
    /// Length of the range in use.
    pub range: u64,
    /// True if the peer's file is opened with O_DIRECT.
    pub direct: bool,
    /// The raw device that the volume is compared with.
    pub raw: Option<RawPeer>,
    /// The memory that a ram device is compared with.
    pub memory: Option<RamMemory>,
    /// Identity of a verified run.
    pub run_id: u64,
    /// State for the progress display.
    pub board: Board,
    /// Measures CPU time.
    pub meter: CpuMeter,
    /// Set by Ctrl-C.
    pub stop: Arc<AtomicBool>,
    gate: Barrier,
    failed: AtomicBool,
    watch: Mutex<Option<Watch>>,
    spent: Mutex<Spent>,
    /// Latencies of the run phase. Stored because the next phase resets the counters.
    latency: Mutex<Option<Histogram<u64>>>,
}

/// Results of one thread.
#[derive(Default)]
pub struct Harvest {
    /// Counts of the run phase.
    pub counts: Counts,
    /// The first failed I/O.
    pub first_error: Option<IoError>,
    /// Numbers of verified blocks.
    pub tally: Tally,
    /// The wrong block that ended the run.
    pub wrong: Option<Wrong>,
    pub comparison: Option<Comparison>,
}

impl Crew {
    pub fn new(
        plan: Plan,
        range: u64,
        device: &Device,
        raw: Option<RawPeer>,
        run_id: u64,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let threads = plan.args.threads;
        Self {
            board: Board::new(threads),
            gate: Barrier::new(threads as usize),
            plan,
            range,
            direct: device.capabilities().direct_io,
            raw,
            memory: RamMemory::of(device),
            run_id,
            meter: CpuMeter::default(),
            stop,
            failed: AtomicBool::new(false),
            watch: Mutex::new(None),
            spent: Mutex::new(Spent::default()),
            latency: Mutex::new(None),
        }
    }

    /// Returns the time of the run phase.
    pub fn spent(&self) -> Spent {
        *lock(&self.spent)
    }

    /// Returns the latencies of the run phase, or of the earlier phase in which the run ended.
    pub fn latency(&self) -> Histogram<u64> {
        lock(&self.latency).take().unwrap_or_else(|| self.board.latency())
    }

    /// Waits for all threads; one of them then calls `then`. Returns true if no thread has failed, so that all continue
    /// (I1).
    fn gate(&self, well: bool, then: impl FnOnce()) -> bool {
        if !well {
            // Release: pairs with the acquire load below; the barrier orders it anyway.
            self.failed.store(true, Ordering::Release);
        }
        let leads = self.gate.wait().is_leader();
        // Acquire: pairs with the release store above.
        let all_well = !self.failed.load(Ordering::Acquire);
        if leads && all_well {
            then();
        }
        self.gate.wait();
        all_well
    }

    fn start_run(&self) {
        *lock(&self.watch) = Some(self.meter.start());
    }

    fn end_run(&self) {
        if let Some(watch) = lock(&self.watch).take() {
            *lock(&self.spent) = watch.spent();
        }
        *lock(&self.latency) = Some(self.board.latency());
    }

    fn goal(&self) -> Goal {
        match (self.plan.args.ios, self.plan.runtime) {
            (Some(ios), _) => Goal::Ios(ios),
            (None, Some(runtime)) => Goal::Time(runtime),
            (None, None) => Goal::Ios(0),
        }
    }

    fn fill_goal(&self) -> Goal {
        Goal::Ios(self.range / u64::from(self.plan.args.bs))
    }

    fn until(&self, index: u32) -> Until {
        Until { runtime: self.plan.runtime, ios: self.plan.ios(index), stop: Arc::clone(&self.stop) }
    }

    fn until_end(&self) -> Until {
        Until { runtime: None, ios: u64::MAX, stop: Arc::clone(&self.stop) }
    }

    fn pattern(&self, part: Part, index: u32) -> Pattern {
        let args = &self.plan.args;
        Pattern::new(args.rw, args.mix, part.base, args.bs, part.blocks, args.seed.wrapping_add(u64::from(index) << 32))
    }
}

/// Runs the body of a thread. The caller passes `_alive` because the progress display runs until all threads have
/// dropped theirs.
pub fn work<E: Driven + Checked>(
    crew: &Crew,
    index: u32,
    make: impl FnOnce() -> Result<E, LoadError>,
    _alive: Sender<()>,
) -> Result<Harvest, Failure> {
    let pinned = match crew.plan.cpus.get(index as usize) {
        Some(&cpu) => cpu::pin(cpu),
        None => Ok(()),
    };
    let engine = pinned.and_then(|()| make());
    if !crew.gate(engine.is_ok(), || ()) {
        return Ok(engine.map(|_| Harvest::default())?);
    }
    if crew.plan.args.verify { verified(crew, index, engine?) } else { measured(crew, index, engine?) }
}

/// Writes the range if the plan requires it, then runs or compares.
fn measured<E: Driven>(crew: &Crew, index: u32, engine: E) -> Result<Harvest, Failure> {
    let plan = &crew.plan;
    let args = &plan.args;
    let lane = crew.board.lane(index);
    let looper = Looper::new(engine, args.depth(), plan.batch, args.max_errors.unwrap_or(0), lane);
    let mut looper = looper.completing(plan.complete);
    let mut filled = Ok(());
    if plan.fill {
        crew.gate(true, || crew.board.enter(Phase::Fill, crew.fill_goal()));
        let part = plan.fill_part(crew.range, index);
        let mut pattern = Pattern::new(sheave_load::Rw::Write, 0, part.base, args.bs, part.blocks, 0);
        let until = Until { ios: part.blocks, ..crew.until_end() };
        filled = looper.run(&mut pattern, &until, &mut Pace::Unlimited);
    }
    let part = plan.part(crew.range, index);
    let (phase, goal) = match args.compare {
        Some(_) => (Phase::Compare, Goal::Ios(u64::from(args.pairs()))),
        None => (Phase::Run, crew.goal()),
    };
    let fill_is_good = filled.is_ok() && looper.first_error().is_none();
    if fill_is_good {
        looper.reset();
    }
    let begin = || {
        crew.board.enter(phase, goal);
        crew.start_run();
    };
    if !crew.gate(fill_is_good, begin) {
        filled?;
        return Ok(Harvest { counts: looper.counts(), first_error: looper.first_error(), ..Harvest::default() });
    }
    let mut harvest = Harvest::default();
    let outcome = match args.compare {
        Some(peer) => {
            let raw = crew.raw.as_ref();
            let memory = crew.memory.as_ref();
            let arena = Arena { plan, part, direct: crew.direct, raw, memory, meter: &crew.meter, board: &crew.board };
            compare::run(&arena, &mut looper, &crew.until(index), peer).map(|outcome| {
                harvest.comparison = outcome.comparison;
                Some(outcome.spent)
            })
        }
        None => {
            let mut pattern = crew.pattern(part, index);
            let until = crew.until(index);
            let mut pace = plan.pace(looper.clock());
            looper.run(&mut pattern, &until, &mut pace).map(|()| None).map_err(Failure::from)
        }
    };
    crew.gate(outcome.is_ok(), || crew.end_run());
    if let Some(spent) = outcome? {
        // Only our turns count as the time of the run.
        *lock(&crew.spent) = spent;
    }
    harvest.counts = looper.counts();
    harvest.first_error = looper.first_error();
    Ok(harvest)
}

/// Writes the range if the run reads, runs, and reads back if the run wrote. Every block is verified.
fn verified<E: Checked>(crew: &Crew, index: u32, engine: E) -> Result<Harvest, Failure> {
    let plan = &crew.plan;
    let args = &plan.args;
    let part = plan.part(crew.range, index);
    let task = Task {
        pattern: crew.pattern(part, index),
        run: crew.run_id,
        bs: args.bs,
        depth: args.depth(),
        batch: plan.batch,
        max_errors: args.max_errors.unwrap_or(0),
        lane: crew.board.lane(index),
    };
    let made = Checker::new(engine, task);
    let enter_fill = || {
        if args.rw.reads() {
            crew.board.enter(Phase::Fill, crew.fill_goal());
        }
    };
    if !crew.gate(made.is_ok(), enter_fill) {
        return Ok(made.map(|_| Harvest::default())?);
    }
    let mut checker = made?;
    let filled = if args.rw.reads() { checker.fill(&crew.until_end()) } else { Ok(()) };
    let begin = || {
        crew.board.enter(Phase::Run, crew.goal());
        crew.start_run();
    };
    let well = filled.is_ok() && !checker.failed();
    if !crew.gate(well, begin) {
        return Ok(filled.map(|()| harvest(checker, Counts::default()))?);
    }
    let until = crew.until(index);
    let ran = checker.work(&until, &mut plan.pace(checker.clock()));
    let counts = checker.counts();
    crew.gate(true, || crew.end_run());
    let enter_read_back = || {
        if args.rw.writes() {
            crew.board.enter(Phase::ReadBack, Goal::Ios(checker.known() * u64::from(args.threads)));
        }
    };
    if !crew.gate(ran.is_ok() && !checker.failed(), enter_read_back) {
        return Ok(ran.map(|()| harvest(checker, counts))?);
    }
    if args.rw.writes() {
        checker.read_back(&crew.until_end())?;
    }
    Ok(harvest(checker, counts))
}

fn harvest<E: Checked>(checker: Checker<E>, run: Counts) -> Harvest {
    let (tally, errors) = (checker.tally(), checker.counts().errors);
    let (first_error, wrong) = checker.into_findings();
    Harvest { counts: Counts { errors, ..run }, first_error, tally, wrong, comparison: None }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
