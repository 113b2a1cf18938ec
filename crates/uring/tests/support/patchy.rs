//! A file that is more than its device, in patches: written, unwritten, holes, new and shared space; what it knows of
//! its mappings it forgets again.

use std::sync::atomic::{AtomicU32, Ordering};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::{Intent, MAP_DIRTY, MAP_NEW, MAP_SHARED};
use sheave_iomap::{File, Mapping, MappingKind};

/// Bytes of a patch.
const PATCH: u64 = 8192;

/// The file; as large as its device.
#[derive(Debug)]
pub struct Patchy {
    device: Device,
    asked: AtomicU32,
}

impl Patchy {
    /// On this device.
    pub fn new(device: &Device) -> Patchy {
        Patchy { device: device.clone(), asked: AtomicU32::new(0) }
    }

    /// One in so many calls is true.
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
        let patch = pos / PATCH;
        let hole = if intent == Intent::Read { MappingKind::Hole } else { MappingKind::Unwritten };
        let (kind, flags) = match patch % 7 {
            0 => (MappingKind::Unwritten, 0),
            1 => (hole, MAP_NEW),
            2 => (MappingKind::Mapped, MAP_SHARED),
            3 => (MappingKind::Mapped, MAP_DIRTY),
            _ => (MappingKind::Mapped, 0),
        };
        // The patches lie in reverse order.
        let last = self.size_bytes() / PATCH - 1;
        let addr = (last - patch) * PATCH + pos % PATCH;
        Ok(Mapping { offset: pos, len: len.min(PATCH - pos % PATCH), addr, kind, flags })
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        if self.one_in(11) { Err(Status::IoErr) } else { self.map(pos, len, intent) }
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        match done.status {
            Status::Ok if self.one_in(13) => Err(Status::NoSpc),
            Status::Ok => Ok(()),
            status => Err(status),
        }
    }

    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        match self.asked.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => Some(Ok(())),
            1 => Some(Err(Status::IoErr)),
            _ => None,
        }
    }
}
