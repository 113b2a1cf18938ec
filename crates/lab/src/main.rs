//! `sheave-lab`: the experiments as a program. Everything it does is in the library beside it.
//!
//! The experiments need hooks in the floors that no product has. Those, and the lab itself, are compiled in by
//! `--cfg sheave_lab` alone, which `cargo xtask lab` gives; an ordinary build of this program says so.

#[cfg(sheave_lab)]
use std::process::ExitCode;

/// Counts while an experiment asks it to.
#[cfg(sheave_lab)]
#[global_allocator]
static ALLOC: sheave_lab::alloc::Counting = sheave_lab::alloc::Counting;

#[cfg(sheave_lab)]
fn main() -> ExitCode {
    sheave_lab::command::main()
}

#[cfg(not(sheave_lab))]
fn main() {
    eprintln!("sheave-lab: an ordinary build leaves out what only experiments need, and so the experiments");
    eprintln!("   fix: build and start the lab with `cargo xtask lab`, for example `cargo xtask lab all --quick`");
    std::process::exit(2);
}
