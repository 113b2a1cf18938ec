//! Sheave floor 8: reactors that serve files over sockets.
//!
//! Not part of the stable interface of the crate `sheave`: public names here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`server`] | threads, start and end |
//! | `block_locks` | coordination of changes while blocks are rewritten in part |
//! | `shared` | limits, orders, and other state that reactors share |
//! | [`clients`] | the connected clients |
//! | [`counts`] | counts of requests and bytes |
//! | [`export`] | exports: files under names |
//! | [`handover`] | the state of a server as data, for another process |
//! | [`inherited`] | sockets inherited from systemd |
//! | [`limit`] | rate limits of exports |
//! | [`listen`] | addresses, and the sockets that listen on them |
//! | [`tls`] | certificates and keys, and the clients that these let in |
//! | [`vhost_user`] | the sockets where virtual machines attach exports |
//! | [`error`] | errors of a server |
//! | `reactor` | one thread with one ring: its connections, their requests and replies |
//! | `payload` | memory of requests and replies |
//! | `shares` | fair shares of that memory |
//!
//! A reactor is a thread with one ring. The kernel ring below also accepts, receives and sends, so that a batch of
//! requests costs one system call for network and disk together. A connection stays with the reactor that serves it
//! first. An export serves an [`iomap::File`](sheave_iomap::File): a volume, a snapshot, a device.
//!
//! Invariants:
//! - S1. Memory that the kernel or a device may touch stays in place until the operation has ended: it belongs to a
//!   request or to a batch that is being sent, and these are dropped after the ring.
//! - S2. A client gets no more memory than its limit and its share (`shares`), and all clients together no more than
//!   the server's limit; beyond any of these it is not read from. A write holds memory in proportion to the part of it
//!   that has arrived. Each client has a small part that no other can take, and one request of any size makes progress
//!   whatever others hold.
//! - S3. A client is dropped, without effect on others, when it does not finish its handshake; when it moves no byte of
//!   the data that it holds memory for while others wait for memory; when it is silent while others wait for its place;
//!   or when it breaks the protocol.
//! - S4. A server with nothing to do uses no CPU time, and clients with nothing to do have no buffers.

pub mod allow;
mod block_locks;
pub mod clients;
pub mod counts;
pub mod error;
pub mod export;
pub mod handover;
pub mod inherited;
pub mod limit;
pub mod listen;
mod payload;
mod reactor;
mod serial_thread;
pub mod server;
mod shared;
mod shares;
pub mod tls;
pub mod vhost_user;

pub use allow::{Allow, Network, Rule};
pub use clients::{Client, Origin, Who};
pub use counts::IoCounts;
pub use error::ServeError;
pub use export::{
    BASE_ALLOCATION, BASE_ALLOCATION_NUMBER, Backend, DefaultExport, Export, ExportDevice, ExportStatus, Exports,
    NoStatus, Question, SlowReading, SlowRequest,
};
pub use handover::Parcel;
pub use limit::Limit;
pub use listen::{Address, Listener, SocketAccess};
pub use server::Server;
pub use shared::{Notice, Notices, ServerOptions};
pub use tls::{Expiry, Tls, TlsFiles};
pub use vhost_user::{VhostQueueStatus, VhostUser, VhostUserStatus};
