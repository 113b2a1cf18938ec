//! What is done to a pool as a whole, each a transaction that leaves nothing behind when it fails.
//!
//! | module | holds |
//! |---|---|
//! | [`create`] | formatting |
//! | [`copy`] | snapshots and clones, of one volume or of several at one moment |
//! | [`grow`] | more space: larger members, and further ones |
//! | [`snapshot`] | volumes: made, renamed, rolled back, deleted |
//! | [`resize`] | their sizes |
//! | [`discard`] | what became free goes back in the background |
//! | [`settings`] | the low-water mark, the background discard, and the list of losses |
//! | [`trim`] | free space goes back to the device below |
//! | [`upgrade`] | a pool of an older program gets what it lacks |
//! | [`scrub`] | reads a pool through while it is in use |

pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod discard;
pub mod grow;
pub(crate) mod resize;
pub mod scrub;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub mod trim;
pub(crate) mod upgrade;
