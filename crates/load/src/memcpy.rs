//! The peer of `ram:`: a plain loop that copies the same random blocks out of the same memory.
//!
//! The memory is the device's own: so both sides have the same pages, whatever the system, or the host of a virtual
//! machine, has behind them.
//!
//! The loop draws blocks with the generator of the run that it is compared with, into as many rotating buffers. It has
//! no ring, no queue and no latencies: only the copies, and a look at the clock every few thousand.

use std::hint::black_box;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::clock::Clock;
use sheave_drivers::ram::RamMemory;

use crate::error::LoadError;
use crate::pattern::Pattern;

/// Memory to copy from, and buffers to copy to.
pub struct Memcpy {
    memory: RamMemory,
    buffers: Buf,
    bs: usize,
    next: usize,
}

impl Memcpy {
    /// Copies from `memory` to `depth` buffers of `bs` bytes.
    pub fn new(memory: RamMemory, bs: u32, depth: u32) -> Result<Self, LoadError> {
        let bs = bs as usize;
        let no_memory =
            |err| LoadError::run(format!("no memory to copy to: {err}")).fix("use a smaller --depth or --bs");
        let mut buffers = Buf::zeroed(depth as usize * bs, 4096).map_err(no_memory)?;
        // Every page is touched before it counts.
        buffers.fill(1);
        Ok(Self { memory, buffers, bs, next: 0 })
    }

    /// Copies blocks for `time`; returns how many.
    pub fn run(&mut self, pattern: &mut Pattern, clock: &Clock, time: Duration) -> Result<u64, LoadError> {
        const BETWEEN_LOOKS: u64 = 4096;
        let end = clock.cycles() + clock.ns_to_cycles(time.as_nanos() as u64);
        let mut copied = 0;
        while clock.cycles() < end {
            for _ in 0..BETWEEN_LOOKS {
                let step = pattern.step();
                let pos = pattern.offset(step.block);
                if !self.memory.read(pos, &mut self.buffers[self.next..self.next + self.bs]) {
                    return Err(LoadError::run(format!("the device has no {} bytes at {pos}", self.bs)));
                }
                self.next += self.bs;
                if self.next == self.buffers.len() {
                    self.next = 0;
                }
            }
            black_box(&mut self.buffers);
            copied += BETWEEN_LOOKS;
        }
        Ok(copied)
    }
}
