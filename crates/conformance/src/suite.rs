//! What a suite knows of its driver, and what its report says.
//!
//! Owns the two; the checks are in `data` and `life`.

use std::fmt;

use sheave_blk::{Device, DeviceError};

/// What a check gives: why it failed.
pub(crate) type Checked = Result<(), String>;

/// Opens the device under test, anew.
pub(crate) type Opener = Box<dyn Fn() -> Result<Device, DeviceError> + Send + Sync>;

/// The checks of one driver.
pub struct Suite {
    pub(crate) open: Opener,
    /// Opens one that holds requests for ever.
    pub(crate) stuck: Option<Opener>,
    pub(crate) keeps: bool,
    pub(crate) may_fail: bool,
}

/// How the checks went, in the order in which they ran.
#[derive(Debug)]
pub struct Report {
    pub(crate) results: Vec<(&'static str, Checked)>,
}

impl Suite {
    /// The checks of the device that `open` opens, which may be another one each time.
    pub fn new(open: impl Fn() -> Result<Device, DeviceError> + Send + Sync + 'static) -> Suite {
        Suite { open: Box::new(open), stuck: None, keeps: true, may_fail: false }
    }

    /// The device keeps no data, so nobody asks what it reads.
    #[must_use]
    pub fn keeps_nothing(mut self) -> Suite {
        self.keeps = false;
        self
    }

    /// I/O may fail, as it does on a device that is made to; each must end all the same.
    #[must_use]
    pub fn may_fail(mut self) -> Suite {
        (self.may_fail, self.keeps) = (true, false);
        self
    }

    /// Checks also that requests which the driver holds for ever end as timed out, on a device that holds all, with a
    /// time limit below a second.
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
    /// The names of the checks that ran.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.results.iter().map(|(name, _)| *name)
    }

    /// The checks that failed, with what was found.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.results.iter().filter_map(|(name, checked)| Some((*name, checked.as_ref().err()?.as_str())))
    }

    /// Ends a test.
    ///
    /// # Panics
    ///
    /// When a check failed; the message has all of them.
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
