//! Sheave: the Linux block I/O fast path in user space.
//!
//! io_uring-shaped rings on top, a blk-mq underneath; no daemon, no root, no huge pages. Who knows io_uring knows
//! Sheave: SQEs and CQEs are the kernel's, and so are opcodes, flags and results.
//!
//! ```
//! use sheave::{Buf, Device, Ring, op};
//!
//! let device = Device::open("ram:size=16M")?;
//! let mut ring = Ring::builder().entries(32).build()?;
//! let fd = ring.attach(&device)?;
//!
//! let mut buf = Buf::zeroed(4096, 4096)?;
//! buf[..5].copy_from_slice(b"hello");
//! ring.push(op::write(fd, buf).offset(8192).link()).map_err(|full| full.error)?;
//! ring.push(op::read(fd, Buf::zeroed(4096, 4096)?).offset(8192).user_data(1)).map_err(|full| full.error)?;
//! ring.submit_and_wait(2)?;
//! let read = ring.completions().find(|c| c.user_data == 1).expect("one completion an operation");
//! assert_eq!(read.result()?, 4096);
//! assert_eq!(&read.into_buf().expect("gives its buffer back")[..5], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The floors are crates of their own, re-exported here: [`base`], [`blk`], [`iomap`], [`uring`].

pub use sheave_base as base;
pub use sheave_blk as blk;
pub use sheave_iomap as iomap;
pub use sheave_uring as uring;

pub use sheave_base::buf::Buf;
pub use sheave_blk::driver::Capabilities;
pub use sheave_blk::{Device, DeviceError};
pub use sheave_iomap::File;
pub use sheave_uring::prep as op;
pub use sheave_uring::{Completion, Fd, Ring, RingBuilder, RingError, RingHandle};
