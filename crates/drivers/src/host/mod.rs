//! The `host` driver: files and block devices of the host, through the kernel io_uring of a Sheave ring; or by blocking
//! system calls on threads, where io_uring is forbidden.
//!
//! Spec: `file:PATH,size=1G,direct=on|off|auto,engine=uring|sync,readonly=on,sync=on,bs=4k,depth=256,timeout=30s`;
//! docs/drivers/file.md explains the keys.
//!
//! | module | holds |
//! |---|---|
//! | `open`, `probe` | opening a path, with errors that name the cause; the abilities of the file or device |
//! | `claim`, `holder` | the lock that excludes other processes; the process that holds it |
//! | `overlap` | other paths to the same bytes, which the lock covers too |
//! | `inherit` | open files and locks that a process inherits from the one that it replaces |
//! | `shared` | state that all rings of the device share: the file, operations that it does not support, notices |
//! | `queue` | hardware queue of a ring that uses the kernel ring: requests to operations and back, the fast path |
//! | `sync` | hardware queue of a ring that uses system calls |
//! | `workers`, `calls` | the threads of a file; their system calls |
//! | `recover` | results other than plain success, for both engines: short, refused, cancelled, shrunk |

mod calls;
mod claim;
mod error;
mod holder;
mod inherit;
pub mod open;
mod overlap;
pub mod probe;
mod queue;
mod recover;
mod shared;
mod sync;
mod workers;

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sheave_base::sync::Arc;

pub use error::{HostError, HostErrorKind};
pub use inherit::{Inherited, InheritedKind, end_inheritance, inherit, is_inherited, open_now};
pub use open::{Direct, HostFile, HostOpts, Passed, make_name_durable};
pub use probe::{Caps, FileKind};

use crate::reach::Reach;
use crate::spec::Params;
use queue::HostQueue;
use shared::HostShared;
use sheave_blk::bio::SECTOR_SHIFT;
use sheave_blk::claim::{Claim, Sharing};
use sheave_blk::device::Device;
use sheave_blk::driver::{Capabilities, Driver, Engine, HctxOpen, HwQueue};
use sheave_blk::error::DeviceError;
use sheave_blk::limits::Limits;
use sheave_blk::queue::DEFAULT_TIMEOUT;
use sheave_kring::{KernelRing, KringError, KringOpts, MAX_RW_BYTES, MAX_SEGMENTS, Target};
use sync::SyncQueue;
use workers::Workers;

/// Largest number of bytes of a read or write. It is large enough that most requests go to the kernel whole.
const MAX_IO_BYTES: u32 = 16 << 20;
/// Largest number of bytes of a discard. A discard only frees extents, and takes little time.
const MAX_DISCARD_BYTES: u32 = 1 << 30;
/// Largest number of bytes of a write-zeroes. Some file systems and devices write the zeroes.
const MAX_ZERO_BYTES: u32 = 128 << 20;
/// Default number of requests in flight on one ring.
const DEFAULT_DEPTH: u16 = 256;

const _: () = assert!(MAX_IO_BYTES as usize <= MAX_RW_BYTES, "one operation of the kernel ring carries a request");

/// A file or block device of the host.
#[derive(Debug)]
pub struct Host {
    shared: Arc<HostShared>,
    workers: Arc<Workers>,
    /// Engine that the spec names. `None` uses the kernel ring if the process may have one.
    engine: Option<Engine>,
    block: u32,
    depth: u16,
    /// True to send flushes, discards and write-zeroes to the threads, as with a kernel ring that polls.
    beside: bool,
}

impl Host {
    /// Makes a device on an opened file, with at most `depth` requests in flight on each ring.
    pub fn new(file: HostFile, depth: u16) -> Host {
        let block = file.caps().logical_block;
        let shared = Arc::new(HostShared::new(file));
        Host { workers: Workers::new(shared.clone()), shared, engine: None, block, depth, beside: false }
    }

    fn open_sync(&self, open: &HctxOpen<'_>) -> Box<dyn HwQueue> {
        Box::new(SyncQueue::new(self.shared.clone(), open, self.workers.clone()))
    }

    /// Sets the logical block to `block` bytes, a multiple of the file's own.
    #[must_use]
    pub fn with_block(mut self, block: u32) -> Host {
        self.block = self.block.max(block);
        self
    }
}

/// Returns the engine for files and block devices whose spec names none.
pub fn usual_engine() -> Engine {
    /// Set once this process has made a ring: no general reason forbids rings then.
    static MADE: OnceLock<()> = OnceLock::new();
    let may = sheave_kring::is_allowed().and_then(|()| match MADE.get() {
        Some(()) => Ok(()),
        None => KernelRing::new(1, KringOpts::default()).map(|_| _ = MADE.set(())),
    });
    match may {
        Err(error) if needs_sync(&error) => Engine::Sync,
        _ => Engine::IoUring,
    }
}

/// Returns true if there is no kernel ring for a reason that calls for the other engine: the kernel, a sandbox or a
/// limit gives this process none. Returns false if file descriptors ran out: the files of the other engine would fail
/// next, and a process that merely started with too low a limit would stay slow. Returns false if the ring is to poll,
/// because that was requested.
fn needs_sync(error: &KringError) -> bool {
    use KringError as K;
    match error {
        K::Disabled { .. } | K::Forbidden { .. } | K::Missing | K::NoMemory => true,
        K::Refused { iopoll, .. } => !iopoll,
        _ => false,
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: the kernel checks every range itself.
unsafe impl Driver for Host {
    fn limits(&self) -> Limits {
        let caps = self.shared.file.caps();
        Limits::default()
            .logical_block(self.block)
            .physical_block(caps.physical_block.max(self.block))
            .max_sectors(MAX_IO_BYTES >> SECTOR_SHIFT)
            .max_segments(MAX_SEGMENTS as u16)
            .chunk_sectors(0)
            .dma_alignment(caps.dma_alignment)
            .max_discard_sectors(if caps.discard { MAX_DISCARD_BYTES >> SECTOR_SHIFT } else { 0 })
            .max_write_zeroes_sectors(if self.shared.file.is_readonly() { 0 } else { MAX_ZERO_BYTES >> SECTOR_SHIFT })
            .queue_depth(self.depth)
    }

    fn capabilities(&self) -> Capabilities {
        let file = &self.shared.file;
        let caps = file.caps();
        let engine = self.engine.unwrap_or_else(usual_engine);
        Capabilities::default()
            .fua(caps.fua_native)
            .volatile_cache(caps.volatile_cache && !file.is_readonly())
            .discard(caps.discard)
            .write_zeroes(caps.zero_range || caps.discard)
            .polled(caps.iopoll && engine == Engine::IoUring)
            .engine(Some(engine))
            .direct_io(file.is_direct())
            // With the page cache, the kernel copies the data within the call that sends an I/O.
            .asynchronous(file.is_direct())
            .read_only(file.is_readonly())
            .sparse(caps.kind == FileKind::Regular)
    }

    fn size_bytes(&self) -> u64 {
        self.shared.file.size_bytes()
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        let file = &self.shared.file;
        if self.engine == Some(Engine::Sync) {
            return Ok(self.open_sync(open));
        }
        let kring = match open.kring.get(file.caps().iopoll) {
            Ok(kring) => kring,
            Err(error) if self.engine.is_none() && needs_sync(&error) => {
                self.shared.notice(format!(
                    "{}: I/O goes by system calls that wait, on threads (engine=sync), for {error}",
                    file.path().display()
                ));
                return Ok(self.open_sync(open));
            }
            Err(error) => {
                let what = format!("attaching {}", file.path().display());
                return Err(DeviceError::Kring { what, source: Box::new(error) });
            }
        };
        kring.notices().iter().for_each(|notice| self.shared.notice(notice.clone()));
        let target = kring.register_file(file.as_raw_fd()).map_or(Target::Raw(file.as_raw_fd()), Target::Fixed);
        let beside = (self.beside || kring.features().iopoll).then(|| self.workers.clone());
        Ok(Box::new(HostQueue::new(self.shared.clone(), open, target, beside)))
    }

    fn claim(&self, sharing: Sharing) -> Result<Claim, DeviceError> {
        claim::claim(&self.shared, sharing)
    }

    fn lasting(&self) -> Option<[u64; 2]> {
        self.shared.file.identity()
    }

    fn notices(&self) -> Vec<String> {
        self.shared.notices()
    }
}

/// Describes the process that has a file or device locked as a user of it does. Takes no lock.
pub fn in_use_by(path: &Path) -> Option<String> {
    holder::who_has(path)
}

/// Returns the paths of other devices and files that share bytes with `path`: a claim opens and locks them, too. A
/// process that restricts itself to certain paths must allow these.
pub fn paths_to_the_same_bytes(path: &Path) -> Vec<PathBuf> {
    let Ok(meta) = std::fs::metadata(path) else { return Vec::new() };
    let around = overlap::overlaps(&claim::this_machine(), overlap::Node::of(&meta), path);
    around.found.into_iter().filter(|one| one.way != overlap::Way::Itself).map(|one| one.path).collect()
}

/// Opens `file:...`.
pub(crate) fn from_spec(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    with(params, |path, opts| HostFile::open(path, opts))
}

/// Returns the file of `file:...`.
pub(crate) fn reaches(params: &mut Params<'_>) -> Vec<Reach> {
    params.path().map(|path| Reach::Data(path.into())).into_iter().collect()
}

/// Opens a spec `file:...` on a file that another process has opened and passed to this one: its path is only a name.
///
/// # Errors
///
/// Like [`open_device`](crate::open_device) and [`HostFile::passed`].
pub fn open_passed(spec: &str, passed: Passed) -> Result<Device, DeviceError> {
    let Some(rest) = spec.strip_prefix("file:") else {
        return Err(DeviceError::spec(spec, "a file came with it, which this kind of device does not take"));
    };
    let below = |spec: &str| Err(DeviceError::spec(spec, "a file that was passed has no device below it"));
    with(&mut Params::parse(spec, rest, &below)?, |path, opts| HostFile::passed(path, passed, opts))
}

/// Opens a spec on the file that `open` returns.
fn with(
    params: &mut Params<'_>,
    open: impl FnOnce(&Path, HostOpts) -> Result<HostFile, HostError>,
) -> Result<Device, DeviceError> {
    let Some(path) = params.path() else {
        return Err(params.error("no path. Put it behind the colon: file:/var/tmp/disk.img,size=1G"));
    };
    let words = [("on", Direct::On), ("off", Direct::Off), ("auto", Direct::Auto)];
    let opts = HostOpts {
        size: params.size("size")?,
        direct: params.choice("direct", &words)?.unwrap_or_default(),
        readonly: params.switch("readonly")?.unwrap_or(false),
        sync: params.switch("sync")?.unwrap_or(false),
    };
    let engines = [("uring", Some(Engine::IoUring)), ("sync", Some(Engine::Sync)), ("auto", None)];
    let engine = params.choice("engine", &engines)?.unwrap_or_default();
    let block = params.block_if_given()?;
    let depth = params.number("depth", 1, 4096)?.map_or(DEFAULT_DEPTH, |depth| depth as u16);
    let timeout = params.duration("timeout")?.unwrap_or(DEFAULT_TIMEOUT);
    params.finish()?;
    if let (Some(size), Some(block)) = (opts.size, block) {
        // Checked before a file is created that could not be used.
        params.check_size(size, block)?;
    }
    let file = open(Path::new(&path), opts)?;
    let own = file.caps().logical_block;
    let block = block.unwrap_or(own);
    if block < own {
        let why =
            format!("bs={block}: direct I/O on this file takes multiples of {own} bytes. Use bs={own} or direct=off");
        return Err(params.error(why));
    }
    params.check_size(file.size_bytes(), block)?;
    let host = Host { engine, ..Host::new(file, depth).with_block(block) };
    Ok(Device::with_timeout(params.spec(), Box::new(host), timeout))
}

#[cfg(test)]
mod tests;
