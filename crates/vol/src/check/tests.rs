//! Damages every metadata block of a pool in turn. The check names the block and writes nothing unless a repair is
//! wanted; a repair gives a pool that checks clean and has all data that the damage did not concern.

mod disk;
mod mutated;
mod sums;
mod wrong;

use super::model::Model;
use super::*;
use crate::format::record::Record;
use crate::format::{BLOCK_BYTES, JOURNAL_START};
use disk::{Disk, Pool, UNIT, pool};

fn report(disk: &Disk) -> CheckReport {
    check(disk, &CheckOptions { repair: false }).expect("the check itself works")
}

fn repair(disk: &Disk) -> CheckReport {
    check(disk, &CheckOptions { repair: true }).expect("the repair itself works")
}

fn look_at(disk: &Disk) -> Result<Look, PoolError> {
    look(disk, &mut Progress { at: CheckProgress::default(), tell: &mut |_| () })
}

/// A unit of a volume, the unit of the pool that it has, and its written bits.
type Unit = (u64, u64, u64);

/// Since the checkpoint the journal has renamed the volume and copied it: all of these volumes need the page.
#[test]
fn a_damaged_map_page_names_the_volumes_that_need_it() {
    let (disk, sb) = disk::formatted();
    let mut model = Model::new(sb.geometry(), 1, sb.journal_blocks);
    let create = |volume, name: &str| {
        let name = name.to_owned();
        Record::Create { volume, grows: false, size: 1 << 30, max_size: 1 << 30, created: 0, name }
    };
    let copy = |volume, source, name: &str| {
        let (size, max_size, name) = (1 << 30, 1 << 30, name.to_owned());
        Record::Copy { volume, source, snapshot: true, grows: false, size, max_size, created: 0, name }
    };
    let set = |unit| Record::Set { volume: 1, unit, phys: 100 + unit, written: [1, 0, 0, 0] };
    [create(1, "old"), create(2, "other"), set(0), set(300)].into_iter().for_each(|record| model.apply(record));
    let sb = disk::checkpoint(&disk, &sb, &model);
    let mut commit = crate::format::journal::Commit::with_capacity(1);
    let renamed = [
        Record::Rename { volume: 1, name: "new".into() },
        copy(3, 1, "snap"),
        copy(4, 3, "of-snap"),
        copy(5, 1, "gone"),
        Record::Delete { volume: 5 },
    ];
    renamed.iter().for_each(|record| commit.push(&sb.geometry(), record));
    let ring = crate::format::journal::Ring::of(&sb);
    commit.seal(&ring, sb.replay_seq);
    commit.pieces(&ring, sb.replay_seq).for_each(|(at, bytes)| disk.write(at, bytes).expect("a good disk"));
    assert_eq!(report(&disk).findings, []);
    let mut walk = Walk::new(&disk, &sb);
    walk.read(&mut Progress { at: CheckProgress::default(), tell: &mut |_| () }).expect("reads");
    let leaves: Vec<u64> =
        walk.pages.iter().filter(|(_, page)| page.0 == 1 && page.1 == 0).map(|(at, _)| *at).collect();
    assert_eq!(leaves.len(), 2);
    leaves.iter().for_each(|at| disk.change(*at, |block| block[2000] ^= 1));
    let found = report(&disk).findings;
    let mut names: Vec<&str> = found.iter().filter_map(|finding| finding.place.volume.as_deref()).collect();
    names.sort_unstable();
    assert_eq!(names, ["new", "new", "of-snap", "snap"], "{found:?}");
}

/// Returns the content of the pool: names, and every unit with its blocks.
fn content(disk: &Disk) -> Vec<(String, Vec<Unit>)> {
    let found = look_at(disk).expect("reads").found.expect("there is a pool");
    let entries = |vol: &model::Vol| {
        let mut all = Vec::new();
        for (number, node) in &vol.map.nodes {
            for (slot, leaf) in node.leaves.iter().enumerate() {
                let Some(leaf) = leaf else { continue };
                let first = (number * 256 + slot as u64) * leaf.entries.len() as u64;
                let used = (first..).zip(leaf.entries.iter().zip(&leaf.written)).filter(|(_, (phys, _))| **phys != 0);
                all.extend(used.map(|(unit, (&phys, &written))| (unit, phys, written)));
            }
        }
        all
    };
    found.model.volumes.values().map(|vol| (vol.entry.name.clone(), entries(vol))).collect()
}

#[test]
fn a_good_pool_is_clean_and_adds_up() {
    let Pool { disk, .. } = pool();
    let report = report(&disk);
    assert_eq!(report.findings, [], "{report:#?}");
    let t = report.totals;
    assert_eq!(t.reserved_units + t.metadata_units + t.data_units + t.free_units, t.units);
    assert_eq!((t.volumes, t.records), (4, 6));
    assert!(t.shared_units > 0 && t.data_units > t.shared_units, "{t:?}");
    assert_eq!(disk.writes(), 0, "a check writes nothing");
    let names: Vec<String> = content(&disk).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["vm", "vm@monday", "other", "vm-clone"]);
}

#[test]
fn a_repair_of_a_good_pool_writes_nothing() {
    let Pool { disk, .. } = pool();
    assert!(!repair(&disk).repaired);
    assert_eq!(disk.writes(), 0);
}

#[test]
fn pages_are_read_many_at_once_and_the_progress_ends_at_its_total() {
    let Pool { disk, pages, sb, .. } = pool();
    let disk = disk.clone();
    let (mut last, mut told) = (CheckProgress::default(), 0);
    let found = check_with(&disk, &CheckOptions { repair: false }, &mut |at| {
        assert!(at.done_bytes > last.done_bytes && at.total_bytes >= last.total_bytes, "{at:?} after {last:?}");
        assert!(at.done_bytes <= at.total_bytes, "{at:?}");
        (last, told) = (at, told + 1);
    });
    assert_eq!(found.expect("checks").findings, []);
    assert_eq!(last.done_bytes, last.total_bytes, "all that it wanted, and nothing twice");
    let journal = u64::from(sb.journal_blocks) * BLOCK_BYTES;
    assert_eq!(last.done_bytes, pages.len() as u64 * BLOCK_BYTES + journal);
    // Superblocks, the label and the journal are read one by one, and the pages of each level in one batch.
    let (single, batches) = disk.reads();
    assert!(single <= 5 && batches <= 6 && pages.len() > 8, "{single} and {batches}, {told} times told");
}

/// A change to a block, with its name.
type Named = (&'static str, fn(&mut Block));

/// Ways to damage a block.
const DAMAGES: [Named; 4] = [
    ("a flipped bit", |block| block[1234] ^= 4),
    ("a lost write on new space", |block| block.fill(0)),
    ("a torn write", |block| block[2048..].fill(0x11)),
    ("overwritten", |block| block.fill(0xC3)),
];

#[test]
fn every_damaged_page_is_named_and_repaired() {
    let Pool { disk: good, pages, .. } = pool();
    let before = content(&good);
    assert!(pages.len() > 8, "{pages:?}");
    for &page in &pages {
        for (how, damage) in DAMAGES {
            let disk = good.clone();
            disk.change(page, damage);
            let found = report(&disk);
            let named = found.findings.iter().any(|finding| finding.place.address == Some(page));
            assert!(named, "page {page}, {how}: {:#?}", found.findings);
            assert_eq!(disk.writes(), 0, "nothing is written without being told");
            assert!(found.is_repairable(), "page {page}, {how}");
            assert!(repair(&disk).repaired);
            assert_eq!(report(&disk).findings, [], "page {page}, {how}, after the repair");
            for (name, entries) in content(&disk) {
                let (_, was) = before.iter().find(|(old, _)| *old == name).expect("no volume appears");
                // Records may fill a hole again; no other entry may appear.
                assert!(entries.iter().all(|entry| was.contains(entry)), "page {page}: '{name}' has new entries");
            }
        }
    }
}

#[test]
fn a_damaged_leaf_costs_its_range_and_names_each_volume() {
    let Pool { disk, .. } = pool();
    let leaf = disk.leaf_shared_by_vm();
    disk.change(leaf, |block| block[99] ^= 1);
    let found = report(&disk).findings;
    let volumes: Vec<_> = found.iter().map(|finding| finding.place.volume.clone().expect("a volume")).collect();
    assert_eq!(volumes, ["vm", "vm@monday", "vm-clone"], "all that share it, the clone that the journal makes too");
    for finding in &found {
        assert_eq!(finding.kind, FindingKind::MapPage);
        assert_eq!(finding.place.range, Some((300 * 256 * UNIT, 256 * UNIT)));
        assert!(finding.to_string().contains("bits have changed"), "{finding}");
    }
    assert!(repair(&disk).repaired);
}

#[test]
fn either_superblock_may_rot_while_the_other_can_stand_for_it() {
    let Pool { disk: good, sb, .. } = pool();
    let older = sb.slot() ^ BLOCK_BYTES;
    for (how, damage) in DAMAGES {
        let disk = good.clone();
        disk.change(older, damage);
        let found = report(&disk).findings;
        assert_eq!(found.len(), 1, "{how}: {found:#?}");
        assert_eq!((found[0].kind, found[0].place.address), (FindingKind::Superblock, Some(older)));
        let before = content(&good);
        assert!(repair(&disk).repaired);
        assert_eq!(report(&disk).findings, [], "{how}");
        assert_eq!(content(&disk), before);
    }
    // The newest slot is damaged. The older one cannot stand for it, because the journal continues from the newest.
    for (how, damage) in DAMAGES {
        let disk = good.clone();
        disk.change(sb.slot(), damage);
        let found = report(&disk);
        let kinds: Vec<_> = found.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [FindingKind::Superblock, FindingKind::SuperblockLost], "{how}: {:#?}", found.findings);
        assert!(!found.is_repairable());
        assert!(!repair(&disk).repaired, "what cannot be repaired is left alone");
        assert_eq!(disk.writes(), 0);
    }
    let disk = good.clone();
    SUPERBLOCKS.iter().for_each(|&at| disk.change(at, |block| block[0] = 0));
    let found = report(&disk);
    assert!(found.findings.iter().all(|finding| finding.kind == FindingKind::NoPool) && found.findings.len() == 2);
    assert!(!found.is_repairable());
    assert_eq!(found.uuid, None);
}

#[test]
fn an_older_superblock_stands_in_if_no_commit_followed() {
    // The newest slot rots before another journal block was written. The older slot and its journal give the same
    // content.
    let Pool { disk, mut sb, .. } = pool();
    let before = content(&disk);
    sb.generation += 1;
    disk.superblock(&sb);
    disk.change(sb.slot(), |block| block[777] ^= 1);
    let found = report(&disk).findings;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, FindingKind::Superblock);
    assert!(repair(&disk).repaired);
    assert_eq!(content(&disk), before);
}

#[test]
fn a_label_is_written_anew_and_a_wrong_member_is_not() {
    let Pool { disk: good, sb, .. } = pool();
    let at = sb.members[1].0;
    for (how, damage) in DAMAGES {
        let disk = good.clone();
        disk.change(at, damage);
        let found = report(&disk).findings;
        assert_eq!((found.len(), found[0].kind, found[0].place.address), (1, FindingKind::Label, Some(at)), "{how}");
        assert!(repair(&disk).repaired);
        assert_eq!(report(&disk).findings, []);
    }
    let disk = good.clone();
    let mut other = sb.clone();
    other.pool = [7; 16];
    disk.change(at, |block| _ = label::encode(block, &other, 1));
    let found = report(&disk);
    assert_eq!(found.findings[0].kind, FindingKind::Label);
    assert!(!found.is_repairable(), "the wrong disk is not to be written to");
}

#[test]
fn a_damaged_journal_block_is_named_unless_a_crash_can_have_left_it() {
    let Pool { disk: good, sb, journal, .. } = pool();
    assert_eq!(journal.len(), 3, "three commits of one block");
    for (number, &seq) in journal.iter().enumerate() {
        let at = JOURNAL_START + seq % u64::from(sb.journal_blocks) * BLOCK_BYTES;
        for (how, damage) in DAMAGES {
            let disk = good.clone();
            disk.change(at, damage);
            let found = report(&disk);
            if number == 2 {
                // A torn last commit cannot be told from one that rotted: documented in
                // docs/reference/on-disk-format.md.
                assert_eq!(found.findings, [], "{how}");
                continue;
            }
            assert_eq!(found.findings.len(), 1, "{how}: {:#?}", found.findings);
            assert_eq!((found.findings[0].kind, found.findings[0].place.address), (FindingKind::Journal, Some(at)));
            assert!(repair(&disk).repaired);
            assert_eq!(report(&disk).findings, [], "{how}");
        }
    }
}

#[test]
fn a_repair_can_be_interrupted_at_any_write() {
    let Pool { disk: good, pages, sb, .. } = pool();
    good.change(pages[0], |block| block[1] ^= 1);
    good.change(sb.slot() ^ BLOCK_BYTES, |block| block[1] ^= 1);
    let whole = good.clone();
    assert!(repair(&whole).repaired);
    let after = content(&whole);
    let total = whole.writes();
    assert!(total > 5);
    for cut in 0..total {
        let disk = good.clone();
        disk.fail_after(cut);
        assert!(check(&disk, &CheckOptions { repair: true }).is_err(), "write {cut} fails");
        disk.fail_after(u64::MAX);
        let found = report(&disk);
        // If only the last write is missing, of the second superblock, the first one is whole: the pool is repaired.
        assert_eq!(found.is_clean(), cut == total - 1, "cut {cut}: {:#?}", found.findings);
        assert!(found.is_repairable(), "cut {cut}: {:#?}", found.findings);
        assert_eq!(repair(&disk).repaired, cut < total - 1, "cut {cut}");
        assert_eq!(report(&disk).findings, []);
        assert_eq!(content(&disk), after, "cut {cut}");
    }
}

#[test]
fn unreadable_blocks_are_named() {
    let Pool { disk: good, pages, sb, journal } = pool();
    for &at in pages.iter().chain([&sb.members[1].0, &(sb.slot() ^ BLOCK_BYTES)]) {
        let disk = good.clone();
        disk.unreadable(at);
        let found = report(&disk).findings;
        assert!(found.iter().any(|finding| finding.place.address == Some(at)), "{at}: {found:#?}");
        assert!(found.iter().any(|finding| finding.means.contains("cannot be read")), "{at}: {found:#?}");
    }
    let at = JOURNAL_START + journal[0] % u64::from(sb.journal_blocks) * BLOCK_BYTES;
    good.unreadable(at);
    let found = report(&good);
    assert_eq!(found.findings[0].kind, FindingKind::Journal);
    assert!(found.notes.iter().any(|note| note.contains("cannot be read")));
}

#[test]
fn nothing_and_garbage_are_no_pool() {
    let disk = Disk::new(64 << 20);
    let found = report(&disk);
    assert!(found.findings.iter().all(|finding| finding.kind == FindingKind::NoPool));
    assert_eq!(found.findings.len(), 2);
    let Pool { disk, .. } = pool();
    disk.change(0, |block| {
        block[6] = 9;
        let sum = crate::format::checksum(block);
        block[8..12].copy_from_slice(&sum.to_le_bytes());
    });
    let found = report(&disk);
    assert!(found.findings[0].means.contains("version 9"), "{:#?}", found.findings);
    assert!(!repair(&disk).repaired, "a newer pool is left alone");
}

/// Applies the records that the tests' pool begins with, up to its checkpoint.
fn checkpointed(model: &mut Model) {
    let written = |bits| [bits, 0, 0, 0];
    let name = |name: &str| name.to_owned();
    let big = 4 << 40;
    model.apply(Record::Create { volume: 1, grows: false, size: big, max_size: big, created: 1, name: name("vm") });
    model.apply(Record::Run { volume: 1, unit: 0, count: 300, phys: 20 });
    model.apply(Record::Set { volume: 1, unit: 300 * 256 + 5, phys: 400, written: written(0xF0) });
    model.apply(Record::Set { volume: 1, unit: 70_000_000 % (big / UNIT), phys: 401, written: written(1) });
    model.apply(Record::Copy {
        volume: 2,
        source: 1,
        snapshot: true,
        grows: false,
        size: big,
        max_size: big,
        created: 2,
        name: name("vm@monday"),
    });
    model.apply(Record::Set { volume: 1, unit: 3, phys: 402, written: written(0xFFFF) });
    model.apply(Record::Create {
        volume: 3,
        grows: false,
        size: 1 << 30,
        max_size: big,
        created: 1,
        name: name("other"),
    });
    model.apply(Record::Run { volume: 3, unit: 9, count: 50, phys: 410 });
}

/// Returns the records of the journal, one commit each.
fn committed() -> [Vec<Record>; 3] {
    let name = |name: &str| name.to_owned();
    [
        vec![
            Record::Set { volume: 3, unit: 9, phys: 0, written: [0; 4] },
            Record::Set { volume: 1, unit: 4, phys: 500, written: [3, 0, 0, 0] },
        ],
        vec![Record::Copy {
            volume: 4,
            source: 2,
            snapshot: false,
            grows: false,
            size: 4 << 40,
            max_size: 4 << 40,
            created: 5,
            name: name("vm-clone"),
        }],
        vec![
            Record::Run { volume: 4, unit: 10, count: 5, phys: 0 },
            Record::Run { volume: 4, unit: 10, count: 2, phys: 510 },
            Record::Resize { volume: 3, size: 2 << 30 },
        ],
    ]
}
