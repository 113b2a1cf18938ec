//! The temporary volume that an import fills before the volume gets its final name.
//!
//! Owns the name of that volume, and its deletion when the import does not complete: at once, or, if this process is
//! killed, when the pool is opened the next time ([`sheave_vol::Interim`]).
//!
//! - N1: no volume is deleted or overwritten because of its name. A volume that is marked as interim and not open has
//!   no user, and is deleted; every other volume stays, and the import takes another name.
//!
//! A pool that an older program made, and that was not upgraded, cannot mark volumes. There an existing volume of that
//! name makes the import fail, since it may be a volume that a user wants to keep.

use sheave_vol::{Pool, PoolError, Volume};

use crate::failure::{self, Failure};

const MOST_NAMES: u32 = 100;
const MAX_NAME: usize = 255;

/// An interim volume. Deleted on drop unless it has become the final volume.
pub(super) struct Interim<'a> {
    pool: &'a Pool,
    name: String,
    /// Kept open so that [`Pool::sweep`] does not delete it.
    volume: Option<Volume>,
    /// True if the pool has the volume marked as interim.
    marked: bool,
}

impl<'a> Interim<'a> {
    /// Creates the volume with `make`, under the first free name of `name` + `suffix`, `name` + `suffix` + `-1`, and so
    /// on.
    pub(super) fn make(
        pool: &'a Pool,
        name: &str,
        suffix: &str,
        make: impl Fn(&str) -> Result<Volume, PoolError>,
    ) -> Result<Interim<'a>, Failure> {
        pool.sweep().map_err(failure::pool)?;
        for number in 0..MOST_NAMES {
            let interim = interim_name(name, suffix, number);
            match make(&interim) {
                Ok(volume) => {
                    let marked = pool.volume_info(&interim).is_ok_and(|info| info.interim.is_some());
                    return Ok(Interim { pool, name: interim, volume: Some(volume), marked });
                }
                Err(PoolError::Exists { .. }) if !lacks_identities(pool) => {}
                Err(PoolError::Exists { .. }) => {
                    let what = format!("the import would fill a volume '{interim}', and there is one of that name");
                    return Err(Failure::run(what).fix(
                        "rename it, or delete it if an import that was killed has left it; after an upgrade (sheave \
                         pool upgrade) an import takes another name by itself",
                    ));
                }
                Err(err) => return Err(failure::pool(err)),
            }
        }
        Err(Failure::run(format!("{MOST_NAMES} names from '{}' on are taken", interim_name(name, suffix, 0)))
            .fix("rename or delete some of these volumes"))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the open volume.
    ///
    /// # Errors
    ///
    /// The pool cannot open it.
    pub(super) fn volume(&self) -> Result<Volume, Failure> {
        match &self.volume {
            Some(volume) => Ok(volume.clone()),
            None => self.pool.open_volume(&self.name).map_err(failure::pool),
        }
    }

    /// Gives the volume its final name, which also removes the mark.
    ///
    /// # Errors
    ///
    /// The pool cannot rename it; the interim volume is then deleted.
    pub(super) fn become_volume(mut self, name: &str) -> Result<(), Failure> {
        self.pool.rename(&self.name, name).map_err(failure::pool)?;
        // Leaves nothing for `drop` to delete.
        (self.marked, self.name) = (true, String::new());
        Ok(())
    }

    /// Deletes the volume.
    ///
    /// # Errors
    ///
    /// The pool cannot delete it. If it is marked, the next sweep does.
    pub(super) fn remove(mut self) -> Result<(), Failure> {
        let name = std::mem::take(&mut self.name);
        self.delete(&name).map_err(failure::pool)
    }

    fn delete(&mut self, name: &str) -> Result<(), PoolError> {
        self.volume = None;
        if self.marked { self.pool.sweep().map(drop) } else { self.pool.delete(name) }
    }
}

impl Drop for Interim<'_> {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        if !name.is_empty() {
            // Ignored, since the caller already returns the error that led here. A marked volume is deleted by the next
            // sweep.
            let _ = self.delete(&name);
        }
    }
}

/// Returns true if an older program made the pool and it was not upgraded.
pub(super) fn lacks_identities(pool: &Pool) -> bool {
    pool.upgrades().iter().any(|upgrade| upgrade.name == "identities")
}

/// Returns a name derived from the volume's, cut to the maximum length. Names are ASCII, so it can be cut at any byte.
fn interim_name(name: &str, suffix: &str, number: u32) -> String {
    let end = if number == 0 { suffix.to_owned() } else { format!("{suffix}-{number}") };
    format!("{}{end}", &name[..name.len().min(MAX_NAME - end.len())])
}

#[cfg(test)]
mod tests {
    use sheave_vol::{CreateOptions, OpenOptions, Purpose};

    use super::*;
    use crate::value;

    fn pool() -> Pool {
        let device = sheave_drivers::open_device("ram:size=16M").expect("opens");
        Pool::create(&device, &CreateOptions::default()).expect("formats");
        Pool::open(&device, &OpenOptions::default()).expect("opens")
    }

    fn make<'a>(pool: &'a Pool, name: &str) -> Result<Interim<'a>, Failure> {
        let mark = sheave_vol::Interim::new(Purpose::Import, 0);
        Interim::make(pool, name, ".importing", |name| pool.create_interim(name, 1 << 20, mark))
    }

    fn names(pool: &Pool) -> Vec<String> {
        pool.volumes().into_iter().map(|volume| volume.name).collect()
    }

    #[test]
    fn interim_names_are_names_of_their_own() {
        for name in ["a".to_owned(), "x".repeat(255), "y".repeat(245), format!("{}.importing", "z".repeat(242))] {
            for number in [0, 1, 99] {
                let interim = interim_name(&name, ".importing", number);
                assert!(value::volume_name(&interim).is_ok(), "{interim}");
            }
            assert_ne!(interim_name(&name, ".importing", 1), name);
        }
    }

    #[test]
    fn volumes_that_have_the_name_stay_and_those_of_others_who_work_too() {
        let pool = pool();
        let long = format!("{}.importing", "z".repeat(245));
        for name in ["a.importing", &long] {
            drop(pool.create_volume(name, 1 << 20).expect("the user's own"));
        }
        let (one, two, third) = (make(&pool, "a").unwrap(), make(&pool, "a").unwrap(), make(&pool, &long).unwrap());
        assert_eq!((one.name(), two.name()), ("a.importing-1", "a.importing-2"));
        assert_ne!(third.name(), long);
        two.become_volume("a").expect("is renamed");
        drop(one);
        third.remove().expect("is deleted");
        assert_eq!(names(&pool), ["a", "a.importing", &long]);
        assert_eq!(pool.volume_info("a").unwrap().interim, None);
        assert!(pool.sweep().unwrap().is_empty());
    }
}
