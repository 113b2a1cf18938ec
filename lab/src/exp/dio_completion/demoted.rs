//! A file whose pure overwrites complete later than necessary, for the arms that stand for the time before Sheave.
//!
//! Adds a flag to the mappings of writes, and passes everything else to the file underneath. A write that has work
//! after the data completes like it would without this wrapper.

use std::sync::Arc;

use sheave::Device;
use sheave_base::status::Status;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::FallocateMode;
use sheave_iomap::grace::Grace;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{File, Mapping, MappingKind, SummedDone, WriteDone};

#[derive(Debug)]
pub struct Demoted {
    file: Arc<dyn File>,
    /// `MapFlags::TASK` or `MapFlags::WORKER`.
    flag: MapFlags,
}

impl Demoted {
    /// Wraps `file` so that every mapping for a write has `flag`.
    pub fn new(file: Arc<dyn File>, flag: MapFlags) -> Demoted {
        Demoted { file, flag }
    }

    fn mark(&self, mapping: Mapping, intent: Intent) -> Mapping {
        mapping.flags(mapping.flags | if intent == Intent::Write { self.flag } else { MapFlags::NONE })
    }
}

impl File for Demoted {
    fn device(&self) -> &Device {
        self.file.device()
    }

    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn max_bytes(&self) -> Option<u64> {
        self.file.max_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.file.block_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.file.is_read_only()
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        self.file.grace()
    }

    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        self.file.map(pos, len, intent).map(|mapping| self.mark(mapping, intent))
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, token: &MayBlock) -> Result<Mapping, Status> {
        self.file.map_blocking(pos, len, intent, token).map(|mapping| self.mark(mapping, intent))
    }

    fn begin_write(&self, piece: &Mapping) {
        self.file.begin_write(piece);
    }

    fn abort_write(&self, piece: &Mapping) {
        self.file.abort_write(piece);
    }

    fn end_summed(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        self.file.end_summed(done)
    }

    fn end_summed_blocking(&self, done: &SummedDone<'_>, token: &MayBlock) -> Result<(), Status> {
        self.file.end_summed_blocking(done, token)
    }

    fn end_write(&self, done: WriteDone<'_>, token: &MayBlock) -> Result<(), Status> {
        let plain =
            |piece: &Mapping| piece.kind == MappingKind::Mapped && !piece.flags.any(MapFlags::SHARED | MapFlags::NEW);
        let overwrote = done.pieces.iter().all(plain) && done.pos + done.len <= self.file.size_bytes();
        match (overwrote, done.status) {
            // Without the flag the ring would not call `end_write` of the file underneath.
            (true, Status::Ok) => Ok(()),
            (true, status) => Err(status),
            (false, _) => self.file.end_write(done, token),
        }
    }

    fn needs_sync(&self) -> bool {
        self.file.needs_sync()
    }

    fn sync(&self, token: &MayBlock) -> Option<Result<(), Status>> {
        self.file.sync(token)
    }

    fn fallocate(&self, mode: FallocateMode, pos: u64, len: u64, token: &MayBlock) -> Result<(), Status> {
        self.file.fallocate(mode, pos, len, token)
    }
}
