//! The synchronous write with which the mailing-list thread begins: the caller maps, submits, waits, and completes.
//!
//! Follows the kernel's `iomap_dio_rw` with a wait: it uses no CQE, no task work and no worker, whatever kind of space
//! a write goes to. The caller's thread does the completion work and may block. The engine has one slot, and does its
//! I/O in `submit`.
//!
//! * P1. One write at a time: nothing is in flight when `submit` returns.
//! * P2. A failed write returns an error. Its `end_write` is called only if the write has completion work to undo.

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

/// The engine. Its ring is attached to the device, not to the file, and stands for the bio that the kernel submits and
/// waits for.
pub struct Pwrite {
    file: Arc<dyn File>,
    device: SheaveEngine,
    bs: u32,
    /// Offset of the write that `submit` will do.
    next: Option<u64>,
    /// Result of the last write, until it is reaped.
    done: Option<i32>,
    /// Number of writes whose caller did the completion work.
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

/// Returns true if the file has work after the data, according to the rule that `sheave_iomap::decision` applies to a
/// ring's write.
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
mod tests {
    use sheave::{Buf, Ring, op, open_device};
    use sheave_base::status::Status;

    use super::super::extents::{BLOCK, Began, Extents};
    use super::*;

    const OPTS: EngineOpts =
        EngineOpts { depth: 1, bs: 4096, poll: true, stats: false, fixed_buffers: true, dsync: false, ioprio: 0 };

    fn file(began: Began) -> Arc<Extents> {
        let device = open_device("ram:size=1M").expect("a small device");
        Arc::new(Extents::new(&device, began))
    }

    /// Writes one block filled with `byte`. Returns the result.
    fn write(engine: &mut Pwrite, pos: u64, byte: u8) -> i32 {
        engine.buffer(0).fill(byte);
        engine.prep(0, true, pos);
        engine.submit(1).expect("submitted");
        let mut result = None;
        assert_eq!(engine.reap(|slot, res| result = Some((slot, res))), 1);
        assert_eq!(engine.reap(|_, _| panic!("P1: a second completion")), 0);
        let (slot, res) = result.expect("a result");
        assert_eq!(slot, 0);
        res
    }

    fn read(file: &Arc<Extents>, pos: u64) -> Vec<u8> {
        let mut ring = Ring::builder().entries(8).build().expect("a ring");
        let fd = ring.attach_file(file.clone()).expect("attached");
        ring.push(op::read(fd, Buf::zeroed(BLOCK as usize, 4096).expect("memory")).offset(pos)).expect("room");
        ring.submit_and_wait(1).expect("submitted");
        let done = ring.completions().next().expect("one completion");
        done.into_buf().expect("its buffer").to_vec()
    }

    #[test]
    fn what_was_written_reads_back_and_its_caller_has_ended_it() {
        for (began, ended) in [(Began::Written, 0), (Began::Unwritten, 2), (Began::Shared, 2), (Began::Empty, 2)] {
            let file = file(began);
            let mut engine =
                Pwrite::new(&(file.clone() as Arc<dyn File>), &OPTS, |builder| builder).expect("an engine");
            assert_eq!((write(&mut engine, 0, 7), write(&mut engine, BLOCK, 9)), (4096, 4096), "{began:?}");
            assert_eq!(engine.ended_here(), ended, "{began:?}");
            assert_eq!((read(&file, 0), read(&file, BLOCK)), (vec![7; 4096], vec![9; 4096]), "{began:?}");
            // The block is written now, so that a second write has no completion work.
            assert_eq!(write(&mut engine, BLOCK, 3), 4096);
            assert_eq!(engine.ended_here(), ended, "{began:?}");
            assert_eq!(read(&file, BLOCK), vec![3; 4096], "{began:?}");
        }
    }

    #[test]
    fn a_write_that_cannot_be_is_a_result() {
        let file = file(Began::Written);
        let mut engine = Pwrite::new(&(file.clone() as Arc<dyn File>), &OPTS, |builder| builder).expect("an engine");
        assert_eq!(write(&mut engine, file.bytes(), 1), Status::NoSpc.result());
        assert_eq!(write(&mut engine, 512, 1), Status::NotSupp.result(), "across two blocks");
        assert_eq!(write(&mut engine, 0, 1), 4096, "the engine goes on");
    }
}
