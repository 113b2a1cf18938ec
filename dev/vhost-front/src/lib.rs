//! A vhost-user front-end and a virtio-blk driver in user space: QEMU and a guest, for tests and measurements.
//!
//! The code follows the specifications of vhost-user and virtio. It shares nothing with the product's back-end, so that
//! two independent readings check each other.
//!
//! | module | holds |
//! |---|---|
//! | [`Driver`] | memory, queues and connection of a device; start, stop, reconnect, hotplug, reboot |
//! | [`DriverQueue`] | requests and completions of one queue |
//! | [`ring`] | every field of a ring in memory, for hostile tests |
//! | [`FrontEnd`] | negotiation, and one call for each message |
//! | [`message`] | any message on a socket, with descriptors |
//! | [`memory`] | regions of guest memory; all unsafe code |
//! | [`inflight`] | the region with the requests in flight |
//!
//! ```no_run
//! use std::time::Duration;
//! use sheave_vhost_front::{Driver, Result};
//!
//! fn first_blocks(path: &str) -> Result<Vec<u8>> {
//!     let mut device = Driver::connect(path)?;
//!     device.queue(0).write_bytes(0, b"a sector".repeat(64).as_slice(), Duration::from_secs(10))?;
//!
//!     // Eight reads with one kick, to places in guest memory that the test chooses.
//!     let address = device.memory().alloc(8 * 4096, 4096)?;
//!     let queue = device.queue(0);
//!     for at in 0..8 {
//!         queue.read(8 * at, address + 4096 * at, 4096)?;
//!     }
//!     let completions = queue.complete_all(Duration::from_secs(10))?;
//!     assert!(completions.iter().all(|completion| completion.status == 0));
//!     Ok(device.memory().read(address, 8 * 4096))
//! }
//! ```

#![warn(missing_docs)]

pub mod config;
mod driver;
mod error;
pub mod features;
mod front_end;
pub mod inflight;
pub mod memory;
pub mod message;
mod queue;
pub mod ring;

pub use config::BlkConfig;
pub use driver::{DEFAULT_REGION, Driver, Options};
pub use error::{Error, Result};
pub use front_end::{BackendRequest, FrontEnd, VringAddr};
pub use inflight::{Inflight, InflightDesc, InflightQueue};
pub use memory::{GuestMemory, Mapping, Region, RegionSpec};
pub use message::{Channel, Message};
pub use queue::{
    Completion, DriverQueue, ID_LEN, Operation, Piece, STATUS_IOERR, STATUS_OK, STATUS_UNSUPP, STATUS_UNWRITTEN,
    Segment, Token,
};
pub use ring::{Descriptor, Ring};
