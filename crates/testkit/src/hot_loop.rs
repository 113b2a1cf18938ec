//! The cases in which the instructions of an I/O are counted: what `examples/hot_loop.rs` is run with.
//!
//! Owns the one list ([`CASES`]), which `tests/budgets` guards and `cargo xtask bench counts` puts into
//! docs/performance.md, how long a run is, and the words with which cargo builds the programs that are counted
//! ([`Profile::builds`]). Does not run anything.
//!
//! I1: a case has words of its own, and the cases that need a kernel ring come last.

/// A case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    /// Its name in the file of budgets.
    pub name: &'static str,
    /// The arguments of the program without the number of I/Os: `SPEC RW DEPTH BATCH [WORD]...`. `FILE` in it stands
    /// for the path of a file, and what else a spec says of it.
    pub words: &'static str,
    /// How much more than its budget it may take.
    pub margin_percent: f64,
    /// What is run.
    pub program: Program,
}

/// A program whose I/Os are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `examples/hot_loop.rs`.
    HotLoop,
    /// `sheave bench`: the words are its arguments, without the number of I/Os.
    Bench,
}

/// The counts themselves repeat to a hundredth; what is left is for code that moves about.
const MARGIN: f64 = 3.0;
/// `ram:` copies with libc's memcpy, which is not the same everywhere.
const MARGIN_COPYING: f64 = 10.0;
/// How many completions of a file a poll finds is the kernel's.
const MARGIN_KERNEL: f64 = 10.0;

const fn case(name: &'static str, words: &'static str) -> Case {
    Case { name, words, margin_percent: MARGIN, program: Program::HotLoop }
}

/// All of them.
pub const CASES: &[Case] = &[
    case("null-read-d128-b32", "null:size=1T read 128 32"),
    case("null-read-d128-b32-nostats", "null:size=1T read 128 32 nostats"),
    case("null-read-d128-b32-traced", "null:size=1T read 128 32 traced"),
    case("null-write-d128-b32", "null:size=1T write 128 32"),
    case("null-read-d1", "null:size=1T read 1 1"),
    // The loop of `sheave bench`, which measures and compares: a crate of its own, generic over what it drives.
    Case {
        program: Program::Bench,
        ..case("bench-null-read-d128-b32", "null:size=1T --bs=512 --depth=128 --batch=32 --poll")
    },
    case("mapped-read-d128-b32", "null:size=1T read 128 32 mapped"),
    case("mapped-write-d128-b32", "null:size=1T write 128 32 mapped"),
    // What is kept is what lies before the first unit, so that no data goes to it; the row before is the same device.
    case("null-keep-read-d128-b32", "null:size=1G,keep=1088K read 128 32"),
    case("volume-read-d128-b32", "null:size=1G,keep=1088K read 128 32 volume"),
    case("volume-write-d128-b32", "null:size=1G,keep=1088K write 128 32 volume"),
    // One in sixteen takes a unit of the pool, and all of them note what is written.
    case("volume-first-write-4k-d128-b32", "null:size=1G,keep=1088K write 128 32 fresh seq 4k"),
    case("null-read-seq-d128-b32", "null:size=1T read 128 32 seq"),
    Case { margin_percent: MARGIN_COPYING, ..case("ram-read-d128-b32", "ram:size=64M read 128 32") },
    Case { margin_percent: MARGIN_KERNEL, ..case("file-read-4k-d32-b32", "file:FILE read 32 32 4k sleep") },
    Case { margin_percent: MARGIN_KERNEL, ..case("file-read-4k-d1", "file:FILE read 1 1 4k sleep") },
];

/// The arguments of cargo, but for the profile, that build what is counted: the command line as users build it, then
/// the examples. The examples select the command line too, of which nothing is built for them: its dependencies want
/// features that the library alone does not, and without them cargo would compile every floor once for the program and
/// once for the examples.
const BUILDS: [&str; 2] =
    ["build --quiet --bin sheave", "build --quiet -p sheave -p sheave-cli --example hot_loop --example interfaces"];

/// The profiles of the programs that users run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// What `cargo build --release` makes.
    Release,
    /// What packages have: optimized once more when it is linked.
    Dist,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 2] = [Profile::Release, Profile::Dist];

    /// The profile's name, which is that of its directory under `target` too.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Dist => "dist",
        }
    }

    /// The arguments of cargo that build what is counted, by this profile: of one call after the other.
    pub fn builds(self) -> impl Iterator<Item = Vec<&'static str>> {
        BUILDS.into_iter().map(move |words| words.split(' ').chain(["--profile", self.name()]).collect())
    }
}

/// I/Os of a short and of a long run, whole batches of every case: the difference of their counts by the I/Os between
/// is what one I/O costs, whatever start and end do.
pub const SHORT_LONG: (u64, u64) = (12_800, 128_000);

impl Case {
    /// Whether the machine must give out kernel rings.
    pub fn needs_kernel_ring(&self) -> bool {
        self.words.starts_with("file:")
    }

    /// The words with a file in the place of `FILE`.
    pub fn on(&self, file: &str) -> String {
        self.words.replace("FILE", file)
    }
}

/// The program's arguments: such words, with a number of I/Os (or what stands for one) where the program wants it.
pub fn arguments(words: &str, ios: &str) -> Vec<String> {
    let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    words.insert(4, ios.to_owned()); // SPEC RW DEPTH BATCH IOS [WORD]...
    words
}

/// What an I/O costs by the counts of a short and of a long run.
pub fn per_io(short: u64, long: u64) -> f64 {
    let (few, many) = SHORT_LONG;
    (long as f64 - short as f64) / (many - few) as f64
}
