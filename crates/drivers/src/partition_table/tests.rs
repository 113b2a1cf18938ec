//! Tables that are right, damaged or malicious, in blocks of 512 and of 4,096 bytes.

use proptest::prelude::*;

use super::disk::le_u32;
use super::gpt::crc32;
use super::*;

/// A disk in memory.
struct Image {
    bytes: Vec<u8>,
    block: usize,
}

impl Image {
    fn new(block: usize, blocks: usize) -> Image {
        Image { bytes: vec![0; block * blocks], block }
    }

    fn at(&mut self, lba: usize) -> &mut [u8] {
        &mut self.bytes[lba * self.block..]
    }

    fn put(&mut self, lba: usize, at: usize, value: &[u8]) {
        self.at(lba)[at..at + value.len()].copy_from_slice(value);
    }

    /// Writes an entry of an MBR in this block, and the bytes 55 aa at its end.
    fn entry(&mut self, lba: usize, at: usize, kind: u8, first: u32, blocks: u32) {
        self.put(lba, 446 + at * 16 + 4, &[kind]);
        self.put(lba, 446 + at * 16 + 8, &first.to_le_bytes());
        self.put(lba, 446 + at * 16 + 12, &blocks.to_le_bytes());
        self.put(lba, 510, &[0x55, 0xaa]);
    }

    fn blocks(&self) -> u64 {
        (self.bytes.len() / self.block) as u64
    }

    /// Writes a GPT header in block `lba` for the array of entries in block `array`, with the right checksums.
    fn header(&mut self, lba: u64, other: u64, array: u64) {
        let reserved = (128 * 128 / self.block as u64) + 2;
        let usable = (reserved, self.blocks() - reserved);
        let start = array as usize * self.block;
        let crc = crc32(&self.bytes[start..start + 128 * 128]);
        let mut header = [b"EFI PART".as_slice(), &0x10000_u32.to_le_bytes(), &92_u32.to_le_bytes(), &[0; 8]].concat();
        [lba, other, usable.0, usable.1].iter().for_each(|field| header.extend(field.to_le_bytes()));
        header.extend([7; 16]);
        header.extend(array.to_le_bytes());
        [128, 128, crc].iter().for_each(|field: &u32| header.extend(field.to_le_bytes()));
        let crc = crc32(&header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        self.put(lba as usize, 0, &header);
    }

    /// Makes a disk with a GPT of these partitions (index, first block, last block, name), and its backup.
    fn gpt(block: usize, parts: &[(usize, u64, u64, &str)]) -> Image {
        let mut image = Image::new(block, 400);
        image.entry(0, 0, 0xee, 1, 399);
        let array = (128 * 128 / block) as u64;
        let backup = 399 - array;
        for start in [2, backup as usize] {
            for &(at, first, last, name) in parts {
                let mut entry = [[1; 16], [2; 16]].concat();
                [first, last, 0].iter().for_each(|field: &u64| entry.extend(field.to_le_bytes()));
                name.encode_utf16().for_each(|unit| entry.extend(unit.to_le_bytes()));
                image.put(start, at * 128, &entry);
            }
        }
        image.reseal();
        image
    }

    /// Writes both headers again, with the right checksums.
    fn reseal(&mut self) {
        let backup = 399 - (128 * 128 / self.block) as u64;
        self.header(1, 399, 2);
        self.header(399, 1, backup);
    }

    fn with<R>(&self, ask: impl FnOnce(&mut Disk<'_>) -> R) -> R {
        let mut read = |start: u64, len: usize| {
            let bytes = self.bytes.get(start as usize..start as usize + len);
            bytes.map(<[u8]>::to_vec).ok_or_else(|| panic!("{start} + {len} is not on the disk"))
        };
        ask(&mut Disk { read: &mut read, block: self.block as u32, size: self.bytes.len() as u64 })
    }

    fn find(&self, wanted: Wanted<'_>) -> Result<(u32, u64, u64), String> {
        let blocks = |bytes: u64| bytes / self.block as u64;
        self.with(|disk| find(disk, wanted)).map(|part| (part.number, blocks(part.start), blocks(part.len)))
    }
}

fn says(result: Result<(u32, u64, u64), String>, words: &str) {
    let error = result.expect_err(words);
    assert!(error.contains(words), "'{words}' is not in: {error}");
}

const PARTS: [(usize, u64, u64, &str); 3] = [(0, 40, 59, "boot"), (1, 100, 199, "Wurzel ü"), (6, 60, 99, "")];

#[test]
fn a_gpt_has_numbers_and_names_in_blocks_of_any_size() {
    for block in [512, 4096] {
        let image = Image::gpt(block, &PARTS);
        assert_eq!(image.find(Wanted::Number(1)), Ok((1, 40, 20)));
        assert_eq!(image.find(Wanted::Name("Wurzel ü")), Ok((2, 100, 100)));
        assert_eq!(image.find(Wanted::Number(7)), Ok((7, 60, 40)), "numbers are places, and may lack some");
        says(image.find(Wanted::Number(3)), "no such partition. It has 1 (boot), 2 (Wurzel ü), 7");
        says(image.find(Wanted::Name("root")), "no such partition");
    }
    let twice = Image::gpt(512, &[(0, 40, 59, "a"), (1, 60, 69, "a")]);
    says(twice.find(Wanted::Name("a")), "partitions 1 and 2 have this name");
    says(Image::gpt(512, &[]).find(Wanted::Number(1)), "is empty");
}

#[test]
fn a_damaged_gpt_is_read_by_its_backup_and_refused_without() {
    let damage: [(usize, usize); 4] = [(1, 0), (1, 70), (2, 33), (1, 17)];
    for block in [512, 4096] {
        for (lba, at) in damage {
            let mut image = Image::gpt(block, &PARTS);
            image.at(lba)[at] ^= 4;
            assert_eq!(image.find(Wanted::Name("boot")), Ok((1, 40, 20)), "block {lba}, byte {at}");
            image.at(399)[70] ^= 4;
            says(image.find(Wanted::Number(1)), "is damaged");
        }
        // The whole table at the start is destroyed, except the protective MBR.
        let mut image = Image::gpt(block, &PARTS);
        image.at(1)[..16 * 1024].fill(0xff);
        assert_eq!(image.find(Wanted::Number(2)), Ok((2, 100, 100)));
    }
}

#[test]
fn what_a_gpt_says_of_itself_is_checked() {
    // (offset in the header, value, width, words)
    let lies: [(usize, u64, usize, &str); 9] = [
        (12, 91, 4, "91 bytes long"),
        (12, 5000, 4, "5000 bytes long"),
        (24, 2, 8, "says that it is in block 2"),
        (80, 0, 4, "0 entries"),
        (80, 1 << 30, 4, "entries of 128"),
        (84, 96, 4, "of 96 bytes"),
        (84, 1 << 31, 4, "of 2147483648 bytes"),
        (72, u64::MAX / 2, 8, "not on the device"),
        (40, 0, 8, "where partitions may be"),
    ];
    for (at, value, width, words) in lies {
        let mut image = Image::gpt(512, &PARTS);
        for lba in [1, 399] {
            image.put(lba, at, &value.to_le_bytes()[..width]);
            image.put(lba, 16, &[0; 4]);
            let len = 92.max((le_u32(image.at(lba), 12) as usize).min(512));
            let crc = crc32(&image.at(lba)[..len]);
            image.put(lba, 16, &crc.to_le_bytes());
        }
        says(image.find(Wanted::Number(1)), words);
    }
    for (parts, words) in [
        (&[(0, 40, 59, "a"), (1, 59, 69, "b")][..], "partitions 1 and 2 overlap"),
        (&[(3, 40, 399, "a")], "beyond the usable ones"),
        (&[(3, 3, 59, "a")], "beyond the usable ones"),
        (&[(0, 59, 40, "a")], "not on the device"),
        (&[(0, 40, u64::MAX, "a")], "beyond the usable ones"),
    ] {
        says(Image::gpt(512, parts).find(Wanted::Number(1)), words);
    }
}

/// Makes a disk with two primary and three logical partitions.
fn dos(block: usize) -> Image {
    let mut image = Image::new(block, 400);
    image.entry(0, 0, 0x83, 10, 20);
    image.entry(0, 1, 0x05, 100, 200);
    image.entry(0, 3, 0x07, 30, 40);
    for (at, next) in [(100, Some(50)), (150, Some(20)), (120, None)] {
        image.entry(at, 0, 0x83, 2, 18);
        if let Some(next) = next {
            image.entry(at, 1, 0x05, next, 20);
        }
    }
    image
}

#[test]
fn an_mbr_has_primary_and_logical_partitions() {
    for block in [512, 4096] {
        let image = dos(block);
        let all = [(1, 10, 20), (4, 30, 40), (5, 102, 18), (6, 152, 18), (7, 122, 18)];
        all.iter().for_each(|part| assert_eq!(image.find(Wanted::Number(part.0)), Ok(*part)));
        says(image.find(Wanted::Number(2)), "no such partition. It has 1, 4, 5, 6, 7, which have no names");
        says(image.find(Wanted::Name("boot")), "which have no names");
    }
}

/// Makes a table wrong.
type Lie = fn(&mut Image);

#[test]
fn what_an_mbr_says_is_checked() {
    let lies: [(Lie, &str); 9] = [
        (|image| image.put(0, 510, &[0, 0]), "no partition table"),
        (|image| image.entry(0, 0, 0x83, 0, 20), "begins where the table is"),
        (|image| image.entry(0, 0, 0x83, 10, 391), "not on the device"),
        (|image| image.entry(0, 0, 0x83, 10, 25), "partitions 1 and 4 overlap"),
        (|image| image.entry(0, 0, 0x0f, 10, 20), "more than one extended"),
        (|image| image.entry(120, 1, 0x05, 50, 20), "block 150 comes twice"),
        (|image| image.entry(120, 1, 0x05, 190, 20), "leads elsewhere"),
        (|image| image.put(150, 510, &[0, 0]), "block 150, of a logical partition, is damaged"),
        (|image| image.entry(150, 0, 0x83, 2, 200), "beyond its container"),
    ];
    for (lie, words) in lies {
        let mut image = dos(512);
        lie(&mut image);
        says(image.find(Wanted::Number(1)), words);
    }
    // The largest number of logical partitions, and one more.
    for many in [MAX_LOGICAL, MAX_LOGICAL + 1] {
        let mut image = Image::new(512, 1000);
        image.entry(0, 0, 0x05, 10, 900);
        for at in 0..many {
            image.entry(10 + at * 4, 0, 0x83, 1, 1);
            if at + 1 < many {
                image.entry(10 + at * 4, 1, 0x05, (at as u32 + 1) * 4, 4);
            }
        }
        match many {
            MAX_LOGICAL => assert_eq!(image.find(Wanted::Number(132)), Ok((132, 10 + 127 * 4 + 1, 1))),
            _ => says(image.find(Wanted::Number(5)), "more than 128"),
        }
    }
}

#[test]
fn a_device_that_is_too_small_or_cannot_be_read_has_no_table() {
    says(Image::new(512, 0).find(Wanted::Number(1)), "not on the device");
    says(Image::new(512, 1).find(Wanted::Number(1)), "no partition table");
    let mut image = Image::new(512, 1);
    image.entry(0, 0, 0xee, 1, 1);
    says(image.find(Wanted::Number(1)), "is damaged");
    let mut read = |_, _| Err("the disk is broken".to_string());
    let error = partitions(&mut Disk { read: &mut read, block: 512, size: 4096 });
    assert_eq!(error, Err("the disk is broken".into()));
}

proptest! {
    /// After any change of bytes, also with the checksums made right again, the partitions that are returned lie on the
    /// disk and do not overlap.
    #[test]
    fn a_table_of_a_hostile_disk_gives_out_only_what_is_there(
        changes in prop::collection::vec((0..9_usize, 0..512_usize, any::<u8>()), 0..12),
        (is_gpt, big, seal) in any::<(bool, bool, bool)>(),
    ) {
        let block = if big { 4096 } else { 512 };
        let mut image = if is_gpt { Image::gpt(block, &PARTS) } else { dos(block) };
        for (at, byte, value) in changes {
            image.at([0, 1, 2, 3, 100, 120, 150, 366, 399][at])[byte] = value;
        }
        if is_gpt && seal {
            image.reseal();
        }
        let size = image.bytes.len() as u64;
        if let Ok(mut all) = image.with(partitions) {
            all.sort_by_key(|part| part.start);
            prop_assert!(all.iter().all(|part| part.len > 0 && part.start > 0 && part.end() <= size));
            prop_assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start));
        }
    }
}
