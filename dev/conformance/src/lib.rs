//! The contract of a driver, in the form of checks that the driver's author runs.
//!
//! A [`Suite`] opens the device anew for each check, with a function of the author, and sends I/O through rings of its
//! own, each I/O with its own memory. A driver that hangs does not hang the suite, because I/O that does not end in
//! time is a failure.
//!
//! ```
//! use sheave_conformance::Suite;
//!
//! let report = Suite::new(|| sheave_drivers::open_device("ram:size=4M")).run();
//! report.assert_passed();
//! assert!(report.names().any(|name| name == "reads back what was written"));
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `suite` | the properties of the driver that the checks need, and the report |
//! | `rig` | a ring that checks that each I/O ends once |
//! | `data` | checks of bytes: reads, writes, pieces of memory, zeroes, discards, durability |
//! | `life` | checks of the life cycle: depth, waits, freezes, rings that are dropped, threads, overdue requests |
//!
//! The checks write to the device. They need at least 1 MiB, and use the first 4 MiB and the last block.

mod data;
mod life;
mod rig;
mod suite;

use sheave_blk::Device;

pub use suite::{Report, Suite};

impl Suite {
    /// Runs all checks.
    pub fn run(&self) -> Report {
        let mut results = Vec::new();
        for (name, check) in data::CHECKS.iter().chain(life::CHECKS) {
            results.push((*name, self.device().and_then(|device| check(self, &device))));
        }
        if let Some(stuck) = &self.stuck {
            let opened = stuck().map_err(|error| format!("not opened: {error}"));
            results.push(("ends what is overdue", opened.and_then(|device| life::overdue(&device))));
        }
        Report { results }
    }

    fn device(&self) -> Result<Device, String> {
        (self.open)().map_err(|error| format!("not opened: {error}"))
    }
}
