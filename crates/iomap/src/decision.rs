//! Rules for a write to one mapping: they decide if completion work follows the data, and where the I/O completes.
//!
//! Owns the rules alone. The engine calls [`decide`] for each mapping of an I/O before its first bio is sent. The
//! latest place that any mapping requires becomes the [plan](crate::completion_plan).

use crate::completion_plan::CompletionPlan;
use crate::kiocb::{IOCB_DSYNC, IOCB_SYNC, IOCB_WRITE};
use crate::mapping::{MapFlags, Mapping, MappingKind};

/// Result of [`decide`] for one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if the file has work to do after the data is on the device.
    pub completion_work: bool,
    /// True if the data can be made durable by FUA alone.
    pub fua: bool,
    /// Earliest place where the I/O may complete, as far as this mapping is concerned. A sync that FUA does not cover
    /// demotes the plan further.
    pub plan: CompletionPlan,
}

/// Decides if a write to `mapping` that ends at `end` needs completion work, and if FUA covers its sync.
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
mod tests {
    use super::*;
    use crate::kiocb::IOCB_NOWAIT;

    const KINDS: [MappingKind; 3] = [MappingKind::Mapped, MappingKind::Unwritten, MappingKind::Hole];
    const PLANS: [CompletionPlan; 3] = [CompletionPlan::Inline, CompletionPlan::Task, CompletionPlan::Worker];
    const SIZE: u64 = 1 << 20;

    /// Inputs of the decision, by name.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        write: bool,
        dsync: bool,
        sync: bool,
        kind: MappingKind,
        shared: bool,
        new: bool,
        dirty: bool,
        /// True if the file requires the issuer's task or a worker.
        task: bool,
        worker: bool,
        end: u64,
        fua_or_no_cache: bool,
    }

    impl Case {
        fn decide(self) -> Decision {
            let bit = |on: bool, bit: MapFlags| bit.only_if(on);
            let flags =
                bit(self.shared, MapFlags::SHARED) | bit(self.new, MapFlags::NEW) | bit(self.dirty, MapFlags::DIRTY);
            let flags = flags | bit(self.task, MapFlags::TASK) | bit(self.worker, MapFlags::WORKER);
            let mapping = Mapping::new(self.kind, 0, 2 * SIZE, 0).flags(flags);
            let iocb = |on: bool, bit: u16| if on { bit } else { 0 };
            let iocb = iocb(self.write, IOCB_WRITE) | iocb(self.dsync, IOCB_DSYNC) | iocb(self.sync, IOCB_SYNC);
            super::decide(&mapping, self.end, SIZE, iocb, self.fua_or_no_cache)
        }

        /// Returns true if any rule for completion work applies; each line is a rule.
        fn needs_worker(self) -> bool {
            if !self.write {
                return false;
            }
            let not_plain_mapped = !matches!(self.kind, MappingKind::Mapped);
            let copy_on_write = self.shared;
            let newly_allocated = self.new;
            let beyond_size = self.end > SIZE;
            [not_plain_mapped, copy_on_write, newly_allocated, beyond_size].contains(&true)
        }

        /// Returns the place of completion: the latest that any input requires.
        fn plan(self) -> CompletionPlan {
            let asked = [
                (self.needs_worker() || (self.write && self.worker), CompletionPlan::Worker),
                (self.write && self.task, CompletionPlan::Task),
                (true, CompletionPlan::Inline),
            ];
            asked.into_iter().filter(|(asks, _)| *asks).map(|(_, plan)| plan).max().expect("the last one")
        }

        /// Returns true if FUA replaces a flush: each condition must hold.
        fn takes_fua(self) -> bool {
            let data_sync_only = self.dsync && !self.sync;
            let no_completion_work = !self.needs_worker();
            let clean = !self.dirty;
            [self.write, data_sync_only, no_completion_work, clean, self.fua_or_no_cache].iter().all(|&holds| holds)
        }
    }

    fn all_cases() -> impl Iterator<Item = Case> {
        (0..1u32 << 9).flat_map(|bits| {
            let bit = move |n: u32| bits >> n & 1 != 0;
            KINDS.into_iter().flat_map(move |kind| {
                [512, SIZE - 512, SIZE, SIZE + 1, SIZE + 512].map(move |end| Case {
                    write: bit(0),
                    dsync: bit(1),
                    sync: bit(2),
                    kind,
                    shared: bit(3),
                    new: bit(4),
                    dirty: bit(5),
                    task: bit(7),
                    worker: bit(8),
                    end,
                    fua_or_no_cache: bit(6),
                })
            })
        })
    }

    #[test]
    fn every_row_of_the_truth_table() {
        let (mut cases, mut workers, mut fuas) = (0, 0, 0);
        for case in all_cases() {
            let plan = case.plan();
            let expected = Decision { completion_work: case.needs_worker(), fua: case.takes_fua(), plan };
            assert_eq!(case.decide(), expected, "{case:?}");
            cases += 1;
            workers += u32::from(expected.completion_work);
            fuas += u32::from(expected.fua);
        }
        // Counted by hand. No work: plain mapped, not shared, not new, within the size; 3 of 5 ends.
        let no_work = 3 * (1 << 6);
        assert_eq!(cases, 512 * 3 * 5);
        assert_eq!(workers, 256 * 3 * 5 - no_work);
        // FUA: of those, dsync without sync, clean, on a device that can: 1 of 16.
        assert_eq!(fuas, no_work / 16);
    }

    #[test]
    fn other_flags_of_the_kiocb_decide_nothing() {
        for case in all_cases().filter(|case| case.write) {
            let mapping = Mapping::new(case.kind, 0, SIZE, 0);
            let with = |flags| super::decide(&mapping, case.end, SIZE, IOCB_WRITE | flags, case.fua_or_no_cache);
            assert_eq!(with(0), with(IOCB_NOWAIT | crate::kiocb::IOCB_USE_POS));
        }
    }

    #[test]
    fn a_plan_is_only_ever_demoted() {
        for first in PLANS {
            for second in PLANS {
                for third in PLANS {
                    let (one, two) = (first.demote(second), first.demote(second).demote(third));
                    assert!(one >= first && one >= second && two >= one && two >= third);
                    assert_eq!(two, *[first, second, third].iter().max().expect("three"), "nothing else comes out");
                    assert_eq!(two, first.demote(third).demote(second), "the order of the reasons does not matter");
                }
            }
        }
        assert!(CompletionPlan::Inline < CompletionPlan::Task && CompletionPlan::Task < CompletionPlan::Worker);
        assert_eq!(CompletionPlan::default(), CompletionPlan::Inline);
    }
}
