//! The `host` driver: files and block devices of the host, through one kernel io_uring a Sheave ring.
//!
//! `open` opens a path and says in plain words what is wrong with it; `probe` finds out what the opened thing can do.

mod error;
pub mod open;
pub mod probe;

pub use error::{HostError, HostErrorKind};
pub use open::{Direct, HostFile, HostOpts};
pub use probe::{Caps, FileKind};

#[cfg(test)]
mod tests;

pub(crate) fn from_spec(params: &mut crate::spec::Params) -> Result<crate::device::Device, crate::error::DeviceError> {
    Err(params.error("not yet"))
}
