//! Members of a pool, recognised by their first blocks: the pool that a file or device belongs to, and its number in
//! the pool.
//!
//! Owns the reading of the first blocks ([`MemberTag::read`]), and the choice among candidates ([`gather`]). Callers
//! search for candidates. Opening a pool verifies each label again, so the choice here is not final.
//!
//! Invariants:
//! - A1: a found candidate is used only if its label is that of the newest superblock, by the rules of an opening
//!   ([`label::verify`]). An older copy is never used in place of a member.
//! - A2: if two found candidates fit one member, neither is used.
//! - A3: a candidate that the caller names takes precedence over one that was found. If a named candidate does not fit,
//!   the result is an error; it is never replaced by a found one.

use std::fmt::Display;

use zerocopy::FromBytes;

use crate::error::PoolError;
use crate::format::block::{Block, identify};
use crate::format::damage::Damage;
use crate::format::page::label;
use crate::format::superblock::{Superblock, choose};
use crate::format::{BLOCK, BLOCK_BYTES, HEADER, LabelBody, SUPERBLOCKS, kind};

/// Bytes at the beginning of a file or device that [`MemberTag::read`] needs.
pub const TAG_BYTES: usize = 2 * BLOCK;

/// Pool that a file or device belongs to, and its number in the pool.
#[derive(Clone, Debug)]
pub struct MemberTag {
    pool: [u8; 16],
    part: Part,
}

#[derive(Clone, Debug)]
enum Part {
    /// The first member, with its newer superblock.
    First(Box<Superblock>),
    /// Another member, with its number and label.
    Further(u64, Box<Block>),
    /// The first member, with superblocks that this program cannot use.
    Refused(Damage),
}

impl MemberTag {
    /// Recognises a member by its first bytes. Returns `None` for a file or device that is no member of any pool, or
    /// too damaged to be recognised.
    pub fn read(bytes: &[u8; TAG_BYTES]) -> Option<MemberTag> {
        let blocks: [Block; 2] = [0, 1].map(|at| {
            let mut block = [0; BLOCK];
            block.copy_from_slice(&bytes[at * BLOCK..(at + 1) * BLOCK]);
            block
        });
        // Labels first: decoding a label as a superblock would only give damage.
        if let Ok((head, _)) = identify(&blocks[0])
            && head.kind == kind::LABEL
        {
            return Some(MemberTag { pool: head.pool, part: Part::Further(head.index, Box::new(blocks[0])) });
        }
        let decoded = [0, 1].map(|slot| Superblock::decode(&blocks[slot], SUPERBLOCKS[slot], u64::MAX));
        match choose(decoded) {
            Ok((sb, _)) => Some(MemberTag { pool: sb.pool, part: Part::First(Box::new(sb)) }),
            Err(damages) => {
                let whole = blocks.iter().zip(damages).find_map(|(block, damage)| {
                    let (head, _) = identify(block).ok()?;
                    (head.kind == kind::SUPERBLOCK).then_some((head.pool, damage))
                });
                whole.map(|(pool, damage)| MemberTag { pool, part: Part::Refused(damage) })
            }
        }
    }

    /// Returns the identity of the pool.
    pub fn pool(&self) -> [u8; 16] {
        self.pool
    }

    /// Returns the number of the member; 0 is the first.
    pub fn number(&self) -> u64 {
        match &self.part {
            Part::Further(number, _) => *number,
            Part::First(_) | Part::Refused(_) => 0,
        }
    }

    /// Returns the newest checkpoint that the first blocks of the member name; 0 if its label names none, as in pools
    /// of older programs, or if this program cannot use its superblocks.
    pub fn checkpoint(&self) -> u64 {
        match &self.part {
            Part::First(sb) => sb.generation,
            Part::Further(_, block) => {
                LabelBody::ref_from_prefix(&block[HEADER..]).map_or(0, |(body, _)| body.checkpoint.get())
            }
            Part::Refused(_) => 0,
        }
    }

    /// Returns start and length of all members, in order, from the first member's superblock. Empty for other members.
    pub fn members(&self) -> &[(u64, u64)] {
        match &self.part {
            Part::First(sb) => &sb.members,
            Part::Further(..) | Part::Refused(_) => &[],
        }
    }

    /// Returns true if the pool was closed when the superblock was written; `None` for members without a superblock.
    pub fn is_clean(&self) -> Option<bool> {
        self.superblock().map(|sb| sb.clean)
    }

    /// Returns the damage of the superblocks if this program cannot use them.
    pub fn refused(&self) -> Option<&Damage> {
        match &self.part {
            Part::Refused(damage) => Some(damage),
            Part::First(_) | Part::Further(..) => None,
        }
    }

    /// Verifies that this is a member of the pool whose first member is `first`, and that neither of the two is an
    /// older copy.
    ///
    /// # Errors
    ///
    /// The damage of the label. [`Damage::is_old_member`] is true for it if one of the two members is an older copy.
    pub fn belongs_to(&self, first: &MemberTag) -> Result<(), Damage> {
        let (Some(sb), Part::Further(number, block)) = (first.superblock(), &self.part) else {
            return Err(Damage::Kind { found: kind::SUPERBLOCK, wanted: kind::LABEL });
        };
        verify(sb, *number, block)
    }

    fn superblock(&self) -> Option<&Superblock> {
        match &self.part {
            Part::First(sb) => Some(sb),
            Part::Further(..) | Part::Refused(_) => None,
        }
    }
}

/// Verifies the label of member `number`. The number comes from the device and may be invalid.
fn verify(sb: &Superblock, number: u64, block: &Block) -> Result<(), Damage> {
    match usize::try_from(number).ok().filter(|number| (1..sb.members.len()).contains(number)) {
        Some(number) => label::verify(block, sb, number),
        None => Err(Damage::field("index", number, "is the number of no member of this pool")),
    }
}

/// Returns an identity as hexadecimal text.
pub fn uuid_text(pool: &[u8; 16]) -> String {
    pool.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Chooses the members of a pool, in order, out of `named` and `found` candidates. Each candidate is the caller's name
/// for it and its tag. Candidates of other pools are ignored. A file or device must not occur twice in the same list:
/// it would count as two candidates.
///
/// # Errors
///
/// [`PoolError::Members`] if members are missing, are older copies, or have several candidates.
pub fn gather<T: Clone + Display>(
    pool: &[u8; 16],
    named: &[(T, MemberTag)],
    found: &[(T, MemberTag)],
) -> Result<Vec<T>, PoolError> {
    let of_pool = |(_, tag): &&(T, MemberTag)| tag.pool == *pool;
    let named: Vec<_> = named.iter().filter(of_pool).collect();
    let found: Vec<_> = found.iter().filter(of_pool).collect();
    let (first, sb) = first_member(pool, &named, &found)?;
    let beyond = named.iter().find(|(_, tag)| tag.number() >= sb.members.len() as u64);
    if let Some((at, tag)) = beyond {
        return Err(PoolError::Members {
            what: format!(
                "{at} says that it is member {}, and the pool has {} (from 0 on)",
                tag.number(),
                sb.members.len()
            ),
            fix: "Leave it out: its addition was cut off, or the first member is an older copy".into(),
        });
    }
    let mut all = vec![first];
    let mut missing = Vec::new();
    let mut older = Vec::new();
    for number in 1..sb.members.len() {
        let is_it = |(_, tag): &&&(T, MemberTag)| tag.number() == number as u64;
        match named.iter().filter(is_it).collect::<Vec<_>>().as_slice() {
            [] => {}
            [(at, tag)] => {
                named_fits(&sb, (at, tag), found.iter().filter(is_it).copied())?;
                all.push(at.clone());
                continue;
            }
            [(a, _), (b, _), ..] => return Err(twice(number, a, b, "Name one of them")),
        }
        let fits: Vec<_> = found.iter().filter(is_it).filter(|(_, tag)| fits(&sb, tag).is_ok()).collect();
        match fits.as_slice() {
            // If the labels have no checkpoints, an older copy of the member would look like the member (A1).
            [(at, _)] if sb.labels_at > 0 => all.push(at.clone()),
            [] => {
                missing.push(number);
                let is_old = |tag: &MemberTag| fits_not(&sb, tag).is_some_and(|damage| damage.is_old_member());
                older.extend(found.iter().filter(is_it).filter(|(_, tag)| is_old(tag)).map(|(at, _)| at.to_string()));
            }
            [(at, _)] => return Err(ageless(number, at)),
            [(a, _), (b, _), ..] => {
                let fix = "Name the right one with the others, as in a.img+b.img, and take the copy out of the search";
                return Err(twice(number, a, b, fix));
            }
        }
    }
    if missing.is_empty() { Ok(all) } else { Err(missing_members(&sb, &missing, &older)) }
}

fn fits(sb: &Superblock, tag: &MemberTag) -> Result<(), Damage> {
    match &tag.part {
        Part::Further(number, block) => verify(sb, *number, block),
        Part::First(_) | Part::Refused(_) => Err(Damage::Kind { found: kind::SUPERBLOCK, wanted: kind::LABEL }),
    }
}

fn fits_not(sb: &Superblock, tag: &MemberTag) -> Option<Damage> {
    fits(sb, tag).err()
}

/// Chooses the first member, whose superblock lists the others: the named candidate, or else the newest found one.
fn first_member<T: Clone + Display>(
    pool: &[u8; 16],
    named: &[&(T, MemberTag)],
    found: &[&(T, MemberTag)],
) -> Result<(T, Superblock), PoolError> {
    let mut candidates: Vec<_> = named.iter().filter(|(_, tag)| tag.number() == 0).collect();
    match candidates.as_slice() {
        [] => candidates = found.iter().filter(|(_, tag)| tag.number() == 0).collect(),
        [_] => {}
        [(a, _), (b, _), ..] => return Err(twice(0, a, b, "Name one of them")),
    }
    let mut usable: Vec<(&T, &Superblock)> =
        candidates.iter().filter_map(|(at, tag)| Some((at, tag.superblock()?))).collect();
    if usable.is_empty() {
        let refused = candidates.iter().find_map(|(at, tag)| Some((at, tag.refused()?)));
        return Err(match refused {
            Some((at, damage)) if damage.is_too_new() => {
                PoolError::Format { what: format!("{at}: {damage}"), fix: String::new() }
            }
            Some((at, damage)) => {
                PoolError::Damaged { what: format!("the superblock of {at}"), at: 0, why: damage.to_string() }
            }
            None => PoolError::Members {
                what: format!(
                    "the first member of the pool {}, which knows all others, was not found",
                    uuid_text(pool)
                ),
                fix: "Name it too, as in a.img+b.img, or the directory that it is in".into(),
            },
        });
    }
    usable.sort_by_key(|(_, sb)| sb.generation);
    // Of two equally new candidates one is a copy, and nothing shows which one (A2).
    if let [.., (a, older), (b, newest)] = usable.as_slice()
        && older.generation == newest.generation
    {
        return Err(twice(0, a, b, "Name the right one, and take the copy out of the search"));
    }
    let (at, sb) = usable.pop().expect("one is left: an empty list was an error above");
    Ok((at.clone(), sb.clone()))
}

/// Verifies a named candidate. If it does not fit, the error names a found candidate that does.
fn named_fits<'a, T: Display + 'a>(
    sb: &Superblock,
    (at, tag): (&T, &MemberTag),
    mut others: impl Iterator<Item = &'a (T, MemberTag)>,
) -> Result<(), PoolError> {
    let Err(damage) = fits(sb, tag) else { return Ok(()) };
    let better = others.find(|(_, other)| fits(sb, other).is_ok());
    let fix = match better {
        Some((better, _)) => format!("{better} is the one that the pool used last: name that"),
        None => "Name the device that the pool used last, not a copy that was made of it before".into(),
    };
    Err(PoolError::Members {
        what: format!("{at}, which is given as member {}, is of another time: {damage}", tag.number()),
        fix,
    })
}

fn twice<T: Display>(number: usize, a: &T, b: &T, fix: &str) -> PoolError {
    PoolError::Members {
        what: format!("{a} and {b} are both member {number} of the pool, and equally new: one is a copy of the other"),
        fix: fix.into(),
    }
}

fn ageless<T: Display>(number: usize, at: &T) -> PoolError {
    PoolError::Members {
        what: format!(
            "{at} is member {number} of the pool, or an older copy of it: the pool is of an older sheave, and its \
             labels do not tell"
        ),
        fix:
            "If it is the one that the pool used last, name it with the others, as in a.img+b.img; sheave pool upgrade \
              makes labels tell"
                .into(),
    }
}

fn missing_members(sb: &Superblock, missing: &[usize], older: &[String]) -> PoolError {
    let numbers: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let sizes: Vec<String> = missing.iter().map(|at| format!("{} bytes", sb.members[*at].1)).collect();
    let (count, last) = (sb.members.len(), sb.members.len() - 1);
    let gone = match numbers.as_slice() {
        [one] => format!("member {one} is"),
        several => format!("members {} are", several.join(", ")),
    };
    let mut what = format!(
        "the pool {} has {count} members (0 to {last}), and {gone} missing: {}",
        uuid_text(&sb.pool),
        sizes.join(", ")
    );
    if !older.is_empty() {
        what += &format!("; of older copies, which are not taken, there is {}", older.join(", "));
    }
    PoolError::Members { what, fix: "Name all members, as in a.img+b.img, or the directory that they are in".into() }
}

/// Smallest file or device that can be a member: two blocks, and one block of data.
pub const LEAST_MEMBER_BYTES: u64 = TAG_BYTES as u64 + BLOCK_BYTES;

#[cfg(all(test, not(shuttle)))]
mod tests {
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
    fn a_found_member_without_a_checkpoint_is_refused() {
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
    fn a_cut_off_addition_is_no_member() {
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
}
