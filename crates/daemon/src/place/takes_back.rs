//! Whether what holds a pool takes space back, as far as that can be told without writing.
//!
//! Who opens a pool to write tries it, on a nameless file beside the pool. Who looks at a pool changes nothing, so this
//! goes by what the kernel says of a block device, and by the kind of a file system.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// File systems whose files cannot have holes made in them, by the magic numbers of statfs(2): 9p, exFAT, FAT, HFS and
/// HFS+, JFS, minix (four), NILFS, ramfs, ReiserFS, UDF.
const WITHOUT_HOLES: [u64; 14] = [
    0x0102_1997,
    0x2011_bab0,
    0x4d44,
    0x4244,
    0x482b,
    0x3153_464a,
    0x137f,
    0x138f,
    0x2468,
    0x2478,
    0x3434,
    0x8584_58f6,
    0x5265_4973,
    0x1501_3346,
];

/// Whether it does; `None` when only a try would tell.
pub fn takes_back(path: &Path) -> Option<bool> {
    let meta = fs::metadata(path).ok()?;
    if meta.file_type().is_block_device() {
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let dir = format!("/sys/dev/block/{major}:{minor}");
        // The queue of a partition is that of its disk.
        let read = |queue: &str| fs::read_to_string(format!("{dir}/{queue}/write_zeroes_max_bytes")).ok();
        let most: u64 = read("queue").or_else(|| read("../queue"))?.trim().parse().ok()?;
        return Some(most > 0);
    }
    let magic = rustix::fs::statfs(path).ok()?.f_type as u64;
    WITHOUT_HOLES.contains(&(magic & 0xffff_ffff)).then_some(false)
}

#[cfg(test)]
mod tests;
