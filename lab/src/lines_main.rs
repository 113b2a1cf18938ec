//! `sheave-lines EXPERIMENT [SEED]`: counts the cache-line traffic of an experiment's arms on a simulated machine.
//!
//! The library has all of the code. It is compiled only under `--cfg sheave_mesi`, for which `cargo xtask lab` makes a
//! separate build. `sheave-lab` starts the program.

#[cfg(sheave_mesi)]
fn main() -> std::process::ExitCode {
    sheave_lab::lines::main()
}

#[cfg(not(sheave_mesi))]
fn main() {
    eprintln!("sheave-lines: this build has no simulated machine");
    eprintln!("   fix: build and start the lab with `cargo xtask lab`, which builds this too");
    std::process::exit(2);
}
