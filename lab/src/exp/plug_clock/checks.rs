//! Proves that data comes back, that each arm reads the clock as often as described, and that stamps reach the age that
//! their bound allows. Compares counts, and times of a virtual clock, never real times.

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

/// Number of I/Os of a turn, a multiple of the batch size.
const IOS: u64 = 4096;
/// Virtual time that the file takes to map each request, in the check of the stamps' ages.
const WORK: Duration = Duration::from_micros(5);

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

/// Number of readings per batch in addition to those for its requests: at submission, after the driver's call, and at
/// completion. They separate the stages of an I/O, in every arm.
pub(super) const OF_A_BATCH: f64 = 3.0;

/// Checks the number of stamps per I/O: those of requests and those of batches.
fn reads(lab: &Lab, arm: usize, batch: u32) -> Result<Check, LabError> {
    let seen = count(lab, arm, &Point { batch, ..Point::default() })?;
    let of_a_batch = 1.0 / f64::from(batch);
    let requests = if matches!(arm, SEED | AFTER) { of_a_batch } else { 1.0 };
    // The count is not exact, because the last batches of a run may come back in fewer pieces than they were submitted
    // in.
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

/// Returns the age of the oldest stamp in a batch of 32 whose requests take 5 us each, in us.
fn oldest_us(arm: usize) -> u64 {
    match arm {
        // The age is checked at the 17th request. The stamp is 80 us old by then and is read anew, so the 16th request
        // has the oldest stamp.
        AFTER => 75,
        OWN => 0,
        // The 31 requests behind the first one use its stamp.
        _ => 155,
    }
}

fn ages(lab: &Lab, arm: usize) -> Result<Check, LabError> {
    let (clock, hand) = Clock::virtual_clock();
    let mut run = WatchedArm::in_time(lab, arm, &Point::default(), WORK, Time::Virtual(clock, hand))?;
    let ios = run.turn(TurnEnd::Ios(IOS))?.ios;
    let (seen, unknown, oldest) = (run.ages(), run.unknown(), oldest_us(arm));
    // The tolerance is 0.5 %, because the histogram keeps three digits.
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
