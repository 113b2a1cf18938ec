//! Returns free space to the device below: makes holes in a file, sends discards to a block device.
//!
//! Owns the walk over free units. A unit that an owner gave up becomes free when the commit that records this is
//! durable and everything that might use the unit has ended; [`limbo`](crate::state::limbo) decides that. So a free
//! unit may be overwritten at any time, and discarding it is as safe as overwriting it.
//!
//! - T1: units are taken from the free ones while they are discarded, so nobody writes to them; they count as pending.
//! - T2: writers find space during a trim: at most a quarter of the free units, and at most [`AT_ONCE`], is taken at a
//!   time. The next part is taken when these units are free again.
//! - T3: the device has no record of a trim: after a crash the units are free, discarded or not.
//!
//! Called by [`Pool::trim`](crate::Pool::trim).

use std::ops::ControlFlow;

use sheave_base::status::Status;

use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::state::State;

/// Largest number of units that are taken at a time.
pub(super) const AT_ONCE: u64 = 1024;

/// Progress of a trim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimProgress {
    /// Number of bytes of the pool that were examined so far.
    pub done_bytes: u64,
    /// Bytes of the pool.
    pub total_bytes: u64,
    /// Number of free bytes whose space was returned to the device.
    pub trimmed_bytes: u64,
    /// Number of free bytes that were not discarded, so that others find space meanwhile.
    pub left_bytes: u64,
    /// True if the trim reached the end of the pool.
    pub completed: bool,
}

/// Consecutive free units: the first, and their number.
pub(super) type Run = (u64, u64);

/// Trims all free space.
pub(crate) fn trim(
    pool: &PoolInner,
    progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>,
) -> Result<TrimProgress, PoolError> {
    if pool.device.limits().max_discard_sectors == 0 {
        return Err(PoolError::Invalid {
            what: format!("the device {} cannot take space back", pool.device.name()),
            fix: "Nothing is lost by that: the pool uses the space again itself".into(),
        });
    }
    // Deferred frees that are due are freed first, so that they are trimmed too.
    pool.let_go();
    let shift = pool.map.geometry.unit_shift;
    let mut at = TrimProgress::default();
    let mut next = 0;
    loop {
        pool.check_writable("trimming the pool")?;
        let looked = pool.look_if_due();
        looked.map_err(|status| pool.failed("trimming the pool", pool.device.name(), status))?;
        let (runs, end, left, total) = set_aside(&mut pool.lock(), next);
        let result = discard(pool, &runs);
        give_back(pool, &runs);
        result.map_err(|status| pool.failed("trimming the pool", pool.device.name(), status))?;
        at.trimmed_bytes += runs.iter().map(|(_, count)| count << shift).sum::<u64>();
        at.left_bytes += left << shift;
        (at.done_bytes, at.total_bytes) = (end << shift, total << shift);
        next = end;
        at.completed = end == total;
        if progress(&at).is_break() || at.completed {
            return Ok(at);
        }
    }
}

/// Takes free units from `from` on (T1, T2). Returns the units taken, the unit at which to continue, the number of
/// units passed over, and the number of all units.
fn set_aside(state: &mut State, from: u64) -> (Vec<Run>, u64, u64, u64) {
    let units = &mut state.tree.units;
    let total = units.counts().total;
    let most = AT_ONCE.min(units.available() / 4);
    let (mut runs, mut at, mut taken, mut left) = (Vec::<Run>::new(), from, 0, 0);
    while taken + left < most.max(AT_ONCE) {
        let Some(unit) = units.next_free(at) else { return (runs, total, left, total) };
        at = unit + 1;
        if taken == most {
            // `most` is 0 if fewer than four units are free: these are passed over and counted.
            left += u64::from(most == 0);
            if most > 0 {
                return (runs, unit, left, total);
            }
            continue;
        }
        units.set_aside(unit);
        taken += 1;
        push(&mut runs, unit);
    }
    (runs, at, left, total)
}

/// Appends a unit to `runs`.
pub(super) fn push(runs: &mut Vec<Run>, unit: u64) {
    match runs.last_mut() {
        Some((first, count)) if *first + *count == unit => *count += 1,
        _ => runs.push((unit, 1)),
    }
}

pub(super) fn discard(pool: &PoolInner, runs: &[Run]) -> Result<(), Status> {
    let shift = pool.map.geometry.unit_shift;
    runs.iter().try_for_each(|(first, count)| pool.io.discard(first << shift, count << shift))
}

pub(super) fn give_back(pool: &PoolInner, runs: &[Run]) {
    let mut state = pool.lock();
    for (first, count) in runs {
        (*first..first + count).for_each(|unit| state.tree.units.bring_back(unit));
    }
    pool.watch_space(&mut state);
    drop(state);
    pool.wake();
}

#[cfg(test)]
pub(super) mod tests;
