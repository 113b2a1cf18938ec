//! Sheave floor 5b: reactors that serve files over sockets.
//!
//! No part of what the crate `sheave` promises: what is public here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`server`] | threads, start and end |
//! | `shared` | limits, and what else the reactors share |
//! | [`clients`] | who is connected |
//! | [`counts`] | how much was done for clients |
//! | [`export`] | what is served: a file under a name |
//! | [`inherited`] | sockets that systemd has made |
//! | [`limit`] | how fast an export may be |
//! | [`listen`] | addresses, and the sockets that listen on them |
//! | [`tls`] | certificates and keys, who is let in with which |
//! | [`error`] | why a server cannot be |
//! | `reactor` | one thread with one ring: its connections, their requests, what is sent |
//! | `payload` | memory of requests and replies, and the bounds on it |
//!
//! A reactor is a thread with one ring. The kernel ring below also accepts, receives and sends, so a batch of requests
//! costs one system call, network and disk together. A connection stays with the reactor that accepted it. What is
//! served is an [`iomap::File`](sheave_iomap::File): a volume, a snapshot, a device.
//!
//! Invariants:
//! - S1. Memory that the kernel or a device may touch stays where it is until the operation has ended: it belongs to a
//!   request or to a batch that is being sent, which are dropped after the ring.
//! - S2. A client gets no more memory than its limit, all clients of a server no more than the server's; past either it
//!   is not read from. The first that found no memory is the first to get some: what others leave is kept for it, up to
//!   half of all.
//! - S3. A client that does not finish its handshake, stops reading or sending while others wait for memory, or sends
//!   what is no protocol, is dropped, and nobody else hears of it.
//! - S4. A server with nothing to do uses no CPU, and clients with nothing to do have no buffers.

pub mod clients;
pub mod counts;
pub mod error;
pub mod export;
pub mod inherited;
pub mod limit;
pub mod listen;
mod payload;
mod reactor;
pub mod server;
mod shared;
pub mod tls;

pub use clients::Client;
pub use counts::IoCounts;
pub use error::ServeError;
pub use export::{
    BASE_ALLOCATION, BASE_ALLOCATION_NUMBER, Backend, DefaultExport, Export, ExportStatus, Exports, NoStatus, Question,
    SlowReading, SlowRequest,
};
pub use limit::Limit;
pub use listen::{Address, Listener};
pub use server::Server;
pub use shared::{Notices, ServerOptions};
pub use tls::{Tls, TlsFiles};
