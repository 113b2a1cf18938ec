//! `sheave-lab`: the experiments as a program. The library has all of the code.
//!
//! The experiments need hooks in the product crates that no product build has. The hooks and the lab itself are
//! compiled only under `--cfg sheave_lab`, which `cargo xtask lab` sets. An ordinary build of this program prints an
//! explanation.

#[cfg(sheave_lab)]
use std::process::ExitCode;

/// Counts allocator calls for experiments.
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
