//! A device with a volatile write cache, with FUA or without; both determine how long a durable write takes.
//!
//! Changes only the capabilities of the device. The device underneath has no such cache: it gets the flushes and has
//! nothing to do for them.

use sheave::{Capabilities, Device, DeviceError};
use sheave_blk::driver::{Driver, HctxOpen, HwQueue};
use sheave_blk::limits::Limits;

#[derive(Debug)]
struct Cached {
    lower: Device,
    fua: bool,
}

/// Wraps `lower` as a device with a volatile cache. Opening the result fails unless `lower` has a single queue driver.
pub fn over(lower: &Device, fua: bool) -> Device {
    let name = format!("cached:fua={},over={}", if fua { "on" } else { "off" }, lower.name());
    Device::from_driver(&name, Box::new(Cached { lower: lower.clone(), fua }))
}

#[allow(unsafe_code)] // An unsafe trait: its implementer vouches for the memory of the requests.
// SAFETY: D7: its queues accept all requests that its limits allow.
unsafe impl Driver for Cached {
    fn limits(&self) -> Limits {
        self.lower.limits().clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.lower.capabilities().volatile_cache(true).fua(self.fua)
    }

    fn size_bytes(&self) -> u64 {
        self.lower.size_bytes()
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        match self.lower.whole_queue() {
            Some(queue) => queue.driver().open_hctx(open),
            None => Err(DeviceError::spec(self.lower.name(), "a device of several legs has no one driver")),
        }
    }
}
