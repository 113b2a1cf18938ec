//! Files that require a later place of completion than their writes need.

use super::*;
use crate::mapping::MapFlags;

#[test]
fn a_file_may_ask_for_a_later_place_and_nothing_else_changes() {
    let puppet = Puppet::new().caps(|caps| (caps.volatile_cache, caps.fua) = (true, true));
    let asked = [
        (MapFlags::NONE, CompletionPlan::Inline),
        (MapFlags::TASK, CompletionPlan::Task),
        (MapFlags::WORKER, CompletionPlan::Worker),
    ];
    for (flag, plan) in asked {
        for kind in [MappingKind::Mapped, MappingKind::Unwritten] {
            for (sync, dirty) in [
                (0, MapFlags::NONE),
                (IOCB_DSYNC, MapFlags::NONE),
                (IOCB_DSYNC, MapFlags::DIRTY),
                (IOCB_DSYNC | IOCB_SYNC, MapFlags::NONE),
            ] {
                let what = format!("{plan:?} {kind:?} {sync} {dirty:?}");
                let (mut bench, file) = bench(&puppet, |_| (), &[(4096, kind, flag | dirty), MAPPED]);
                puppet.script().seen.clear();
                let issued = bench.issue(IOCB_WRITE | sync, 0, &[at(BASE, 8192)]);
                let work = kind == MappingKind::Unwritten;
                let fua = sync == IOCB_DSYNC && dirty == MapFlags::NONE && !work;
                let needs_sync = sync != 0 && !fua;
                let least = if work || needs_sync { CompletionPlan::Worker } else { CompletionPlan::Inline };
                assert_eq!(bench.kiocb.plan, plan.max(least), "{what}");
                assert_eq!(bench.run(issued), 8192, "{what}");
                let told = work || plan == CompletionPlan::Worker;
                let mut calls = Vec::from_iter(told.then_some(Call::EndWrite(Status::Ok)));
                calls.extend(needs_sync.then_some(Call::Sync));
                assert_eq!(file.calls()[2..], calls, "{what}: after the mappings");
                assert!(puppet.script().seen[..2].iter().all(|rq| (rq.flags & RQ_FUA != 0) == fua), "{what}");
            }
        }
        let (mut bench, _) = bench(&puppet, |_| (), &[(4096, MappingKind::Mapped, flag), MAPPED]);
        bench.issue(0, 0, &[at(BASE, 8192)]);
        assert_eq!(bench.kiocb.plan, CompletionPlan::Inline, "reads have nothing to wait for");
        bench.end_with(&[Status::Ok, Status::Ok]);
    }
}
