//! Parsing of places.

use super::*;

fn specs(text: &str) -> Vec<String> {
    text.parse::<PoolPlace>().expect(text).members.iter().map(|member| member.spec(",size=1M")).collect()
}

#[test]
fn paths_specs_and_several_of_them() {
    assert_eq!(specs("no-such.img"), ["file:./no-such.img,size=1M"]);
    assert_eq!(specs("/no/such.img"), ["file:/no/such.img,size=1M"]);
    assert_eq!(specs("a=b.img"), ["file:./a=b.img,size=1M"]);
    assert_eq!(specs("a.img+/b.img"), ["file:./a.img,size=1M", "file:/b.img,size=1M"]);
    assert_eq!(specs("file:a.img,direct=off"), ["file:a.img,direct=off"]);
    assert_eq!(specs("file:a,size=1G+b"), ["file:a,size=1G", "file:./b,size=1M"]);
    assert_eq!(specs("linear:over=file:a+file:b"), ["linear:over=file:a+file:b"]);
    for bad in ["", "+a", "a++b", "a,b", "pool.img#vol"] {
        assert!(bad.parse::<PoolPlace>().is_err(), "{bad}");
    }
}

#[test]
fn a_file_that_is_there_is_one_path_whatever_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a+b#c");
    std::fs::write(&path, "").expect("a file");
    let place: PoolPlace = path.display().to_string().parse().expect("one path");
    assert_eq!(place.single_path(), Some(path.as_path()));
    let volume: VolumePlace = format!("{}#v", path.display()).parse().expect("a volume in it");
    assert_eq!(volume.pool.single_path(), Some(path.as_path()));
}

#[test]
fn a_path_with_a_comma_is_quoted_in_its_spec() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a,b+c.img").display().to_string();
    std::fs::write(&path, "").expect("a file");
    assert_eq!(specs(&path), [format!("file:\"{path}\",size=1M")]);
    let place: PoolPlace = path.parse().expect("one path");
    assert_eq!(place.file_spec(), Some((path.clone(), String::new())));
    let spelled: PoolPlace = format!("file:\"{path}\",direct=off+x.img").parse().expect("two members");
    assert_eq!(spelled.members.len(), 2);
    let error = "no,such.img".parse::<PoolPlace>().expect_err("it is no file");
    assert!(error.contains("device spec"), "{error}");
}

#[test]
fn the_kinds_are_those_that_can_be_opened() {
    let said = open_device("no-such-kind:").expect_err("there is none").to_string();
    assert!(said.contains(&format!("Known: {}", KINDS.join(", "))), "{said}");
    assert!(is_kind("rbd") && !is_kind("no-such-kind"));
}

#[test]
fn volumes() {
    let place: VolumePlace = "pool.img#root-1.0_x".parse().expect("a volume");
    assert_eq!((place.pool.to_string().as_str(), place.name.as_str()), ("pool.img", "root-1.0_x"));
    assert_eq!(place.to_string(), "pool.img#root-1.0_x");
    for (bad, word) in [
        ("pool.img", "pool.img#NAME"),
        ("#root", "POOL#root"),
        ("pool.img#", "1 to 255"),
        ("pool.img#-x", "begins with"),
        ("pool.img#.x", "begins with"),
        ("pool.img#a b", "' '"),
        ("pool.img#a/b", "'/'"),
    ] {
        let error = bad.parse::<VolumePlace>().expect_err(bad);
        assert!(error.contains(word), "{bad}: {error}");
    }
    assert!(format!("p#{}", "x".repeat(255)).parse::<VolumePlace>().is_ok());
    assert!(format!("p#{}", "x".repeat(256)).parse::<VolumePlace>().is_err());
}

#[test]
fn what_is_in_memory_is_told() {
    for (text, all, any) in [
        ("ram:size=1G", true, true),
        ("fault:error=0.1,over=ram:size=1G", true, true),
        ("linear:over=null:size=1G+partition:size=1M,over=ram:", true, true),
        ("linear:over=file:a.img+ram:size=1G", false, true),
        ("linear:over=ram:size=1G+file:a.img", false, true),
        ("ram:size=1G+a.img", false, true),
        ("ramdisk.img", false, false),
        ("file:/srv/telegram:x/p.img", false, false),
        ("fault:error=0.1,over=file:/srv/null:x/p.img", false, false),
    ] {
        let place: PoolPlace = text.parse().expect(text);
        assert_eq!(place.is_volatile(), all, "{text}");
        assert_eq!(place.refuse_volatile().is_err(), any, "{text}");
    }
}

#[test]
fn the_fix_for_a_missing_pool_is_a_command_that_works() {
    for (text, fix) in [
        ("/nowhere/p.img", "sheave pool create /nowhere/p.img --size 10G"),
        ("/nowhere/a+/nowhere/b", "sheave pool create file:A,size=5G+file:B,size=5G"),
    ] {
        let place: PoolPlace = text.parse().expect(text);
        let failure = format!("{:?}", place.expect_there().expect_err(text));
        assert!(failure.contains(fix), "{failure}");
    }
}

/// A path that cannot be examined is not reported as missing.
#[test]
fn what_cannot_be_looked_at_is_not_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let circle = dir.path().join("circle");
    std::os::unix::fs::symlink(&circle, &circle).expect("linked");
    let refused = |path: &std::path::Path| {
        let place: PoolPlace = path.display().to_string().parse().expect("a place");
        place.expect_pool().expect_err("no pool").cause().to_owned()
    };
    assert!(!is_missing(&circle) && refused(&circle).contains("cannot be looked at"), "{}", refused(&circle));
    let missing = dir.path().join("missing");
    assert!(is_missing(&missing) && refused(&missing).contains("there is no such file"), "{}", refused(&missing));
}

#[test]
fn a_file_system_that_makes_holes_and_a_file_that_is_not_there_are_not_told_of() {
    let file = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file");
    assert_eq!((takes_back(file.path()), takes_back(Path::new("/no/such/file"))), (None, None));
}
