//! The driver `rbd:` from outside, on a Ceph cluster of one node: bench, pools, copies, diffs in both directions and
//! exports. Also the error without librbd. The start of a cluster is slow, so one test does everything that needs one.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use sheave_testkit::ceph::{Ceph, Store};

use crate::serve::serve_ok;
use crate::sheave::{Dir, no_io_uring};

#[test]
fn an_image_of_a_cluster_is_verified_has_a_pool_and_trades_diffs() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    let dir = Dir::new();
    let conf = ceph.conf().display().to_string();
    let spec = |image: &str| format!("rbd:rbd/{image},conf={conf}");
    let image: Vec<u8> = (0..5u32 << 20).map(|n| (n / 4096 * 7 + n % 251) as u8).collect();
    fs::write(dir.path("in.raw"), &image).expect("written");

    // Bench on the image itself.
    ceph.rbd(&["create", "--size", "64M", "disk"]);
    let disk = spec("disk");
    dir.ok(&format!("bench {disk} --overwrite --rw randrw --verify --depth 32 --dsync --runtime 300ms"));
    dir.ok(&format!("bench {disk} --overwrite --rw randrw --verify --bs 256k --depth 16 --runtime 300ms"));

    // A pool on the image.
    dir.ok(&format!("pool create {disk} --yes"));
    dir.ok(&format!("volume import in.raw {disk}#v"));
    dir.ok(&format!("volume snapshot {disk}#v then"));
    dir.ok(&format!("bench vol:{disk}#v --overwrite --rw randrw --verify --depth 16 --runtime 300ms"));
    dir.ok(&format!("pool scrub {disk}"));
    let said = dir.ok(&format!("pool check {disk}"));
    assert!(said.out.contains("clean"), "{}", said.out);
    dir.ok(&format!("volume export {disk}#then out.raw"));
    assert!(fs::read(dir.path("out.raw")).expect("read") == image, "the snapshot is what was imported");
    // Reads the old state of the pool from a snapshot that Ceph made.
    ceph.rbd(&["snap", "create", "disk@kept"]);
    dir.ok(&format!("volume delete --yes {disk}#v"));
    dir.ok(&format!("volume export rbd:rbd/disk@kept,conf={conf}#then kept.raw"));
    assert!(fs::read(dir.path("kept.raw")).expect("read") == image, "Ceph's snapshot has the pool as it was");

    // Copies with an image of the cluster as the source and as the target.
    dir.ok("pool create p.img --size 512M");
    ceph.rbd(&["import", dir.path("in.raw").to_str().expect("UTF-8"), "copied"]);
    dir.ok(&format!("volume import {} p.img#copied", spec("copied")));
    dir.ok("volume export p.img#copied copied.raw");
    assert!(fs::read(dir.path("copied.raw")).expect("read") == image);
    ceph.rbd(&["create", "--size", "5M", "target"]);
    dir.ok(&format!("volume export --yes p.img#copied {}", spec("target")));
    ceph.rbd(&["export", "target", dir.path("target.raw").to_str().expect("UTF-8")]);
    assert!(fs::read(dir.path("target.raw")).expect("read") == image);

    killed(&dir, &disk);
    diffs_both_ways(&ceph, &dir);
    served(&dir, &disk);
    refused(&dir, &conf);
}

/// `rbd import-diff` accepts diffs that Sheave exports, and Sheave imports diffs of `rbd export-diff`.
fn diffs_both_ways(ceph: &Ceph, dir: &Dir) {
    let path = |name: &str| dir.path(name).display().to_string();
    let same = |what: &str, one: &str, other: &str| {
        let (one, other) = (fs::read(dir.path(one)).expect("read"), fs::read(dir.path(other)).expect("read"));
        assert!(one == other, "{what}");
    };
    // From a volume to an image: the whole first snapshot, then the changes up to the second.
    dir.ok("volume snapshot p.img#copied one");
    dir.ok("volume export-diff p.img#one one.diff --format v1");
    ceph.rbd(&["create", "--size", "5M", "mirror"]);
    ceph.rbd(&["import-diff", &path("one.diff"), "mirror"]);
    dir.ok("bench vol:p.img#copied --overwrite --rw randwrite --range 2M --depth 4 --runtime 50ms");
    dir.ok("volume snapshot p.img#copied two");
    dir.ok("volume export-diff p.img#two two.diff --from one --format v1");
    ceph.rbd(&["import-diff", &path("two.diff"), "mirror"]);
    ceph.rbd(&["export", "mirror", &path("mirror.raw")]);
    dir.ok("volume export p.img#two two.raw");
    same("an image that took our diffs", "mirror.raw", "two.raw");
    // From an image to a volume, in the same way.
    ceph.rbd(&["snap", "create", "copied@a"]);
    ceph.rbd(&[
        "bench",
        "--io-type",
        "write",
        "--io-size",
        "8192",
        "--io-total",
        "1M",
        "--io-pattern",
        "rand",
        "copied",
    ]);
    ceph.rbd(&["snap", "create", "copied@b"]);
    ceph.rbd(&["export-diff", "copied@a", &path("a.diff")]);
    ceph.rbd(&["export-diff", "--from-snap", "a", "copied@b", &path("b.diff")]);
    dir.ok("volume import-diff a.diff p.img#back");
    dir.ok("volume import-diff b.diff p.img#back");
    ceph.rbd(&["export", "copied@b", &path("b.raw")]);
    dir.ok("volume export p.img#back back.raw");
    same("a volume that took Ceph's diffs", "b.raw", "back.raw");
}

/// A killed process keeps the exclusive lock until Ceph declares its client dead. After that the pool is recovered.
fn killed(dir: &Dir, disk: &str) {
    dir.ok(&format!("volume create {disk}#busy --size 16M"));
    let line = format!("bench vol:{disk}#busy --rw randwrite --depth 8 --runtime 60s");
    let mut busy = dir.command(&line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    // The other process may need a while to open the image.
    let until = Instant::now() + Duration::from_secs(50);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let said = dir.run(&format!("pool check {disk}"));
        if said.code != 0 && said.err.contains("has its exclusive lock") {
            break;
        }
        assert!(Instant::now() < until, "{}: {}", said.code, said.err);
    }
    assert!(busy.try_wait().expect("asked").is_none(), "it runs until it is killed");
    busy.kill().expect("killed");
    busy.wait().expect("waited for");
    let said = dir.run(&format!("pool check {disk},lock=500ms"));
    assert!(said.code == 1 && said.err.contains("not to be had within 500ms"), "{}: {}", said.code, said.err);
    let said = dir.ok(&format!("pool check {disk},lock=30s"));
    assert!(said.out.contains("clean"), "{}", said.out);
}

fn served(dir: &Dir, disk: &str) {
    if no_io_uring() || sheave_testkit::require("nbdcopy").is_none() {
        return;
    }
    dir.ok(&format!("volume create {disk}#served --size 5M"));
    serve_ok(dir, &format!("{disk}#served --name v --nbd unix:t"), "nbdcopy in.raw 'nbd+unix:///v?socket=t'");
    dir.ok(&format!("volume export {disk}#served served.raw"));
    assert!(fs::read(dir.path("served.raw")).expect("read") == fs::read(dir.path("in.raw")).expect("read"));
}

fn refused(dir: &Dir, conf: &str) {
    let said = dir.run(&format!("pool create rbd:rbd/nowhere,conf={conf}"));
    assert!(said.code == 1 && said.err.contains("`rbd ls rbd`"), "{}", said.err);
    let said = dir.run(&format!("bench rbd:rbd/disk,conf={conf},key=AQBsecret== --runtime 10ms"));
    assert!(said.code != 0 && said.err.contains("keyring=PATH") && !said.err.contains("AQB"), "{}", said.err);
}

#[test]
fn where_there_is_no_librbd_its_package_is_named() {
    let dir = Dir::new();
    // The dynamic linker finds this file first, and it is no library.
    fs::write(dir.path("librados.so.2"), "no library").expect("written");
    let mut command = dir.command("bench rbd:rbd/disk --runtime 10ms");
    let output = command.env("LD_LIBRARY_PATH", dir.path("")).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("apt-get install librados2"), "{said}");
}
