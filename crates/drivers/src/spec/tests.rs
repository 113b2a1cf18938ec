//! The grammar of specs, without opening anything.

use super::*;

/// Parses the parameters of `spec` without opening it.
fn params(spec: &str) -> Params<'static> {
    Params::parse(spec, spec.split_once(':').map_or("", |(_, rest)| rest), &|_| unreachable!("not opened"))
        .expect("a spec")
}

#[test]
fn over_takes_the_rest() {
    let mut params = params("fault:error=0.5,over=ram:size=1G,bs=4k");
    assert_eq!(params.text("over").as_deref(), Some("ram:size=1G,bs=4k"));
    assert_eq!(params.fraction("error").unwrap(), Some(0.5));
    assert!(params.finish().is_ok());
    // A key that only ends with `over` is another key.
    let mut params = self::params("fault:takeover=1,over=null:size=1G,bs=4k");
    assert_eq!(params.text("over").as_deref(), Some("null:size=1G,bs=4k"));
    assert_eq!(params.text("takeover").as_deref(), Some("1"));
}

#[test]
fn a_path_may_come_first() {
    let mut params = params("file:/tmp/x,size=1G");
    assert_eq!(params.path().as_deref(), Some("/tmp/x"));
    assert_eq!(params.size("size").unwrap(), Some(1 << 30));
    assert!(params.finish().is_ok());
    for path in ["/tmp/over=x", "./a=b", "../disk"] {
        let mut params = self::params(&format!("file:{path},size=1G"));
        assert_eq!(params.path().as_deref(), Some(path), "a '=' in a path is part of it");
        assert_eq!(params.text("over"), None);
    }
}

#[test]
fn values_within_bounds() {
    for (text, ok) in [("0", true), ("1", true), ("0.25", true), ("1.1", false), ("-0.1", false), ("NaN", false)] {
        assert_eq!(params(&format!("x:p={text}")).fraction("p").is_ok(), ok, "{text}");
    }
    assert_eq!(params("x:a=on").switch("a").unwrap(), Some(true));
    assert_eq!(params("x:a=off").switch("a").unwrap(), Some(false));
    assert!(params("x:a=yes").switch("a").is_err());
    assert_eq!(params("x:").switch("a").unwrap(), None);
    assert_eq!(params("x:t=5ms").duration("t").unwrap(), Some(Duration::from_millis(5)));
    assert!(params("x:n=1.5").number("n", 0, 9).is_err());
}

#[test]
fn a_layer_needs_something_under_it() {
    assert!(params("fault:").over().unwrap_err().to_string().contains("over=ram:size=1G"));
}

#[test]
fn a_path_in_quotes_may_hold_what_else_ends_it() {
    let mut one = params("file:\"a,b+c=d.img\",size=1M");
    assert_eq!((one.path().as_deref(), one.text("size").as_deref()), (Some("a,b+c=d.img"), Some("1M")));
    assert_eq!(params("file:\"/x,y\"").path().as_deref(), Some("/x,y"));
    assert_eq!(split("file:\"a+b\",size=1M+ram:size=2M+c"), ["file:\"a+b\",size=1M", "ram:size=2M", "c"]);
    for path in ["plain.img", "/dev/sda", "a=b"] {
        assert_eq!(quoted(path), path);
    }
    assert_eq!(quoted("a,b"), "\"a,b\"");
}

#[test]
fn secrets_are_not_shown() {
    for (spec, shown) in [
        ("rbd:rbd/disk,key=AQB+a/b==,readonly", "rbd:rbd/disk,key=***,readonly"),
        ("rbd:rbd/disk,key=AQB==,key=AQC==", "rbd:rbd/disk,key=***,key=***"),
        ("rbd:key=AQB==,rbd/disk", "rbd:key=***,rbd/disk"),
        ("fault:seed=1,over=x:password=a:b=c,bs=4k+x:Secret=d", "fault:seed=1,over=x:password=***,bs=4k+x:Secret=***"),
        ("nbd:host,key=/etc/key.pem,cert=/c", "nbd:host,key=/etc/key.pem,cert=/c"),
        ("nbd:host,key=./k,key=\"a,b\"", "nbd:host,key=./k,key=\"a,b\""),
        ("file:/a=b,keyring=c,size=1G", "file:/a=b,keyring=c,size=1G"),
        ("", ""),
    ] {
        assert_eq!(masked(spec), shown);
    }
    // A switch without its value, and a key that is given twice: both are refused before a driver reads the spec.
    for spec in ["rbd:rbd/disk,key=AQBsecret==,readonly", "rbd:rbd/disk,key=AQBsecret==,key=AQBsecret=="] {
        let rest = &spec["rbd:".len()..];
        let error = Params::parse(spec, rest, &|_| unreachable!("not opened")).expect_err(spec).to_string();
        assert!(error.contains("rbd:rbd/disk,key=***") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn the_leaves_are_what_lies_at_the_ends() {
    for (spec, want) in [
        ("ram:size=1M", &["ram:size=1M"][..]),
        ("fault:error=0.1,over=partition:size=1M,over=file:a", &["file:a"]),
        (
            "linear:over=file:\"a+b,over=ram:\",size=1M+nbd:unix:/x+ram:",
            &["file:\"a+b,over=ram:\",size=1M", "nbd:unix:/x", "ram:"],
        ),
        ("linear:over=fault:over=linear:over=a:+b:+c:", &["a:", "b:", "c:"]),
        ("file:/over=ram:/x", &["file:/over=ram:/x"]),
        ("fault:error=1", &["fault:error=1"]),
        ("file:\"a", &["file:\"a"]),
    ] {
        assert_eq!(leaves(spec), want, "{spec}");
    }
}
