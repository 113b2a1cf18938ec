//! The audit of a pool: its space figures must agree with the extents of its volumes.
//!
//! Owns [`audit`], [`audit_metadata`], and [`scrubs_clean`] beside them. It relies on the extents of the volumes, which
//! the model has compared byte by byte, and on nothing else.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::check::check_image;
use crate::disk::SimDisk;
use sheave_vol::format::BLOCK;
use sheave_vol::{Extent, ExtentKind, Pool, PoolInfo, ScrubOptions, VolumeInfo};

/// Compares the figures of the pool and its volumes with the extents.
pub fn audit(pool: &Pool) -> Result<(), String> {
    let info = pool.info();
    balance(&info)?;
    let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
    let mut volumes = Vec::new();
    for volume in pool.volumes() {
        let name = &volume.name;
        let open = pool.open_volume(name).map_err(|error| format!("opening '{name}': {error}"))?;
        let extents = open.extents(0, volume.size_bytes).map_err(|error| format!("extents of '{name}': {error}"))?;
        covers(&volume, &extents)?;
        // Failed writes must not leave data beyond the end of a volume that grows.
        let beyond =
            open.extents(volume.size_bytes, u64::MAX).map_err(|error| format!("extents of '{name}': {error}"))?;
        if let Some(extent) = beyond.iter().find(|one| one.kind == ExtentKind::Data) {
            return Err(format!("'{name}' has data beyond its end: {extent:?}"));
        }
        let extents = [extents, beyond].concat();
        for unit in units(&extents, info.unit_bytes) {
            *owners.entry(unit).or_default() += 1;
        }
        volumes.push((volume, extents));
    }
    let data = owners.len() as u64 * info.unit_bytes;
    if info.data_bytes != data {
        return Err(format!("the pool counts {} bytes of data; the volumes have {data}", info.data_bytes));
    }
    if info.volumes as usize != volumes.len() {
        return Err(format!("the pool counts {} volumes and lists {}", info.volumes, volumes.len()));
    }
    volumes.iter().try_for_each(|(volume, extents)| balance_volume(volume, extents, &owners, info.unit_bytes))
}

/// Checks that no space is lost: freed space has become free, and the metadata count is what the checkpoint on the
/// device takes. The pool has just been flushed, and nothing is under way.
pub fn audit_metadata(pool: &Pool, disk: &SimDisk) -> Result<(), String> {
    // Setting the mark writes a checkpoint: freed units pass the gate, and the pages that it gives up become free.
    let low_water = pool.info().low_water;
    pool.set_low_water(low_water).map_err(|error| format!("setting the low-water mark: {error}"))?;
    let report = check_image(&disk.image()).map_err(|error| format!("check fails: {error}"))?;
    let info = pool.info();
    if info.pending_bytes > 0 {
        return Err(format!("{} bytes were let go and do not become free", info.pending_bytes));
    }
    let there = (report.totals.reserved_units + report.totals.metadata_units) * info.unit_bytes;
    if info.metadata_bytes != there {
        let counted = info.metadata_bytes;
        return Err(format!("the pool counts {counted} bytes of metadata; on the device it has {there}"));
    }
    Ok(())
}

/// Checks that a scrub finds nothing: all metadata on the device is whole, and all data matches its checksums.
pub fn scrubs_clean(pool: &Pool) -> Result<(), String> {
    let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(()));
    let report = report.map_err(|error| format!("the scrub fails: {error}"))?;
    if !report.is_clean() || report.busy_bytes > 0 {
        let findings: Vec<String> = report.findings.iter().map(|finding| format!("\n  {finding}")).collect();
        return Err(format!("a scrub finds ({} bytes busy){}", report.busy_bytes, findings.concat()));
    }
    Ok(())
}

/// Checks that the categories of space add up to the size.
fn balance(info: &PoolInfo) -> Result<(), String> {
    let sum = info.data_bytes + info.metadata_bytes + info.free_bytes + info.pending_bytes + info.reserve_bytes;
    if sum != info.size_bytes {
        return Err(format!("the pool's bytes add up to {sum} and not to {}: {info:?}", info.size_bytes));
    }
    Ok(())
}

/// Checks that the extents cover the volume without a gap.
fn covers(volume: &VolumeInfo, extents: &[Extent]) -> Result<(), String> {
    let mut at = 0;
    for extent in extents {
        if extent.pos != at || extent.len == 0 {
            return Err(format!("extents of '{}' leave a gap at {at}: {extent:?}", volume.name));
        }
        at += extent.len;
    }
    if at != volume.size_bytes {
        return Err(format!("extents of '{}' end at {at} of {}", volume.name, volume.size_bytes));
    }
    Ok(())
}

/// Returns the units that extents lie in, each once.
fn units(extents: &[Extent], unit_bytes: u64) -> Vec<u64> {
    let with_space = extents.iter().filter(|extent| extent.kind != ExtentKind::Hole);
    let mut all: Vec<u64> =
        with_space.flat_map(|one| one.addr / unit_bytes..(one.addr + one.len).div_ceil(unit_bytes)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn balance_volume(
    volume: &VolumeInfo,
    extents: &[Extent],
    owners: &BTreeMap<u64, u64>,
    unit_bytes: u64,
) -> Result<(), String> {
    let units = units(extents, unit_bytes);
    let shared = units.iter().filter(|unit| owners.get(unit).is_some_and(|&count| count > 1)).count() as u64;
    // A volume may end within a block, which is written as a whole.
    let data = extents.iter().filter(|one| one.kind == ExtentKind::Data);
    let written: u64 = data.map(|one| one.len.next_multiple_of(BLOCK as u64)).sum();
    let allocated = units.len() as u64;
    let (shared, unique) = (shared * unit_bytes, (allocated - shared) * unit_bytes);
    let told = (volume.allocated_bytes, volume.shared_bytes, volume.unique_bytes, volume.written_bytes);
    if told != (allocated * unit_bytes, shared, unique, written) {
        return Err(format!(
            "'{}' says allocated, shared, unique, written: {told:?}; its extents say {:?}",
            volume.name,
            (allocated * unit_bytes, shared, unique, written)
        ));
    }
    Ok(())
}
