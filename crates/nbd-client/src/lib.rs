//! Sheave floor 10: the driver `nbd:`, a block device on an export of an NBD server.
//!
//! ```text
//! nbd:unix:PATH[,export=NAME]     nbd:HOST:PORT[/EXPORT]     nbd:"unix:/run/a,b.sock",connections=2,timeout=10s
//! ```
//!
//! Written like an outside crate could be: on the traits of `sheave::drivers`, including the unsafe tier, and
//! registered with [`register`]. Numbers and layouts of the protocol come from `sheave_nbd`, which implements the
//! server's side.
//!
//! | module | holds |
//! |---|---|
//! | `spec` | the grammar of a spec: address, export, keys |
//! | `negotiation` | the client's side of the handshake, as a state machine over bytes |
//! | `reply` | the decoder of replies: simple, structured, extended |
//! | `covered` | the ranges of a read that have arrived |
//! | `shared` | the state that all rings of a device share: the export, and losses with a connection |
//! | `driver` | the device: its limits, capabilities and extents |
//! | `control` | a connection with blocking I/O: the first one, and queries of block status |
//! | `tls` | TLS: its keys in a spec, and the records of a connection |
//! | `queue` | one ring's requests: their connections, their ends, and sending them again |
//! | `request` | the state of a request, and its header |
//! | `conn` | one connection: its sends and receives on the kernel ring |
//! | `socket` | creation and options of sockets |
//!
//! A connection sends all requests of a batch in one operation; the data of writes is sent from the requests' own
//! memory. It receives into a buffer of its own, from which short data is copied. Data of a long read that has not
//! arrived yet is received straight into the memory of that read, and the next reply into the buffer.
//!
//! Invariants:
//! - C1: no bytes of a server make the driver panic, wait without a bound, or allocate more memory than its buffers
//!   have from the start.
//! - C2: a flush succeeds only if no write that ended before the flush began can have been lost with a connection since
//!   the last successful flush (V28 of the contract); `shared` keeps track of that.
//! - C3: a request that a lost connection left unanswered is sent again on the next one, or times out.
//! - C4: after a reconnect the server must have the same export as on the first connection; otherwise the device is
//!   gone.

// The unit tests use the server of the integration tests, which names this crate as any other program does.
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
    //! The decoders of a server's bytes, for fuzzers.
    pub use crate::negotiation::{Agreed, Export, Negotiation, Wish};
    pub use crate::reply::{Item, MAX_ITEM, What, next};
    pub use sheave_nbd::handshake::Mode;
}

/// Registers the kind `nbd`.
///
/// # Errors
///
/// Returns an error if the name is taken.
pub fn register(registry: &mut Registry) -> Result<(), DeviceError> {
    registry.register("nbd", driver::open)?;
    registry.declare("nbd", spec::reaches)
}
