//! The grammar of specs: what is understood, and that every refusal names the cause and the fix.

use super::*;

fn error(spec: &str) -> String {
    let error = open(spec).expect_err(spec).to_string();
    assert!(error.contains(spec), "'{error}' names the spec '{spec}'");
    error
}

/// The parameters of `spec` without opening it.
fn params(spec: &str) -> Params {
    Params::parse(spec, spec.split_once(':').map_or("", |(_, rest)| rest)).expect("a spec")
}

#[test]
fn defaults_and_every_key_of_null() {
    assert_eq!(open("null:").unwrap().size_bytes(), 1 << 30);
    let device = open("null:size=1T,latency=10us,complete=thread,depth=7,bs=4k,host_depth=9,timeout=3s").unwrap();
    assert_eq!(device.size_bytes(), 1 << 40);
    assert_eq!((device.limits().logical_block, device.limits().queue_depth), (4096, 7));
    assert_eq!(device.legs()[0].queue.timeout(), Duration::from_secs(3));
    assert!(device.name().starts_with("null:size=1T"));
}

#[test]
fn refusals_name_cause_and_fix() {
    let cases = [
        ("", "no kind"),
        ("null", "as in null:"),
        ("/tmp/x", "as in file:/tmp/x"),
        ("/dev/sda", "file:/dev/sda"),
        ("nul:size=1G", "kind 'nul' is unknown. Known: null"),
        ("null:size=1G,size=2G", "'size' is given twice"),
        ("null:size=1G,x", "'x' is no key=value"),
        ("null:path", "takes no path"),
        ("null:colour=red", "key 'colour' is unknown. Known keys: bs, size"),
        ("null:size=12Q", "size=12Q"),
        ("null:size=100", "multiple of the block size, 512"),
        ("null:size=0", "not 0"),
        ("null:size=16E", "size=16E"),
        ("null:size=8E", "8 EiB - 1"),
        ("null:depth=0", "whole number from 1 to 4096"),
        ("null:depth=4097", "whole number from 1 to 4096"),
        ("null:depth=-1", "whole number from 1 to 4096"),
        ("null:host_depth=0", "whole number from 1 to 4096"),
        ("null:bs=100", "power of two from 512 to 64k"),
        ("null:bs=0", "power of two from 512 to 64k"),
        ("null:bs=128k", "power of two from 512 to 64k"),
        ("null:latency=soon", "latency=soon"),
        ("null:latency=1us,complete=poll", "complete=timer"),
        ("null:complete=maybe", "give one of poll, timer, thread"),
    ];
    for (spec, expect) in cases {
        let error = error(spec);
        assert!(error.contains(expect), "'{error}' says '{expect}'");
    }
}

#[test]
fn over_takes_the_rest() {
    let mut params = params("fault:error=0.5,over=ram:size=1G,bs=4k");
    assert_eq!(params.text("over").as_deref(), Some("ram:size=1G,bs=4k"));
    assert_eq!(params.fraction("error").unwrap(), Some(0.5));
    assert!(params.finish().is_ok());
    // A key that only ends like it is a key of its own.
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
fn nesting_is_bounded() {
    let deep = format!("{}null:", "fault:over=".repeat(9));
    assert!(error(&deep).contains("nested more than 8 deep"));
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
    for bad in ["file:\"a,b", "file:\"a\"b,size=1M", "linear:over=file:\"a"] {
        assert!(error_of(bad).contains("file:\"a,b.img\""), "{}", error_of(bad));
    }
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a,b.img", "c+d.img"].map(|name| quoted(&dir.path().join(name).display().to_string()));
    let spec = format!("linear:over=file:{},size=1M+fault:seed=1,over=file:{},size=2M", paths[0], paths[1]);
    match open(&spec) {
        Ok(device) => {
            assert_eq!(device.size_bytes(), 3 << 20);
            assert!(dir.path().join("a,b.img").exists() && dir.path().join("c+d.img").exists());
        }
        // Where the host's kernel gives no rings: the spec is understood all the same.
        Err(error) => assert!(!matches!(error, DeviceError::Spec { .. }), "{error}"),
    }
}

fn error_of(spec: &str) -> String {
    open(spec).expect_err(spec).to_string()
}
