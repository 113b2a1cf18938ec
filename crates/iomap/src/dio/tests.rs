//! The engine on raw devices: its checks, its memory, its references. Files with mappings are in `mapped`.

mod mapped;
#[path = "../../../blk/tests/support/mod.rs"]
mod support;

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::request::RQ_FUA;

use super::*;
use crate::completion_plan::{CompletionPlan, MayBlock};
use crate::file::{File, RawFile, SummedDone, WriteDone};
use crate::kiocb::{IOCB_DSYNC, IOCB_SYNC, IOCB_USE_POS, Kiocb};
use crate::mapping::{Intent, Mapping, MappingKind};
use sheave_base::sync::Arc;
use sheave_blk::bio::{BVec, NO_FIXED_BUF};
use sheave_drivers::open_device;
use support::{Puppet, Rig};

const MIB: u64 = 1 << 20;
/// An aligned address that the device accepts.
const BASE: usize = 1 << 24;

const EBADF: i32 = -9;
const EAGAIN: i32 = -11;
const EFAULT: i32 = -14;
const EINVAL: i32 = -22;
const ENOSPC: i32 = -28;

/// One file, open on one ring; does one I/O at a time.
struct Bench {
    rig: Rig,
    file: OpenFile,
    kiocb: Kiocb,
    scratch: Scratch,
    vecs: Vec<BVec>,
    /// The steps of the completion, in order.
    steps: Vec<Next>,
}

impl Bench {
    fn new(device: &Device) -> Bench {
        Bench::with_file(64, device, Arc::new(RawFile::new(device.clone())))
    }

    fn with_file(bios: u32, device: &Device, file: Arc<dyn File>) -> Bench {
        let rig = Rig::with(bios, true, &[device]);
        let file = OpenFile::new(file, rig.devices[0].0, &rig.ctx, None);
        Bench { rig, file, kiocb: Kiocb::default(), scratch: Scratch::default(), vecs: Vec::new(), steps: Vec::new() }
    }

    fn issue(&mut self, flags: u16, pos: u64, vecs: &[BVec]) -> Issued {
        let len = vecs.iter().map(|vec| vec.len() as u32).sum();
        self.kiocb = Kiocb { pos, len, flags, ..Kiocb::default() };
        self.issue_again(vecs)
    }

    /// Issues the I/O again, in a section of its own as in a batch.
    fn issue_again(&mut self, vecs: &[BVec]) -> Issued {
        self.vecs = vecs.to_vec();
        let entered = self.file.enter();
        let issued = issue(&mut self.rig.ctx, &self.file, &mut self.kiocb, 7, (vecs, NO_FIXED_BUF), &mut self.scratch);
        if entered {
            self.file.leave();
        }
        issued
    }

    /// Ends all bios with these statuses, in the order in which they were sent. Returns true for each that was the
    /// last reference.
    fn end_with(&mut self, statuses: &[Status]) -> Vec<bool> {
        self.rig.drain();
        let ended = self.rig.take_ended();
        assert_eq!(ended.len(), statuses.len(), "one bio a status");
        assert!(ended.iter().all(|(owner, status)| *owner == 7 && status.is_ok()));
        statuses.iter().map(|&status| end_bio(&mut self.kiocb, status)).collect()
    }

    /// Runs the I/O to its end like a ring with a worker, and returns the result.
    fn run(&mut self, issued: Issued) -> i32 {
        let mut issued = issued;
        loop {
            match issued {
                Issued::Done(res) => return res,
                Issued::Queued => {}
                other => panic!("nothing is used up and nothing blocks: {other:?}"),
            }
            self.rig.drain();
            let ended = self.rig.take_ended();
            let last = ended.iter().filter(|&&(_, status)| end_bio(&mut self.kiocb, status)).count();
            assert_eq!(last, 1, "an I/O ends once");
            match self.complete() {
                Synced::Done(res) => return res,
                Synced::Flush => issued = issue_flush(&mut self.rig.ctx, &self.file, &mut self.kiocb, 7),
            }
        }
    }

    /// Runs the steps of a completion on this thread.
    fn complete(&mut self) -> Synced {
        let token = MayBlock::on_worker();
        let mut step = next(&self.kiocb);
        if step == Next::Sum {
            assert!(self.kiocb.plan >= CompletionPlan::Task, "not where completions are reaped");
            self.steps.push(step);
            let (file, pieces) = (&*self.file.file, self.scratch.pieces());
            let res = end_summed(file, &self.kiocb, pieces, &self.vecs)
                .unwrap_or_else(|| end_summed_blocking(file, &self.kiocb, pieces, &self.vecs, &token));
            step = summed(&mut self.kiocb, res);
        }
        if step == Next::Work {
            assert_eq!(self.kiocb.plan, CompletionPlan::Worker, "what blocks was planned so");
            self.steps.push(step);
            let res = end_write(&*self.file.file, &self.kiocb, self.scratch.pieces(), &token);
            step = worked(&mut self.kiocb, res);
        }
        self.steps.push(step);
        self.file.uncount(&mut self.kiocb);
        match step {
            Next::Sum | Next::Work => panic!("each is done once"),
            Next::Sync => {
                assert_eq!(self.kiocb.plan, CompletionPlan::Worker, "what blocks was planned so");
                match sync(&*self.file.file, &token) {
                    Synced::Done(0) => Synced::Done(self.kiocb.result()),
                    other => other,
                }
            }
            Next::Done(res) => Synced::Done(res),
        }
    }
}

/// Makes a vector of memory at an address, of the given length.
#[allow(unsafe_code)]
fn at(base: usize, len: usize) -> BVec {
    // SAFETY: the null device and the test's own drivers touch no memory; where a read is answered with zeroes, the
    // address is that of a buffer of the test.
    unsafe { BVec::new(base, len) }
}

/// Requests that the driver has seen: operation, first byte, bytes, and FUA.
fn seen(puppet: &Puppet) -> Vec<(Op, u64, u32, bool)> {
    let script = puppet.script();
    script.seen.iter().map(|rq| (rq.op, rq.sector << 9, rq.bytes, rq.flags & RQ_FUA != 0)).collect()
}

#[test]
fn the_checks_in_their_order() {
    let puppet = Puppet::new().limits(|limits| limits.dma_alignment = 4);
    let size = puppet.size;
    let mut bench = Bench::new(&puppet.device());
    let good = at(BASE, 4096);
    // Flags, position, memory, result. Rows also fail later checks, which must not matter.
    let table: &[(u16, u64, BVec, i32)] = &[
        (0, u64::MAX, at(BASE + 1, 0), EINVAL),
        (IOCB_WRITE, i64::MAX as u64, at(BASE + 1, 1), EINVAL),
        (0, i64::MAX as u64 - 4095, good, EINVAL),
        (0, 1, at(1, 0), 0),
        (IOCB_WRITE, size + 1, at(1, 0), 0),
        (0, size, at(1, 1), 0),
        (0, size + 511, at(1, 1), 0),
        (IOCB_WRITE, size, at(1, 1), ENOSPC),
        (0, i64::MAX as u64 - 4096, good, 0),
        (0, 1, good, EINVAL),
        (0, 256, at(8, 4096), EINVAL),
        (0, 512, at(8, 511), EINVAL),
        (IOCB_WRITE, 512, at(BASE + 2, 512), EINVAL),
        (0, size - 512, at(BASE + 1, 4096), EINVAL),
        (0, 512, at(4, 512), EFAULT),
        (IOCB_WRITE, 512, at(4092, 512), EFAULT),
        (0, size - 1024, at(64, 4096), EFAULT),
    ];
    for &(flags, pos, vec, answer) in table {
        assert_eq!(bench.issue(flags, pos, &[vec]), Issued::Done(answer), "{flags} {pos} {vec:?}");
        let two = [at(BASE, 0), vec];
        assert_eq!(bench.issue(flags, pos, &two), Issued::Done(answer), "vectors: {flags} {pos} {vec:?}");
    }
    assert_eq!(seen(&puppet), [], "nothing wrong reaches the device");
    assert!(bench.rig.ctx.is_idle());
}

#[test]
fn a_device_that_may_not_be_written_says_so_before_all_else() {
    let puppet = Puppet::new().caps(|caps| caps.read_only = true);
    let mut bench = Bench::new(&puppet.device());
    assert!(bench.file.is_read_only());
    for (pos, vec) in [(0, at(BASE, 512)), (u64::MAX, at(1, 0)), (1, at(3, 7))] {
        assert_eq!(bench.issue(IOCB_WRITE, pos, &[vec]), Issued::Done(EBADF));
    }
    let read = bench.issue(0, 0, &[at(BASE, 512)]);
    assert_eq!(bench.run(read), 512);
    assert!(PlainWay::new(&bench.file, IOCB_WRITE, NO_FIXED_BUF).is_none());
}

#[test]
fn what_crosses_the_end_is_cut_with_its_memory() {
    for (flags, op) in [(0, Op::Read), (IOCB_WRITE, Op::Write)] {
        let puppet = Puppet::new();
        let mut bench = Bench::new(&puppet.device());
        let end = puppet.size;
        for vecs in [
            vec![at(BASE, 4096)],
            vec![at(BASE, 512), at(BASE + 8192, 3584)],
            vec![at(BASE, 0), at(BASE, 1024), at(BASE + 8192, 512), at(BASE + 16384, 512)],
            // The part that is cut off may be misaligned: it is not checked.
            vec![at(BASE, 1536), at(BASE + 8191, 77)],
        ] {
            let issued = bench.issue(flags, end - 1536, &vecs);
            assert_eq!(bench.run(issued), 1536);
            let script = puppet.script();
            let last = script.seen.last().expect("a request");
            assert_eq!((last.op, last.sector << 9, last.bytes), (op, end - 1536, 1536));
            assert_eq!(last.vecs.iter().map(|vec| vec.len()).sum::<usize>(), 1536);
            assert_eq!(last.vecs[0].base(), BASE);
        }
    }
}

#[test]
fn adjacent_vectors_are_one_run_of_memory() {
    let mut bench = Bench::new(&Puppet::new().limits(|limits| limits.dma_alignment = 512).device());
    let odd = [at(BASE, 100), at(BASE + 100, 412), at(BASE + 4096, 512)];
    let issued = bench.issue(0, 0, &odd);
    assert_eq!(bench.run(issued), 1024, "two runs of 512");
    for wrong in [
        [at(BASE, 100), at(BASE + 101, 412), at(BASE + 4096, 512)],
        [at(BASE, 512), at(BASE + 4096, 256), at(BASE + 8192, 256)],
        [at(BASE, 512), at(BASE + 1024, 512), at(BASE + 4096 + 256, 512)],
        [at(BASE, 512), at(BASE + 512, 256), at(BASE + 8192, 256)],
    ] {
        let len: usize = wrong.iter().map(|vec| vec.len()).sum();
        assert_eq!(bench.issue(0, 0, &wrong), Issued::Done(EINVAL), "{wrong:?} of {len}");
    }
}

#[test]
fn a_driver_that_completes_inside_submit_ends_nothing_there() {
    // `null:` finishes a request within the submission. The owner is called only by the poll: until then `issue` may
    // still write to the kiocb.
    let mut bench = Bench::new(&open_device("null:").unwrap());
    for vecs in [vec![at(BASE, 4096)], vec![at(BASE, 4096); 3]] {
        assert_eq!(bench.issue(0, 0, &vecs), Issued::Queued);
        assert_eq!(bench.rig.ended, [], "ended in the poll, not in submit");
        assert_eq!(bench.kiocb.refs, 1);
        assert_eq!(bench.end_with(&[Status::Ok]), [true]);
        assert_eq!(bench.kiocb.result(), 4096 * vecs.len() as i32);
    }
}

#[test]
fn a_data_sync_on_a_raw_device_asks_for_what_the_device_needs() {
    let write = (Op::Write, 8192, 4096, false);
    let fua = (Op::Write, 8192, 4096, true);
    let flush = (Op::Flush, 0, 0, false);
    // Volatile cache, FUA, requests that the device gets.
    let table = [
        (false, false, vec![write]),
        (false, true, vec![write]),
        (true, false, vec![write, flush]),
        (true, true, vec![fua]),
    ];
    for (volatile_cache, has_fua, expected) in table {
        for flags in [IOCB_DSYNC, IOCB_DSYNC | IOCB_SYNC] {
            for vecs in [vec![at(BASE, 4096)], vec![at(BASE, 2048), at(BASE + 8192, 2048)]] {
                let puppet = Puppet::new().caps(|caps| (caps.volatile_cache, caps.fua) = (volatile_cache, has_fua));
                let mut bench = Bench::new(&puppet.device());
                let issued = bench.issue(IOCB_WRITE | flags, 8192, &vecs);
                assert_eq!(bench.kiocb.plan, CompletionPlan::Inline, "a device has nothing else to do");
                assert_eq!(bench.run(issued), 4096);
                let got = seen(&puppet);
                assert_eq!(got.len(), expected.len(), "cache {volatile_cache}, FUA {has_fua}: {got:?}");
                for (got, expected) in got.iter().zip(&expected) {
                    assert_eq!((got.0, got.2, got.3), (expected.0, expected.2, expected.3));
                }
                let read = bench.issue(flags, 8192, &vecs);
                assert_eq!(bench.run(read), 4096);
                assert_eq!(seen(&puppet).len(), expected.len() + 1, "a read needs no sync");
            }
        }
    }
}

#[test]
fn without_bios_nothing_happens_and_it_can_be_issued_again() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut bench = Bench::with_file(1, &device, Arc::new(RawFile::new(device.clone())));
    let first = bench.issue(0, 0, &[at(BASE, 512)]);
    let started = bench.kiocb;
    assert_eq!(first, Issued::Queued);
    for vecs in [vec![at(BASE, 512)], vec![at(BASE, 512), at(BASE + 4096, 512)]] {
        assert_eq!(bench.issue(0, 4096, &vecs), Issued::Again);
        assert_eq!(seen(&puppet).len(), 1);
    }
    assert_eq!(issue_flush(&mut bench.rig.ctx, &bench.file, &mut bench.kiocb, 7), Issued::Again);
    bench.kiocb = started;
    puppet.script().finish = u32::MAX;
    assert_eq!(bench.run(first), 512);
    let again = bench.issue(IOCB_USE_POS, 4096, &[at(BASE, 512)]);
    assert_eq!(bench.run(again), 512);
}

#[test]
fn a_bio_that_fails_gives_its_error_in_the_issuers_task() {
    for (status, errno) in [(Status::IoErr, -5), (Status::Medium, -61), (Status::Offline, -19)] {
        let mut bench = Bench::new(&Puppet::new().device());
        assert_eq!(bench.issue(0, 0, &[at(BASE, 4096)]), Issued::Queued);
        assert_eq!(bench.kiocb.plan, CompletionPlan::Inline);
        assert_eq!(bench.end_with(&[status]), [true]);
        assert_eq!(bench.kiocb.plan, CompletionPlan::Task, "no error is handled inside a reap");
        assert_eq!(bench.kiocb.result(), errno);
    }
}
