//! Peer of `ram:`: a plain loop that copies the same random blocks out of the same memory.
//!
//! The memory is that of the device, so that both sides use the same pages, whatever backs these pages in the system or
//! in the host of a virtual machine.
//!
//! The loop draws blocks with the same generator as the run that it is compared with, into the same number of rotating
//! buffers. It has no ring, no queue and no latencies: only the copies, and a check of the clock and the stop flag
//! every 4,096 copies or 64 MiB.

use std::hint::black_box;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::clock::Clock;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
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
    /// Makes a loop that copies from `memory` to `depth` buffers of `bs` bytes.
    pub fn new(memory: RamMemory, bs: u32, depth: u32) -> Result<Self, LoadError> {
        let bs = bs as usize;
        let no_memory =
            |err| LoadError::run(format!("no memory to copy to: {err}")).fix("use a smaller --depth or --bs");
        let mut buffers = Buf::zeroed(depth as usize * bs, 4096).map_err(no_memory)?;
        // Writes every page, so that page faults are not measured.
        buffers.fill(1);
        Ok(Self { memory, buffers, bs, next: 0 })
    }

    /// Copies blocks for `time`, or until `stop` is set. Returns the number of copied blocks.
    pub fn run(
        &mut self,
        pattern: &mut Pattern,
        clock: &Clock,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<u64, LoadError> {
        const BYTES_BETWEEN_LOOKS: u64 = 64 << 20;
        let between_looks = (BYTES_BETWEEN_LOOKS / self.bs as u64).clamp(1, 4096);
        let end = clock.cycles() + clock.ns_to_cycles(time.as_nanos() as u64);
        let mut copied = 0;
        // Relaxed: the flag carries nothing but itself; the signal handler sets it.
        while clock.cycles() < end && !stop.load(Ordering::Relaxed) {
            for _ in 0..between_looks {
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
            copied += between_looks;
        }
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rw::Rw;

    #[test]
    fn it_ends_when_it_is_stopped() {
        let device = sheave_drivers::open_device("ram:size=1M").expect("a device");
        let memory = RamMemory::of(&device).expect("memory");
        let mut memcpy = Memcpy::new(memory, 4096, 1).expect("buffers");
        let mut pattern = Pattern::new(Rw::Read, 100, 0, 4096, 256, 1);
        let (clock, long) = (Clock::real(), Duration::from_secs(10));
        let copied = memcpy.run(&mut pattern, &clock, long, &AtomicBool::new(true)).expect("no copy failed");
        assert_eq!(copied, 0);
    }
}
