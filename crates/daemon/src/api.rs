//! Definitions of the control socket that both ends share.
//!
//! | module | holds |
//! |---|---|
//! | [`types`] | messages; the interface is defined in `api/io.sheave.Control.varlink` |
//! | [`paths`] | the location of sockets |

pub mod paths;
pub mod types;

#[cfg(test)]
mod tests;
