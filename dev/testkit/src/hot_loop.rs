//! The cases in which the instructions of an I/O are counted: arguments for `examples/hot_loop.rs`.
//!
//! Owns three things: the list of cases ([`CASES`]), which `tests/budgets` guards and `cargo xtask bench counts` puts
//! into docs/reference/performance.md; the length of a run; and the arguments with which cargo builds the counted
//! programs ([`Profile::builds`]). It runs nothing.
//!
//! I1: no two cases have the same arguments, and the cases that need a kernel ring come last.

/// A program and its arguments, whose instructions are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    /// The name in the file of budgets.
    pub name: &'static str,
    /// The arguments of the program without the number of I/Os: `SPEC RW DEPTH BATCH [WORD]...`. `FILE` stands for the
    /// path of a file, together with further keys of its spec.
    pub words: &'static str,
    /// Percentage by which the count may exceed its budget.
    pub margin_percent: f64,
    pub program: Program,
}

/// A program whose I/Os are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `examples/hot_loop.rs`.
    HotLoop,
    /// `sheave bench`. The words are its arguments, without the number of I/Os.
    Bench,
}

/// Margin for code that the compiler arranges differently, in percent. Without such changes, counts repeat to a
/// hundredth of a percent.
const MARGIN: f64 = 3.0;
/// Margin for cases on `ram:`, in percent: the device copies with libc's memcpy, which differs between machines.
const MARGIN_COPYING: f64 = 10.0;
/// Margin for cases on files, in percent: the number of completions that a poll finds depends on the kernel.
const MARGIN_KERNEL: f64 = 10.0;

const fn case(name: &'static str, words: &'static str) -> Case {
    Case { name, words, margin_percent: MARGIN, program: Program::HotLoop }
}

pub const CASES: &[Case] = &[
    case("null-read-d128-b32", "null:size=1T read 128 32"),
    case("null-read-d128-b32-nostats", "null:size=1T read 128 32 nostats"),
    case("null-read-d128-b32-traced", "null:size=1T read 128 32 traced"),
    case("null-write-d128-b32", "null:size=1T write 128 32"),
    case("null-read-d1", "null:size=1T read 1 1"),
    // The loop of `sheave bench` is in a crate of its own, and generic over the engine that it drives.
    Case {
        program: Program::Bench,
        ..case("bench-null-read-d128-b32", "null:size=1T --bs=512 --depth=128 --batch=32 --poll")
    },
    case("mapped-read-d128-b32", "null:size=1T read 128 32 mapped"),
    case("mapped-write-d128-b32", "null:size=1T write 128 32 mapped"),
    // `keep` covers everything before the first unit, so no data is copied. The row before it uses the same device.
    case("null-keep-read-d128-b32", "null:size=1G,keep=1088K read 128 32"),
    case("volume-read-d128-b32", "null:size=1G,keep=1088K read 128 32 volume"),
    case("volume-write-d128-b32", "null:size=1G,keep=1088K write 128 32 volume"),
    // One write in sixteen allocates a unit, and every write records that its blocks are written.
    case("volume-first-write-4k-d128-b32", "null:size=1G,keep=1088K write 128 32 fresh seq 4k"),
    case("null-read-seq-d128-b32", "null:size=1T read 128 32 seq"),
    Case { margin_percent: MARGIN_COPYING, ..case("ram-read-d128-b32", "ram:size=64M read 128 32") },
    Case { margin_percent: MARGIN_KERNEL, ..case("file-read-4k-d32-b32", "file:FILE read 32 32 4k sleep") },
    Case { margin_percent: MARGIN_KERNEL, ..case("file-read-4k-d1", "file:FILE read 1 1 4k sleep") },
];

/// The arguments of cargo, without the profile, that build the counted programs: first the command line as users build
/// it, then the examples.
///
/// The second build selects the command line too, although it builds nothing of it. The dependencies of the command
/// line enable features that the library alone does not. Without them cargo would compile every crate once for the
/// program and once for the examples.
const BUILDS: [&str; 2] =
    ["build --quiet --bin sheave", "build --quiet -p sheave -p sheave-cli --example hot_loop --example interfaces"];

/// The profiles of the programs that users run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Release,
    /// The profile of packages, with link-time optimization.
    Dist,
}

impl Profile {
    pub const ALL: [Profile; 2] = [Profile::Release, Profile::Dist];

    /// Returns the profile's name, which is that of its directory under `target` too.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Dist => "dist",
        }
    }

    /// Returns the arguments of cargo for each call that builds the counted programs with this profile.
    pub fn builds(self) -> impl Iterator<Item = Vec<&'static str>> {
        BUILDS.into_iter().map(move |words| words.split(' ').chain(["--profile", self.name()]).collect())
    }
}

/// Number of I/Os of a short and of a long run, in whole batches of every case. The difference of the two counts does
/// not include start and end of the program; divided by the difference of I/Os it is the count of one I/O.
pub const SHORT_LONG: (u64, u64) = (12_800, 128_000);

impl Case {
    /// Returns true if the case needs kernel rings, which the machine may refuse.
    pub fn needs_kernel_ring(&self) -> bool {
        self.words.starts_with("file:")
    }

    /// Returns the words with `FILE` replaced by `file`.
    pub fn on(&self, file: &str) -> String {
        self.words.replace("FILE", file)
    }
}

/// Returns the program's arguments: `words` with `ios`, the number of I/Os or a placeholder, at its position.
pub fn arguments(words: &str, ios: &str) -> Vec<String> {
    let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    words.insert(4, ios.to_owned()); // SPEC RW DEPTH BATCH IOS [WORD]...
    words
}

/// Returns the count of one I/O, computed from the counts of a short and of a long run.
pub fn per_io(short: u64, long: u64) -> f64 {
    let (few, many) = SHORT_LONG;
    (long as f64 - short as f64) / (many - few) as f64
}
