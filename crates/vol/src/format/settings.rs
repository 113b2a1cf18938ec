//! What is chosen when a pool is made, and is kept in its superblock.
//!
//! Owns the choices and their words. How they are written down is in [`superblock`](super::superblock).

/// Checksums of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checksum {
    /// None; metadata has its own always.
    #[default]
    None,
    /// CRC32C of every 4 KiB.
    Crc32c,
}

impl Checksum {
    /// Its name, as options and reports have it.
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
    /// None: a pool is ok until it is full.
    Off,
    /// So many bytes.
    Bytes(u64),
    /// So much of the pool, 1 to 99; a pool that grows has a mark that grows.
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
