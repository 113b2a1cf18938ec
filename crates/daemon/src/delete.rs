//! Several volumes are deleted at once: all of them, or none if it can be known before the first is gone.

use sheave_vol::Pool;

use crate::failure::{self, Failure};

/// Deletes volumes and snapshots, each named once; the bytes that came free. Refused as a whole while one of them is
/// not there, or is open. One that fails all the same ends it: the failure then names what is gone, and `in_part` hears
/// it.
///
/// # Errors
///
/// The pool's.
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
