//! A point as text and back.

use super::*;

#[test]
fn a_point_comes_back_from_its_text() {
    let point = Point { bs: 4096, rw: Rw::Randwrite, ..Point::default() }.with("hz", 1000).with("cell", "unwritten");
    let text = point.to_string();
    assert_eq!(text, "bs=4096,batch=32,depth=128,threads=1,rw=randwrite,cell=unwritten,hz=1000");
    assert_eq!(text.parse::<Point>().unwrap(), point);
    assert_eq!((point.number("hz"), point.text("cell"), point.text("hz")), (Some(1000), Some("unwritten"), None));
}

#[test]
fn what_is_wrong_is_named() {
    for (text, part) in [("bs", "bs"), ("depth=0", "depth=0"), ("batch=x", "batch=x"), ("rw=both", "rw=both")] {
        let error = text.parse::<Point>().unwrap_err();
        assert!(error.usage && error.cause.contains(part) && error.fix.is_some(), "{error}");
    }
}
