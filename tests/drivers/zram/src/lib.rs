//! A ram disk that compresses: `zram:size=64M`.
//!
//! Owns blocks of 4 KiB by number, each packed by [`pack()`]; a block of zeroes takes no memory. All rings share them,
//! under locks for a part of the blocks each. The data ends with the process.
#![forbid(unsafe_code)]

mod pack;

/// Tests the drivers of the page on drivers without unsafe code.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/drivers/writing.md")]
pub struct Writing;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use sheave::drivers::{Open, Params, Refused, Registry, Request, SafeDriver, SafeQueue, Step, device};
use sheave::{Capabilities, Device, DeviceError, Limits, Op, Status};

pub use pack::{pack, unpack};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Number of locks over the blocks.
const SHARDS: usize = 64;

/// Blocks by number, packed.
type Shard = HashMap<u64, Box<[u8]>>;

/// The device.
#[derive(Clone, Debug)]
pub struct Zram {
    size: u64,
    shards: Arc<[Mutex<Shard>; SHARDS]>,
}

/// Adds `zram` to the kinds of a registry.
///
/// # Errors
///
/// Fails if the name is taken.
pub fn register(registry: &mut Registry) -> Result<(), DeviceError> {
    registry.register("zram", open)
}

/// Opens `zram:...`.
fn open(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let size = params.size("size")?.unwrap_or(64 << 20);
    params.finish()?;
    let size = params.check_size(size, BLOCK as u32)?;
    Ok(device(params.spec(), Zram { size, shards: Arc::new(std::array::from_fn(|_| Mutex::default())) }))
}

impl Zram {
    fn shard(&self, block: u64) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[(block % SHARDS as u64) as usize];
        shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self, rq: &Request<'_>, first: u64, blocks: u64) -> Result<(), Refused> {
        let mut bytes = [0; BLOCK];
        for at in 0..blocks {
            rq.copy_to(at as usize * BLOCK, &mut bytes)?;
            if bytes == [0; BLOCK] {
                self.shard(first + at).remove(&(first + at));
            } else {
                self.shard(first + at).insert(first + at, pack(&bytes));
            }
        }
        Ok(())
    }

    fn read(&self, rq: &mut Request<'_>, first: u64, blocks: u64) -> Result<bool, Refused> {
        for at in 0..blocks {
            let mut bytes = [0; BLOCK];
            let whole = match self.shard(first + at).get(&(first + at)) {
                Some(packed) => unpack(packed, &mut bytes),
                None => true,
            };
            if !whole {
                return Ok(false);
            }
            rq.copy_from(at as usize * BLOCK, &bytes)?;
        }
        Ok(true)
    }
}

impl SafeDriver for Zram {
    fn limits(&self) -> Limits {
        let most = 2048; // 1 MiB: what a ring is kept for by one request
        Limits::default()
            .logical_block(BLOCK as u32)
            .max_sectors(most)
            .max_discard_sectors(most)
            .max_write_zeroes_sectors(most)
            .queue_depth(64)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().fua(true).discard(true).write_zeroes(true).polled(true)
    }

    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        Ok(Box::new(self.clone()))
    }

    fn notices(&self) -> Vec<String> {
        let mut held = (0, 0);
        for shard in self.shards.iter() {
            let shard = shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            held.0 += shard.len();
            held.1 += shard.values().map(|packed| packed.len()).sum::<usize>();
        }
        vec![format!("{} bytes of data are held in {} bytes", held.0 * BLOCK, held.1)]
    }
}

impl SafeQueue for Zram {
    fn start(&mut self, rq: &mut Request<'_>) -> Step {
        let (first, blocks) = (rq.sector() / 8, u64::from(rq.bytes()) / BLOCK as u64);
        let done = match rq.op() {
            Op::Write => self.write(rq, first, blocks).map(|()| true),
            Op::Read => self.read(rq, first, blocks),
            Op::Discard | Op::WriteZeroes => {
                (first..first + blocks).for_each(|block| _ = self.shard(block).remove(&block));
                Ok(true)
            }
            Op::Flush => Ok(true),
            _ => return Step::End(Status::NotSupp),
        };
        Step::End(match done {
            Ok(true) => Status::Ok,
            Ok(false) => Status::Protection,
            Err(_) => Status::IoErr,
        })
    }
}
