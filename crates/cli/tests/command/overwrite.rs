//! `sheave bench` does not overwrite images, pools or foreign files, and a run that only reads changes nothing.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::sheave::{Dir, no_io_uring};

/// Writes a file of 1 MiB that does not look like a file of bench. Returns its content.
fn image(dir: &Dir, name: &str) -> Vec<u8> {
    let bytes: Vec<u8> = (0..1_u64 << 20).map(|at| (at * at / 7) as u8).collect();
    fs::write(dir.path(name), &bytes).expect("written");
    bytes
}

#[test]
fn an_image_is_not_overwritten_without_being_asked() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let bytes = image(&dir, "image");
    for line in [
        "bench file:image --rw randwrite --ios 10",
        "bench file:image,size=2M --rw randrw --ios 10",
        "bench file:image --verify --ios 10",
        "bench file:image --fill --ios 10",
        "bench fault:error=0.5,over=file:image --rw randwrite --ios 10",
        "bench linear:over=file:image+ram:size=1M --rw write --ios 10",
    ] {
        let said = dir.run(line);
        assert_eq!(said.code, 2, "{line}\n{}{}", said.out, said.err);
        assert!(
            said.err.contains("holds data that bench did not write") && said.err.contains("--overwrite"),
            "{}",
            said.err
        );
        assert!(fs::read(dir.path("image")).expect("read") == bytes, "{line} changed it");
    }
    dir.ok("bench file:image --rw randwrite --ios 100 --overwrite --progress none");
    assert!(fs::read(dir.path("image")).expect("read") != bytes);
}

#[test]
fn a_pool_is_made_for_a_run_in_memory_alone() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let bytes = image(&dir, "image");
    fs::create_dir(dir.path("telegram:x")).expect("made");
    fs::copy(dir.path("image"), dir.path("telegram:x/image")).expect("copied");
    for (name, spec) in [
        ("image", "linear:over=file:image+ram:size=64M"),
        ("image", "linear:over=ram:size=64M+file:image"),
        ("image", "ram:size=64M+image"),
        ("telegram:x/image", "file:telegram:x/image"),
    ] {
        for line in [format!("bench vol:{spec} --ios 10"), format!("bench vol:{spec} --ios 10 --overwrite")] {
            let said = dir.run(&line);
            assert_eq!(said.code, 2, "{line}\n{}{}", said.out, said.err);
            let told = ["a part of this pool is in memory", "no volume is named"];
            assert!(told.iter().any(|why| said.err.contains(why)) && said.err.contains("fix: "), "{}", said.err);
            assert!(fs::read(dir.path(name)).expect("read") == bytes, "{line} changed it");
        }
        let said = dir.run(&format!("bench vol:{spec}#v --ios 10"));
        assert!(said.code != 0, "{spec}#v\n{}", said.out);
        assert!(fs::read(dir.path(name)).expect("read") == bytes, "{spec}#v changed it");
    }
}

#[test]
fn what_bench_wrote_it_may_write_again() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    // The command of README twice, then other kinds of runs on the same file.
    for line in [
        "bench file:first.img,size=8M --rw randrw --verify --ios 3000 --progress none",
        "bench file:first.img,size=8M --rw randrw --verify --ios 3000 --progress none",
        "bench file:first.img,size=8M --rw randwrite --ios 300 --progress none",
        "bench file:first.img,size=8M --rw randrw --bs 64k --verify --ios 300 --progress none",
        "bench file:first.img,size=8M --rw randrw --bs 64k --ios 300 --progress none",
        "bench file:first.img --rw write --fill --ios 300 --progress none",
        "bench file:new.img,size=4M --ios 300 --progress none",
        "bench file:new.img,size=4M --rw randwrite --ios 300 --progress none",
    ] {
        dir.ok(line);
    }
}

#[test]
fn a_pool_is_named_and_one_that_is_open_is_left_alone() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 64M");
    let said = dir.run("bench file:p.img --rw randwrite --ios 10");
    assert!(said.code == 2 && said.err.contains("a Sheave pool ("), "{}", said.err);
    // The lock stands for a process that has the pool open.
    let holder = fs::File::open(dir.path("p.img")).expect("opened");
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let before = fs::read(dir.path("p.img")).expect("read");
    let said = dir.run("bench file:p.img --rw randwrite --ios 10 --overwrite");
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.err.contains("is in use: process") && !said.err.contains("kill"), "{}", said.err);
    assert!(fs::read(dir.path("p.img")).expect("read") == before);
    dir.ok("bench file:p.img --ios 10 --progress none");
    drop(holder);
    dir.ok("pool check p.img");
}

#[test]
fn a_run_that_only_reads_neither_grows_nor_writes() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    image(&dir, "image");
    fs::set_permissions(dir.path("image"), fs::Permissions::from_mode(0o444)).expect("chmod");
    let before = fs::metadata(dir.path("image")).expect("there");
    dir.ok("bench file:image --ios 100 --progress none");
    dir.ok("bench file:image,size=1M --ios 100 --progress none");
    let said = dir.run("bench file:image,size=8M --ios 100");
    assert_eq!(said.code, 2, "{}{}", said.out, said.err);
    assert!(said.err.contains("image has 1 MiB") && said.err.contains("--fill"), "{}", said.err);
    let after = fs::metadata(dir.path("image")).expect("there");
    assert_eq!((before.len(), before.mtime_nsec()), (after.len(), after.mtime_nsec()));
    // A run that only reads opens the file read-only.
    let said =
        dir.shell("strace -f -e trace=openat -o trace $SHEAVE bench file:image --ios 10 --progress none; cat trace");
    if sheave_testkit::require("strace").is_some() && said.out.contains("openat(") {
        let opened: Vec<&str> = said.out.lines().filter(|line| line.contains("image\"")).collect();
        assert!(!opened.is_empty() && opened.iter().all(|line| line.contains("O_RDONLY")), "{opened:?}");
    }
}

#[test]
fn the_kernels_side_writes_as_durably_as_the_device() {
    if no_io_uring() || sheave_testkit::require("strace").is_none() {
        return;
    }
    let dir = Dir::new();
    image(&dir, "image");
    for (spec, dsync) in [("file:image,sync=on", true), ("file:image,sync=off", false)] {
        let said = dir.shell(&format!(
            "strace -f -e trace=openat -o trace $SHEAVE bench {spec} --rw randwrite --overwrite --compare kernel \
             --pairs 1 --runtime 20ms --progress none >out 2>&1; cat trace"
        ));
        if !said.out.contains("openat(") {
            return sheave_testkit::skip("strace traces nothing here");
        }
        let written = |line: &&str| line.contains("image\"") && (line.contains("O_RDWR") || line.contains("O_WRONLY"));
        let opened: Vec<&str> = said.out.lines().filter(written).collect();
        assert!(opened.len() >= 2, "both sides open it: {opened:?}");
        assert!(opened.iter().all(|line| line.contains("O_DSYNC") == dsync), "{spec}: {opened:?}");
    }
}
