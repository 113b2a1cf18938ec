//! Opening pools of which a part cannot be read.

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;

use crate::device::block_io::DeviceIo;
use crate::format::SUPERBLOCKS;
use crate::{BlockIo, CreateOptions, OpenOptions, Pool, PoolError};

/// A disk with blocks that cannot be read until they are written.
struct Unreadable {
    io: DeviceIo,
    bad: std::sync::Mutex<Vec<u64>>,
}

impl BlockIo for Unreadable {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        let end = at + buf.len() as u64;
        match self.bad.lock().unwrap().iter().any(|bad| (at..end).contains(bad)) {
            true => Err(Status::Medium),
            false => self.io.read(at, buf),
        }
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        let end = at + buf.len() as u64;
        self.bad.lock().unwrap().retain(|bad| !(at..end).contains(bad));
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.io.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

fn open(device: &Device, bad: &[u64]) -> Result<Pool, PoolError> {
    let io = Unreadable { io: DeviceIo::new(device).unwrap(), bad: bad.to_vec().into() };
    Pool::open_through(device, Box::new(io), &OpenOptions::default())
}

#[test]
fn a_superblock_that_cannot_be_read_leaves_the_other() {
    for bad in SUPERBLOCKS {
        let device = open_device("ram:size=16M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        drop(pool.create_volume("v", 1 << 20).unwrap());
        pool.close().unwrap();
        let pool = open(&device, &[bad]).unwrap();
        assert_eq!(pool.info().volumes, 1);
        pool.close().unwrap();
        let error = open(&device, &SUPERBLOCKS).unwrap_err();
        assert!(matches!(error, PoolError::Io { status: Status::Medium, .. }), "{error}");
    }
}
