//! The kinds of devices that the programs open by spec: those of the library, and those of drivers that are crates of
//! their own.
//!
//! Owns the one registry that the command and the daemon share. A driver in a crate of its own is named here, and
//! nowhere below.

use std::path::Path;
use std::sync::OnceLock;

use sheave::{Device, DeviceError};
use sheave_drivers::{Reach, Registry};

/// Opens the device that `spec` names: all kinds of the library, `nbd:` and `rbd:`.
///
/// # Errors
///
/// What is wrong with the spec, or what the driver says.
pub fn open_device(spec: &str) -> Result<Device, DeviceError> {
    kinds().open(spec)
}

/// All that opening `spec` reaches by name, at any depth.
///
/// # Errors
///
/// What is wrong with the spec.
pub fn reaches(spec: &str) -> Result<Vec<Reach>, DeviceError> {
    kinds().reaches(spec)
}

/// Whether an image is a device that a server or a cluster has: `nbd:` or `rbd:` and what follows, and no file of that
/// name.
pub fn is_served(image: &Path) -> bool {
    let names = |text: &str| text.starts_with("nbd:") || text.starts_with("rbd:");
    image.to_str().is_some_and(names) && !image.exists()
}

/// Whether a device may take long to open, or for ever, for a server or a cluster has it, or has one under it.
pub(crate) fn may_be_silent(spec: &str) -> bool {
    let is_remote = |reach: &Reach| matches!(reach, Reach::Socket(_) | Reach::Network(_));
    reaches(spec).is_ok_and(|reaches| reaches.iter().any(is_remote))
}

fn kinds() -> &'static Registry {
    static KINDS: OnceLock<Registry> = OnceLock::new();
    KINDS.get_or_init(all)
}

fn all() -> Registry {
    let mut registry = Registry::standard();
    // The library has no kinds of these names.
    let added = sheave_nbd_client::register(&mut registry).and_then(|()| sheave_rbd::register(&mut registry));
    debug_assert!(added.is_ok(), "{added:?}");
    registry
}
