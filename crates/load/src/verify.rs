//! Checks that a device returns the data that was written to it.
//!
//! | module | holds |
//! |---|---|
//! | [`block`] | what a block of a verified run looks like, and what is wrong with one that does not |
//! | [`generations`] | how often each block was written, and which are in flight |
//! | [`checker`] | the loop that fills, runs and reads back |
//! | [`wrong`] | the report of a wrong block |

pub mod block;
pub mod checker;
pub mod generations;
pub mod wrong;

pub use checker::{Checker, Tally};
pub use wrong::Wrong;
