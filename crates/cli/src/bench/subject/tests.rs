//! Devices that are created for volumes to measure.

use super::*;
use sheave::open_device;

#[test]
fn a_null_device_keeps_what_the_pool_needs_and_no_data() {
    let of = |spec| InMemory::of(spec).expect(spec);
    let keep = 8192 + (16 << 20);
    assert_eq!(
        of("null:size=1T"),
        InMemory { spec: format!("null:size=1T,keep={keep}"), journal: Some(16 << 20), base: keep }
    );
    assert_eq!(of("null:").spec, format!("null:keep={}", 8192 + (4 << 20)));
    assert_eq!((of("ram:size=1G").spec.as_str(), of("ram:").spec.as_str()), ("ram:size=1G,touch=on", "ram:touch=on"));
    for spec in ["null:size=1T,keep=64M", "ram:touch=off"] {
        assert_eq!(of(spec), InMemory { spec: spec.into(), journal: None, base: 0 });
    }
    assert!(InMemory::of("null:size=zz").is_err());
    let made = open_device(&of("null:size=1G").spec).expect("a device");
    let options = CreateOptions::default().journal_bytes(of("null:size=1G").journal);
    Pool::create(&made, &options).expect("a pool");
    assert_eq!(Pool::open(&made, &OpenOptions::default()).expect("it was kept").info().volumes, 0);
}
