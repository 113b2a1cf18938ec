//! Mappings that are adjacent on the device: one bio for all of them.

use super::*;

/// A piece that is followed by the next one on the device.
const LONG: u64 = MIB;

#[test]
fn neighbours_on_the_device_share_a_bio() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let piece = |kind, flags| (LONG, kind, flags);
    let (mapped, unwritten) =
        (piece(MappingKind::Mapped, MapFlags::NONE), piece(MappingKind::Unwritten, MapFlags::NEW | MapFlags::SUMMED));
    let summed = piece(MappingKind::Mapped, MapFlags::SUMMED);
    // Seven pieces, and two bios: written or not, one bio is enough.
    let file = Arc::new(Scripted::new(&device, &[summed, unwritten, unwritten, summed, unwritten, summed, summed]));
    let mut bench = Bench::with_file(2, &device, file.clone());
    puppet.script().seen.clear();
    let issued = bench.issue(IOCB_WRITE, 0, &[at(BASE, LONG as usize * 3), at(BASE * 2, LONG as usize * 4)]);
    assert_eq!((bench.kiocb.refs, bench.kiocb.len), (1, 7 * LONG as u32), "one bio, of all of it");
    assert_eq!(bench.scratch.pieces().len(), 7, "the file hears of each mapping");
    assert_eq!(bench.run(issued), 7 * LONG as i32);
    let mut sectors: Vec<_> = seen(&puppet).iter().map(|rq| (rq.1, rq.2)).collect();
    sectors.sort_unstable();
    let end = sectors.iter().fold(MIB, |at, &(from, bytes)| {
        assert_eq!(from, at, "without a gap: {sectors:?}");
        at + u64::from(bytes)
    });
    assert_eq!(end, MIB + 7 * LONG);
    let calls = file.calls();
    assert_eq!(calls.iter().filter(|call| matches!(call, Call::Begin(_))).count(), 7);
    assert!(calls.contains(&Call::Summed(7, 7 * LONG as usize, Status::Ok)), "{calls:?}");
    // A hole in the middle divides what is read, and needs no bio.
    let file = Arc::new(Scripted::new(&device, &[mapped, mapped, HOLE, mapped, mapped]));
    let mut bench = Bench::with_file(8, &device, file);
    let mut memory = vec![0xa5_u8; 4 * LONG as usize + 4096];
    let len = memory.len();
    let issued = bench.issue(0, 0, &[at(memory.as_mut_ptr() as usize, len)]);
    assert_eq!(bench.kiocb.refs, 2);
    assert_eq!(bench.run(issued), len as i32);
    assert!(memory[2 * LONG as usize..][..4096].iter().all(|byte| *byte == 0));
    assert!(memory[..2 * LONG as usize].iter().all(|byte| *byte == 0xa5), "the puppet reads nothing");
}

#[test]
fn a_run_that_finds_no_bio_is_taken_back_as_a_whole() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let long = (LONG, MappingKind::Mapped, MapFlags::SUMMED);
    // The second piece ends before the third begins on the device: two runs, and one bio.
    let file = Arc::new(Scripted::new(&device, &[long, SUMMED, long, long]));
    let mut bench = Bench::with_file(1, &device, file.clone());
    let len = 3 * LONG as usize + 4096;
    let issued = bench.issue(IOCB_WRITE, 0, &[at(BASE, len)]);
    assert_eq!(bench.run(issued), LONG as i32 + 4096);
    let aborted: Vec<Call> = file.calls().into_iter().filter(|call| matches!(call, Call::Abort(_))).collect();
    assert_eq!(aborted, [Call::Abort(LONG + 4096), Call::Abort(2 * LONG + 4096)]);
}
