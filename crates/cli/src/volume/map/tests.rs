//! The shapes of a map.

use sheave_vol::{Extent, ExtentKind};

use super::*;

const EXTENTS: [Extent; 3] = [
    Extent { pos: 0, len: 8192, kind: ExtentKind::Data, addr: 65536, shared: true },
    Extent { pos: 8192, len: 57344, kind: ExtentKind::Unwritten, addr: 73728, shared: false },
    Extent { pos: 65536, len: 1 << 30, kind: ExtentKind::Hole, addr: 0, shared: false },
];

#[test]
fn json_is_that_of_qemu_img_with_two_fields_more() {
    let json = serde_json::to_value(EXTENTS.iter().map(ExtentJson::new).collect::<Vec<_>>()).expect("JSON");
    let wanted = serde_json::json!([
        {"start": 0, "length": 8192, "depth": 0, "present": true, "zero": false, "data": true,
         "unwritten": false, "shared": true, "offset": 65536},
        {"start": 8192, "length": 57344, "depth": 0, "present": true, "zero": true, "data": false,
         "unwritten": true, "shared": false, "offset": 73728},
        {"start": 65536, "length": 1 << 30, "depth": 0, "present": false, "zero": true, "data": false,
         "unwritten": false, "shared": false},
    ]);
    assert_eq!(json, wanted);
}

#[test]
fn a_table_with_its_sum() {
    let text = table(&EXTENTS.iter().map(ExtentJson::new).collect::<Vec<_>>());
    assert!(text.contains("data, shared") && text.contains("unwritten") && text.contains("hole"), "{text}");
    assert!(text.ends_with("3 extents: 8 KiB of data, 56 KiB unwritten, 1 GiB of holes\n"), "{text}");
}

#[test]
fn a_map_that_comes_in_pieces_is_the_same_map() {
    let mut all = Vec::new();
    for extent in &EXTENTS {
        for at in [0, extent.len / 2] {
            let addr = if extent.kind == ExtentKind::Hole { 0 } else { extent.addr + at };
            let piece = Extent { pos: extent.pos + at, len: extent.len / 2, addr, ..*extent };
            ExtentJson::add(&mut all, ExtentJson::new(&piece));
        }
    }
    assert_eq!(all, EXTENTS.iter().map(ExtentJson::new).collect::<Vec<_>>());
    // What lies elsewhere on the pool is another extent.
    let elsewhere = [(0, 0), (4096, 1 << 20)].map(|(pos, addr)| Extent { pos, len: 4096, addr, ..EXTENTS[0] });
    let mut two = Vec::new();
    elsewhere.iter().for_each(|extent| ExtentJson::add(&mut two, ExtentJson::new(extent)));
    assert_eq!(two.len(), 2);
}
