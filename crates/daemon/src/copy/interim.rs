//! The volume that an import fills, before it is what was asked for.
//!
//! Owns its name, and that it goes when the import does not come to its end: at once, or when the pool is opened the
//! next time, if this process is killed ([`sheave_vol::Interim`]).
//!
//! - N1: no volume is deleted or written for its name. One that is marked as interim and open nowhere is nobody's;
//!   every other stays as it is, and the import takes another name.
//!
//! A pool that an older program made, and that was not upgraded, has no such marks. There a name that is taken refuses
//! the import, for nothing says whose that volume is.

use sheave_vol::{Pool, PoolError, Volume};

use crate::failure::{self, Failure};

/// Names that are tried.
const MOST_NAMES: u32 = 100;
/// Most bytes of a volume's name.
const MAX_NAME: usize = 255;

/// An interim volume; deleted with this unless it has become something else.
pub(super) struct Interim<'a> {
    pool: &'a Pool,
    name: String,
    /// Open as long as it is needed: no sweep takes it.
    volume: Option<Volume>,
    /// The pool knows it as interim.
    marked: bool,
}

impl<'a> Interim<'a> {
    /// Made by `make` under the first name that is free of `NAME` and the suffix, and then a number.
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

    /// What it is called.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// It, open.
    ///
    /// # Errors
    ///
    /// The pool's.
    pub(super) fn volume(&self) -> Result<Volume, Failure> {
        match &self.volume {
            Some(volume) => Ok(volume.clone()),
            None => self.pool.open_volume(&self.name).map_err(failure::pool),
        }
    }

    /// It gets its name, and is interim no more.
    ///
    /// # Errors
    ///
    /// The pool's; it is deleted then.
    pub(super) fn become_volume(mut self, name: &str) -> Result<(), Failure> {
        self.pool.rename(&self.name, name).map_err(failure::pool)?;
        // The rest of this has nothing to delete.
        (self.marked, self.name) = (true, String::new());
        Ok(())
    }

    /// It is needed no more.
    ///
    /// # Errors
    ///
    /// The pool's; what is marked goes with the next sweep then.
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
            // The error that brought us here is the one worth telling; what is marked goes with the next sweep.
            let _ = self.delete(&name);
        }
    }
}

/// Whether an older program made the pool, and it was not upgraded.
pub(super) fn lacks_identities(pool: &Pool) -> bool {
    pool.upgrades().iter().any(|upgrade| upgrade.name == "identities")
}

/// A name beside that of the volume. Names are ASCII, so any byte is the end of a character.
fn interim_name(name: &str, suffix: &str, number: u32) -> String {
    let end = if number == 0 { suffix.to_owned() } else { format!("{suffix}-{number}") };
    format!("{}{end}", &name[..name.len().min(MAX_NAME - end.len())])
}

#[cfg(test)]
mod tests;
