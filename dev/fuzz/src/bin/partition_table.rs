//! Fuzzes the partition tables: whatever the bytes of a disk are, its partitions are on the disk and do not overlap.
//! The first byte of the input chooses the block size. The rest is the beginning of the disk, and also its end, where
//! backup tables are.
#![no_main]

use sheave_drivers::partition_table::{Disk, Wanted, find, partitions};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [first, bytes @ ..] = data else { return };
    let block = [512_u32, 4096][usize::from(first % 2)];
    let size = (bytes.len() as u64).next_multiple_of(u64::from(block)).max(64 << 10) + u64::from(block);
    let mut disk = vec![0; size as usize];
    let end = disk.len() - bytes.len();
    disk[end..].copy_from_slice(bytes);
    disk[..bytes.len()].copy_from_slice(bytes);
    let mut read = |start: u64, len: usize| Ok(disk[start as usize..start as usize + len].to_vec());
    let mut ask = Disk { read: &mut read, block, size };
    let Ok(mut all) = partitions(&mut ask) else { return };
    all.iter().for_each(|part| assert_eq!(find(&mut ask, Wanted::Number(part.number)).as_ref(), Ok(part)));
    all.sort_by_key(|part| part.start);
    assert!(all.iter().all(|part| part.len > 0 && part.start > 0 && part.start + part.len <= size));
    assert!(all.windows(2).all(|pair| pair[0].start + pair[0].len <= pair[1].start));
});
