//! State after a deletion of several volumes that fails.

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
    let why = delete_all(&pool, &["a", "c", "a"], |why| heard = Some(why.in_a_line())).expect_err("there is one 'a'");
    assert!(why.cause().ends_with("; deleted before that: 'a', 'c'"), "{why}");
    assert_eq!(heard, Some(why.in_a_line()));
    assert_eq!(names(&pool), ["b"]);
}
