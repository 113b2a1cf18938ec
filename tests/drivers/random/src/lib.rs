//! Drivers and files that give wrong answers on purpose ("liars"), for programs that test a ring with them.
//!
//! Draws each answer from a seed. Some are answers that no correct driver or file gives. The liars are safe code, so
//! whatever they answer, no memory may be touched that is not theirs. Used by `tests/random.rs`.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sheave::drivers::{
    Child, Memory, Open, Polled, Request, RequestId, SafeDriver, SafeQueue, Step, WaitsFor, Waker, stacked,
};
use sheave::files::{Intent, MapFlags, Mapping, MappingKind, MayBlock, SummedDone, WriteDone};
use sheave::{Buf, Capabilities, Device, DeviceError, File, Limits, Op, Status};

/// Message of the panic of a liar.
pub const LIE: &str = "a driver or file that panics on purpose";
/// Size of every device and file.
pub const SIZE: u64 = 1 << 20;

/// Pseudo-random numbers from a seed, for any thread.
#[derive(Clone, Debug)]
struct Draw(Arc<AtomicU64>);

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw(Arc::new(AtomicU64::new(seed)))
    }

    /// Returns a number below `end`.
    fn below(&self, end: u64) -> u64 {
        let x = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % end
    }

    fn status(&self) -> Status {
        [Status::Ok, Status::Ok, Status::IoErr, Status::Again, Status::NoSpc][self.below(5) as usize]
    }
}

/// A driver that ends requests it was not given, moves bytes out of range, keeps requests, or panics.
#[derive(Debug)]
struct Liar(Draw);

/// Makes a lying device on top of another one.
#[must_use]
pub fn liar(seed: u64, lower: &Device) -> Device {
    stacked("liar", Liar(Draw::new(seed)), vec![lower.clone()])
}

impl SafeDriver for Liar {
    fn limits(&self) -> Limits {
        Limits::default()
            .max_sectors(1 << self.0.below(12))
            .max_segments(self.0.below(200) as u16)
            .queue_depth(self.0.below(40) as u16)
            .max_discard_sectors(self.0.below(1 << 32) as u32)
            .max_write_zeroes_sectors(self.0.below(64) as u32)
    }

    fn capabilities(&self) -> Capabilities {
        let yes = |of| self.0.below(of) == 0;
        let (fua, volatile_cache, discard, polled) = (yes(2), yes(2), yes(2), yes(2));
        Capabilities::default()
            .fua(fua)
            .volatile_cache(volatile_cache)
            .discard(discard)
            .write_zeroes(yes(2))
            .polled(polled)
    }

    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn open_queue(&self, open: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        Ok(Box::new(LiarQueue { draw: self.0.clone(), seen: Vec::new(), waker: open.waker() }))
    }
}

#[derive(Debug)]
struct LiarQueue {
    draw: Draw,
    /// Ids of requests, also of requests that ended long ago.
    seen: Vec<RequestId>,
    waker: Waker,
}

impl LiarQueue {
    fn lie(&mut self, rq: &mut Request<'_>) -> Step {
        let draw = self.draw.clone();
        let mut bytes = [0x5A; 5000];
        let (offset, len) = (draw.below(9000) as usize, draw.below(5000) as usize);
        match draw.below(12) {
            0 => _ = rq.copy_to(offset, &mut bytes[..len]),
            1 => _ = rq.copy_from(offset, &bytes[..len]),
            2 => self.waker.wake(),
            3 => {
                let waker = self.waker.clone();
                std::thread::spawn(move || waker.wake());
            }
            4 => rq.forget_errors(),
            5 if draw.below(40) == 0 => panic!("{LIE}"),
            6..8 => {
                let memory = match draw.below(3) {
                    0 => Memory::OfRequest(offset..offset + len),
                    1 => Buf::zeroed(len & !511, 512).map_or(Memory::None(0), Memory::Own),
                    _ => Memory::None(len as u32),
                };
                let (op, sector) = (Op::ALL[draw.below(5) as usize], draw.below(2 * SIZE / 512));
                let (lower, fua, number) = (draw.below(2) as usize, draw.below(2) == 0, draw.below(9) as u32);
                _ = rq.send(Child::new(lower, op, sector, memory).fua(fua).number(number));
            }
            _ => {}
        }
        if draw.below(3) == 0 { Step::Wait } else { Step::End(draw.status()) }
    }
}

impl SafeQueue for LiarQueue {
    fn start(&mut self, rq: &mut Request<'_>) -> Step {
        if self.seen.len() < 256 {
            self.seen.push(rq.id());
        }
        self.lie(rq)
    }

    fn poll(&mut self, polled: &mut Polled<'_>) {
        for _ in 0..3.min(self.seen.len()) {
            let id = self.seen[self.draw.below(self.seen.len() as u64) as usize];
            if let Some(mut rq) = polled.get(id)
                && let Step::Wait = self.lie(&mut rq)
            {
                continue;
            }
            polled.end(id, self.draw.status());
            polled.end(id, Status::Ok);
        }
    }

    fn waits_for(&self) -> WaitsFor {
        WaitsFor::Waker
    }
}

/// A file whose mappings are beyond its end and its device, and whose bookkeeping fails or panics.
#[derive(Debug)]
pub struct LyingFile {
    draw: Draw,
    device: Device,
}

impl LyingFile {
    /// Makes a lying file over a device.
    #[must_use]
    pub fn new(seed: u64, device: &Device) -> LyingFile {
        LyingFile { draw: Draw::new(seed), device: device.clone() }
    }

    fn said(&self) -> Result<(), Status> {
        match self.draw.below(60) {
            0 => panic!("{LIE}"),
            1..6 => Err(self.draw.status()),
            _ => Ok(()),
        }
    }
}

impl File for LyingFile {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.draw.below(2 * SIZE)
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        self.said()?;
        let kind = [MappingKind::Hole, MappingKind::Unwritten, MappingKind::Mapped][self.draw.below(3) as usize];
        let odd = self.draw.below(4) == 0;
        let offset = if odd { self.draw.below(2 * SIZE) } else { pos };
        let len = if odd { self.draw.below(2 * SIZE) } else { len };
        let addr = self.draw.below(2 * SIZE) & if odd { u64::MAX } else { !4095 };
        Ok(Mapping::new(kind, offset, len, addr).flags(MapFlags::from_bits(self.draw.below(256) as u8)))
    }

    fn end_summed(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        let (from, len) = (self.draw.below(9000), self.draw.below(9000));
        let mut seen = 0;
        done.memory.each_block(from, len, 512, &mut |_, bytes| {
            seen += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            true
        });
        if !done.write {
            done.memory.put(from, &[7; 600]);
        }
        std::hint::black_box(seen);
        self.said()
    }

    fn end_write(&self, _: WriteDone<'_>, _: &MayBlock<'_>) -> Result<(), Status> {
        self.said()
    }

    fn sync(&self, _: &MayBlock<'_>) -> Option<Result<(), Status>> {
        (self.draw.below(2) == 0).then(|| self.said())
    }
}
