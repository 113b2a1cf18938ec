//! Parsing of volumes to measure.

use super::*;

#[test]
fn whether_writes_are_durable_is_an_option_and_no_part_of_a_path() {
    for (spec, sync) in [
        ("file:a,sync=on", true),
        ("file:\"a,b\",size=1M,sync=on,direct=off", true),
        ("file:a,sync=off", false),
        ("file:\"a,sync=on,b\"", false),
        ("file:sync=on", false),
        ("ram:sync=on", false),
    ] {
        assert_eq!(is_sync(spec), sync, "{spec}");
    }
}

#[test]
fn places() {
    let place = |text| place_of(text).map(|place| (place.pool.to_string(), place.name));
    assert_eq!(place("ram:size=1G").expect("in memory"), ("ram:size=1G".into(), TEMPORARY.into()));
    assert_eq!(place("null:size=1T#x").expect("in memory"), ("null:size=1T".into(), "x".into()));
    assert_eq!(place("pool.img#disk").expect("a volume"), ("pool.img".into(), "disk".into()));
    for bad in ["", "pool.img", "pool.img#", "#disk", "pool.img#a b"] {
        assert!(place(bad).expect_err(bad).to_string().contains("vol:POOL#NAME"), "{bad}");
    }
    let mixed = place("linear:over=file:pool.img+ram:size=1G").expect_err("no pool is made over a file");
    assert!(mixed.to_string().contains("a part of this pool is in memory"), "{mixed}");
}
