//! What a write to one mapping means for its I/O: whether work is left to do after the data, and where it completes.
//!
//! Owns the rules alone. The engine asks for each mapping of an I/O before its first bio is sent, and the latest place
//! that any of them asks for becomes the [plan](crate::completion_plan).

use crate::completion_plan::CompletionPlan;
use crate::kiocb::{IOCB_DSYNC, IOCB_SYNC, IOCB_WRITE};
use crate::mapping::{MapFlags, Mapping, MappingKind};

/// What a write to one mapping means for its I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The file has work to do after the data is on the device.
    pub completion_work: bool,
    /// The data can be made durable by FUA alone.
    pub fua: bool,
    /// Where it completes at the earliest, as far as this mapping goes. A sync that FUA does not cover demotes it more.
    pub plan: CompletionPlan,
}

/// Whether a write to `mapping` that ends at `end` needs completion work, and whether FUA covers its sync.
///
/// Completion work: the mapping is not plain written space, or shared, or new, or the write extends the file. FUA
/// covers a data sync on a clean mapping without completion work on a device with FUA or without a volatile cache.
///
/// The plan: completion work is for a worker; a file may ask for a later place than that with `MapFlags::TASK` and
/// `MapFlags::WORKER`, never for an earlier one.
#[must_use]
pub fn decide(mapping: &Mapping, end: u64, file_size: u64, iocb_flags: u16, device_writes_through: bool) -> Decision {
    if iocb_flags & IOCB_WRITE == 0 {
        return Decision { completion_work: false, fua: false, plan: CompletionPlan::Inline };
    }
    let completion_work =
        mapping.kind != MappingKind::Mapped || mapping.flags.any(MapFlags::SHARED | MapFlags::NEW) || end > file_size;
    let data_sync_only = iocb_flags & (IOCB_DSYNC | IOCB_SYNC) == IOCB_DSYNC;
    let fua = data_sync_only && !completion_work && !mapping.flags.any(MapFlags::DIRTY) && device_writes_through;
    let plan = if completion_work || mapping.flags.any(MapFlags::WORKER) {
        CompletionPlan::Worker
    } else if mapping.flags.any(MapFlags::TASK) {
        CompletionPlan::Task
    } else {
        CompletionPlan::Inline
    };
    Decision { completion_work, fua, plan }
}

#[cfg(test)]
mod tests;
