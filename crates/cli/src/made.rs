//! A file that a command creates as a step of an operation, and removes if the operation fails.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sheave_daemon::failure::Failure;
use sheave_daemon::place::{PoolPlace, leads_to};
use sheave_drivers::host::make_name_durable;

use crate::pool::signature;

/// A file that was created here. It is removed on drop unless it is kept.
///
/// Another process may find the file and make a pool of it before this operation fails. Therefore it is removed only if
/// it is still the file that was created here, nobody has locked it, and it contains no pool.
#[derive(Debug)]
pub struct Made {
    made: Option<(PathBuf, File)>,
}

impl Made {
    /// Creates the file of a pool that consists of a single file, if the file is missing and `sized` is true. Problems
    /// with the path are reported by the open that follows.
    ///
    /// # Errors
    ///
    /// Returns an error if the name cannot be made durable, which must happen before the pool is durable.
    pub fn begin(place: &PoolPlace, sized: bool) -> Result<Self, Failure> {
        place.single_path().filter(|_| sized).map_or(Ok(Self { made: None }), Self::file)
    }

    /// Creates this file, if it is missing.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Made::begin`].
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

    /// Keeps the file.
    pub fn keep(mut self) {
        self.made = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let Some((path, file)) = self.made.take() else { return };
        // While this lock is held, no other process can claim the file.
        let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if leads_to(&path, &file) && is_free && !signature::is_of_pool(&path) {
            // The error is ignored, because the caller already returns the one that led here.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path) -> PoolPlace {
        dir.join("p.img").to_str().expect("a path").parse().expect("a place")
    }

    fn begin(place: &PoolPlace, sized: bool) -> Made {
        Made::begin(place, sized).expect("its name is durable")
    }

    #[test]
    fn only_a_file_that_was_made_here_and_that_nobody_has_goes_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (place, path) = (place(dir.path()), dir.path().join("p.img"));
        drop(begin(&place, false));
        assert!(!path.exists(), "without a size none is made");
        drop(begin(&place, true));
        assert!(!path.exists(), "what it was for did not come to be");
        begin(&place, true).keep();
        assert!(path.exists());
        drop(begin(&place, true));
        assert!(path.exists(), "it was there before");

        // Here another process has locked the file, replaced it, or made a pool of it.
        fs::remove_file(&path).expect("removed");
        let made = begin(&place, true);
        let other = File::open(&path).expect("opened");
        flock(&other, FlockOperation::NonBlockingLockExclusive).expect("locked");
        drop((made, other));
        assert!(path.exists());
        fs::remove_file(&path).expect("removed");
        let made = begin(&place, true);
        fs::write(dir.path().join("new"), b"new").expect("written");
        fs::rename(dir.path().join("new"), &path).expect("renamed");
        drop(made);
        assert_eq!(fs::read(&path).expect("read"), b"new");
        fs::remove_file(&path).expect("removed");
        let made = begin(&place, true);
        let device = sheave::open_device(&format!("file:{},size=16M", path.display())).expect("a device");
        sheave_vol::Pool::create(&device, &Default::default()).expect("a pool");
        drop((made, device));
        assert!(path.exists());
    }
}
