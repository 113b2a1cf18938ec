//! The load generator that `sheave bench` and `sheave lab` share.
//!
//! | module | holds |
//! |---|---|
//! | [`error`] | why a load could not be driven, with its fix |
//! | [`rw`] | kinds of work |

pub mod error;
pub mod rw;

pub use error::LoadError;
pub use rw::Rw;
