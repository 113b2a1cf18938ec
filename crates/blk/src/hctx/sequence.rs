//! Flush and FUA sequences, for devices with and without volatile caches.
//!
//! Owns the steps. Without a volatile cache flushes end at once and FUA is dropped. With one, a bio runs through up to
//! three steps: PREFLUSH, DATA, POSTFLUSH; a device with native FUA does the last two in one. The
//! [`FlushQueue`](crate::flush) holds the bios that wait for a flush; its conditions C1 and C2 hold here too.
//!
//! Conditions:
//! - C3: a bio ends when its last step has ended; the first error ends the sequence.
//! - C4: a failed flush triggers the [alarms](crate::flush_alarm) of the device's watchers before any bio ends with it.
//!   From then on every flush that a watcher relies on fails.

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;

use super::Hctx;
use crate::bio::{BIO_FUA, BIO_OWNER, BIO_PREFLUSH, BIO_WAITED, BioId, Op};
use crate::end_io::EndIo;
use crate::request::RQ_NOMERGE;
use crate::ring_core::Core;
use crate::stats::Split;

impl Hctx {
    /// Admits a bio that has no data, or has FUA or PREFLUSH set. Returns false if it must wait for tags or bios.
    pub(crate) fn admit_special(&mut self, core: &mut Core, id: BioId) -> bool {
        let caps = self.queue.capabilities();
        let bio = &mut core.bios[id];
        if !caps.volatile_cache {
            bio.flags &= !(BIO_FUA | BIO_PREFLUSH);
        }
        match bio.op {
            Op::Flush if !caps.volatile_cache => core.end_later(id, Status::Ok),
            Op::Flush => self.flush.join(&mut core.bios, id),
            Op::Discard | Op::WriteZeroes => {
                if self.queue.limits().max_bytes(bio.op) == 0 {
                    core.end_later(id, Status::NotSupp);
                } else if bio.flags & BIO_PREFLUSH != 0 {
                    self.flush.join(&mut core.bios, id);
                } else {
                    return self.admit_data(core, id);
                }
            }
            Op::Read | Op::Write if bio.flags & BIO_PREFLUSH != 0 => {
                self.flush.join(&mut core.bios, id);
            }
            Op::Read | Op::Write => return self.admit_data(core, id),
        }
        true
    }

    /// Starts the DATA step. Returns false if the bio must wait for tags or bios.
    fn admit_data(&mut self, core: &mut Core, id: BioId) -> bool {
        let fua = core.bios[id].flags & BIO_FUA != 0 && core.bios[id].op != Op::Read;
        let flags = if fua { self.fua_flags() | RQ_NOMERGE } else { 0 };
        self.cut_and_gather(core, id, flags)
    }

    /// Issues a flush if bios wait for one and none is in flight (C1).
    pub(crate) fn kick_flush(&mut self, core: &mut Core) {
        if self.flush.issue() {
            self.gather_flush(core);
        }
    }

    /// Ends the flush in flight. Each of its bios goes on to DATA, or ends.
    pub(super) fn flush_done(&mut self, core: &mut Core, status: Status, step: LastStep, end: &mut dyn EndIo) {
        if !status.is_ok() {
            self.queue.watches().failed(status);
        }
        let mut running = self.flush.end();
        while let Some(id) = running.pop(&mut core.bios) {
            let bio = &mut core.bios[id];
            // Once an alarm was triggered, no flush of the watched part may succeed, even if the device says so (A2 of
            // `flush_alarm`). Flushes of the owner itself get the device's own result.
            let believed = bio.flags & BIO_OWNER != 0 || !self.queue.watches().distrusts(bio.part);
            let status = if status.is_ok() && !believed { Status::IoErr } else { status };
            if status.is_ok() && bio.flags & BIO_PREFLUSH != 0 && bio.op != Op::Flush {
                bio.flags &= !BIO_PREFLUSH;
                self.waiting.push_back(&mut core.bios, id);
            } else {
                end_sequence(core, id, status, step, end);
            }
        }
    }

    /// Called when DATA of a write without native FUA has ended. POSTFLUSH follows.
    pub(super) fn data_done(
        &mut self,
        core: &mut Core,
        id: BioId,
        status: Status,
        step: LastStep,
        end: &mut dyn EndIo,
    ) {
        if status.is_ok() {
            self.flush.join(&mut core.bios, id);
        } else {
            end_sequence(core, id, status, step, end);
        }
    }
}

/// Split of a sequence's last step, and the time it was reaped, which is `None` without statistics.
type LastStep = (Split, Option<CoarseTs>);

/// Ends a bio after its last step. All time before that step counts as waiting for a tag, including the earlier steps.
fn end_sequence(core: &mut Core, id: BioId, status: Status, (mut split, now): LastStep, end: &mut dyn EndIo) {
    let bio = &core.bios[id];
    if let Some(now) = now
        && bio.flags & BIO_WAITED != 0
    {
        split.tag_ns += now.ns_since(bio.waited_from).saturating_sub(split.total_ns());
    }
    core.split = split;
    core.end_bio_slow(id, status, end);
}

#[cfg(all(test, not(shuttle)))]
mod tests;
