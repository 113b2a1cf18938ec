//! Valid blocks of every kind, for the tests of decoders.

use super::Block;
use crate::format::damage::Damage;
use crate::format::journal::{Commit, JournalBlock, Ring};
use crate::format::page::table::{Interim, Purpose};
use crate::format::page::{Expect, PagePlace, PageRef, free, index, label, leaf, sums, table};
use crate::format::record::{MAX_ENTRY_WORDS, Record};
use crate::format::settings::{Checksum, LowWater};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, INDEX_CHILDREN, JOURNAL_START, MAX_LEAF_ENTRIES, MAX_LEAF_WORDS, MAX_SUMS};

pub const POOL: [u8; 16] = *b"0123456789abcdef";

/// Label generations of a pool whose second member was added by checkpoint 3.
fn labels() -> [u64; crate::format::MAX_MEMBERS] {
    let mut labels = [0; crate::format::MAX_MEMBERS];
    labels[1] = 3;
    labels
}

/// Returns the superblock of a pool of two members.
pub fn superblock(unit_bytes: u32) -> Superblock {
    let unit = u64::from(unit_bytes);
    let page = PageRef { address: 700 * unit, checksum: 0x1234_5678, second: 0 };
    Superblock {
        pool: POOL,
        generation: 7,
        compat: 0,
        ro_compat: 0,
        clean: false,
        unit_bytes,
        checksum: Checksum::None,
        marks: false,
        identities: true,
        total_units: 1024,
        journal_blocks: 32,
        next_volume: 9,
        incarnation: 3,
        replay_seq: 40,
        table: page,
        table_level: 0,
        volumes: 2,
        created: 1_790_000_000,
        members: vec![(0, 512 * unit), (512 * unit, 512 * unit)],
        labels: labels(),
        sums: PageRef::NONE,
        sums_level: 0,
        low_water: LowWater::Percent(10),
        lost: Default::default(),
        paired: false,
        kept: PageRef::NONE,
        owner: [0; 16],
        labels_at: 0,
        copies: [0; 2],
    }
}

pub fn place(address: u64, index: u64, owner: u32) -> PagePlace {
    PagePlace { pool: POOL, generation: 7, address, second: 0, index, owner }
}

pub fn expect(page: PageRef, index: u64) -> Expect {
    Expect { pool: POOL, generation: 7, page, index }
}

pub fn volume(id: u32, name: &str) -> table::VolumeEntry {
    table::VolumeEntry {
        id,
        snapshot: id.is_multiple_of(2),
        grows: id.is_multiple_of(4),
        size: 1 << 30,
        max_size: 1 << 40,
        created: 1_790_000_000,
        origin: id - 1,
        family: 1,
        root: PageRef { address: 701 << 20, checksum: id, second: 0 },
        root_level: 2,
        identity: (!id.is_multiple_of(8)).then_some([id as u8; 16]),
        interim: id.is_multiple_of(2).then_some(Interim { purpose: Purpose::ImportDiff, owner: 1 }),
        name: name.to_owned(),
    }
}

/// One record of each kind.
pub fn records(words: usize) -> Vec<Record> {
    let mut written = [0; MAX_ENTRY_WORDS];
    written[words - 1] = 1;
    let name = || "a snapshot of Größe".to_owned();
    vec![
        Record::Create { volume: 1, grows: true, size: 4096, max_size: 1 << 40, created: 5, name: "vm".into() },
        Record::Set { volume: 1, unit: 3, phys: 900, written },
        Record::Set { volume: 1, unit: 4, phys: 0, written: [0; MAX_ENTRY_WORDS] },
        Record::Run { volume: 1, unit: 5, count: 100, phys: 901 },
        Record::Run { volume: 1, unit: 5, count: 1 << 33, phys: 0 },
        Record::Copy {
            volume: 2,
            source: 1,
            snapshot: true,
            grows: false,
            size: 1,
            max_size: 2,
            created: 6,
            name: name(),
        },
        Record::Rename { volume: 2, name: "x".repeat(255) },
        Record::Resize { volume: 1, size: 1 << 33 },
        Record::Limit { volume: 1, max_size: 1 << 41 },
        Record::Rollback { volume: 1, source: 2 },
        Record::Origin { volume: 2, origin: 0 },
        Record::Identity { volume: 2, identity: *b"fedcba9876543210" },
        Record::Interim { volume: 2, interim: Some(Interim { purpose: Purpose::Import, owner: 0 }) },
        Record::Interim { volume: 2, interim: None },
        Record::Intent { first: 3, count: 16 },
        Record::Mark { bad: true, first: 900 * (words as u64 * 64).min(256), count: 5 },
        Record::Mark { bad: false, first: 900 * (words as u64 * 64).min(256), count: 1 },
        Record::Delete { volume: 2 },
    ]
}

/// Decoder for the kind of a sample.
pub type Decode = Box<dyn Fn(&Block) -> Result<(), Damage>>;

/// Returns a block of each kind, with its name and decoder.
pub fn all(unit_bytes: u32) -> Vec<(&'static str, Block, Decode)> {
    let sb = superblock(unit_bytes);
    let geometry = sb.geometry();
    let mut out: Vec<(&'static str, Block, Decode)> = Vec::new();
    let mut block = [0; BLOCK];

    let address = sb.encode(&mut block);
    let bytes = geometry.bytes();
    out.push(("superblock", block, Box::new(move |b| Superblock::decode(b, address, bytes).map(drop))));

    label::encode(&mut block, &sb, 1);
    out.push(("label", block, Box::new(move |b| label::verify(b, &sb, 1))));

    let entries: Vec<u64> =
        (0..geometry.leaf_entries as u64).map(|at| if at % 3 == 0 { 0 } else { geometry.first_unit + at }).collect();
    let word = |at: usize| if entries[at / geometry.entry_words] == 0 { 0 } else { geometry.full_word() >> (at % 5) };
    let written: Vec<u64> = (0..entries.len() * geometry.entry_words).map(word).collect();
    let page = leaf::encode(&mut block, &geometry, &place(800 << 20, 5, 1), &entries, &written);
    let (e, g) = (expect(page, 5), geometry);
    let decode =
        move |b: &Block| leaf::decode(b, &g, &e, &mut [0; MAX_LEAF_ENTRIES], &mut [0; MAX_LEAF_WORDS]).map(drop);
    out.push(("leaf", block, Box::new(decode)));

    let children: Vec<PageRef> =
        (0..INDEX_CHILDREN as u32)
            .map(|at| {
                if at % 4 == 1 {
                    PageRef::NONE
                } else {
                    PageRef { address: (600 << 20) + 4096, checksum: at, second: 0 }
                }
            })
            .collect();
    let page = index::encode(&mut block, &place(810 << 20, 6, 1), 2, &children);
    let (e, g) = (expect(page, 6), geometry);
    let decode = move |b: &Block| index::decode(b, &g, &e, 2, &mut [PageRef::NONE; INDEX_CHILDREN]).map(drop);
    out.push(("index", block, Box::new(decode)));

    let volumes = [volume(1, "vm"), volume(2, "vm@monday"), volume(8, &"long".repeat(63))];
    let (page, count) = table::encode(&mut block, &place(820 << 20, 0, 0), &volumes);
    assert_eq!(count, 3);
    let (e, g) = (expect(page, 0), geometry);
    out.push(("table", block, Box::new(move |b| table::decode(b, &g, &e, &mut Vec::new()).map(drop))));

    let numbers = std::array::from_fn(|at| (at as u32).wrapping_mul(0x9E37_79B9));
    let marked = std::array::from_fn(|word| 0x11 << word);
    let page = sums::encode(&mut block, &geometry, &place(830 << 20, 9, 0), true, &numbers, &marked);
    let (e, g) = (expect(page, 9), geometry);
    out.push(("sums", block, Box::new(move |b| sums::decode(b, &g, &e, &mut [0; MAX_SUMS]).map(drop))));

    let sb = superblock(unit_bytes);
    let first = sb.geometry().first_unit;
    if let Some((at, block)) = free::encode(&sb, &[(first, 5), (first + 6, 1), (first + 100, 7)]).pop() {
        out.push(("free", *block, Box::new(move |b| free::decode(b, at, &sb).map(drop))));
    }

    let mut commit = Commit::with_capacity(1);
    records(geometry.entry_words).iter().for_each(|record| commit.push(&geometry, record));
    commit.seal(&Ring { pool: POOL, incarnation: 3, blocks: 32 }, 32);
    let ring = Ring { pool: POOL, incarnation: 3, blocks: 32 };
    let bytes = commit.pieces(&ring, 32).next().expect("one block").1;
    block.copy_from_slice(bytes);
    let decode = move |b: &Block| {
        let head = JournalBlock::decode(b, &POOL, JOURNAL_START, 32)?;
        head.records(b, &geometry, &mut Vec::new())
    };
    out.push(("journal", block, Box::new(decode)));
    out
}

/// Returns the samples for units of 1 MiB, the unit size that fits their addresses.
pub fn of_1m() -> Vec<(&'static str, Block, Decode)> {
    all(1 << 20)
}
