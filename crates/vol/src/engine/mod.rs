//! How a pool's state becomes durable, and comes back: commits, checkpoints, recovery.
//!
//! | module | holds |
//! |---|---|
//! | [`inner`] | an open pool: its state, its locks, its device |
//! | [`background`] | the thread that works behind the users of a pool |
//! | [`wait`] | waiting for I/O that is under way |
//! | [`notices`] | who is told how much space is left |
//! | [`leader`] | who leads a commit, and who waits |
//! | [`commit`] | the journal |
//! | [`checkpoint`] | all metadata at once |
//! | [`stock`] | units that are surely there when metadata wants them |
//! | [`cramped`] | an opening for deletes alone, on a host that is full |
//! | [`change`] | a change of the table: durable, or undone |
//! | [`sums`] | checksums of data where they take I/O |
//! | [`loss`] | flushes that fail |
//! | [`owner`] | another opening has the pool |
//! | [`recovery`] | from the device to a state |

pub(crate) mod background;
pub(crate) mod change;
pub(crate) mod checkpoint;
pub(crate) mod commit;
pub(crate) mod cramped;
pub(crate) mod inner;
pub(crate) mod leader;
pub(crate) mod loss;
pub(crate) mod notices;
pub(crate) mod owner;
pub(crate) mod recovery;
pub(crate) mod stock;
pub(crate) mod sums;
pub(crate) mod wait;
