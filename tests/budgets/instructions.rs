//! Instructions per I/O: no case may take more than its budget, which `cargo xtask budgets --record` has recorded.
//!
//! `examples/hot_loop.rs` and `sheave bench` run under valgrind, with few and with many I/Os; the difference divided by
//! the difference in I/Os is the cost of one I/O, without start and end. Valgrind's counts are the same on every
//! machine, also on a busy one, but another compiler generates other code: then the margin is wide, and the test
//! reports that.
//!
//! Both profiles have budgets: `release`, in which calls between crates are inlined where the code asks for it, and
//! `dist`, which is optimized once more at link time and takes minutes to build: `cargo xtask budgets` counts that one.
//!
//! A budget only changes by hand: `cargo xtask budgets --record` writes `tests/budgets/instructions.txt`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sheave::open_device;
use sheave_testkit::hot_loop::{CASES, Case, Profile, Program, SHORT_LONG, arguments};

use crate::baseline::{Baseline, Counts};
use crate::{build, cachegrind, skip_here};

/// Margin in percent if the compiler is not the one of the baseline.
const MARGIN_OTHER_COMPILER: f64 = 20.0;

/// Set by `cargo xtask budgets --record`: write the baseline instead of comparing with it.
const RECORD_ENV: &str = "SHEAVE_RECORD_BUDGETS";

#[test]
fn instructions_stay_within_their_budgets() {
    if std::env::var_os(RECORD_ENV).is_none() {
        return hold(Profile::Release);
    }
    let counts = Profile::ALL.map(|profile| count(profile).expect("valgrind is there to record what it counts"));
    let text = Baseline::text(&compiler(), &counts);
    std::fs::write(path(), &text).expect("the baseline can be written");
    say(&format!("recorded {}:\n{text}", path().display()));
}

#[test]
#[ignore = "builds for minutes: cargo xtask budgets runs it"]
fn instructions_of_packages_stay_within_their_budgets() {
    if std::env::var_os(RECORD_ENV).is_none() {
        hold(Profile::Dist);
    }
}

/// Compares a profile's counts with its budgets.
fn hold(profile: Profile) {
    let Some(counts) = count(profile) else { return };
    let compiler = compiler();
    let baseline = Baseline::parse(&std::fs::read_to_string(path()).expect("the baseline can be read"));
    if host(&baseline.compiler) != host(&compiler) {
        return sheave_testkit::skip(&format!(
            "no budgets for {}, only for {}",
            host(&compiler),
            host(&baseline.compiler)
        ));
    }
    if let Some(note) = judge(&baseline, profile, &compiler, &counts) {
        say(&note);
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/budgets/instructions.txt")
}

/// Counts every case in the build of this profile; `None` after a skip.
fn count(profile: Profile) -> Option<Counts> {
    if skip_here() {
        return None;
    }
    let valgrind = sheave_testkit::require("valgrind")?;
    let programs = build(profile);
    let hot_loop = programs.join("examples/hot_loop");
    let file = file();
    let kernel_ring = has_kernel_ring(file.path());
    let cases = CASES.iter().filter(|case| kernel_ring || !case.needs_kernel_ring());
    let count = |case: &Case| {
        per_io(|ios| {
            let mut command = cachegrind::command(&valgrind);
            match case.program {
                Program::HotLoop => {
                    command.arg(&hot_loop).args(arguments(&case.on(&file.path().to_string_lossy()), &ios.to_string()))
                }
                Program::Bench => command
                    .arg(programs.join("sheave"))
                    .arg("bench")
                    .args(case.words.split(' '))
                    .arg(format!("--ios={ios}")),
            };
            command
        })
    };
    Some(cases.map(|case| (case.name, count(case))).collect())
}

/// Fails if a count is over its budget, and explains how to proceed. Otherwise returns a note that every reader should
/// see, if there is one.
fn judge(baseline: &Baseline, profile: Profile, compiler: &str, counts: &[(&str, f64)]) -> Option<String> {
    let mut report = String::new();
    let other_compiler = baseline.compiler != compiler;
    if other_compiler {
        let _ = writeln!(
            report,
            "NOTE: built by {compiler}, but the budgets are of {}: they are judged with a margin of \
             {MARGIN_OTHER_COMPILER} %, which hides what a narrow one would show. Record them anew.",
            baseline.compiler
        );
    }
    let (mut over, mut under) = (false, false);
    let _ = writeln!(report, "in the build of the profile `{}`:", profile.name());
    let _ = writeln!(report, "{:<30} {:>8} {:>8} {:>8}", "instructions an I/O", "budget", "now", "change");
    for (case, &(name, now)) in CASES.iter().zip(counts) {
        let Some(budget) = baseline.budget(name, profile) else {
            over = true;
            let _ = writeln!(report, "{name:<30} {:>8} {now:>8.2}  NO BUDGET", "-");
            continue;
        };
        let change = (now / budget - 1.0) * 100.0;
        let margin = if other_compiler { MARGIN_OTHER_COMPILER } else { case.margin_percent };
        over |= change > margin;
        under |= change < -margin;
        let verdict = if change > margin { format!("  OVER by more than {margin} %") } else { String::new() };
        let _ = writeln!(report, "{name:<30} {budget:>8.2} {now:>8.2} {change:>+7.2}%{verdict}");
    }
    let record = "after a change that is worth it, record the budgets anew: cargo xtask budgets --record";
    assert!(!over, "\n{report}{record}");
    (other_compiler || under).then(|| format!("{report}{record}\n"))
}

/// Writes past the test harness, which shows the output of failed tests only.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Returns compiler and target in one line.
fn compiler() -> String {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV").output();
    let text = String::from_utf8_lossy(&output.expect("rustc starts").stdout).into_owned();
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("unknown").to_owned();
    format!("rustc {} for {}", field("release: "), field("host: "))
}

/// Returns the target in such a line.
fn host(compiler: &str) -> &str {
    compiler.rsplit_once(' ').map_or(compiler, |(_, host)| host)
}

/// Returns true if this machine permits kernel rings; reports a skip if not.
fn has_kernel_ring(file: &Path) -> bool {
    let device = open_device(&format!("file:{}", file.display())).expect("a device");
    let attached = sheave::Ring::builder().build().expect("a ring").attach(&device);
    attached.inspect_err(|error| sheave_testkit::skip(&format!("no kernel ring here: {error}"))).is_ok()
}

/// Makes a file of 16 MiB with all its blocks allocated.
fn file() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    file.write_all(&vec![1; 16 << 20]).expect("written");
    file
}

/// Returns the instructions of one I/O of a command that is made for a number of them.
fn per_io(command: impl Fn(u64) -> Command) -> f64 {
    let (short, long) = SHORT_LONG;
    let count = |ios| instructions(command(ios));
    sheave_testkit::hot_loop::per_io(count(short), count(long))
}

fn instructions(mut command: Command) -> u64 {
    let output = command.output().expect("valgrind starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{said}");
    cachegrind::refs(&said).unwrap_or_else(|| panic!("valgrind gave no count of instructions:\n{said}"))
}

#[test]
fn valgrind_is_read_right() {
    let said = "==17== Cachegrind, a cache and branch-prediction profiler\n==17== I   refs:      44,389,419\n";
    assert_eq!(cachegrind::refs(said), Some(44_389_419));
    assert_eq!(cachegrind::refs("==17== Fatal error"), None);
}

/// Returns a baseline with every case at 100, and at 90 in packages.
fn round() -> Baseline {
    let all = |count| CASES.iter().map(|case| (case.name, count)).collect();
    Baseline::parse(&Baseline::text("rustc 1", &[all(100.0), all(90.0)]))
}

/// Returns counts: the first case as given, the others at 100.
fn counts(first: f64) -> Counts {
    with_others(first, 100.0)
}

fn with_others(first: f64, others: f64) -> Counts {
    CASES.iter().enumerate().map(|(at, case)| (case.name, if at == 0 { first } else { others })).collect()
}

#[test]
fn a_count_within_the_margin_passes() {
    assert_eq!(judge(&round(), Profile::Release, "rustc 1", &counts(102.9)), None);
    let note = judge(&round(), Profile::Release, "rustc 2", &counts(119.0)).expect("another compiler is told");
    assert!(note.starts_with("NOTE: built by rustc 2"), "{note}");
    let note = judge(&round(), Profile::Release, "rustc 1", &counts(50.0)).expect("a generous budget is told");
    assert!(note.contains("-50.00%"), "{note}");
}

#[test]
#[should_panic(expected = "OVER by more than 3 %")]
fn a_count_over_the_margin_fails() {
    judge(&round(), Profile::Release, "rustc 1", &counts(103.1));
}

#[test]
#[should_panic(expected = "OVER by more than 20 %")]
fn another_compiler_has_a_limit_too() {
    judge(&round(), Profile::Release, "rustc 2", &counts(121.0));
}

#[test]
#[should_panic(expected = "of the profile `dist`")]
fn packages_have_budgets_of_their_own() {
    assert_eq!(judge(&round(), Profile::Dist, "rustc 1", &with_others(92.6, 90.0)), None);
    judge(&round(), Profile::Dist, "rustc 1", &with_others(92.8, 90.0));
}

#[test]
#[should_panic(expected = "NO BUDGET")]
fn a_case_without_a_budget_fails() {
    judge(&Baseline::parse("compiler: rustc 1\n"), Profile::Release, "rustc 1", &counts(100.0));
}
