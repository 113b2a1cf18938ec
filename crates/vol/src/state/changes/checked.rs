//! Checks of entry flags and counters of failed commits, in debug builds.
//!
//! Owns no invariants and no counters: L1 and L2 are in [`changes`](super), I3 is in
//! [`entry`](crate::state::extent_map::entry), and the counters are in [`met`](crate::state::met).
//!
//! Called by tests, and through [`Pool::inspect`](crate::Pool::inspect) by the crash simulator.

use std::collections::BTreeSet;

use crate::format::record::Record;
use crate::state::State;
use crate::state::extent_map::Entry;
use crate::state::plan::Taken;

impl State {
    /// Counts a failed commit.
    pub(super) fn count_untaken(&mut self, taken: &Taken) {
        if taken.units.is_empty() {
            return;
        }
        let is_copy = |record: &Record| matches!(record, Record::Copy { .. } | Record::Rollback { .. });
        let beside = self.pending.iter().any(is_copy) || self.table.iter().any(|vol| vol.settling.is_some());
        self.met.failed(beside);
    }

    /// Panics if an entry has a flag that it must not have: `LISTED` without being in a list (L1), any flag in a hole,
    /// or a busy unit shared by several volumes.
    pub(crate) fn check_flags(&self) {
        let listed: BTreeSet<_> = self.dirty.iter().copied().collect();
        let geometry = self.tree.map.geometry;
        for vol in self.table.iter().filter(|vol| !vol.unborn) {
            let mut next = 0;
            while let Some(slot) = vol.core.top.next_used(next, vol.slots) {
                next = slot + 1;
                let (mut unit, end) = (slot << geometry.slot_shift(), next << geometry.slot_shift());
                while unit < end {
                    let spot = self.tree.map.find(&vol.core.top, unit);
                    if spot.leaf == 0 {
                        unit = (unit | ((1 << geometry.leaf_shift) - 1)) + 1;
                        continue;
                    }
                    let shared = self.tree.is_way_shared(&vol.core.top, unit);
                    let may_be_listed = (!shared || vol.settling.is_some()) && listed.contains(&(vol.id, unit));
                    let what = check_entry(spot.entry, shared, may_be_listed);
                    assert!(what.is_none(), "unit {unit} of '{}', {:?}: {what:?}", vol.name, spot.entry);
                    unit += 1;
                }
            }
        }
    }
}

/// Returns a description of a wrong flag, if there is one.
fn check_entry(entry: Entry, shared: bool, may_be_listed: bool) -> Option<&'static str> {
    if !entry.is_alloc() {
        return (entry != Entry::NONE).then_some("a hole has a flag");
    }
    if shared && entry.is_busy() {
        return Some("somebody is busy with what several volumes have");
    }
    (entry.any(Entry::LISTED) && !may_be_listed).then_some("it is listed, and stands in no list of this volume alone")
}
