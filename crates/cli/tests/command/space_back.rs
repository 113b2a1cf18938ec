//! The space of deleted data is given back to the file system of the host.

use std::fs;
use std::os::unix::fs::MetadataExt;

use ::sheave_base::rng::Rng;

use crate::sheave::{Dir, no_io_uring};

const MIB: u64 = 1 << 20;

fn on_host(dir: &Dir) -> u64 {
    fs::metadata(dir.path("p.img")).expect("the pool").blocks() * 512
}

/// Returns 100 MiB of random bytes, and writes them to the file `raw`.
fn image(dir: &Dir) -> Vec<u8> {
    let mut bytes = vec![0; 100 * MIB as usize];
    Rng::new(1).fill(&mut bytes);
    fs::write(dir.path("raw"), &bytes).expect("an image");
    bytes
}

#[test]
fn a_trim_gives_back_what_was_deleted() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let bytes = image(&dir);
    fs::write(dir.path("small"), &bytes[..5 * MIB as usize]).expect("an image");
    dir.ok("pool create p.img --size 1G --checksum crc32c --discard off");
    dir.ok("volume import raw p.img#v --progress none");
    dir.ok("volume import small p.img#kept --progress none");
    dir.ok("volume delete p.img#v --yes");
    assert!(on_host(&dir) > 100 * MIB, "{}", on_host(&dir));
    let done = dir.ok("pool trim p.img --json --progress none").json();
    assert_eq!(done["completed"], true, "{done}");
    assert!(done["trimmed_bytes"].as_u64().is_some_and(|bytes| bytes > 900 * MIB), "{done}");
    assert!(on_host(&dir) <= 24 * MIB, "{} after {done}", on_host(&dir));
    dir.ok("volume export p.img#kept out --progress none");
    assert!(fs::read(dir.path("out")).expect("exported") == bytes[..5 * MIB as usize]);
    assert!(dir.ok("pool check p.img").out.ends_with("clean\n"));
    assert!(dir.ok("pool trim p.img").out.contains("of free space given back"));
}

#[test]
fn what_is_deleted_goes_back_without_being_asked() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    image(&dir);
    dir.ok("pool create p.img --size 1G --checksum crc32c");
    assert_eq!(dir.ok("pool info p.img --json").json()["discard"], "on");
    dir.ok("volume import raw p.img#v --progress none");
    assert!(on_host(&dir) > 100 * MIB, "{}", on_host(&dir));
    dir.ok("volume delete p.img#v --yes");
    // At its end the command closes the pool, and the close discards all space that is not used any more.
    assert!(on_host(&dir) <= 24 * MIB, "{}", on_host(&dir));
    assert_eq!(dir.ok("pool set p.img --discard off --json").json()["discard"], "off");
    dir.ok("volume import raw p.img#v --progress none");
    dir.ok("volume delete p.img#v --yes");
    assert!(on_host(&dir) > 100 * MIB, "{}", on_host(&dir));
    assert!(dir.ok("pool info p.img").out.contains("discard  off"));
    assert!(dir.ok("pool check p.img").out.ends_with("clean\n"));
}

#[test]
fn a_pool_takes_all_of_its_space_when_asked() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let said = dir.run("pool create p.img --size 64M --allocate full");
    if said.code != 0 && said.err.contains("leave --allocate full out") {
        sheave_testkit::skip("this file system cannot allocate");
        return;
    }
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(on_host(&dir) >= 64 * MIB, "{}", on_host(&dir));
    assert_eq!(dir.ok("pool info p.img --json").json()["discard"], "off", "else it would not keep it");
    dir.ok("pool create file:q.img,size=16M+file:r.img,size=16M --allocate full");
    let blocks = |name: &str| fs::metadata(dir.path(name)).expect("a member").blocks() * 512;
    assert!(blocks("q.img") >= 16 * MIB && blocks("r.img") >= 16 * MIB);
    // A pool made with `--allocate full` also takes the space by which it grows, in place or by another member. With
    // `--allocate sparse` the new member takes none.
    dir.ok("pool grow p.img --size 96M");
    assert!(blocks("p.img") >= 96 * MIB, "{}", blocks("p.img"));
    dir.ok("pool grow p.img --add added.img --size 16M");
    assert!(blocks("added.img") >= 16 * MIB);
    let said = dir.run("pool grow p.img+added.img --add more.img --size 4000T");
    assert!(said.code == 1 && !dir.path("more.img").exists(), "{}", said.err);
    dir.ok("pool grow p.img+added.img --add sparse.img --size 16M --allocate sparse");
    assert!(blocks("sparse.img") < 8 * MIB);
    dir.ok("pool create thin.img --size 16M");
    dir.ok("pool grow thin.img --size 32M");
    assert!(blocks("thin.img") < 8 * MIB);
    dir.ok("pool grow thin.img --size 48M --allocate full");
    assert!(blocks("thin.img") >= 48 * MIB);
    let (long, size) = (fs::metadata(dir.path("thin.img")).expect("there").len(), "4000T");
    let said = dir.run(&format!("pool grow thin.img --size {size} --allocate full"));
    assert!(said.code == 1 && said.err.contains("taking its space"), "{}", said.err);
    assert_eq!(fs::metadata(dir.path("thin.img")).expect("there").len(), long, "it is as it was");
    // The host has not enough space: the new file is removed again.
    let said = dir.run("pool create s.img --size 4000T --allocate full");
    assert!(said.code == 1 && !dir.path("s.img").exists(), "{}", said.err);
}

/// File system of 64 MiB, mounted at `t` in the directory.
struct Small<'a>(&'a Dir);

impl<'a> Small<'a> {
    fn mount(dir: &'a Dir) -> Option<Self> {
        fs::create_dir(dir.path("t")).expect("a mount point");
        let said = dir.shell("mount -t tmpfs -o size=64M sheave-test t");
        if said.code != 0 {
            sheave_testkit::skip("no small file system can be mounted here: run as root");
            return None;
        }
        Some(Self(dir))
    }

    fn free(&self) -> u64 {
        let found = self.0.shell("stat -f -c '%a %S' t").out;
        found.split_whitespace().map(|word| word.parse::<u64>().expect("a number")).product()
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        self.0.shell("umount -l t");
    }
}

#[test]
fn a_pool_on_a_full_file_system_opens_deletes_and_gives_room() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let Some(small) = Small::mount(&dir) else { return };
    let mut bytes = vec![0; 40 * MIB as usize];
    Rng::new(1).fill(&mut bytes);
    fs::write(dir.path("raw"), &bytes).expect("an image");
    for (discard, crashed) in [("on", false), ("off", false), ("on", true)] {
        dir.ok(&format!("pool create t/p.img --size 256M --discard {discard} --yes"));
        dir.ok("volume import raw t/p.img#a --progress none");
        let said = dir.run("volume import raw t/p.img#b --progress none");
        assert!(said.code == 1 && said.err.contains("file system that holds the pool"), "{}", said.err);
        // With discard the failed import has given its space back. Another file takes all space that is left.
        dir.shell("dd if=/dev/zero of=t/fill bs=4k 2>/dev/null");
        assert_eq!(small.free(), 0);
        if crashed {
            // The kill leaves commits in the journal, so that the next open has to recover them.
            let killed = "$SHEAVE bench vol:t/p.img#a --rw write --overwrite --dsync --runtime 20s --progress none & \
                          sleep 1; kill -9 $!; wait $! 2>/dev/null; true";
            dir.shell(killed);
            assert!(dir.ok("pool info t/p.img --json").json()["host_free_bytes"] == 0);
        }
        assert!(dir.ok("volume list t/p.img").out.contains('a'));
        dir.ok("volume delete t/p.img#a --yes");
        if discard == "off" {
            assert!(small.free() < MIB, "{}", small.free());
            dir.ok("pool trim t/p.img --progress none");
        }
        assert!(small.free() > 32 * MIB, "{discard} {crashed}: {}", small.free());
        assert!(dir.ok("pool check t/p.img").out.ends_with("clean\n"));
        dir.shell("rm t/fill");
        dir.ok("volume import raw t/p.img#c --progress none");
    }
}

#[test]
fn a_file_system_that_takes_nothing_back_is_told_by_who_only_looks() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    fs::create_dir(dir.path("host")).expect("a directory");
    if dir.shell("mount -t ramfs none host").code != 0 {
        return sheave_testkit::skip("no ramfs can be mounted here: run as root");
    }
    dir.ok("pool create host/p.img --size 32M");
    let bytes = || fs::read(dir.path("host/p.img")).expect("the pool");
    let before = bytes();
    let told = ["--json", ""].map(|how| dir.run(&format!("pool info host/p.img {how}")));
    let same = bytes() == before;
    let changed = dir.run("pool set host/p.img --discard on --json");
    let trimmed = dir.run("pool trim host/p.img");
    assert_eq!(dir.shell("umount host").code, 0);
    assert!(same, "nothing is written");
    assert_eq!(told[0].json()["discard"], "unsupported");
    assert!(told[1].out.contains("discard  unsupported"), "{}", told[1].out);
    assert_eq!(changed.json()["discard"], "unsupported", "who opens it to write has tried");
    assert!(trimmed.code == 2 && trimmed.err.contains("cannot take space back"), "{}", trimmed.err);
}
