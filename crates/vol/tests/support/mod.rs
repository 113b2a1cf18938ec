//! A synchronous driver over `File`: map, I/O, completion, as a ring does it, one I/O at a time.
#![allow(dead_code)] // Each test program uses a part of it.

use std::sync::Arc;

use sheave_base::grace::{Grace, Seat};
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::{FallocateMode, WriteDone};
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, Mapping, MappingKind};
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::{CreateOptions, OpenOptions, Pool, Volume};

/// A volume and a way to its device.
pub struct User {
    pub volume: Volume,
    io: DeviceIo,
    seat: Seat,
}

impl User {
    pub fn new(volume: Volume) -> User {
        let io = DeviceIo::new(volume.device()).expect("attaches");
        let seat = Grace::seat(volume.grace().expect("volumes have one"));
        User { volume, io, seat }
    }

    /// All mappings of a range, in a section that is left by `done`.
    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Vec<Mapping>, Status> {
        let may_block = MayBlock::on_worker();
        'again: loop {
            self.seat.enter();
            let (mut at, end) = (pos, pos + len);
            let mut all = Vec::new();
            while at < end {
                match self.volume.map(at, end - at, intent) {
                    Ok(mapping) => {
                        assert!(mapping.offset == at && mapping.len > 0 && mapping.len <= end - at);
                        at += mapping.len;
                        all.push(mapping);
                    }
                    Err(Status::Again) => {
                        self.seat.leave();
                        self.volume.map_blocking(at, end - at, intent, &may_block)?;
                        continue 'again;
                    }
                    Err(status) => {
                        self.seat.leave();
                        return Err(status);
                    }
                }
            }
            return Ok(all);
        }
    }

    pub fn write(&self, pos: u64, bytes: &[u8]) -> Result<(), Status> {
        let pieces = self.map(pos, bytes.len() as u64, Intent::Write)?;
        let phase = self.seat.count();
        self.seat.leave();
        let mut status = Status::Ok;
        for piece in &pieces {
            let from = (piece.offset - pos) as usize;
            if let Err(error) = self.io.write(piece.addr, &bytes[from..from + piece.len as usize]) {
                status = error;
            }
        }
        let done = WriteDone { pos, len: bytes.len() as u64, status, pieces: &pieces };
        let result = self.volume.end_write(done, &MayBlock::on_worker());
        self.seat.uncount(phase);
        result
    }

    pub fn read(&self, pos: u64, len: usize) -> Result<Vec<u8>, Status> {
        let pieces = self.map(pos, len as u64, Intent::Read)?;
        let phase = self.seat.count();
        self.seat.leave();
        let mut bytes = vec![0; len];
        for piece in pieces.iter().filter(|piece| piece.kind == MappingKind::Mapped) {
            let from = (piece.offset - pos) as usize;
            self.io.read(piece.addr, &mut bytes[from..from + piece.len as usize])?;
        }
        self.seat.uncount(phase);
        Ok(bytes)
    }

    pub fn punch(&self, pos: u64, len: u64) -> Result<(), Status> {
        self.volume.fallocate(FallocateMode::PunchHole, pos, len, &MayBlock::on_worker())
    }

    pub fn sync(&self) -> Result<(), Status> {
        if !self.volume.needs_sync() {
            return self.io.flush();
        }
        self.volume.sync(&MayBlock::on_worker()).unwrap_or(Ok(()))
    }
}

/// A fresh pool.
pub fn format(device: &Device, unit_bytes: u64) {
    let options = CreateOptions { unit_bytes, uuid: Some([7; 16]), overwrite: true, ..CreateOptions::default() };
    Pool::create(device, &options).expect("formats");
}

pub fn open(device: &Device) -> Pool {
    Pool::open(device, &OpenOptions::default()).expect("opens")
}

/// Bytes that tell where they belong.
pub fn pattern(tag: u64, len: usize) -> Vec<u8> {
    let word = |at: usize| tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64 / 8);
    (0..len).map(|at| word(at).to_le_bytes()[at % 8]).collect()
}

/// A random number, from another.
pub fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

pub fn shared<T>(value: T) -> Arc<T> {
    Arc::new(value)
}
