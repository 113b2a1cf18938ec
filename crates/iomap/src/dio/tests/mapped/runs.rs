//! Runs on files with mappings: I/Os mapped with one call.

use super::*;

#[test]
fn a_file_that_gives_wrong_places_at_once_is_not_believed() {
    let puppet = Puppet::new();
    let last = puppet.size - 4096;
    // Places that the file returns, and the number of valid ones before the first invalid one.
    let table: &[(&[u64], usize)] = &[
        (&[0, last, MIB], 3),
        (&[MIB, last + 512, 0], 1),
        (&[last, 0, MIB + 1], 2),
        (&[u64::MAX - 511], 0),
        (&[MIB, 1 << 63], 1),
        (&[0, u64::MAX - 511 - last], 1),
        (&[], 0),
    ];
    for &(places, good) in table {
        let (mut bench, file) = bench(&puppet, |_| (), &[MAPPED]);
        *file.refuses.lock().unwrap() = Some(Err(Status::IoErr));
        *file.plain.lock().unwrap() = places.to_vec();
        let mut run = MappedRun::start(&mut bench.rig.ctx, &bench.file, 0, NO_FIXED_BUF).expect("one leg");
        let mut at = [0, 512, 1024];
        assert_eq!(run.map(&mut at, 4096, 1536), good, "{places:?}");
        assert_eq!(at[..good], places[..good]);
        run.finish(0);
    }
}

#[test]
fn a_run_looks_less_far_ahead_while_nothing_is_plain() {
    let puppet = Puppet::new();
    let (mut bench, file) = bench(&puppet, |_| (), &[MAPPED]);
    let mut run = MappedRun::start(&mut bench.rig.ctx, &bench.file, 0, NO_FIXED_BUF).expect("one leg");
    let mut looks = vec![run.look_ahead()];
    // Mapped one by one, then both ways.
    for plain in [vec![], vec![MIB], vec![MIB, MIB]] {
        *file.plain.lock().unwrap() = plain;
        assert!(run.map(&mut [0, 512], 512, 512) > 0);
        looks.push(run.look_ahead());
    }
    assert_eq!(looks, [LOOK_AHEAD, 1, 2, 4]);
    run.finish(0);
}
