//! Opening by spec: the built-in kinds and those that a program adds. Every error names the cause and the fix.

use std::time::Duration;

use super::*;
use crate::spec::quoted;

fn error(spec: &str) -> String {
    let error = open_device(spec).expect_err(spec).to_string();
    assert!(error.contains(spec), "'{error}' names the spec '{spec}'");
    error
}

fn error_of(spec: &str) -> String {
    open_device(spec).expect_err(spec).to_string()
}

#[test]
fn defaults_and_every_key_of_null() {
    assert_eq!(open_device("null:").unwrap().size_bytes(), 1 << 30);
    let device =
        open_device("null:size=1T,latency=10us,complete=thread,depth=7,bs=4k,host_depth=9,timeout=3s").unwrap();
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
fn nesting_is_bounded() {
    let deep = format!("{}null:", "fault:over=".repeat(9));
    assert!(error(&deep).contains("nested more than 8 deep"));
}

#[test]
fn paths_in_quotes_are_opened_as_they_are() {
    for bad in ["file:\"a,b", "file:\"a\"b,size=1M", "linear:over=file:\"a"] {
        assert!(error_of(bad).contains("file:\"a,b.img\""), "{}", error_of(bad));
    }
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a,b.img", "c+d.img"].map(|name| quoted(&dir.path().join(name).display().to_string()));
    let spec = format!("linear:over=file:{},size=1M+fault:seed=1,over=file:{},size=2M", paths[0], paths[1]);
    match open_device(&spec) {
        Ok(device) => {
            assert_eq!(device.size_bytes(), 3 << 20);
            assert!(dir.path().join("a,b.img").exists() && dir.path().join("c+d.img").exists());
        }
        // A host without kernel rings cannot open the files, but the spec is still parsed without an error.
        Err(error) => assert!(!matches!(error, DeviceError::Spec { .. }), "{error}"),
    }
}

#[test]
fn a_program_adds_kinds_that_layers_stand_on() {
    let mut registry = Registry::standard();
    registry
        .register("half", |params| {
            let size = params.size("of")?.unwrap_or(0) / 2;
            params.finish()?;
            open_device(&format!("null:size={size}"))
        })
        .expect("a free name");
    let device = registry.open("fault:seed=1,over=partition:start=4k,over=half:of=1M").expect("a good spec");
    assert_eq!(device.size_bytes(), (512 << 10) - 4096);
    let error = registry.open("half:off=1M").expect_err("an unknown key").to_string();
    assert!(error.contains("key 'off' is unknown. Known keys: of"), "{error}");
    assert!(registry.open("halve:").expect_err("unknown").to_string().contains("linear, half"), "lists the new kind");
    assert!(registry.open("half").expect_err("no colon").to_string().contains("as in half:"));
    assert!(open_device("half:of=1M").expect_err("not a standard kind").to_string().contains("kind 'half' is unknown"));
    for (name, why) in
        [("ram", "registered already"), ("half", "registered already"), ("", "no name"), ("a:b", "no name")]
    {
        let error = registry.register(name, |_| open_device("null:")).expect_err(name).to_string();
        assert!(error.contains(why), "{name}: {error}");
    }
}

#[test]
fn all_that_a_spec_opens_is_listed_at_any_depth_and_nothing_is_opened() {
    let file = |path: &str| Reach::Data(path.into());
    let registry = Registry::standard();
    let cases: [(&str, &[Reach]); 8] = [
        ("null:size=1T", &[]),
        ("ram:size=1G,huge=on", &[]),
        ("file:/not/there,size=1G", &[file("/not/there")]),
        ("file:\"/a,b=c.img\",readonly=on", &[file("/a,b=c.img")]),
        ("file:./a=b+c", &[file("./a=b+c")]),
        ("fault:error=0,over=file:/x", &[file("/x")]),
        (
            "partition:size=1M,over=linear:over=file:/x+fault:seed=1,over=linear:over=file:\"/y+z\"+ram:size=1M",
            &[file("/x"), file("/y+z")],
        ),
        ("linear:size=1,over=null:+file:/over=x", &[file("/over=x")]),
    ];
    for (spec, reaches) in cases {
        assert_eq!(registry.reaches(spec).expect(spec), reaches, "{spec}");
    }
    for (spec, why) in [("file", "as in file:"), ("over=file:/x", "is unknown"), ("file:/x,y", "no key=value")] {
        let error = registry.reaches(spec).expect_err(spec).to_string();
        assert!(error.contains(why), "{spec}: {error}");
    }
    let deep = format!("{}file:/x", "fault:over=".repeat(9));
    assert!(registry.reaches(&deep).is_err(), "a spec that is never opened");
}

/// The list of resources fails for a kind that was not declared, also if a device of that kind is below another one.
#[test]
fn a_kind_that_does_not_declare_what_it_opens_is_refused_by_who_asks() {
    let mut registry = Registry::standard();
    registry.register("odd", |_| open_device("null:")).expect("a free name");
    for spec in ["odd:", "linear:over=ram:size=1M+odd:x"] {
        let error = registry.reaches(spec).expect_err(spec).to_string();
        assert!(error.contains("kind 'odd' does not declare what it opens"), "{error}");
    }
    registry.declare("odd", |params| vec![Reach::Socket(params.path().unwrap_or_default().into())]).expect("known");
    assert_eq!(registry.reaches("fault:over=odd:x").expect("declared"), [Reach::Socket("x".into())]);
    assert!(registry.declare("none", |_| Vec::new()).is_err());
    assert_eq!(Reach::Network("the server h".into()).to_string(), "the server h, over the network");
}
