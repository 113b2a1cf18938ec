//! Classification of device specs for a run of `sheave bench`, without opening a device.
//!
//! The module is not called `target`, because version control ignores folders with that name.

use std::path::PathBuf;

use sheave_daemon::failure::Failure;
use sheave_daemon::place::{PoolPlace, VolumePlace};

use crate::bench::content;

/// Name of the volume that is created for a run.
const TEMPORARY: &str = "bench";
/// Kind of device that a spec names, as far as a run distinguishes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A device that keeps no data.
    Null,
    /// Memory that is empty at the start of each run.
    Ram,
    /// A file or block device.
    File(PathBuf),
    /// A thin volume.
    Volume(VolumePlace),
    /// Any other device, such as a stack of devices.
    Other,
}

impl Target {
    /// Determines the kind from a spec. The rest of the spec is checked when the device is opened.
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

    /// Returns true if it is an existing block device.
    pub fn is_block_device(&self) -> bool {
        use std::os::unix::fs::FileTypeExt;
        matches!(self, Self::File(path) if path.metadata().is_ok_and(|meta| meta.file_type().is_block_device()))
    }
}

/// Returns the value of `size=` in the spec of a file, if it is valid.
pub fn size_of(spec: &str) -> Option<u64> {
    let size = spec.rsplit(',').find_map(|item| item.strip_prefix("size="))?;
    sheave_base::units::parse_size(size).ok()
}

/// Returns true if every write to the file that the spec names is durable.
pub fn is_sync(spec: &str) -> bool {
    content::split_file(spec).is_some_and(|(_, options)| options.split(',').any(|item| item == "sync=on"))
}

/// Parses `POOL#NAME` after `vol:`; a pool in memory needs no name.
fn place_of(text: &str) -> Result<VolumePlace, Failure> {
    let bad = |why: String| {
        Failure::usage(format!("vol:{text}: {why}")).fix("write vol:POOL#NAME, or vol:ram:size=1G for one in memory")
    };
    if !text.contains('#') {
        let pool: PoolPlace = text.parse().map_err(bad)?;
        if pool.is_volatile() {
            return Ok(VolumePlace { pool, name: TEMPORARY.into() });
        }
        // A pool that is partly in memory cannot exist yet, and creating it would overwrite the other part.
        pool.refuse_volatile()?;
    }
    text.parse().map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_writes_are_durable_is_an_option_and_no_part_of_a_path() {
        for (spec, sync) in [
            ("file:a,sync=on", true),
            ("file:\"a,b\",size=1M,sync=on,direct=off", true),
            ("file:a,sync=off", false),
            ("file:\"a,sync=on,b\"", false),
            ("file:sync=on", false),
            ("ram:sync=on", false),
        ] {
            assert_eq!(is_sync(spec), sync, "{spec}");
        }
    }

    #[test]
    fn places() {
        let place = |text| place_of(text).map(|place| (place.pool.to_string(), place.name));
        assert_eq!(place("ram:size=1G").expect("in memory"), ("ram:size=1G".into(), TEMPORARY.into()));
        assert_eq!(place("null:size=1T#x").expect("in memory"), ("null:size=1T".into(), "x".into()));
        assert_eq!(place("pool.img#disk").expect("a volume"), ("pool.img".into(), "disk".into()));
        for bad in ["", "pool.img", "pool.img#", "#disk", "pool.img#a b"] {
            assert!(place(bad).expect_err(bad).to_string().contains("vol:POOL#NAME"), "{bad}");
        }
        let mixed = place("linear:over=file:pool.img+ram:size=1G").expect_err("no pool is made over a file");
        assert!(mixed.to_string().contains("a part of this pool is in memory"), "{mixed}");
    }
}
