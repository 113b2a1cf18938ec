//! The synchronous write with which the mailing-list thread begins: the caller maps, submits, waits, and finishes.
//!
//! Follows the kernel's `iomap_dio_rw` with a wait: no CQE, no task work and no worker, whatever kind of space a write
//! meets. The caller's thread does the completion work and may block. As an engine it has one slot, and does its I/O in
//! `submit`.
//!
//! * P1. One write at a time: nothing is in flight when `submit` returns.
//! * P2. A failed write returns an error; its `end_write` is called only when the write has completion work to undo.

use std::sync::Arc;

use sheave::RingBuilder;
use sheave_base::status::Status;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{File, Mapping, MappingKind, WriteDone};
use sheave_load::engine::Engine;
use sheave_load::looper::{Driven, Looper, Until};
use sheave_load::pace::Pace;
use sheave_load::pattern::Pattern;
use sheave_load::{EngineOpts, LoadError, SheaveEngine};

/// The engine. Its ring is attached to the device, not to the file, and replaces the bio that the kernel submits and
/// waits for.
pub struct Pwrite {
    file: Arc<dyn File>,
    device: SheaveEngine,
    bs: u32,
    /// Offset of the write that `submit` will do.
    next: Option<u64>,
    /// Result of the last write, until it is reaped.
    done: Option<i32>,
    /// Writes whose caller did the completion work.
    ended_here: u64,
}

impl Pwrite {
    /// Makes an engine of synchronous writes to a file, whose device is opened on the calling thread. `patience` sets
    /// how the ring waits.
    pub fn new(
        file: &Arc<dyn File>,
        opts: &EngineOpts,
        patience: impl FnOnce(RingBuilder) -> RingBuilder,
    ) -> Result<Pwrite, LoadError> {
        let below = EngineOpts { depth: 1, ioprio: 0, ..*opts };
        let device = SheaveEngine::built(patience(below.ring(1)), |ring| ring.attach(file.device()), &below)?;
        Ok(Pwrite { file: file.clone(), device, bs: opts.bs, next: None, done: None, ended_here: 0 })
    }

    /// Returns the number of writes whose caller did completion work.
    pub fn ended_here(&self) -> u64 {
        self.ended_here
    }

    /// Does one write, from the mapping to the completion work. Returns its result.
    fn write(&mut self, pos: u64) -> Result<i32, LoadError> {
        let mapping = match self.file.map(pos, u64::from(self.bs), Intent::Write) {
            Ok(mapping) if mapping.len >= u64::from(self.bs) => mapping,
            Ok(_) => return Ok(Status::NotSupp.result()),
            Err(status) => return Ok(status.result()),
        };
        self.device.prep(0, true, mapping.addr);
        self.device.submit(1)?;
        let mut res = None;
        while res.is_none() {
            let reaped = self.device.reap(|_, code| res = Some(code));
            if reaped == 0 {
                self.device.submit(1)?;
            }
        }
        let res = res.unwrap_or_default();
        Ok(if has_work(&mapping, pos + u64::from(self.bs), &*self.file) { self.end(pos, &mapping, res) } else { res })
    }

    /// Does the completion work on the caller's thread.
    fn end(&mut self, pos: u64, mapping: &Mapping, res: i32) -> i32 {
        self.ended_here += 1;
        let status = if res == self.bs as i32 { Status::Ok } else { Status::IoErr };
        let done = WriteDone::new(pos, u64::from(self.bs), status, std::slice::from_ref(mapping));
        match self.file.end_write(done, &MayBlock::on_worker()) {
            Ok(()) => res,
            Err(status) => status.result(),
        }
    }
}

/// Returns true if the file has work after the data, by the rule that `sheave_iomap::decision` applies to a ring's
/// write.
fn has_work(mapping: &Mapping, end: u64, file: &dyn File) -> bool {
    let plain = mapping.kind == MappingKind::Mapped && !mapping.flags.any(MapFlags::SHARED | MapFlags::NEW);
    !plain || end > file.size_bytes()
}

impl Driven for Pwrite {
    fn run(looper: &mut Looper<Self>, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        looper.turns(pattern, until, pace)
    }
}

impl Engine for Pwrite {
    fn expected(&self) -> i32 {
        self.bs as i32
    }

    #[inline]
    fn prep(&mut self, _slot: u32, _write: bool, offset: u64) {
        self.next = Some(offset);
    }

    #[inline]
    fn submit(&mut self, _wait: u32) -> Result<(), LoadError> {
        if let Some(pos) = self.next.take() {
            self.done = Some(self.write(pos)?);
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self, mut done: impl FnMut(u32, i32)) -> u32 {
        match self.done.take() {
            Some(res) => {
                done(0, res);
                1
            }
            None => 0,
        }
    }

    fn buffer(&mut self, _slot: u32) -> &mut [u8] {
        self.device.buffer(0)
    }
}

#[cfg(test)]
mod tests;
