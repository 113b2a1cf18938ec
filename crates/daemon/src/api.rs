//! The control socket as both ends know it.
//!
//! | module | holds |
//! |---|---|
//! | [`types`] | what goes over the socket; the definition is `api/io.sheave.Control.varlink` |
//! | [`paths`] | where the socket is |

pub mod paths;
pub mod types;

#[cfg(test)]
mod tests;
