//! Content that counts as written by bench, and content that does not.

use super::*;
use sheave_load::verify::block::{Identity, seal};

fn file(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().expect("a file");
    file.write_all_at(bytes, 0).expect("written");
    file
}

fn sealed(address: u64, len: usize) -> Vec<u8> {
    let mut block = vec![0; len];
    seal(&mut block, Identity { run: 9, address, generation: 2 });
    block
}

#[test]
fn files_are_found_under_every_device() {
    let of = |text: &str| files_of(text).into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    assert_eq!(of("file:/a/b,size=1M"), ["/a/b"]);
    assert_eq!(of("file:\"a,b\",size=1M"), ["a,b"]);
    assert_eq!(of("fault:error=0.1,over=file:x,direct=off"), ["x"]);
    assert_eq!(of("linear:over=file:a+fault:over=file:b+ram:size=1M"), ["a", "b"]);
    assert!(of("ram:size=1M").is_empty() && of("null:").is_empty() && of("fault:error=1").is_empty());
}

#[test]
fn what_bench_wrote_is_told_from_the_rest() {
    let mut ours: Vec<u8> = (0..100).flat_map(|at| sealed(at * 8192, 4096).into_iter().chain([0; 4096])).collect();
    assert_eq!(look(&file(&ours)).expect("read"), None);
    assert_eq!(look(&file(&[])).expect("read"), None);
    for at in [0, 4096 + 17, 500_000] {
        ours[at] ^= 1;
        let found = look(&file(&ours)).expect("read").expect("foreign");
        assert!(found.contains(&format!("at byte {}", at / 512 * 512)) || at % 8192 < 4096, "{at}: {found}");
        ours[at] ^= 1;
    }
    let mut tail = sealed(0, 4096);
    tail.extend_from_slice(b"x");
    assert!(look(&file(&tail)).expect("read").expect("foreign").contains("at byte 4096"), "less than a sector counts");
    assert!(look(&file(&sealed(0, 4096)[..2048])).expect("read").is_some(), "the half of a block");
    let mut ext4 = vec![0; 1 << 20];
    ext4[1080..1082].copy_from_slice(b"\x53\xef");
    assert_eq!(look(&file(&ext4)).expect("read").as_deref(), Some("an ext2, ext3 or ext4 file system"));
}

#[test]
fn of_a_large_file_places_are_looked_at() {
    let large = file(&sealed(0, 1 << 20));
    large.set_len(1 << 30).expect("grown");
    large.write_all_at(&sealed(512 << 20, MAX_LEN), 512 << 20).expect("written");
    assert_eq!(look(&large).expect("read"), None, "blocks of 16 MiB, too");
    large.write_all_at(b"somebody's", 64 << 20).expect("written");
    assert!(look(&large).expect("read").expect("foreign").contains("at byte 67108864"));
}

#[test]
fn of_a_large_file_with_holes_each_stretch_of_data_is_looked_at() {
    let large = file(&[]);
    large.set_len(1 << 30).expect("grown");
    large.write_all_at(&sealed(40 << 20, 1 << 20), 40 << 20).expect("written");
    assert_eq!(look(&large).expect("read"), None);
    large.write_all_at(&[7; 4 << 20], 20 << 20).expect("written");
    assert!(look(&large).expect("read").expect("foreign").contains("at byte 20971520"));
}

#[test]
fn holes_count_within_the_range() {
    let holed = file(&[]);
    holed.set_len(8 << 20).expect("grown");
    assert_eq!(data_bytes(&holed, 8 << 20).expect("told"), 0);
    holed.write_all_at(&[7; 1 << 20], 2 << 20).expect("written");
    holed.write_all_at(&[7; 1 << 20], 7 << 20).expect("written");
    if data_bytes(&holed, 8 << 20).expect("told") == 8 << 20 {
        return sheave_testkit::skip("the file system tells of no holes");
    }
    for (range, data) in [(1 << 20, 0), (2 << 20, 0), (5 << 19, 1 << 19), (7 << 20, 1 << 20), (8 << 20, 2 << 20)] {
        assert_eq!(data_bytes(&holed, range).expect("told"), data, "{range}");
    }
}

#[test]
fn what_is_not_looked_at_is_not_overwritten() {
    for spec in [
        "nbd:unix:/run/x",
        "rbd:rbd/disk",
        "fault:eio=1,over=nbd:storage/disk",
        "partition:start=0,over=rbd:a/b",
        "linear:over=ram:size=1M+nbd:unix:/run/x",
        "linear:over=file:a+rbd:a/b",
        "linear:over=ram:size=1M+fault:eio=1,over=nbd:unix:/run/x",
    ] {
        let refused = refuse_to_overwrite(spec).expect_err(spec).to_string();
        assert!(refused.contains("would overwrite"), "{spec}: {refused}");
    }
    for spec in [
        "ram:size=1M",
        "linear:over=null:+ram:",
        "file:/no/nbd:x",
        "linear:over=ram:+file:\"/no/a+nbd:x\"",
        "nul:size=1M",
    ] {
        refuse_to_overwrite(spec).expect(spec);
    }
    // Any block device of this machine; it is not opened.
    let devices = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let Some(device) =
        devices.map(|entry| std::path::Path::new("/dev").join(entry.file_name())).find(|path| path.exists())
    else {
        return sheave_testkit::skip("the machine has no block device");
    };
    let path = device.display();
    for spec in [
        format!("file:{path}"),
        format!("partition:start=0,over=file:{path}"),
        format!("linear:over=ram:size=1M+file:{path}"),
    ] {
        let refused = refuse_to_overwrite(&spec).expect_err(&spec).to_string();
        assert!(refused.contains("block device"), "{spec}: {refused}");
    }
}
