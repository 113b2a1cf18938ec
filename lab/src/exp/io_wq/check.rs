//! Proves that every arm does each item once, and that its locks are taken as often as described. Counts, never times.

use super::design::{self, AFTER, ARMS, BEFORE, KERNEL, RING, SEED, SHARDED, SIDES};
use super::flood;
use crate::LabError;
use crate::experiment::Lab;
use crate::terms::Check;
use crate::wq::side::Use;
use crate::wq::{Flood, Limit, PoolFigures, Turn};
use sheave_load::Driven;

/// Number of rounds, each of a whole queue depth.
const ROUNDS: u32 = 200;
/// Number of items in the turns whose locks are counted.
const ITEMS: u64 = 12_800;
const WORKERS: u32 = 8;

pub fn check(lab: &Lab) -> Result<Vec<Check>, LabError> {
    let mut checks = Vec::new();
    let flood = Flood { workers: WORKERS, ..flood::of(lab, &design::flood(u64::from(WORKERS)))? };
    for (side, info) in SIDES.iter().zip(&ARMS) {
        let done = side.with(&flood, false, EachOnce { depth: flood.depth })?;
        let wrong = done.iter().filter(|&&times| times != ROUNDS).count();
        checks.push(Check {
            name: format!("{} does every item once", info.name),
            ok: wrong == 0,
            detail: format!("{} of {} slots in {ROUNDS} rounds, {wrong} wrong", done.len() - wrong, done.len()),
        });
    }
    let flood = Flood { turn: Limit::Items(ITEMS), ..flood };
    let turns: Vec<Turn> = SIDES.iter().take(KERNEL).map(|side| side.turn(&flood, false)).collect::<Result<_, _>>()?;
    let per_item = |arm: usize, count: fn(&PoolFigures) -> u64| {
        count(&turns[arm].pool) as f64 / turns[arm].counts.ios.max(1) as f64
    };
    let taken = |arm| per_item(arm, |pool| pool.taken);
    let mut check = |name: &str, ok, detail| checks.push(Check { name: name.into(), ok, detail });
    for arm in [BEFORE, SEED, SHARDED] {
        let locks = taken(arm);
        // An item takes one lock when it is queued and one when it is taken. A woken worker that finds the queue empty
        // takes more.
        let name = format!("{} takes a lock for every step of every item", ARMS[arm].name);
        check(&name, locks >= 2.0, format!("{locks:.2} locks an item"));
    }
    for arm in [AFTER, RING] {
        let locks = taken(arm);
        let name = format!("{} takes a lock for many items", ARMS[arm].name);
        check(&name, locks < 1.0, format!("{locks:.3} locks an item"));
    }
    let reads = [BEFORE, SEED].map(|arm| per_item(arm, |pool| pool.flag_reads));
    check(
        "seed reads the flags less often than before",
        reads[1] < reads[0],
        format!("{:.2} reads of the flag word an item before, {:.2} in seed", reads[0], reads[1]),
    );
    let made = [BEFORE, AFTER].map(|arm| turns[arm].pool.created);
    // The arm "before" is not compared: there each item that finds no worker free makes one, like in the kernel with
    // IOSQE_ASYNC, and their number depends on the machine.
    check(
        "after: one worker serves many items that do not block",
        made[1] < u64::from(WORKERS),
        format!("of at most {WORKERS} workers, {} made after, {} before", made[1], made[0]),
    );
    Ok(checks)
}

/// Queues every slot, waits for all, and counts the successful results of each.
struct EachOnce {
    depth: u32,
}

impl Use for EachOnce {
    type Out = Vec<u32>;

    fn with<E: Driven>(
        self,
        make: impl Fn() -> Result<E, LabError> + Sync,
        _: impl Fn() -> PoolFigures,
    ) -> Result<Vec<u32>, LabError> {
        let mut engine = make()?;
        let mut times = vec![0; self.depth as usize];
        for round in 1..=ROUNDS {
            for slot in 0..self.depth {
                engine.prep(slot, false, 0);
            }
            engine.submit(self.depth)?;
            let expected = engine.expected();
            engine.reap(|slot, result| {
                if let Some(times) = times.get_mut(slot as usize).filter(|_| result == expected) {
                    *times += 1;
                }
            });
            // A missing slot is still queued, so it must not be queued again.
            if times.iter().any(|&times| times != round) {
                break;
            }
        }
        Ok(times)
    }
}
