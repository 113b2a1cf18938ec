//! Sheave floor 5: the NBD protocol of a server, as a state machine over bytes.
//!
//! No part of what the crate `sheave` promises: what is public here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | numbers and layouts of the protocol |
//! | [`catalog`] | what a server tells about its exports |
//! | [`handshake`] | from the greeting to the choice of an export: all options |
//! | `meta` | queries of metadata contexts |
//! | [`session`] | the transmission phase: bytes become checked requests |
//! | [`reply`] | replies become bytes: simple, structured, extended |
//! | [`tls`] | records of TLS, for both sides of a connection; certificates and keys |
//!
//! Nothing here does I/O, waits, or knows a clock. Who has a connection feeds [`Handshake::step`] with the bytes that
//! came, sends what it wrote, and goes on with [`Session::next`] when it says [`handshake::Step::Negotiated`].
//!
//! Units: offsets, lengths and sizes are in bytes. Errors: what a client does wrong within a request is answered with
//! an [`Errno`] of the protocol; after what leaves no way to find the next request, the connection is to be closed.
//!
//! Invariants:
//! - N1: however a client's bytes are cut into pieces, the requests and the replies are the same.
//! - N2: no bytes panic this crate, and none make it allocate more than [`handshake::MAX_OPTION_BYTES`] asks for.
//! - N3: a request that [`Session::next`] gives lies within its export, and all sums of it are below 2^64.

pub mod catalog;
pub mod handshake;
mod meta;
pub mod reply;
pub mod session;
pub mod tls;
pub mod wire;

pub use catalog::{Catalog, ExportInfo};
pub use handshake::{Handshake, Negotiated, Tls};
pub use reply::Extent;
pub use session::{Command, Request, Session};
pub use wire::Errno;
