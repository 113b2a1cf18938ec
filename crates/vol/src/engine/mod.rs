//! The engine of a pool: commits, checkpoints and recovery, which make its state durable and read it back.
//!
//! | module | holds |
//! |---|---|
//! | [`inner`] | an open pool: its state, its locks, its device |
//! | [`background`] | the background threads of a pool |
//! | [`wait`] | waits for I/O in flight |
//! | [`notices`] | notices of little space, for watches |
//! | [`leader`] | the choice of the thread that leads a commit; the others wait for it |
//! | [`commit`] | commits: the writes to the journal |
//! | [`checkpoint`] | checkpoints: all metadata at once |
//! | [`stock`] | units that are written before metadata needs them |
//! | [`cramped`] | an opening for deletes alone, where the host is full |
//! | [`change`] | a change of the volume table: durable, or undone |
//! | [`sums`] | checksums of data, where they need I/O |
//! | [`loss`] | failed flushes, and the volumes that may have lost data |
//! | [`owner`] | detection of another opening that took the pool |
//! | [`recovery`] | the state of a pool, read from its device |

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
