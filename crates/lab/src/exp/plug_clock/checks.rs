//! That the arms are what they say: data comes back, each reads the clock as often as it should, and stamps get as old
//! as they may. Counts, and times on a virtual clock; never real times.

use std::time::Duration;

use sheave::Ring;
use sheave_base::clock::Clock;

use super::arm::{ClockArm, count};
use super::design::{AFTER, ARMS, OWN, SEED, aged};
use super::watch::{Time, WatchedArm};
use crate::exp::data;
use crate::experiment::{ArmRun, Lab, TurnEnd};
use crate::terms::Check;
use crate::{LabError, Point};

/// I/Os of a check's turn: whole batches.
const IOS: u64 = 4096;
/// What making a request takes, in the check of ages.
const WORK: Duration = Duration::from_micros(5);

/// All checks.
pub fn run(lab: &Lab) -> Result<Vec<Check>, LabError> {
    let mut checks = Vec::new();
    for (arm, info) in ARMS.iter().enumerate() {
        checks.push(completes(lab, arm)?);
        checks.push(reads(lab, arm, 32)?);
        checks.push(reads(lab, arm, 1)?);
        checks.push(ages(lab, arm)?);
        let ring = aged(Ring::builder().entries(data::ENTRIES).polled(true), arm);
        checks.push(data::comes_back(info.name, ring, |_| Ok(()))?);
    }
    Ok(checks)
}

fn completes(lab: &Lab, arm: usize) -> Result<Check, LabError> {
    let turn = ClockArm::new(lab, arm, &Point::default())?.turn(TurnEnd::Ios(IOS))?;
    Ok(Check {
        name: format!("{}: every I/O completes", ARMS[arm].name),
        ok: turn.ios == IOS,
        detail: format!("{} of {IOS} I/Os done", turn.ios),
    })
}

/// Readings of a batch beside those of its requests: when it is sent, when the driver's call has returned, and when it
/// is ended. They tell the stages of an I/O apart, in every arm.
pub(super) const OF_A_BATCH: f64 = 3.0;

/// Stamps per I/O: those of the requests, and those of each batch.
fn reads(lab: &Lab, arm: usize, batch: u32) -> Result<Check, LabError> {
    let seen = count(lab, arm, &Point { batch, ..Point::default() })?;
    let of_a_batch = 1.0 / f64::from(batch);
    let requests = if matches!(arm, SEED | AFTER) { of_a_batch } else { 1.0 };
    // The last of a run's batches may come back in fewer pieces than they went in.
    let most = requests + OF_A_BATCH * of_a_batch;
    Ok(Check {
        name: format!(
            "{}, batch {batch}: up to {most:.2} clock reads per I/O, and not below {requests:.2}",
            ARMS[arm].name
        ),
        ok: (requests..=most).contains(&seen.clock),
        detail: format!("clock reads per I/O: {:.3}; looks at the age of a stamp: {:.3}", seen.clock, seen.age),
    })
}

/// How old a stamp gets in a batch of 32 whose requests take 5 us each, in us.
fn oldest_us(arm: usize) -> u64 {
    match arm {
        // Looked at for the 17th, when it is 80 us old: read anew.
        AFTER => 75,
        OWN => 0,
        // All 31 that come after the first.
        _ => 155,
    }
}

fn ages(lab: &Lab, arm: usize) -> Result<Check, LabError> {
    let (clock, hand) = Clock::virtual_clock();
    let mut run = WatchedArm::in_time(lab, arm, &Point::default(), WORK, Time::Virtual(clock, hand))?;
    let ios = run.turn(TurnEnd::Ios(IOS))?.ios;
    let (seen, unknown, oldest) = (run.ages(), run.unknown(), oldest_us(arm));
    // The histogram has three digits.
    let near = seen.max >= oldest * 995 && seen.max <= oldest * 1005;
    Ok(Check {
        name: format!(
            "{}: at 5 us a request the oldest stamp of a batch is {oldest} us old (virtual time)",
            ARMS[arm].name
        ),
        ok: near && unknown == 0 && seen.count == ios,
        detail: format!("oldest {} ns, {} stamps of {ios} I/Os looked at, {unknown} unknown", seen.max, seen.count),
    })
}
