//! The engine on files with mappings: plans, FUA, several bios, holes, completion work and syncs.

mod asked;
mod grows;
mod neighbours;

mod runs;

use std::sync::Mutex;

use super::support::Puppet;
use super::*;
use crate::file::PlainRanges;
use crate::kiocb::IOCB_NOWAIT;
use crate::mapping::MapFlags;

/// Events of a [`Scripted`] file, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Map(u64),
    MapBlocking,
    EndWrite(Status),
    Sync,
    Begin(u64),
    Abort(u64),
    /// Pieces, bytes of memory, and status of the data.
    Summed(usize, usize, Status),
    SummedBlocking,
}

/// A file of pieces, each with a prescribed mapping.
#[derive(Debug)]
struct Scripted {
    device: Device,
    size: u64,
    /// Size up to which writes extend the file.
    max: Option<u64>,
    /// Length, kind and `MAP_*` flags of each piece; piece n lies at n MiB + 1 MiB of the device.
    pieces: Vec<(u64, MappingKind, MapFlags)>,
    /// Result of `map` in place of a mapping of `pieces`.
    refuses: Mutex<Option<Result<Mapping, Status>>>,
    /// Positions that `map_plain` returns.
    plain: Mutex<Vec<u64>>,
    end_write: Result<(), Status>,
    summed: Result<(), Status>,
    summed_blocking: Result<(), Status>,
    sync: Option<Result<(), Status>>,
    read_only: bool,
    calls: Mutex<Vec<Call>>,
}

impl Scripted {
    fn new(device: &Device, pieces: &[(u64, MappingKind, MapFlags)]) -> Scripted {
        Scripted {
            device: device.clone(),
            size: pieces.iter().map(|piece| piece.0).sum(),
            max: None,
            pieces: pieces.to_vec(),
            refuses: Mutex::new(None),
            plain: Mutex::new(Vec::new()),
            end_write: Ok(()),
            summed: Ok(()),
            summed_blocking: Ok(()),
            sync: None,
            read_only: false,
            calls: Mutex::new(Vec::new()),
        }
    }

    fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn called(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }
}

impl File for Scripted {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn max_bytes(&self) -> Option<u64> {
        self.max
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        self.called(Call::Map(pos));
        if let Some(answer) = *self.refuses.lock().unwrap() {
            return answer;
        }
        let mut start = 0;
        for (n, &(bytes, kind, flags)) in self.pieces.iter().enumerate() {
            if pos < start + bytes {
                let addr = (n as u64 + 1) * MIB + (pos - start);
                return Ok(Mapping::new(kind, pos, len.min(start + bytes - pos), addr).flags(flags));
            }
            start += bytes;
        }
        Err(Status::IoErr)
    }

    fn map_plain(&self, at: &mut [u64], _: &PlainRanges) -> usize {
        let plain = self.plain.lock().unwrap();
        at.iter_mut().zip(&*plain).for_each(|(at, place)| *at = *place);
        plain.len().min(at.len())
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        self.called(Call::MapBlocking);
        self.map(pos, len, intent)
    }

    fn begin_write(&self, piece: &Mapping) {
        self.called(Call::Begin(piece.offset));
    }

    fn abort_write(&self, piece: &Mapping) {
        self.called(Call::Abort(piece.offset));
    }

    fn end_summed(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        // Counted, not touched: there is no memory behind most addresses of these tests.
        assert_ne!(done.memory.put(u64::MAX, &[]), done.write, "nothing is put into the memory of a write");
        let bytes = done.memory.segments().iter().map(|vec| vec.len()).sum();
        self.called(Call::Summed(done.pieces.len(), bytes, done.status));
        self.summed
    }

    fn end_summed_blocking(&self, _: &SummedDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.called(Call::SummedBlocking);
        self.summed_blocking
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.called(Call::EndWrite(done.status));
        if done.status.is_ok() { self.end_write } else { Err(done.status) }
    }

    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        self.called(Call::Sync);
        self.sync
    }
}

const MAPPED: (u64, MappingKind, MapFlags) = (4096, MappingKind::Mapped, MapFlags::NONE);
const UNWRITTEN: (u64, MappingKind, MapFlags) = (4096, MappingKind::Unwritten, MapFlags::NONE);
const HOLE: (u64, MappingKind, MapFlags) = (4096, MappingKind::Hole, MapFlags::NONE);

fn bench(
    puppet: &Puppet,
    change: impl FnOnce(&mut Scripted),
    pieces: &[(u64, MappingKind, MapFlags)],
) -> (Bench, Arc<Scripted>) {
    let device = puppet.device();
    let mut file = Scripted::new(&device, pieces);
    change(&mut file);
    let file = Arc::new(file);
    (Bench::with_file(64, &device, file.clone()), file)
}

/// Computes from the table of rules whether a write to this piece has completion work, and whether FUA is enough for a
/// data sync.
fn rules(piece: (u64, MappingKind, MapFlags), extends: bool, writes_through: bool) -> (bool, bool) {
    let work =
        piece.1 == MappingKind::Unwritten || piece.2.any(MapFlags::SHARED) || piece.2.any(MapFlags::NEW) || extends;
    (work, !work && !piece.2.any(MapFlags::DIRTY) && writes_through)
}

/// A file that does not grow has the same end for writers as a block device.
#[test]
fn a_write_across_the_end_of_a_file_is_cut_there() {
    let piece = (8192, MappingKind::Mapped, MapFlags::NONE);
    for write in [IOCB_WRITE, 0] {
        let (mut bench, _) = bench(&Puppet::new(), |_| {}, &[piece]);
        let issued = bench.issue(write, 4096, &[at(BASE, 8192)]);
        assert_eq!(bench.run(issued), 4096, "as far as the file goes");
        for pos in [8192, 1 << 40] {
            let issued = bench.issue(write, pos, &[at(BASE, 4096)]);
            assert_eq!(bench.run(issued), if write == 0 { 0 } else { -28 }, "nothing is there"); // ENOSPC
        }
    }
}

/// Tries every pair of mappings, with every kind of sync, on every kind of cache.
#[test]
fn every_write_over_two_mappings_has_the_plan_of_the_table() {
    let kinds = [MappingKind::Mapped, MappingKind::Unwritten];
    let pieces: Vec<_> =
        kinds.iter().flat_map(|&kind| (0..16).map(move |flags| (4096, kind, MapFlags::from_bits(flags)))).collect();
    for (volatile_cache, has_fua) in [(false, false), (false, true), (true, false), (true, true)] {
        let puppet = Puppet::new().caps(|caps| (caps.volatile_cache, caps.fua) = (volatile_cache, has_fua));
        for (&first, &second) in pieces.iter().flat_map(|first| pieces.iter().map(move |second| (first, second))) {
            for extends in [false, true] {
                let shrink = |file: &mut Scripted| {
                    file.max = extends.then_some(file.size);
                    file.size -= if extends { 512 } else { 0 };
                };
                for sync in [0, IOCB_DSYNC, IOCB_DSYNC | IOCB_SYNC] {
                    let (mut bench, file) = bench(&puppet, shrink, &[first, second]);
                    puppet.script().seen.clear();
                    let issued = bench.issue(IOCB_WRITE | sync, 0, &[at(BASE, 8192)]);
                    let through = has_fua || !volatile_cache;
                    let (a, b) = (rules(first, extends, through), rules(second, extends, through));
                    let (work, fua) = (a.0 || b.0, sync == IOCB_DSYNC && a.1 && b.1);
                    let needs_sync = sync != 0 && !fua;
                    let what = format!("{first:?} {second:?} {extends} {sync} {volatile_cache} {has_fua}");
                    let is_summed = |piece: (u64, MappingKind, MapFlags)| piece.2.any(MapFlags::SUMMED);
                    let summed = is_summed(first) || is_summed(second);
                    let plan = match work || needs_sync {
                        true => CompletionPlan::Worker,
                        false if summed => CompletionPlan::Task,
                        false => CompletionPlan::Inline,
                    };
                    assert_eq!(bench.kiocb.plan, plan, "{what}");
                    assert_eq!(bench.run(issued), 8192, "{what}");
                    let mut calls = vec![Call::Map(0), Call::Map(4096)];
                    if summed {
                        calls.extend([Call::Begin(0), Call::Begin(4096), Call::Summed(2, 8192, Status::Ok)]);
                    }
                    calls.extend(work.then_some(Call::EndWrite(Status::Ok)));
                    calls.extend(needs_sync.then_some(Call::Sync));
                    assert_eq!(file.calls(), calls, "{what}");
                    let with_fua = fua && volatile_cache;
                    let mut sent = vec![(Op::Write, MIB, 4096, with_fua), (Op::Write, 2 * MIB, 4096, with_fua)];
                    // The file leaves the sync to a flush, which a device without a cache need not see.
                    sent.extend((needs_sync && volatile_cache).then_some((Op::Flush, 0, 0, false)));
                    assert_eq!(seen(&puppet), sent, "{what}");
                }
            }
        }
    }
}

#[test]
fn the_first_error_of_several_bios_is_the_result_whichever_fails() {
    let puppet = Puppet::new();
    let (ok, io, medium) = (Status::Ok, Status::IoErr, Status::Medium);
    let table = [
        ([ok, ok, ok], 12288),
        ([io, ok, ok], -5),
        ([ok, io, ok], -5),
        ([ok, ok, io], -5),
        ([medium, ok, io], -61),
        ([io, medium, medium], -5),
    ];
    for flags in [0, IOCB_WRITE] {
        for (statuses, result) in table {
            let (mut bench, file) = bench(&puppet, |_| (), &[MAPPED, MAPPED, MAPPED]);
            assert_eq!(bench.issue(flags, 0, &[at(BASE, 12288)]), Issued::Queued);
            assert_eq!(bench.kiocb.refs, 3, "the submission's reference is gone, one a bio is left");
            assert_eq!(bench.end_with(&statuses), [false, false, true], "the last one ends it, and only it");
            assert_eq!(bench.kiocb.plan == CompletionPlan::Inline, result > 0);
            assert_eq!(bench.kiocb.result(), result, "{statuses:?}");
            assert!(!file.calls().contains(&Call::Sync));
        }
    }
}

#[test]
fn too_few_bios_make_it_short_and_never_pass_for_more() {
    let puppet = Puppet::new();
    let device = puppet.device();
    for (last, done) in [(MAPPED, 8192), (UNWRITTEN, 8192)] {
        let file = Arc::new(Scripted::new(&device, &[MAPPED, MAPPED, last]));
        let mut bench = Bench::with_file(2, &device, file.clone());
        puppet.script().seen.clear();
        let issued = bench.issue(IOCB_WRITE, 0, &[at(BASE, 12288)]);
        assert_eq!(bench.kiocb.len, done, "what completes inline tells its length and looks at nothing else");
        assert_eq!(bench.run(issued), done as i32);
        assert_eq!(seen(&puppet).iter().map(|rq| rq.2).sum::<u32>(), done);
        let expected = Call::EndWrite(Status::Ok);
        assert_eq!(file.calls().contains(&expected), last == UNWRITTEN, "once a worker's, always a worker's");
    }
    let file = Arc::new(Scripted::new(&device, &[MAPPED, HOLE, MAPPED, MAPPED]));
    let mut bench = Bench::with_file(2, &device, file);
    let mut memory = vec![0xa5_u8; 16384];
    let issued = bench.issue(0, 0, &[at(memory.as_mut_ptr() as usize, 16384)]);
    assert_eq!(bench.run(issued), 12288, "holes need no bio");
}

#[test]
fn a_plan_never_gets_better_whatever_ends() {
    let puppet = Puppet::new();
    let statuses = [Status::Ok, Status::IoErr, Status::NoSpc];
    for first in statuses {
        for second in statuses {
            for pieces in [[MAPPED, MAPPED], [UNWRITTEN, MAPPED]] {
                let (mut bench, _) = bench(&puppet, |_| (), &pieces);
                assert_eq!(bench.issue(IOCB_WRITE, 0, &[at(BASE, 8192)]), Issued::Queued);
                bench.rig.drain();
                for status in [first, second] {
                    let before = bench.kiocb.plan;
                    end_bio(&mut bench.kiocb, status);
                    assert!(
                        bench.kiocb.plan >= before && (status.is_ok() || bench.kiocb.plan > CompletionPlan::Inline)
                    );
                }
            }
        }
    }
}

#[test]
fn completion_work_comes_before_the_sync_and_neither_hides_an_error() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true);
    let (ok, io, no_space) = (Status::Ok, Status::IoErr, Status::NoSpc);
    // Status of the data, results of `end_write` and `sync`; then the calls and the result.
    let table = [
        (ok, Ok(()), Some(Ok(())), vec![Call::EndWrite(ok), Call::Sync], 4096),
        (ok, Ok(()), None, vec![Call::EndWrite(ok), Call::Sync], 4096),
        (ok, Ok(()), Some(Err(io)), vec![Call::EndWrite(ok), Call::Sync], -5),
        (ok, Err(no_space), None, vec![Call::EndWrite(ok)], ENOSPC),
        (io, Ok(()), None, vec![Call::EndWrite(io)], -5),
        (io, Err(no_space), Some(Err(no_space)), vec![Call::EndWrite(io)], -5),
    ];
    for (data, end_write, sync, calls, result) in table {
        let change = |file: &mut Scripted| (file.end_write, file.sync) = (end_write, sync);
        let (mut bench, file) = bench(&puppet, change, &[UNWRITTEN]);
        puppet.script().seen.clear();
        puppet.script().fail = vec![(Op::Write, data)];
        let issued = bench.issue(IOCB_WRITE | IOCB_DSYNC, 0, &[at(BASE, 4096)]);
        assert_eq!(bench.run(issued), result);
        assert_eq!(file.calls()[1..], calls, "after the mapping");
        let flushes = seen(&puppet).iter().filter(|rq| rq.0 == Op::Flush).count();
        assert_eq!(flushes, usize::from(result > 0 && sync.is_none()), "a sync that answers None is a flush");
        assert!(!seen(&puppet).iter().any(|rq| rq.3), "no FUA for what needs a sync anyway");
    }
}

#[test]
fn a_flush_that_fails_is_the_error_of_the_write_it_ends() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true);
    puppet.script().fail = vec![(Op::Flush, Status::IoErr)];
    let (mut bench, _) = bench(&puppet, |_| (), &[UNWRITTEN]);
    let issued = bench.issue(IOCB_WRITE | IOCB_DSYNC, 0, &[at(BASE, 4096)]);
    assert_eq!(bench.run(issued), -5);
    start_sync(&mut bench.kiocb);
    assert_eq!(next(&bench.kiocb), Next::Sync);
    assert_eq!(bench.complete(), Synced::Flush);
    let issued = issue_flush(&mut bench.rig.ctx, &bench.file, &mut bench.kiocb, 7);
    assert_eq!(bench.run(issued), -5, "and of an fsync");
}

#[test]
fn holes_and_unwritten_space_read_as_zeroes_and_send_nothing() {
    let puppet = Puppet::new();
    let pieces =
        [HOLE, MAPPED, UNWRITTEN, (512, MappingKind::Mapped, MapFlags::NEW), (3584, MappingKind::Hole, MapFlags::NONE)];
    let (mut bench, _) = bench(&puppet, |_| (), &pieces);
    let mut memory = vec![0xa5_u8; 16384];
    let base = memory.as_mut_ptr() as usize;
    // Vectors whose borders are not the mappings'.
    let vecs = [at(base, 512), at(base + 512, 5632), at(base + 6144, 10240)];
    let issued = bench.issue(0, 0, &vecs);
    assert_eq!(bench.run(issued), 16384);
    assert_eq!(seen(&puppet), [(Op::Read, 2 * MIB, 4096, false), (Op::Read, 4 * MIB, 512, false)]);
    let script = puppet.script();
    assert_eq!(script.seen[0].vecs, [at(base + 4096, 2048), at(base + 6144, 2048)]);
    assert_eq!(script.seen[1].vecs, [at(base + 12288, 512)]);
    let zeroed = |n: usize| !(4096..8192).contains(&n) && !(12288..12800).contains(&n);
    for (n, &byte) in memory.iter().enumerate() {
        assert_eq!(byte, if zeroed(n) { 0 } else { 0xa5 }, "byte {n}");
    }
    drop(script);
    // Nothing but a hole: it ends at once.
    assert_eq!(bench.issue(0, 0, &[at(base, 4096)]), Issued::Done(4096));
    // Beyond the end of the file: cut, or nothing.
    assert_eq!(bench.issue(0, 16384, &[at(base, 4096)]), Issued::Done(0));
    assert_eq!(bench.issue(0, 14336, &[at(base, 4096)]), Issued::Done(2048));
}

#[test]
fn a_file_that_must_block_says_so_and_nowait_makes_that_the_answer() {
    let puppet = Puppet::new();
    let (mut bench, file) = bench(&puppet, |_| (), &[MAPPED]);
    *file.refuses.lock().unwrap() = Some(Err(Status::Again));
    assert_eq!(bench.issue(0, 0, &[at(BASE, 4096)]), Issued::Blocks);
    assert_eq!(bench.issue(IOCB_NOWAIT, 0, &[at(BASE, 4096)]), Issued::Done(EAGAIN));
    *file.refuses.lock().unwrap() = None;
    let issued = bench.issue(0, 0, &[at(BASE, 4096)]);
    assert_eq!(bench.run(issued), 4096);
}

#[test]
fn a_file_that_may_not_be_written_has_plain_reads_and_no_writes() {
    let puppet = Puppet::new();
    let (mut bench, _) = bench(&puppet, |file| file.read_only = true, &[MAPPED]);
    assert!(bench.file.is_read_only());
    assert_eq!(bench.issue(IOCB_WRITE, 0, &[at(BASE, 4096)]), Issued::Done(EBADF));
    assert!(MappedRun::start(&mut bench.rig.ctx, &bench.file, IOCB_WRITE, NO_FIXED_BUF).is_none());
    let mut run = MappedRun::start(&mut bench.rig.ctx, &bench.file, 0, NO_FIXED_BUF).expect("a run of reads");
    let mut at = [0];
    assert_eq!((run.map(&mut at, 4096, 0), at), (1, [MIB]));
    run.finish(0);
}

#[test]
fn wrong_mappings_fail_the_io() {
    let puppet = Puppet::new();
    let good = Mapping::new(MappingKind::Mapped, 0, 4096, MIB);
    let wrong = [
        Ok(Mapping { offset: 512, ..good }),
        Ok(Mapping { len: 0, ..good }),
        Ok(Mapping { kind: MappingKind::Hole, ..good }),
        // Off the device's blocks, in part or as a whole outside of it.
        Ok(Mapping { addr: MIB + 1, ..good }),
        Ok(Mapping { len: 1000, ..good }),
        Ok(Mapping { addr: puppet.size - 2048, ..good }),
        Ok(Mapping { addr: puppet.size, kind: MappingKind::Unwritten, ..good }),
        Ok(Mapping { addr: u64::MAX - 511, ..good }),
        Err(Status::IoErr),
    ];
    for answer in wrong {
        let (mut bench, file) = bench(&puppet, |_| (), &[MAPPED]);
        *file.refuses.lock().unwrap() = Some(answer);
        assert_eq!(bench.issue(IOCB_WRITE, 0, &[at(BASE, 4096)]), Issued::Done(-5), "{answer:?}");
        let mut run = MappedRun::start(&mut bench.rig.ctx, &bench.file, IOCB_WRITE, NO_FIXED_BUF).expect("one leg");
        assert!(run.bounds(4096).expect("a block").hold(0, BASE as u64));
        assert_eq!(run.map(&mut [0], 4096, 0), 0, "{answer:?} is not plain");
        run.finish(0);
    }
    assert_eq!(seen(&puppet), []);
    let (mut bench, file) = bench(&puppet, |_| (), &[MAPPED]);
    // A hole reads as zeroes, whatever its address.
    *file.refuses.lock().unwrap() = Some(Ok(Mapping { kind: MappingKind::Hole, addr: u64::MAX, ..good }));
    let memory = vec![0xa5_u8; 4096];
    assert_eq!(bench.issue(0, 0, &[at(memory.as_ptr() as usize, 4096)]), Issued::Done(4096));
    assert!(memory.iter().all(|&byte| byte == 0));
}

const SUMMED: (u64, MappingKind, MapFlags) = (4096, MappingKind::Mapped, MapFlags::SUMMED);

#[test]
fn a_file_with_checksums_sees_the_memory_before_anything_else_and_its_word_is_the_result() {
    let puppet = Puppet::new();
    let (ok, bad) = (Ok(()), Err(Status::Protection));
    let again = Err(Status::Again);
    // Results of `end_summed` and `end_summed_blocking`; true if the second is called; the result of the I/O.
    for (summed, blocking, called, res) in
        [(ok, bad, false, 4096), (bad, ok, false, -84), (again, ok, true, 4096), (again, bad, true, -84)]
    {
        for flags in [0, IOCB_WRITE] {
            let change = |file: &mut Scripted| (file.summed, file.summed_blocking) = (summed, blocking);
            let (mut bench, file) = bench(&puppet, change, &[SUMMED]);
            let issued = bench.issue(flags, 0, &[at(BASE, 4096)]);
            assert_eq!(bench.kiocb.plan, CompletionPlan::Task);
            assert_eq!(bench.run(issued), res, "{summed:?} {blocking:?}");
            let mut calls = vec![Call::Map(0)];
            calls.extend((flags == IOCB_WRITE).then_some(Call::Begin(0)));
            calls.push(Call::Summed(1, 4096, Status::Ok));
            calls.extend(called.then_some(Call::SummedBlocking));
            assert_eq!(file.calls(), calls);
        }
    }
}

#[test]
fn end_summed_is_called_after_failed_writes_but_not_failed_reads() {
    let puppet = Puppet::new();
    for (flags, heard) in [(0, false), (IOCB_WRITE, true)] {
        let (mut bench, file) = bench(&puppet, |_| (), &[SUMMED, MAPPED]);
        let Issued::Queued = bench.issue(flags, 0, &[at(BASE, 8192)]) else { panic!("it is sent") };
        assert_eq!(bench.end_with(&[Status::IoErr, Status::Ok]), [false, true]);
        assert!(matches!(bench.complete(), Synced::Done(-5)));
        assert_eq!(file.calls().contains(&Call::Summed(2, 8192, Status::IoErr)), heard);
    }
}

#[test]
fn begin_write_is_undone_for_unsent_bios() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let file = Arc::new(Scripted::new(&device, &[SUMMED, SUMMED, SUMMED]));
    let mut bench = Bench::with_file(2, &device, file.clone());
    let issued = bench.issue(IOCB_WRITE, 0, &[at(BASE, 12288)]);
    assert_eq!(bench.run(issued), 8192);
    let begun = [Call::Begin(0), Call::Begin(4096), Call::Begin(8192), Call::Abort(8192)];
    assert_eq!(file.calls()[3..], [&begun[..], &[Call::Summed(2, 12288, Status::Ok)]].concat());
    // A write with a single piece undoes its `begin_write` as well.
    let holding = puppet.holding();
    assert_eq!(bench.issue(IOCB_WRITE, 0, &[at(BASE, 8192)]), Issued::Queued);
    let first = bench.kiocb;
    file.calls();
    assert_eq!(bench.issue(IOCB_WRITE, 8192, &[at(BASE, 4096)]), Issued::Again);
    assert_eq!(file.calls(), [Call::Map(8192), Call::Begin(8192), Call::Abort(8192)]);
    bench.kiocb = first;
    holding.script().finish = u32::MAX;
    assert_eq!(bench.end_with(&[Status::Ok, Status::Ok]), [false, true]);
}

#[test]
fn a_file_may_have_larger_blocks_than_its_device() {
    #[derive(Debug)]
    struct Large(RawFile);
    impl File for Large {
        fn device(&self) -> &Device {
            self.0.device()
        }
        fn size_bytes(&self) -> u64 {
            self.0.size_bytes()
        }
        fn block_bytes(&self) -> u32 {
            4096
        }
        fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
            self.0.map(pos, len, intent)
        }
    }
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut bench = Bench::with_file(8, &device, Arc::new(Large(RawFile::new(device.clone()))));
    assert_eq!(bench.issue(0, 512, &[at(BASE, 4096)]), Issued::Done(EINVAL));
    assert_eq!(bench.issue(0, 0, &[at(BASE, 512)]), Issued::Done(EINVAL));
    let issued = bench.issue(0, 4096, &[at(BASE, 4096)]);
    assert_eq!(bench.run(issued), 4096);
}
