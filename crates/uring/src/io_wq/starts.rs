//! Histogram of the time that items wait from queue to start.
//!
//! Owns the histogram, which all workers write. It does not exist, and nothing is counted, unless starts are measured.

use sheave_base::histogram::{Histogram, cells};

/// Eight cells per power of two of nanoseconds.
type Waits = Histogram<3, { cells(3, 64) }>;

#[derive(Debug)]
pub(super) struct Starts {
    waits: Option<Waits>,
}

impl Starts {
    pub(super) fn new(measure: bool) -> Starts {
        Starts { waits: measure.then(Waits::default) }
    }

    pub(super) fn note(&self, ns: u64) {
        if let Some(waits) = &self.waits {
            waits.add_shared(ns);
        }
    }

    /// Returns upper bounds in ns, each with the number of items that waited up to it and longer than the bound before.
    pub(super) fn snapshot(&self) -> Vec<(u64, u64)> {
        let counted = self.waits.iter().flat_map(|waits| waits.counted());
        counted.map(|(waits, count)| (*waits.end(), count)).collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_unless_it_is_measured() {
        let starts = Starts::new(false);
        starts.note(7);
        assert!(starts.snapshot().is_empty());
        let starts = Starts::new(true);
        starts.note(7);
        starts.note(7);
        starts.note(1000);
        assert_eq!(starts.snapshot(), [(7, 2), (1023, 1)]);
    }
}
