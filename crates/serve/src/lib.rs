//! Sheave floor 5b: reactors that serve files over sockets.
//!
//! No part of what the crate `sheave` promises: what is public here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`server`] | threads, start and end |
//! | `block_locks` | who changes which blocks while some are rewritten in part |
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
//! | `payload` | memory of requests and replies |
//! | `shares` | who may hold how much of it |
//!
//! A reactor is a thread with one ring. The kernel ring below also accepts, receives and sends, so a batch of requests
//! costs one system call, network and disk together. A connection stays with the reactor that accepted it. What is
//! served is an [`iomap::File`](sheave_iomap::File): a volume, a snapshot, a device.
//!
//! Invariants:
//! - S1. Memory that the kernel or a device may touch stays where it is until the operation has ended: it belongs to a
//!   request or to a batch that is being sent, which are dropped after the ring.
//! - S2. A client gets no more memory than its limit and its share (`shares`), all clients of a server no more than the
//!   server's; past any of these it is not read from. A write holds memory for what has come of it. Each client has a
//!   small part that no other can take, and one request of any size goes on whatever others hold.
//! - S3. A client that does not finish its handshake, moves no byte of what it holds memory for while others wait for
//!   some, says nothing while others wait for its place, or sends what is no protocol, is dropped, and nobody else
//!   hears of it.
//! - S4. A server with nothing to do uses no CPU, and clients with nothing to do have no buffers.

pub mod allow;
mod block_locks;
pub mod clients;
pub mod counts;
pub mod error;
pub mod export;
pub mod inherited;
pub mod limit;
pub mod listen;
mod payload;
mod reactor;
mod seen;
mod serial_thread;
pub mod server;
mod shared;
mod shares;
pub mod tls;

pub use allow::{Allow, Network, Rule};
pub use clients::{Client, Origin, Who};
pub use counts::IoCounts;
pub use error::ServeError;
pub use export::{
    BASE_ALLOCATION, BASE_ALLOCATION_NUMBER, Backend, DefaultExport, Export, ExportDevice, ExportStatus, Exports,
    NoStatus, Question, SlowReading, SlowRequest,
};
pub use limit::Limit;
pub use listen::{Address, Listener, SocketAccess};
pub use server::Server;
pub use shared::{Notice, Notices, ServerOptions};
pub use tls::{Expiry, Tls, TlsFiles};
