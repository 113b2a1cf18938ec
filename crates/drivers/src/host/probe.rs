//! Abilities of an opened file or block device: size, alignment of direct I/O, discard, polling, cache.
//!
//! Owns the queries to the kernel (statx, block ioctls, sysfs, trial calls that touch no data). Every query but the one
//! for the size has a safe default, so only that one can fail. Called by `open`, once per device.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};

/// Smallest block of any device.
pub(super) const MIN_BLOCK: u32 = 512;
/// Alignment that is used if the real one cannot be determined: right for every known disk.
const SAFE_BLOCK: u32 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A file in a file system.
    Regular,
    /// A block device.
    Block,
}

/// Abilities of the file or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    pub kind: FileKind,
    /// Offsets and lengths are multiples of this many bytes.
    pub logical_block: u32,
    /// Block size of the medium: writes of multiples of this many bytes need no read-modify-write below.
    pub physical_block: u32,
    /// Alignment of the memory of direct I/O in bytes; 1 if buffered.
    pub dma_alignment: u32,
    /// Largest number of bytes of a direct write with RWF_ATOMIC that is never torn. The number is a power of two, and
    /// the write must be aligned to its length. It is 0 if there is no such guarantee. It implies nothing about
    /// durability.
    pub atomic_write: u32,
    /// True if PUNCH_HOLE frees space.
    pub discard: bool,
    /// True if ZERO_RANGE zeroes without writing data.
    pub zero_range: bool,
    /// True if the disk has queues to poll.
    pub iopoll: bool,
    /// True if writes may be lost until a flush.
    pub volatile_cache: bool,
    /// True if RWF_DSYNC on a write is a single command to the disk (for a file: if the write overwrites data), and not
    /// a write and a flush.
    pub fua_native: bool,
}

/// Alignment of direct I/O, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alignment {
    pub memory: u32,
    pub offset: u32,
}

/// Returns the kind, or as an error the name of another type.
pub(super) fn kind_of(meta: &fs::Metadata) -> Result<FileKind, &'static str> {
    let file_type = meta.file_type();
    if file_type.is_file() {
        return Ok(FileKind::Regular);
    }
    if file_type.is_block_device() {
        return Ok(FileKind::Block);
    }
    let others = [
        (file_type.is_dir(), "a directory"),
        (file_type.is_char_device(), "a character device"),
        (file_type.is_fifo(), "a named pipe"),
        (file_type.is_socket(), "a socket"),
    ];
    Err(others.iter().find(|(is, _)| *is).map_or("neither a file nor a block device", |(_, name)| name))
}

/// Returns the current size in bytes.
pub(super) fn size_of(file: &File, kind: FileKind) -> io::Result<u64> {
    match kind {
        FileKind::Regular => Ok(file.metadata()?.len()),
        // Seeking to the end gives the same as BLKGETSIZE64, and nothing uses the position.
        FileKind::Block => (&mut &*file).seek(SeekFrom::End(0)),
    }
}

/// Switches direct I/O on or off.
pub(super) fn set_direct(file: &File, on: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, on);
    Ok(rustix::fs::fcntl_setfl(file, flags)?)
}

/// Returns the bytes on the file system of `file` that an unprivileged user may still use.
pub(super) fn free_bytes(file: &File) -> Option<u64> {
    let fs = rustix::fs::fstatvfs(file).ok()?;
    fs.f_bavail.checked_mul(fs.f_frsize)
}

/// Returns the bytes of a disk's logical block.
pub(super) fn block_of_disk(file: &File) -> u32 {
    let block = rustix::fs::ioctl_blksszget(file).unwrap_or(SAFE_BLOCK);
    if block.is_power_of_two() { block.max(MIN_BLOCK) } else { SAFE_BLOCK }
}

/// Returns the alignment of direct I/O on `file`, on which it is switched on; `None` if direct I/O does not work.
pub(super) fn direct_alignment(file: &File, kind: FileKind, meta: &fs::Metadata) -> Option<Alignment> {
    if let Some(answer) = statx_alignment(file) {
        return answer;
    }
    let block = match kind {
        FileKind::Block => Some(block_of_disk(file)),
        FileKind::Regular => queue_number(meta.dev(), "logical_block_size").and_then(|n| u32::try_from(n).ok()),
    };
    match block.filter(|block| block.is_power_of_two()) {
        Some(block) => Some(Alignment { memory: block.max(MIN_BLOCK), offset: block.max(MIN_BLOCK) }),
        None => tried_alignment(file, meta.len()),
    }
}

/// Returns the answer of statx: `Some(None)` if direct I/O does not work; `None` if the kernel or file system gives no
/// answer (before 6.1, or tmpfs).
fn statx_alignment(file: &File) -> Option<Option<Alignment>> {
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    if offset == 0 || !offset.is_power_of_two() || !memory.is_power_of_two() {
        return Some(None);
    }
    Some(Some(Alignment { memory, offset }))
}

/// Returns the longest write that is never torn; 0 if there is none, or the kernel (before 6.11) gives no answer.
pub(super) fn atomic_write(file: &File) -> u32 {
    const WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x1_0000);
    match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, WRITE_ATOMIC) {
        Ok(stat) if stat.stx_mask & WRITE_ATOMIC.bits() != 0 => stat.stx_atomic_write_unit_max,
        _ => 0,
    }
}

/// Tries reads with ever larger alignment until one succeeds.
fn tried_alignment(file: &File, size: u64) -> Option<Alignment> {
    let mut memory = vec![0u8; 2 * SAFE_BLOCK as usize];
    let start = memory.as_ptr().align_offset(SAFE_BLOCK as usize);
    for block in [MIN_BLOCK, 1024, 2048, SAFE_BLOCK] {
        let buffer = memory.get_mut(start..start + block as usize)?;
        // At the second block, which is aligned to the block and nothing larger; a read past the end works as well,
        // because the alignment is checked first.
        let offset = if size > u64::from(block) { u64::from(block) } else { 0 };
        match file.read_at(buffer, offset) {
            Ok(_) => {
                return Some(Alignment { memory: block, offset: block });
            }
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            Err(_) => {
                return Some(Alignment { memory: SAFE_BLOCK, offset: SAFE_BLOCK });
            }
        }
    }
    None
}

/// Returns the number of bytes of a physical block: a write of a part of it also needs a read.
pub(super) fn physical_block(file: &File, kind: FileKind, meta: &fs::Metadata) -> u32 {
    let block = match kind {
        FileKind::Block => rustix::fs::ioctl_blkpbszget(file).unwrap_or(SAFE_BLOCK),
        FileKind::Regular => u32::try_from(meta.blksize()).unwrap_or(SAFE_BLOCK),
    };
    if block.is_power_of_two() { block.clamp(MIN_BLOCK, 1 << 16) } else { SAFE_BLOCK }
}

/// Results of `space_ops` by file system, for a process that has sandboxed itself: it can no longer create a scratch
/// file, but still opens files.
static KNOWN: Mutex<BTreeMap<u64, (bool, bool)>> = Mutex::new(BTreeMap::new());
/// Largest number of file systems that are remembered.
const MOST_KNOWN: usize = 256;

fn known(file_system: u64) -> Option<(bool, bool)> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&file_system).copied()
}

/// Tests whether PUNCH_HOLE and ZERO_RANGE work, and returns both results.
pub(super) fn space_ops(file: &File, kind: FileKind, meta: &fs::Metadata) -> (bool, bool) {
    match kind {
        // On a block device both are the command "write zeroes", or else the kernel writes the zeroes.
        FileKind::Block => {
            let offload = queue_number(meta.rdev(), "write_zeroes_max_bytes").is_some_and(|max| max > 0);
            (offload, offload)
        }
        FileKind::Regular => match (scratch_file(meta, file), known(meta.dev())) {
            (Some(scratch), _) => {
                let found = (
                    works(&scratch, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0),
                    works(&scratch, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 0),
                );
                let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
                if all.len() < MOST_KNOWN {
                    all.insert(meta.dev(), found);
                }
                found
            }
            (None, Some(known)) => known,
            // Without a scratch file: a hole past the end changes no data, while a zeroed range there would take space.
            (None, None) => {
                let past_end = meta.len().next_multiple_of(u64::from(SAFE_BLOCK));
                (works(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, past_end), false)
            }
        },
    }
}

/// Makes a nameless file on the same file system, gone when dropped. Its directory is that of the open file itself: the
/// path of a file passed to this process cannot be trusted.
fn scratch_file(meta: &fs::Metadata, file: &File) -> Option<File> {
    let real = fs::canonicalize(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let scratch = File::from(rustix::fs::open(real.parent()?, flags, Mode::RUSR | Mode::WUSR).ok()?);
    (scratch.metadata().ok()?.dev() == meta.dev()).then_some(scratch)
}

fn works(file: impl AsFd, mode: FallocateFlags, offset: u64) -> bool {
    use rustix::io::Errno;
    match rustix::fs::fallocate(file, mode, offset, u64::from(SAFE_BLOCK)) {
        Ok(()) => true,
        // Supported, but not possible at the moment.
        Err(e) => matches!(e, Errno::NOSPC | Errno::DQUOT | Errno::INTR | Errno::FBIG),
    }
}

/// Returns true if the disk under `meta` has poll queues.
pub(super) fn has_poll_queues(meta: &fs::Metadata, kind: FileKind) -> bool {
    queue_number(disk_of(meta, kind), "io_poll") == Some(1)
}

/// Returns true if the block device `meta` reports no volatile cache.
pub(super) fn writes_through(meta: &fs::Metadata) -> bool {
    queue_attribute(meta.rdev(), "write_cache").is_some_and(|text| text.trim() == "write through")
}

/// Returns true if the disk under `meta` can make a single write durable.
pub(super) fn has_fua(meta: &fs::Metadata, kind: FileKind) -> bool {
    let disk = disk_of(meta, kind);
    let through = queue_attribute(disk, "write_cache").is_some_and(|text| text.trim() == "write through");
    through || queue_number(disk, "fua") == Some(1)
}

fn disk_of(meta: &fs::Metadata, kind: FileKind) -> u64 {
    match kind {
        FileKind::Block => meta.rdev(),
        FileKind::Regular => meta.dev(),
    }
}

fn queue_number(dev: u64, attribute: &str) -> Option<u64> {
    queue_attribute(dev, attribute)?.trim().parse().ok()
}

/// Reads an attribute of the queue of block device `dev`, or of the disk it is a partition of. `None` for file systems
/// with a made-up device number (btrfs, tmpfs, network).
fn queue_attribute(dev: u64, attribute: &str) -> Option<String> {
    let base = PathBuf::from(format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)));
    let disk = fs::read_to_string(base.join("queue").join(attribute));
    disk.or_else(|_| fs::read_to_string(base.join("../queue").join(attribute))).ok()
}
