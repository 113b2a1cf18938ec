//! Limits on the cost of an I/O, in counts that repeat on a busy machine: instructions (valgrind), system calls
//! (strace).
//!
//! Each test runs an example with few and with many I/Os, mostly `examples/hot_loop.rs`, the bare loop of an embedding
//! program. The difference divided by the difference in I/Os is the cost of one I/O, without start and end. The cases
//! are defined in [`sheave_testkit::hot_loop`]. (Tests in the crates count allocations.)
//!
//! - I1: the measured code is the code that users run, in the profiles `release` and `dist`. The tests have cargo build
//!   it (`cargo xtask test --all` has already done so, except for `dist`).

mod baseline;
mod cachegrind;
mod instructions;
mod interfaces;
mod system_calls;

use std::path::{Path, PathBuf};

use sheave_testkit::hot_loop::Profile;

/// Returns true, and reports a skip, if the build would differ from the build that users have.
fn skip_here() -> bool {
    let skip = sheave_testkit::under_sanitizer();
    if skip {
        sheave_testkit::skip("under a sanitizer the release build's counts are of no interest");
    }
    skip
}

/// Builds the measured programs as users get them (I1). Returns the directory of the profile's programs.
fn build(profile: Profile) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    for words in profile.builds() {
        let mut command = sheave_testkit::cargo::cargo();
        command.args(words).arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
        command.env_remove("RUSTC_WORKSPACE_WRAPPER"); // that of the tests is not the compiler of a release
        let output = command.output().expect("cargo starts");
        assert!(output.status.success(), "cargo build failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    target.join(profile.name())
}
