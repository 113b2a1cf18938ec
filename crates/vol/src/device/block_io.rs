//! Blocking I/O that the pool itself does: on metadata, and on data that is copied or zeroed.
//!
//! Owns the trait, and [`DeviceIo`], which implements it for a device, with a block layer for each calling thread. Does
//! not own the content or the order of writes.
//!
//! - I1: no call is made under the pool's state lock, because every call may block.
//! - I2: the memory of an I/O outlives it: a call returns after all bios that it submitted have ended.
//! - I3: when a [`DeviceIo`] is dropped, the block layer of the dropping thread is dropped at once. The block layer of
//!   another thread is dropped at that thread's next call of any [`DeviceIo`], or at the thread's end.
//! - I4: a thread without a block layer gets one even if the process has no file descriptor left: the spare ones are
//!   given up for it. Otherwise the first flush of a new worker would fail, and lose writes, because something else in
//!   the process has opened too many files.
#![allow(unsafe_code)] // Bios take memory as addresses.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sheave_base::buf::Buf;
use sheave_base::clock::Clock;
use sheave_base::status::Status;
use sheave_blk::bio::{BIO_OWNER, BVec, NO_FIXED_BUF, Op};
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};
use sheave_blk::{Device, DeviceError};

/// Blocking reads and writes of a pool's bytes. Addresses and lengths are multiples of 4 KiB and inside
/// [`BlockIo::size_bytes`].
pub trait BlockIo: Send + Sync {
    /// Fills `buf` with the bytes at `at`.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status>;
    /// Writes `buf` to `at`. The data is durable after the next [`BlockIo::flush`].
    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status>;
    /// Makes all completed writes durable.
    fn flush(&self) -> Result<(), Status>;
    /// Declares that the bytes are not needed any more.
    fn discard(&self, at: u64, len: u64) -> Result<(), Status>;
    /// Returns the size in bytes.
    fn size_bytes(&self) -> u64;
    /// Returns true if a write to a place that was never written may fail for lack of space below.
    fn is_sparse(&self) -> bool {
        false
    }
    /// Fills several buffers. The order of the reads is not defined.
    fn read_many(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Status> {
        pieces.iter_mut().try_for_each(|(at, buf)| self.read(*at, buf))
    }
    /// Writes several buffers. The order of the writes is not defined.
    fn write_many(&self, pieces: &[(u64, &[u8])]) -> Result<(), Status> {
        pieces.iter().try_for_each(|(at, buf)| self.write(*at, buf))
    }
}

/// Lets a caller keep a handle to the I/O that it gives to a pool.
impl<T: BlockIo + ?Sized> BlockIo for Arc<T> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        (**self).read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        (**self).write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        (**self).flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        (**self).discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    fn is_sparse(&self) -> bool {
        (**self).is_sparse()
    }

    fn read_many(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Status> {
        (**self).read_many(pieces)
    }

    fn write_many(&self, pieces: &[(u64, &[u8])]) -> Result<(), Status> {
        (**self).write_many(pieces)
    }
}

/// Largest number of I/Os in flight in one call.
const DEPTH: usize = 32;
/// Longest single transfer, in bytes.
const LONGEST: usize = 1 << 20;
/// Longest single discard, in bytes: a bio has 32 bits for the length, and this is a multiple of any block size.
const LONGEST_DISCARD: u64 = 1 << 30;
/// Number of spare descriptors (I4). A block layer takes two, for its kernel ring and its eventfd, and drivers of
/// network storage one or two more for a connection.
const SPARES: usize = 4;

/// Block layer of one thread for one [`DeviceIo`].
struct Slot {
    /// The [`DeviceIo`] that the slot belongs to. The reference is weak, so that the thread can find out that the
    /// `DeviceIo` was dropped.
    owner: Weak<()>,
    ctx: IoCtx,
    bdev: u16,
}

thread_local! {
    static SLOTS: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
}

struct Piece {
    op: Op,
    at: u64,
    bytes: u32,
    vec: Option<BVec>,
}

/// Blocking I/O on a device, usable from any thread.
#[derive(Debug)]
pub struct DeviceIo {
    device: Device,
    /// Identity of this object, which slots of other threads refer to.
    me: Arc<()>,
    /// Flags of the bios that flush the device.
    flush: u16,
    /// Spare descriptors, which are closed when a block layer cannot be opened without them.
    spares: Mutex<Vec<OwnedFd>>,
}

impl DeviceIo {
    /// Creates the I/O and attaches the calling thread, so that a device that cannot be used is reported here.
    pub fn new(device: &Device) -> Result<DeviceIo, DeviceError> {
        DeviceIo::with_flushes(device, 0)
    }

    /// Creates the I/O of the device's owner, which watches the [alarm](sheave_blk::flush_alarm) itself: a flush
    /// returns its own result, even after an earlier flush has failed.
    pub(crate) fn of_owner(device: &Device) -> Result<DeviceIo, DeviceError> {
        DeviceIo::with_flushes(device, BIO_OWNER)
    }

    fn with_flushes(device: &Device, flush: u16) -> Result<DeviceIo, DeviceError> {
        let io = DeviceIo { device: device.clone(), me: Arc::new(()), flush, spares: Mutex::default() };
        let slot = io.open()?;
        fill(&mut io.spares.lock().unwrap_or_else(PoisonError::into_inner));
        // Fails only while the thread ends and its list is gone. Then each I/O opens the device anew.
        let _ = SLOTS.try_with(|slots| slots.borrow_mut().push(slot));
        Ok(io)
    }

    fn open(&self) -> Result<Slot, DeviceError> {
        let clock = Clock::real();
        let (bios, kring_entries) = (2 * DEPTH as u32, DEPTH as u32);
        let options = IoCtxOptions { bios, kring_entries, iopoll: false, stats: true, clock };
        let mut ctx = IoCtx::new(options)?;
        let bdev = ctx.attach(&self.device)?;
        Ok(Slot { owner: Arc::downgrade(&self.me), ctx, bdev })
    }

    /// Takes the calling thread's block layer out of the list, so that the list is not borrowed during the I/O. Opens
    /// one if the thread has none.
    fn take(&self) -> Result<Slot, Status> {
        let found = SLOTS.try_with(|slots| {
            let mut slots = slots.borrow_mut();
            slots.retain(|slot| slot.owner.strong_count() > 0);
            let at = slots.iter().position(|slot| self.owns(slot))?;
            Some(slots.swap_remove(at))
        });
        match found {
            Ok(Some(slot)) => Ok(slot),
            _ => self.open_for_thread(),
        }
    }

    /// Opens a block layer for a thread that has none, with the spare descriptors if it must be (I4).
    #[cold]
    fn open_for_thread(&self) -> Result<Slot, Status> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.open().or_else(|_| {
            spares.clear();
            self.open()
        });
        fill(&mut spares);
        slot.map_err(|_| Status::NoMem)
    }

    /// Does all transfers. Returns the first error after all submitted ones have ended (I2).
    fn run(&self, pieces: &mut dyn Iterator<Item = Piece>) -> Result<(), Status> {
        let mut slot = self.take()?;
        let (ctx, bdev) = (&mut slot.ctx, slot.bdev);
        let mut result = Ok(());
        let mut flying = 0;
        let mut next = pieces.next();
        while flying > 0 || next.is_some() {
            ctx.start_plug(DEPTH as u32);
            while flying < DEPTH
                && let Some(piece) = &next
            {
                let sector = piece.at >> 9;
                let flags = if piece.op == Op::Flush { self.flush } else { 0 };
                let spec = BioSpec { bdev, op: piece.op, flags, sector, bytes: piece.bytes, owner: 0 };
                // No bio is free now. The poll below ends some I/O, which frees its bios.
                if !ctx.submit(&spec, piece.vec.as_slice(), NO_FIXED_BUF) {
                    break;
                }
                flying += 1;
                // After an error no further piece is submitted.
                next = if result.is_ok() { pieces.next() } else { None };
            }
            ctx.finish_plug();
            let before = flying;
            ctx.poll(&mut |_, status: Status| {
                flying -= 1;
                if !status.is_ok() && result.is_ok() {
                    result = Err(status);
                }
            });
            if flying == before && flying > 0 {
                ctx.wait(1, None);
            }
        }
        let _ = SLOTS.try_with(|slots| slots.borrow_mut().push(slot));
        result
    }

    fn owns(&self, slot: &Slot) -> bool {
        slot.owner.as_ptr() == Arc::as_ptr(&self.me)
    }

    fn is_aligned(&self, buf: &[u8]) -> bool {
        buf.as_ptr().addr().is_multiple_of(self.device.limits().dma_alignment as usize)
    }

    fn check(&self, at: u64, len: usize) -> Result<(), Status> {
        let block = u64::from(self.device.limits().logical_block) - 1;
        if (at | len as u64) & block != 0 {
            return Err(Status::Invalid);
        }
        match at.checked_add(len as u64) {
            Some(end) if end <= self.device.size_bytes() => Ok(()),
            // The same status as for I/O of rings: the device has shrunk and is smaller than its pool, which is not a
            // lack of space.
            _ => Err(Status::IoErr),
        }
    }
}

/// Opens spare descriptors until there are [`SPARES`], or until the process can have no more. The next thread that
/// opens a block layer then tries again.
fn fill(spares: &mut Vec<OwnedFd>) {
    let open = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok();
    spares.extend(std::iter::from_fn(open).take(SPARES - spares.len()));
}

/// Cuts a buffer into transfers.
fn cut(op: Op, at: u64, base: usize, len: usize) -> impl Iterator<Item = Piece> {
    (0..len).step_by(LONGEST).map(move |from| {
        let bytes = LONGEST.min(len - from);
        // SAFETY: I1 of `sheave_blk::bio`, kept by `DeviceIo::run`: the buffer is borrowed by its caller until all bios
        // have ended, exclusively for reads.
        let vec = unsafe { BVec::new(base + from, bytes) };
        Piece { op, at: at + from as u64, bytes: bytes as u32, vec: Some(vec) }
    })
}

impl BlockIo for DeviceIo {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.check(at, buf.len())?;
        if self.is_aligned(buf) {
            return self.run(&mut cut(Op::Read, at, buf.as_mut_ptr().expose_provenance(), buf.len()));
        }
        let mut bounce = Buf::zeroed(buf.len(), 4096).map_err(|_| Status::NoMem)?;
        self.run(&mut cut(Op::Read, at, bounce.as_mut_ptr().expose_provenance(), bounce.len()))?;
        buf.copy_from_slice(&bounce);
        Ok(())
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.check(at, buf.len())?;
        if self.is_aligned(buf) {
            return self.run(&mut cut(Op::Write, at, buf.as_ptr().expose_provenance(), buf.len()));
        }
        let mut bounce = Buf::zeroed(buf.len(), 4096).map_err(|_| Status::NoMem)?;
        bounce.copy_from_slice(buf);
        self.run(&mut cut(Op::Write, at, bounce.as_ptr().expose_provenance(), bounce.len()))
    }

    fn flush(&self) -> Result<(), Status> {
        self.run(&mut std::iter::once(Piece { op: Op::Flush, at: 0, bytes: 0, vec: None }))
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        // A discard is only a hint, so a device without it is no error.
        if self.device.limits().max_discard_sectors == 0 {
            return Ok(());
        }
        let starts = (at..at + len).step_by(LONGEST_DISCARD as usize);
        self.run(&mut starts.map(|from| {
            let bytes = LONGEST_DISCARD.min(at + len - from) as u32;
            Piece { op: Op::Discard, at: from, bytes, vec: None }
        }))
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn is_sparse(&self) -> bool {
        self.device.capabilities().sparse
    }

    fn read_many(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Status> {
        pieces.iter().try_for_each(|(at, buf)| self.check(*at, buf.len()))?;
        if !pieces.iter().all(|(_, buf)| self.is_aligned(buf)) {
            return pieces.iter_mut().try_for_each(|(at, buf)| self.read(*at, buf));
        }
        let all = pieces.iter_mut();
        self.run(&mut all.flat_map(|(at, buf)| cut(Op::Read, *at, buf.as_mut_ptr().expose_provenance(), buf.len())))
    }

    fn write_many(&self, pieces: &[(u64, &[u8])]) -> Result<(), Status> {
        pieces.iter().try_for_each(|(at, buf)| self.check(*at, buf.len()))?;
        if !pieces.iter().all(|(_, buf)| self.is_aligned(buf)) {
            return pieces.iter().try_for_each(|(at, buf)| self.write(*at, buf));
        }
        let all = pieces.iter();
        self.run(&mut all.flat_map(|(at, buf)| cut(Op::Write, *at, buf.as_ptr().expose_provenance(), buf.len())))
    }
}

impl Drop for DeviceIo {
    fn drop(&mut self) {
        // Dropped after the borrow has ended, because dropping a block layer may wait for I/O.
        let mine = SLOTS.try_with(|slots| {
            let mut slots = slots.borrow_mut();
            let at = slots.iter().position(|slot| self.owns(slot))?;
            Some(slots.swap_remove(at))
        });
        drop(mine);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use sheave_drivers::open_device;

    #[test]
    fn what_is_written_is_read_from_any_thread() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        for spec in ["ram:size=8M".to_string(), format!("file:{},size=8M", file.path().display())] {
            let device = open_device(&spec).expect("opens");
            let io = DeviceIo::new(&device).expect("attaches");
            let long: Vec<u8> = (0..3_000_000u32 / 4096 * 4096).map(|at| (at / 4096 + at) as u8).collect();
            io.write(4096, &long).expect("writes");
            io.flush().expect("flushes");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut back = vec![0; long.len()];
                    io.read(4096, &mut back).expect("reads");
                    assert!(back == long, "{spec}");
                    let (mut a, mut b) = (vec![0; 4096], vec![0; 8192]);
                    io.read_many(&mut [(4096, &mut a), (8192, &mut b)]).expect("reads");
                    assert!(a == long[..4096] && b == long[4096..12288]);
                });
            });
            assert_eq!(io.read(100, &mut [0; 512]), Err(Status::Invalid));
            assert_eq!(io.write(8 << 20, &[0; 4096]), Err(Status::IoErr));
            io.discard(0, 8 << 20).expect("discards, or the device has none");
        }
    }

    #[test]
    fn nothing_holds_the_device_after_drop() {
        let device = open_device("ram:size=1M").expect("opens");
        let rings = || device.whole_queue().map(sheave_base::sync::Arc::strong_count);
        let before = rings();
        let io = DeviceIo::new(&device).expect("attaches");
        assert!(rings() > before);
        drop(io);
        assert_eq!(rings(), before);
    }
}
