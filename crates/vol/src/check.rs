//! `check`: verifies a pool offline, and repairs it.
//!
//! | module | holds |
//! |---|---|
//! | [`report`] | options, progress and result of a check |
//! | [`model`] | the pool in memory: maps, and the effect of a journal record on them |
//! | `kept` | records that are kept beside damaged maps |
//! | `ahead` | reads every page, many at once |
//! | `walk` | decodes everything the superblock reaches |
//! | `replay` | the journal |
//! | `sums` | pages of data checksums: which of them are kept |
//! | `double` | gives a pool with one copy of its metadata a second one |
//! | `volumes`, `owners` | volumes against each other and their maps; owners of units |
//! | `repair` | writes the mended model to the pool |
//!
//! Owns the order: superblocks, labels, table and maps, journal, volumes, units. Reads the device through the codecs
//! alone and shares nothing with an open pool, so that an error in the pool's own code cannot hide itself.
//!
//! Invariants:
//! - C1: without `repair` nothing is written. With it, every finding is known before the first write, and nothing is
//!   written unless all of them can be repaired.
//! - C2: each finding changes the model as its `repair` says; a repair writes the model, and nothing else.
//! - C3: a repair that is interrupted at any point leaves the pool as it was, or repaired.

mod ahead;
mod double;
mod kept;
pub(crate) mod model;
mod owners;
mod repair;
mod replay;
pub mod report;
mod sums;
mod volumes;
mod walk;

use std::collections::{HashMap, HashSet};

pub use double::{double_metadata, double_metadata_of};
pub use report::{CheckOptions, CheckProgress, CheckReport, Totals};

pub use crate::finding::{Finding, FindingKind, Place};

use crate::device::block_io::{BlockIo, DeviceIo};
use crate::device::copies::{self, Copied};
use crate::device::loose;
use crate::error::PoolError;
use crate::format::block::Block;
use crate::format::damage::Damage;
use crate::format::page::label;
use crate::format::superblock::{Geometry, Superblock, choose};
use crate::format::{BLOCK, BLOCK_BYTES, SUPERBLOCKS};
use crate::info::MemberInfo;
use model::Model;
use repair::Repair;
use report::Progress;
use walk::Walk;

/// Checks the pool that lies on these bytes. Nobody else may write to the bytes during the check. The report contains
/// the defects of the pool; an error means that the check itself failed.
pub fn check(io: &dyn BlockIo, options: &CheckOptions) -> Result<CheckReport, PoolError> {
    check_with(io, options, &mut |_| ())
}

/// Checks the pool that lies on these bytes, like [`check`](fn@check), and calls `tell` with the progress.
pub fn check_with(
    io: &dyn BlockIo,
    options: &CheckOptions,
    tell: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport, PoolError> {
    let mut progress = Progress { at: CheckProgress::default(), tell };
    let mut look = look(io, &mut progress)?;
    let wanted = options.repair && !look.report.is_clean() && look.report.is_repairable();
    if let Some(found) = look.found.as_ref().filter(|_| wanted) {
        let used = |unit: u64| found.in_use.contains(&unit);
        let repair = Repair {
            io,
            sb: &found.sb,
            alone: found.alone,
            next_seq: found.next_seq,
            copies: &found.copies,
            labels: &found.labels,
            used: &used,
            doubles: false,
        };
        repair.write_copies()?;
        if look.report.findings.iter().any(|finding| finding.kind != FindingKind::PageCopy) {
            repair.write(&found.model)?;
        }
        verify(io, &mut progress)?;
        look.report.repaired = true;
    }
    Ok(look.report)
}

/// Checks the pool on a device.
pub fn check_device(device: &sheave_blk::Device, options: &CheckOptions) -> Result<CheckReport, PoolError> {
    check(&DeviceIo::new(device)?, options)
}

/// Checks the pool on a device, and calls `tell` with the progress.
pub fn check_device_with(
    device: &sheave_blk::Device,
    options: &CheckOptions,
    tell: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport, PoolError> {
    check_with(&DeviceIo::new(device)?, options, tell)
}

/// Checks the pool after a repair. Fails, with the first finding, unless it is clean.
fn verify(io: &dyn BlockIo, progress: &mut Progress<'_>) -> Result<(), PoolError> {
    let after = look(io, progress)?.report;
    let Some(first) = after.findings.first() else { return Ok(()) };
    Err(PoolError::Damaged {
        what: "the pool, after the repair,".into(),
        at: first.place.address.unwrap_or(0),
        why: format!("{first} (and {} more)", after.findings.len() - 1),
    })
}

/// Result of reading a pool: the report, and what a repair needs.
struct Look {
    report: CheckReport,
    found: Option<Found>,
}

struct Found {
    sb: Superblock,
    /// True if the superblock that is not in use is damaged, or cannot be read.
    alone: bool,
    model: Model,
    next_seq: u64,
    labels: Vec<usize>,
    /// Bad copies of pages: the address of each, and the content of its good copy.
    copies: Vec<(u64, Box<Block>)>,
    /// Units that a repair must not write to.
    in_use: HashSet<u64>,
}

fn look(io: &dyn BlockIo, progress: &mut Progress<'_>) -> Result<Look, PoolError> {
    let mut report = CheckReport::default();
    let Some(Chosen { sb, alone, is_loose }) = superblocks(io, &mut report, progress) else {
        return Ok(Look { report, found: None });
    };
    let journal_bytes = u64::from(sb.journal_blocks) * BLOCK_BYTES;
    progress.more(journal_bytes);
    report.uuid = Some(sb.pool.iter().map(|byte| format!("{byte:02x}")).collect());
    report.members =
        sb.members.iter().map(|&(start_bytes, size_bytes)| MemberInfo { start_bytes, size_bytes }).collect();
    let geometry = sb.geometry();
    let labels = member_labels(io, &sb, &mut report);
    let mut walk = Walk::new(io, &sb);
    let mut model = walk.read(progress)?;
    // Kept records come before the journal, because the journal's records are newer.
    walk.kept(&mut model);
    if let Some(first) = walk.findings.first().filter(|_| is_loose) {
        let means = format!("{first}. {NOT_WHOLE}");
        report.findings = vec![of_slot(0, FindingKind::NoPool, means, None)];
        return Ok(Look { report, found: None });
    }
    let volumes_read = model.volumes.len();
    let replayed = replay::replay(io, &sb, &mut model)?;
    if alone && !sb.stands_for_both() {
        // The lost superblock may have opened regions. Neither this superblock nor its journal has a record of them.
        model.sums.open_all();
    }
    progress.done(journal_bytes);
    report.notes.append(&mut walk.notes);
    report.notes.extend(replayed.notes);
    if replayed.superblock_lost {
        // If this superblock is not the newest, later checkpoints have overwritten some of its pages. Damage of those
        // pages would prove nothing.
        report.findings.extend(replayed.findings);
        return Ok(Look { report, found: None });
    }
    report.findings.extend(walk.bad_copies.iter().map(walk::BadCopy::finding));
    report.findings.extend(volumes::name_anew(walk.findings, &model));
    report.findings.extend(replayed.findings);
    let unit_bytes = u64::from(geometry.unit_bytes);
    let partners = walk.partners.values().map(|unit| u64::from(*unit));
    let metadata: HashSet<u64> =
        walk.pages.keys().map(|address| address / unit_bytes).chain(partners.clone()).collect();
    both_first_and_second(&walk.pages, &walk.partners, unit_bytes, &mut report);
    let copies = walk.bad_copies.into_iter().map(|copy| (copy.at, copy.block)).collect();
    // Units whose first block alone is ever used.
    let label_units: HashSet<u64> =
        sb.members[1..].iter().map(|(start, _)| start / unit_bytes).chain(sb.copy_units()).collect();
    copies_of(io, &sb, &mut report);
    page_units(&sb, &metadata, &label_units, &mut report);
    report.findings.extend(volumes::settle(&mut model));
    // Computed before entries are taken out of the maps: until the repair is durable, it must not write to any unit
    // that a map claims.
    let claimed = claimed_units(&model);
    let mut totals =
        Totals { size_bytes: geometry.bytes(), unit_bytes, units: geometry.total_units, ..Totals::default() };
    let occupied = |unit: u64| metadata.contains(&unit) || label_units.contains(&unit);
    report.findings.extend(owners::settle(&mut model, &occupied, &mut totals));
    totals.reserved_units = geometry.first_unit + label_units.len() as u64;
    totals.metadata_units = metadata.len() as u64;
    totals.pages = walk.pages.len() as u64;
    totals.volumes = model.volumes.len() as u64;
    totals.records = model.records;
    totals.generation = sb.generation;
    let taken = totals.reserved_units + totals.metadata_units + totals.data_units;
    totals.free_units = totals.units.saturating_sub(taken);
    report.totals = totals;
    add_up(&sb, &totals, taken, volumes_read, &mut report);
    let in_use = metadata.into_iter().chain(label_units).chain(claimed).collect();
    Ok(Look { report, found: Some(Found { sb, alone, model, next_seq: replayed.next_seq, labels, copies, in_use }) })
}

/// Reports units that have the second copies of two units of pages, or second copies and other pages.
fn both_first_and_second(
    pages: &HashMap<u64, (u32, u16, u64)>,
    partners: &HashMap<u64, u32>,
    unit_bytes: u64,
    report: &mut CheckReport,
) {
    let mut seen: HashSet<u64> = pages.keys().map(|address| address / unit_bytes).collect();
    for unit in partners.values().map(|unit| u64::from(*unit)) {
        if !seen.insert(unit) {
            report.findings.push(Finding {
                kind: FindingKind::SharedWrongly,
                place: Place { what: "allocation unit".into(), address: Some(unit * unit_bytes), ..Place::default() },
                means: "it is said to have second copies of the pages of one unit, and other pages besides".into(),
                repair: Some("Write all pages and their copies to new places".into()),
            });
        }
    }
}

/// Reports a pool with fewer units than are in use, and stores the pool's counts in the report.
fn add_up(sb: &Superblock, totals: &Totals, taken: u64, volumes_read: usize, report: &mut CheckReport) {
    if taken > totals.units {
        report.findings.push(Finding {
            kind: FindingKind::Totals,
            place: Place { what: "pool".into(), ..Place::default() },
            means: format!("{taken} units are in use, and it has {}", totals.units),
            repair: None,
        });
    }
    report.notes.push(format!(
        "{volumes_read} volumes at checkpoint {} (opening {}), {} now; {} of {} units in use",
        sb.generation, sb.incarnation, totals.volumes, taken, totals.units
    ));
}

/// Returns the units with data of any volume.
fn claimed_units(model: &Model) -> Vec<u64> {
    let mut seen = HashSet::new();
    let mut units = Vec::new();
    for node in model.volumes.values().flat_map(|vol| vol.map.nodes.values()) {
        if seen.insert(std::rc::Rc::as_ptr(node)) {
            let leaves = node.leaves.iter().flatten();
            units.extend(leaves.flat_map(|leaf| leaf.entries.iter().copied().filter(|&phys| phys != 0)));
        }
    }
    units
}

/// The superblock that a check starts from.
struct Chosen {
    sb: Superblock,
    /// True if the other superblock is bad, or if this one was read from a copy.
    alone: bool,
    /// True for a loose root: any damage in its trees makes it useless.
    is_loose: bool,
}

/// Verdict if a page below the newest loose root is bad.
const NOT_WHOLE: &str = "Both superblocks and their copies are lost, and of the newest checkpoint that has a root not \
                         all pages are there: it was cut off, or pages are damaged. Which state of the pool was the \
                         last cannot be told, so nothing is repaired; --rescue shows what can be taken out";

/// Reads both slots. Returns the newest superblock, else a copy, else a loose root. Adds findings about bad slots.
fn superblocks(io: &dyn BlockIo, report: &mut CheckReport, progress: &mut Progress<'_>) -> Option<Chosen> {
    let slots = SUPERBLOCKS.map(|address| {
        let mut block: Block = [0; BLOCK];
        // Read twice: a read error may pass, and a repair relies on what is read here.
        match io.read(address, &mut block).or_else(|_| io.read(address, &mut block)) {
            Ok(()) => (Superblock::decode(&block, address, u64::MAX), None),
            Err(status) => (Err(Damage::Blank), Some(status)),
        }
    });
    let errors = [slots[0].1, slots[1].1];
    let words = |slot: usize, damage: &Damage| match errors[slot] {
        Some(status) => format!("it cannot be read: {status}"),
        None => damage.to_string(),
    };
    let slots = slots.map(|(slot, _)| slot);
    let too_new = slots.iter().position(|slot| slot.as_ref().is_err_and(Damage::is_too_new));
    if let (Some(slot), [a, b]) = (too_new, &slots) {
        let damage = [a, b][slot].as_ref().expect_err("it is too new");
        report.findings.push(of_slot(slot, FindingKind::NoPool, damage.to_string(), None));
        return None;
    }
    let kept = slots.clone();
    match choose(slots) {
        Ok((sb, bad)) => {
            let alone = bad.is_some();
            if let Some((address, damage)) = bad {
                let slot = usize::from(address == SUPERBLOCKS[1]);
                let means = format!("{}. {}", words(slot, &damage), the_other(&sb, errors[slot].is_some()));
                let repair = Some("Write it anew, after the other".to_owned());
                report.findings.push(of_slot(slot, FindingKind::Superblock, means, repair));
            } else if let [Ok(a), Ok(b)] = kept {
                let (old, slot) = if a.generation < b.generation { (&a, 0) } else { (&b, 1) };
                if let Some(means) = differ(old, &sb) {
                    let repair = Some("Write it anew, after the newer".to_owned());
                    report.findings.push(of_slot(slot, FindingKind::SuperblocksDiffer, means, repair));
                }
            }
            if let Some((what, fix)) = sb.missing_from(io.size_bytes()) {
                report.findings.clear();
                let slot = usize::from(sb.slot() != 0);
                report.findings.push(of_slot(slot, FindingKind::NoPool, format!("{what}. {fix}"), None));
                return None;
            }
            Some(Chosen { sb, alone, is_loose: false })
        }
        Err(damages) => {
            let fits = |found: &Copied| found.sb.missing_from(io.size_bytes()).is_none();
            let copy = copies::find(io).filter(fits).map_or_else(|| loose_root(io, progress), |found| Ok(Some(found)));
            if let Some(found) = copy.as_ref().ok().and_then(Option::as_ref).filter(|found| fits(found)) {
                for (slot, damage) in damages.iter().enumerate() {
                    let means = format!("{}. {}", words(slot, damage), the_copy(found));
                    let repair = Some(format!("Write it anew from the copy at byte {}", found.at));
                    report.findings.push(of_slot(slot, FindingKind::Superblock, means, repair));
                }
                return Some(Chosen { sb: found.sb.clone(), alone: true, is_loose: found.is_loose });
            }
            let why = copy.err().map_or_else(String::new, |why| format!(". Its pages were looked through: {why}"));
            for (slot, damage) in damages.iter().enumerate() {
                let means = format!(
                    "{}{why}. Without a superblock there is no pool; restore it from a backup",
                    words(slot, damage)
                );
                report.findings.push(of_slot(slot, FindingKind::NoPool, means, None));
            }
            None
        }
    }
}

/// Searches all pages for a root.
fn loose_root(io: &dyn BlockIo, progress: &mut Progress<'_>) -> Result<Option<Copied>, String> {
    progress.more(io.size_bytes());
    loose::find(io, &mut |bytes| progress.done(bytes))
}

/// Returns a finding about one of the two superblocks.
fn of_slot(slot: usize, kind: FindingKind, means: String, repair: Option<String>) -> Finding {
    let what = format!("superblock {}", ["A", "B"][slot]);
    Finding { kind, place: Place { what, address: Some(SUPERBLOCKS[slot]), ..Place::default() }, means, repair }
}

/// Describes which data a copy of the superblock restores if both superblocks are lost.
fn the_copy(found: &Copied) -> String {
    let what = if found.is_loose { "All copies are lost too, but the root" } else { "A copy of the superblock" };
    let mut words = format!(
        "{what} at byte {} is intact, of checkpoint {}, and with the journal it has all that was \
         flushed. A repair writes to the beginning of the device: not if that belongs to something else by now",
        found.at, found.sb.generation
    );
    if !found.sb.clean {
        words += ". The pool was not closed: if the journal, from byte 8192 on, was hit too, what was flushed \
                  last may be missing";
    }
    if found.others {
        words += ". There are copies of other pools too, which were made earlier";
    }
    words
}

/// Adds findings about the copies of the superblock. If the pool was not closed, or its close was interrupted, they are
/// only notes, because the next opening rewrites the copies.
fn copies_of(io: &dyn BlockIo, sb: &Superblock, report: &mut CheckReport) {
    let must_be_newest = copies::must_be_newest(io, sb);
    for at in sb.copies.into_iter().filter(|at| *at != 0) {
        let mut block: Block = [0; BLOCK];
        let words = match io.read(at, &mut block).map(|()| Superblock::decode_copy(&block, at, u64::MAX)) {
            Err(status) => format!("it cannot be read: {status}"),
            Ok(Err(damage)) => damage.to_string(),
            Ok(Ok(copy)) if copy.pool != sb.pool => Damage::Foreign.to_string(),
            Ok(Ok(copy)) if copy.generation < sb.generation.saturating_sub(u64::from(!must_be_newest)) => {
                format!("it is of checkpoint {} and the superblock of {}", copy.generation, sb.generation)
            }
            Ok(Ok(_)) => continue,
        };
        if !must_be_newest {
            report
                .notes
                .push(format!("the copy of the superblock at byte {at}: {words}. The next opening writes it anew"));
            continue;
        }
        report.findings.push(Finding {
            kind: FindingKind::Superblock,
            place: Place { what: "copy of the superblock".into(), address: Some(at), ..Place::default() },
            means: format!("{words}. {}", copies::USE),
            repair: Some("Write it anew".into()),
        });
    }
}

/// Describes whether the intact superblock can stand in for the other one, which is damaged or cannot be read.
fn the_other(sb: &Superblock, unreadable: bool) -> &'static str {
    if unreadable && !sb.stands_for_both() {
        return "The other superblock is intact, but an older program wrote it: if the unreadable one was newer, what \
                changed since is lost";
    }
    "The other superblock is intact and stands for it"
}

/// Describes the contradiction between the older superblock and the newer one, if there is one.
fn differ(old: &Superblock, new: &Superblock) -> Option<String> {
    if old.generation + 1 != new.generation {
        return Some(format!(
            "it has generation {} and the other {}: they must follow each other, so a write was lost",
            old.generation, new.generation
        ));
    }
    let fixed = |sb: &Superblock| (sb.unit_bytes, sb.journal_blocks, sb.created, sb.checksum);
    if fixed(old) != fixed(new) {
        return Some("its allocation unit, journal or checksums are not those of the other: these never change".into());
    }
    let back = old.incarnation > new.incarnation
        || old.replay_seq > new.replay_seq
        || old.next_volume > new.next_volume
        || old.total_units > new.total_units;
    back.then(|| "it is older and yet has higher numbers than the other: these only rise".to_owned())
}

/// Verifies the labels of all members but the first. Returns the numbers of the members whose labels a repair writes.
fn member_labels(io: &dyn BlockIo, sb: &Superblock, report: &mut CheckReport) -> Vec<usize> {
    let mut rewrite = Vec::new();
    for (number, &(start, len)) in sb.members.iter().enumerate().skip(1) {
        let mut block: Block = [0; BLOCK];
        let mut old = false;
        let (words, swapped) = match io.read(start, &mut block) {
            Err(status) => (format!("it cannot be read: {status}"), false),
            Ok(()) => match label::verify(&block, sb, number) {
                Ok(()) => continue,
                Err(damage) => {
                    old = damage.is_old_member();
                    let swapped = !matches!(damage, Damage::Checksum { .. } | Damage::Blank | Damage::Alien);
                    (damage.to_string(), swapped)
                }
            },
        };
        let means = if old {
            format!(
                "{words}. Data and metadata on it may be what they were then, and nothing else may tell: give the \
                 device that the pool used last"
            )
        } else if swapped {
            format!("{words}. This is not the member of {len} bytes that belongs here: give the members in their order")
        } else {
            format!("{words}. The label only tells which member this is; no data is concerned")
        };
        if !swapped {
            rewrite.push(number);
        }
        report.findings.push(Finding {
            kind: FindingKind::Label,
            place: Place { what: format!("label of member {number}"), address: Some(start), ..Place::default() },
            means,
            repair: (!swapped).then(|| "Write the label anew, if the members are the right ones".into()),
        });
    }
    rewrite
}

/// Reports pages that lie in the unit of a label or of a copy of the superblock.
fn page_units(sb: &Superblock, metadata: &HashSet<u64>, labels: &HashSet<u64>, report: &mut CheckReport) {
    let unit_bytes = u64::from(sb.unit_bytes);
    for unit in metadata.intersection(labels) {
        report.findings.push(Finding {
            kind: FindingKind::InMetadata,
            place: Place {
                what: "unit of a label or a copy".into(),
                address: Some(unit * unit_bytes),
                ..Place::default()
            },
            means: "a page of metadata lies in the unit of a member's label, or of a copy of the superblock".into(),
            repair: Some("Write the page elsewhere".into()),
        });
    }
}

/// Returns about how many bytes of memory a check of a pool of this geometry takes if all of the pool is mapped.
pub fn memory_bytes(geometry: &Geometry) -> u64 {
    let leaves = geometry.total_units.div_ceil(geometry.leaf_entries as u64);
    leaves * 4096 + geometry.total_units * 8
}

#[cfg(all(test, not(shuttle)))]
mod tests;
