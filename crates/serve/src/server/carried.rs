//! Statistics that outlive a process: I/O counters of exports and reactors, and the slow I/Os that are kept.
//!
//! Two exports of one file have the same counters, which are handed over once, with the first of them.

use std::collections::BTreeSet;
use std::time::Duration;

use sheave_iomap::io_stats::IoCounts;

use super::Server;
use crate::handover::{SlowState, State};
use crate::shared::Order;

/// Sum of all counters beyond which they are dropped: no server reaches it, and sums in reports would overflow (H2).
const MOST: u128 = 1 << 62;

impl Server {
    /// Puts the statistics into the state. The exports are in it already.
    pub(super) fn pack_statistics(&self, state: &mut State) {
        let mut seen = BTreeSet::new();
        for (name, group) in self.io_groups() {
            if seen.insert(group.id())
                && let Some(export) = state.exports.iter_mut().find(|export| export.name == name)
            {
                export.io = group.counts().numbers();
            }
        }
        state.queues = self.queues.iter().map(|queue| queue.counts().numbers()).collect();
        state.slow = self
            .slow_ios(&[])
            .slow
            .into_iter()
            .map(|slow| SlowState {
                reactor: slow.reactor,
                export: slow.export,
                age_ns: slow.age.as_nanos() as u64,
                io: slow.io.numbers(),
            })
            .collect();
    }

    /// Goes on with the statistics of another process.
    pub(super) fn unpack_statistics(&self, state: &State) {
        let groups = self.io_groups();
        let mut seen = BTreeSet::new();
        let all = state.exports.iter().map(|export| &export.io).chain(&state.queues).flatten();
        let (exports, queues) = match all.map(|(_, number)| u128::from(*number)).sum::<u128>() {
            0..=MOST => (&state.exports[..], &state.queues[..]),
            _ => (&[][..], &[][..]),
        };
        for export in exports.iter().filter(|export| !export.io.is_empty()) {
            if let Some((_, group)) = groups.iter().find(|(name, _)| *name == export.name)
                && seen.insert(group.id())
            {
                group.carry(&IoCounts::of_numbers(&export.io));
            }
        }
        let reactors = self.queues.len().max(1);
        for (at, numbers) in queues.iter().enumerate() {
            if let Some(queue) = self.queues.get(at % reactors) {
                queue.carry(&IoCounts::of_numbers(numbers));
            }
        }
        for reactor in (0..self.queues.len()).filter(|_| !state.slow.is_empty()) {
            let own = state.slow.iter().filter(|slow| slow.reactor % reactors == reactor);
            let file = |export: &Option<String>| {
                let group = groups.iter().find(|(name, _)| Some(name) == export.as_ref());
                group.map_or(0, |(_, group)| group.id())
            };
            let of = |slow: &SlowState| (slow.io.clone(), Duration::from_nanos(slow.age_ns), file(&slow.export));
            self.shared.order(reactor, Order::Recall { slow: own.map(of).collect() });
        }
    }
}
