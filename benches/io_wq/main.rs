//! Workers beside the kernel's io-wq: real work, a flood of nothing, one item at a time, idleness, cancels.
//!
//! ```sh
//! cargo bench --bench io_wq                          # all rows, on all CPUs
//! taskset -c 1 cargo bench --bench io_wq -- nop qd1  # some rows, on one CPU
//! cargo bench --bench io_wq -- copy --pairs 11 --ms 500
//! cargo bench --bench io_wq -- write --only ours     # one side alone, for a profiler
//! ```
//!
//! Owns what each row times, and says it in one sentence beside the figures. Ours and the kernel's take turns in one
//! process, pair after pair; figures are medians of the pairs. An item counts only if a thread other than its submitter
//! executed it: the pool says how many the submitter ran itself, and a row whose name has no "help" fails if there is
//! one.

mod loops;
mod ours;
mod peer;
mod rows;
#[path = "../timing/mod.rs"]
mod timing;

use std::time::Duration;

/// What to measure, and for how long.
pub struct Plan {
    /// Pairs of turns.
    pub pairs: u32,
    /// One turn.
    pub turn: Duration,
    /// Most workers of each side.
    pub workers: u32,
    /// Directory of the files.
    pub dir: std::path::PathBuf,
    /// The one side that has a turn; all of them when `None`.
    pub only: Option<String>,
}

impl Plan {
    /// Whether a side (`ours`, `kernel`, `inline`) has a turn.
    pub fn runs(&self, side: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == side)
    }
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: io_wq [ROW...] [--pairs N] [--ms N] [--workers N] [--dir PATH] [--only ours|kernel|inline]";

fn main() -> Result<()> {
    let mut plan =
        Plan { pairs: 9, turn: Duration::from_millis(200), workers: 2, dir: std::env::temp_dir(), only: None };
    let (mut names, mut args) = (Vec::new(), std::env::args().skip(1));
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse::<u32>().ok()).ok_or(USAGE);
        match arg.as_str() {
            "--bench" => {}
            "--pairs" => plan.pairs = number()?.max(1),
            "--ms" => plan.turn = Duration::from_millis(number()?.into()),
            "--workers" => plan.workers = number()?.max(1),
            "--dir" => plan.dir = args.next().ok_or(USAGE)?.into(),
            "--only" => plan.only = Some(args.next().ok_or(USAGE)?),
            _ => names.push(arg),
        }
    }
    if let Some(unknown) = names.iter().find(|name| !rows::ROWS.iter().any(|row| row.0 == name.as_str())) {
        let all: Vec<&str> = rows::ROWS.iter().map(|row| row.0).collect();
        return Err(format!("no row `{unknown}`: there are {}\n{USAGE}", all.join(" ")).into());
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cpus} CPUs, at most {} workers, {} pairs of {:?}", plan.workers, plan.pairs, plan.turn);
    for (name, what, run) in rows::ROWS {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            println!("\n{name}: {what}");
            run(&plan)?;
        }
    }
    Ok(())
}
