//! Pages of checksums that a repair keeps, moves, and opens.

use super::super::sums::Says;
use super::disk::{Disk, Pool, UNIT, pool};
use super::*;
use crate::format::page::sums::{self, Marked, RegionSums};
use crate::format::page::{Expect, PagePlace, PageRef, index};
use crate::format::settings::Checksum;
use crate::format::{INDEX_CHILDREN, MAX_SUMS};

/// Places of the root of the checksums, and of two regions' pages.
const PLACES: [u64; 3] = [660 * UNIT, 660 * UNIT + BLOCK_BYTES, 660 * UNIT + 2 * BLOCK_BYTES];
/// Regions of the two pages. Units of the checkpoint are in regions 0 to 7, and units that the journal gives to volumes
/// in region 8.
const REGIONS: [u64; 2] = [6, 8];

fn numbers(region: u64) -> RegionSums {
    std::array::from_fn(|at| region as u32 * 5000 + at as u32)
}

/// Returns the tests' pool with checksums.
pub fn summed() -> Pool {
    with_sums(true, PLACES)
}

/// Returns the same pool, with the pages of checksums in these places.
fn with_sums(marks: bool, places: [u64; 3]) -> Pool {
    let Pool { disk, sb: mut new, mut pages, journal } = pool();
    let geometry = new.geometry();
    let mut children = [PageRef::NONE; INDEX_CHILDREN];
    let place =
        |address, index| PagePlace { pool: new.pool, generation: new.generation, address, second: 0, index, owner: 0 };
    for (region, address) in REGIONS.into_iter().zip(&places[1..]) {
        disk.change(*address, |block| {
            let place = place(*address, region);
            let page = sums::encode(block, &geometry, &place, false, &numbers(region), &Marked::default());
            children[region as usize] = page;
        });
    }
    disk.change(places[0], |block| new.sums = index::encode(block, &place(places[0], 0), 1, &children));
    (new.checksum, new.marks, new.sums_level) = (Checksum::Crc32c, marks, 1);
    for _ in 0..2 {
        new.generation += 1;
        disk.superblock(&new);
    }
    assert_eq!(report(&disk).is_clean(), places == PLACES, "{:#?}", report(&disk).findings);
    pages.extend(places);
    Pool { disk, sb: new, pages, journal }
}

/// Damages only the label of the pool's second member.
fn with_damaged_label(pool: Pool) -> Disk {
    pool.disk.change(pool.sb.members[1].0, |block| block[100] ^= 1);
    pool.disk
}

/// Repairs the pool, and verifies that each page has the same checksums as before. Returns each region's page, and true
/// if it is open.
fn repaired(disk: &Disk) -> Vec<(u64, bool)> {
    assert!(repair(disk).repaired);
    let found = look_at(disk).expect("reads").found.expect("there is a pool");
    let (sb, mut block) = (found.sb, [0; BLOCK]);
    let expect = |page, index| Expect { pool: sb.pool, generation: sb.generation, page, index };
    let mut children = [PageRef::NONE; INDEX_CHILDREN];
    disk.read(sb.sums.address, &mut block).expect("reads");
    index::decode(&block, &sb.geometry(), &expect(sb.sums, 0), 1, &mut children).expect("the root");
    let page = |region: u64| {
        let (page, mut sums, mut block) = (children[region as usize], [0; MAX_SUMS], [0; BLOCK]);
        disk.read(page.address, &mut block).expect("reads");
        let state = sums::decode(&block, &sb.geometry(), &expect(page, region), &mut sums).expect("a page");
        // A page has 992 checksums of units of 64 KiB.
        assert_eq!(sums[..992], numbers(region)[..992]);
        (page.address, state.open)
    };
    REGIONS.into_iter().map(page).collect()
}

#[test]
fn checksum_pages_without_journal_records_are_not_moved() {
    let disk = with_damaged_label(summed());
    assert_eq!(repaired(&disk), [(PLACES[1], false), (PLACES[2], false)]);
}

/// Programs without marks copied units to regions that were not open.
#[test]
fn regions_of_units_in_the_journal_of_an_older_program_are_open() {
    let disk = with_damaged_label(with_sums(false, PLACES));
    let pages = repaired(&disk);
    assert_eq!((pages[0], pages[1].1), ((PLACES[1], false), true));
    assert_ne!(pages[1].0, PLACES[2], "a page is not written over");
}

#[test]
fn a_page_in_the_unit_of_a_label_is_moved() {
    let label = 700 * UNIT;
    let disk = with_damaged_label(with_sums(true, [PLACES[0], label + BLOCK_BYTES, PLACES[2]]));
    let pages = repaired(&disk);
    assert_ne!(pages[0].0 / UNIT, label / UNIT);
    assert_eq!(pages, [(pages[0].0, false), (PLACES[2], false)]);
}

/// Counts as opening does: regions that the checkpoint has open, and further ones that the journal opens.
#[test]
fn a_region_that_is_open_in_the_checkpoint_and_in_the_journal_counts_once() {
    let Pool { sb, .. } = summed();
    let mut sums = super::super::sums::Sums::of(&sb);
    let says = |open| Says::of(&sums::RegionState { open, marked: Marked::default() });
    for (region, open) in [(1, true), (2, false), (9, true)] {
        sums.keep(region, PageRef::NONE, says(open));
    }
    assert_eq!(sums.open(), 2);
    for (first, count, open) in [(0, 4, 5), (1, 2, 5), (16, 100, 6)] {
        sums.replay(&sb.geometry(), &Record::Intent { first, count });
        assert_eq!(sums.open(), open, "{first} and {count}");
    }
}

/// A block that cannot be read may have held the record of any region.
#[test]
fn all_regions_are_open_when_a_block_of_the_journal_cannot_be_read() {
    let pool = summed();
    let last = JOURNAL_START + pool.journal[2] % u64::from(pool.sb.journal_blocks) * BLOCK_BYTES;
    let disk = with_damaged_label(pool);
    disk.unreadable(last);
    let found = report(&disk);
    assert_eq!(found.findings.len(), 1, "it may be the end of the journal: {:#?}", found.findings);
    assert!(repair(&disk).repaired);
    let found = look_at(&disk).expect("reads").found.expect("there is a pool");
    assert!(found.sb.sums.is_none(), "their pages would say nothing that is believed");
}

/// No journal records the regions that a lost superblock of an older program has opened.
#[test]
fn all_regions_are_open_when_a_newer_superblock_may_be_lost() {
    for older in [false, true] {
        let Pool { disk, mut sb, .. } = summed();
        sb.compat = if older { 0 } else { sb.compat };
        sb.generation += 1;
        disk.superblock(&sb);
        disk.change(sb.slot() ^ BLOCK_BYTES, |block| block[100] ^= 1);
        assert!(repair(&disk).repaired);
        let found = look_at(&disk).expect("reads").found.expect("there is a pool");
        assert_eq!(found.sb.sums.is_none(), older);
    }
}
