//! Changes of a pool as a whole. Each is a transaction that leaves nothing behind if it fails.
//!
//! | module | holds |
//! |---|---|
//! | [`create`] | formatting |
//! | [`copy`] | snapshots and clones, of one volume or of several at one moment |
//! | [`grow`] | more space: larger members, and further ones |
//! | [`snapshot`] | volumes: creating, renaming, rolling back, deleting |
//! | [`resize`] | sizes of volumes |
//! | [`discard`] | returns the space of freed units to the device, in the background |
//! | [`settings`] | the low-water mark, the background discard, and the list of losses |
//! | [`trim`] | returns all free space to the device |
//! | [`upgrade`] | gives a pool of an older program the features it lacks |
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
