//! Parsing of specs, and the errors for wrong ones.

use std::sync::Mutex;
use std::time::Duration;

use sheave::DeviceError;
use sheave::drivers::Registry;

use super::Target;

/// Parses a spec, without opening the device.
fn read(spec: &str) -> Result<Target, String> {
    static TARGET: Mutex<Option<Target>> = Mutex::new(None);
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut registry = Registry::standard();
    let keep = |target| *TARGET.lock().expect("no panic") = Some(target);
    registry
        .register("rbd", move |params| {
            keep(Target::read(params)?);
            Err(DeviceError::spec("", "it was read"))
        })
        .expect("the name is free");
    let error = registry.open(spec).expect_err("nothing is opened").to_string();
    TARGET.lock().expect("no panic").take().ok_or(error)
}

#[test]
fn a_spec_names_pool_image_snapshot_and_user() {
    let plain = read("rbd:rbd/disk").expect("read");
    assert_eq!((plain.pool.as_str(), plain.image.as_str(), plain.snapshot.clone()), ("rbd", "disk", None));
    assert_eq!((plain.id.as_str(), plain.name().as_str()), ("admin", "rbd/disk"));
    assert!(!plain.is_read_only());
    assert_eq!(plain.timeout, Duration::from_secs(120));
    let all = "rbd:p/i@s,conf=/a/c,id=me,keyring=/a/k,namespace=n,timeout=1m,connect=2s,warn=200ms,lock=3s";
    let all = read(all).expect("read");
    assert_eq!(all.name(), "p/n/i@s");
    assert_eq!((all.conf.as_deref(), all.keyring.as_deref()), (Some("/a/c"), Some("/a/k")));
    assert_eq!((all.timeout.as_secs(), all.connect.as_secs(), all.lock.as_secs()), (60, 2, 3));
    assert!(all.is_read_only(), "a snapshot never changes");
    assert!(read("rbd:p/i,readonly=on").expect("read").is_read_only());
}

#[test]
fn a_wrong_spec_gets_an_error_with_cause_and_fix() {
    for (spec, words) in [
        ("rbd:", "rbd:POOL/IMAGE"),
        ("rbd:disk", "rbd:POOL/IMAGE"),
        ("rbd:/disk", "rbd:POOL/IMAGE"),
        ("rbd:rbd/", "rbd:POOL/IMAGE"),
        ("rbd:rbd/disk@", "@SNAPSHOT"),
        ("rbd:rbd/space/disk", "namespace="),
        ("rbd:rbd/disk,id=client.me", "id=me"),
        ("rbd:rbd/disk,id=", "empty"),
        ("rbd:rbd/disk,timeout=0s", "timeout="),
        ("rbd:rbd/disk,lock=2d", "lock="),
        ("rbd:rbd/disk,conf=/a\0b", "NUL"),
        ("rbd:rbd/disk,colour=red", "'colour' is unknown"),
    ] {
        let error = read(spec).expect_err(spec);
        assert!(error.contains(words), "{spec}: {error}");
    }
}

#[test]
fn a_key_is_refused_and_not_repeated() {
    for spec in ["rbd:rbd/disk,key=AQBsecret==", "rbd:rbd/disk,password=AQBsecret==", "rbd:disk,key=AQBsecret=="] {
        let error = read(spec).expect_err(spec);
        assert!(!error.contains("AQB"), "{error}");
        assert!(error.contains("rbd:rbd/disk") || error.contains("rbd:disk"), "{error}");
    }
    assert!(read("rbd:rbd/disk,key=x").expect_err("refused").contains("keyring=PATH"));
}
