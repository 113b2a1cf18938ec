//! Parses the output of cachegrind: instructions of each function, and lines that were not in the first-level cache.
//!
//! Owns the format (`events:`, `fn=`, lines of counts, `summary:`), and runs nothing. A function whose code is in
//! several files has several `fn=` entries of one name, which are summed.

use std::collections::BTreeMap;

/// Options of valgrind: the tool, and caches that are the same on every machine. The first-level caches for data and
/// for instructions have 32 KiB of 64-byte lines each.
pub const OPTIONS: [&str; 5] =
    ["--tool=cachegrind", "--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"];

/// Counts of one run.
#[derive(Debug, Default, PartialEq)]
pub struct Profile {
    instructions: u64,
    lines: u64,
    functions: BTreeMap<String, u64>,
}

/// The difference of two runs, divided by their difference in I/Os.
#[derive(Debug, PartialEq)]
pub struct PerIo {
    pub instructions: f64,
    /// Number of lines that were fetched into the first-level data cache.
    pub lines: f64,
    pub functions: BTreeMap<String, f64>,
}

impl Profile {
    /// Parses the file. Returns `None` if it is malformed or cut short; a complete file ends with the summary.
    pub fn of(text: &str) -> Option<Profile> {
        let events: Vec<&str> = text.lines().find_map(|line| line.strip_prefix("events: "))?.split(' ').collect();
        let column = |name: &str| events.iter().position(|event| *event == name);
        let (all, misses) = (column("Ir")?, [column("D1mr")?, column("D1mw")?]);
        let counts = |line: &str| line.split(' ').map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
        let mut profile = Profile::default();
        let mut name = String::new();
        for line in text.lines() {
            if let Some(function) = line.strip_prefix("fn=") {
                name = short(function);
            } else if line.starts_with(|c: char| c.is_ascii_digit())
                && let Some((_, line)) = line.split_once(' ')
            {
                *profile.functions.entry(name.clone()).or_default() += counts(line)?.get(all)?;
            } else if let Some(line) = line.strip_prefix("summary: ") {
                let sums = counts(line.trim())?;
                profile.instructions = *sums.get(all)?;
                profile.lines = misses.iter().map(|at| sums.get(*at).copied()).sum::<Option<u64>>()?;
                return Some(profile);
            }
        }
        None
    }

    /// Returns the counts per I/O: the counts that this run has in excess of the `shorter` one, divided by `ios`, the
    /// number of I/Os that it has in excess.
    pub fn per_io(&self, shorter: &Profile, ios: u64) -> PerIo {
        let each = |long: u64, short: u64| (long as f64 - short as f64) / ios as f64;
        let of = |name: &String| shorter.functions.get(name).copied().unwrap_or(0);
        PerIo {
            instructions: each(self.instructions, shorter.instructions),
            lines: each(self.lines, shorter.lines),
            functions: self.functions.iter().map(|(name, &count)| (name.clone(), each(count, of(name)))).collect(),
        }
    }
}

/// Strips the hash that the compiler appends to a name.
fn short(name: &str) -> String {
    match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => name.into(),
        _ => name.into(),
    }
}
