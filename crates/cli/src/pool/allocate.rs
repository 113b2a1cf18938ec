//! Preallocation of the files of a pool.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::PoolPlace;

/// Allocates the space of all members now. Their contents are kept.
pub fn all(pool: &PoolPlace) -> Result<(), Failure> {
    pool.paths()?.iter().try_for_each(|path| file(path, None))
}

/// Allocates the space of a file, up to `size` bytes if given. If there is not enough space, the file is left
/// unchanged.
pub fn file(path: &Path, size: Option<u64>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::run(format!("{}: taking its space: {error}", path.display()));
    let file = File::options().write(true).open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(Failure::usage(format!("--allocate full: {} is no file", path.display()))
            .fix("leave it out: a block device has its space"));
    }
    let size = size.unwrap_or(meta.len());
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, size).map_err(|errno| {
        if size > meta.len() {
            // This releases what was allocated beyond the end. Its failure is ignored, because the error above is the
            // one to report.
            let _ = file.set_len(meta.len());
        }
        let fix = match errno {
            Errno::NOSPC | Errno::DQUOT => "make room there, or take a smaller --size",
            _ => "leave --allocate full out: the file system cannot do it",
        };
        failed(errno.into()).fix(fix)
    })
}

/// Returns true if all members are files without holes.
pub fn is_full(pool: &PoolPlace) -> bool {
    let has_all = |path: &std::path::PathBuf| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.blocks().saturating_mul(512) >= meta.len())
    };
    pool.paths().is_ok_and(|paths| paths.iter().all(has_all))
}
