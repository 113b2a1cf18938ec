//! Entries, and the sentences that explain them.

use sheave_base::beside::Activity;

use super::*;

fn slow() -> SlowIo {
    SlowIo {
        number: 0,
        file: 7,
        kind: IoKind::Write,
        place: Place::File(1288490189),
        len: 4096,
        ios: 1,
        ended: CoarseTs(99),
        split: Split { driver_ns: 47_600_000, plugged_ns: 400_000, ..Split::default() },
        depth: 17,
        beside: [Activity::Checkpoint].into_iter().collect(),
        slow_above_ns: 3_600_000,
        usual_p999_ns: 900_000,
    }
}

#[test]
fn a_line_says_what_it_was_and_why() {
    assert_eq!(
        slow().explain("pool#vol"),
        "write of 4 KiB at 1.2 GiB of pool#vol took 48 ms: 47.6 ms in the driver, while a checkpoint ran; depth 17; \
         usual p99.9 900 us"
    );
    let several = SlowIo {
        kind: IoKind::Read,
        place: Place::Device(8192),
        ios: 32,
        split: Split { tag_ns: 5_000_000, reap_ns: 2_000_000, ..Split::default() },
        beside: [Activity::Commit, Activity::Copy, Activity::FrozenQueue].into_iter().collect(),
        usual_p999_ns: 0,
        ..slow()
    };
    assert_eq!(
        several.explain("v"),
        "read of 4 KiB of v, at 8 KiB of its device, (with 31 more that ended with it) took 7 ms: 5 ms waiting to \
         be let in, 2 ms waiting to be reaped, while a commit, a copy on write and a freeze of the queue ran; depth \
         17; too few before it to say what is usual"
    );
    assert!(SlowIo { kind: IoKind::Other, len: 0, ..slow() }.explain("v").starts_with("sync of v took"));
}

#[test]
fn what_is_kept_is_read_as_it_was() {
    let (clock, time) = Clock::virtual_clock();
    let recorder = FlightRecorder::new(clock, DEFAULT_SLOW_LIMIT);
    assert_eq!(recorder.limit_ns(), 1_000_000_000);
    let nth = |n: u64| SlowIo {
        number: n,
        ios: n as u32,
        place: if n.is_multiple_of(2) { Place::File(n * 512) } else { Place::Device(n * 512) },
        kind: IoKind::ALL[n as usize % 3],
        split: Split { worker_ns: n, tag_ns: 2 * n, plugged_ns: 3 * n, driver_ns: 4 * n, reap_ns: 5 * n },
        ended: CoarseTs(n),
        ..slow()
    };
    (0..300).for_each(|n| recorder.keep(&nth(n)));
    let all = recorder.read(0);
    assert_eq!((all.ios.len(), all.next, all.lost), (SLOW_IOS_KEPT, 300, 44));
    assert_eq!(all.ios, (44..300).map(nth).collect::<Vec<_>>());
    let last = recorder.read(298);
    assert_eq!((last.ios.len(), last.lost), (2, 0));
    assert_eq!(recorder.read(300).ios, []);
    time.set(1299);
    assert_eq!(recorder.age(&last.ios[1]), Duration::from_nanos(1000));
}
