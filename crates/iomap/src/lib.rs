//! Sheave floor 5: the interface between rings and files, and the one direct-I/O engine.
//!
//! Not covered by the stability promise of the crate `sheave`: public items here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`kiocb`] | one I/O on a file, from issue to completion |
//! | [`file`](mod@file) | the [`File`] trait; a raw device is the identity mapping |
//! | [`io_memory`] | the memory of an I/O, for files that process it |
//! | [`io_stats`] | counts of the I/O of each ring on each file, for any thread to read |
//! | [`mapping`] | the place of a range of a file on its device, and the state of the range |
//! | [`completion_plan`] | the place where an I/O may complete: inline, in the issuer's task, in a worker |
//! | [`decision`] | the rules that choose one of these places |
//! | [`grace`] | waits until no I/O uses unmapped space any more (the protocol is in `sheave_base`) |
//! | [`dio`] | the engine: mapping, plan, bios, completion |
//!
//! Use: the owner of an I/O fills in a [`Kiocb`] (position, length, flags) and calls [`dio::issue`] with the memory.
//! [`dio::end_bio`] returns true when its last bio has ended. The [`CompletionPlan`] then names the thread on which the
//! result is computed, and [`dio::next`] returns the next step: [`dio::end_write`] and [`dio::sync`] run where they may
//! block.
//!
//! Units: positions and lengths are in bytes, multiples of the device's logical block. Errors: results are those of
//! CQEs, bytes or `-errno`; a [`File`] returns a [`Status`](sheave_base::status::Status), where `Again` means that the
//! call would have to block.
//!
//! Rings and volumes meet here and nowhere else: a ring issues a [`Kiocb`] on a `File`, and a volume is a `File`.

pub mod completion_plan;
pub mod decision;
pub mod dio;
pub mod file;
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
