//! A block device at the other end of a Unix socket: `sock:PATH,size=64M,receive=straight|any,timeout=30s`.
//!
//! Shows the tier of drivers that move the memory of requests with the ring's own kernel ring. All requests of a batch
//! go to the socket in one operation, and writes are sent directly from their memory. Reads are received directly into
//! their memory. With `receive=any` they are received into buffers that the kernel chooses, by one multishot receive.
//! When a connection is lost, its requests fail, and a new connection is made.
//!
//! | module | holds |
//! |---|---|
//! | `wire` | the form of requests and replies |
//! | `queue` | one ring's connection |
//! | `server` | the other end, for tests, with several ways to fail |

/// Tests the driver of the page on the kernel ring.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/drivers/kernel-ring.md")]
pub struct KernelRing;

mod queue;
pub mod server;
pub mod wire;

use std::os::unix::net::SocketAddr;
use std::time::Duration;

use sheave::drivers::{Address, KernelUse, Open, Params, Registry, SafeDriver, SafeQueue, with_timeout};
use sheave::{Capabilities, Device, DeviceError, Limits};

/// The device.
#[derive(Debug)]
struct Sock {
    size: u64,
    address: Address,
    any: bool,
}

/// Number and size of the receive buffers of a ring, with `receive=any`.
const BUFFERS: (u16, u32) = (64, 16 << 10);

/// Adds `sock` to the kinds of a registry.
///
/// # Errors
///
/// Fails if the name is taken.
pub fn register(registry: &mut Registry) -> Result<(), DeviceError> {
    registry.register("sock", open)
}

/// Opens `sock:...`.
fn open(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let Some(path) = params.path() else {
        return Err(params.error("no path. Put that of the server's socket behind the colon: sock:/run/disk,size=1G"));
    };
    let size = params.size("size")?.unwrap_or(64 << 20);
    let timeout = params.duration("timeout")?.unwrap_or(Duration::from_secs(30));
    let any = params.choice("receive", &[("straight", false), ("any", true)])?.unwrap_or(false);
    params.finish()?;
    let size = params.check_size(size, 512)?;
    let address =
        SocketAddr::from_pathname(&path).map_err(|_| params.error("the path is longer than a socket's may be"))?;
    let driver = Sock { size, address: Address::from(&address), any };
    Ok(with_timeout(params.spec(), driver, Vec::new(), timeout))
}

impl SafeDriver for Sock {
    fn limits(&self) -> Limits {
        Limits::default().max_sectors(wire::MAX_DATA / 512).max_segments(queue::MAX_PIECES as u16).queue_depth(64)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().volatile_cache(true)
    }

    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn kernel(&self) -> Option<KernelUse> {
        let operations = KernelUse::new(queue::OPERATIONS);
        Some(if self.any { operations.receive_buffers(BUFFERS.0, BUFFERS.1) } else { operations })
    }

    fn open_queue(&self, open: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        Ok(Box::new(queue::SockQueue::new(open, self.address.clone(), self.any)?))
    }
}
