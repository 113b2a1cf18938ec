//! Images that other programs make and read: qemu-img and mkfs.ext4.

use std::path::Path;
use std::process::Command;

use crate::sheave::{Dir, no_io_uring};

fn tool(name: &str, dir: &Dir, args: &[&str]) -> String {
    let program = sheave_testkit::tools::find(name).unwrap_or_else(|| name.into());
    let output = Command::new(program).args(args).current_dir(dir.path("")).output().expect("it runs");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {args:?}: {said}");
    said
}

fn pool(tools: &[&str]) -> Option<Dir> {
    if no_io_uring() || tools.iter().any(|tool| sheave_testkit::require(tool).is_none()) {
        return None;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 128M");
    Some(dir)
}

#[test]
fn a_file_system_goes_in_and_out() {
    let Some(dir) = pool(&["mkfs.ext4"]) else { return };
    let tree = dir.path("tree");
    std::fs::create_dir(&tree).expect("a directory");
    std::fs::copy(std::env::current_exe().expect("a path"), tree.join("file")).expect("copied");
    std::fs::write(dir.path("fs.raw"), "").expect("a file");
    tool("mkfs.ext4", &dir, &["-q", "-d", "tree", "fs.raw", "96M"]);
    dir.ok("volume import fs.raw p.img#fs");
    dir.ok("volume snapshot p.img#fs s");
    dir.ok("volume clone p.img#s c");
    dir.ok("volume export p.img#c out.raw");
    tool("e2fsck", &dir, &["-f", "-n", "out.raw"]);
    tool("cmp", &dir, &["fs.raw", "out.raw"]);
    let original: &Path = &tree.join("file");
    tool("debugfs", &dir, &["-R", "dump /file dumped", "out.raw"]);
    assert!(std::fs::read(original).expect("read") == std::fs::read(dir.path("dumped")).expect("dumped"));
}

#[test]
fn images_of_qemu_compare_as_identical() {
    let Some(dir) = pool(&["qemu-img", "qemu-io"]) else { return };
    tool("qemu-img", &dir, &["create", "-q", "-f", "qcow2", "a.qcow2", "64M"]);
    let writes =
        ["-c", "write -P 17 0 64k", "-c", "write -P 3 1000k 3M", "-c", "write -z 2M 64k", "-c", "write 63M 1M"];
    tool("qemu-io", &dir, &[&writes[..], &["a.qcow2"]].concat());
    let said = dir.run("volume import a.qcow2 p.img#v");
    assert_eq!(said.code, 2, "{}", said.out);
    assert!(said.err.contains("qcow2") && said.err.contains("qemu-img convert"), "{}", said.err);
    tool("qemu-img", &dir, &["convert", "-O", "raw", "a.qcow2", "a.raw"]);
    dir.ok("volume import a.raw p.img#v");
    dir.ok("volume export p.img#v b.raw");
    let said = tool("qemu-img", &dir, &["compare", "-f", "qcow2", "-F", "raw", "a.qcow2", "b.raw"]);
    assert!(said.contains("Images are identical"), "{said}");
    // Our map has the same JSON format as the map of qemu-img, and must have as much data.
    let ours: serde_json::Value = serde_json::from_str(&dir.ok("volume map p.img#v --json").out).expect("JSON");
    let data = |map: &serde_json::Value| {
        let extents = map.as_array().expect("an array").iter().filter(|extent| extent["data"] == true);
        extents.map(|extent| extent["length"].as_u64().expect("a length")).sum::<u64>()
    };
    let theirs = tool("qemu-img", &dir, &["map", "--output=json", "-f", "raw", "b.raw"]);
    let theirs: serde_json::Value = serde_json::from_str(&theirs).expect("JSON");
    assert!(data(&ours) <= data(&theirs) && data(&ours) >= 3 << 20, "{ours}\n{theirs}");
}
