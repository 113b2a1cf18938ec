//! One arm at one point: a ring with its workers, on a file whose overwrites complete where the arm wants them to.
//!
//! * A1. Device, file, ring and workers are the same in every arm. The device makes progress by itself.
//! * A2. All arms of a point wait in the same way ([`Patience`]), whatever the default of the ring is. The ring spins
//!   for polled I/O whose workers have another CPU, and sleeps for everything else. If a ring slept in one arm and spun
//!   in another, the comparison would measure the sleeps. The timer slack of a sleep is 1 ns, so that a device of 5 us
//!   takes 5 us in each arm.

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

/// Priority "best effort, level 4". It equals the default, but an I/O that sets it is not submitted as plain I/O.
const MIDDLE: u16 = 2 << 13 | 4;

/// Longest time of spinning, far above any latency of the lab's devices, so that a device that hangs does not spin for
/// ever.
const LONGEST_SPIN: Duration = Duration::from_secs(1);

/// Size in bytes of each I/O that fills a file before it is overwritten.
const FILL: u32 = 64 << 10;

/// The way in which the ring of a point waits, in every arm (A2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The ring polls for completions until there is one.
    Spins,
    /// The ring sleeps at once.
    Sleeps,
}

impl Patience {
    /// Returns the way of waiting at a point. A ring that shares its CPU with the workers must sleep so that they run.
    /// A ring that interrupts wake has nothing to poll.
    pub fn of(lab: &Lab, point: &Point) -> Result<Patience, LabError> {
        let apart = subject::workers_elsewhere(point)? && lab.cpu(0) != lab.cpu(1);
        Ok(if apart && subject::is_polled(point)? { Patience::Spins } else { Patience::Sleeps })
    }

    /// Sets the spin time of the ring's builder.
    pub fn ring(self, builder: RingBuilder) -> RingBuilder {
        builder.spin(if self == Patience::Spins { LONGEST_SPIN } else { Duration::ZERO })
    }
}

/// Sets the timer slack of the calling thread to 1 ns, and restores it when dropped. Holds the slack to restore.
struct ExactSleeps(Option<NonZeroU64>);

impl ExactSleeps {
    fn begin() -> ExactSleeps {
        let before = current_timer_slack().ok().and_then(NonZeroU64::new);
        // If this is refused, sleeps are longer in every arm alike, so the comparison still holds.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        ExactSleeps(before)
    }
}

impl Drop for ExactSleeps {
    fn drop(&mut self) {
        let _ = set_current_timer_slack(self.0);
    }
}

/// Counts the writes of an engine that did not complete where they were reaped.
pub trait Ends: Driven {
    /// Returns the number of writes so far that completed in a worker or in task work.
    fn late(&self) -> LateCompletions;
    /// Returns the number of writes so far that the caller of a synchronous write completed.
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

/// A built arm.
pub struct DioArm<E = SheaveEngine> {
    // Declared before `subject`, because the ring must be dropped first, then the file and its pool.
    drive: Drive<E>,
    subject: Subject,
    /// The workers of the ring; `None` for a synchronous write.
    workers: Option<IoWq>,
    lab: Lab,
    /// Number of I/Os until every block of the file is written and the file must be reset; `u64::MAX` if it need not
    /// be.
    until_reset: u64,
}

impl DioArm {
    /// Builds an arm of asynchronous writes on the calling thread.
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
    /// Builds the arm of synchronous writes on the calling thread. Its file completes overwrites inline, like Sheave
    /// does.
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
        // Blocks that can be written only once are taken in order. Their addresses on the device are scattered all the
        // same.
        let rw = if cell.is_used_up() { Rw::Write } else { point.rw };
        let loop_point = Point { rw, ..point.clone() };
        let blocks = subject.bytes / u64::from(point.bs);
        let until_reset = if cell.is_used_up() { blocks } else { u64::MAX };
        let drive = Drive::new(engine, &loop_point, subject.bytes, 1);
        Ok(DioArm { drive, subject, workers, lab: lab.clone(), until_reset })
    }

    /// Returns the numbers of completions in workers and in task work so far.
    pub fn late(&self) -> LateCompletions {
        self.drive.engine().late()
    }

    /// Returns the number of workers made so far.
    pub fn workers_made(&self) -> u64 {
        self.workers.iter().flat_map(IoWq::counts).map(|account| account.created).sum()
    }

    /// Returns the file that the ring has open.
    pub fn file(&self) -> &std::sync::Arc<dyn File> {
        &self.subject.file
    }
}

/// Builds the ring of a point and its workers.
fn engine(lab: &Lab, point: &Point, subject: &Subject, opts: &EngineOpts) -> Result<(SheaveEngine, IoWq), LabError> {
    let cpu = match (subject::workers_elsewhere(point)?, subject::is_polled(point)?) {
        (false, _) => lab.cpu(0),
        (true, true) => lab.cpu(1),
        // The device's thread has CPU 1.
        (true, false) => lab.cpu(2),
    };
    // The CPU mask of this thread is widened while the workers are made, because new threads inherit it.
    cpu::pin_to(&lab.cpus).map_err(|err| LabError::run(format!("cannot run on the CPUs {:?}: {err}", lab.cpus)))?;
    let workers = IoWq::builder().cpus(&[cpu]).build();
    cpu::pin(lab.cpu(0))?;
    let workers = workers.map_err(|err| LabError::run(format!("cannot make workers for CPU {cpu}: {err}")))?;
    let attach = |ring: &mut Ring| ring.attach_file(subject.file.clone());
    let builder = Patience::of(lab, point)?.ring(opts.ring(1));
    Ok((SheaveEngine::built(builder.io_wq(&workers), attach, opts)?, workers))
}

/// Writes the whole file once and syncs it. Without this the first DSYNC write of a turn would include that commit.
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

/// Returns true if writes of the cell of `point` need no blocking work after the data.
pub fn is_eligible(point: &Point) -> bool {
    subject::cell(point).is_ok_and(Cell::is_eligible)
}
