//! Names of volumes to measure, and the devices made for them.

use super::*;

#[test]
fn places() {
    let place = |text| place_of(text).map(|place| (place.pool.to_string(), place.name));
    assert_eq!(place("ram:size=1G").expect("in memory"), ("ram:size=1G".into(), TEMPORARY.into()));
    assert_eq!(place("null:size=1T#x").expect("in memory"), ("null:size=1T".into(), "x".into()));
    assert_eq!(place("pool.img#disk").expect("a volume"), ("pool.img".into(), "disk".into()));
    for bad in ["", "pool.img", "pool.img#", "#disk", "pool.img#a b"] {
        assert!(place(bad).expect_err(bad).to_string().contains("vol:POOL#NAME"), "{bad}");
    }
}

#[test]
fn a_device_in_memory_is_made_ready_for_a_pool() {
    assert_eq!(keeping("null:"), "null:keep=16M");
    assert_eq!(keeping("null:size=1T"), "null:keep=16M,size=1T");
    assert_eq!(keeping("null:size=1T,keep=64M"), "null:size=1T,keep=64M");
    assert_eq!(keeping("ram:size=1G"), "ram:touch=on,size=1G");
    assert_eq!(keeping("ram:touch=off"), "ram:touch=off");
}
