//! Names of interim volumes, volumes that must stay, and volumes that a sweep deletes.

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
