//! A file that a command makes on the way to something else, and that goes again when that fails.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sheave_daemon::failure::Failure;
use sheave_daemon::place::{PoolPlace, leads_to};
use sheave_drivers::host::make_name_durable;

use crate::pool::signature;

/// A file that this made; gone again unless what it was made for came to be.
///
/// Another process may come across the file, make a pool of it first and be done before this fails. So it goes only if
/// it is the file that was made here, nobody has it, and no pool is in it.
#[derive(Debug)]
pub struct Made {
    made: Option<(PathBuf, File)>,
}

impl Made {
    /// Makes the file of a pool of one file, if that is missing; before it is opened with the size that it is to have.
    /// Without a size none is made. What is wrong with the place is told by the opening, which follows.
    ///
    /// # Errors
    ///
    /// The name is not durable, which it is to be when the pool is.
    pub fn begin(place: &PoolPlace, sized: bool) -> Result<Self, Failure> {
        place.single_path().filter(|_| sized).map_or(Ok(Self { made: None }), Self::file)
    }

    /// Makes this file, if it is missing.
    ///
    /// # Errors
    ///
    /// As those of [`Made::begin`].
    pub fn file(path: &Path) -> Result<Self, Failure> {
        let open = || File::options().read(true).write(true).create_new(true).open(path).ok();
        let made = (!path.exists()).then(open).flatten().map(|file| (path.to_owned(), file));
        let made = Self { made };
        if let Some((path, file)) = &made.made {
            make_name_durable(path, file).map_err(|error| {
                Failure::run(format!("cannot make {} durable: {error}", path.display()))
                    .fix("see dmesg for what is wrong with its file system")
            })?;
        }
        Ok(made)
    }

    /// It is needed.
    pub fn keep(mut self) {
        self.made = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let Some((path, file)) = self.made.take() else { return };
        // Nobody else can claim it from here on.
        let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if leads_to(&path, &file) && is_free && !signature::is_of_pool(&path) {
            // The error that brought us here is the one worth telling.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests;
