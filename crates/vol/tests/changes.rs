//! Differences between volumes: every block that reads differently is reported, whatever changes were made, and few
//! others.
#![cfg(not(shuttle))]

use crate::support::{User, format, open, pattern};
use sheave_base::rng::Rng;
use sheave_blk::Device;
use sheave_blk::bio::Op;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::rbd_diff::{Identity, Likeness};
use sheave_vol::{Checksum, CopyOptions, CreateOptions, Differences, Extent, ExtentKind, Pool, PoolError, Volume};

const BLOCK: u64 = 4096;
/// Size of a volume: more than a leaf of 16 KiB units maps, and several slots of the top with 4 KiB units.
const SIZE: u64 = 24 << 20;

fn content(pool: &Pool, name: &str) -> Vec<u8> {
    let volume = pool.open_volume(name).expect("is there");
    let size = pool.volume_info(name).expect("is there").size_bytes;
    User::new(volume).read(0, size as usize).expect("reads")
}

/// Collects the differences since a snapshot, which is given by number, batch by batch.
fn in_parts(now: &Volume, base: &str, pos: u64, len: u64) -> Vec<Extent> {
    let number = now.snapshot_number(base).expect("is there");
    let size = now.size_bytes();
    let end = pos.saturating_add(len).min(size);
    let (mut at, mut all) = (pos, Vec::<Extent>::new());
    while at < end {
        let mut begun = 0;
        let mut once = |told: &Differences| {
            assert!(begun > 0 || told.extents.is_empty() && told.upto == at);
            begun += 1;
            begun == 1
        };
        let told = now.differences_since_number(number, at, end - at, &mut once).expect("told");
        let Differences { extents: found, upto, .. } = told;
        assert!(upto > at && found.len() <= 4096 + 256);
        assert!(found.iter().all(|extent| extent.pos >= at && extent.pos + extent.len <= upto), "within the part");
        at = upto;
        for extent in found {
            match all.last_mut() {
                Some(last) if continues(last, &extent) => last.len += extent.len,
                _ => all.push(extent),
            }
        }
    }
    all
}

/// Returns true if `next` continues `last`.
fn continues(last: &Extent, next: &Extent) -> bool {
    let in_place = last.kind == ExtentKind::Hole || last.addr + last.len == next.addr;
    last.pos + last.len == next.pos && last.kind == next.kind && last.shared == next.shared && in_place
}

/// Compares the reported differences of two volumes with their content. Returns the number of bytes reported.
fn assert_told(pool: &Pool, now: &str, base: &str, words: &str) -> u64 {
    let (new, old) = (content(pool, now), content(pool, base));
    let (one, other) = (pool.open_volume(now).expect("is there"), pool.open_volume(base).expect("is there"));
    let told = one.changes_since(&other, 0, u64::MAX).expect("told");
    if pool.volume_info(base).expect("is there").snapshot {
        let whole = one.differences_since(&other, 0, u64::MAX, &mut |_| true).expect("told");
        assert_eq!(in_parts(&one, base, 0, u64::MAX), whole.extents, "{words}");
        // The same for a range within the volume.
        let (from, len) = (new.len() as u64 / 3 / BLOCK * BLOCK, new.len() as u64 / 4);
        let part = one.differences_since(&other, from, len, &mut |_| true).expect("told");
        assert_eq!(in_parts(&one, base, from, len), part.extents, "{words}");
    }
    let mut changed = vec![false; new.len() / BLOCK as usize];
    let mut last = 0;
    for extent in &told {
        assert!(extent.pos >= last && extent.len > 0 && extent.pos + extent.len <= new.len() as u64, "{extent:?}");
        last = extent.pos + extent.len;
        for block in extent.pos / BLOCK..last / BLOCK {
            changed[block as usize] = true;
            let bytes = &new[(block * BLOCK) as usize..][..BLOCK as usize];
            let zero = bytes.iter().all(|byte| *byte == 0);
            assert!(extent.kind == ExtentKind::Data || zero, "{words}: {extent:?}");
        }
    }
    for (number, block) in new.chunks(BLOCK as usize).enumerate() {
        // The base counts as zeroes beyond its end.
        let before = old.get(number * BLOCK as usize..).and_then(|rest| rest.get(..block.len()));
        let same = before.map_or(block.iter().all(|byte| *byte == 0), |before| before == block);
        assert!(changed[number] || same, "{words}: block {number} is another, and that is not told");
    }
    assert_exact(&one, &other, (&new, &old), &changed, words);
    told.iter().map(|extent| extent.len).sum()
}

/// Verifies the differences after a comparison of blocks: of blocks that both volumes have exactly those that read
/// differently, and of the others those that the maps report.
fn assert_exact(now: &Volume, base: &Volume, (new, old): (&[u8], &[u8]), by_map: &[bool], words: &str) {
    let told = differences(now, base);
    let mut last = 0;
    let mut differs = vec![None; by_map.len()];
    for extent in &told {
        assert!(extent.pos >= last && extent.len > 0, "{words}: {extent:?} in {told:?}");
        last = extent.pos + extent.len;
        (extent.pos / BLOCK..last / BLOCK).for_each(|block| differs[block as usize] = Some(extent.kind));
    }
    let bytes_of =
        |bytes: &[u8], block: usize| bytes.get(block * BLOCK as usize..)?.get(..BLOCK as usize).map(Vec::from);
    let has_data = |volume: &Volume, block: usize| {
        let extents = volume.extents(block as u64 * BLOCK, BLOCK).expect("told");
        extents.first().is_some_and(|extent| extent.kind == ExtentKind::Data)
    };
    for (block, by_map) in by_map.iter().enumerate() {
        let (one, other) = (bytes_of(new, block), bytes_of(old, block));
        match differs[block] {
            Some(_) if !by_map => panic!("{words}: block {block} lies where it lay, and is told"),
            Some(_) if other.is_none() || !(has_data(now, block) && has_data(base, block)) => {}
            Some(_) => assert_ne!(one, other, "{words}: block {block} is the same, and is told"),
            None if *by_map => assert_eq!(one, other, "{words}: block {block} is another, and is not told"),
            None => {}
        }
    }
}

/// Returns all differences, without a break.
fn differences(now: &Volume, base: &Volume) -> Vec<Extent> {
    let told = now.differences_since(base, 0, u64::MAX, &mut |_| true).expect("told");
    assert!(told.upto >= now.size_bytes());
    told.extents
}

/// Formats a pool with or without checksums of data.
fn format_with(device: &Device, unit: u64, checksum: Checksum) {
    let options = CreateOptions::default().unit_bytes(unit).overwrite(true).metadata_copies(Some(1));
    Pool::create(device, &options.checksum(checksum)).expect("formats");
}

fn sum(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.len).sum()
}

const BOTH: [Checksum; 2] = [Checksum::None, Checksum::Crc32c];

#[test]
fn fifty_small_writes_are_fifty_small_differences_and_only_copies_are_read() {
    for (checksum, unit) in BOTH.into_iter().flat_map(|checksum| [4096, 65536, 1 << 20].map(|unit| (checksum, unit))) {
        let device = open_device("ram:size=256M").expect("opens");
        format_with(&device, unit, checksum);
        let pool = open(&device);
        let user = User::new(pool.create_volume("v", 64 << 20).expect("creates"));
        user.write(0, &pattern(1, 64 << 20)).expect("written");
        pool.snapshot("v", "s").expect("frozen");
        let mut rng = Rng::new(7);
        let mut blocks = std::collections::BTreeSet::new();
        while blocks.len() < 50 {
            let block = rng.below((64 << 20) / BLOCK);
            if blocks.insert(block) {
                user.write(block * BLOCK, &pattern(2 + block, BLOCK as usize)).expect("written");
            }
        }
        user.sync().expect("synced");
        let base = pool.open_volume("s").expect("is there");
        let by_map = sum(&user.volume.changes_since(&base, 0, u64::MAX).expect("told"));
        let before = device.stats().op(Op::Read).sectors;
        let told = user.volume.differences_since(&base, 0, u64::MAX, &mut |_| true).expect("told");
        let read = (device.stats().op(Op::Read).sectors - before) * 512;
        let words = format!("{checksum:?}, units of {unit}: {told:?}");
        assert_eq!(sum(&told.extents), 50 * BLOCK, "{words}");
        assert!(
            told.extents
                .iter()
                .all(|extent| (extent.pos / BLOCK..(extent.pos + extent.len) / BLOCK)
                    .all(|block| blocks.contains(&block))),
            "{words}"
        );
        // Both sides of each copied block are read, except those that checksums prove to differ.
        let differ = if checksum == Checksum::None { 0 } else { 50 * BLOCK };
        assert_eq!((read, told.read_bytes), (2 * (by_map - differ), 2 * (by_map - differ)), "{words}");
        if unit == 65536 {
            assert!(by_map > 40 * 4 * unit, "the maps alone tell groups: {by_map}");
        }
    }
}

/// Returns another block with the same CRC32C, made by adding a multiple of the polynomial.
fn colliding(block: &[u8], at: usize) -> Vec<u8> {
    let mut other = block.to_vec();
    // The 33 coefficients from the highest on. CRC32C counts the lowest bit of a byte as the first.
    let bits = std::iter::once(1).chain((0..32).rev().map(|bit| 0x1edc_6f41_u32 >> bit & 1));
    for (bit, _) in bits.enumerate().filter(|(_, one)| *one == 1) {
        other[at + bit / 8] ^= 1 << (bit % 8);
    }
    other
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

#[test]
fn a_block_whose_checksum_collides_is_a_difference() {
    let device = open_device("ram:size=64M").expect("opens");
    format_with(&device, 65536, Checksum::Crc32c);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 20).expect("creates"));
    let old = pattern(1, BLOCK as usize);
    let new = colliding(&old, 100);
    assert!(old != new && crc32c(&old) == crc32c(&new));
    user.write(BLOCK, &old).expect("written");
    pool.snapshot("v", "s").expect("frozen");
    user.write(BLOCK, &new).expect("written");
    let told = differences(&user.volume, &pool.open_volume("s").expect("is there"));
    assert_eq!((told.len(), told[0].pos, told[0].len), (1, BLOCK, BLOCK), "{told:?}");
}

#[test]
fn corruption_in_either_copy_is_a_difference() {
    for (checksum, rots_now) in BOTH.into_iter().flat_map(|checksum| [true, false].map(|now| (checksum, now))) {
        let device = open_device("ram:size=64M").expect("opens");
        format_with(&device, 65536, checksum);
        let pool = open(&device);
        let user = User::new(pool.create_volume("v", 1 << 20).expect("creates"));
        user.write(0, &pattern(1, 65536)).expect("written");
        pool.snapshot("v", "s").expect("frozen");
        user.write(0, &pattern(2, BLOCK as usize)).expect("written");
        user.sync().expect("synced");
        let base = pool.open_volume("s").expect("is there");
        assert_eq!(sum(&differences(&user.volume, &base)), BLOCK);
        let rotten = if rots_now { &user.volume } else { &base };
        let place = rotten.extents(5 * BLOCK, BLOCK).expect("told")[0].addr;
        DeviceIo::new(&device).expect("attaches").write(place, &pattern(9, BLOCK as usize)).expect("written");
        let told = differences(&user.volume, &base);
        let places: Vec<u64> = told.iter().map(|extent| extent.pos).collect();
        assert_eq!((places, sum(&told)), (vec![0, 5 * BLOCK], 2 * BLOCK), "{checksum:?}: {told:?}");
        // Both copies get the same wrong content, which only their checksums detect.
        for volume in [&user.volume, &base] {
            let place = volume.extents(5 * BLOCK, BLOCK).expect("told")[0].addr;
            DeviceIo::new(&device).expect("attaches").write(place, &pattern(9, BLOCK as usize)).expect("written");
        }
        let expected = if checksum == Checksum::None { BLOCK } else { 2 * BLOCK };
        assert_eq!(sum(&differences(&user.volume, &base)), expected, "{checksum:?}");
    }
}

#[test]
fn a_comparison_ends_when_it_is_told_to_and_goes_on_from_there() {
    let device = open_device("ram:size=64M").expect("opens");
    format_with(&device, 65536, Checksum::None);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 16 << 20).expect("creates"));
    user.write(0, &pattern(1, 16 << 20)).expect("written");
    pool.snapshot("v", "s").expect("frozen");
    for group in 0..64 {
        user.write((group << 18) + 512, &pattern(2, 1024)).expect("written");
    }
    let base = pool.open_volume("s").expect("is there");
    let (mut at, mut all, mut batches) = (0, Vec::new(), 0);
    while at < 16 << 20 {
        let mut heard = Vec::new();
        let mut once = |at| {
            heard.push(at);
            heard.len() == 1
        };
        let told = user.volume.differences_since(&base, at, u64::MAX, &mut once).expect("told");
        assert!(told.upto > at && told.read_bytes <= 2 * ((1 << 20) + 65536), "a batch: {told:?}");
        assert_eq!(heard.first(), Some(&at));
        at = told.upto;
        batches += 1;
        all.extend(told.extents);
    }
    assert!(batches >= 15, "{batches}");
    assert_eq!(all, differences(&user.volume, &base));
    assert_eq!(sum(&all), 64 * BLOCK);
    let none = user.volume.differences_since(&base, 0, u64::MAX, &mut |_| false).expect("told");
    assert_eq!((none.extents.len(), none.upto, none.read_bytes), (0, 0, 0));
    // A range that begins within a block and ends in the next one.
    let odd = user.volume.differences_since(&base, 512, 4096, &mut |_| true).expect("told").extents;
    assert_eq!((odd.len(), odd[0].pos, odd[0].len), (1, 512, BLOCK - 512), "{odd:?}");
}

#[test]
fn all_that_reads_differently_is_told_across_rollbacks_and_resizes() {
    let kinds = [4096, 16384, 65536].into_iter().zip(1..);
    for ((unit, seed), checksum) in kinds.flat_map(|kind| BOTH.map(|checksum| (kind, checksum))) {
        let device = open_device("ram:size=256M").expect("opens");
        format_with(&device, unit, checksum);
        let pool = open(&device);
        drop(pool.create_volume("v", SIZE).expect("creates"));
        let mut rng = Rng::new(seed);
        let mut snapshots = vec![];
        for round in 0..24u64 {
            let name = format!("s{round}");
            pool.snapshot("v", &name).expect("frozen");
            snapshots.push(name);
            let size = pool.volume_info("v").expect("is there").size_bytes;
            match rng.below(5) {
                0 => {
                    let to = &snapshots[rng.below(snapshots.len() as u64) as usize];
                    pool.rollback("v", to).expect("rolled back");
                }
                1 => pool.resize("v", (1 + rng.below(SIZE / BLOCK)) * BLOCK).expect("resized"),
                _ => {
                    let user = User::new(pool.open_volume("v").expect("is there"));
                    for _ in 0..8 {
                        let pos = rng.below(size / BLOCK) * BLOCK;
                        let len = (rng.below(40) + 1) * BLOCK;
                        let len = len.min(size - pos);
                        match rng.below(4) {
                            0 => user.punch(pos, len).expect("punched"),
                            // Writes a few blocks with the content that they have.
                            1 => {
                                let len = len.min(3 * BLOCK);
                                let same = user.read(pos, len as usize).expect("read");
                                user.write(pos, &same).expect("written");
                            }
                            _ => user.write(pos, &pattern(round * 100 + pos, len as usize)).expect("written"),
                        }
                    }
                    user.sync().expect("synced");
                }
            }
            let other = snapshots[rng.below(snapshots.len() as u64) as usize].clone();
            assert_told(&pool, "v", &other, &format!("unit {unit}, round {round}"));
            assert_told(&pool, &other, "v", &format!("unit {unit}, round {round}, back"));
        }
    }
}

#[test]
fn unwritten_ranges_are_not_reported_as_differences() {
    let device = open_device("ram:size=256M").expect("opens");
    format(&device, 65536);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 64 << 20).expect("creates"));
    user.write(0, &pattern(1, 8 << 20)).expect("written");
    user.write(40 << 20, &pattern(2, 8 << 20)).expect("written");
    pool.snapshot("v", "s").expect("frozen");
    assert_eq!(assert_told(&pool, "v", "s", "nothing happened"), 0);
    user.write(5 << 20, &pattern(3, 8192)).expect("written");
    user.punch(41 << 20, 65536).expect("punched");
    // A write to a shared unit copies the group around it, at most four units. All of it has another address then, so
    // it is reported.
    assert_eq!(assert_told(&pool, "v", "s", "8 KiB written, 64 KiB punched"), (4 + 1) * 65536);
    pool.snapshot("v", "t").expect("frozen");
    assert_eq!(assert_told(&pool, "t", "v", "a snapshot of it"), 0);
    drop(user);
    pool.resize("v", 128 << 20).expect("grown");
    assert_eq!(assert_told(&pool, "v", "t", "growth alone"), 0);
    pool.resize("v", 4 << 20).expect("cut");
    assert_eq!(assert_told(&pool, "v", "t", "a cut alone"), 0);
    pool.resize("v", 64 << 20).expect("grown");
    assert_eq!(assert_told(&pool, "v", "t", "cut and grown"), (4 << 20) + (8 << 20) - 65536);
}

#[test]
fn a_copy_of_a_snapshot_has_its_identity_and_nothing_else_has() {
    let there = open_device("ram:size=64M").expect("opens");
    let here = open_device("ram:size=64M").expect("opens");
    format(&there, 16384);
    format(&here, 65536);
    let (there, here) = (open(&there), open(&here));
    let mut found = vec![];
    for (pool, shift) in [(&there, 0), (&here, 0), (&here, 4096)] {
        let name = format!("v{shift}");
        let user = User::new(pool.create_volume(&name, 8 << 20).expect("creates"));
        user.write(1 << 20, &pattern(1, 8192)).expect("written");
        user.write((2 << 20) + shift, &pattern(1, 4096)).expect("written");
        let of: Option<Identity> = found.first().copied();
        let options = CopyOptions::default().created(Some(1234)).identity(of.and_then(|of| of.unique));
        found.push(pool.snapshot_with(&name, &format!("s{shift}"), &options).expect("frozen").identity());
    }
    assert_eq!((found[0].created, found[0].size, found[0].written), (1234, 8 << 20, 12288));
    assert_eq!(found[0].compare(&found[1]), Likeness::Same, "{found:?}");
    assert_eq!(found[0].compare(&found[2]), Likeness::Other, "data elsewhere: {found:?}");
    let second = CopyOptions::default().created(Some(1234));
    let second = here.snapshot_with("v0", "second", &second).expect("frozen").identity();
    assert!(found[0].is_same_layout(&second) && second.created == 1234, "{second:?}");
    assert_eq!(found[0].compare(&second), Likeness::Other, "another one of that second, with data in the same places");
    assert_eq!(here.open_volume("v0").expect("is there").identity().unique, None, "it is written");
    let later = CopyOptions::default().created(Some(1235)).identity(found[0].unique);
    here.snapshot_with("s0", "later", &later).expect("frozen");
    let later = here.open_volume("later").expect("is there").identity();
    assert!(found[0].compare(&later) == Likeness::Other && found[0].is_same_layout(&later), "{later:?}");
    assert_eq!(here.volume_info("later").expect("is there").created, 1235);
    let one = there.open_volume("s0").expect("is there");
    let other = here.open_volume("s0").expect("is there");
    assert!(matches!(one.changes_since(&other, 0, 1), Err(PoolError::Invalid { .. })), "pools differ");
}

#[test]
fn a_long_comparison_stops_after_the_batches_asked_for() {
    let device = open_device("ram:size=256M").expect("opens");
    format(&device, 4096);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 64 << 20).expect("creates"));
    pool.snapshot("v", "s").expect("frozen");
    user.write(0, &pattern(1, 60 << 20)).expect("written");
    let volume = pool.open_volume("v").expect("is there");
    let number = volume.snapshot_number("s").expect("is there");
    // Each written unit is one step. No data is read, because the snapshot has none of the units.
    for batches in 1..4 {
        let mut left = batches;
        let mut go_on = |_: &Differences| {
            left -= 1;
            left >= 0
        };
        let told = volume.differences_since_number(number, 0, u64::MAX, &mut go_on).expect("told");
        assert_eq!((told.upto, told.read_bytes), (batches as u64 * 4096 * 4096, 0), "{batches} batches");
    }
    assert_eq!(assert_told(&pool, "v", "s", "60 MiB"), 60 << 20);
}

#[test]
fn a_snapshot_that_is_compared_with_may_go_and_none_takes_its_place() {
    let device = open_device("ram:size=64M").expect("opens");
    format(&device, 65536);
    let pool = open(&device);
    let volume = pool.create_volume("v", 8 << 20).expect("creates");
    pool.snapshot("v", "s").expect("frozen");
    User::new(volume.clone()).write(65536, &pattern(1, 65536)).expect("written");
    let number = volume.snapshot_number("s").expect("is there");
    let dirty =
        |number| volume.differences_since_number(number, 0, u64::MAX, &mut |_| true).map(|told| told.extents.len());
    assert_eq!(dirty(number).expect("told"), 1);
    pool.rename("s", "t").expect("renamed");
    assert_eq!(dirty(number).expect("told"), 1);
    pool.delete("t").expect("it is not kept open");
    assert!(matches!(dirty(number), Err(PoolError::NoVolume { .. })));
    User::new(volume.clone()).write(0, &pattern(1, 4 << 20)).expect("written");
    pool.snapshot("v", "t").expect("frozen");
    assert!(matches!(dirty(number), Err(PoolError::NoVolume { .. })), "another one of that name");
    // The snapshot is deleted between two batches: its map may belong to another volume by then.
    let number = volume.snapshot_number("t").expect("is there");
    User::new(volume.clone()).write(0, &pattern(2, 4 << 20)).expect("written");
    let told = volume.differences_since_number(number, 0, u64::MAX, &mut |told| {
        if told.upto > 0 {
            pool.delete("t").expect("deleted");
        }
        true
    });
    assert!(matches!(told, Err(PoolError::NoVolume { .. })), "{told:?}");
    pool.snapshot("v", "t").expect("frozen");
    assert!(matches!(volume.snapshot_number("s"), Err(PoolError::NoVolume { .. })));
    assert!(matches!(volume.snapshot_number("v"), Err(PoolError::Invalid { .. })), "what changes is no base");
}

#[test]
fn bases_are_of_the_family_and_older() {
    let device = open_device("ram:size=64M").expect("opens");
    format(&device, 65536);
    let pool = open(&device);
    for name in ["v", "w"] {
        pool.create_volume(name, 8 << 20).expect("creates");
        (0..4).for_each(|number| pool.snapshot(name, &format!("{name}{number}")).expect("frozen"));
    }
    pool.clone_volume("v2", "c").expect("cloned");
    let bases = |name: &str, most| pool.open_volume(name).expect("is there").bases(most);
    assert_eq!(bases("v", 99), ["v3", "v2", "v1", "v0"]);
    assert_eq!(bases("v", 2), ["v3", "v2"]);
    assert_eq!(bases("v2", 99), ["v1", "v0"]);
    assert_eq!(bases("v0", 99), [""; 0]);
    assert_eq!(bases("c", 99), ["v3", "v2", "v1", "v0"], "a clone is of the family");
}
