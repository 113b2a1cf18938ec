//! A point as text and back.

use super::*;

#[test]
fn a_point_comes_back_from_its_text() {
    let point = Point { bs: 4096, rw: Rw::Randwrite, ..Point::default() }.with("hz", 1000).with("cell", "unwritten");
    let text = point.to_string();
    assert_eq!(text, "bs=4096,batch=32,depth=128,threads=1,rw=randwrite,cell=unwritten,hz=1000");
    assert_eq!(text.parse::<Point>().unwrap(), point);
    assert_eq!(point.short(), "bs=4096,rw=randwrite,cell=unwritten,hz=1000");
    for short in [point.clone(), Point::default(), Point { threads: 2, depth: 1, batch: 1, ..Point::default() }] {
        assert_eq!(short.short().parse::<Point>(), Ok(short));
    }
    assert_eq!((point.number("hz"), point.text("cell"), point.text("hz")), (Some(1000), Some("unwritten"), None));
}

#[test]
fn what_is_wrong_is_named() {
    for (text, part) in [
        ("bs", "bs"),
        ("depth=0", "depth=0"),
        ("batch=x", "batch=x"),
        ("rw=both", "rw=both"),
        ("bs=512,bs=1024", "bs=1024"),
    ] {
        let error = text.parse::<Point>().unwrap_err();
        assert!(error.usage && error.cause.contains(part) && error.fix.is_some(), "{error}");
    }
}

#[test]
fn a_point_with_a_parameter_that_means_nothing_is_refused() {
    let parameters = [
        Parameter { name: "hz", values: Values::Numbers(1, 9) },
        Parameter { name: "cell", values: Values::Words(&["old", "new"]) },
        Parameter { name: "work", values: Values::Text },
    ];
    let check = |text: &str| text.parse::<Point>().expect("a point").check("it", &parameters, &["rw"]);
    for good in ["", "bs=4096,depth=1", "hz=1", "hz=9,cell=new", "work=sleep:1ms", "rw=randread"] {
        assert_eq!(check(good), Ok(()), "{good}");
    }
    for (bad, says) in [
        ("hertz=5", "it has no hertz=5"),
        ("hz=0", "hz=0"),
        ("hz=10", "hz=10"),
        ("hz=many", "hz=many"),
        ("cell=odd", "cell=odd"),
        ("cell=1", "cell=1"),
        ("work=7", "work=7"),
        ("rw=write", "it has no rw"),
    ] {
        let error = check(bad).expect_err(bad);
        assert!(error.usage && error.cause.contains(says), "{bad}: {error}");
        let fix = error.fix.expect("what there is");
        assert_eq!(fix, "use bs, batch, depth, threads, hz=N from 1 to 9, cell=old|new, work=TEXT");
    }
}
