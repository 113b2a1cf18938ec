//! Sheave floor 10: the driver `rbd:`, an image of a Ceph cluster.
//!
//! ```text
//! rbd:POOL/IMAGE[@SNAP][,conf=PATH][,id=USER][,keyring=PATH][,namespace=NAME]
//!     [,readonly=on][,timeout=120s][,connect=15s][,warn=5s][,lock=10s]
//! ```
//!
//! Access goes through Ceph's own librados and librbd. They are loaded with `dlopen` when the first such device is
//! opened, so neither a build nor a machine without Ceph needs them. Registered with [`register`].
//!
//! | module | holds |
//! |---|---|
//! | `spec` | the grammar of a spec |
//! | `librbd` | the two libraries: their functions, and an open image with its cluster |
//! | `device` | the device and its queues: requests go to librbd, their ends come from its threads |
//! | `shared` | the state that all rings and claims of a device share, and its end |
//! | `keeper` | the thread of a device, which makes all calls to librbd that may block |
//! | `fence` | fencing: a client that had the exclusive lock cannot write any more, or a claim fails |
//! | `desk` | the orders for the keeper, and the notices for the user |
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
//! - R1: librbd has the memory of a request, and its slot, until it calls the callback. A queue that shuts down waits
//!   for all callbacks, however long that takes, and reports it.
//! - R2: a ring's thread makes no call to librbd that may block. Opening and claiming give up after the time in the
//!   spec; the keeper continues and cleans up.
//! - R3: an image is closed on the keeper's thread after the last queue and the last claim are dropped. Then its pool's
//!   context is closed, then the connection to the cluster.
//! - R4: no panic unwinds through a function that C calls.
//! - R5: a wait for the cluster ends with `timeout=` (librados ends the request), and is reported after `warn=`.
//! - R6: a claim is granted only when the previous owner of the lock has released it, or is on the cluster's blocklist.
//!   A claim that is refused, or ends with its process, leaves the information with which the next claim can ensure the
//!   same.

mod desk;
mod device;
mod fence;
mod keeper;
mod librbd;
mod shared;
mod spec;

use sheave::DeviceError;
use sheave::drivers::Registry;

/// Loads Ceph's libraries, like opening the first device does. A program that confines itself must call this before,
/// because it cannot read the libraries afterwards.
///
/// # Errors
///
/// Returns an error if a library is missing. Opening a device reports that, too.
pub fn load() -> Result<(), DeviceError> {
    librbd::api().map(|_| ())
}

/// Registers the kind `rbd`.
///
/// # Errors
///
/// Returns an error if the name is taken.
pub fn register(registry: &mut Registry) -> Result<(), DeviceError> {
    registry.register("rbd", keeper::open)?;
    registry.declare("rbd", spec::reaches)
}
