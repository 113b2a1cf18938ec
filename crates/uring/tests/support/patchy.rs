//! A file that is more than its device, in patches: written, unwritten, holes, new and shared space. It forgets its
//! mappings at intervals.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::grace::Grace;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{FallocateMode, File, Mapping, MappingKind, PlainRanges};

const PATCH: u64 = 8192;

/// The file. It is as large as its device.
#[derive(Debug)]
pub struct Patchy {
    device: Device,
    asked: AtomicU32,
    grace: Arc<Grace>,
    /// Number of ends of writes with mappings that the write cannot have used.
    wrong: AtomicU32,
}

impl Patchy {
    pub fn new(device: &Device) -> Patchy {
        let (grace, wrong) = (Arc::new(Grace::new()), AtomicU32::new(0));
        Patchy { device: device.clone(), asked: AtomicU32::new(0), grace, wrong }
    }

    /// Asserts, with nothing in flight, that nothing is counted and that all ends of writes had the right mappings.
    pub fn check(&self) {
        assert!(self.grace.is_over(self.grace.start()), "something is counted for ever: {:?}", self.grace);
        assert_eq!(self.wrong.load(Ordering::Relaxed), 0, "ends of writes with wrong pieces");
    }

    /// Returns the number of rings that have the file open.
    pub fn seats(&self) -> usize {
        self.grace.seats()
    }

    /// Returns the mapping of the bytes from `pos` on, up to the end of their patch.
    fn place(&self, pos: u64, len: u64, intent: Intent) -> Mapping {
        let patch = pos / PATCH;
        let hole = if intent == Intent::Read { MappingKind::Hole } else { MappingKind::Unwritten };
        let (kind, flags) = match patch % 7 {
            0 => (MappingKind::Unwritten, MapFlags::NONE),
            1 => (hole, MapFlags::NEW),
            2 => (MappingKind::Mapped, MapFlags::SHARED),
            3 => (MappingKind::Mapped, MapFlags::DIRTY),
            _ => (MappingKind::Mapped, MapFlags::NONE),
        };
        // The patches lie in reverse order on the device.
        let last = self.size_bytes() / PATCH - 1;
        let addr = (last - patch) * PATCH + pos % PATCH;
        Mapping::new(kind, pos, len.min(PATCH - pos % PATCH), addr).flags(flags)
    }

    /// Returns true in every `n`-th call.
    fn one_in(&self, n: u32) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) % n == n - 1
    }
}

impl File for Patchy {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        if self.one_in(5) {
            return Err(Status::Again);
        }
        if pos >= self.size_bytes() {
            return Err(Status::NoSpc);
        }
        Ok(self.place(pos, len, intent))
    }

    fn map_plain(&self, at: &mut [u64], ranges: &PlainRanges) -> usize {
        let PlainRanges { len, intent, .. } = *ranges;
        if self.one_in(3) {
            return 0;
        }
        let mut many = 0;
        for at in at {
            let mapping = self.place(*at, len, intent);
            let clean = matches!(mapping.flags, MapFlags::NONE | MapFlags::DIRTY);
            let plain = mapping.kind == MappingKind::Mapped && clean && mapping.len == len;
            if !plain || self.one_in(7) {
                break;
            }
            *at = mapping.addr;
            many += 1;
        }
        many
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        if self.one_in(11) { Err(Status::IoErr) } else { self.map(pos, len, intent) }
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        let (mut at, end) = (done.pos, done.pos + done.len);
        let fits = |piece: &Mapping| {
            let fits = *piece == self.place(at, end.saturating_sub(at), Intent::Write);
            at += piece.len;
            fits
        };
        let right = done.pieces.iter().all(fits) && at == end && !done.pieces.is_empty();
        self.wrong.fetch_add(u32::from(!right), Ordering::Relaxed);
        match done.status {
            Status::Ok if self.one_in(13) => Err(Status::NoSpc),
            Status::Ok => Ok(()),
            status => Err(status),
        }
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        Some(&self.grace)
    }

    fn needs_sync(&self) -> bool {
        !self.one_in(3)
    }

    fn fallocate(&self, _: FallocateMode, _: u64, _: u64, _: &MayBlock) -> Result<(), Status> {
        let over = self.grace.wait(self.grace.start(), Duration::from_secs(20));
        if over { Ok(()) } else { Err(Status::Timeout) }
    }

    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        match self.asked.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => Some(Ok(())),
            1 => Some(Err(Status::IoErr)),
            _ => None,
        }
    }
}
