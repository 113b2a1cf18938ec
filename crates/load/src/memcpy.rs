//! The peer of `ram:`: a plain loop that copies the same random blocks out of memory.
//!
//! The same generator, the same number of rotating buffers, the same kind of memory (an anonymous mapping, in huge
//! pages where the system gives them, written once). No ring, no queue, no latencies: only the copies, and the clock
//! looked at every few thousand.
#![allow(unsafe_code)] // Asking for huge pages takes a raw pointer.

use std::hint::black_box;
use std::time::Duration;

use sheave::base::buf::Buf;
use sheave::base::clock::Clock;

use crate::error::LoadError;
use crate::pattern::Pattern;

/// Where the area starts on, as the ram driver's does.
const HUGE_PAGE: usize = 2 << 20;

/// Memory to copy from, and buffers to copy to.
pub struct Memcpy {
    area: Buf,
    buffers: Buf,
    bs: usize,
    next: usize,
}

impl Memcpy {
    /// `range` bytes to copy from and `depth` buffers of `bs` bytes.
    pub fn new(range: u64, bs: u32, depth: u32) -> Result<Self, LoadError> {
        let bs = bs as usize;
        let no_memory = |err| {
            LoadError::run(format!("no memory to copy from: {err}"))
                .fix("use a smaller device, or --range to use a part of it")
        };
        let mut area = Buf::zeroed(range as usize, HUGE_PAGE).map_err(no_memory)?;
        ask_for_huge_pages(&mut area);
        let mut buffers = Buf::zeroed(depth as usize * bs, 4096).map_err(no_memory)?;
        // Every page is touched before it counts, with something other than the shared page of zeroes.
        for (at, word) in area.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(at as u64).to_le_bytes());
        }
        buffers.fill(1);
        Ok(Self { area, buffers, bs, next: 0 })
    }

    /// Copies blocks for `time`; returns how many.
    pub fn run(&mut self, pattern: &mut Pattern, clock: &Clock, time: Duration) -> u64 {
        const BETWEEN_LOOKS: u64 = 4096;
        let end = clock.cycles() + clock.ns_to_cycles(time.as_nanos() as u64);
        let mut copied = 0;
        while clock.cycles() < end {
            for _ in 0..BETWEEN_LOOKS {
                let step = pattern.step();
                let from = pattern.offset(step.block) as usize;
                let source = &self.area[from..from + self.bs];
                self.buffers[self.next..self.next + self.bs].copy_from_slice(source);
                self.next += self.bs;
                if self.next == self.buffers.len() {
                    self.next = 0;
                }
            }
            black_box(&mut self.buffers);
            copied += BETWEEN_LOOKS;
        }
        copied
    }
}

/// The ram driver asks for them, so its peer does too.
fn ask_for_huge_pages(area: &mut Buf) {
    let advice = rustix::mm::Advice::LinuxHugepage;
    // SAFETY: the mapping is `area`'s own; this advice does not change what it holds.
    let taken = unsafe { rustix::mm::madvise(area.as_mut_ptr().cast(), area.len(), advice) };
    // A kernel without huge pages has none for the ram driver either.
    let _ = taken;
}
