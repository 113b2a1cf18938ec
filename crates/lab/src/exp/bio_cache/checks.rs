//! That the arms are what they say: data comes back, and each calls the allocator as it should. Counts, never times.

use sheave::{Buf, Device, Ring, op};

use super::arm::{BioArm, Ends, bounded, put_store};
use super::stores::SharedPool;
use super::{AFTER, ARMS, HOOK, POOL, SEED};
use crate::experiment::{ArmRun, Check, Lab, TurnEnd};
use crate::{LabError, Point};

/// I/Os of a check's turn.
const IOS: u64 = 4096;
/// Blocks that are written and read back, and bytes of one.
const BLOCKS: u64 = 64;
const BLOCK: usize = 512;

/// All checks.
pub fn run(lab: &Lab) -> Result<Vec<Check>, LabError> {
    let mut checks = Vec::new();
    for arm in 0..ARMS.len() {
        for ends in ["polled", "thread"] {
            checks.push(counts(lab, arm, ends)?);
        }
        checks.push(comes_back(arm)?);
    }
    Ok(checks)
}

/// Calls of the allocator and misses of the cache, per I/O, that an arm should have.
fn expected(arm: usize, ends: &str) -> (f64, f64) {
    match arm {
        POOL | HOOK => (0.0, 1.0),
        SEED if ends == "polled" => (0.0, 0.0),
        AFTER => (0.0, 0.0),
        // One to allocate, one to free.
        _ => (2.0, 1.0),
    }
}

fn counts(lab: &Lab, arm: usize, ends: &str) -> Result<Check, LabError> {
    let mut run = BioArm::new(lab, arm, &Point::default().with("ends", ends))?;
    let turn = run.turn(TurnEnd::Ios(IOS))?;
    let (calls, misses) = expected(arm, ends);
    let seen = run.allocator_calls();
    let told = seen.map_or("not counted: another allocator is installed".into(), |seen| format!("{seen:.2}"));
    // Without a count there is nothing to compare; the misses tell the arms apart all the same.
    let ok = turn.ios == IOS && seen.is_none_or(|seen| seen == calls) && run.misses() == misses;
    Ok(Check {
        name: format!("{}, {ends}: {calls:.0} allocator calls and {misses:.0} cache misses per I/O", ARMS[arm].name),
        ok,
        detail: format!(
            "{} of {IOS} I/Os done; allocator calls per I/O: {told}; cache misses per I/O: {:.2}",
            turn.ios,
            run.misses()
        ),
    })
}

/// What the block at an index holds.
fn content(block: u64) -> [u8; BLOCK] {
    std::array::from_fn(|at| (block as usize * 31 + at * 7 + 1) as u8)
}

/// Writes blocks and reads them back, twice over, so that every bio was used before.
fn comes_back(arm: usize) -> Result<Check, LabError> {
    let fail = |err: &dyn std::fmt::Display| LabError::run(format!("checking that data comes back: {err}"));
    let device = Device::open("ram:size=1M").map_err(|err| fail(&err))?;
    let builder = bounded(Ring::builder().entries(64).polled(true), arm, Ends::Polled);
    let mut ring = builder.build().map_err(|err| fail(&err))?;
    put_store(&mut ring, arm, SharedPool::default).map_err(|err| fail(&err))?;
    let fd = ring.attach(&device).map_err(|err| fail(&err))?;
    let mut wrong = 0;
    for round in 0..2 {
        for write in [true, false] {
            for block in 0..BLOCKS {
                let mut buf = Buf::zeroed(BLOCK, BLOCK).map_err(|err| fail(&err))?;
                if write {
                    buf.copy_from_slice(&content(block + round));
                }
                // Every other block: nothing is merged, each has a bio and a request.
                let offset = block * 2 * BLOCK as u64;
                let entry = if write { op::write(fd, buf) } else { op::read(fd, buf) };
                ring.push(entry.offset(offset).user_data(block)).map_err(|err| fail(&err))?;
            }
            ring.submit_and_wait(BLOCKS as u32).map_err(|err| fail(&err))?;
            for done in ring.completions() {
                let (block, res) = (done.user_data, done.res);
                let right = write || done.into_buf().is_some_and(|buf| buf[..] == content(block + round));
                wrong += u32::from(res != BLOCK as i32 || !right);
            }
        }
    }
    Ok(Check {
        name: format!("{}: data comes back", ARMS[arm].name),
        ok: wrong == 0,
        detail: format!("{wrong} of {} I/Os failed or gave other bytes", 4 * BLOCKS),
    })
}
