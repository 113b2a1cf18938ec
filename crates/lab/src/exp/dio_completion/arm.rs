//! One arm at one point: a ring with its workers, on a file whose overwrites complete where the arm says.
//!
//! * A1. Device, file, ring and workers are the same in every arm; the device works on its own.
//! * A2. All arms of a point wait in one way ([`Patience`]), whatever a ring by default does: polled I/O whose workers
//!   have another CPU is looked for until it is there, and everything else is slept for. A ring that sleeps in one arm
//!   and spins in another would compare sleeps. The timer slack of a sleep is 1 ns, so that a device which takes 5 us
//!   takes them in each arm.

use std::num::NonZeroU64;
use std::time::Duration;

use rustix::thread::{current_timer_slack, set_current_timer_slack};
use sheave::{Ring, RingBuilder};
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_load::live::report_histogram;
use sheave_load::{Driven, EngineOpts, Rw, SheaveEngine, cpu};
use sheave_uring::IoWq;
use sheave_uring::LateCompletions;

use super::design::{self, Kind};
use super::pwrite::Pwrite;
use super::subject::{self, Cell, Place, Subject};
use crate::drive::{self, Drive, until};
use crate::experiment::Lab;
use crate::meter::Meter;
use crate::{ArmRun, LabError, Point, Turn, TurnEnd};

/// Best effort, in the middle: what an I/O without a priority has too, and enough to be kept off the plain way in.
const MIDDLE: u16 = 2 << 13 | 4;

/// Far longer than any wait for a device of the lab; a device that hangs must not spin for ever.
const LONGEST_SPIN: Duration = Duration::from_secs(1);

/// Most bytes of an I/O that fills a file before it is overwritten.
const FILL: u32 = 64 << 10;

/// How the ring of a point waits, in every arm (A2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It looks for completions until there is one.
    Spins,
    /// It sleeps at once.
    Sleeps,
}

impl Patience {
    /// A ring that shares its CPU with the workers cannot spin for them; one that interrupts wake has nothing to look
    /// for.
    pub fn of(lab: &Lab, point: &Point) -> Result<Patience, LabError> {
        let apart = subject::workers_elsewhere(point)? && lab.cpu(0) != lab.cpu(1);
        Ok(if apart && subject::is_polled(point)? { Patience::Spins } else { Patience::Sleeps })
    }

    /// A ring that waits so.
    pub fn ring(self, builder: RingBuilder) -> RingBuilder {
        builder.spin(if self == Patience::Spins { LONGEST_SPIN } else { Duration::ZERO })
    }
}

/// The timer slack of the calling thread is 1 ns until this is dropped.
struct ExactSleeps(Option<NonZeroU64>);

impl ExactSleeps {
    fn begin() -> ExactSleeps {
        let before = current_timer_slack().ok().and_then(NonZeroU64::new);
        // Without it sleeps are longer, in every arm alike.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        ExactSleeps(before)
    }
}

impl Drop for ExactSleeps {
    fn drop(&mut self) {
        let _ = set_current_timer_slack(self.0);
    }
}

/// Where the writes of an engine ended that did not end where they were reaped.
pub trait Ends: Driven {
    /// So many in workers and in task work so far.
    fn late(&self) -> LateCompletions;
    /// So many by the caller of a synchronous write, since the beginning.
    fn by_caller(&self) -> u64;
}

impl Ends for SheaveEngine {
    fn late(&self) -> LateCompletions {
        self.ring().late_completions()
    }

    fn by_caller(&self) -> u64 {
        0
    }
}

impl Ends for Pwrite {
    fn late(&self) -> LateCompletions {
        LateCompletions::default()
    }

    fn by_caller(&self) -> u64 {
        self.ended_here()
    }
}

/// An arm that is ready.
pub struct DioArm<E = SheaveEngine> {
    // Before `subject`: the ring goes first, then the file and its pool.
    drive: Drive<E>,
    subject: Subject,
    /// The workers of its ring; a synchronous write has none.
    workers: Option<IoWq>,
    lab: Lab,
    /// I/Os until the file is used up.
    until_reset: u64,
}

impl DioArm {
    /// Builds it on the calling thread.
    pub fn new(lab: &Lab, point: &Point, kind: Kind) -> Result<DioArm, LabError> {
        design::admit(point)?;
        let cell = subject::cell(point)?;
        let subject = Subject::new(lab, point, kind.place)?;
        if point.text("file") == Some("volume") && !cell.is_used_up() {
            fill(lab, point, &subject)?;
        }
        let ioprio = if kind.general { MIDDLE } else { 0 };
        let opts = EngineOpts { dsync: cell.dsync(), ioprio, ..drive::opts(point, subject::is_polled(point)?) };
        let (engine, workers) = engine(lab, point, &subject, &opts)?;
        DioArm::of(lab, point, subject, engine, Some(workers))
    }
}

impl DioArm<Pwrite> {
    /// Builds the synchronous writes on the calling thread, to the file as Sheave has it.
    pub fn synchronous(lab: &Lab, point: &Point) -> Result<DioArm<Pwrite>, LabError> {
        design::admit(point)?;
        if !design::is_synchronous(point) {
            return Err(LabError::usage(format!("a synchronous write is one at a time, but the point is {point}"))
                .fix("use depth=1, batch=1, file=memory and a cell without dsync"));
        }
        let subject = Subject::new(lab, point, Place::Inline)?;
        let patience = Patience::of(lab, point)?;
        let opts = drive::opts(point, subject::is_polled(point)?);
        let engine = Pwrite::new(&subject.file, &opts, |builder| patience.ring(builder))?;
        DioArm::of(lab, point, subject, engine, None)
    }
}

impl<E: Ends> DioArm<E> {
    fn of(lab: &Lab, point: &Point, subject: Subject, engine: E, workers: Option<IoWq>) -> Result<DioArm<E>, LabError> {
        let cell = subject::cell(point)?;
        // Blocks that are written once only are taken in order: their places are scattered all the same.
        let rw = if cell.is_used_up() { Rw::Write } else { point.rw };
        let loop_point = Point { rw, ..point.clone() };
        let blocks = subject.bytes / u64::from(point.bs);
        let until_reset = if cell.is_used_up() { blocks } else { u64::MAX };
        let drive = Drive::new(engine, &loop_point, subject.bytes, 1);
        Ok(DioArm { drive, subject, workers, lab: lab.clone(), until_reset })
    }

    /// How many completed late so far.
    pub fn late(&self) -> LateCompletions {
        self.drive.engine().late()
    }

    /// Workers that were made so far.
    pub fn workers_made(&self) -> u64 {
        self.workers.iter().flat_map(IoWq::counts).map(|account| account.created).sum()
    }

    /// The file, as the ring has it.
    pub fn file(&self) -> &std::sync::Arc<dyn File> {
        &self.subject.file
    }
}

/// The ring of a point with its workers.
fn engine(lab: &Lab, point: &Point, subject: &Subject, opts: &EngineOpts) -> Result<(SheaveEngine, IoWq), LabError> {
    let cpu = match (subject::workers_elsewhere(point)?, subject::is_polled(point)?) {
        (false, _) => lab.cpu(0),
        (true, true) => lab.cpu(1),
        // The device has the next one.
        (true, false) => lab.cpu(2),
    };
    // This thread may run on one CPU alone, and so may then what it makes: not while it makes the workers.
    cpu::pin_to(&lab.cpus).map_err(|err| LabError::run(format!("cannot run on the CPUs {:?}: {err}", lab.cpus)))?;
    let workers = IoWq::builder().cpus(&[cpu]).build();
    cpu::pin(lab.cpu(0))?;
    let workers = workers.map_err(|err| LabError::run(format!("cannot make workers for CPU {cpu}: {err}")))?;
    let attach = |ring: &mut Ring| ring.attach_file(subject.file.clone());
    let builder = Patience::of(lab, point)?.ring(opts.ring(1));
    Ok((SheaveEngine::built(builder.io_wq(&workers), attach, opts)?, workers))
}

/// Writes all of a file once, and makes that durable: a first DSYNC write would have to.
fn fill(lab: &Lab, point: &Point, subject: &Subject) -> Result<(), LabError> {
    let fill = Point { bs: FILL, batch: 8, depth: 8, threads: 1, rw: Rw::Write, ..Point::default() };
    let (engine, _workers) = engine(lab, point, subject, &drive::opts(&fill, subject::is_polled(point)?))?;
    let ios = subject.bytes / u64::from(FILL);
    Drive::new(engine, &fill, subject.bytes, 1).run(&until(lab, TurnEnd::Ios(ios), 1))?;
    let synced = subject.file.sync(&MayBlock::on_worker()).unwrap_or(Ok(()));
    synced.map_err(|status| LabError::run(format!("the file that was filled cannot be synced: {status}")))
}

impl<E: Ends> ArmRun for DioArm<E> {
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        let mut turn = Turn::default();
        let _exact = ExactSleeps::begin();
        let (late, by_caller) = (self.late(), self.drive.engine().by_caller());
        self.drive.reset();
        let mut until = until(&self.lab, end, 1);
        let (wanted, time) = (until.ios, until.runtime);
        while turn.ios < wanted && !self.lab.stopped() {
            until.ios = self.until_reset.min(wanted - turn.ios);
            until.runtime = time.map(|time| time.saturating_sub(Duration::from_nanos(turn.wall_ns)));
            if until.runtime.is_some_and(|left| left.is_zero()) {
                break;
            }
            if self.until_reset != u64::MAX {
                self.subject.reset()?;
                self.drive.rewind();
            }
            let device_ns = self.subject.device_cpu_ns();
            let meter = Meter::start();
            turn.ios += self.drive.run(&until)?;
            meter.add(&mut turn);
            turn.cpu_ns = turn.cpu_ns.saturating_sub(self.subject.device_cpu_ns() - device_ns);
        }
        let mut latency = report_histogram();
        self.drive.add_latency(&mut latency);
        turn.latency = Some(latency);
        let now = self.late();
        turn.counters.insert("in_worker", (now.in_worker - late.in_worker) as f64);
        turn.counters.insert("in_task", (now.in_task - late.in_task) as f64);
        turn.counters.insert("by_caller", (self.drive.engine().by_caller() - by_caller) as f64);
        Ok(turn)
    }
}

/// Whether a point's cell may complete at once.
pub fn is_eligible(point: &Point) -> bool {
    subject::cell(point).is_ok_and(Cell::is_eligible)
}
