//! Sheave floor 7: the server side of the NBD protocol, as a state machine over bytes.
//!
//! Not part of the stable interface of the crate `sheave`: public items may change in any version.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | constants and layouts of the protocol |
//! | [`catalog`] | the exports of a server |
//! | [`handshake`] | all options, from the greeting to the choice of an export |
//! | `meta` | queries of metadata contexts |
//! | [`session`] | the transmission phase: parses and checks requests |
//! | [`reply`] | encodes replies: simple, structured, extended |
//! | [`tls`] | TLS records, for both sides of a connection; certificates and keys |
//!
//! Nothing here does I/O, blocks, or uses a clock. The owner of a connection passes received bytes to
//! [`Handshake::step`], sends what it wrote, and continues with [`Session::next`] after
//! [`handshake::Step::Negotiated`].
//!
//! A process can hand a connection to another one. [`Handshake::state`] and [`Session::state`] return the state as
//! plain data, and the other process passes the data to [`Handshake::restored`] and [`Session::restored`].
//!
//! Units: offsets, lengths and sizes are in bytes. Errors: an invalid request is answered with an [`Errno`] of the
//! protocol. If the start of the next request cannot be determined, the connection is to be closed.
//!
//! Invariants:
//! - N1: however the bytes of a client are split into pieces, requests and replies are the same.
//! - N2: no input makes this crate panic, or allocate more than [`handshake::MAX_OPTION_BYTES`] permits.
//! - N3: a request returned by [`Session::next`] lies within its export, and offset + length is below 2^64.
//! - N4: no state of another process breaks N2 or N3.

pub mod catalog;
pub mod handshake;
mod meta;
pub mod reply;
pub mod session;
pub mod tls;
pub mod wire;

pub use catalog::{Catalog, ExportInfo};
pub use handshake::{Handshake, HandshakeState, Negotiated, Tls};
pub use reply::Extent;
pub use session::{Command, Request, Session, SessionState};
pub use wire::Errno;
