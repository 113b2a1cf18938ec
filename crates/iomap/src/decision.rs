//! Rules for a write to one mapping: whether completion work follows the data, and where the I/O completes.
//!
//! Owns the rules alone. The engine calls [`decide`] for each mapping of an I/O before its first bio is sent. The
//! latest place that any mapping requires becomes the [plan](crate::completion_plan).

use crate::completion_plan::CompletionPlan;
use crate::kiocb::{IOCB_DSYNC, IOCB_SYNC, IOCB_WRITE};
use crate::mapping::{MapFlags, Mapping, MappingKind};

/// Result of [`decide`] for one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The file has work to do after the data is on the device.
    pub completion_work: bool,
    /// The data can be made durable by FUA alone.
    pub fua: bool,
    /// Earliest place where the I/O may complete, as far as this mapping is concerned. A sync that FUA does not cover
    /// demotes the plan further.
    pub plan: CompletionPlan,
}

/// Decides whether a write to `mapping` that ends at `end` needs completion work, and whether FUA covers its sync.
///
/// Completion work is needed if the mapping is not plain written space, or is shared or new, or if the write extends
/// the file. FUA covers a data sync on a clean mapping without completion work, on a device with FUA or without a
/// volatile cache.
///
/// Completion work runs on a worker. A file may require a later place with `MapFlags::TASK` and `MapFlags::WORKER`,
/// never an earlier one.
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
