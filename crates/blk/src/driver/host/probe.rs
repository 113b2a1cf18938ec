//! What an opened file or block device can do: size, alignment of direct I/O, discard, polling, cache.
//!
//! Owns the questions to the kernel (statx, block ioctls, sysfs, trial calls that touch no data). Every answer has a
//! safe default, so that nothing here fails but the size. Called by `open`, once a device.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags, StatxFlags};

/// The smallest block there is.
pub(super) const MIN_BLOCK: u32 = 512;
/// What is taken for the alignment when it cannot be found out: right for every disk made.
const SAFE_BLOCK: u32 = 4096;

/// What the path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A file in a file system.
    Regular,
    /// A block device.
    Block,
}

/// What the opened thing can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// File or block device.
    pub kind: FileKind,
    /// Offsets and lengths are multiples of this (bytes).
    pub logical_block: u32,
    /// Writes of multiples of this need no read-modify-write below (bytes).
    pub physical_block: u32,
    /// Memory of direct I/O is aligned to this (bytes); 1 when buffered.
    pub dma_alignment: u32,
    /// PUNCH_HOLE gives space back.
    pub discard: bool,
    /// ZERO_RANGE zeroes without writing data.
    pub zero_range: bool,
    /// The device below has queues to poll.
    pub iopoll: bool,
    /// What was written may be lost until a flush.
    pub volatile_cache: bool,
}

/// Alignment of direct I/O, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alignment {
    pub memory: u32,
    pub offset: u32,
}

/// File or block device; anything else gives its name.
pub(super) fn kind_of(meta: &fs::Metadata) -> Result<FileKind, &'static str> {
    let t = meta.file_type();
    match () {
        () if t.is_file() => Ok(FileKind::Regular),
        () if t.is_block_device() => Ok(FileKind::Block),
        () if t.is_dir() => Err("a directory"),
        () if t.is_char_device() => Err("a character device"),
        () if t.is_fifo() => Err("a named pipe"),
        () if t.is_socket() => Err("a socket"),
        () => Err("neither a file nor a block device"),
    }
}

/// The size in bytes, now.
pub(super) fn size_of(file: &File, kind: FileKind) -> io::Result<u64> {
    match kind {
        FileKind::Regular => Ok(file.metadata()?.len()),
        // The end is the same as BLKGETSIZE64, and nobody uses the position.
        FileKind::Block => (&mut &*file).seek(SeekFrom::End(0)),
    }
}

/// The alignment of direct I/O on `file`, which is open with O_DIRECT; `None` if direct I/O does not work on it.
pub(super) fn direct_alignment(file: &File, kind: FileKind, size: u64) -> Option<Alignment> {
    if let Some(answer) = statx_alignment(file) {
        return answer;
    }
    if kind == FileKind::Block {
        let block = rustix::fs::ioctl_blksszget(file).unwrap_or(SAFE_BLOCK);
        return Some(Alignment { memory: block.max(MIN_BLOCK), offset: block.max(MIN_BLOCK) });
    }
    tried_alignment(file, size)
}

/// `Some(None)` is the kernel saying that direct I/O does not work; `None` is a kernel or file system that says
/// nothing (before 6.1, or tmpfs).
fn statx_alignment(file: &File) -> Option<Option<Alignment>> {
    let stat = rustix::fs::statx(file, c"", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    if offset == 0 || !offset.is_power_of_two() || !memory.is_power_of_two() {
        return Some(None);
    }
    Some(Some(Alignment { memory, offset }))
}

/// Reads with ever larger alignment until the kernel agrees.
fn tried_alignment(file: &File, size: u64) -> Option<Alignment> {
    let mut memory = vec![0u8; 2 * SAFE_BLOCK as usize];
    let start = memory.as_ptr().align_offset(SAFE_BLOCK as usize);
    for block in [MIN_BLOCK, 1024, 2048, SAFE_BLOCK] {
        let buffer = memory.get_mut(start..start + block as usize)?;
        // One block in, so that only its own alignment helps; past the end counts as well: the check comes first.
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

/// The block below which a write costs a read (bytes).
pub(super) fn physical_block(file: &File, kind: FileKind, meta: &fs::Metadata) -> u32 {
    let block = match kind {
        FileKind::Block => rustix::fs::ioctl_blkpbszget(file).unwrap_or(SAFE_BLOCK),
        FileKind::Regular => u32::try_from(meta.blksize()).unwrap_or(SAFE_BLOCK),
    };
    if block.is_power_of_two() { block.clamp(MIN_BLOCK, 1 << 16) } else { SAFE_BLOCK }
}

/// Whether (PUNCH_HOLE, ZERO_RANGE) work here.
pub(super) fn space_ops(file: &File, kind: FileKind, meta: &fs::Metadata, path: &Path) -> (bool, bool) {
    match kind {
        // On a block device both are one command to the disk, "write zeroes", or else the kernel writing them.
        FileKind::Block => {
            let offload = queue_number(meta.rdev(), "write_zeroes_max_bytes").is_some_and(|max| max > 0);
            (offload, offload)
        }
        FileKind::Regular => match scratch_file(meta, path) {
            Some(scratch) => (
                works(&scratch, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0),
                works(&scratch, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 0),
            ),
            // Without a file of our own: a hole past the end changes no data; a zeroed range there would take space.
            None => {
                let past_end = meta.len().next_multiple_of(u64::from(SAFE_BLOCK));
                (works(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, past_end), false)
            }
        },
    }
}

/// A nameless file of our own on the same file system, gone when dropped.
fn scratch_file(meta: &fs::Metadata, path: &Path) -> Option<File> {
    let real = fs::canonicalize(path).ok()?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let scratch = File::from(rustix::fs::open(real.parent()?, flags, Mode::RUSR | Mode::WUSR).ok()?);
    (scratch.metadata().ok()?.dev() == meta.dev()).then_some(scratch)
}

fn works(file: impl AsFd, mode: FallocateFlags, offset: u64) -> bool {
    use rustix::io::Errno;
    match rustix::fs::fallocate(file, mode, offset, u64::from(SAFE_BLOCK)) {
        Ok(()) => true,
        // Known, only not now.
        Err(e) => matches!(e, Errno::NOSPC | Errno::DQUOT | Errno::INTR | Errno::FBIG),
    }
}

/// Whether the disk under `meta` has poll queues.
pub(super) fn has_poll_queues(meta: &fs::Metadata, kind: FileKind) -> bool {
    queue_number(disk_of(meta, kind), "io_poll").is_some_and(|on| on == 1)
}

/// Whether the block device `meta` says that it has no volatile cache.
pub(super) fn writes_through(meta: &fs::Metadata) -> bool {
    queue_attribute(meta.rdev(), "write_cache").is_some_and(|text| text.trim() == "write through")
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

/// An attribute of the queue of block device `dev`, or of the disk it is a partition of. None for file systems that
/// have a made-up device number (btrfs, tmpfs, network).
fn queue_attribute(dev: u64, attribute: &str) -> Option<String> {
    let base = PathBuf::from(format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)));
    let disk = fs::read_to_string(base.join("queue").join(attribute));
    disk.or_else(|_| fs::read_to_string(base.join("../queue").join(attribute))).ok()
}
