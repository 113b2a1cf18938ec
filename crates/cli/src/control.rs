//! Commands that control a daemon. The daemon itself is [`sheave_daemon`].
//!
//! | module | holds |
//! |---|---|
//! | [`remote`] | connection to a daemon |
//! | [`opened`] | a pool that a command opened itself, or that a daemon holds |
//! | [`passed`] | files and sockets that a command opens and passes to a daemon |
//! | [`commands`] | `sheave export` and `sheave client` |
//! | [`device`] | `sheave device` |
//! | [`slow`] | `sheave slow` |
//! | [`status`] | `sheave status` |
//! | [`trace`] | `sheave trace` |
//! | [`upgrade`] | `sheave upgrade` |

pub mod commands;
pub mod device;
pub mod opened;
pub mod passed;
pub mod remote;
pub mod slow;
pub mod status;
pub mod trace;
pub mod upgrade;
