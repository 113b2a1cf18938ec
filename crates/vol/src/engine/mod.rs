//! How a pool's state becomes durable, and comes back: commits, checkpoints, recovery.
//!
//! | module | holds |
//! |---|---|
//! | [`inner`] | an open pool: its state, its locks, its device |
//! | [`phase`] | whether it is open, degraded, closing or closed |
//! | [`wait`] | waiting for I/O that is under way |
//! | [`water`] | how much space is left, and who is told |
//! | [`commit`] | the journal |
//! | [`checkpoint`] | all metadata at once |
//! | [`stock`] | units that are surely there when metadata wants them |
//! | [`undo`] | a change whose commit fails |
//! | [`loss`] | flushes that fail |
//! | [`recovery`] | from the device to a state |

pub(crate) mod checkpoint;
pub(crate) mod commit;
pub(crate) mod inner;
pub(crate) mod loss;
pub(crate) mod phase;
pub(crate) mod recovery;
pub(crate) mod stock;
pub(crate) mod undo;
pub(crate) mod wait;
pub(crate) mod water;
