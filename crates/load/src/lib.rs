//! The load generator shared by `sheave bench` and `sheave-lab`: all sides of their comparisons run in the same loop.
//!
//! Not covered by the stability promise of the crate `sheave`: public items here may change with any version.
//!
//! It drives the library that programs embed; no floor of that library depends on it.
//!
//! | module | holds |
//! |---|---|
//! | [`looper`], [`slots`], [`pattern`], [`pace`] | the measured loop and its parts |
//! | [`verify`] | blocks that prove themselves, and the loop that checks them |
//! | [`engine`], [`sheave_engine`], [`kernel`], [`memcpy`] | the engines that the loops drive: ours, and the peers |
//! | [`live`] | counts and latencies while a run goes on |
//! | [`job`] | fio job files |
//! | [`cpu`] | pinning and CPU time |
//! | [`rw`], [`error`] | kinds of work, and the errors of a load |
//! | [`value`], [`signals`], [`output`] | shared by the commands: values of arguments, Ctrl-C, results on stdout |

pub mod cpu;
pub mod engine;
pub mod error;
pub mod job;
pub mod kernel;
pub mod live;
pub mod looper;
pub mod memcpy;
pub mod output;
pub mod pace;
pub mod pattern;
pub mod rw;
pub mod sheave_engine;
pub mod signals;
pub mod slots;
pub mod value;
pub mod verify;

pub use engine::Engine;
pub use error::LoadError;
pub use job::{Job, Work};
pub use looper::{Driven, IoError, Lane, Looper, Until};
pub use pattern::Pattern;
pub use rw::Rw;
pub use sheave_engine::{EngineOpts, SheaveEngine};
