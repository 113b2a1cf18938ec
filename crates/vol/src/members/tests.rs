//! Choice of members by their labels: older copies are never used, and two equally good candidates are refused.

use std::slice::from_ref;

use sheave_base::rng::Rng;
use sheave_blk::Device;
use sheave_blk::linear::concatenate;
use sheave_drivers::open_device;

use super::*;
use crate::device::block_io::{BlockIo, DeviceIo};
use crate::ops::grow::join;
use crate::{AddOptions, CreateOptions, OpenOptions, Pool};

type Tagged = (String, MemberTag);

fn start_of(device: &Device) -> [u8; TAG_BYTES] {
    let mut bytes = [0; TAG_BYTES];
    DeviceIo::new(device).unwrap().read(0, &mut bytes).unwrap();
    bytes
}

fn tag(name: &str, device: &Device) -> Tagged {
    (name.into(), MemberTag::read(&start_of(device)).unwrap())
}

fn memory() -> Device {
    open_device("ram:size=8M").unwrap()
}

/// Copies the current content of a device to a new one.
fn copy(device: &Device) -> Device {
    let (to, mut bytes) = (memory(), vec![0; 8 << 20]);
    DeviceIo::new(device).unwrap().read(0, &mut bytes).unwrap();
    DeviceIo::new(&to).unwrap().write(0, &bytes).unwrap();
    to
}

/// Makes a pool of three members and closes it.
fn three() -> [Device; 3] {
    let parts = [memory(), memory(), memory()];
    Pool::create(&concatenate("three", &parts).unwrap(), &CreateOptions::default()).unwrap();
    work(&parts);
    parts
}

/// Opens the pool, changes it and closes it, so that its checkpoints are newer.
fn work(parts: &[Device]) {
    let pool = Pool::open(&join("it", parts).unwrap(), &OpenOptions::default()).unwrap();
    let name = format!("v{}", pool.info().generation);
    pool.create_volume(&name, 1 << 20).unwrap();
    pool.close().unwrap();
}

fn gathered(named: &[Tagged], found: &[Tagged]) -> Result<Vec<String>, String> {
    let pool = named.iter().chain(found).next().map(|(_, tag)| tag.pool()).unwrap();
    gather(&pool, named, found).map_err(|error| error.to_string())
}

#[test]
fn any_one_member_leads_to_all_of_them_in_order() {
    let parts = three();
    let all: Vec<Tagged> = ["a", "b", "c"].iter().zip(&parts).map(|(name, part)| tag(name, part)).collect();
    let names = Ok(vec!["a".to_string(), "b".into(), "c".into()]);
    for one in 0..3 {
        let rest: Vec<Tagged> = (0..3).rev().filter(|at| *at != one).map(|at| all[at].clone()).collect();
        assert_eq!(gathered(from_ref(&all[one]), &rest), names);
    }
    assert_eq!(gathered(&[], &all), names, "by the identity alone");
    assert_eq!(gathered(&all.iter().rev().cloned().collect::<Vec<_>>(), &[]), names, "in another order");
    let others = three();
    let strangers: Vec<Tagged> = others.iter().map(|part| tag("x", part)).collect();
    let found: Vec<Tagged> = strangers.into_iter().chain(all[1..].to_vec()).collect();
    assert_eq!(gathered(&all[..1], &found), names, "members of another pool are in nobody's way");
}

#[test]
fn what_is_missing_is_named_with_its_size() {
    let parts = three();
    let all: Vec<Tagged> = ["a", "b", "c"].iter().zip(&parts).map(|(name, part)| tag(name, part)).collect();
    let why = gathered(&all[..1], &all[2..]).unwrap_err();
    assert!(why.contains("has 3 members (0 to 2), and member 1 is missing: 8388608 bytes"), "{why}");
    let why = gathered(&all[..1], &[]).unwrap_err();
    assert!(why.contains("members 1, 2 are missing: 8388608 bytes, 8388608 bytes"), "{why}");
    let why = gathered(&all[1..2], &all[2..]).unwrap_err();
    assert!(why.contains("the first member of the pool") && why.contains("was not found"), "{why}");
}

/// V31, for members that were found and not named.
#[test]
fn an_older_copy_is_never_taken() {
    let parts = three();
    let (old_a, old_b) = (copy(&parts[0]), copy(&parts[1]));
    work(&parts);
    let [a, b, c] = [tag("a", &parts[0]), tag("b", &parts[1]), tag("c", &parts[2])];
    let [old_a, old_b] = [tag("old-a", &old_a), tag("old-b", &old_b)];
    let names = Ok(vec!["a".to_string(), "b".into(), "c".into()]);
    let everything = [old_b.clone(), c.clone(), old_a.clone(), b.clone(), a.clone()];
    assert_eq!(gathered(&[], &everything), names, "the true ones are there");
    assert_eq!(gathered(from_ref(&a), &everything), names);
    assert_eq!(gathered(from_ref(&c), &everything), names);
    // The right member is missing, and its older copy does not replace it.
    let why = gathered(from_ref(&a), &[old_b.clone(), c.clone()]).unwrap_err();
    assert!(
        why.contains("member 1 is missing") && why.contains("older copies, which are not taken, there is old-b"),
        "{why}"
    );
    let why = gathered(from_ref(&c), &[old_a.clone(), b.clone()]).unwrap_err();
    assert!(why.contains("c, which is given as member 2, is of another time"), "{why}");
    let why = gathered(&[], &[old_a.clone(), b.clone(), c.clone()]).unwrap_err();
    assert!(why.contains("members 1, 2 are missing"), "{why}");
    // A named candidate that does not fit is not replaced. The error names the right one.
    let why = gathered(&[a.clone(), old_b], &everything).unwrap_err();
    assert!(
        why.contains("old-b, which is given as member 1") && why.contains("b is the one that the pool used last"),
        "{why}"
    );
    let why = gathered(&[old_a], &everything).unwrap_err();
    assert!(why.contains("missing"), "{why}");
}

#[test]
fn of_two_copies_that_are_equally_new_neither_is_taken() {
    let parts = three();
    let [a, b, c] = [tag("a", &parts[0]), tag("b", &parts[1]), tag("c", &parts[2])];
    let (twin_a, twin_b) = (tag("twin-a", &copy(&parts[0])), tag("twin-b", &copy(&parts[1])));
    let why = gathered(from_ref(&a), &[b.clone(), c.clone(), twin_b.clone()]).unwrap_err();
    assert!(why.contains("b and twin-b are both member 1 of the pool, and equally new"), "{why}");
    let why = gathered(&[], &[a.clone(), b.clone(), c.clone(), twin_a.clone()]).unwrap_err();
    assert!(why.contains("a and twin-a are both member 0"), "{why}");
    // Naming one of the two copies decides between them.
    let named = [a.clone(), twin_b.clone()];
    assert_eq!(
        gathered(&named, &[b.clone(), c.clone(), twin_a.clone()]),
        Ok(vec!["a".into(), "twin-b".into(), "c".into()])
    );
    let why = gathered(&[a.clone(), b, twin_b], &[c]).unwrap_err();
    assert!(why.contains("b and twin-b are both member 1"), "{why}");
    let why = gathered(&[a, twin_a], &[]).unwrap_err();
    assert!(why.contains("a and twin-a are both member 0"), "{why}");
}

/// Labels of older programs name no checkpoint, so a found candidate may be an older copy.
#[test]
fn a_label_that_tells_no_age_is_not_enough() {
    let parts = three();
    let all: Vec<Tagged> = ["a", "b", "c"].iter().zip(&parts).map(|(name, part)| tag(name, part)).collect();
    let mut ageless = all[0].clone();
    let Part::First(sb) = &mut ageless.1.part else { panic!("the first") };
    sb.labels_at = 0;
    let why = gathered(from_ref(&ageless), &all[1..]).unwrap_err();
    assert!(why.contains("b is member 1 of the pool, or an older copy of it"), "{why}");
    let names = Ok(vec!["a".to_string(), "b".into(), "c".into()]);
    assert_eq!(gathered(&[ageless, all[1].clone(), all[2].clone()], &[]), names, "all were named");
}

/// An addition that was cut off leaves a label that no superblock lists. A search does not use that device either.
#[test]
fn what_was_being_added_is_no_member() {
    let parts = [memory(), memory()];
    Pool::create(&parts[0], &CreateOptions::default()).unwrap();
    let before = copy(&parts[0]);
    let pool = Pool::open(&parts[0], &OpenOptions::default()).unwrap();
    pool.add_member(&parts[1], &AddOptions::default()).unwrap();
    pool.close().unwrap();
    let [a, old, b] = [tag("a", &parts[0]), tag("old", &before), tag("b", &parts[1])];
    assert_eq!(gathered(from_ref(&a), from_ref(&b)), Ok(vec!["a".into(), "b".into()]));
    assert_eq!(gathered(from_ref(&old), from_ref(&b)), Ok(vec!["old".into()]), "the pool before has one member");
    let why = gathered(&[old, b], &[]).unwrap_err();
    assert!(why.contains("says that it is member 1, and the pool has 1"), "{why}");
    assert_eq!(a.1.members().len(), 2);
}

#[test]
fn devices_are_joined_in_any_order_and_once_each() {
    let [a, b, c] = three();
    for order in [[&c, &a, &b], [&b, &c, &a], [&a, &c, &b]] {
        let device = join("it", &order.map(Clone::clone)).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        assert_eq!(pool.info().members.len(), 3);
        pool.close().unwrap();
    }
    let why = join("it", &[a.clone(), b.clone(), b.clone()]).unwrap_err().to_string();
    assert!(why.contains("member 1 of the pool is named twice"), "{why}");
    let why = join("it", &[a.clone(), copy(&a), b.clone(), c.clone()]).unwrap_err().to_string();
    assert!(why.contains("member 0 of the pool is named twice"), "{why}");
    let why = join("it", &[c, a]).unwrap_err().to_string();
    assert!(why.contains("missing"), "{why}");
    // `join` accepts a device that is no member: opening the pool reports the cause.
    assert!(join("it", &[memory(), b]).is_ok());
}

/// Arbitrary bytes of a device neither panic nor pass as a member with another label.
#[test]
fn hostile_bytes_are_no_members() {
    let parts = three();
    let (first, label) = (start_of(&parts[0]), start_of(&parts[1]));
    let [a, c] = [tag("a", &parts[0]), tag("c", &parts[2])];
    for seed in sheave_testkit::seeds(3) {
        let mut rng = Rng::new(seed);
        for _ in 0..2000 {
            let mut bytes = if rng.below(2) == 0 { first } else { label };
            for _ in 0..=rng.below(4) {
                let at = rng.below(4096 + 64) as usize;
                bytes[at] ^= rng.below(255) as u8 + 1;
            }
            // Half of the blocks get a valid checksum, so that the fields themselves are verified.
            if rng.below(2) == 0 {
                for slot in [0, BLOCK] {
                    let block: &mut [u8; BLOCK] = (&mut bytes[slot..slot + BLOCK]).try_into().unwrap();
                    let sum = crate::format::checksum(block);
                    block[8..12].copy_from_slice(&sum.to_le_bytes());
                }
            }
            let Some(tag) = MemberTag::read(&bytes) else { continue };
            let (number, _, _) = (tag.number(), tag.checkpoint(), tag.members().len());
            let is_label = bytes[..BLOCK] == label[..BLOCK];
            let hostile = ("hostile".to_string(), tag);
            let named = gathered(&[a.clone(), c.clone()], from_ref(&hostile));
            let fits = hostile.1.belongs_to(&a.1).is_ok() && hostile.1.pool() == a.1.pool();
            assert_eq!(named.is_ok(), fits, "seed {seed}: {named:?}");
            // An accepted label may differ in its length, and in its checkpoint, which may be later by two.
            assert!(!fits || is_label || number == 1, "seed {seed}");
            _ = gathered(from_ref(&hostile), &[a.clone(), c.clone()]);
            _ = gathered(&[], &[hostile, a.clone()]);
        }
    }
}
