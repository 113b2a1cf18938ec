//! Adds space to a pool, also while it is used: from members that became larger, and from further members.
//!
//! Owns the order in which a member is added. The addition may be cut off at any point:
//!
//! 1. a label is written to the member's first block and made durable. The pool does not refer to it yet: a crash
//!    leaves the old pool, which opens with the device or without it, and a label whose generation no superblock names;
//! 2. the pool's device is extended, and the superblock in memory gets the member: its space can be used at once;
//! 3. the next commit is a checkpoint, so that no durable record refers to space that the superblock does not name.
//!    From then on the pool opens only with the member.
//!
//! - G1: a label is valid only for the addition that it was written for: no two additions use the same generation.
//! - G2: a new member begins where the pool ends; the label's unit is never data.
//!
//! Called by [`Pool`](crate::Pool).

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::claim::Claim;
use sheave_blk::linear::{concatenate, partition};

use crate::device::block_io::{BlockIo, DeviceIo};
use crate::device::reader::read_again;
use crate::engine::inner::{PoolInner, claim};
use crate::engine::recovery::newest_superblock;
use crate::error::PoolError;
use crate::format::block::identify;
use crate::format::page::label;
use crate::format::{BLOCK, BLOCK_BYTES, MAX_MEMBERS, SUPERBLOCKS, kind};
use crate::members::{MemberTag, TAG_BYTES};
use crate::state::State;

/// Options for adding a member.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AddOptions {
    /// True to add also a device that belongs, or belonged, to another pool.
    pub overwrite: bool,
}

sheave_base::setters!(AddOptions { overwrite: bool });

/// Traces of Sheave on a device that may become a member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// No trace of Sheave.
    Nothing,
    /// The device was being added to this pool when the addition was cut off. It holds no data, and can be added again.
    CutOff,
    /// A member of this pool, with its number.
    Member(u64),
    /// Another pool, or a member of one, with this identity.
    Other(String),
}

struct Joining {
    number: usize,
    start: u64,
    len: u64,
    generation: u64,
}

impl PoolInner {
    /// Adds the space by which the device has grown. Returns the new size in bytes.
    pub(crate) fn grow(&self) -> Result<u64, PoolError> {
        let _one = self.structural();
        self.check_writable("growing the pool")?;
        self.take_in_growth()
    }

    /// Makes a device the pool's last member, durably. Returns the new size in bytes.
    pub(crate) fn add_member(&self, device: &Device, options: &AddOptions) -> Result<u64, PoolError> {
        let _one = self.structural();
        self.check_writable("adding a member")?;
        let owner = claim(device, false)?;
        self.refuse_found(device, options)?;
        let at = self.take_in_growth()?;
        let joining = self.joining(device, at)?;
        // Checked before the label is written, so that a device that does not fit is left unchanged.
        self.device.can_extend(at, device)?;
        let io = DeviceIo::new(device)?;
        self.write_label(&io, &joining).map_err(|status| label_failed(device, status))?;
        // Watched before anything is written to the device: a flush that fails must ring the pool's alarm.
        self.hold(Claim::of(device.watch_flushes(&self.alarm)));
        self.device.extend(at, device)?;
        self.hold(owner);
        let mut state = self.lock();
        // Before anything is written there: a change must not outlive the data that it names.
        if device.lasting().is_none() {
            state.end_recent("a member may lose writes with the process");
        }
        joining.enter(&mut state);
        self.survey_space(&mut state);
        drop(state);
        self.grown()?;
        Ok(joining.start + joining.len)
    }

    /// Returns the traces of Sheave on a device that may be added.
    pub(crate) fn find_on(&self, device: &Device) -> Result<Found, PoolError> {
        let block = device.limits().logical_block;
        if block > BLOCK as u32 {
            return Err(PoolError::Invalid {
                what: format!("the blocks of {} have {block} bytes", device.name()),
                fix: "Use a device whose blocks have 4096 bytes at most".into(),
            });
        }
        let io = DeviceIo::new(device)?;
        let state = self.lock();
        let (pool, members, labels) = (state.sb.pool, state.sb.members.clone(), state.sb.labels);
        drop(state);
        for at in SUPERBLOCKS.into_iter().filter(|at| at + BLOCK_BYTES <= device.size_bytes()) {
            let mut block = [0; BLOCK];
            io.read(at, &mut block).map_err(|status| PoolError::Io {
                what: format!("reading what is on {}", device.name()),
                status,
                fix: "Check the device".into(),
            })?;
            let Ok((head, _)) = identify(&block) else { continue };
            if head.pool != pool {
                return Ok(Found::Other(head.pool.iter().map(|byte| format!("{byte:02x}")).collect()));
            }
            // The first block was no block of Sheave, but the second superblock is this pool's.
            if at > 0 && head.kind == kind::SUPERBLOCK {
                return Ok(Found::Member(0));
            }
            let number = head.index as usize;
            let known = number < members.len() && labels.get(number) == Some(&head.generation);
            return Ok(match head.kind {
                kind::LABEL if !known => Found::CutOff,
                kind::LABEL => Found::Member(head.index),
                _ => Found::Member(0),
            });
        }
        Ok(Found::Nothing)
    }

    fn refuse_found(&self, device: &Device, options: &AddOptions) -> Result<(), PoolError> {
        let name = device.name();
        match self.find_on(device)? {
            Found::Nothing | Found::CutOff => Ok(()),
            Found::Member(number) => Err(PoolError::Members {
                what: format!("{name} is member {number} of this pool already"),
                fix: "Add another device".into(),
            }),
            Found::Other(_) if options.overwrite => Ok(()),
            Found::Other(uuid) => Err(PoolError::Members {
                what: format!("{name} belongs to another pool ({uuid})"),
                fix: "Add another device, or overwrite it if nothing in that pool is needed".into(),
            }),
        }
    }

    /// Plans the member that `device` will be.
    fn joining(&self, device: &Device, start: u64) -> Result<Joining, PoolError> {
        let shift = self.map.geometry.unit_shift;
        let units = device.size_bytes() >> shift;
        let mut state = self.lock();
        if state.label_tried > state.sb.generation {
            // If an attempt has failed, the next one needs a generation of its own (G1).
            drop(state);
            self.checkpoint().map_err(|status| self.failed("growing", self.device.name(), status))?;
            state = self.lock();
        }
        let number = state.sb.members.len();
        let most = state.sb.most_units();
        if number >= MAX_MEMBERS || state.sb.total_units + units > most {
            let limit = if number >= MAX_MEMBERS { MAX_MEMBERS as u64 } else { most << shift };
            let what = format!("adding {}: {}", device.name(), if number >= MAX_MEMBERS { "members" } else { "bytes" });
            return Err(PoolError::Limit { what, limit, fix: "Make a member larger, or another pool".into() });
        }
        if units < 2 {
            return Err(PoolError::Invalid {
                what: format!("{} has {} bytes, too few for a member", device.name(), device.size_bytes()),
                fix: format!("Give it {} at least: a label and an allocation unit", 2u64 << shift),
            });
        }
        let generation = state.sb.generation + 1;
        state.label_tried = generation;
        Ok(Joining { number, start, len: units << shift, generation })
    }

    fn write_label(&self, io: &DeviceIo, joining: &Joining) -> Result<(), Status> {
        let mut sb = self.lock().sb.clone();
        sb.members.push((joining.start, joining.len));
        sb.labels[joining.number] = joining.generation;
        let mut block = [0; BLOCK];
        // If there was a pool on the device before, its second superblock would bring that pool back.
        io.write(SUPERBLOCKS[1], &block)?;
        label::encode(&mut block, &sb, joining.number);
        io.write(0, &block)?;
        io.flush()
    }

    /// Adds all space that the device has. Returns the size of the pool.
    fn take_in_growth(&self) -> Result<u64, PoolError> {
        let shift = self.map.geometry.unit_shift;
        let mut state = self.lock();
        let total = (self.io.size_bytes() >> shift).min(state.sb.most_units());
        let before = state.sb.total_units;
        if total > before {
            let added = (total - before) << shift;
            if let Some(last) = state.sb.members.last_mut() {
                last.1 += added;
            }
            state.make_room(total);
            self.survey_space(&mut state);
            drop(state);
            self.grown()?;
        }
        Ok(total.max(before) << shift)
    }

    /// Makes the new size durable, and wakes the threads that wait for space.
    fn grown(&self) -> Result<(), PoolError> {
        self.lock().next.require();
        self.durable_at_last("growing", self.device.name())?;
        self.wake();
        Ok(())
    }
}

/// Returns the error for a label that could not be written. Its device may lie on another file system than the pool.
fn label_failed(device: &Device, status: Status) -> PoolError {
    let what = format!("writing the label of {}", device.name());
    match status {
        Status::NoSpc if device.capabilities().sparse => {
            PoolError::HostFull { what, device: device.name().to_string() }
        }
        status => PoolError::not_written(what, status),
    }
}

impl Joining {
    /// Makes the member a part of the pool in memory.
    fn enter(&self, state: &mut State) {
        let unit = u64::from(state.sb.unit_bytes);
        state.sb.members.push((self.start, self.len));
        state.sb.labels[self.number] = self.generation;
        state.make_room((self.start + self.len) / unit);
        let fixed = state.tree.units.fix(self.start / unit);
        debug_assert!(fixed, "the unit of the label is new (G2)");
    }
}

impl State {
    /// Sets the number of the pool's units. The next commit must be a checkpoint: a record about a new unit would be
    /// invalid under the superblock that is on the device.
    fn make_room(&mut self, total: u64) {
        self.sb.total_units = total;
        self.tree.pages.set_copies(&self.sb);
        self.tree.units.grow(total);
        self.set_reserve();
        self.next.require();
    }
}

/// Returns the device under a pool on several devices, which are given in any order: their labels say which member each
/// is. If one of them, other than the last, is longer than its part of the pool, the rest of it is not used.
///
/// # Errors
///
/// [`PoolError::Members`] if members are missing, named twice, or have shrunk. If the devices have no pool, or one of
/// them is not a member, they are joined as they are, because opening them gives a better error message.
pub fn join(name: &str, devices: &[Device]) -> Result<Device, PoolError> {
    let devices = in_order(devices)?;
    let Some((first, rest)) = devices.split_first() else {
        return Err(PoolError::Members { what: "no device is named".into(), fix: "Name one at least".into() });
    };
    if rest.is_empty() {
        return Ok(first.clone());
    }
    let members = match newest_superblock(&DeviceIo::new(first)?) {
        Ok((sb, _)) => {
            let there = devices.iter().zip(&sb.members).map(|(device, (_, len))| device.size_bytes().min(*len)).sum();
            if let Some((what, fix)) = sb.missing_from(there).filter(|_| devices.len() < sb.members.len()) {
                return Err(PoolError::Members { what, fix });
            }
            sb.members
        }
        // Opening the device gives a better error message.
        Err(_) => Vec::new(),
    };
    let mut parts = Vec::with_capacity(devices.len());
    for (number, device) in devices.iter().enumerate() {
        let size = device.size_bytes();
        parts.push(match members.get(number) {
            Some(&(_, len)) if size < len => {
                return Err(PoolError::Members {
                    what: format!("{} has {size} bytes, and member {number} of the pool {len}", device.name()),
                    fix: "Name the devices that the pool used last".into(),
                });
            }
            Some(&(_, len)) if size > len && number + 1 < members.len() => partition(device.name(), device, 0, len)?,
            _ => device.clone(),
        });
    }
    Ok(concatenate(name, &parts)?)
}

/// Sorts devices by the member numbers in their labels. Returns them as given if one has no label, or the label of
/// another pool.
fn in_order(devices: &[Device]) -> Result<Vec<Device>, PoolError> {
    let as_given = || Ok(devices.to_vec());
    if devices.len() < 2 {
        return as_given();
    }
    let mut tagged = Vec::with_capacity(devices.len());
    for (at, device) in devices.iter().enumerate() {
        match tag_of(device) {
            Some(tag) => tagged.push((tag, at)),
            None => return as_given(),
        }
    }
    if tagged.iter().any(|(tag, _)| tag.pool() != tagged[0].0.pool()) {
        return as_given();
    }
    tagged.sort_by_key(|(tag, _)| tag.number());
    if let Some(pair) = tagged.windows(2).find(|pair| pair[0].0.number() == pair[1].0.number()) {
        let (number, names) = (pair[0].0.number(), pair.iter().map(|(_, at)| devices[*at].name().to_string()));
        return Err(PoolError::Members {
            what: format!("member {number} of the pool is named twice: {}", names.collect::<Vec<_>>().join(" and ")),
            fix: "Name each member once, and no copy of one".into(),
        });
    }
    Ok(tagged.into_iter().map(|(_, at)| devices[at].clone()).collect())
}

/// Returns the member tag of a device, if it has one that can be read.
fn tag_of(device: &Device) -> Option<MemberTag> {
    let io = DeviceIo::new(device).ok()?;
    let mut bytes = Box::new([0; TAG_BYTES]);
    if io.size_bytes() < TAG_BYTES as u64 {
        return None;
    }
    read_again(&io, 0, &mut bytes[..]).ok()?;
    MemberTag::read(&bytes)
}
