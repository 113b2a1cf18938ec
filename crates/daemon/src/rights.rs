//! Permission to open the devices that a call names.
//!
//! The daemon often runs as root, and a user may be allowed to change its exports without being root. So:
//!
//! * P1. The configuration, root and the daemon's own user may name anything: they have the daemon's rights, or more.
//! * P2. A device that any other user names is opened with that user's rights, by the caller, who passes the
//!   descriptors. A spec with which the daemon would open a file, socket or server itself is refused, at any depth of
//!   the spec, and so is a kind of device that does not declare what it opens.
//! * P3. The spec of a file that such a user passes must have the path that the kernel knows for the file, because the
//!   daemon later opens and shows that path.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use sheave_drivers::host::Passed;
use sheave_drivers::reach::Reach;

use crate::devices;
use crate::failure::{self, Failure};

/// The rights with which a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// The daemon's rights (P1).
    Own,
    /// The rights of a user that is neither root nor the daemon's own (P2).
    Of { uid: u32 },
}

impl Rights {
    /// Returns the rights for calls of this user.
    pub fn of_user(uid: u32) -> Rights {
        let own = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == own { Rights::Own } else { Rights::Of { uid } }
    }

    /// Fails if `spec` needs more than these rights. `passed` is the file that the caller sent with it.
    pub fn expect(self, spec: &str, passed: Option<&Passed>) -> Result<(), Failure> {
        let Rights::Of { uid } = self else { return Ok(()) };
        let reaches = devices::reaches(spec).map_err(failure::device)?;
        match (passed, reaches.as_slice()) {
            (None, []) => Ok(()),
            (None, [first, ..]) => Err(Failure::run(format!(
                "{first}: the daemon opens nothing that user {uid} names, for it has rights that the user may not have"
            ))
            .fix(
                "let the command open the file, as `sheave export add file:PATH` and `sheave pool grow --add PATH` do; \
                 or have the device put into the daemon's configuration",
            )),
            (Some(passed), [Reach::Data(path)]) if spec.starts_with("file:") => expect_name(path, passed),
            (Some(_), _) => Err(Failure::usage(format!("{spec}: a file came with it, which this is not a spec of"))
                .fix("pass a file with a spec such as file:/srv/a.img, which has no device below")),
        }
    }
}

/// Fails if `path` is not the path that the kernel has for the file (P3).
fn expect_name(path: &PathBuf, passed: &Passed) -> Result<(), Failure> {
    let link = format!("/proc/self/fd/{}", passed.file.as_raw_fd());
    let real = std::fs::read_link(link).map_err(|error| Failure::run(format!("looking at the file: {error}")))?;
    if real == *path {
        return Ok(());
    }
    let what = format!("the file that came is called {}, and the spec calls it {}", real.display(), path.display());
    Err(Failure::usage(what).fix("name the file by its whole path, without links"))
}

#[cfg(test)]
mod tests;
