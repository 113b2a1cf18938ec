//! The same loop of I/O through each interface of a ring: raw SQEs, buffers that operations own, registered buffers.
//! `tests/budgets` counts the instructions of each, and limits the safe ones relative to the raw one.
//!
//! ```sh
//! cargo run --release --example interfaces -- owned null:size=1T 32 10000000
//! ```
//!
//! Does not measure. Each loop keeps DEPTH reads of 4 KiB in flight, like a program that processes each of them: it
//! reaps all completions, and submits as many reads again.
#![allow(unsafe_code)] // The raw loop fills SQEs in place, which carry addresses.

use std::error::Error;
use std::time::Instant;

use sheave::raw::{Sqe, opcode};
use sheave::{Buf, Fd, Ring, op, open_device};

const USAGE: &str = "usage: interfaces raw|owned|fixed SPEC DEPTH IOS";

/// Bytes of one read.
const BLOCK: usize = 4096;

/// A ring with one device, the offsets to read from, and the number of reads.
struct Loop {
    ring: Ring,
    fd: Fd,
    depth: u32,
    ios: u64,
    blocks: u64,
    last: u64,
}

impl Loop {
    fn new(spec: &str, depth: u32, ios: u64) -> Result<Loop, Box<dyn Error>> {
        let device = open_device(spec)?;
        let blocks = device.size_bytes() / BLOCK as u64;
        let mut ring = Ring::builder().entries(depth).build()?;
        let fd = ring.attach(&device)?;
        Ok(Loop { ring, fd, depth, ios, blocks: blocks.next_power_of_two().min(blocks), last: 0 })
    }

    /// Returns the next offset of a fixed pseudo-random sequence.
    fn offset(&mut self) -> u64 {
        self.last = self.last.wrapping_add(0x9E37_79B9);
        (self.last & (self.blocks - 1)) * BLOCK as u64
    }

    /// Reads with SQEs filled in place, which carry addresses within one buffer.
    fn raw(&mut self) -> Result<u64, Box<dyn Error>> {
        let mut memory = Buf::zeroed(BLOCK * self.depth as usize, BLOCK)?;
        let base = memory.as_mut_ptr() as u64;
        let mut spare: Vec<u64> = (0..self.depth.into()).collect();
        let (mut sent, mut ended, mut bytes) = (0, 0, 0);
        while ended < self.ios {
            while sent < self.ios
                && let Some(place) = spare.pop()
            {
                let (off, fd) = (self.offset(), self.fd.raw());
                // SAFETY: the memory lives until every read has ended, and a place is in one read at a time.
                let sqe = unsafe { self.ring.get_sqe() }.ok_or("the SQ is full")?;
                let (addr, len) = (base + place * BLOCK as u64, BLOCK as u32);
                *sqe = Sqe { opcode: opcode::READ, fd, off, addr, len, user_data: place, ..Sqe::default() };
                sent += 1;
            }
            self.ring.submit_and_wait(1)?;
            for done in self.ring.completions() {
                bytes += u64::from(done.result()?);
                spare.push(done.user_data);
                ended += 1;
            }
        }
        Ok(bytes)
    }

    /// Reads with operations that own their buffers.
    fn owned(&mut self) -> Result<u64, Box<dyn Error>> {
        let mut spare = (0..self.depth).map(|_| Buf::zeroed(BLOCK, BLOCK)).collect::<Result<Vec<_>, _>>()?;
        let (mut sent, mut ended, mut bytes) = (0, 0, 0);
        while ended < self.ios {
            while sent < self.ios
                && let Some(buf) = spare.pop()
            {
                let offset = self.offset();
                self.ring.push(op::read(self.fd, buf).offset(offset))?;
                sent += 1;
            }
            self.ring.submit_and_wait(1)?;
            for done in self.ring.completions() {
                bytes += u64::from(done.result()?);
                spare.extend(done.into_buf());
                ended += 1;
            }
        }
        Ok(bytes)
    }

    /// Reads into registered buffers.
    fn fixed(&mut self) -> Result<u64, Box<dyn Error>> {
        let bufs = (0..self.depth).map(|_| Buf::zeroed(BLOCK, BLOCK)).collect::<Result<_, _>>()?;
        self.ring.register_buffers(bufs)?;
        let mut spare: Vec<u16> = (0..self.depth as u16).collect();
        let (mut sent, mut ended, mut bytes) = (0, 0, 0);
        while ended < self.ios {
            while sent < self.ios
                && let Some(buf) = spare.pop()
            {
                let offset = self.offset();
                self.ring.push(op::read_fixed(self.fd, buf, 0..BLOCK).offset(offset).user_data(buf.into()))?;
                sent += 1;
            }
            self.ring.submit_and_wait(1)?;
            for done in self.ring.completions() {
                bytes += u64::from(done.result()?);
                spare.push(done.user_data as u16);
                ended += 1;
            }
        }
        Ok(bytes)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [how, spec, depth, ios] = args.as_slice() else { return Err(USAGE.into()) };
    let mut work = Loop::new(spec, depth.parse()?, ios.parse()?)?;
    let start = Instant::now();
    let bytes = match how.as_str() {
        "raw" => work.raw()?,
        "owned" => work.owned()?,
        "fixed" => work.fixed()?,
        _ => return Err(USAGE.into()),
    };
    let ns = start.elapsed().as_nanos() as f64 / work.ios.max(1) as f64;
    if bytes != work.ios * BLOCK as u64 {
        return Err(format!("{bytes} bytes were read, not {} times {BLOCK}", work.ios).into());
    }
    println!("{how}: {} reads, {ns:.1} ns each", work.ios);
    Ok(())
}
