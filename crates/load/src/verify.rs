//! Checks that a device returns the data that was written to it.
//!
//! | module | holds |
//! |---|---|
//! | [`block`] | the contents of a block in a verified run, and the kinds of wrong contents |
//! | [`generations`] | the number of writes of each block, and the blocks in flight |
//! | [`checker`] | the loop that fills, runs and reads back |
//! | [`wrong`] | the report of a wrong block |

pub mod block;
pub mod checker;
pub mod generations;
pub mod wrong;

pub use checker::{Checked, Checker, Pass, Tally};
pub use wrong::Wrong;
