//! Names of volumes and snapshots, including names of the form `VOLUME@SNAPSHOT`.
//!
//! Owns the rules for names. On the device `VOLUME@SNAPSHOT` is an ordinary name, unique in the pool. The volume that a
//! snapshot belongs to is given by its origin, never by its name.
//!
//! - A1: only snapshots get such a name.
//! - A2: no snapshot gets the name `V@S` while a volume V exists that is not its own volume. So all snapshots named
//!   after V belong to V, except those of a deleted volume that was called V before: they keep their names and have no
//!   origin.
//! - A3: renaming a volume renames the snapshots that have its name.

use crate::error::PoolError;
use crate::format::MAX_VOLUMES;
use crate::state::table::{Table, Vol};

const MAX_NAME_BYTES: usize = 255;

/// Splits `VOLUME@SNAPSHOT` into its two parts; `None` for other names.
pub(crate) fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once('@')
}

pub(crate) fn check_name(name: &str) -> Result<(), PoolError> {
    let (volume, snapshot) = split(name).map_or((name, None), |(volume, own)| (volume, Some(own)));
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let parts = [Some(volume), snapshot];
    let any = |wrong: &dyn Fn(&[u8]) -> bool| parts.iter().flatten().any(|part| wrong(part.as_bytes()));
    let what = if name.is_empty() {
        "a volume's name must not be empty".to_string()
    } else if any(&|part| matches!(part, [] | [b'-' | b'.', ..])) {
        format!("the name '{name}', or a part of it, is empty or begins with '-' or '.'")
    } else if name.len() > MAX_NAME_BYTES {
        format!("the name has {} bytes, and 255 is the most", name.len())
    } else if any(&|part| !part.iter().all(|byte| good(*byte))) {
        format!("the name {name:?} has a character that names have not")
    } else {
        return Ok(());
    };
    let fix = "Use 1 to 255 letters, digits, '.', '_' or '-', beginning with a letter, a digit or '_'; a snapshot may \
               be called VOLUME@SNAPSHOT"
        .to_string();
    Err(PoolError::Invalid { what, fix })
}

/// Rejects `VOLUME@SNAPSHOT` as the name of a volume (A1).
pub(crate) fn check_no_snapshot(name: &str) -> Result<(), PoolError> {
    match split(name) {
        None => Ok(()),
        Some((volume, own)) => Err(PoolError::Invalid {
            what: format!("'{name}' would be the snapshot '{own}' of a volume '{volume}', and is no snapshot"),
            fix: "Choose a name without '@'".into(),
        }),
    }
}

impl Table {
    /// Checks that a new volume may have this name. `others` more volumes will be made together with it.
    pub(crate) fn check_new(&self, name: &str, others: usize) -> Result<(), PoolError> {
        check_name(name)?;
        if self.id_of(name).is_some() {
            return Err(PoolError::Exists { name: name.to_string() });
        }
        if self.len() + others >= MAX_VOLUMES as usize || self.next_id as u64 + others as u64 >= u64::from(u32::MAX) {
            return Err(PoolError::Limit {
                what: format!("making '{name}': volumes and snapshots of a pool"),
                limit: u64::from(MAX_VOLUMES),
                fix: "Delete one that is not needed".into(),
            });
        }
        Ok(())
    }

    /// Returns the volume that a snapshot of this volume belongs to: itself, or its origin if it is a snapshot. Returns
    /// 0 if that origin was deleted.
    pub(crate) fn owner_of_copies(&self, id: u32) -> u32 {
        match self.get(id) {
            Some(vol) if vol.core.snapshot => vol.origin(),
            _ => id,
        }
    }

    /// Rejects the name `V@S` for a snapshot of `owner` while another volume is called V (A2).
    fn check_owner(&self, name: &str, owner: u32) -> Result<(), PoolError> {
        let Some((volume, own)) = split(name) else { return Ok(()) };
        let Some(other) = self.id_of(volume).filter(|id| *id != owner) else { return Ok(()) };
        let whose = self.get(owner).filter(|vol| vol.id != other).map(|vol| vol.name.clone());
        Err(PoolError::Invalid {
            what: format!("'{name}' would be a snapshot of '{volume}', and it is none of that volume"),
            fix: match whose {
                Some(whose) if split(&whose).is_none() => format!("Call it '{whose}@{own}'"),
                _ => "Choose a name without '@', or with that of its own volume".into(),
            },
        })
    }

    /// Checks the name of a copy that belongs to `owner` (A1, A2).
    pub(crate) fn check_copy(&self, name: &str, snapshot: bool, owner: u32) -> Result<(), PoolError> {
        if snapshot { self.check_owner(name, owner) } else { check_no_snapshot(name) }
    }

    /// Returns the renames that renaming `vol` to `new` causes, as (number, old name, new name). The first one renames
    /// the volume itself. The others rename its snapshots that have its name (A3).
    ///
    /// # Errors
    ///
    /// One of the new names is taken or malformed.
    pub(crate) fn renamed_with(&self, vol: &Vol, new: &str) -> Result<Vec<(u32, String, String)>, PoolError> {
        check_name(new)?;
        match vol.core.snapshot {
            true => self.check_owner(new, vol.origin())?,
            false => check_no_snapshot(new)?,
        }
        let mut all = vec![(vol.id, vol.name.clone(), new.to_string())];
        for snapshot in self.made_of(vol.id).filter(|one| one.core.snapshot && !vol.core.snapshot) {
            if let Some((_, own)) = split(&snapshot.name).filter(|(volume, _)| *volume == vol.name) {
                all.push((snapshot.id, snapshot.name.clone(), format!("{new}@{own}")));
            }
        }
        for (_, before, after) in &all {
            check_name(after)?;
            if before != after && self.id_of(after).is_some() {
                return Err(PoolError::Exists { name: after.clone() });
            }
        }
        Ok(all)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn names_are_held_to_the_rules() {
        for good in
            ["a", "0", "_x", "vm-1.disk_2", &"x".repeat(255), "vm1@monday", "_@0", &format!("v@{}", "x".repeat(253))]
        {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            ".a",
            "a b",
            "a/b",
            "ä",
            "a\n",
            "a#b",
            &"x".repeat(256),
            "@",
            "v@",
            "@s",
            "v@-s",
            "v@.s",
            "v@s@t",
            "v@a b",
        ] {
            let error = check_name(bad).expect_err(bad).to_string();
            assert!(error.contains("letters, digits"), "{error}");
        }
    }
}
