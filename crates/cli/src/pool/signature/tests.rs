//! Every signature is found, and nothing is found in nothing.

use super::*;
use sheave::open_device;

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
    assert_eq!(read(&device, 512, 300 << 10).expect("it can be read").len(), 300 << 10);
    let bad = open_device("fault:error=1,over=ram:size=1M").expect("a device");
    assert!(find(&bad).expect_err("every read fails").cause().contains("cannot read byte 0"));
}
