//! A Linux guest in QEMU: boots in seconds, runs one shell script, and powers off.
//!
//! Owns the [Debian packages](debian) that a guest is made of ([`Kit`]), the way it is started ([`Boot`]), and the
//! running guest ([`Guest`]), to which a test can talk: it waits for lines of the script's output, sends lines to the
//! script's input, and changes the virtual machine through QMP. Does not own the back ends of the disks.
//!
//! ```no_run
//! let script = "mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt && echo mounted && poweroff";
//! let Some(guest) = sheave_guest::Boot::new(script).vhost_user("/run/disk.sock", 1, 128).start() else { return };
//! assert_eq!(guest.end().code, 0);
//! ```
//!
//! Invariants:
//! - G1: one guest runs at a time below one target directory, because the emulation uses all CPUs.
//! - G2: a guest ends when its time is up, when the value is dropped, and when the thread that started it ends.
//! - G3: a missing kit is a loud skip; in CI it fails the test. Tests never download it.
//!
//! Called by tests (as a dev-dependency) and by `cargo xtask guest`. No product code depends on it.

mod archive;
mod boot;
pub mod debian;
mod guest;
mod kit;
mod qmp;

pub use boot::Boot;
pub use guest::{Ended, Guest, NEVER_UP, TIMED_OUT};
pub use kit::{Kit, directory, ensure};
pub use qmp::Qmp;

/// The command that downloads the kit.
pub const CURE: &str = "`cargo xtask guest --install`";

/// Returns the kit for the calling test, or `None` after a loud skip: then return from the test.
///
/// # Panics
///
/// Panics in CI if the kit is missing (G3).
#[must_use]
pub fn require() -> Option<Kit> {
    let error = match Kit::find() {
        Ok(kit) => return Some(kit),
        Err(error) => format!("{error:#}"),
    };
    assert!(!sheave_testkit::in_ci(), "in CI a missing guest is a failure: {error}");
    sheave_testkit::skip(&error);
    None
}
