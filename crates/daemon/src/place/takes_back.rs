//! Tells whether a file or device supports discard, as far as that is possible without writing.
//!
//! A process that opens a pool for writing tries it, on an unnamed file beside the pool. Read-only commands must change
//! nothing, so this module goes by what the kernel reports for a block device, and by the type of a file system.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// File systems without support for holes, by their magic numbers in statfs(2): 9p, exFAT, FAT, HFS and HFS+, JFS,
/// minix (four), NILFS, ramfs, ReiserFS, UDF.
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

/// Returns whether `path` supports discard; `None` if only a write would tell.
pub fn takes_back(path: &Path) -> Option<bool> {
    let meta = fs::metadata(path).ok()?;
    if meta.file_type().is_block_device() {
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let dir = format!("/sys/dev/block/{major}:{minor}");
        // A partition has no queue directory; its disk, one level up, has.
        let read = |queue: &str| fs::read_to_string(format!("{dir}/{queue}/write_zeroes_max_bytes")).ok();
        let most: u64 = read("queue").or_else(|| read("../queue"))?.trim().parse().ok()?;
        return Some(most > 0);
    }
    let magic = rustix::fs::statfs(path).ok()?.f_type as u64;
    WITHOUT_HOLES.contains(&(magic & 0xffff_ffff)).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_makes_holes_and_a_file_that_is_not_there_are_not_told_of() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file");
        assert_eq!((takes_back(file.path()), takes_back(Path::new("/no/such/file"))), (None, None));
    }
}
