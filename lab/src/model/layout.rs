//! Size and alignment of the types whose cache lines are simulated. They must be equal in both builds, or else there is
//! no prediction.
//!
//! Two types of the same size and alignment have the same layout, because the compiler orders fields according to these
//! two alone.

use std::fmt::Write as _;

use sheave_base::parker::{Parker, Unparker};
use sheave_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize};
use sheave_base::sync::{Arc, Condvar, Mutex};
use sheave_base::{clock, grace, mpscq, sbitmap};

use crate::counters::{Counters, Seat};
use crate::wq::pool_engine::{Back, BenchSource};

/// Returns a line for each type: its name, size and alignment.
pub fn of_this_build() -> String {
    let mut text = String::new();
    macro_rules! types {
        ($($of:ty),* $(,)?) => {
            $(let _ = writeln!(text, "{}\t{}\t{}", stringify!($of), size_of::<$of>(), align_of::<$of>());)*
        };
    }
    types!(
        AtomicBool,
        AtomicU8,
        AtomicU16,
        AtomicU32,
        AtomicU64,
        AtomicUsize,
        Condvar,
        Mutex<u8>,
        Mutex<[u64; 5]>,
        Arc<AtomicU64>,
        sbitmap::Sbitmap,
        mpscq::MpscQueue,
        mpscq::Consumer,
        Parker,
        Unparker,
        clock::Clock,
        grace::Grace,
        grace::Seat,
        sheave_blk::queue::Queue,
        sheave_blk::tag_set::TagSet,
        sheave_blk::stats::HctxStats,
        sheave::Device,
        sheave::Ring,
        sheave_uring::io_wq::Pool<BenchSource>,
        sheave_uring::io_wq::Submitter<BenchSource>,
        Back,
        Counters,
        Seat,
    );
    text
}
