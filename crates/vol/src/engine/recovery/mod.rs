//! Recovery: reads a pool's state from its device.
//!
//! Owns the order of opening: superblock, volume table, maps, journal, owners of units. Recovery writes nothing. An
//! opening for writing then mends the superblocks, and writes a checkpoint of a new incarnation before anything else.
//!
//! - R1: a page counts only if its parent's checksum matches it, and no page is in two places.
//! - R2: owners and free space are derived from the maps after the replay, so no space can leak.
//! - R3: damage is reported with its place, and a read never returns other data in its stead.
//!
//! Called by [`Pool::open`](crate::Pool::open).

mod kept;
mod loader;
mod lost;
mod sums;
mod unsure;
mod window;

use std::ops::ControlFlow;

use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::Ordering;

use crate::device::block_io::BlockIo;
use crate::device::copies::{self, Copied};
use crate::device::loose;
use crate::device::reader::read_again;
use crate::device::recent::Kept;
use crate::error::PoolError;
use crate::format::block::identify;
use crate::format::damage::Damage;
use crate::format::journal::{self, Bounds, Scan, Stop};
use crate::format::page::{free, label};
use crate::format::record::Record;
use crate::format::superblock::{Superblock, choose};
use crate::format::{BLOCK, JOURNAL_START, SUPERBLOCKS, kind};
use crate::options::OpenOptions;
use crate::state::State;
use crate::state::extent_map::replayed::ASKED;
use crate::state::extent_map::tree::Tree;
use crate::state::extent_map::{Entry, ExtentMap};
use lost::LostVolumes;
use unsure::Unsure;
use window::Window;

/// A pool as it is on its device. `replayed` is true if the journal held records.
pub(crate) struct Recovered {
    pub(crate) state: State,
    pub(crate) replayed: bool,
    /// Highest number that a block of a torn commit may have.
    pub(crate) highest_seq: u64,
    /// True if only the superblock in use is good: the other one must be rewritten before any other write
    /// ([`mend_superblock`]).
    pub(crate) alone: bool,
    /// The file of recent changes, or the reason why there is none.
    pub(crate) kept: Result<Kept, String>,
    /// Messages about the damage that a rescue passed over.
    pub(crate) unsure: Vec<String>,
}

/// Reads the state of a pool. A rescue passes over damage that leaves the maps whole, because its pool is never written
/// to.
///
/// Changes that the last opening had acknowledged and not made durable follow the journal, if `kept` has them.
pub(crate) fn recover(
    io: &dyn BlockIo,
    options: &OpenOptions,
    kept: impl FnOnce([u8; 16]) -> Result<Kept, String>,
) -> Result<Recovered, PoolError> {
    let mut unsure = Unsure::new(options.rescue);
    let (sb, alone) = read_superblock(io, &mut unsure)?;
    check_members(io, &sb, &mut unsure)?;
    // The superblock as read: `free_for_certain` compares the list of free units with it.
    let checkpoint = sb.clone();
    let mut state = State::new(sb);
    state.tree.counts_later = true;
    state.set_reserve();
    let mut lost = loader::load(io, &mut state, options.rescue)?;
    // Repeated after the load, because the reserve depends on the number of volumes.
    state.set_reserve();
    sums::load(io, &mut state, &mut unsure)?;
    kept::load(io, &mut state, &mut unsure)?;
    let scan = replay(io, &mut state, &mut unsure, &mut lost)?;
    let kept = kept(state.sb.pool);
    let recent = match &kept {
        Ok(kept) => replay_recent(kept, &mut state, scan.next_seq, &mut lost)?,
        Err(_) => 0,
    };
    state.settle_kept();
    unsure.add(lost.words(state.sb.volumes));
    let replayed = scan.next_seq > state.sb.replay_seq || recent > 0;
    (state.next_seq, state.durable_seq) = (scan.next_seq, scan.next_seq);
    count_owners(&mut state).map_err(|error| match &kept {
        Ok(kept) if recent > 0 => PoolError::Recent { path: kept.path(), why: error.to_string() },
        _ => error,
    })?;
    let read_only = options.read_only || options.rescue;
    if !read_only {
        let sure = if state.table.first_damaged().is_some() { free_for_certain(io, &checkpoint) } else { Vec::new() };
        state.begin_quarantine(&sure);
    }
    sums::compute(io, &mut state, read_only)?;
    Ok(Recovered { state, replayed, highest_seq: scan.highest_seq, alone, kept, unsure: unsure.into_words() })
}

/// Returns the runs of units that the list of free units in the checkpoint of `sb` proves to be free, or no runs if
/// there is no list. The journal may have allocated some of these units since; its replay then takes them.
fn free_for_certain(io: &dyn BlockIo, sb: &Superblock) -> free::Runs {
    let mut block = [0; BLOCK];
    let mut list = |at: u64| {
        read_again(io, at, &mut block).ok()?;
        free::decode(&block, at, sb).ok()
    };
    free::places(sb).into_iter().flatten().find_map(&mut list).unwrap_or_default()
}

fn io_error(what: String) -> impl FnOnce(Status) -> PoolError {
    move |status| PoolError::Io { what, status, fix: "Check the device and its cables, and try again".into() }
}

/// Returns the superblock in use, and true if the other one is damaged or cannot be read. Checks that the device has
/// all the space that the superblock names.
fn read_superblock(io: &dyn BlockIo, unsure: &mut Unsure) -> Result<(Superblock, bool), PoolError> {
    let (sb, alone) = match newest_superblock(io) {
        Err(error @ (PoolError::Format { .. } | PoolError::Damaged { .. } | PoolError::Io { .. })) => {
            if is_too_new(&error) {
                return Err(error);
            }
            let Some(found) = copies::find(io).or_else(|| loose_root(io, unsure)) else { return Err(error) };
            (from_copy(found, error, unsure)?, true)
        }
        found => found?,
    };
    match sb.missing_from(io.size_bytes()) {
        None => Ok((sb, alone)),
        Some((what, fix)) => Err(PoolError::Members { what, fix }),
    }
}

/// Returns the newest loose root. Called only in a rescue, because the search reads the whole device.
fn loose_root(io: &dyn BlockIo, unsure: &mut Unsure) -> Option<Copied> {
    let found = unsure.is_rescue().then(|| loose::find(io, &mut |_| ()))?;
    found.map_err(|why| unsure.add(vec![why])).ok().flatten()
}

/// Returns true if a newer program wrote the superblocks. They are not damaged in that case.
fn is_too_new(error: &PoolError) -> bool {
    matches!(error, PoolError::Format { fix, .. } if fix.is_empty())
}

/// In a rescue, returns the copy `found` in place of both superblocks. Otherwise returns an error that names the copy.
fn from_copy(found: Copied, error: PoolError, unsure: &mut Unsure) -> Result<Superblock, PoolError> {
    let uuid: String = found.sb.pool.iter().map(|byte| format!("{byte:02x}")).collect();
    let (at, generation) = (found.at, found.sb.generation);
    if !unsure.is_rescue() {
        return Err(PoolError::Format {
            what: format!(
                "both superblocks are lost ({error}), but byte {at} has a copy, of checkpoint {generation} of the \
                 pool {uuid}"
            ),
            fix: "If nothing that is needed was written to the device since, 'sheave pool check --repair' writes them \
                  anew from the copy; 'sheave volume list POOL --rescue' shows what can be taken out without writing"
                .into(),
        });
    }
    unsure.add(vec![format!(
        "both superblocks are lost ({error}); the copy at byte {at}, of checkpoint {generation}, was taken for them, \
         and what was written over them may have hit the journal and data too"
    )]);
    Ok(found.sb)
}

/// Returns the superblock in use, and true if the other one is damaged or cannot be read. Members of the pool may be
/// missing. The older superblock never stands in for a newer one whose members are missing: later writes would be lost.
///
/// A superblock that cannot be read may be whole, and the newest. The other one stands in for it only if that one names
/// everything that was acknowledged ([`Superblock::stands_for_both`]).
pub(crate) fn newest_superblock(io: &dyn BlockIo) -> Result<(Superblock, bool), PoolError> {
    let mut bytes = [[0; BLOCK]; 2];
    let mut unreadable = None;
    let [a, b] = [0, 1].map(|slot| match read_again(io, SUPERBLOCKS[slot], &mut bytes[slot]) {
        Ok(()) => Superblock::decode(&bytes[slot], SUPERBLOCKS[slot], u64::MAX),
        Err(status) => {
            unreadable = Some((slot, status));
            Err(Damage::Blank)
        }
    });
    if let Ok((head, _)) = identify(&bytes[0])
        && head.kind == kind::LABEL
    {
        return Err(PoolError::Members {
            what: format!("what is named first is member {} of a pool", head.index),
            fix: "Name all members of the pool, as in a.img+b.img; sheave pool scan DIR lists them".into(),
        });
    }
    match choose([a, b]) {
        Ok((sb, None)) => Ok((sb, false)),
        Ok((sb, Some((at, damage)))) if damage.is_too_new() => Err(format_error(at, damage, Some(&sb))),
        Ok((sb, Some(_))) => match unreadable {
            Some((slot, status)) if !sb.stands_for_both() => Err(perhaps_newer(slot, status)),
            _ => Ok((sb, true)),
        },
        Err(_) if let Some((_, status)) = unreadable => Err(io_error("reading the superblocks".into())(status)),
        Err([a, b]) => Err(format_error(0, if matches!(a, Damage::Blank | Damage::Alien) { b } else { a }, None)),
    }
}

fn perhaps_newer(slot: usize, status: Status) -> PoolError {
    PoolError::Io {
        what: format!(
            "reading superblock {}, which may have changes that the other one has not, for an older program wrote it",
            ["A", "B"][slot]
        ),
        status,
        fix: "Try again. If it stays so, 'sheave pool check --repair' goes on with the other one; take a copy before"
            .into(),
    }
}

/// Rewrites the slot that is not in use. This must be the first write: at the next read the slot may turn out to be
/// intact, and newer, and would then need blocks that other writes had overwritten.
pub(crate) fn mend_superblock(io: &dyn BlockIo, sb: &mut Superblock) -> Result<(), PoolError> {
    let other = sb.stand_by();
    let mut block = [0; BLOCK];
    let at = other.encode(&mut block);
    let written = io.write(at, &block).and_then(|()| io.flush());
    written.map_err(|status| PoolError::Io {
        what: format!("writing the superblock at byte {at} anew, which is damaged or cannot be read"),
        status,
        fix: "Check the device; the pool is as it was, and can be opened read-only".into(),
    })?;
    sb.generation = sb.generation.max(other.generation);
    Ok(())
}

fn format_error(at: u64, damage: Damage, other: Option<&Superblock>) -> PoolError {
    match damage {
        Damage::Blank | Damage::Alien => PoolError::Format {
            what: "there is no pool on the device".into(),
            fix: "Name the device that the pool was created on, or create one: sheave pool create SPEC".into(),
        },
        damage if damage.is_too_new() => PoolError::Format { what: damage.to_string(), fix: String::new() },
        damage if other.is_none() => PoolError::Damaged { what: "the superblock".into(), at, why: damage.to_string() },
        damage => PoolError::Damaged { what: "a superblock".into(), at, why: damage.to_string() },
    }
}

/// Note of a rescue about a member whose label is unreadable or damaged.
const RIGHT_DEVICE: &str = "it was taken for the right device";

/// Note of a rescue about a member that is an older copy.
const OLD_DATA: &str = "any data of the pool may be what it was then, and volumes may be damaged";

/// Returns the error for a pool with a member in an older or newer state than the others.
fn old_member(number: usize, damage: &Damage) -> PoolError {
    PoolError::Members {
        what: format!("what is given as member {number} of the pool is of another time: {damage}"),
        fix: "Name the device that the pool used last, not a copy that was made of it before. If there is none any \
              more, 'sheave volume list POOL --rescue' shows what can be taken out"
            .into(),
    }
}

/// Checks that each member but the first is present and in its place.
fn check_members(io: &dyn BlockIo, sb: &Superblock, unsure: &mut Unsure) -> Result<(), PoolError> {
    for number in 1..sb.members.len() {
        let at = sb.members[number].0;
        let mut block = [0; BLOCK];
        if let Err(status) = read_again(io, at, &mut block) {
            unsure.pass(io_error(format!("reading the label of member {number}"))(status), RIGHT_DEVICE)?;
            continue;
        }
        match label::verify(&block, sb, number) {
            Ok(()) => {}
            // A label that is rotten or too new may still be on the right device.
            Err(damage @ (Damage::Checksum { .. } | Damage::TooNew { .. })) => {
                let what = format!("the label of member {number}");
                let error = PoolError::Damaged { what, at, why: damage.to_string() };
                unsure.pass(error, RIGHT_DEVICE)?;
            }
            Err(damage) if damage.is_old_member() => unsure.pass(old_member(number, &damage), OLD_DATA)?,
            Err(damage) => {
                return Err(PoolError::Members {
                    what: format!("what is given as member {number} of the pool is another device: {damage}"),
                    fix: "Name all members of the pool, as in a.img+b.img; sheave pool scan DIR lists them".into(),
                });
            }
        }
    }
    Ok(())
}

fn replay(io: &dyn BlockIo, state: &mut State, unsure: &mut Unsure, lost: &mut LostVolumes) -> Result<Scan, PoolError> {
    let mut window = Window::new(io, state.sb.journal_blocks as usize, unsure.is_rescue())
        .map_err(|_| io_error("memory for the journal".into())(Status::NoMem))?;
    let (sb, mut bounds) = (state.sb.clone(), Bounds::new(state.sb.journal_blocks));
    let mut refused = None;
    state.tree.begin_to_know();
    // Loading has raised the cost, but the limit is for the replay alone: a large pool has more nodes than a journal
    // may change.
    state.tree.cost = 0;
    let scan = journal::scan_blocks(&mut window, &sb, &mut |records| {
        let result = records.chunks(ASKED).try_for_each(|some| replay_some(state, &mut bounds, lost, some));
        match result {
            Ok(()) => ControlFlow::Continue(()),
            Err(why) => {
                refused = Some(why);
                ControlFlow::Break(())
            }
        }
    });
    state.tree.know_nothing();
    for (at, status) in window.into_passed() {
        unsure.add(vec![format!(
            "a block of the journal at byte {at} cannot be read: {status}; commits in it are missing"
        )]);
    }
    let scan = match scan {
        Ok(scan) => scan,
        Err(Stop::Unread(status)) => return Err(io_error("reading the journal".into())(status)),
        Err(Stop::Lost(lost)) => {
            let error = PoolError::Damaged { what: "the journal".into(), at: JOURNAL_START, why: lost.to_string() };
            unsure.pass(
                error,
                "what was written or changed after that is missing, and volumes that were deleted since may have data \
                 of others in place of their own",
            )?;
            // A rescue writes nothing, so these numbers only have to show that there was something to replay.
            let next_seq = state.sb.replay_seq + 1;
            Scan { next_seq, highest_seq: next_seq, torn: None }
        }
        Err(Stop::Enough) => Scan { next_seq: sb.replay_seq, highest_seq: 0, torn: None },
    };
    match refused {
        None => Ok(scan),
        Some((why, record)) => Err(PoolError::Damaged {
            what: "a record of the journal".into(),
            at: JOURNAL_START,
            why: format!("{why}: {record:?}"),
        }),
    }
}

/// Applies the changes behind the journal, which ends before the block `seq`. Returns their number.
fn replay_recent(kept: &Kept, state: &mut State, seq: u64, lost: &mut LostVolumes) -> Result<usize, PoolError> {
    let damaged = |why: String| PoolError::Recent { path: kept.path(), why };
    let records = kept.read(&state.sb, seq).map_err(|damage| damaged(damage.to_string()))?;
    let mut bounds = Bounds::new(state.sb.journal_blocks);
    state.tree.begin_to_know();
    let applied = records.chunks(ASKED).try_for_each(|some| replay_some(state, &mut bounds, lost, some));
    state.tree.know_nothing();
    applied.map_err(|(why, record)| damaged(format!("{why}: {record:?}")))?;
    Ok(records.len())
}

/// Applies records, unless together they change more than any pool can have written. The error contains the reason and
/// the record.
fn replay_some(
    state: &mut State,
    bounds: &mut Bounds,
    lost: &mut LostVolumes,
    records: &[Record],
) -> Result<(), (String, Record)> {
    let asked = state.tree.ask_for(records);
    for (at, record) in records.iter().enumerate() {
        // If the replay has changed the leaf of this unit before, the record needs no check: it adds to no cost that
        // `Bounds` limits.
        if let Some(phys) = state.tree.replay_at(&asked, at, record) {
            if let Some(sums) = &mut state.sums {
                sums.replay_unit(phys);
            }
            continue;
        }
        replay_record(state, bounds, lost, record).map_err(|why| (why, record.clone()))?;
    }
    Ok(())
}

/// Applies one record, unless the journal changes more than any pool can have written. The error is the reason.
fn replay_record(
    state: &mut State,
    bounds: &mut Bounds,
    lost: &mut LostVolumes,
    record: &Record,
) -> Result<(), String> {
    bounds.check(record, state.table.len()).map_err(|damage| damage.to_string())?;
    if lost.keeps(&mut state.table, record) {
        return Ok(());
    }
    state.apply(record).map_err(|why| why.to_string())?;
    Bounds::check_cost(state.tree.cost).map_err(|damage| damage.to_string())?;
    Bounds::check_nodes(state.tree.dirty_nodes()).map_err(|damage| damage.to_string())
}

/// Counts the owners of units, from all leaves in use (R2).
fn count_owners(state: &mut State) -> Result<(), PoolError> {
    let tree = &mut state.tree;
    tree.counts_later = false;
    let map = Arc::clone(&tree.map);
    let mut shared = false;
    for id in 1..tree.leaves.end() {
        if tree.leaves.node(id).parents == 0 {
            continue;
        }
        for word in map.leaves.node(id).unwrap_or_default() {
            let entry = Entry(word.load(Ordering::Relaxed)); // Relaxed: nobody else is here yet.
            if !entry.is_alloc() {
                continue;
            }
            if !tree.units.claim_data(entry.phys()) {
                return Err(PoolError::Damaged {
                    what: format!("unit {} of the pool", entry.phys()),
                    at: entry.phys() << map.geometry.unit_shift,
                    why: "a volume has it as data, and it is metadata or reserved".into(),
                });
            }
            shared |= tree.units.owners(entry.phys()) > 1;
        }
    }
    // No lookups run yet: nodes that the replay has dropped are free without a grace.
    tree.index.free_unused();
    tree.leaves.free_unused();
    tree.freed = crate::state::freed::LetGo::default();
    tree.forget_work();
    if shared {
        mark_shared(tree, &map);
    }
    Ok(())
}

fn mark_shared(tree: &Tree, map: &ExtentMap) {
    for id in 1..tree.leaves.end() {
        if tree.leaves.node(id).parents == 0 {
            continue;
        }
        for word in map.leaves.node(id).unwrap_or_default() {
            let entry = Entry(word.load(Ordering::Relaxed)); // Relaxed, both: nobody else is here yet.
            if entry.is_alloc() {
                let owners = tree.units.owners(entry.phys());
                let entry = if owners > 1 { entry.without(Entry::OWN) } else { entry.with(Entry::OWN) };
                word.store(entry.0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
