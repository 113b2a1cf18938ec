//! Sheave floor 7: the vhost-user protocol of a block back-end, as state machines over bytes and guest memory.
//!
//! Not part of the stable interface of the crate `sheave`: public items may change in any version.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | constants and layouts of the messages, the rings and the block requests |
//! | [`session`] | the negotiation with one front-end: messages in, steps and replies out |
//! | [`memory`] | mappings of guest memory, and bounds-checked access to them |
//! | [`queue`] | split virtqueues: descriptor chains out, used elements in |
//! | [`inflight`] | the shared region that survives a crash of the back-end |
//! | [`block`] | the configuration space and the requests of a virtio block device |
//!
//! Nothing here opens sockets, waits, or starts threads. The owner of a connection receives 12 bytes, passes them to
//! [`Session::header`], receives the body and its descriptors, and passes these to [`Session::message`]. The result
//! names an action ([`Todo`]) for the threads that own the queues, and the answer to send after the action.
//!
//! Terms: the front-end is the virtual machine monitor, the driver is the code in the guest. Guest addresses are
//! physical addresses of the guest; user addresses are virtual addresses of the front-end, which it uses to name rings.
//!
//! Invariants:
//! - V1: no message, no byte of guest memory and no byte of an in-flight region makes this crate panic, access memory
//!   outside of a mapping, loop more often than a queue has descriptors, or allocate by an announced size.
//! - V2: no reference to shared memory exists. [`memory::Place`] reads and writes single numbers through atomic
//!   accesses, and copies data as a whole.
//! - V3: a descriptor is copied once and then checked; no value that was checked is read again from shared memory.

pub mod block;
mod broken;
pub mod inflight;
pub mod memory;
pub mod queue;
#[cfg(test)]
mod rig;
pub mod session;
mod trusted;
pub mod wire;

pub use broken::Broken;
pub use memory::{GuestMemory, Span};
pub use queue::{Chain, Queue};
pub use session::{Answer, Offer, Reply, Session, Setup, Step, Todo};
