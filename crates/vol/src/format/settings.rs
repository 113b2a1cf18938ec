//! Settings that are chosen when a pool is made, and stored in its superblock.
//!
//! Owns the choices and their names. [`superblock`](super::superblock) encodes them.

/// Kind of checksum of a pool's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checksum {
    /// No checksums of data. Metadata always has checksums.
    #[default]
    None,
    /// CRC32C of every 4 KiB block.
    Crc32c,
}

impl Checksum {
    /// Returns the name used in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Checksum::None => "none",
            Checksum::Crc32c => "crc32c",
        }
    }
}

/// The low-water mark: free space below which a pool is low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LowWater {
    /// No mark: the pool is never low, only full.
    Off,
    /// Mark in bytes.
    Bytes(u64),
    /// Mark in percent of the pool, 1 to 99. It rises when the pool grows.
    Percent(u32),
}

impl Default for LowWater {
    fn default() -> Self {
        LowWater::Percent(10)
    }
}

impl std::fmt::Display for LowWater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LowWater::Off => f.write_str("off"),
            LowWater::Bytes(bytes) => write!(f, "{bytes}"),
            LowWater::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}
