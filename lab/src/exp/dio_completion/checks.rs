//! Proves that data comes back, and that writes complete where each arm wants them to. Compares counts and data, never
//! times.

use sheave::{Buf, Ring, op};
use sheave_base::status::Status;

use super::arm::{self, DioArm};
use super::design::{self, ARMS, INLINE, KINDS, SEED, SYNC, interrupted, overwrites};
use super::subject::{Cell, Place, Subject};
use crate::experiment::Lab;
use crate::terms::Check;
use crate::{ArmRun, LabError, Point, TurnEnd};

const IOS: u64 = 4096;
/// Number of blocks that are written and read back.
const BLOCKS: u64 = 64;

pub fn run(lab: &Lab) -> Result<Vec<Check>, LabError> {
    let mut checks = Vec::new();
    for (arm, kind) in KINDS.iter().enumerate() {
        for (what, point) in [("polled", overwrites(16)), ("interrupts", interrupted(16))] {
            checks.push(places(lab, arm, what, &point)?);
        }
        for file in ["memory", "volume"] {
            checks.push(comes_back(lab, arm, kind.place, file)?);
        }
    }
    for (what, point) in design::one_at_a_time() {
        checks.push(by_its_caller(lab, what, &point)?);
    }
    for cell in Cell::ALL {
        checks.push(cell_check(lab, "memory", cell)?);
    }
    for cell in [Cell::Overwrite, Cell::Unwritten, Cell::DsyncFua, Cell::DsyncFlush] {
        checks.push(cell_check(lab, "volume", cell)?);
    }
    Ok(checks)
}

/// Numbers of completions of a turn: all, and those at each place.
struct Counts {
    ios: u64,
    in_worker: u64,
    in_task: u64,
    switches: u64,
    workers_made: u64,
}

fn count(lab: &Lab, arm: usize, point: &Point) -> Result<Counts, LabError> {
    let mut arm = DioArm::new(lab, point, KINDS[arm])?;
    let before = arm.late();
    let turn = arm.turn(TurnEnd::Ios(IOS))?;
    let late = arm.late();
    Ok(Counts {
        ios: turn.ios,
        in_worker: late.in_worker - before.in_worker,
        in_task: late.in_task - before.in_task,
        switches: turn.context_switches,
        workers_made: arm.workers_made(),
    })
}

/// Checks that every overwrite completes at the place of the arm.
fn places(lab: &Lab, arm: usize, what: &str, point: &Point) -> Result<Check, LabError> {
    let counts = count(lab, arm, point)?;
    let Counts { ios, in_worker, in_task, switches, .. } = counts;
    let expected = match arm {
        0 => (ios, 0),
        SEED => (0, ios),
        _ => (0, 0),
    };
    let place = ["in a worker", "in the issuer's task", "where they are reaped", "where they are reaped"][arm];
    Ok(Check {
        name: format!("{}: overwrites complete {place} ({what})", ARMS[arm].name),
        ok: ios == IOS && (in_worker, in_task) == expected,
        detail: format!("{ios} I/Os, {in_worker} in a worker, {in_task} in the task, {switches} context switches"),
    })
}

/// Checks synchronous writes, which use neither a worker nor task work. The caller ends each write that has completion
/// work; a write without completion work is over when the device has ended it.
fn by_its_caller(lab: &Lab, what: &str, point: &Point) -> Result<Check, LabError> {
    let mut arm = DioArm::synchronous(lab, point)?;
    let turn = arm.turn(TurnEnd::Ios(IOS))?;
    let [by_caller, in_worker, in_task] =
        ["by_caller", "in_worker", "in_task"].map(|name| turn.counters.get(name).copied().unwrap_or(-1.0));
    let expected = if arm::is_eligible(point) { 0.0 } else { IOS as f64 };
    let says = match expected > 0.0 {
        true => "its caller does the work after the data",
        false => "nothing is to do after the data, for its caller or anybody else",
    };
    Ok(Check {
        name: format!("{}: {says} ({what})", ARMS[SYNC].name),
        ok: turn.ios == IOS && (by_caller, in_worker, in_task) == (expected, 0.0, 0.0),
        detail: format!(
            "of {} writes {by_caller} had work for the caller, {in_worker} for a worker, {in_task} for the task",
            turn.ios
        ),
    })
}

/// Checks the step after the data. Writes of a cell that is not eligible have this step in every arm, eligible ones
/// only in the first arm. A worker does the step. The exception is a flush: it is an I/O of the ring, and needs a
/// worker only in the first arm.
fn cell_check(lab: &Lab, file: &str, cell: Cell) -> Result<Check, LabError> {
    let point = overwrites(16).with("cell", cell.name()).with("file", file);
    let (mut later, mut made) = ([0; 4], [0; 4]);
    for arm in 0..later.len() {
        let counts = count(lab, arm, &point)?;
        (later[arm], made[arm]) = (counts.in_worker, counts.workers_made);
    }
    let none = |counts: &[u64]| counts.iter().all(|&count| count == 0);
    let (where_to, ok) = match cell {
        Cell::DsyncFlush => (
            "a flush after the data in every arm, a worker in `before` alone",
            later.iter().all(|&count| count >= IOS) && made[0] > 0 && none(&made[SEED..]),
        ),
        _ if cell.is_eligible() => {
            ("in a worker in `before` alone", later[0] == IOS && none(&later[SEED..]) && none(&made[SEED..]))
        }
        _ => ("in a worker in every arm", (0..4).all(|arm| later[arm] >= IOS && made[arm] > 0)),
    };
    Ok(Check {
        name: format!("{} ({file}): {where_to}", cell.name()),
        ok,
        detail: format!("of {IOS} writes with a step after the data, by arm: {later:?}; workers made: {made:?}"),
    })
}

/// Checks that overwritten data reads back through another ring.
fn comes_back(lab: &Lab, arm: usize, place: Place, file: &str) -> Result<Check, LabError> {
    let name = format!("{}: what is overwritten reads back ({file})", ARMS[arm].name);
    // `ram` is the only device of this experiment that keeps data.
    let point = overwrites(16).with("file", file).with("device", "ram");
    let subject = Subject::new(lab, &point, place)?;
    let failed = |err: &dyn std::fmt::Display| LabError::run(format!("the check `{name}` cannot run: {err}"));
    let written = [1, 2].map(|round| round_trip(&subject, round));
    for result in written {
        if let Err(what) = result.map_err(|err| failed(&err))? {
            return Ok(Check { name, ok: false, detail: what });
        }
    }
    let general = if arm == INLINE { ", as plain runs, for the file does not know how writes go in" } else { "" };
    Ok(Check { name, ok: true, detail: format!("{BLOCKS} blocks written twice and read{general}") })
}

/// Writes the blocks of one round and reads them with another ring. The inner result is an error that describes the
/// difference, if there is one.
fn round_trip(subject: &Subject, round: u64) -> Result<Result<(), String>, Box<dyn std::error::Error>> {
    let size = 4096;
    let byte = |block: u64| (block * 7 + round * 101) as u8;
    let mut ring = Ring::builder().entries(64).build()?;
    let fd = ring.attach_file(subject.file.clone())?;
    for block in 0..BLOCKS {
        let mut buf = Buf::zeroed(size, 4096)?;
        buf.fill(byte(block));
        ring.push(op::write(fd, buf).offset(block * size as u64))?;
    }
    ring.submit_and_wait(BLOCKS as u32)?;
    let short = ring.completions().filter(|done| done.res != size as i32).count();
    if short > 0 {
        return Ok(Err(format!("{short} writes were not whole")));
    }
    let mut other = Ring::builder().entries(64).build()?;
    let fd = other.attach_file(subject.file.clone())?;
    for block in 0..BLOCKS {
        other.push(op::read(fd, Buf::zeroed(size, 4096)?).offset(block * size as u64).user_data(block))?;
    }
    other.submit_and_wait(BLOCKS as u32)?;
    let wrong = other.completions().filter_map(|done| {
        let (block, res) = (done.user_data, done.res);
        let right = done.into_buf().is_some_and(|buf| buf.iter().all(|&have| have == byte(block)));
        (res != size as i32 || !right).then_some(block)
    });
    let wrong: Vec<u64> = wrong.collect();
    Ok(if wrong.is_empty() { Ok(()) } else { Err(format!("blocks {wrong:?} hold something else: {}", Status::IoErr)) })
}
