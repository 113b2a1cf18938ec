//! `sheave-lines EXPERIMENT [SEED]`: counts what an experiment's arms do to the cache lines of a simulated machine.
//!
//! Everything it does is in the library beside it. It is compiled in by `--cfg sheave_mesi` alone, which
//! `cargo xtask lab` gives to a build of its own, and is started by `sheave-lab`.

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
