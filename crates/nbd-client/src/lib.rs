//! Sheave floor 6b: the driver `nbd:`, a block device that a server of the NBD protocol has.
//!
//! ```text
//! nbd:unix:PATH[,export=NAME]     nbd:HOST:PORT[/EXPORT]     nbd:"unix:/run/a,b.sock",connections=2,timeout=10s
//! ```
//!
//! Written as any outside crate could write it: on the traits of `sheave::drivers`, its unsafe tier among them, and
//! registered by [`register`]. The numbers and layouts of the protocol are those of `sheave_nbd`, which serves it.
//!
//! | module | holds |
//! |---|---|
//! | `spec` | what a spec says: address, export, keys |
//! | `negotiation` | the client's side of the handshake, as a state machine over bytes |
//! | `reply` | the decoder of replies: simple, structured, extended |
//! | `covered` | which bytes of a read have come |
//! | `shared` | what all rings of a device share: the export, and what a lost connection may have lost |
//! | `driver` | the device: its limits and abilities, and where its data is |
//! | `control` | a connection that a thread waits for: the first one, and questions of block status |
//! | `tls` | TLS: what a spec says of it, and the records of a connection |
//! | `queue` | one ring's requests: which connection they go to, how they end, what is sent again |
//! | `request` | what is known of a request, and its header |
//! | `conn` | one connection: what it sends and receives on the kernel ring |
//! | `socket` | making sockets |
//!
//! A connection sends all requests of a batch in one operation, the data of writes from their own memory. It receives
//! what comes into a buffer of its own, from which short data is copied; data that has not come yet is received
//! straight into the memory of its read, with the next reply behind it.
//!
//! Invariants:
//! - C1: no bytes of a server panic the driver, make it wait without a bound, or make it allocate beyond what its
//!   buffers take from the start.
//! - C2: a flush ends well only if no write that ended before it began can have been lost with a connection since the
//!   last flush that ended well (V28 of the contract); `shared` says how that is known.
//! - C3: a request that a lost connection left unanswered is sent again on the next, or ends as timed out.
//! - C4: the server that a connection is made to again has the export of the first one, or the device is gone.

// The unit tests use the server of the tests beside them, which name this crate as any other program does.
#[cfg(test)]
extern crate self as sheave_nbd_client;
#[cfg(test)]
#[path = "../tests/rig/mod.rs"]
mod rig;

mod conn;
mod control;
mod covered;
mod driver;
mod negotiation;
mod queue;
mod reply;
mod request;
mod shared;
mod socket;
mod spec;
mod tls;

use sheave::DeviceError;
use sheave::drivers::Registry;

#[doc(hidden)]
pub mod fuzzing {
    //! The decoders of what a server sends, for fuzzers.
    pub use crate::negotiation::{Agreed, Export, Negotiation, Wish};
    pub use crate::reply::{Item, MAX_ITEM, What, next};
    pub use sheave_nbd::handshake::Mode;
}

/// Adds `nbd` to the kinds of a registry.
///
/// # Errors
///
/// The name is taken.
pub fn register(registry: &mut Registry) -> Result<(), DeviceError> {
    registry.register("nbd", driver::open)?;
    registry.declare("nbd", spec::reaches)
}
