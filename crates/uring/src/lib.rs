//! Sheave floor 4: rings with the kernel's SQEs and CQEs over the block layer.
//!
//! | module | holds |
//! |---|---|
//! | [`ring`], [`builder`] | what embedders hold, and its settings |
//! | [`prep`] | typed, safe operations |
//! | [`sqe`], [`cqe`], [`queues`] | the UAPI layouts; ring memory with every acquire and release |
//! | [`req`], `core` | request slots; the state between submission and completion |
//! | [`opdef`], `op` | the table of operations, and each operation |
//! | `submit`, `complete` | the way in and the way out: chains, drains, CQEs |
//! | `timers` | pending timeouts |
//! | `task_work`, `io_wq`, `blocking` | how other threads reach a ring; work that may block |
//! | [`rsrc`] | file table, registered files and buffers |
//!
//! ```
//! use sheave_uring::{prep, Ring};
//!
//! let mut ring = Ring::builder().entries(8).build()?;
//! ring.push(prep::nop().user_data(42))?;
//! ring.submit_and_wait(1)?;
//! assert_eq!(ring.completions().map(|c| c.user_data).collect::<Vec<_>>(), [42]);
//! # Ok::<(), sheave_uring::RingError>(())
//! ```

mod blocking;
pub mod builder;
mod complete;
mod core;
pub mod cqe;
pub mod error;
mod io_wq;
mod op;
pub mod opdef;
pub mod prep;
pub mod queues;
pub mod req;
pub mod ring;
pub mod rsrc;
pub mod sqe;
mod submit;
pub mod task_work;
#[cfg(test)]
mod tests;
mod timers;
mod user_memory;

pub use builder::RingBuilder;
pub use cqe::Completion;
pub use error::{RingError, SendError, SqFull};
pub use ring::{Completions, Ring};
pub use rsrc::Fd;
pub use task_work::RingHandle;
