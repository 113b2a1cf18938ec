//! `check`: verifies a pool offline, and repairs it.
//!
//! | module | holds |
//! |---|---|
//! | [`report`] | what a check tells |
//!
//! Owns nothing of an open pool: it reads the device through the codecs alone, so that an error in the pool's own code does
//! not hide itself.

pub mod report;

pub use report::{CheckOptions, CheckReport, Finding, FindingKind, Place, Totals};

use sheave_blk::Device;

use crate::{BlockIo, PoolError};

/// Checks the pool that lies on these bytes. An error is a failure of the check itself; what is wrong with the pool is in
/// the report. Nobody else may write to it meanwhile.
pub fn check(io: &dyn BlockIo, options: &CheckOptions) -> Result<CheckReport, PoolError> {
    let _ = (io, options);
    unimplemented!()
}

/// Checks the pool on a device.
pub fn check_device(device: &Device, options: &CheckOptions) -> Result<CheckReport, PoolError> {
    let _ = (device, options);
    unimplemented!()
}
