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
mod tests {
    use super::*;
    use crate::request::RQ_FUA;
    use crate::support::{BLOCK, Puppet, Rig};

    fn device(volatile_cache: bool, fua: bool) -> Puppet {
        Puppet::new().caps(|caps| (caps.volatile_cache, caps.fua) = (volatile_cache, fua))
    }

    /// Returns the requests that the device got, as words.
    fn asked(puppet: &Puppet) -> Vec<&'static str> {
        let name = |op, fua| match (op, fua) {
            (Op::Write, true) => "write-fua",
            (op, false) => Op::name(op),
            _ => "odd",
        };
        puppet.script().seen.iter().map(|seen| name(seen.op, seen.flags & RQ_FUA != 0)).collect()
    }

    fn write(rig: &mut Rig, flags: u16, owner: u32) {
        assert!(rig.io_flags(Op::Write, flags, u64::from(owner) * 16, BLOCK, owner));
    }

    #[test]
    fn what_each_device_is_asked_for() {
        let both = BIO_FUA | BIO_PREFLUSH;
        let cases: [(bool, bool, u16, &[&str]); 9] = [
            (false, false, both, &["write"]),
            (false, true, both, &["write"]),
            (true, false, 0, &["write"]),
            (true, false, BIO_FUA, &["write", "flush"]),
            (true, false, BIO_PREFLUSH, &["flush", "write"]),
            (true, false, both, &["flush", "write", "flush"]),
            (true, true, BIO_FUA, &["write-fua"]),
            (true, true, BIO_PREFLUSH, &["flush", "write"]),
            (true, true, both, &["flush", "write-fua"]),
        ];
        for (cache, fua, flags, expect) in cases {
            let puppet = device(cache, fua);
            let mut rig = Rig::new(&[&puppet.device()]);
            write(&mut rig, flags, 0);
            rig.drain();
            assert_eq!(asked(&puppet), expect, "cache {cache}, FUA {fua}, flags {flags:#x}");
            assert_eq!(rig.take_ok(), [0]);
        }
    }

    #[test]
    fn flushes_of_a_device_without_a_cache_end_at_once() {
        let puppet = device(false, true).holding();
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.flush(0);
        rig.poll();
        assert_eq!(rig.take_ok(), [0]);
        assert!(asked(&puppet).is_empty());
    }

    #[test]
    fn a_read_may_carry_the_flags() {
        let puppet = device(true, true);
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.io_flags(Op::Read, BIO_FUA | BIO_PREFLUSH, 0, BLOCK, 0);
        rig.drain();
        assert_eq!(asked(&puppet), ["flush", "read"], "FUA means nothing to a read");
        assert_eq!(rig.take_ok(), [0]);
    }

    #[test]
    fn discards_and_write_zeroes_take_part() {
        let puppet = device(true, false);
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.io_flags(Op::WriteZeroes, BIO_FUA, 0, BLOCK, 0);
        rig.drain();
        rig.io_flags(Op::Discard, BIO_PREFLUSH, 0, BLOCK, 1);
        rig.drain();
        assert_eq!(asked(&puppet), ["write-zeroes", "flush", "flush", "discard"]);
        assert_eq!(rig.take_ok(), [0, 1]);
        let puppet = device(true, false).limits(|limits| limits.max_discard_sectors = 0);
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.io_flags(Op::Discard, BIO_PREFLUSH, 0, BLOCK, 0);
        rig.drain();
        assert_eq!(rig.take_ended(), [(0, Status::NotSupp)]);
        assert!(asked(&puppet).is_empty(), "what cannot be done needs no flush");
    }

    #[test]
    fn one_flush_in_flight_and_the_next_serves_all_who_came_meanwhile() {
        let puppet = device(true, false).holding();
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.flush(0);
        (1..10).for_each(|owner| assert!(rig.flush(owner)));
        for _ in 0..3 {
            rig.poll();
        }
        assert_eq!(asked(&puppet), ["flush"], "C1");
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ok(), [0], "C2: who came later is not served by it");
        assert_eq!(asked(&puppet), ["flush", "flush"]);
        rig.flush(10);
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ok(), (1..10).collect::<Vec<u32>>());
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ok(), [10]);
        assert_eq!(asked(&puppet).len(), 3);
    }

    #[test]
    fn an_error_in_any_step_ends_the_sequence_with_it() {
        // The n-th request of the sequence fails, and the device gets no later ones.
        for (fail_at, expect) in [(0, &["flush"][..]), (1, &["flush", "write"]), (2, &["flush", "write", "flush"])] {
            let puppet = device(true, false).holding();
            let mut rig = Rig::new(&[&puppet.device()]);
            write(&mut rig, BIO_FUA | BIO_PREFLUSH, 0);
            for at in 0..3 {
                rig.poll();
                let bad = vec![(Op::Flush, Status::Medium), (Op::Write, Status::Medium)];
                puppet.script().fail = if at == fail_at { bad } else { Vec::new() };
                puppet.script().finish = 1;
                rig.poll();
            }
            assert_eq!(rig.take_ended(), [(0, Status::Medium)]);
            assert_eq!(asked(&puppet), expect);
            assert!(rig.ctx.is_idle());
            // The next sequence is not affected.
            puppet.script().fail.clear();
            puppet.script().finish = u32::MAX;
            write(&mut rig, BIO_FUA | BIO_PREFLUSH, 1);
            rig.drain();
            assert_eq!(rig.take_ok(), [1]);
        }
    }

    #[test]
    fn a_failed_flush_fails_all_who_waited_for_it() {
        let puppet = device(true, false).holding();
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.flush(0);
        rig.flush(1);
        write(&mut rig, BIO_PREFLUSH, 2);
        puppet.script().finish = 1;
        rig.poll();
        puppet.script().fail = vec![(Op::Flush, Status::Transport)];
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ended(), [(0, Status::Ok), (1, Status::Transport), (2, Status::Transport)]);
        assert_eq!(asked(&puppet), ["flush", "flush"], "no data after a flush that failed");
    }

    #[test]
    fn a_flush_needs_no_tag_of_the_data() {
        for host_depth in [None, Some(2)] {
            let puppet = Puppet { host_depth, ..device(true, false).depth(2).holding() };
            let mut rig = Rig::new(&[&puppet.device()]);
            (0..6).for_each(|owner| write(&mut rig, 0, owner));
            rig.poll();
            assert_eq!(asked(&puppet).len(), 2, "all tags are in use, and bios wait");
            rig.flush(6);
            write(&mut rig, BIO_FUA, 7);
            puppet.script().lifo = true;
            puppet.script().finish = 1;
            for _ in 0..3 {
                rig.poll();
            }
            puppet.script().finish = u32::MAX;
            rig.drain();
            let mut ended = rig.take_ok();
            ended.sort_unstable();
            assert_eq!(ended, (0..8).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn the_pieces_of_a_split_write_are_all_made_durable() {
        for (fua, expect) in [(true, 0), (false, 1)] {
            let puppet = device(true, fua).limits(|limits| limits.max_sectors = 8).holding();
            let mut rig = Rig::new(&[&puppet.device()]);
            rig.io_flags(Op::Write, BIO_FUA | BIO_PREFLUSH, 0, 4 * BLOCK, 0);
            puppet.script().finish = 1;
            rig.poll();
            rig.poll();
            assert_eq!(asked(&puppet).len(), 5, "one flush before all the pieces");
            puppet.script().finish = 4;
            rig.poll();
            assert_eq!(rig.ended.is_empty(), !fua, "without FUA of its own the device is flushed after the last piece");
            puppet.script().finish = u32::MAX;
            rig.drain();
            assert_eq!(rig.take_ok(), [0]);
            let flushes = asked(&puppet).iter().filter(|&&op| op == "flush").count();
            assert_eq!(flushes, 1 + expect);
            assert_eq!(asked(&puppet).iter().filter(|&&op| op == "write-fua").count(), if fua { 4 } else { 0 });
        }
    }
}
