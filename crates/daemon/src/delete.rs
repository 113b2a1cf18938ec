//! Deletion of several volumes at once: of all, or of none if that can be known before the first one is deleted.

use sheave_vol::Pool;

use crate::failure::{self, Failure};

/// Deletes volumes and snapshots, and returns the number of bytes freed. Nothing is deleted if one of them is missing
/// or open. If a deletion fails nevertheless, it stops there: the failure names the volumes that were deleted, and is
/// also passed to `in_part`.
///
/// # Errors
///
/// The pool refuses a deletion.
pub fn delete_all(pool: &Pool, names: &[&str], in_part: impl FnOnce(&Failure)) -> Result<u64, Failure> {
    pool.can_delete(names).map_err(failure::pool)?;
    let free = || {
        let info = pool.info();
        info.free_bytes + info.pending_bytes
    };
    let before = free();
    for (at, name) in names.iter().enumerate() {
        if let Err(why) = pool.delete(name).map_err(failure::pool) {
            if at == 0 {
                return Err(why);
            }
            let gone: Vec<String> = names[..at].iter().map(|name| format!("'{name}'")).collect();
            let why = why.but(&format!("deleted before that: {}", gone.join(", ")));
            in_part(&why);
            return Err(why);
        }
    }
    Ok(free().saturating_sub(before))
}

#[cfg(test)]
mod tests;
