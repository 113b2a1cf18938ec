//! The loop of a verified run: fill, run, read back. It is not fast, because it checks every byte.
//!
//! * I1. A block has at most one I/O in flight ([`Generations`]), so its expected generation is known at submission.
//! * I2. A read buffer is poisoned before the read, so that a device that delivers nothing cannot pass off the bytes
//!   that an earlier read of the same block left there.
//! * I3. Nothing is in flight when a phase returns `Ok`.
//!
//! Called by each thread of `sheave bench --verify`, and by the checks of `sheave-lab`.

use std::sync::Arc;

use sheave_base::clock::Clock;
use sheave_base::sync::atomic::Ordering;

use super::block::{self, Identity};
use super::generations::{Generations, Holds};
use super::wrong::Wrong;
use crate::engine::Engine;
use crate::error::LoadError;
use crate::live::Counts;
use crate::looper::{IoError, Lane, Until};
use crate::pace::Pace;
use crate::pattern::{Pattern, Step};
use crate::slots::{InFlight, Slots};

/// Counts of the checks of a verified run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Number of blocks written before the run.
    pub filled: u64,
    /// Number of reads during the run whose block was checked.
    pub checked: u64,
    /// Number of blocks checked by the final pass.
    pub read_back: u64,
    /// Number of reads that could not be checked, because the last write of the block had failed.
    pub unknown: u64,
    /// Number of wrong blocks. The first one ends the run.
    pub wrong: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.filled += other.filled;
        self.checked += other.checked;
        self.read_back += other.read_back;
        self.unknown += other.unknown;
        self.wrong += other.wrong;
    }
}

/// I/O of a slot in flight, with the block contents that it must read or leaves.
#[derive(Clone, Copy)]
enum Job {
    Write { block: u64, generation: u32 },
    Read { block: u64, holds: Holds },
}

/// Next step of a phase.
enum Next {
    Io(Step),
    /// All blocks that may be chosen are in flight, so the loop waits for completions.
    Busy,
    End,
}

/// The loop of one thread.
pub struct Checker<E> {
    engine: E,
    clock: Clock,
    slots: Slots,
    jobs: Vec<Job>,
    done: Vec<(u32, i32)>,
    map: Generations,
    pattern: Pattern,
    run: u64,
    bs: u32,
    batch: u32,
    max_errors: u64,
    lane: Arc<Lane>,
    counts: Counts,
    tally: Tally,
    first_error: Option<IoError>,
    wrong: Option<Wrong>,
    during: &'static str,
}

/// Arguments of a checker.
pub struct Task {
    /// Blocks to work on.
    pub pattern: Pattern,
    /// Identity of the run.
    pub run: u64,
    /// Bytes of a block.
    pub bs: u32,
    pub depth: u32,
    /// Number of I/Os per submit.
    pub batch: u32,
    /// Largest number of failed I/Os with which the run goes on.
    pub max_errors: u64,
    /// Counters that the progress display reads.
    pub lane: Arc<Lane>,
}

/// A pass of a checker over its blocks.
#[derive(Clone, Copy, Debug)]
pub enum Pass {
    /// Write every block once.
    Fill,
    /// Do the work of the run, and check every read.
    Work,
    /// Read every block whose content is known.
    ReadBack,
}

/// An engine whose checked loop is compiled in its own crate, for the reason that [`Driven`](crate::Driven) gives.
pub trait Checked: Engine + Sized {
    /// Runs [`Checker::pass`], compiled in the engine's crate.
    ///
    /// # Errors
    ///
    /// Returns an error if the engine cannot go on. Failed I/Os and wrong blocks are only recorded.
    fn pass(checker: &mut Checker<Self>, pass: Pass, until: &Until, pace: &mut Pace) -> Result<(), LoadError>;
}

impl<E: Checked> Checker<E> {
    /// Writes every block once.
    ///
    /// # Errors
    ///
    /// Returns an error if the engine cannot go on. Failed I/Os and wrong blocks are only recorded.
    pub fn fill(&mut self, until: &Until) -> Result<(), LoadError> {
        E::pass(self, Pass::Fill, until, &mut Pace::Unlimited)
    }

    /// Does the work of the run, and checks every read.
    ///
    /// # Errors
    ///
    /// Returns an error if the engine cannot go on. Failed I/Os and wrong blocks are only recorded.
    pub fn work(&mut self, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        E::pass(self, Pass::Work, until, pace)
    }

    /// Reads every block whose content is known.
    ///
    /// # Errors
    ///
    /// Returns an error if the engine cannot go on. Failed I/Os and wrong blocks are only recorded.
    pub fn read_back(&mut self, until: &Until) -> Result<(), LoadError> {
        E::pass(self, Pass::ReadBack, until, &mut Pace::Unlimited)
    }
}

impl<E: Engine> Checker<E> {
    /// Makes a checker over blocks that this run has not written.
    pub fn new(engine: E, task: Task) -> Result<Self, LoadError> {
        let idle = Job::Read { block: 0, holds: Holds::Unwritten };
        Ok(Self {
            engine,
            clock: Clock::real(),
            slots: Slots::new(task.depth),
            jobs: vec![idle; task.depth as usize],
            done: Vec::with_capacity(task.depth as usize),
            map: Generations::new(task.pattern.blocks())?,
            pattern: task.pattern,
            run: task.run,
            bs: task.bs,
            batch: task.batch.min(task.depth),
            max_errors: task.max_errors,
            lane: task.lane,
            counts: Counts::default(),
            tally: Tally::default(),
            first_error: None,
            wrong: None,
            during: "a read",
        })
    }

    /// Does a pass. The program calls [`Checker::fill`] and the like instead, which are compiled in the engine's crate.
    ///
    /// # Errors
    ///
    /// Returns an error if the engine cannot go on. Failed I/Os and wrong blocks are only recorded.
    #[inline]
    pub fn pass(&mut self, pass: Pass, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        match pass {
            Pass::Fill => self.fill_pass(until, pace),
            Pass::Work => self.work_pass(until, pace),
            Pass::ReadBack => self.read_back_pass(until, pace),
        }
    }

    fn fill_pass(&mut self, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        let (mut next, blocks) = (0, self.pattern.blocks());
        self.phase("the fill", until, pace, |_, _| {
            next += 1;
            if next <= blocks { Next::Io(Step { block: next - 1, write: true }) } else { Next::End }
        })?;
        self.tally.filled = self.counts.writes;
        Ok(())
    }

    fn work_pass(&mut self, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        // All tries fail only if nearly all blocks of a small device are in flight.
        const TRIES: u32 = 64;
        self.phase("a read of the run", until, pace, |map, pattern| {
            for _ in 0..TRIES {
                let step = pattern.step();
                if map.claim(step.block) {
                    return Next::Io(step);
                }
            }
            Next::Busy
        })
    }

    fn read_back_pass(&mut self, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        let (mut next, blocks, before) = (0, self.pattern.blocks(), self.tally.checked);
        self.phase("the final read back", until, pace, |map, _| {
            while next < blocks {
                next += 1;
                if matches!(map.holds(next - 1), Holds::Generation(_)) {
                    return Next::Io(Step { block: next - 1, write: false });
                }
            }
            Next::End
        })?;
        self.tally.read_back = self.tally.checked - before;
        self.tally.checked = before;
        Ok(())
    }

    /// Returns the number of blocks that the final pass will read.
    pub fn known(&self) -> u64 {
        self.map.known()
    }

    /// Returns true if the run must stop.
    pub fn failed(&self) -> bool {
        self.wrong.is_some() || self.counts.errors > self.max_errors
    }

    /// Returns the counts of the current phase.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the counts of checks so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the first failed I/O and the wrong block, if there are any.
    pub fn into_findings(self) -> (Option<IoError>, Option<Wrong>) {
        (self.first_error, self.wrong)
    }

    fn phase(
        &mut self,
        during: &'static str,
        until: &Until,
        pace: &mut Pace,
        mut next: impl FnMut(&mut Generations, &mut Pattern) -> Next,
    ) -> Result<(), LoadError> {
        self.during = during;
        self.counts = Counts { errors: self.counts.errors, ..Counts::default() };
        self.lane.latency.reset();
        let start = self.clock.precise();
        let mut left = until.ios;
        let mut ended = false;
        while !ended && left > 0 && !self.failed() {
            self.lane.counters.publish(&self.counts);
            let out_of_time = until.runtime.is_some_and(|limit| self.clock.precise() >= start.after(limit));
            // Relaxed: the flag carries nothing but itself; the signal handler sets it.
            if out_of_time || until.stop.load(Ordering::Relaxed) {
                break;
            }
            let want = left.min(u64::from(self.batch.min(self.slots.free())));
            let now = self.clock.cycles();
            let mut prepped = 0;
            while prepped < want {
                let Some(due) = pace.due(now) else { break };
                match next(&mut self.map, &mut self.pattern) {
                    Next::Io(step) => self.prep(step, due),
                    Next::Busy => break,
                    Next::End => {
                        ended = true;
                        break;
                    }
                }
                prepped += 1;
            }
            left -= prepped;
            if self.slots.in_flight() == 0 {
                pace.rest(now);
                continue;
            }
            let full = self.slots.free() < self.batch || prepped == 0;
            self.turn(if full { 1 } else { 0 })?;
        }
        while self.slots.in_flight() > 0 {
            self.turn(1)?;
        }
        self.lane.counters.publish(&self.counts);
        Ok(())
    }

    fn prep(&mut self, step: Step, due: u64) {
        // Always succeeds: in a phase in block order the block is never in flight, and the random phase has claimed its
        // block already.
        self.map.claim(step.block);
        let offset = self.pattern.offset(step.block);
        let slot = self.slots.take(InFlight::new(due, step.write, offset));
        let buffer = self.engine.buffer(slot);
        self.jobs[slot as usize] = if step.write {
            let generation = self.map.next(step.block);
            block::seal(buffer, Identity { run: self.run, address: offset, generation });
            self.counts.writes += 1;
            Job::Write { block: step.block, generation }
        } else {
            buffer.fill(0xDB); // I2
            Job::Read { block: step.block, holds: self.map.holds(step.block) }
        };
        self.engine.prep(slot, step.write, offset);
    }

    /// Submits, reaps and checks.
    fn turn(&mut self, wait: u32) -> Result<(), LoadError> {
        self.engine.submit(wait)?;
        self.counts.submits += 1;
        let done = &mut self.done;
        let reaped = self.engine.reap(|slot, result| done.push((slot, result)));
        self.counts.reaps += u64::from(reaped > 0);
        let now = self.clock.cycles();
        while let Some((slot, result)) = self.done.pop() {
            let io = self.slots.put(slot);
            self.lane.latency.add(self.clock.cycles_to_ns(now.saturating_sub(io.stamp)), 1);
            self.counts.ios += 1;
            self.finish(slot, io, result);
        }
        Ok(())
    }

    fn finish(&mut self, slot: u32, io: InFlight, result: i32) {
        let good = result == self.engine.expected();
        if !good {
            self.counts.errors += 1;
            self.first_error.get_or_insert(IoError { offset: io.offset(), write: io.write(), result });
        }
        match self.jobs[slot as usize] {
            Job::Write { block, generation } => self.map.release(block, Some((generation, good))),
            Job::Read { block, holds } => {
                self.map.release(block, None);
                match holds {
                    Holds::Generation(generation) if good => self.check(slot, io.offset(), generation),
                    _ if good => self.tally.unknown += 1,
                    _ => {}
                }
            }
        }
    }

    fn check(&mut self, slot: u32, address: u64, generation: u32) {
        let expected = Identity { run: self.run, address, generation };
        let bytes = self.engine.buffer(slot);
        debug_assert_eq!(bytes.len(), self.bs as usize);
        self.tally.checked += 1;
        if let Err(found) = block::check(bytes, expected) {
            self.tally.wrong += 1;
            let wrong = Wrong::new(expected, found, bytes, self.during);
            self.wrong.get_or_insert(wrong);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sheave_base::sync::atomic::AtomicBool;

    use super::*;
    use crate::pace::Pace;
    use crate::rw::Rw;

    const BS: usize = 512;

    /// Fault that the memory has once, at its `at`-th write.
    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        Lose,
        Misdirect,
        Tear,
        Fail,
    }

    struct Memory {
        bytes: Vec<u8>,
        buffers: Vec<Vec<u8>>,
        queue: Vec<(u32, bool, u64)>,
        fault: Fault,
        at: u32,
        writes: u32,
    }

    impl Memory {
        fn new(blocks: usize, fault: Fault, at: u32) -> Self {
            Self { bytes: vec![0; blocks * BS], buffers: vec![vec![0; BS]; 8], queue: Vec::new(), fault, at, writes: 0 }
        }

        fn write(&mut self, slot: u32, offset: usize) -> i32 {
            self.writes += 1;
            let fault = if self.writes == self.at { self.fault } else { Fault::None };
            let (place, len) = match fault {
                Fault::None => (offset, BS),
                Fault::Lose => return BS as i32,
                Fault::Misdirect => ((offset + BS) % self.bytes.len(), BS),
                Fault::Tear => (offset, BS / 2),
                Fault::Fail => (offset, BS / 4),
            };
            self.bytes[place..place + len].copy_from_slice(&self.buffers[slot as usize][..len]);
            if fault == Fault::Fail { -5 } else { BS as i32 }
        }
    }

    impl Checked for Memory {
        fn pass(checker: &mut Checker<Self>, pass: Pass, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
            checker.pass(pass, until, pace)
        }
    }

    impl Engine for Memory {
        fn expected(&self) -> i32 {
            BS as i32
        }
        fn prep(&mut self, slot: u32, write: bool, offset: u64) {
            assert!(self.queue.iter().all(|io| io.2 != offset), "two I/Os on one block in flight");
            self.queue.push((slot, write, offset));
        }
        fn submit(&mut self, _wait: u32) -> Result<(), LoadError> {
            Ok(())
        }
        fn reap(&mut self, mut done: impl FnMut(u32, i32)) -> u32 {
            // Completes the newest first and keeps some for the next time, because completions come in any order.
            let keep = if self.queue.len() > 2 { 1 } else { 0 };
            let ready = self.queue.split_off(keep);
            for &(slot, write, offset) in ready.iter().rev() {
                let offset = offset as usize;
                let result = if write {
                    self.write(slot, offset)
                } else {
                    self.buffers[slot as usize].copy_from_slice(&self.bytes[offset..offset + BS]);
                    BS as i32
                };
                done(slot, result);
            }
            ready.len() as u32
        }
        fn buffer(&mut self, slot: u32) -> &mut [u8] {
            &mut self.buffers[slot as usize]
        }
    }

    fn until(ios: u64) -> Until {
        Until { runtime: Some(Duration::from_secs(20)), ios, stop: Arc::new(AtomicBool::new(false)) }
    }

    fn run(rw: Rw, blocks: usize, fault: Fault, at: u32) -> Checker<Memory> {
        let task = Task {
            pattern: Pattern::new(rw, 50, 0, BS as u32, blocks as u64, 9),
            run: 42,
            bs: BS as u32,
            depth: 8,
            batch: 4,
            max_errors: if fault == Fault::Fail { 1 } else { 0 },
            lane: Arc::new(Lane::default()),
        };
        let mut checker = Checker::new(Memory::new(blocks, fault, at), task).expect("a few blocks fit");
        if rw.reads() {
            checker.fill(&until(u64::MAX)).expect("memory");
        }
        if !checker.failed() {
            checker.work(&until(2000), &mut Pace::Unlimited).expect("memory");
        }
        if !checker.failed() && rw.writes() {
            checker.read_back(&until(u64::MAX)).expect("memory");
        }
        checker
    }

    #[test]
    fn a_good_device_passes() {
        for rw in [Rw::Randread, Rw::Randwrite, Rw::Randrw, Rw::Read, Rw::Write] {
            let checker = run(rw, 100, Fault::None, 0);
            let tally = checker.tally();
            assert_eq!((tally.wrong, tally.unknown, checker.counts().errors), (0, 0, 0), "{rw:?}");
            assert_eq!(tally.filled, if rw.reads() { 100 } else { 0 });
            assert_eq!(tally.read_back, if rw.writes() { 100 } else { 0 });
        }
    }

    #[test]
    fn fewer_blocks_than_slots_still_make_progress() {
        let checker = run(Rw::Randrw, 3, Fault::None, 0);
        assert_eq!(checker.tally().wrong, 0);
        assert_eq!(checker.tally().read_back, 3);
    }

    #[test]
    fn one_lost_misdirected_or_torn_write_is_found() {
        for fault in [Fault::Lose, Fault::Misdirect, Fault::Tear] {
            // The fault happens during the fill, so that a read must find it, or near the end, so that no later write
            // hides it.
            let writes = run(Rw::Randrw, 20, Fault::None, 0).engine.writes;
            for (rw, at) in [(Rw::Randread, 7), (Rw::Randrw, writes - 1)] {
                let checker = run(rw, 20, fault, at);
                assert!(checker.tally().wrong > 0, "{rw:?} missed it");
                let (error, wrong) = checker.into_findings();
                let report = wrong.expect("wrong > 0").to_string();
                assert_eq!(error, None);
                assert!(report.contains("expected: address") && report.contains("00000000  "), "{report}");
            }
        }
    }

    #[test]
    fn the_last_write_of_a_block_is_checked_too() {
        // The last write of the run is lost, so only the final pass can find that.
        let checker = run(Rw::Write, 100, Fault::Lose, 2000);
        assert_eq!(checker.tally().wrong, 1);
    }

    #[test]
    fn after_a_failed_write_the_block_may_hold_anything() {
        let checker = run(Rw::Randrw, 20, Fault::Fail, 7);
        let (counts, tally) = (checker.counts(), checker.tally());
        assert_eq!((counts.errors, tally.wrong), (1, 0));
    }
}
