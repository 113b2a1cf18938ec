//! The contents of a pool, read without its I/O path: mappings come from the volumes, bytes from the disk.

use sheave_base::status::Status;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::{Intent, Mapping, MappingKind};
use sheave_vol::Pool;

use crate::disk::{Image, SECTOR};
use crate::model::{Observed, ObservedVolume};
use crate::sparse::Sparse;
use crate::tag::{Seen, identify};

/// Returns all volumes of an open pool, except those with damaged maps, with the contents of each sector.
pub fn observe(pool: &Pool, disk: &Image, seed: u64) -> Result<Observed, String> {
    let mut found = Observed::new();
    for info in pool.volumes().into_iter().filter(|info| info.damage.is_none()) {
        let volume = pool.open_volume(&info.name).map_err(|error| format!("opening '{}': {error}", info.name))?;
        let size = volume.size_bytes();
        if size != info.size_bytes {
            return Err(format!("'{}' has {size} bytes; the list says {}", info.name, info.size_bytes));
        }
        let sectors = sectors(&volume, disk, seed).map_err(|why| format!("reading '{}': {why}", info.name))?;
        found.insert(info.name, ObservedVolume { size, max: info.max_size_bytes, snapshot: info.snapshot, sectors });
    }
    Ok(found)
}

fn sectors(volume: &dyn File, disk: &Image, seed: u64) -> Result<Sparse<Seen>, String> {
    let size = volume.size_bytes();
    let mut seen = Sparse::default();
    let mut at = 0;
    while at < size {
        let mapping = lookup(volume, at, size - at).map_err(|status| format!("mapping byte {at}: {status}"))?;
        let len = mapping.len.min(size - at);
        if mapping.offset != at || len == 0 || len % SECTOR as u64 != 0 {
            return Err(format!("a mapping that cannot be, for byte {at}: {mapping:?}"));
        }
        let sectors = len / SECTOR as u64;
        if mapping.kind == MappingKind::Mapped {
            if mapping.addr % SECTOR as u64 != 0 || mapping.addr + len > disk.size_bytes() {
                return Err(format!("a mapping that is not on the disk, for byte {at}: {mapping:?}"));
            }
            let (from, to) = (mapping.addr / SECTOR as u64, at / SECTOR as u64);
            seen.touch(to..to + sectors, |_| Seen::Zero);
            let here = |sector: u64| identify(seed, &disk.sector(from + (sector - to)));
            seen.change(to..to + sectors, |_| true, |sector, one| *one = here(sector));
        }
        at += len;
    }
    Ok(seen)
}

fn lookup(volume: &dyn File, pos: u64, len: u64) -> Result<Mapping, Status> {
    match volume.map(pos, len, Intent::Read) {
        Err(Status::Again) => volume.map_blocking(pos, len, Intent::Read, &MayBlock::on_worker()),
        answer => answer,
    }
}
