//! Shared parts of the tests of all crates: outside tools (fio, strace, valgrind ...), loud skips, and seeds.
//!
//! Owns the one table of outside tools with their Debian packages ([`tools::TOOLS`]) and their installation
//! ([`install`]), the skips of tests that cannot run here ([`skip()`]), the seeds of a randomized test ([`seeds`]), the
//! form in which images of disks are kept ([`expand_runs`]), the cases in which instructions are counted
//! ([`hot_loop::CASES`]), the allocator that counts ([`allocations::Counting`]), the filter that forbids a system call
//! ([`seccomp::forbid`]), signals to processes ([`process`]), the start of cargo ([`cargo()`](cargo::cargo)), and, each
//! behind a feature of its name, `certificates` for tests of TLS, a `ceph` cluster of one node, and a `systemd` in
//! namespaces.
//! Does not own any test data or devices.
//!
//! Invariants:
//! - I1: a test never installs anything; only `cargo xtask test --all --install` does, before the tests start.
//! - I2: a skip is never silent: it reaches stderr past the test harness's capture, and the summary of
//!   `cargo xtask test` counts it as skipped instead of passed.
//! - I3: in CI (`CI=true`) a tool that could be installed and is missing fails the test.
//!
//! Called by tests (as a dev-dependency) and by `xtask`. No product code depends on it.

pub mod allocations;
pub mod cargo;
#[cfg(feature = "ceph")]
pub mod ceph;
#[cfg(feature = "certificates")]
pub mod certificates;
pub mod hot_loop;
pub mod install;
pub mod process;
pub mod python;
pub mod runs;
pub mod seccomp;
pub mod seed;
pub mod skip;
#[cfg(feature = "systemd")]
pub mod systemd;
pub mod tools;

pub use runs::{expand_runs, to_runs};
pub use seed::{ROUND_ENV, SEED_ENV, seeds};
pub use skip::{SANITIZER_ENV, in_ci, skip, under_sanitizer};
pub use tools::require;

#[cfg(test)]
mod tests;
