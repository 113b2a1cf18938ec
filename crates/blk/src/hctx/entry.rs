//! Entry into the driver: the steps before every call, and the gate's changes that the ring notices there.
//!
//! Owns the order of those steps. Invariants I1 and I2 of [`queue`](crate::queue) rely on it.

use super::Hctx;
use crate::queue::Gate;
use crate::ring_core::Core;

impl Hctx {
    /// Runs the steps before every call into the driver, in this order: publishes the batch's tags, ends the plug's
    /// cached time, then reads the gate. Returns `Err` if the gate is closed.
    ///
    /// `new` requests are counted in `in_driver` already, but belong to no busy period yet.
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
