//! Formats of a map.

use sheave_vol::{Extent, ExtentKind};

use super::*;

fn extents() -> [Extent; 3] {
    [
        Extent::new(0, 8192, ExtentKind::Data).addr(65536).shared(true),
        Extent::new(8192, 57344, ExtentKind::Unwritten).addr(73728),
        Extent::new(65536, 1 << 30, ExtentKind::Hole),
    ]
}

#[test]
fn json_is_that_of_qemu_img_with_two_fields_more() {
    let json = serde_json::to_value(extents().iter().map(ExtentJson::new).collect::<Vec<_>>()).expect("JSON");
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
    let text = table(&extents().iter().map(ExtentJson::new).collect::<Vec<_>>());
    assert!(text.contains("data, shared") && text.contains("unwritten") && text.contains("hole"), "{text}");
    assert!(text.ends_with("3 extents: 8 KiB of data, 56 KiB unwritten, 1 GiB of holes\n"), "{text}");
}

#[test]
fn a_map_that_comes_in_pieces_is_the_same_map() {
    let mut all = Vec::new();
    for extent in &extents() {
        for at in [0, extent.len / 2] {
            let addr = if extent.kind == ExtentKind::Hole { 0 } else { extent.addr + at };
            let piece = Extent::new(extent.pos + at, extent.len / 2, extent.kind).addr(addr).shared(extent.shared);
            ExtentJson::add(&mut all, ExtentJson::new(&piece));
        }
    }
    assert_eq!(all, extents().iter().map(ExtentJson::new).collect::<Vec<_>>());
    // Adjacent ranges at separate positions in the pool are separate extents.
    let elsewhere =
        [(0, 0), (4096, 1 << 20)].map(|(pos, addr)| Extent::new(pos, 4096, ExtentKind::Data).addr(addr).shared(true));
    let mut two = Vec::new();
    elsewhere.iter().for_each(|extent| ExtentJson::add(&mut two, ExtentJson::new(extent)));
    assert_eq!(two.len(), 2);
}
