//! The control of a daemon, as commands use it. What answers them is in `serve`.
//!
//! | module | holds |
//! |---|---|
//! | [`types`] | what goes over the socket; the definition is `control/io.sheave.Control.varlink` |
//! | [`paths`] | where the socket is |
//! | [`remote`] | a daemon as a command sees it |
//! | [`opened`] | a pool that a command has opened itself, or that a daemon holds |
//! | [`commands`] | `sheave export` and `sheave client` |

pub mod commands;
pub mod opened;
pub mod paths;
pub mod remote;
pub mod types;

#[cfg(test)]
mod tests;
