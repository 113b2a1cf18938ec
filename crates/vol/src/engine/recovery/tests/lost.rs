//! Rescues of pools with pages of the volume table that are damaged or cannot be read.

use super::super::loader::leaves_of;
use super::*;
use crate::format::INDEX_CHILDREN;

const VOLUMES: usize = 40;

/// Returns a long name, so that the table takes several pages and an index page above them.
fn name_of(number: usize) -> String {
    format!("{number:0>240}")
}

/// Returns a closed pool with many volumes. Each volume that is no snapshot has one unit, at a place that no other
/// volume uses. Volume 1 is a snapshot of volume 0, and volume 39 is a clone of volume 1.
fn many() -> Device {
    let device = open_device("ram:size=16M").unwrap();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    for number in 0..VOLUMES {
        match number {
            1 => pool.snapshot(&name_of(0), &name_of(1)).unwrap(),
            39 => pool.clone_volume(&name_of(1), &name_of(39)).unwrap(),
            _ => drop(pool.create_volume(&name_of(number), 8 << 20).unwrap()),
        }
        if number != 1 {
            write(&pool, &name_of(number), (number as u64) << 16);
        }
    }
    pool.close().unwrap();
    device
}

/// Returns the address of a volume's data.
fn place(pool: &Pool, number: usize) -> Option<u64> {
    let volume = pool.open_volume(&name_of(number)).unwrap();
    let found = volume.map((number as u64) << 16, 4096, Intent::Read).unwrap();
    (found.kind == MappingKind::Mapped).then_some(found.addr)
}

/// Returns the table pages of the newest checkpoint, with the volumes of each; the index page has all.
fn table_pages(device: &Device) -> Vec<(u64, Vec<usize>)> {
    let pool = Pool::open(device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let state = pool.inner.lock();
    let of = |at: usize| {
        let first = state.table.pages.leaves[at].first;
        let end = state.table.pages.leaves.get(at + 1).map_or(u32::MAX, |next| next.first);
        state.table.range(first, end).map(|vol| vol.name.parse().unwrap()).collect()
    };
    let leaves = (0..state.table.pages.leaves.len()).map(|at| (state.table.pages.leaves[at].page.address, of(at)));
    let upper = state.table.pages.upper.iter().map(|at| (*at, (0..VOLUMES).collect()));
    leaves.chain(upper).collect()
}

fn rescue(device: &Device, bad: &[u64]) -> Pool {
    let io = Unreadable { io: DeviceIo::new(device).unwrap(), bad: bad.to_vec().into() };
    let options = OpenOptions { rescue: true, read_only: true, ..OpenOptions::default() };
    Pool::open_through(device, Box::new(io), &options).unwrap()
}

#[test]
fn a_damaged_page_of_the_table_costs_the_volumes_that_it_names_and_no_other() {
    let device = many();
    let pages = table_pages(&device);
    assert_eq!(pages.len(), 5, "four pages, and one above");
    let before: Vec<_> = {
        let pool = Pool::open(&device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        (0..VOLUMES).map(|number| place(&pool, number)).collect()
    };
    let whole = bytes_of(&device);
    for (at, lost) in &pages {
        for unreadable in [false, true] {
            if !unreadable {
                flip(&device, *at);
                let error = Pool::open(&device, &OpenOptions::default()).unwrap_err();
                assert!(matches!(&error, PoolError::Damaged { at: place, .. } if place == at), "{error}");
            }
            let damaged = bytes_of(&device);
            let pool = rescue(&device, if unreadable { std::slice::from_ref(at) } else { &[] });
            for (number, before) in before.iter().enumerate() {
                if lost.contains(&number) {
                    let error = pool.open_volume(&name_of(number)).unwrap_err();
                    assert!(matches!(error, PoolError::NoVolume { .. }), "{error}");
                } else {
                    assert_eq!(place(&pool, number), *before, "volume {number} without page {at}");
                }
            }
            let said = pool.info().unsure.join("\n");
            let (first, last) = (lost[0] + 1, lost[lost.len() - 1] + 1);
            for words in [
                format!("a page of the volume table at byte {at} is damaged: "),
                format!("; {} of the 40 volumes of the last checkpoint are missing", lost.len()),
                format!(", with numbers from {first} to {last}"),
            ] {
                assert!(said.contains(&words), "{words} in {said}");
            }
            assert_eq!((said.contains("cannot be read"), pool.info().unsure.len()), (unreadable, 1), "{said}");
            drop(pool);
            assert!(bytes_of(&device) == damaged, "nothing is written");
            DeviceIo::new(&device).unwrap().write(0, &whole).unwrap();
        }
    }
}

#[test]
fn two_damaged_pages_are_told_with_the_numbers_of_both() {
    let device = many();
    let pages = table_pages(&device);
    let pool = rescue(&device, &[pages[0].0, pages[2].0]);
    let info = pool.info();
    let left = VOLUMES - pages[0].1.len() - pages[2].1.len();
    assert_eq!((info.volumes, info.unsure.len()), (left as u32, 2));
    let range = |lost: &[usize]| format!("{} to {}", lost[0] + 1, lost[lost.len() - 1] + 1);
    let words = format!("with numbers from {}, {}", range(&pages[0].1), range(&pages[2].1));
    assert!(info.unsure[1].contains(&words), "{words} in {:?}", info.unsure);
}

/// Volumes 0 and 1 are on a page that is lost, volumes 38 and 39 are not.
#[test]
fn what_the_journal_makes_of_lost_volumes_is_lost_and_all_else_is_there() {
    type Change = fn(&Pool);
    let clone: &str = &name_of(39);
    // Changes after the checkpoint; the volumes whose maps are lost with the page; those that are missing and named.
    let changes: [(Change, &[&str], &[&str]); 9] = [
        (|pool| write(pool, &name_of(0), 0), &[], &[]),
        (|pool| drop(pool.create_volume("new", 1 << 20).unwrap()), &[], &[]),
        (|pool| pool.snapshot(&name_of(0), "t").unwrap(), &[], &["t"]),
        (|pool| pool.rename(&name_of(0), "z").unwrap(), &[], &["z"]),
        (
            |pool| {
                pool.snapshot(&name_of(0), "t").unwrap();
                pool.clone_volume("t", "u").unwrap();
                pool.delete("t").unwrap();
            },
            &[],
            &["u"],
        ),
        (|pool| pool.delete(&name_of(0)).unwrap(), &[], &[]),
        (|pool| pool.rollback(&name_of(39), &name_of(1)).unwrap(), &[clone], &[]),
        (
            |pool| {
                pool.rollback(&name_of(39), &name_of(1)).unwrap();
                pool.snapshot(&name_of(39), "t").unwrap();
            },
            &[clone, "t"],
            &[],
        ),
        (
            |pool| {
                pool.snapshot(&name_of(39), "t").unwrap();
                pool.rollback(&name_of(39), &name_of(1)).unwrap();
                pool.rollback(&name_of(39), "t").unwrap();
            },
            &[],
            &[],
        ),
    ];
    for (number, (change, damaged, named)) in changes.into_iter().enumerate() {
        let device = many();
        let pages = table_pages(&device);
        let at = pages.iter().find(|page| page.1.contains(&0)).unwrap().0;
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        change(&pool);
        write(&pool, &name_of(38), 7 << 20);
        pool.sync().unwrap();
        let state = pool.inner.lock();
        assert!(state.next_seq > state.sb.replay_seq, "change {number} is in the journal");
        assert_eq!(state.table.pages.leaves[0].page.address, at, "and the checkpoint has the page");
        drop(state);
        let before = place(&pool, 38);
        drop(pool);
        flip(&device, at);
        let pool = rescue(&device, &[]);
        let info = pool.info();
        let found: Vec<&str> = info.damaged.iter().map(|found| &found.0[..]).collect();
        assert_eq!(found, damaged, "change {number}");
        let said = info.unsure.join("\n");
        let missing: Vec<&str> =
            ["t", "u", "s", "z", "new"].into_iter().filter(|name| said.contains(&format!("'{name}'"))).collect();
        assert_eq!(missing, named, "change {number}: {said}");
        assert_eq!(place(&pool, 38), before, "change {number}");
        let later = pool.open_volume(&name_of(38)).unwrap().map(7 << 20, 4096, Intent::Read).unwrap();
        assert_eq!(later.kind, MappingKind::Mapped, "change {number}: what was written since the checkpoint is there");
        assert_eq!(pool.open_volume("new").is_ok(), number == 1, "change {number}");
    }
}

#[test]
fn an_index_page_stands_for_all_leaf_pages_below_it() {
    let children = INDEX_CHILDREN as u64;
    assert_eq!(leaves_of(0, 7), (7, 8));
    assert_eq!(leaves_of(1, 7), (7 * children, 8 * children));
    assert_eq!(leaves_of(2, 1), (children * children, 2 * children * children));
    assert_eq!(leaves_of(9, u64::MAX), (u64::MAX, u64::MAX), "of a level that no pool has");
}

/// A rescue passes over the same parts when they cannot be read as when they are damaged.
#[test]
fn what_cannot_be_read_is_passed_over_as_what_is_damaged() {
    for (kind, says) in [
        (kind::LABEL, "reading the label of member 1 failed"),
        (kind::SUMS, "reading metadata pages failed"),
        (kind::JOURNAL, "a block of the journal at byte"),
    ] {
        let members = ["ram:size=16M", "ram:size=16M"].map(|spec| open_device(spec).unwrap());
        let options = CreateOptions { checksum: crate::Checksum::Crc32c, ..CreateOptions::default() };
        let device = crate::join("a+b", &members).unwrap();
        Pool::create(&device, &options).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        drop(pool.create_volume("old", 8 << 20).unwrap());
        write(&pool, "old", 0);
        pool.close().unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        drop(pool.create_volume("new", 8 << 20).unwrap());
        pool.sync().unwrap();
        let sb = pool.inner.lock().sb.clone();
        drop(pool);
        let all = (0..device.size_bytes()).step_by(BLOCK);
        // All blocks of this kind are bad, also older pages, to which no superblock refers. Of the journal only the
        // first block to be replayed is bad.
        let bad: Vec<u64> = match kind {
            kind::JOURNAL => vec![Ring::of(&sb).address(sb.replay_seq)],
            _ => all.filter(|at| kind_at(&device, *at) == Some(kind)).collect(),
        };
        assert!(!bad.is_empty(), "kind {kind}");
        let refused = open(&device, &bad).unwrap_err();
        assert!(matches!(refused, PoolError::Io { status: Status::Medium, .. }), "kind {kind}: {refused}");
        let pool = rescue(&device, &bad);
        let said = pool.info().unsure.join("\n");
        assert!(said.contains(says), "kind {kind}: {said}");
        assert!(pool.open_volume("old").is_ok(), "kind {kind}");
        assert_eq!(pool.open_volume("new").is_ok(), kind != kind::JOURNAL, "kind {kind}");
    }
}
