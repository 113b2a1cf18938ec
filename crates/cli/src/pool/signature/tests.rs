//! Every signature is found, and an empty device has none.

use std::fs;

use super::*;
use sheave::open_device;

const GIB: u64 = 1 << 30;

/// A file without data.
fn sparse(dir: &Path, size: u64) -> (std::path::PathBuf, File) {
    let path = dir.join("sparse");
    let file = File::options().write(true).create(true).truncate(true).open(&path).expect("made");
    file.set_len(size).expect("grown");
    (path, file)
}

/// Content at the end of a device, or far from its start, is found on the device and in the file.
#[test]
fn what_lies_far_from_the_start_is_found() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let size = 8 * GIB + 5120;
    let raid = b"\xfc\x4e\x2b\xa9";
    let cases: [(u64, &[u8], &str); 8] = [
        (size - 512, b"EFI PART", "a GPT partition table"),
        (size - 4096, b"EFI PART", "a GPT partition table"),
        (8 * GIB - 65536, raid, "a RAID member"),
        (8 * GIB - 4096, raid, "a RAID member"),
        (8 * GIB - (384 << 10), b"\x0c\xb1\xba\x00\x00\x00\x00\x00", "a ZFS pool"),
        ((64 << 20) + 64, b"_BHRfS_M", "a btrfs file system"),
        (size - 1, b"x", "data: byte 8589939711 is not zero"),
        (8 * GIB - (700 << 10), b"x", "data: byte 8589217792 is not zero"),
    ];
    for (at, bytes, what) in cases {
        let (path, file) = sparse(dir.path(), size);
        assert_eq!(find_in_file(&path).expect("looked at"), None);
        file.write_all_at(bytes, at).expect("written");
        let device = open_device(&format!("file:{},readonly=on", path.display())).expect("a device");
        assert_eq!(find_in_file(&path).expect("looked at").as_deref(), Some(what), "{at}");
        assert_eq!(find(&device).expect("looked at").as_deref(), Some(what), "{at}");
    }
}

/// All data extents of a file are examined; zeroes that were written do not count as content.
#[test]
fn data_behind_a_long_hole_of_a_file_is_found() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let (path, file) = sparse(dir.path(), 4 * GIB);
    file.write_all_at(&vec![0; 3 << 20], GIB).expect("written");
    assert_eq!(find_in_file(&path).expect("looked at"), None);
    file.write_all_at(b"data", GIB + (2 << 20) + 12_345).expect("written");
    let found = find_in_file(&path).expect("looked at");
    assert_eq!(found, Some(format!("data: byte {} is not zero", GIB + (2 << 20) + 12_345)));
    fs::write(&path, b"odd size").expect("written");
    assert_eq!(find_in_file(&path).expect("looked at").as_deref(), Some("data: byte 0 is not zero"));
}

#[test]
fn a_small_device_is_looked_at_as_a_whole_and_a_large_one_at_both_ends_and_between() {
    for size in [512, 4096, LOOK, LOOK + 512, 3 * LOOK - 4096, WHOLE] {
        let mut end = LOOK.min(size);
        for place in places(size) {
            assert_eq!(place.start, end);
            end = place.end;
        }
        assert_eq!(end, size);
    }
    for size in [WHOLE + 512, 5 * GIB, 1 << 60] {
        let all = places(size);
        let last = all.first().expect("the last MiB");
        assert!(last.end == size && last.end - last.start >= LOOK, "{last:?}");
        assert!(all.iter().all(|place| place.end <= size && place.start.is_multiple_of(SAMPLE)), "{size}");
        let mut starts: Vec<u64> = all.iter().map(|place| place.start).collect();
        starts.sort_unstable();
        let widest = starts.windows(2).map(|pair| pair[1] - pair[0]).max().expect("several");
        assert!(widest <= size / SAMPLES + 2 * SAMPLE, "{size}: {widest}");
    }
}

#[test]
fn each_signature_is_named_by_itself() {
    for (what, at, magic) in KNOWN {
        let mut bytes = vec![0; 256 << 10];
        bytes[*at..*at + magic.len()].copy_from_slice(magic);
        assert_eq!(name(&bytes).as_deref(), Some(*what));
    }
}

#[test]
fn zeroes_are_nothing_and_anything_else_is_data() {
    assert_eq!(name(&vec![0; 1 << 20]), None);
    assert_eq!(name(&[]), None);
    let mut bytes = vec![0; 1 << 20];
    bytes[777_777] = 1;
    assert_eq!(name(&bytes).as_deref(), Some("data: byte 777777 is not zero"));
    assert_eq!(name(&[1; 3]).as_deref(), Some("data: byte 0 is not zero"));
}

#[test]
fn a_partition_table_before_a_file_system_is_the_file_system() {
    let mut bytes = vec![0; 4096];
    bytes[510..512].copy_from_slice(b"\x55\xaa");
    bytes[82..87].copy_from_slice(b"FAT32");
    assert_eq!(name(&bytes).as_deref(), Some("a FAT32 file system"));
}

#[test]
fn a_pool_is_told_by_either_superblock_also_a_damaged_one() {
    let mut block = [0; BLOCK];
    let head = block::Head {
        kind: kind::SUPERBLOCK,
        level: 0,
        pool: [0xab; 16],
        generation: 1,
        address: BLOCK as u64,
        index: 0,
        owner: 0,
        count: 0,
    };
    block::seal(&mut block, &head);
    let mut bytes = vec![0; 3 * BLOCK];
    bytes[BLOCK..2 * BLOCK].copy_from_slice(&block);
    assert_eq!(name(&bytes), Some(format!("a Sheave pool ({})", "ab".repeat(16))));
    bytes[BLOCK + 100] ^= 1;
    assert_eq!(name(&bytes).as_deref(), Some("a Sheave pool, damaged or of a newer version"));
}

#[test]
fn devices_of_any_kind_are_read() {
    let device = open_device("ram:size=1M").expect("a device");
    assert_eq!(find(&device).expect("it can be read"), None);
    let read = Reader::new(&device).and_then(|mut reader| reader.read(512, 300 << 10));
    assert_eq!(read.expect("it can be read").len(), 300 << 10);
    let bad = open_device("fault:error=1,over=ram:size=1M").expect("a device");
    assert!(find(&bad).expect_err("every read fails").cause().contains("cannot read byte 0"));
}
