//! The worst journals that somebody can forge: the processor time and memory that opening such a pool takes, for each
//! GiB of journal.
//!
//! ```sh
//! cargo bench -p sheave-vol --bench hostile
//! cargo bench -p sheave-vol --bench hostile -- leaf       # the cases with this in their names
//! cargo bench -p sheave-vol --bench hostile -- leaf 20    # so many openings of each, for a profile: the median
//! ```
//!
//! Sets no limits: docs/concepts/volumes.md has the expected figures, and `tests/hostile.rs` checks that worse journals
//! are refused. Each pool has a journal of 64 MiB, the largest, full of records of one kind. Times are the time that
//! this thread was on the processor. The device is `ram:`, whose memory is allocated before.

#[path = "../tests/support/hostile.rs"]
mod hostile;

use hostile::{JOURNAL_BYTES, copy, set, set_in, volume, with_journal};
use sheave_vol::record::Record;
use sheave_vol::{Checksum, OpenOptions, Pool};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Records = Box<dyn Iterator<Item = Record>>;

/// One journal.
struct Case {
    what: &'static str,
    checksum: Checksum,
    small_commits: bool,
    marks: bool,
    records: Records,
}

fn case(what: &'static str, records: impl Iterator<Item = Record> + 'static) -> Case {
    Case { what, checksum: Checksum::None, small_commits: false, marks: true, records: Box::new(records) }
}

fn main() -> Result<()> {
    println!("{:42} {:>10} {:>10} {:>9}  what became of it", "records", "CPU ms", "s a GiB", "MiB more");
    // `cargo bench` adds an argument of its own.
    let mut words: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let times = words.pop_if(|word| word.parse::<u32>().is_ok()).map_or(Ok(1), |word| word.parse())?;
    let wanted = words.pop().unwrap_or_default();
    for Case { what, checksum, small_commits, marks, records } in
        cases().into_iter().chain(summed_cases()).filter(|case| case.what.contains(&wanted))
    {
        let device = with_journal(checksum, marks, small_commits, records);
        let before = memory_kib(true)?;
        let (mut took, mut became) = (Vec::new(), String::new());
        for _ in 0..times.max(1) {
            let start = on_processor()?;
            let opened = Pool::open(&device, &OpenOptions::default().read_only(true));
            took.push(on_processor()? - start);
            became = opened.map_or_else(|error| error.to_string(), |_| "opens".into());
        }
        took.sort_unstable();
        let more = memory_kib(false)?.saturating_sub(before) as f64 / 1024.0;
        let seconds = took[took.len() / 2] as f64 / 1e9;
        let a_gib = seconds * (1u64 << 30) as f64 / JOURNAL_BYTES as f64;
        let became: String = became.chars().take(100).collect();
        println!("{what:42} {:10.1} {a_gib:10.2} {more:9.1}  {became}", seconds * 1e3);
    }
    Ok(())
}

fn cases() -> Vec<Case> {
    let one = || std::iter::once(volume(1));
    let far = (1u64 << 34) - 1;
    let wide = move || one().chain((0..4000).map(|slot| set(slot << 16)));
    let dense = move || one().chain((0..200).map(|leaf| set(leaf << 9)));
    let delete = |volume| Record::Delete { volume };
    let resize = |size| Record::Resize { volume: 1, size };
    let discard_in = |volume, unit, count| Record::Run { volume, unit, count, phys: 0 };
    let discard = move |unit, count| discard_in(1, unit, count);
    let volumes = || (1..=10_000).map(volume);
    let copies = (2..).flat_map(move |number| {
        let leaves = (0..200).map(move |leaf| set_in(number, leaf << 9));
        std::iter::once(copy(number)).chain(leaves).chain([delete(number)])
    });
    let small = Case { small_commits: true, ..case("one record a commit", one().chain((0..).map(|_| set(5)))) };
    vec![
        case("nothing", std::iter::empty()),
        small,
        case("deletes of what is not there", (0..).map(move |_| delete(7))),
        case("one unit over and over", one().chain((0..).map(|_| set(5)))),
        case("a leaf each", one().chain((0..).map(|leaf| set(leaf << 9)))),
        case("an index page each", one().chain((0..).map(|slot| set(slot << 16)))),
        case("a unit given and taken", one().chain((0..).flat_map(move |_| [set(5), discard(5, 1)]))),
        case("discards of holes in a leaf", one().chain([set(0)]).chain((0..).map(move |_| discard(1, 200)))),
        case(
            "discards of one unit of many",
            one().chain([set(0)]).chain((0..).flat_map(move |_| [set(1), discard(1, 128)])),
        ),
        case("units all over 30,000 leaves", one().chain((0..).map(|at| set(far_apart(at) & !255 | at >> 15 & 255)))),
        case("units of 10,000 volumes", volumes().chain((0..).map(|at| set_in(of(at), at & 255)))),
        case(
            "discards in 10,000 volumes",
            volumes().chain(
                (0..).flat_map(move |at| [set_in(of(at), 0), set_in(of(at), at & 127 | 1), discard_in(of(at), 1, 127)]),
            ),
        ),
        case(
            "discards of holes in 10,000 volumes",
            volumes()
                .chain((1..=10_000).map(|id| set_in(id, 0)))
                .chain((0..).map(move |at| discard_in(of(at), 1, 127))),
        ),
        case(
            "a unit of 10,000 volumes given and taken",
            volumes().chain((0..).flat_map(move |at| [set_in(of(at), 5), discard_in(of(at), 5, 1)])),
        ),
        case(
            "sizes of 10,000 volumes",
            volumes().chain((0..).map(move |at| Record::Resize { volume: of(at), size: 4096 * (1 + (at & 1)) })),
        ),
        case("discards of everything", one().chain((0..).flat_map(move |_| [set(far), discard(0, far + 1)]))),
        case("creates and deletes", (1..).flat_map(move |number| [volume(number), delete(number)])),
        case("creates", (1..).map(volume)),
        case("renames", one().chain((0..).map(|at| Record::Rename { volume: 1, name: format!("v{}", at & 1) }))),
        case("copies of 4,000 slots, deleted", wide().chain((2..).flat_map(move |n| [copy(n), delete(n)]))),
        case(
            "rollbacks of 4,000 slots",
            wide().chain([copy(2)]).chain((0..).map(|_| Record::Rollback { volume: 1, source: 2 })),
        ),
        case("200 leaves copied, deleted", dense().chain(copies)),
        case("runs", one().chain((0..).map(|_| Record::Run { volume: 1, unit: 0, count: 14_000, phys: 1100 }))),
        case("cut and grown again", one().chain((0..).flat_map(move |_| [set(far), resize(1 << 50), resize(4096)]))),
        case("sizes", one().chain((0..).map(move |at| resize(4096 * (1 + (at & 1)))))),
    ]
}

/// Journals of pools with checksums.
fn summed_cases() -> Vec<Case> {
    let one = || std::iter::once(volume(1));
    let summed = |what, records: Records| Case { checksum: Checksum::Crc32c, ..case(what, records) };
    // Units of the pool in no order, as written by a program before November 2026.
    let any_unit = |at: u64| Record::Set {
        volume: 1,
        unit: at & 0xFF_FFFF,
        phys: 2000 + at * 7919 % 13_000,
        written: [1, 0, 0, 0],
    };
    let unmarked =
        Case { marks: false, ..summed("units of a pool without marks", Box::new(one().chain((0..).map(any_unit)))) };
    let marks = |bad| move |at: u64| Record::Mark { bad, first: (1100 + at % 8000) << 4, count: 256 };
    vec![
        unmarked,
        summed("regions", Box::new((0..).map(|_| Record::Intent { first: 0, count: 250 }))),
        summed("marks", Box::new((0..).map(marks(true)))),
        summed("marks, and their end", Box::new((0..).flat_map(move |at| [marks(true)(at), marks(false)(at)]))),
    ]
}

/// Returns a unit in one of 30,000 leaves, in no order.
fn far_apart(at: u64) -> u64 {
    (at * 7919 % 30_000) << 8
}

/// Returns one of 10,000 volumes, in no order.
fn of(at: u64) -> u32 {
    (at * 7919 % 10_000) as u32 + 1
}

/// Nanoseconds that this thread has been on the processor.
fn on_processor() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(stat.split_whitespace().next().ok_or("the kernel keeps no times of threads")?.parse()?)
}

/// Returns the largest memory of this process since the last reset. With `forget`, resets it first, and so returns the
/// present memory.
fn memory_kib(forget: bool) -> Result<u64> {
    if forget {
        std::fs::write("/proc/self/clear_refs", "5")?;
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the kernel tells no memory")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
