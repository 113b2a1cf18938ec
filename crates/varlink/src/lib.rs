//! Sheave floor 5: varlink over unix sockets.
//!
//! No part of what the crate `sheave` promises: what is public here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`server`] | threads, clients, their roles and bounds |
//! | [`client`] | calls from the other end |
//! | [`call`] | one call: its parameters, its replies, its errors |
//! | [`idl`] | interface definitions: read, checked, made into a page of documentation |
//! | `channel` | a connection: messages and descriptors, within a time |
//! | [`framer`] | a stream of bytes cut into messages |
//!
//! Varlink is JSON objects with a NUL after each. It was written by hand over `serde_json`, because the crates for it
//! want an async runtime, or read a message of any length; this is small, and a peer may be hostile. What it leaves
//! out: `upgrade`. What it adds is systemd's: descriptors that travel with a message.
//!
//! Invariants:
//! - V1. A peer holds at most [`server::Limits::message_bytes`] and [`channel::MAX_FDS`] descriptors of this process
//!   for messages, and one thread; there are at most [`server::Limits::clients`] of them.
//! - V2. Nobody waits for a peer longer than a deadline: for the rest of a message that it has begun, for its taking of
//!   a reply, for its next call.
//! - V3. A peer that may not change anything cannot keep those out who may: it takes a share of the places only.

pub mod call;
pub mod channel;
pub mod client;
pub mod framer;
pub mod idl;
pub mod server;

pub use call::{Call, CallError, Failed, Role, Teller};
pub use client::{Client, ClientError};
pub use server::{Limits, Roles, Server, Service};
