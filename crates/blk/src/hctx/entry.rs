//! The way into the driver: what comes before every call, and what a ring learns of its device there.
//!
//! Owns the order in which the gate is looked at. Invariants I1 and I2 of [`queue`](crate::queue) rely on it.

use super::Hctx;
use crate::queue::Gate;
use crate::ring_core::Core;

impl Hctx {
    /// The order of every call into the driver: the batch's tags are visible, its time ends, then the gate is looked
    /// at. `Err` when it is closed.
    ///
    /// `new` requests are in the count of `in_driver`, and of no busy period yet.
    #[inline(always)]
    pub(super) fn start_dispatch(&mut self, core: &mut Core, new: usize) -> Result<(), Gate> {
        core.plug.invalidate();
        self.shared.start_dispatch();
        let gate = self.queue.gate();
        if gate == self.open_gate { Ok(()) } else { self.gate_changed(core, gate, new) }
    }

    #[cold]
    fn gate_changed(&mut self, core: &Core, gate: Gate, new: usize) -> Result<(), Gate> {
        if !gate.is_open() {
            self.shared.end_dispatch();
            return Err(gate);
        }
        self.open_gate = gate;
        self.set_counts(core, core.stats && gate.keeps_stats(), new as u32);
        Ok(())
    }
}
