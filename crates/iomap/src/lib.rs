//! Sheave floor 3: what a file is to a ring, and the one direct-I/O engine.
//!
//! | module | holds |
//! |---|---|
//! | [`kiocb`] | one I/O on a file, from issue to completion |
//! | [`file`](mod@file) | the [`File`] trait; a raw device is the identity mapping |
//! | [`mapping`] | where a range of a file lies, and in which state |
//! | [`completion_plan`] | where an I/O may complete: inline, in the issuer's task, in a worker |
//! | [`dio`] | the engine: mapping -> plan -> bios -> completion |
//!
//! Rings and volumes meet here and nowhere else: a ring issues a [`Kiocb`] on a `File`, a volume is one.

pub mod completion_plan;
pub mod dio;
pub mod file;
pub mod kiocb;
pub mod mapping;

pub use completion_plan::CompletionPlan;
pub use file::{File, RawFile};
pub use kiocb::Kiocb;
pub use mapping::{Mapping, MappingKind};
