//! Definitions of the control socket that both ends share.
//!
//! | module | holds |
//! |---|---|
//! | [`types`] | messages; the interface is defined in `api/io.sheave.Control.varlink` |

pub mod types;

#[cfg(test)]
mod tests;
