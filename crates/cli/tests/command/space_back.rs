//! What was deleted goes back to the file system: the size of the pool's file on the host.

use std::fs;
use std::os::unix::fs::MetadataExt;

use ::sheave::base::rng::Rng;

use crate::sheave::{Dir, no_io_uring};

const MIB: u64 = 1 << 20;

fn on_host(dir: &Dir) -> u64 {
    fs::metadata(dir.path("p.img")).expect("the pool").blocks() * 512
}

#[test]
fn a_trim_gives_back_what_was_deleted() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let mut bytes = vec![0; 100 * MIB as usize];
    Rng::new(1).fill(&mut bytes);
    fs::write(dir.path("raw"), &bytes).expect("an image");
    fs::write(dir.path("small"), &bytes[..5 * MIB as usize]).expect("an image");
    dir.ok("pool create p.img --size 1G --checksum crc32c");
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
