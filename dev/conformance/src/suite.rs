//! The description of the driver under test, and the report of the checks.
//!
//! Owns the description and the report; the checks are in `data` and `life`.

use std::fmt;

use sheave_blk::{Device, DeviceError};

/// The result of a check: an error has the reason of the failure.
pub(crate) type Checked = Result<(), String>;

/// Function that opens the device under test. Each call opens it anew.
pub(crate) type Opener = Box<dyn Fn() -> Result<Device, DeviceError> + Send + Sync>;

/// The checks of one driver.
pub struct Suite {
    pub(crate) open: Opener,
    /// Function that opens a device that holds every request for ever.
    pub(crate) stuck: Option<Opener>,
    pub(crate) keeps: bool,
    pub(crate) may_fail: bool,
}

/// The results of the checks, in the order in which they ran.
#[derive(Debug)]
pub struct Report {
    pub(crate) results: Vec<(&'static str, Checked)>,
}

impl Suite {
    /// Returns the suite for the device that `open` opens, which may be another one each time.
    pub fn new(open: impl Fn() -> Result<Device, DeviceError> + Send + Sync + 'static) -> Suite {
        Suite { open: Box::new(open), stuck: None, keeps: true, may_fail: false }
    }

    /// Declares that the device keeps no data. The bytes that are read are then not compared.
    #[must_use]
    pub fn keeps_nothing(mut self) -> Suite {
        self.keeps = false;
        self
    }

    /// Declares that I/O may fail, like on a device that injects faults. Each I/O must end all the same.
    #[must_use]
    pub fn may_fail(mut self) -> Suite {
        (self.may_fail, self.keeps) = (true, false);
        self
    }

    /// Adds the check that requests time out if the driver holds them for ever. `open` opens a device that holds all
    /// requests, with a time limit below a second.
    #[must_use]
    pub fn stuck(mut self, open: impl Fn() -> Result<Device, DeviceError> + Send + Sync + 'static) -> Suite {
        self.stuck = Some(Box::new(open));
        self
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").field("keeps", &self.keeps).field("may_fail", &self.may_fail).finish()
    }
}

impl Report {
    /// Returns the names of the checks that ran.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.results.iter().map(|(name, _)| *name)
    }

    /// Returns the checks that failed, with the reasons.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.results.iter().filter_map(|(name, checked)| Some((*name, checked.as_ref().err()?.as_str())))
    }

    /// Fails the calling test if a check failed.
    ///
    /// # Panics
    ///
    /// Panics if a check failed, with the reasons of all failures.
    pub fn assert_passed(&self) {
        let failures: Vec<String> = self.failures().map(|(name, why)| format!("{name}: {why}")).collect();
        assert!(
            failures.is_empty(),
            "{} of {} checks failed:\n{}",
            failures.len(),
            self.results.len(),
            failures.join("\n")
        );
    }
}
