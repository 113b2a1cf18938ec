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
mod tests {
    use sheave_vol::{CreateOptions, OpenOptions};

    use super::*;

    fn pool() -> Pool {
        let device = sheave::open_device("ram:size=64M").expect("a device");
        Pool::create(&device, &CreateOptions::default()).expect("made");
        let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
        for name in ["a", "b", "c"] {
            drop(pool.create_volume(name, 1 << 20).expect("made"));
        }
        pool
    }

    fn names(pool: &Pool) -> Vec<String> {
        pool.volumes().into_iter().map(|info| info.name).collect()
    }

    #[test]
    fn none_is_deleted_while_one_of_them_is_open_or_not_there() {
        let pool = pool();
        let open = pool.open_volume("b").expect("opened");
        for (of, words) in [(["a", "b"], "volume 'b' is in use"), (["a", "d"], "'d'")] {
            let why = delete_all(&pool, &of, |why| panic!("{why}")).expect_err("refused");
            assert!(why.cause().contains(words) && !why.cause().contains("deleted before"), "{why}");
            assert_eq!(names(&pool), ["a", "b", "c"]);
        }
        drop(open);
        delete_all(&pool, &["a", "b"], |why| panic!("{why}")).expect("deleted");
        assert_eq!(names(&pool), ["c"]);
    }

    #[test]
    fn a_failure_after_the_first_is_gone_names_what_is_gone() {
        let pool = pool();
        let mut heard = None;
        // Naming 'a' twice passes the check before the first deletion, and fails at the third.
        let why =
            delete_all(&pool, &["a", "c", "a"], |why| heard = Some(why.in_a_line())).expect_err("there is one 'a'");
        assert!(why.cause().ends_with("; deleted before that: 'a', 'c'"), "{why}");
        assert_eq!(heard, Some(why.in_a_line()));
        assert_eq!(names(&pool), ["b"]);
    }
}
