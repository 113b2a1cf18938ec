//! Sizes and changes that a failed request or a cut leaves undecided until the pool is inspected.
//!
//! Owns the times at which the pool is inspected, and the outcomes that are allowed then.

use sheave_iomap::File;

use super::World;
use crate::model::Event;

impl World {
    /// Decides the sizes and changes that failures of the disk have left undecided. Waits for I/O to end where that is
    /// needed.
    pub(super) fn clear_up(&mut self) -> Result<(), String> {
        if self.setup.disk.errors.any() && self.degraded.is_none() && self.pool()?.info().degraded.is_some() {
            self.degraded = Some(self.counters.next_op);
        }
        if !self.resized.is_empty() {
            self.drain()?;
            for id in std::mem::take(&mut self.resized) {
                self.measure(id)?;
            }
        }
        if self.unsettled.is_some() {
            self.drain()?;
            self.settle_change()?;
        }
        self.measure_cut()
    }

    /// Measures those volumes without I/O under way whose size a call has left undecided.
    pub(super) fn measure_cut(&mut self) -> Result<(), String> {
        if self.changing().is_some() {
            return Ok(());
        }
        let in_doubt = self.model.volumes().values().filter(|volume| volume.is_in_doubt()).map(|volume| volume.id);
        let quiet: Vec<u32> = in_doubt.filter(|&id| self.pending.values().all(|one| one.volume != id)).collect();
        quiet.into_iter().try_for_each(|id| self.measure(id))
    }

    /// Measures the size of a volume that may have become larger through a failed write, or through a write during a
    /// resize or rollback.
    fn measure(&mut self, id: u32) -> Result<(), String> {
        let named = self.model.volumes().iter().find(|(_, volume)| volume.id == id);
        let Some(name) = named.map(|(name, _)| name.clone()) else { return Ok(()) };
        // The volume is closed again at once, because the next operation may delete it.
        let open = self.pool()?.open_volume(&name).map_err(|error| format!("opening '{name}': {error}"))?;
        let (size, may) = (open.size_bytes(), self.model.sizes_of(id));
        drop(open);
        if !may.contains(&size) {
            return Err(format!("V23, V24: '{name}' has {size} bytes, and may have {may:?}"));
        }
        self.note(format!("'{name}' ({id}) has {size} bytes"));
        self.record(Event::Sized { volume: id, size });
        Ok(())
    }
}
