//! A file that a command makes on the way to something else, and that goes again when that fails.

use sheave_daemon::place::PoolPlace;

/// A file that opening made; gone again unless what it was made for came to be.
pub struct Made<'a> {
    path: Option<&'a std::path::Path>,
}

impl<'a> Made<'a> {
    /// Before it is opened.
    pub fn begin(place: &'a PoolPlace) -> Self {
        Self { path: place.single_path().filter(|path| !path.exists()) }
    }

    /// It is needed.
    pub fn keep(mut self) {
        self.path = None;
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path {
            // The error that brought us here is the one worth telling.
            let _ = std::fs::remove_file(path);
        }
    }
}
