//! Sheave floor 7: varlink over unix sockets.
//!
//! Not part of the stable interface of the crate `sheave`: public items may change in any version.
//!
//! | module | holds |
//! |---|---|
//! | [`server`] | threads, clients, their roles and limits |
//! | [`client`] | the calling side |
//! | [`call`] | one call: its parameters, replies and errors |
//! | [`idl`] | parser of interface definitions, and generator of a documentation page |
//! | `channel` | a connection: messages and descriptors, with a deadline |
//! | [`framer`] | splits a stream of bytes into messages |
//!
//! Varlink messages are JSON objects, each terminated by a NUL. This is a small implementation over `serde_json`,
//! because the existing crates need an async runtime or accept messages of any length, and a peer may be hostile.
//! `upgrade` is not supported. As an extension of systemd's, descriptors can be passed with a message.
//!
//! Invariants:
//! - V1. A peer occupies at most [`server::Limits::message_bytes`] for messages, [`channel::MAX_FDS`] descriptors and
//!   one thread of this process. There are at most [`server::Limits::clients`] peers.
//! - V2. Waiting for a peer always has a deadline: for the rest of a message, for the time in which the peer must
//!   receive a reply, and for its next call.
//! - V3. Peers without the right to change anything cannot lock out those with that right, because they get only a part
//!   of the connections.

pub mod call;
pub mod channel;
pub mod client;
pub mod framer;
pub mod idl;
pub mod server;

pub use call::{Call, CallError, Failed, Role, Teller};
pub use client::{Client, ClientError};
pub use server::{Limits, Roles, Server, Service};
