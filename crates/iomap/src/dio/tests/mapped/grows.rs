//! Files whose end moves with their writes.

use super::*;

/// A file of 8 KiB that may grow to 16 KiB: its end for writers and for readers.
#[test]
fn a_file_that_grows_takes_writes_beyond_its_end_and_no_further_than_it_may() {
    let puppet = Puppet::new();
    let grow = |file: &mut Scripted| (file.size, file.max) = (8192, Some(16384));
    let pieces = [MAPPED, MAPPED, UNWRITTEN, UNWRITTEN, MAPPED];
    const EFBIG: i32 = -27;
    // Position, length, result, and number of calls of `map`.
    let table = [
        (0, 8192, 8192, 2),
        (4096, 8192, 8192, 2),
        (8192, 4096, 4096, 1),
        (12288, 4096, 4096, 1),
        (12288, 8192, 4096, 1),
        (4096, 1 << 20, 12288, 3),
        (16384, 4096, EFBIG, 0),
        (1 << 40, 4096, EFBIG, 0),
        (8192, 0, 0, 0),
        (16384, 0, 0, 0),
        (8192, 100, EINVAL, 0),
    ];
    for (pos, len, result, mapped) in table {
        let (mut bench, file) = bench(&puppet, grow, &pieces);
        let issued = bench.issue(IOCB_WRITE, pos, &[at(BASE, len)]);
        assert_eq!(bench.run(issued), result, "{pos} +{len}");
        let maps = file.calls().iter().filter(|call| matches!(call, Call::Map(_))).count();
        assert_eq!(maps, mapped, "{pos} +{len}");
        let beyond = result > 0 && pos + result as u64 > 8192;
        assert_eq!(bench.steps.contains(&Next::Work), beyond, "what extends is a worker's, and nothing else is");
    }
    // Written space beyond the end, which another write has mapped at the same time: this write extends the file, too.
    let (mut extending, _) = bench(&puppet, |file| (file.size, file.max) = (4096, Some(16384)), &pieces);
    let issued = extending.issue(IOCB_WRITE | IOCB_DSYNC, 4096, &[at(BASE, 4096)]);
    assert_eq!(extending.kiocb.plan, CompletionPlan::Worker);
    assert_eq!(extending.run(issued), 4096);
    assert_eq!(extending.steps[..2], [Next::Work, Next::Sync], "the size is durable before it is acknowledged");
    // Readers stop where it ends now.
    for (pos, result) in [(0, 8192), (4096, 4096), (8192, 0), (16384, 0)] {
        let (mut bench, _) = bench(&puppet, grow, &pieces);
        let mut memory = vec![0_u8; 16384];
        let issued = bench.issue(0, pos, &[at(memory.as_mut_ptr() as usize, 16384)]);
        assert_eq!(bench.run(issued), result, "{pos}");
    }
    // A limit below the size does not cut the existing bytes.
    let (mut bench, _) = bench(&puppet, |file| (file.size, file.max) = (8192, Some(4096)), &pieces);
    let issued = bench.issue(IOCB_WRITE, 4096, &[at(BASE, 8192)]);
    assert_eq!(bench.run(issued), 4096);
}
