//! The control of a daemon, as commands use it. What answers them is [`sheave_daemon`].
//!
//! | module | holds |
//! |---|---|
//! | [`remote`] | a daemon as a command sees it |
//! | [`opened`] | a pool that a command has opened itself, or that a daemon holds |
//! | [`commands`] | `sheave export` and `sheave client` |

pub mod commands;
pub mod opened;
pub mod remote;
