//! Pools whose blocks are all intact but whose content is wrong, as after an error in the pool's own code.

use super::disk::{Disk, UNIT, checkpoint, formatted};
use super::*;
use crate::format::page::PageRef;

/// Returns a pool with the content that `change` makes.
fn with(change: impl FnOnce(&mut Model)) -> Disk {
    let (disk, sb) = formatted();
    let mut model = Model::new(sb.geometry(), 1, sb.journal_blocks);
    checkpointed(&mut model);
    assert_eq!(model.volumes[&1].entry.root, PageRef::NONE);
    change(&mut model);
    checkpoint(&disk, &sb, &model);
    disk
}

/// Returns the findings, and verifies that a repair mends them.
fn findings(disk: &Disk) -> Vec<Finding> {
    let found = report(disk);
    assert!(found.is_repairable());
    assert!(repair(disk).repaired, "{:#?}", found.findings);
    assert_eq!(report(disk).findings, [], "after the repair of {:#?}", found.findings);
    found.findings
}

fn kinds(findings: &[Finding]) -> Vec<FindingKind> {
    findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn a_unit_of_two_unrelated_volumes() {
    let disk = with(|model| {
        model.apply(Record::Set { volume: 3, unit: 77, phys: 25, written: [1, 0, 0, 0] });
    });
    let found = findings(&disk);
    assert_eq!(kinds(&found), [FindingKind::SharedWrongly]);
    assert_eq!(found[0].place.address, Some(25 * UNIT));
    assert_eq!(found[0].place.volume.as_deref(), Some("other"));
    assert_eq!(found[0].place.range, Some((77 * UNIT, UNIT)));
    assert!(found[0].means.contains("'vm'"), "{}", found[0].means);
    let (name, entries) = &content(&disk)[2];
    assert_eq!((name.as_str(), entries.iter().any(|entry| entry.0 == 77)), ("other", false));
    assert!(content(&disk)[0].1.iter().any(|entry| entry.1 == 25), "the older volume keeps it");
}

#[test]
fn a_unit_twice_in_one_volume() {
    let disk = with(|model| {
        model.apply(Record::Set { volume: 1, unit: 900, phys: 30, written: [1, 0, 0, 0] });
    });
    assert_eq!(kinds(&findings(&disk)), [FindingKind::SharedWrongly]);
}

#[test]
fn a_unit_at_another_place_of_a_relative() {
    let disk = with(|model| {
        model.apply(Record::Set { volume: 2, unit: 900, phys: 402, written: [1, 0, 0, 0] });
    });
    assert_eq!(kinds(&findings(&disk)), [FindingKind::SharedWrongly]);
}

#[test]
fn relatives_may_share_at_the_same_place() {
    let disk = with(|model| {
        let word = [0xFFFF, 0, 0, 0];
        model.apply(Record::Set { volume: 2, unit: 3, phys: 402, written: word });
    });
    assert_eq!(report(&disk).findings, []);
}

#[test]
fn data_where_metadata_lies() {
    // Pages are written from unit 600 on; the label of the second member lies in unit 700.
    for (unit, phys) in [(77, 600), (78, 700)] {
        let disk = with(|model| {
            model.apply(Record::Set { volume: 3, unit, phys, written: [1, 0, 0, 0] });
        });
        let found = findings(&disk);
        assert_eq!(kinds(&found), [FindingKind::InMetadata]);
        assert_eq!(found[0].place.address, Some(phys * UNIT));
    }
}

#[test]
fn space_beyond_the_end() {
    let disk = with(|model| {
        model.apply(Record::Set { volume: 3, unit: 1 << 30, phys: 800, written: [1, 0, 0, 0] });
    });
    assert_eq!(kinds(&findings(&disk)), [FindingKind::BeyondEnd]);
    // Within the last unit: blocks 0 and 1 are inside, 2 is beyond.
    let cut = |bits| {
        with(|model| {
            model.volumes.get_mut(&3).expect("there").entry.size = 70 * UNIT + 4097;
            model.apply(Record::Set { volume: 3, unit: 70, phys: 800, written: [bits, 0, 0, 0] });
        })
    };
    assert_eq!(report(&cut(0b011)).findings, []);
    let disk = cut(0b111);
    assert_eq!(kinds(&findings(&disk)), [FindingKind::BeyondEnd]);
    assert!(content(&disk)[2].1.contains(&(70, 800, 0b011)), "only what is beyond goes");
}

#[test]
fn names_origins_and_numbers() {
    let disk = with(|model| model.volumes.get_mut(&3).expect("there").entry.name = "vm".into());
    assert_eq!(kinds(&findings(&disk)), [FindingKind::Volume]);
    assert_eq!(content(&disk)[2].0, "vm-3");
    let disk = with(|model| model.volumes.get_mut(&3).expect("there").entry.origin = 1);
    assert_eq!(kinds(&findings(&disk)), [FindingKind::Volume], "no relative");
    let disk = with(|model| model.volumes.get_mut(&2).expect("there").entry.origin = 17);
    assert_eq!(kinds(&findings(&disk)), [FindingKind::Volume], "does not exist");
    let disk = with(|model| model.next_volume = 2);
    assert_eq!(kinds(&findings(&disk)), [FindingKind::Totals]);
}

#[test]
fn superblocks_that_contradict_each_other() {
    let (disk, sb) = formatted();
    let mut model = Model::new(sb.geometry(), 1, sb.journal_blocks);
    checkpointed(&mut model);
    let new = checkpoint(&disk, &sb, &model);
    let mut old = Superblock { generation: new.generation - 1, ..new.clone() };
    let cases: [fn(&mut Superblock); 4] =
        [|sb| sb.incarnation += 1, |sb| sb.replay_seq += 1, |sb| sb.next_volume += 1, |sb| sb.created += 1];
    for change in cases {
        old.clone_from(&Superblock { generation: new.generation - 1, ..new.clone() });
        change(&mut old);
        let disk = disk.clone();
        disk.superblock(&old);
        assert_eq!(kinds(&findings(&disk)), [FindingKind::SuperblocksDiffer]);
    }
    disk.superblock(&Superblock { generation: new.generation + 3, ..new.clone() });
    assert_eq!(kinds(&findings(&disk)), [FindingKind::SuperblocksDiffer]);
}

#[test]
fn a_pool_too_full_to_be_repaired_says_so() {
    let disk = with(|model| {
        let first = model.geometry.first_unit;
        model.apply(Record::Create {
            volume: 9,
            grows: false,
            size: 1 << 40,
            max_size: 1 << 40,
            created: 1,
            name: "all".into(),
        });
        for phys in (first..20).chain(320..400).chain(403..410).chain(460..600).chain(650..700).chain(701..1024) {
            model.apply(Record::Set { volume: 9, unit: phys, phys, written: [1, 0, 0, 0] });
        }
        for phys in 602..650 {
            model.apply(Record::Set { volume: 9, unit: phys, phys, written: [1, 0, 0, 0] });
        }
        model.volumes.get_mut(&3).expect("there").entry.origin = 1;
    });
    assert_eq!(kinds(&report(&disk).findings), [FindingKind::Volume]);
    let refused = check(&disk, &CheckOptions { repair: true }).expect_err("no room");
    assert!(matches!(refused, PoolError::Full { .. }), "{refused}");
    assert_eq!(kinds(&report(&disk).findings), [FindingKind::Volume], "and is as it was");
}
