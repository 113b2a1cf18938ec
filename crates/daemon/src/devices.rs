//! Kinds of devices that can be opened by spec: those of the library, and the drivers in crates of their own.
//!
//! Owns the registry that commands and daemon share. Drivers in crates of their own are named here, and nowhere below.

use std::path::Path;
use std::sync::OnceLock;

use sheave::{Device, DeviceError};
use sheave_drivers::{Reach, Registry};

/// Opens the device that `spec` names: any kind of the library, `nbd:` or `rbd:`.
///
/// # Errors
///
/// The spec is invalid, or the driver cannot open it.
pub fn open_device(spec: &str) -> Result<Device, DeviceError> {
    kinds().open(spec)
}

/// Returns all files and addresses that opening `spec` accesses, at any depth.
///
/// # Errors
///
/// The spec is invalid.
pub fn reaches(spec: &str) -> Result<Vec<Reach>, DeviceError> {
    kinds().reaches(spec)
}

/// Returns true if an image is a device of a server or cluster: the path begins with `nbd:` or `rbd:`, and no such file
/// exists.
pub fn is_served(image: &Path) -> bool {
    let names = |text: &str| text.starts_with("nbd:") || text.starts_with("rbd:");
    image.to_str().is_some_and(names) && !image.exists()
}

/// Returns true if opening the device may block for long, because a server or cluster has it or a device under it.
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
    // Fails only for duplicate names, and the library has no kinds of these.
    let added = sheave_nbd_client::register(&mut registry).and_then(|()| sheave_rbd::register(&mut registry));
    debug_assert!(added.is_ok(), "{added:?}");
    registry
}
