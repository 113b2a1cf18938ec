//! The file of the budgets: the compiler that they were recorded with, and a line for each case.
//!
//! Owns the format. `#` begins a comment; `compiler: WORDS` comes once; every other line is `CASE INSTRUCTIONS`.

/// What the file says.
#[derive(Debug)]
pub struct Baseline {
    /// As `rustc VERSION for HOST`.
    pub compiler: String,
    budgets: Vec<(String, f64)>,
}

impl Baseline {
    /// Reads the file. A line that is wrong panics: it would be a budget that nobody guards.
    pub fn parse(text: &str) -> Baseline {
        let mut baseline = Baseline { compiler: "no compiler".into(), budgets: Vec::new() };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            if let Some(compiler) = line.strip_prefix("compiler: ") {
                baseline.compiler = compiler.to_owned();
                continue;
            }
            let budget = line.split_once(' ').and_then(|(name, count)| Some((name, count.trim().parse().ok()?)));
            let (name, count) = budget.unwrap_or_else(|| panic!("`{line}` is no line of the kind `CASE INSTRUCTIONS`"));
            baseline.budgets.push((name.to_owned(), count));
        }
        baseline
    }

    /// The budget of a case.
    pub fn budget(&self, name: &str) -> Option<f64> {
        self.budgets.iter().find(|(have, _)| have == name).map(|(_, count)| *count)
    }

    /// The file for these counts.
    pub fn text(compiler: &str, counts: &[(&str, f64)]) -> String {
        let mut text = "# Instructions an I/O of examples/hot_loop.rs in the release build, under valgrind.\n\
                        # Written by `cargo xtask budgets --record`; what guards them is tests/budgets/main.rs.\n"
            .to_owned();
        text += &format!("compiler: {compiler}\n");
        for (name, count) in counts {
            text += &format!("{name:<30} {count:.2}\n");
        }
        text
    }
}
