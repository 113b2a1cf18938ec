//! Formats a device as a pool.
//!
//! Owns the choice of sizes, and the order of writes: superblocks are erased first, then labels and an empty journal
//! are written, and the superblocks last.

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_blk::Device;

use crate::device::block_io::BlockIo;
use crate::error::PoolError;
use crate::format::block::identify;
use crate::format::page::{PageRef, label};
use crate::format::settings::{Checksum, LowWater};
use crate::format::superblock::{Superblock, copy_places};
use crate::format::{
    BLOCK, BLOCK_BYTES, JOURNAL_START, MAX_JOURNAL_BLOCKS, MAX_MEMBERS, MAX_UNIT_BYTES, MIN_JOURNAL_BLOCKS,
    MIN_UNIT_BYTES, SUPERBLOCKS,
};
use crate::made_at;
use crate::options::CreateOptions;
use crate::state::account::reserve_units;

/// Number of blocks of the longest journal that is chosen by default (16 MiB).
const MOST_CHOSEN_BLOCKS: u64 = 4096;
/// Smallest number of units that a pool has beyond its metadata and its reserve.
const LEAST_DATA_UNITS: u64 = 2;

pub(crate) fn create(device: &Device, io: &dyn BlockIo, options: &CreateOptions) -> Result<(), PoolError> {
    check_options(device, options)?;
    let unit = options.unit_bytes;
    let members = members(device, unit)?;
    let bytes: u64 = members.iter().map(|member| member.1).sum();
    let paired = options.metadata_copies.unwrap_or(if members.len() > 1 { 2 } else { 1 }) == 2;
    let mut sb = Superblock {
        pool: options.uuid.map_or_else(|| made_at::random(0), Ok).map_err(PoolError::no_random_bits)?,
        generation: 0,
        compat: 0,
        ro_compat: 0,
        clean: true,
        unit_bytes: unit as u32,
        checksum: options.checksum,
        marks: options.checksum != Checksum::None,
        identities: true,
        total_units: bytes / unit,
        journal_blocks: journal_blocks(options, bytes)?,
        next_volume: 1,
        incarnation: 1,
        replay_seq: 0,
        table: PageRef::NONE,
        table_level: 0,
        volumes: 0,
        created: made_at::now(),
        members,
        labels: [0; MAX_MEMBERS],
        sums: PageRef::NONE,
        sums_level: 0,
        low_water: options.low_water,
        lost: Default::default(),
        owner: made_at::random(1).map_err(PoolError::no_random_bits)?,
        labels_at: 1,
        copies: [0; 2],
        paired,
        kept: PageRef::NONE,
    };
    sb.keep_twins();
    sb.set_discards(options.discard);
    let geometry = sb.geometry();
    let copies =
        copy_places(sb.members[0].1, unit).filter(|places| places.iter().all(|at| geometry.is_unit(at / unit)));
    sb.copies = copies.unwrap_or_default();
    let fixed = geometry.first_unit + sb.members.len() as u64 - 1;
    let least = fixed + (1 + u64::from(paired)) * reserve_units(&geometry) + LEAST_DATA_UNITS;
    // A pool that is too small only because of the copies gets none.
    if sb.total_units < least + sb.copy_units().count() as u64 {
        sb.copies = Default::default();
    }
    if sb.total_units < least {
        return Err(invalid(
            format!("a pool of {bytes} bytes is too small"),
            &format!("Give it {} bytes at least, or use a smaller allocation unit or journal", least * unit),
        ));
    }
    if sb.total_units > sb.most_units() {
        return Err(invalid("the pool would have too many units".into(), "Use a larger allocation unit"));
    }
    if !options.overwrite {
        refuse_if_used(io)?;
    }
    write(io, sb).map_err(|status| PoolError::Io {
        what: format!("formatting {}", device.name()),
        status,
        fix: "Check the device".into(),
    })
}

/// Refuses options that a pool on the device cannot have.
fn check_options(device: &Device, options: &CreateOptions) -> Result<(), PoolError> {
    let unit = options.unit_bytes;
    if !unit.is_power_of_two() || !(u64::from(MIN_UNIT_BYTES)..=u64::from(MAX_UNIT_BYTES)).contains(&unit) {
        return Err(invalid(
            format!("an allocation unit cannot have {unit} bytes"),
            "Use a power of two from 4k to 1M, such as 64k",
        ));
    }
    if device.limits().logical_block > BLOCK as u32 {
        return Err(invalid(
            format!("the blocks of the device have {} bytes", device.limits().logical_block),
            "Use a device whose blocks have 4096 bytes at most",
        ));
    }
    if let Some(copies) = options.metadata_copies.filter(|copies| !(1..=2).contains(copies)) {
        return Err(invalid(format!("a pool cannot have {copies} copies of its metadata"), "Use 1 or 2"));
    }
    check_low_water(options.low_water)?;
    if options.uuid == Some([0; 16]) {
        return Err(invalid("a pool's UUID cannot be all zeroes".into(), "Use another, or none: then one is chosen"));
    }
    Ok(())
}

/// Refuses a low-water mark of 0 bytes, and percentages other than 1 to 99.
pub(crate) fn check_low_water(low_water: LowWater) -> Result<(), PoolError> {
    match low_water {
        LowWater::Bytes(0) | LowWater::Percent(0 | 100..) => {
            Err(invalid(format!("a low-water mark cannot be {low_water}"), "Use 1% to 99%, a number of bytes, or none"))
        }
        _ => Ok(()),
    }
}

fn invalid(what: String, fix: &str) -> PoolError {
    PoolError::Invalid { what, fix: fix.into() }
}

/// Returns start and length of each member in the pool; the members are the legs of the device.
fn members(device: &Device, unit: u64) -> Result<Vec<(u64, u64)>, PoolError> {
    let legs = device.legs();
    let limit = crate::format::MAX_MEMBERS;
    if legs.len() > limit {
        return Err(PoolError::Limit {
            what: format!("devices of the pool on {}", device.name()),
            limit: limit as u64,
            fix: "Use fewer, larger ones".into(),
        });
    }
    if legs.len() == 1 {
        return Ok(vec![(0, device.size_bytes() / unit * unit)]);
    }
    let mut members = Vec::with_capacity(legs.len());
    for (number, leg) in legs.iter().enumerate() {
        let (start, mut len) = (leg.start << 9, leg.sectors << 9);
        if number + 1 == legs.len() {
            len = len / unit * unit;
        }
        if !len.is_multiple_of(unit) || len == 0 {
            return Err(invalid(
                format!("member {number} of the pool has {len} bytes"),
                &format!("Make each member but the last a multiple of the allocation unit, {unit} bytes"),
            ));
        }
        members.push((start, len));
    }
    Ok(members)
}

fn journal_blocks(options: &CreateOptions, bytes: u64) -> Result<u32, PoolError> {
    let bounds = u64::from(MIN_JOURNAL_BLOCKS)..=u64::from(MAX_JOURNAL_BLOCKS);
    let Some(wanted) = options.journal_bytes else {
        let blocks = (bytes / 256 / BLOCK_BYTES).clamp(*bounds.start(), MOST_CHOSEN_BLOCKS);
        // Leaves two blocks behind it free, if a unit can spare them: for the list of free units.
        let per_unit = u64::from(options.unit_bytes as u32) / BLOCK_BYTES;
        let spare = (2 + blocks).next_multiple_of(per_unit) - (2 + blocks);
        let fewer = if per_unit > 2 && spare < 2 { 2 - spare } else { 0 };
        return Ok((blocks - fewer).max(*bounds.start()) as u32);
    };
    if !bounds.contains(&(wanted / BLOCK_BYTES)) || !wanted.is_multiple_of(BLOCK_BYTES) {
        return Err(invalid(
            format!("a journal cannot have {wanted} bytes"),
            &format!("Use a multiple of 4096 from {} to {}", bounds.start() * BLOCK_BYTES, bounds.end() * BLOCK_BYTES),
        ));
    }
    Ok((wanted / BLOCK_BYTES) as u32)
}

fn refuse_if_used(io: &dyn BlockIo) -> Result<(), PoolError> {
    for address in SUPERBLOCKS {
        let mut block = [0; BLOCK];
        io.read(address, &mut block).map_err(|status| PoolError::Io {
            what: "reading what is on the device".into(),
            status,
            fix: "Check the device".into(),
        })?;
        if identify(&block).is_ok() {
            return Err(PoolError::Format {
                what: "there is a pool on the device already".into(),
                fix: "Use another device, or overwrite it if nothing in it is needed".into(),
            });
        }
    }
    Ok(())
}

fn write(io: &dyn BlockIo, mut sb: Superblock) -> Result<(), Status> {
    let mut block = [0; BLOCK];
    // Erased first: until both new superblocks are written, the device has no pool.
    let copies = sb.copies.into_iter().chain(copies_before(io)).filter(|at| *at != 0);
    SUPERBLOCKS.into_iter().chain(copies).try_for_each(|at| io.write(at, &block))?;
    // Made durable before anything else of an earlier pool is changed. With its superblocks and without its journal,
    // the earlier pool would open and lack changes that it had acknowledged.
    io.flush()?;
    let zeroes = Buf::zeroed(sb.journal_blocks as usize * BLOCK, BLOCK).map_err(|_| Status::NoMem)?;
    io.write(JOURNAL_START, &zeroes)?;
    for number in 1..sb.members.len() {
        let address = label::encode(&mut block, &sb, number);
        io.write(address, &block)?;
    }
    io.flush()?;
    // Writes both slots, with consecutive generations, as checkpoints leave them.
    for generation in 0..2 {
        sb.generation = generation;
        let address = sb.encode(&mut block);
        io.write(address, &block)?;
    }
    sb.encode_copies().iter().try_for_each(|(at, block)| io.write(*at, block))?;
    io.flush()
}

/// Returns the places of the superblock copies of a pool that is already on the device. If they were left there, they
/// would bring that pool back.
fn copies_before(io: &dyn BlockIo) -> Vec<u64> {
    let read = |at| {
        let mut block = [0; BLOCK];
        io.read(at, &mut block).ok()?;
        Superblock::decode(&block, at, io.size_bytes()).ok()
    };
    SUPERBLOCKS.into_iter().filter_map(read).flat_map(|sb| sb.copies).collect()
}
