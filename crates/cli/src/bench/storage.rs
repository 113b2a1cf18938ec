//! What a device spec names, as far as a run of `sheave bench` cares: no device is opened here.
//!
//! The module is not called target, since version control ignores folders of that name.

use std::path::PathBuf;

use sheave_daemon::failure::Failure;
use sheave_daemon::place::{PoolPlace, VolumePlace};

use crate::bench::content;

/// Name of a volume that is made for the run.
const TEMPORARY: &str = "bench";
/// What kind of device a spec names, as far as the run cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Keeps nothing.
    Null,
    /// Memory that starts empty with each run.
    Ram,
    /// A file or block device.
    File(PathBuf),
    /// A thin volume.
    Volume(VolumePlace),
    /// A stack of devices; only its driver knows.
    Other,
}

impl Target {
    /// Reads the kind off a spec; whether the rest of it makes sense is for the device to say.
    pub fn of(spec: &str) -> Result<Self, Failure> {
        if let Some(path) = content::file_of(spec) {
            return Ok(Self::File(path));
        }
        let (scheme, rest) = spec.split_once(':').unwrap_or((spec, ""));
        Ok(match scheme {
            "vol" => Self::Volume(place_of(rest)?),
            "null" => Self::Null,
            "ram" => Self::Ram,
            _ => Self::Other,
        })
    }

    /// Whether it is a block device that is there.
    pub fn is_block_device(&self) -> bool {
        use std::os::unix::fs::FileTypeExt;
        matches!(self, Self::File(path) if path.metadata().is_ok_and(|meta| meta.file_type().is_block_device()))
    }
}

/// The `size=` of the spec of a file, when it has one that can be read.
pub fn size_of(spec: &str) -> Option<u64> {
    let size = spec.rsplit(',').find_map(|item| item.strip_prefix("size="))?;
    sheave_base::units::parse_size(size).ok()
}

/// Whether the spec of a file makes every write to it durable.
pub fn is_sync(spec: &str) -> bool {
    content::split_file(spec).is_some_and(|(_, options)| options.split(',').any(|item| item == "sync=on"))
}

/// Reads `POOL#NAME` behind `vol:`; a pool in memory needs no name.
fn place_of(text: &str) -> Result<VolumePlace, Failure> {
    let bad = |why: String| {
        Failure::usage(format!("vol:{text}: {why}")).fix("write vol:POOL#NAME, or vol:ram:size=1G for one in memory")
    };
    if !text.contains('#') {
        let pool: PoolPlace = text.parse().map_err(bad)?;
        if pool.is_volatile() {
            return Ok(VolumePlace { pool, name: TEMPORARY.into() });
        }
        // A pool that is in memory in part cannot be there, and to make it would overwrite the other part.
        pool.refuse_volatile()?;
    }
    text.parse().map_err(bad)
}

#[cfg(test)]
mod tests;
