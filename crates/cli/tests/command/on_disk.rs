//! The data that `--verify` reports as correct is really in the file. The test reads the file with plain system calls,
//! parses the layout that `crates/load/src/verify/block.rs` documents, and has its own code for the checksum.

use crate::sheave::{no_io_uring, run};

/// Returns the CRC-32C of the bytes, computed bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

fn word(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

/// Checks every block of an image that one run wrote. Returns the number of blocks that were written more than once.
fn check_image(image: &[u8], bs: usize) -> usize {
    let run = word(image, 8);
    let mut again = 0;
    for (n, block) in image.chunks(bs).enumerate() {
        assert_eq!(&block[..8], b"SHEAVEB1", "block {n}");
        assert_eq!((word(block, 8), word(block, 16)), (run, (n * bs) as u64), "block {n}: run and address");
        let (generation, len) = (word(block, 24) as u32, (word(block, 24) >> 32) as usize);
        assert_eq!(len, bs, "block {n}: length");
        assert!(generation > 0, "block {n}: generation");
        again += usize::from(generation > 1);
        let (body, sum) = block.split_at(bs - 4);
        assert_eq!(crc32c(body).to_le_bytes(), *sum, "block {n}: checksum");
    }
    again
}

#[test]
fn verified_blocks_are_in_the_file() {
    if no_io_uring() {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let file = dir.path().join("a.img");
    for (options, bs) in [("", 4096), (",direct=off", 4096), ("", 65536)] {
        let spec = format!("file:{},size=4M{options}", file.display());
        let line = format!("bench {spec} --rw write --verify --bs {bs} --ios {} --progress none", (4 << 20) / bs);
        let said = run(&line);
        assert_eq!(said.code, 0, "{line}: {}", said.err);
        let image = std::fs::read(&file).expect("read");
        assert_eq!(image.len(), 4 << 20);
        assert_eq!(check_image(&image, bs), 0, "each was written once");
    }
    // A run with reads first fills the whole file, and then writes some blocks again.
    let line = format!("bench file:{} --rw randrw --verify --bs 4k --ios 3000 --progress none", file.display());
    assert_eq!(run(&line).code, 0);
    let image = std::fs::read(&file).expect("read");
    assert!(check_image(&image, 4096) > 100, "some were written again");
}

#[test]
fn the_checksum_is_the_usual_one() {
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
}
