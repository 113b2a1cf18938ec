//! Drivers without unsafe code.
//!
//! A [`SafeDriver`] is a device, a [`SafeQueue`] is its hardware queue for one ring. Both are ordinary traits. The
//! adapter itself keeps the contract between block layer and driver (D1 to D7 of [`driver`](sheave_blk::driver)),
//! whatever the driver does.
//!
//! | module | holds |
//! |---|---|
//! | `traits` | the traits that a driver implements |
//! | `request` | a driver's access to a request: its memory by copies, its children, its end |
//! | `table` | the requests that a driver has, and their children |
//! | `queue` | the adapter: calls the driver, and ends requests |
//! | `kernel` | a driver's access to the ring's kernel ring; its unsafe calls are the second tier |
//! | `ops` | the operations of a driver on the kernel ring |
//! | `memory` | copies to and from the memory of a request |
//!
//! The adapter keeps every request. A driver gets a [`Request`] for the time of a call and returns its next step: the
//! request ends, or it waits, for children that were sent to the devices below or for a later [`SafeQueue::poll`],
//! which finds it again by its [`RequestId`]. So a driver cannot lose a request, end it twice, or end that of another
//! queue: an id that names no request of the queue, or one that has ended, gives `None`. Possible mistakes of a driver
//! and their consequences:
//!
//! | a driver | then |
//! |---|---|
//! | never ends a request | it ends as timed out when it is overdue |
//! | panics | its requests, and all that come, end as an I/O error; it is not called again |
//! | ends a request that has children | the request ends when its children have ended |
//! | names memory beyond its request's, or of the wrong direction | [`Refused`], and nothing is copied or sent |
//! | names a device below that does not exist | the child ends as invalid |
//! | blocks | its ring blocks, which the adapter cannot prevent |
//!
//! ```
//! use sheave_blk::driver::Capabilities;
//! use sheave_blk::limits::Limits;
//! use sheave_blk::{Device, DeviceError, bio::Op};
//! use sheave_drivers::safe::{Open, Request, SafeDriver, SafeQueue, Step, device};
//! use sheave_base::status::Status;
//!
//! /// Reads as the number of the sector, byte by byte; takes no writes.
//! #[derive(Debug)]
//! struct Numbers;
//!
//! impl SafeDriver for Numbers {
//!     fn limits(&self) -> Limits { Limits::default() }
//!     fn capabilities(&self) -> Capabilities { Capabilities::default().read_only(true) }
//!     fn size_bytes(&self) -> u64 { 256 * 512 }
//!     fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> { Ok(Box::new(Numbers)) }
//! }
//!
//! impl SafeQueue for Numbers {
//!     fn start(&mut self, rq: &mut Request<'_>) -> Step {
//!         if rq.op() == Op::Write {
//!             return Step::End(Status::ReadOnly);
//!         }
//!         for at in 0..rq.bytes() / 512 {
//!             let sector = [(rq.sector() + u64::from(at)) as u8; 512];
//!             if rq.copy_from(at as usize * 512, &sector).is_err() {
//!                 return Step::End(Status::IoErr);
//!             }
//!         }
//!         Step::End(Status::Ok)
//!     }
//! }
//!
//! let device = device("numbers", Numbers);
//! assert_eq!(device.size_bytes(), 128 << 10);
//! ```

mod kernel;
mod memory;
mod ops;
mod queue;
mod request;
mod table;
mod traits;

use std::time::Duration;

use sheave_blk::Device;
use sheave_blk::queue::DEFAULT_TIMEOUT;

pub use kernel::{KernelUse, OpEnd, Transfer, TransferKind};
pub use ops::OpToken;
pub use request::{Child, ChildEnd, MAX_CHILDREN, Memory, Polled, Refused, Request, RequestId};
pub use sheave_kring::{Address, IoVec};
pub use traits::{Open, SafeDriver, SafeQueue, Step, WaitsFor, Waker};

/// Makes a device of `driver`.
pub fn device(name: &str, driver: impl SafeDriver) -> Device {
    stacked(name, driver, Vec::new())
}

/// Makes a device of `driver` over the devices `lower`; [`Child::lower`] numbers them in this order.
pub fn stacked(name: &str, driver: impl SafeDriver, lower: Vec<Device>) -> Device {
    with_timeout(name, driver, lower, DEFAULT_TIMEOUT)
}

/// Makes a device of `driver` whose requests time out after `timeout`.
pub fn with_timeout(name: &str, driver: impl SafeDriver, lower: Vec<Device>, timeout: Duration) -> Device {
    let adapter = queue::Adapter::new(Box::new(driver), lower.clone());
    Device::stacked(name, Box::new(adapter), timeout, lower)
}

#[cfg(test)]
mod tests;
