//! Sheave floor 2: the block layer. Turns bios into requests for the drivers, and completions into ends of bios.
//!
//! Not part of the stable interface of the crate `sheave`: public items here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`ctx`] | the block layer of one ring: submission, completion, waiting |
//! | [`bio`], [`bio_set`] | one I/O with its memory; storage and recycling of bios |
//! | `plain_io`, `end_io` | parameters of plain I/O; calls that report the end of I/O to its owner |
//! | [`plug`] | the batch and its cached time |
//! | `ring_core` | state that all hardware contexts of a ring share; the end of a bio |
//! | [`hctx`] | the hardware context of one ring for one device: gather, dispatch, flush, complete |
//! | [`request`], [`tag_set`] | preallocated requests and the tags that are their indices |
//! | [`merge`], [`split`], [`limits`] | merging adjacent bios, cutting large ones, limits of a request |
//! | [`timeout`] | overdue requests |
//! | [`queue`], [`device`] | state that rings share: limits, gate, statistics; a device and its legs |
//! | [`claim`], [`flush_alarm`] | one owner of a device at a time; reports of failed flushes to an owner |
//! | [`stats`] | counters and latency histograms, one writer, many readers |
//! | [`linear`] | partitions and concatenations of devices |
//! | [`stack`] | I/O that a driver sends to the devices below it |
//! | [`driver`] | the interface to the drivers, which are crates above this one |
//!
//! Shapes: a [`Device`] is made from a driver and shared by all threads. Each thread has one [`ctx::IoCtx`], attaches
//! devices to it, submits bios (operation, first sector, bytes, pieces of memory), and polls. Every submitted bio ends
//! exactly once, in a poll, with the number that its owner gave:
//!
//! ```
//! use sheave_base::clock::Clock;
//! use sheave_blk::bio::{NO_FIXED_BUF, Op};
//! use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};
//! use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, TimedOut};
//! use sheave_blk::limits::Limits;
//! use sheave_blk::request::{DoneList, RqList, RqTable};
//! use sheave_blk::{Device, DeviceError};
//!
//! /// A device of 1 MiB that does nothing.
//! #[derive(Debug)]
//! struct Nothing;
//!
//! // SAFETY: D7: its queues take every request within the limits that it reports.
//! unsafe impl Driver for Nothing {
//!     fn limits(&self) -> Limits {
//!         Limits::default().max_discard_sectors(2048)
//!     }
//!     fn capabilities(&self) -> Capabilities {
//!         Capabilities::default().discard(true)
//!     }
//!     fn size_bytes(&self) -> u64 {
//!         1 << 20
//!     }
//!     fn open_hctx(&self, _: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
//!         Ok(Box::new(Nothing))
//!     }
//! }
//!
//! // SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
//! unsafe impl HwQueue for Nothing {
//!     fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
//!         list.complete_all(done);
//!     }
//!     fn next_event(&self) -> NextEvent {
//!         NextEvent::Idle
//!     }
//!     // This queue never holds a request, so the calls below have nothing to end.
//!     fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}
//!     fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
//!         TimedOut::Waiting
//!     }
//!     fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}
//! }
//!
//! let clock = Clock::real();
//! let options = IoCtxOptions { bios: 64, kring_entries: 64, iopoll: false, stats: true, clock };
//! let mut ctx = IoCtx::new(options)?;
//! let bdev = ctx.attach(&Device::from_driver("nothing", Box::new(Nothing)))?;
//! let discard = BioSpec { bdev, op: Op::Discard, flags: 0, sector: 8, bytes: 4096, owner: 7 };
//! assert!(ctx.submit(&discard, &[], NO_FIXED_BUF), "there is a free bio");
//! let mut ended = Vec::new();
//! while ended.is_empty() {
//!     ctx.poll(&mut |owner, status: sheave_base::status::Status| ended.push((owner, status.is_ok())));
//! }
//! assert_eq!(ended, [(7, true)]);
//! # Ok::<(), sheave_blk::DeviceError>(())
//! ```
//!
//! Units: sectors of 512 bytes for places on a device, bytes for lengths. Errors: opening, attaching and freezing
//! return a [`DeviceError`], whose text names the cause and the fix; an I/O ends with a
//! [`Status`](sheave_base::status::Status).
//!
//! Data flows `ctx` -> `hctx` -> `driver` and back; `docs/concepts/life-of-an-io.md` follows one read through it.

pub mod bio;
pub mod bio_set;
pub mod claim;
pub mod ctx;
pub mod device;
pub mod driver;
mod end_io;
pub mod error;
pub mod flush_alarm;
pub mod hctx;
pub mod hctx_shared;
pub mod kring_slot;
pub mod limits;
pub mod linear;
pub mod merge;
mod plain_io;
pub mod plug;
pub mod queue;
pub mod request;
mod ring_core;
pub mod split;
pub mod stack;
pub mod stats;
pub mod tag_set;
pub mod timeout;

pub use device::Device;
pub use error::DeviceError;

#[cfg(all(test, shuttle))]
mod model;
// The unit tests use the driver and the ring of the scenario tests, which import this crate by its name.
#[cfg(test)]
extern crate self as sheave_blk;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
