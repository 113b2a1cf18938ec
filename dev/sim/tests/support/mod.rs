//! Pools with checksums behind real rings, and silent damage to their data.
#![allow(dead_code)] // Each test program uses a part of it.

use std::sync::Arc;

use sheave_base::buf::Buf;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_uring::{Fd, Ring, prep};
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::{Checksum, CreateOptions, ExtentKind, OpenOptions, Pool, Volume};

pub const BLOCK: usize = 4096;
pub const EILSEQ: i32 = -84;
pub const EINVAL: i32 = -22;

pub fn format(device: &Device, unit_bytes: u64, checksum: Checksum) {
    let options = CreateOptions::default().unit_bytes(unit_bytes).checksum(checksum).overwrite(true);
    Pool::create(device, &options).expect("the pool is made");
}

pub fn open(device: &Device) -> Pool {
    Pool::open(device, &OpenOptions::default()).expect("the pool opens")
}

pub struct User {
    pub ring: Ring,
    pub fd: Fd,
    pub volume: Volume,
}

impl User {
    pub fn new(volume: Volume) -> User {
        let mut ring = Ring::builder().entries(64).build().expect("a ring");
        let fd = ring.attach_file(Arc::new(volume.clone())).expect("attached");
        User { ring, fd, volume }
    }

    pub fn run(&mut self, entry: impl prep::Op) -> (i32, Option<Buf>) {
        self.ring.push(entry).map_err(|full| full.error).expect("there is room");
        self.ring.submit_and_wait(1).expect("it ends");
        let done = self.ring.completions().next().expect("one");
        (done.res, done.into_buf())
    }

    pub fn write(&mut self, pos: u64, tag: u8, blocks: usize) -> i32 {
        let mut buf = Buf::zeroed(blocks * BLOCK, BLOCK).expect("memory");
        buf.fill(tag);
        self.run(prep::write(self.fd, buf).offset(pos)).0
    }

    pub fn read(&mut self, pos: u64, len: usize) -> (i32, Vec<u8>) {
        let (res, buf) = self.run(prep::read(self.fd, Buf::zeroed(len, BLOCK).expect("memory")).offset(pos));
        (res, buf.map_or_else(Vec::new, |buf| buf.to_vec()))
    }

    /// Returns the byte that fills a block, or the error of the read.
    pub fn tag(&mut self, pos: u64) -> Result<u8, i32> {
        let (res, data) = self.read(pos, BLOCK);
        if res < 0 {
            return Err(res);
        }
        assert!(data.iter().all(|byte| *byte == data[0]), "a block of one write");
        Ok(data[0])
    }

    pub fn sync(&mut self) {
        assert_eq!(self.run(prep::fsync(self.fd)).0, 0);
    }

    /// Returns the address of a block of the volume on the device.
    pub fn addr(&self, pos: u64) -> u64 {
        let extents = self.volume.extents(pos, BLOCK as u64).expect("extents");
        assert_eq!(extents[0].kind, ExtentKind::Data);
        extents[0].addr + (pos - extents[0].pos)
    }
}

/// Flips a bit on the device, past the pool.
pub fn rot(device: &Device, addr: u64) {
    let io = DeviceIo::new(device).expect("the device opens");
    let mut block = vec![0; BLOCK];
    io.read(addr, &mut block).expect("it reads");
    block[1234] ^= 4;
    io.write(addr, &block).expect("it writes");
}

pub fn summed(unit_bytes: u64) -> (Device, Pool, User) {
    let device = open_device("ram:size=64M").expect("memory");
    format(&device, unit_bytes, Checksum::Crc32c);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 8 << 20).expect("a volume"));
    (device, pool, user)
}
