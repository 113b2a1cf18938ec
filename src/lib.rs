//! Sheave: the Linux block I/O fast path in user space.
//!
//! io_uring-shaped rings on top, a blk-mq underneath; no daemon, no root, no huge pages. Who knows io_uring knows
//! Sheave: SQEs and CQEs are the kernel's, and so are opcodes, flags and results.
//!
//! ```
//! use sheave::{Buf, Ring, op, open_device};
//!
//! let device = open_device("ram:size=16M")?;
//! let mut ring = Ring::builder().entries(32).build()?;
//! let fd = ring.attach(&device)?;
//! let mut hello = Buf::zeroed(4096, 4096)?; // length and alignment in bytes
//! hello[..5].copy_from_slice(b"hello");
//! ring.push(op::write(fd, hello).offset(8192).link())?; // linked: the read waits for the write
//! ring.push(op::read(fd, Buf::zeroed(4096, 4096)?).offset(8192).user_data(1))?;
//! ring.submit_and_wait(2)?;
//! let read = ring.completions().find(|done| done.user_data == 1).expect("one completion an operation");
//! assert_eq!(read.result()?, 4096);
//! assert_eq!(&read.into_buf().expect("a read gives its buffer back")[..5], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | open a device by its spec | [`open_device`], [`drivers::spec`] |
//! | make a device from a driver of your own, and give it a spec | [`Device`], [`blk::driver`], [`Registry`] |
//! | build a ring, attach devices, submit, wait, read completions | [`Ring`], [`RingBuilder`] |
//! | make pools and thin volumes, and attach a volume to a ring | [`Pool`], [`Volume`], [`Ring::attach_file`] |
//! | make an operation | [`op`] |
//! | have memory with an alignment | [`Buf`] |
//! | wake a ring from another thread, or send it a message | [`RingHandle`] |
//! | read statistics and what is in flight | [`Device::stats`], [`Device::in_flight`] |
//!
//! Units: lengths, offsets and sizes are in bytes; `sector` is always 512 bytes; times are [`std::time::Duration`], or
//! nanoseconds where a name ends in `_ns`. Errors: calls that set something up give a [`RingError`] or a
//! [`DeviceError`], whose text names the cause and the fix. An I/O ends with one [`Completion`], whose `res` is
//! io_uring's: bytes, or `-errno`.
//!
//! A ring belongs to the thread that made it and takes no locks for an I/O. Several threads use a ring each, over the
//! same devices.
//!
//! The floors are crates of their own, re-exported here: [`base`], [`blk`], [`drivers`], [`iomap`], [`uring`], [`vol`].

pub use sheave_base as base;
pub use sheave_blk as blk;
pub use sheave_drivers as drivers;
pub use sheave_iomap as iomap;
pub use sheave_uring as uring;
pub use sheave_vol as vol;

pub use sheave_base::buf::Buf;
pub use sheave_blk::driver::Capabilities;
pub use sheave_blk::{Device, DeviceError};
pub use sheave_drivers::{Registry, open_device};
pub use sheave_iomap::File;
#[cfg(sheave_lab)]
pub use sheave_uring::LateCompletions;
pub use sheave_uring::prep as op;
pub use sheave_uring::{Completion, Fd, FixedFile, Ring, RingBuilder, RingError, RingHandle, WaitOn, Waited};
pub use sheave_vol::{Pool, Volume};

/// The example of the README, tested like all others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// The driver of the page on drivers.
#[cfg(doctest)]
#[doc = include_str!("../docs/drivers/README.md")]
pub struct Drivers;

/// The example of the page on volumes.
#[cfg(doctest)]
#[doc = include_str!("../docs/volumes.md")]
pub struct Volumes;

/// The examples of the page on embedding.
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
pub struct Embedding;
