//! The flight recorder of a ring: its last slow I/Os, each with its stage times and the activities that ran beside it.
//!
//! Owns the entries ([`SlowIo`]) and their encoding, the ring's limit, and the sentence that explains an entry. `usual`
//! owns the threshold of slow I/O. Nothing here is on the fast path, which compares one latency per run with that
//! threshold.
//!
//! Invariants:
//! - F1: only the ring writes, when a slow I/O has ended; any thread reads at any time, without delaying the ring.
//! - F2: the last [`SLOW_IOS_KEPT`] are kept. Records of a run that ended together are one entry.

use std::fmt::Write as _;
use std::time::Duration;

use sheave_base::beside::Beside;
use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::keep_last::KeepLast;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::units::{fmt_bytes, fmt_ns};
use sheave_blk::stats::{Split, Stage};

use crate::io_stats::IoKind;

/// Number of slow I/Os that a ring keeps.
pub const SLOW_IOS_KEPT: usize = 256;

/// Default latency above which an I/O counts as slow, whatever its usual latency is.
pub const DEFAULT_SLOW_LIMIT: Duration = Duration::from_secs(1);

/// Place of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Byte position in the file.
    File(u64),
    /// Byte position on the device below the file, to which the file had mapped the I/O.
    Device(u64),
}

/// A slow I/O, or several equal ones that ended together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowIo {
    /// Sequence number in the ring's recorder.
    pub number: u64,
    /// The [group](crate::io_stats::IoGroup::id) of its file; 0 for a file without one.
    pub file: u64,
    /// Kind of the I/O.
    pub kind: IoKind,
    /// Place of the I/O, or of the first of several.
    pub place: Place,
    /// Bytes of each I/O.
    pub len: u32,
    /// Number of equal I/Os that ended together.
    pub ios: u32,
    /// Time of the end, on the clock of statistics.
    pub ended: CoarseTs,
    /// Time spent in each stage.
    pub split: Split,
    /// Number of I/Os that the ring had in flight when it ended, itself included.
    pub depth: u32,
    /// Activities that ran while the I/O was under way.
    pub beside: Beside,
    /// Latency above which the I/O counted as slow.
    pub slow_above_ns: u64,
    /// 99.9th percentile of the latencies of its kind on this file by this ring, over the ten seconds before; 0 if
    /// there were too few I/Os.
    pub usual_p999_ns: u64,
}

const WORDS: usize = 12;
/// Bit of an encoded place that marks it as one on the device.
const ON_DEVICE: u64 = 1 << 63;

impl SlowIo {
    /// Returns the I/O as numbers, for another process ([`FlightRecorder::recall`]).
    #[doc(hidden)]
    #[must_use]
    pub fn numbers(&self) -> Vec<u64> {
        self.words().to_vec()
    }

    fn words(&self) -> [u64; WORDS] {
        let place = match self.place {
            Place::File(at) => at & !ON_DEVICE,
            Place::Device(at) => at | ON_DEVICE,
        };
        let (kind, beside) = (self.kind as u64, u64::from(self.beside.bits()) << 8);
        let Split { worker_ns, tag_ns, plugged_ns, driver_ns, reap_ns } = self.split;
        [
            self.file,
            place,
            u64::from(self.len) | u64::from(self.ios) << 32,
            kind | beside | u64::from(self.depth) << 32,
            self.ended.0,
            self.slow_above_ns,
            self.usual_p999_ns,
            worker_ns,
            tag_ns,
            plugged_ns,
            driver_ns,
            reap_ns,
        ]
    }

    fn from_words(number: u64, words: [u64; WORDS]) -> SlowIo {
        let [file, place, sizes, what, ended, slow_above_ns, usual_p999_ns, ..] = words;
        let [.., worker_ns, tag_ns, plugged_ns, driver_ns, reap_ns] = words;
        let at = place & !ON_DEVICE;
        SlowIo {
            number,
            file,
            kind: IoKind::ALL.into_iter().find(|&kind| kind as u64 == what & 0xff).unwrap_or(IoKind::Other),
            place: if place == at { Place::File(at) } else { Place::Device(at) },
            len: sizes as u32,
            ios: (sizes >> 32) as u32,
            ended: CoarseTs(ended),
            split: Split { worker_ns, tag_ns, plugged_ns, driver_ns, reap_ns },
            depth: (what >> 32) as u32,
            beside: Beside::from_bits((what >> 8) as u8),
            slow_above_ns,
            usual_p999_ns,
        }
    }

    /// Returns the latency in ns.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.split.total_ns()
    }

    /// Returns one line that describes the I/O, on a file called `name`, and explains why it was slow.
    #[must_use]
    pub fn explain(&self, name: &str) -> String {
        let mut line = self.what(name);
        let _ = write!(line, " took {}: {}", fmt_ns(self.latency_ns()), self.stages());
        let beside: Vec<_> = self.beside.activities().map(|activity| activity.in_words()).collect();
        if let Some((last, others)) = beside.split_last() {
            let others = if others.is_empty() { String::new() } else { format!("{} and ", others.join(", ")) };
            let _ = write!(line, ", while {others}{last} ran");
        }
        let _ = write!(line, "; depth {}", self.depth);
        match self.usual_p999_ns {
            0 => line + "; too few before it to say what is usual",
            usual => line + &format!("; usual p99.9 {}", fmt_ns(usual)),
        }
    }

    fn what(&self, name: &str) -> String {
        let others = match self.ios {
            0 | 1 => String::new(),
            ios => format!(" (with {} more that ended with it)", ios - 1),
        };
        let at = match self.place {
            Place::File(at) => format!("at {} of {name}", fmt_bytes(at)),
            Place::Device(at) => format!("of {name}, at {} of its device,", fmt_bytes(at)),
        };
        match self.kind {
            IoKind::Other if self.len == 0 => format!("sync of {name}{others}"),
            IoKind::Other => format!("change of {} {at}{others}", fmt_bytes(self.len.into())),
            kind => format!("{} of {} {at}{others}", kind.name(), fmt_bytes(self.len.into())),
        }
    }

    /// Names the stages in which the I/O spent a tenth of its time or more, the longest first.
    fn stages(&self) -> String {
        let mut stages: Vec<_> = Stage::ALL.into_iter().map(|stage| (self.split.ns(stage), stage)).collect();
        stages.sort_by_key(|&(ns, _)| std::cmp::Reverse(ns));
        let long = stages.iter().filter(|(ns, _)| *ns > 0 && *ns * 10 >= self.latency_ns());
        let long: Vec<_> = long.map(|&(ns, stage)| format!("{} {}", fmt_ns(ns), in_words(stage))).collect();
        long.join(", ")
    }
}

fn in_words(stage: Stage) -> &'static str {
    match stage {
        Stage::Worker => "with a worker",
        Stage::Tag => "waiting to be let in",
        Stage::Plugged => "gathered in its batch",
        Stage::Driver => "in the driver",
        Stage::Reap => "waiting to be reaped",
    }
}

/// Result of [`FlightRecorder::read`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SlowIos {
    /// The slow I/Os, the oldest first.
    pub ios: Vec<SlowIo>,
    /// Argument for the next [`FlightRecorder::read`].
    pub next: u64,
    /// Number of I/Os that newer ones overwrote before they were read.
    pub lost: u64,
}

/// The flight recorder of a ring.
#[derive(Debug)]
pub struct FlightRecorder {
    kept: KeepLast<WORDS>,
    limit_ns: AtomicU64,
    clock: Clock,
}

impl FlightRecorder {
    /// Makes the recorder of a ring that uses `clock`.
    #[must_use]
    #[doc(hidden)]
    pub fn new(clock: Clock, limit: Duration) -> FlightRecorder {
        let recorder = FlightRecorder { kept: KeepLast::new(SLOW_IOS_KEPT), limit_ns: AtomicU64::new(0), clock };
        recorder.set_limit(limit);
        recorder
    }

    /// Sets the latency above which I/O is slow; the ring applies it within a second. Callable from any thread.
    pub fn set_limit(&self, limit: Duration) {
        // Relaxed: a value by itself.
        self.limit_ns.store(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the limit in ns.
    pub fn limit_ns(&self) -> u64 {
        // Relaxed: a value by itself.
        self.limit_ns.load(Ordering::Relaxed)
    }

    /// Records a slow I/O; its `number` is ignored. For the ring alone (F1).
    #[cold]
    pub fn keep(&self, io: &SlowIo) {
        self.kept.push(&io.words());
    }

    /// Records a slow I/O of another process that ended so long ago, on the file with this group. Numbers that are no
    /// I/O are passed over. For the ring alone (F1).
    #[doc(hidden)]
    pub fn recall(&self, numbers: &[u64], age: Duration, file: u64) {
        let Ok(words) = <[u64; WORDS]>::try_from(numbers) else { return };
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let ended = CoarseTs(self.clock.coarse().0.saturating_sub(age));
        self.keep(&SlowIo { file, ended, ..SlowIo::from_words(0, words) });
    }

    /// Returns the slow I/Os from number `from` on that are still kept.
    #[must_use]
    pub fn read(&self, from: u64) -> SlowIos {
        let next = self.kept.written();
        let ios: Vec<_> = (from.max(self.kept.oldest(next))..next)
            .filter_map(|number| Some(SlowIo::from_words(number, self.kept.read(number)?)))
            .collect();
        SlowIos { lost: next.saturating_sub(from).saturating_sub(ios.len() as u64), ios, next }
    }

    /// Returns the time since an I/O ended.
    #[must_use]
    pub fn age(&self, io: &SlowIo) -> Duration {
        Duration::from_nanos(self.clock.coarse().ns_since(io.ended))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
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
            "write of 4 KiB at 1.2 GiB of pool#vol took 48 ms: 47.6 ms in the driver, while a checkpoint ran; depth \
             17; usual p99.9 900 us"
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
}
