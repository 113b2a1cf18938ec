//! The randomized differential test: the same SQEs on the kernel's io_uring and on Sheave, every CQE and byte compared.
//!
//! A seed makes a program (`generator`), each ring runs it from the same bytes (`run`), and the outcomes are compared
//! (`compare`). A difference is run again with longer waits, made smaller (`shrink`) and printed.
//! `docs/reference/compat.md` describes the kernel's answers, and where Sheave differs on purpose.
//!
//! ```text
//! cargo test --test differential                                   # the default seeds
//! SHEAVE_DIFF_RUNS=100000 cargo test --test differential           # more of them
//! SHEAVE_SEED=4711 cargo test --test differential -- --nocapture   # one again
//! ```

mod abi;
mod blockdev;
mod compare;
mod generator;
mod kernel;
mod program;
mod run;
mod sheave_ring;
mod shrink;

use std::os::fd::AsRawFd;
use std::path::Path;

use abi::{RawSqe, flag, op};
use blockdev::BlockDev;
use generator::{Limits, generate};
use kernel::Kernel;
use program::{Program, Shape};
use run::{Bytes, Cqe, Patience, Target, run};
use sheave_ring::Sheave;

/// Number of programs that one test runs by default (`SHEAVE_DIFF_RUNS`); they take a few seconds.
const DEFAULT_RUNS: u64 = 120;

/// Makes the kernel's side. `None`, with a loud note, if io_uring is not available.
fn kernel(name: &str) -> Option<Kernel> {
    if let Err(why) = kernel::available() {
        sheave_testkit::skip(&format!("the kernel's io_uring cannot be had ({why}): nothing was compared"));
        return None;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    Some(Kernel::new(BlockDev::create(dir, name).expect("a file for the kernel's side")))
}

/// Returns the number of programs that one test runs.
fn runs() -> u64 {
    let Ok(text) = std::env::var("SHEAVE_DIFF_RUNS") else { return DEFAULT_RUNS };
    text.parse().unwrap_or_else(|_| panic!("SHEAVE_DIFF_RUNS={text}: must be a number"))
}

/// Runs the seeds on both rings. Panics with a small reproducer at the first difference.
fn compare_on(kernel: &mut Kernel, ours: &mut dyn Target) {
    let limits = Limits { block_device: kernel.device.is_block_device, realtime: kernel::may_be_realtime() };
    let seeds = sheave_testkit::seeds(runs());
    println!("{} against {}: seeds {seeds:?}", ours.name(), kernel.name());
    let mut sqes = 0;
    for seed in seeds {
        let program = generate(seed, limits);
        sqes += program.len();
        let mut looks = Patience::LOOKS.iter().map(|&patience| differ(kernel, ours, &program, patience));
        if let Some(lines) = looks.try_fold(Vec::new(), |_, lines| lines) {
            report(kernel, ours, program, &lines);
        }
    }
    println!("{sqes} SQEs, no difference");
}

fn differ(kernel: &mut Kernel, ours: &mut dyn Target, program: &Program, patience: Patience) -> Option<Vec<String>> {
    let theirs = run(kernel, program, patience);
    let mine = run(ours, program, patience);
    let lines = compare::differences(program, &theirs, &mine);
    (!lines.is_empty()).then_some(lines)
}

fn report(kernel: &mut Kernel, ours: &mut dyn Target, program: Program, lines: &[String]) -> ! {
    let seed = program.seed;
    let small = shrink::shrink(program, |smaller| differ(kernel, ours, smaller, Patience::SHRINKING).is_some());
    let theirs = run(kernel, &small, Patience::LOOKS[1]);
    let mine = run(ours, &small, Patience::LOOKS[1]);
    let again = compare::differences(&small, &theirs, &mine);
    panic!(
        "{} differs from {} with seed {seed}:\n  {}\nmade smaller ({} SQEs):\n{}\n{}  {}\nagain: SHEAVE_SEED={seed} \
         cargo test --test differential -- --nocapture\n",
        ours.name(),
        kernel.name(),
        lines.join("\n  "),
        small.len(),
        small.describe(),
        compare::listing(&theirs, &mine),
        again.join("\n  "),
    );
}

/// The kernel against itself: proves that generated programs have one right answer.
#[test]
fn kernel_agrees_with_itself() {
    let (Some(mut one), Some(mut two)) = (kernel("self-a"), kernel("self-b")) else { return };
    compare_on(&mut one, &mut two);
}

#[test]
fn sheave_on_ram_agrees_with_the_kernel() {
    let Some(mut kernel) = kernel("ram") else { return };
    compare_on(&mut kernel, &mut Sheave::new("ram:size=256k"));
}

/// Compares no bytes, but completions that end at once, and completions that end late.
#[test]
fn sheave_on_null_agrees_with_the_kernel() {
    let Some(mut kernel) = kernel("null") else { return };
    compare_on(&mut kernel, &mut Sheave::new("null:size=256k"));
    compare_on(&mut kernel, &mut Sheave::new("null:size=256k,latency=200us"));
}

#[test]
fn sheave_on_a_file_agrees_with_the_kernel() {
    let Some(mut kernel) = kernel("file") else { return };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    compare_on(&mut kernel, &mut Sheave::on_file(dir, "sheave"));
}

/// Lengths above the limit of reads and writes are cut to it, and a cut operation does not count as short. Only a
/// device that is longer than the limit shows this, and no memory may have to be read for it: the kernel's side writes
/// to `/dev/null`.
#[test]
fn lengths_above_the_most_are_cut_as_the_kernels_are() {
    let Some(mut kernel) = kernel("longest") else { return };
    let sink = std::fs::File::options().write(true).open("/dev/null").expect("/dev/null");
    let mut ours = Sheave::new("null:size=256k");
    let (shape, bytes) = (Shape { entries: 8, cq_entries: 16, hoard: false }, Bytes::before(0));
    let lengths = [0x7fff_f000, 0x7fff_f001, 0x7fff_f200, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    for (len, flags) in lengths.into_iter().flat_map(|len| [0, flag::ASYNC, flag::SKIP].map(|flags| (len, flags))) {
        let theirs = (kernel.open(shape, &bytes).arena, sink.as_raw_fd());
        let mine = (ours.open(shape, &bytes).arena, ours.attach("null:size=1T"));
        let run = |target: &mut dyn Target, (addr, fd): (u64, i32)| {
            let nop = RawSqe { opcode: op::NOP, user_data: 2, ..RawSqe::default() };
            let write = RawSqe { opcode: op::WRITE, fd, addr, len, flags: flags | flag::LINK, user_data: 1, ..nop };
            target.submit(&[write, nop]);
            let mut cqes = Vec::new();
            while cqes.last().is_none_or(|cqe: &Cqe| cqe.user_data != 2) {
                target.reap(&mut cqes, Patience::LOOKS[1].settle);
            }
            cqes
        };
        assert_eq!(run(&mut ours, mine), run(&mut kernel, theirs), "length {len:#x}, flags {flags:#x}");
    }
}
