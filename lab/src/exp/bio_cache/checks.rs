//! Proves that data comes back in every arm, and that each arm calls the allocator as often as its description says.
//! Compares counts, never times.

use sheave::Ring;

use super::arm::{BioArm, bounded, put_store};
use super::design::{AFTER, ARMS, Ends, MALLOC, NO_BIO, SEED};
use crate::exp::data;
use crate::experiment::{ArmRun, Lab, TurnEnd};
use crate::terms::Check;
use crate::{LabError, Point};

const IOS: u64 = 4096;

pub fn run(lab: &Lab) -> Result<Vec<Check>, LabError> {
    let mut checks = Vec::new();
    for (arm, info) in ARMS.iter().enumerate() {
        for ends in ["polled", "thread"] {
            checks.push(counts(lab, arm, ends)?);
        }
        let ring = bounded(Ring::builder().entries(data::ENTRIES).polled(true), arm, Ends::Polled);
        checks.push(data::comes_back(info.name, ring, |ring| put_store(ring, arm, Ends::Polled))?);
    }
    Ok(checks)
}

/// Returns the numbers of allocator calls and of cache misses per I/O that an arm must have.
fn expected(arm: usize, ends: &str) -> (f64, f64) {
    match arm {
        // One call to allocate, one to free.
        MALLOC => (2.0, 1.0),
        SEED if ends == "polled" => (0.0, 0.0),
        AFTER | NO_BIO => (0.0, 0.0),
        _ => (0.0, 1.0),
    }
}

fn counts(lab: &Lab, arm: usize, ends: &str) -> Result<Check, LabError> {
    let mut run = BioArm::new(lab, arm, &Point::default().with("ends", ends))?;
    let turn = run.turn(TurnEnd::Ios(IOS))?;
    let (calls, misses) = expected(arm, ends);
    let seen = run.allocator_calls();
    let told = seen.map_or("not counted: another allocator is installed".into(), |seen| format!("{seen:.5}"));
    // Without the counting allocator only the misses are compared, which also differ between the arms.
    //
    // A slab and a cache still grow when more bios are in use at once than ever before. A slow completion thread can
    // make that happen late. The growth is then at most as many bios as the ring has entries.
    let grows = ends == "thread";
    let growth = if grows { f64::from(data::ENTRIES) / IOS as f64 } else { 0.0 };
    let within = |count: f64, wanted: f64| (wanted..=wanted + growth).contains(&count);
    let ok = turn.ios == IOS && seen.is_none_or(|seen| within(seen, calls)) && within(run.misses(), misses);
    Ok(Check {
        name: format!("{}, {ends}: {calls:.0} allocator calls and {misses:.0} cache misses per I/O", ARMS[arm].name),
        ok,
        detail: format!(
            "{} of {IOS} I/Os done; allocator calls per I/O: {told}; cache misses per I/O: {:.5}",
            turn.ios,
            run.misses()
        ),
    })
}
