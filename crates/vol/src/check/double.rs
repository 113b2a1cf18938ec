//! Gives a closed pool with one copy of its metadata a second copy of each page.
//!
//! Owns the preconditions: nothing is wrong with the pool, and there is room. Writes the pool as a
//! [repair](super::repair) without findings does: all pages anew, in pairs, into units that nothing uses, and then both
//! superblocks. If it is cut off anywhere, the pool has one copy as before, or two (C3 of [`check`](super)).
//!
//! - D1: nothing is written unless the pool is clean, and unless it will have as many free units afterwards as a pool
//!   with two copies reserves for its metadata.

use super::repair::Repair;
use super::report::{CheckProgress, Progress};
use super::{look, verify};
use crate::device::block_io::{BlockIo, DeviceIo};
use crate::error::PoolError;
use crate::format::MAX_PAIRED_UNITS;

/// Gives the pool that lies on these bytes a second copy of each page of metadata. Returns false if the pool has two
/// copies already. Nobody else may use the pool meanwhile. `tell` is called with the progress of two checks: one before
/// the change and one after it.
pub fn double_metadata(io: &dyn BlockIo, tell: &mut dyn FnMut(CheckProgress)) -> Result<bool, PoolError> {
    let mut progress = Progress { at: CheckProgress::default(), tell };
    let look = look(io, &mut progress)?;
    let found = look.found.filter(|_| look.report.findings.is_empty());
    let Some(mut found) = found else {
        let first = look.report.findings.first().map_or_else(String::new, ToString::to_string);
        return Err(PoolError::Invalid {
            what: format!("the pool is not clean ({first}), so that its metadata cannot be doubled"),
            fix: "See what 'sheave pool check --dry-run' says, and repair it before".into(),
        });
    };
    if found.sb.paired {
        return Ok(false);
    }
    if found.sb.total_units > MAX_PAIRED_UNITS {
        return Err(PoolError::Invalid {
            what: "the pool has more units than one with two copies of its metadata can have".into(),
            fix: "Make a pool with larger units, and copy the volumes to it".into(),
        });
    }
    let (geometry, totals) = (found.sb.geometry(), look.report.totals);
    let pages_per_unit = u64::from(geometry.unit_bytes) / crate::format::BLOCK_BYTES;
    // The old pages keep their units until the new ones are in use. The new table, and the new index pages above maps,
    // may need more pages than the old ones.
    let pages = 2 * (totals.pages.div_ceil(pages_per_unit) + 1);
    if totals.free_units < pages + 2 * geometry.reserve_units() {
        return Err(PoolError::Full { what: "doubling the metadata of the pool".into() });
    }
    found.model.geometry.paired = true;
    let used = |unit: u64| found.in_use.contains(&unit);
    let repair = Repair {
        io,
        sb: &found.sb,
        alone: found.alone,
        next_seq: found.next_seq,
        copies: &[],
        labels: &[],
        used: &used,
        doubles: true,
    };
    repair.write(&found.model)?;
    verify(io, &mut progress)?;
    Ok(true)
}

/// Gives the pool on a device a second copy of each page of metadata, like [`double_metadata`]. Returns false if the
/// pool has two copies already.
pub fn double_metadata_of(device: &sheave_blk::Device, tell: &mut dyn FnMut(CheckProgress)) -> Result<bool, PoolError> {
    double_metadata(&DeviceIo::new(device)?, tell)
}
