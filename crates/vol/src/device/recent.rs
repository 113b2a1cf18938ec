//! The file of recent changes in its directory: opening, locking and removing it.
//!
//! Owns the name of the file in the runtime directory, and the lock on it. Does not own its layout
//! ([`format::recent`](crate::format::recent)) nor its content ([`state::recent`](crate::state::recent)).
//!
//! An opening first reads the file that an earlier one has left. It begins the file anew when its first checkpoint is
//! durable, which contains all that was read. Until then the earlier file stays valid: a second death loses nothing.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use sheave_base::lasting::Lasting;
use sheave_base::sync::Arc;
use sheave_blk::Device;

use crate::format::damage::Damage;
use crate::format::recent::{self, NUMBERS, Opening};
use crate::format::record::Record;
use crate::format::superblock::Superblock;

/// A file of recent changes, or memory in its place.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) memory: Arc<Lasting>,
    pub(crate) file: Option<Named>,
    pub(crate) boot: [u64; 2],
    pub(crate) storage: [u64; 2],
}

/// A file that is locked by its descriptor, so that two pools with one UUID do not share it.
#[derive(Debug)]
pub(crate) struct Named {
    path: PathBuf,
    _lock: File,
}

impl Named {
    /// Removes the file.
    pub(crate) fn remove(&self) {
        // A file that stays is of an opening that is over, so nothing of it is ever replayed.
        let _ = fs::remove_file(&self.path);
    }
}

impl Kept {
    /// Returns memory in the place of a file.
    pub(crate) fn in_memory(memory: Arc<Lasting>) -> Kept {
        Kept { memory, file: None, boot: [0; 2], storage: [0; 2] }
    }

    /// Opens the file of a pool in a directory. The error is the reason why there is none.
    pub(crate) fn open(device: &Device, dir: Option<&Path>, pool: [u8; 16], read_only: bool) -> Result<Kept, String> {
        let dir = dir.ok_or("there is no runtime directory")?;
        let storage = device.lasting().ok_or("the storage may lose writes with the process")?;
        // The storage is in the name, so that a copy of the pool does not take the file of the original.
        let pool: String = pool.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = dir.join(format!("{pool}-{:x}-{:x}.recent", storage[0], storage[1]));
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let boot = boot().map_err(|error| format!("/proc/sys/kernel/random/boot_id: {error}"))?;
        let (memory, lock) = map(dir, &path, read_only).map_err(failed)?;
        Ok(Kept { memory: Arc::new(memory), file: Some(Named { path, _lock: lock }), boot, storage })
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> PathBuf {
        self.file.as_ref().map_or_else(|| "memory".into(), |file| file.path.clone())
    }

    /// Returns the numbers of the opening with this superblock.
    pub(crate) fn opening(&self, sb: &Superblock) -> Opening {
        Opening::new(sb, self.boot, self.storage)
    }

    /// Returns the changes that an earlier opening has left behind the journal, which ends before the block `seq`.
    pub(crate) fn read(&self, sb: &Superblock, seq: u64) -> Result<Vec<Record>, Damage> {
        Ok(recent::read(&self.memory, &self.opening(sb), sb, seq)?.unwrap_or_default())
    }
}

/// Opens and maps a file, which is made if a writer finds none.
fn map(dir: &Path, path: &Path, read_only: bool) -> io::Result<(Lasting, File)> {
    if !read_only {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(true).create(!read_only).truncate(false).mode(0o600).open(path)?;
    let readers = [FlockOperation::NonBlockingLockExclusive, FlockOperation::NonBlockingLockShared];
    flock(&file, readers[usize::from(read_only)])?;
    if !read_only {
        // Space that is there cannot run out later, in the middle of a store.
        fallocate(&file, FallocateFlags::empty(), 0, 8 * NUMBERS as u64)?;
    }
    Ok((Lasting::of_file(&file, NUMBERS)?, file))
}

/// Returns the number of the machine's boot.
fn boot() -> io::Result<[u64; 2]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok([(number >> 64) as u64, number as u64])
}
