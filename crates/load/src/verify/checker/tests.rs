//! Tests of the checker over devices of memory with one fault each.

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
        // Newest first, and some are left for the next time: completions come in any order.
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
        // During the fill, so that a read must see it; or near the end, so that no later write hides it.
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
    // The only write of the last block that is written is lost: only the read back can see it.
    let checker = run(Rw::Write, 100, Fault::Lose, 2000);
    assert_eq!(checker.tally().wrong, 1);
}

#[test]
fn after_a_failed_write_the_block_may_hold_anything() {
    let checker = run(Rw::Randrw, 20, Fault::Fail, 7);
    let (counts, tally) = (checker.counts(), checker.tally());
    assert_eq!((counts.errors, tally.wrong), (1, 0));
}
