//! The file of budgets: the compiler that they were recorded with, and a line for each case.
//!
//! Owns the format. `#` begins a comment; `compiler: WORDS` occurs once; every other line is `CASE RELEASE DIST`: the
//! instructions per I/O in the build of each profile.

use sheave_testkit::hot_loop::Profile;

/// Instructions per I/O by case, in the order of the cases.
pub type Counts = Vec<(&'static str, f64)>;

/// The content of the file.
#[derive(Debug)]
pub struct Baseline {
    /// The compiler, as `rustc VERSION for HOST`.
    pub compiler: String,
    budgets: Vec<(String, [f64; 2])>,
}

impl Baseline {
    /// Reads the file. Panics at a malformed line, which would be a budget without effect.
    pub fn parse(text: &str) -> Baseline {
        let mut baseline = Baseline { compiler: "no compiler".into(), budgets: Vec::new() };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            if let Some(compiler) = line.strip_prefix("compiler: ") {
                baseline.compiler = compiler.to_owned();
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let budget = match words[..] {
                [name, release, dist] => release.parse().ok().zip(dist.parse().ok()).map(|counts| (name, counts)),
                _ => None,
            };
            let (name, (release, dist)) =
                budget.unwrap_or_else(|| panic!("`{line}` is no line of the kind `CASE RELEASE DIST`"));
            baseline.budgets.push((name.to_owned(), [release, dist]));
        }
        baseline
    }

    /// Returns the budget of a case.
    pub fn budget(&self, name: &str, profile: Profile) -> Option<f64> {
        self.budgets.iter().find(|(have, _)| have == name).map(|(_, counts)| counts[profile as usize])
    }

    /// Returns the content of the file for the counts of each profile.
    pub fn text(compiler: &str, [release, dist]: &[Counts; 2]) -> String {
        let mut text =
            "# Instructions an I/O under valgrind: of examples/hot_loop.rs and `sheave bench`, both profiles.\n\
                        # Written by `cargo xtask budgets --record`; what guards them is tests/budgets/main.rs.\n"
                .to_owned();
        text += &format!("compiler: {compiler}\n# {:<28} {:>8} {:>8}\n", "case", "release", "dist");
        for ((name, release), (_, dist)) in release.iter().zip(dist) {
            text += &format!("{name:<30} {release:>8.2} {dist:>8.2}\n");
        }
        text
    }
}
