//! Sheave floor 1: the types that all other floors use and that depend on none of them.
//!
//! Not covered by the stability promise of the crate `sheave`: public items here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`sync`] | the only import of atomics and threads: std or a model checker |
//! | [`asymmetric`] | a mark that its owner sets without a barrier, for another thread that checks it seldom |
//! | [`sbitmap`] | a bitmap of tags that many threads allocate from and free into |
//! | [`mpscq`] | a wait-free queue of preallocated nodes: many producers, one consumer |
//! | [`grace`] | grace periods: the time until unmapped space is certainly no longer used |
//! | [`handle_count`] | the number of handles of an owner, and a wake-up when one is dropped |
//! | [`wait`](mod@wait) | long waits: asleep, or step by step if a simulator runs the threads |
//! | [`parker`] | sleep and wake-up of one owner, as a file descriptor that a kernel ring can wait for |
//! | [`switches`] | the number of times that a thread has given up its CPU to wait |
//! | [`wake_count`] | the number of results after which a sleeping owner is woken |
//! | [`zeroes`] | the search for bytes that are not zero |
//! | [`panics`] | dropping the payload of a caught panic |
//! | [`peer`] | the process at the other end of a unix socket |
//! | [`prefetch`] | a hint that memory will be read soon |
//! | [`huge_pages`] | advice to the kernel to back memory with huge pages |
//! | [`buf`] | owned aligned memory for direct I/O |
//! | [`units`] | sectors, bytes, and the text forms of sizes, times and counts |
//! | [`trace`] | the last requests of a ring, in a file that outlives the program |
//! | [`status`] | the block status of a finished request, and errno |
//! | [`histogram`] | counts by value, one writer, many readers |
//! | [`keep_last`] | the last entries of one writer, for any reader |
//! | [`lasting`] | numbers in memory that outlives the process |
//! | `sigbus` | a handler that keeps a file that is cut off under its mapping from ending the process |
//! | [`beside`] | activities beside I/O that may make it slow |
//! | [`identity`] | numbers that are unique in the process |
//! | [`setters!`] | methods that set the fields of a struct that may get more fields |
//! | [`rng`] | random numbers from a seed |
//! | [`clock`] | real or virtual time; statistics and deadlines are different types |
//!
//! Units: [`units`] has the only conversions. A sector has 512 bytes. Sizes in texts are binary (`4k` is 4,096 bytes),
//! counts are decimal. Times for statistics are [`clock::CoarseTs`], times for deadlines [`clock::PreciseTs`], both in
//! nanoseconds since an arbitrary moment; neither converts to the other.
//!
//! Errors: parsers name the mistake in the text and its correction. The outcome of a request is a [`status::Status`],
//! one byte; `errno()` returns the positive number.
//!
//! `--cfg shuttle` and `--cfg loom` swap the primitives under `sync` for those of a model checker:
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test -p sheave-base --lib model_   # random schedules, sequentially consistent
//! RUSTFLAGS="--cfg loom" cargo test -p sheave-base --lib model_      # all schedules up to a bound, weak memory
//! ```

// Checked here because every other crate of Sheave is built after this one.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("sheave is for 64-bit Linux alone: it stands on the kernel's io_uring, on futexes and on O_DIRECT");

pub mod asymmetric;
pub mod beside;
pub mod buf;
pub mod clock;
pub mod grace;
pub mod handle_count;
pub mod histogram;
pub mod huge_pages;
pub mod identity;
pub mod keep_last;
pub mod lasting;
pub mod mpscq;
pub mod panics;
pub mod parker;
pub mod peer;
pub mod prefetch;
pub mod rng;
pub mod sbitmap;
mod setters;
#[cfg(not(any(shuttle, loom)))]
pub mod sigbus;
pub mod status;
pub mod switches;
pub mod sync;
pub mod trace;
pub mod units;
pub mod wait;
pub mod wake_count;
pub mod zeroes;

#[cfg(all(test, any(shuttle, loom)))]
mod model;
