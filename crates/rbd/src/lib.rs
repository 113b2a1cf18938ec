//! Sheave floor 6b: the driver `rbd:`, an image of a Ceph cluster.
//!
//! ```text
//! rbd:POOL/IMAGE[@SNAP][,conf=PATH][,id=USER][,keyring=PATH][,namespace=NAME]
//!     [,readonly=on][,timeout=120s][,connect=15s][,warn=5s][,lock=10s]
//! ```
//!
//! The way to the cluster is Ceph's own: librados and librbd, which are opened when the first such device is
//! (`dlopen`), so that a build and a machine without them need nothing. Registered by [`register`].
//!
//! | module | holds |
//! |---|---|
//! | `spec` | what a spec says |
//! | `librbd` | the two libraries: their functions, and an open image with its cluster |
//! | `device` | the device and one ring's way into it: requests go to librbd, their ends come from its threads |
//! | `shared` | what all rings and claims of a device share, and its end |
//! | `keeper` | the thread of a device, on which everything is done that librbd blocks for |
//! | `fence` | who had the exclusive lock before a claim writes no more, or the claim fails |
//! | `desk` | what that thread is asked for, and what the user is told |
//!
//! ```text
//!   ring's thread ── RbdQueue ── rbd_aio_* ──> librbd's threads ── ended() ── RemoteRq::complete ──> the ring wakes
//!        │                                           │
//!        └── claim, drop ──> Desk <── size changed, request failed
//!                              │
//!                           keeper: opens, locks, reads the size again, closes
//! ```
//!
//! Invariants:
//! - R1: librbd gets memory of a request, and the slot that its end comes to, until its callback; a queue that shuts
//!   down waits for all callbacks, however long that takes, and tells of it.
//! - R2: nothing that librbd may block for is called on a ring's thread. The opening and a claim give up after the time
//!   that the spec has for them; the keeper goes on and cleans up.
//! - R3: an image is closed after the last queue and the last claim have gone, on the keeper's thread; then its pool's
//!   context, then the connection to the cluster.
//! - R4: no panic passes a function that C calls.
//! - R5: a wait for the cluster ends with `timeout=` (librados ends the request), and is told after `warn=`.
//! - R6: a claim is granted when who had the lock before has let go of it, or is on the cluster's blocklist. One
//!   that is refused, or ends with its process, leaves the next one what it takes to see to the same.

mod desk;
mod device;
mod fence;
mod keeper;
mod librbd;
mod shared;
mod spec;

use sheave::DeviceError;
use sheave::drivers::Registry;

/// Loads Ceph's libraries, as the opening of the first device does: for a program that locks itself in before that, and
/// cannot reach them any more.
///
/// # Errors
///
/// A library is missing. The opening of a device says so, too.
pub fn load() -> Result<(), DeviceError> {
    librbd::api().map(|_| ())
}

/// Adds `rbd` to the kinds of a registry.
///
/// # Errors
///
/// The name is taken.
pub fn register(registry: &mut Registry) -> Result<(), DeviceError> {
    registry.register("rbd", keeper::open)?;
    registry.declare("rbd", spec::reaches)
}
