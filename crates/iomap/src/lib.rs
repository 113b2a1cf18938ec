//! Sheave floor 3: what a file is to a ring, and the one direct-I/O engine.
//!
//! No part of what the crate `sheave` promises: what is public here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`kiocb`] | one I/O on a file, from issue to completion |
//! | [`file`](mod@file) | the [`File`] trait; a raw device is the identity mapping |
//! | [`io_memory`] | the memory of an I/O, for files that look at it |
//! | [`io_stats`] | what each ring has done on each file, for any thread to read |
//! | [`mapping`] | where a range of a file lies, and in which state |
//! | [`completion_plan`] | where an I/O may complete: inline, in the issuer's task, in a worker |
//! | [`decision`] | what decides for one of these places |
//! | [`grace`] | when space that was unmapped is certainly no longer used (the protocol is in `sheave_base`) |
//! | [`dio`] | the engine: mapping, plan, bios, completion |
//!
//! Shapes: who owns an I/O fills a [`Kiocb`] (position, length, flags), calls [`dio::issue`] with the memory, and is
//! told by [`dio::end_bio`] when it has ended. The [`CompletionPlan`] then says where its result is worked out, and
//! [`dio::next`] what is to be done: [`dio::end_write`] and [`dio::sync`] where they may block.
//!
//! Units: positions and lengths are in bytes, and multiples of the device's logical block. Errors: results are those of
//! CQEs, bytes or `-errno`; a [`File`] answers with a [`Status`](sheave_base::status::Status), where `Again` means that
//! it would have to block.
//!
//! Rings and volumes meet here and nowhere else: a ring issues a [`Kiocb`] on a `File`, a volume is one.

pub mod completion_plan;
pub mod decision;
pub mod dio;
pub mod file;
mod io_kind;
pub mod io_memory;
pub mod io_stats;
pub mod kiocb;
pub mod mapping;
pub mod slow;
pub mod usual;

pub use sheave_base::grace;

pub use completion_plan::CompletionPlan;
pub use file::{FallocateMode, File, PlainRanges, RawFile, SummedDone, WriteDone};
pub use io_memory::IoMemory;
pub use kiocb::Kiocb;
pub use mapping::{Mapping, MappingKind};
