//! Draws the next operation from the seed, the mix and the volumes that exist.

use sheave_iomap::file::FallocateMode;

use super::{Doing, Hot, Pending, World};
use crate::disk::SECTOR;
use crate::engine::Want;
use crate::model::{Change, Event, Volume};
use crate::tag::fill_all;

const BLOCK: u64 = 4096;
const MAX_PENDING: usize = 12;
const HUGE: [u64; 4] = [1 << 30, 5 << 30, 64 << 30, 1 << 40];
/// Number of parts of a huge volume. I/O goes to the beginning of each part.
const PARTS: u64 = 5;

/// A volume drawn for an operation.
struct Target {
    id: u32,
    family: u32,
    name: String,
    size: u64,
    /// The maximum size of a volume that grows, or the lower one that a call under way is setting.
    max: Option<u64>,
}

impl World {
    /// Runs `ops` operations, then lets everything under way end.
    pub fn run(&mut self, ops: usize) -> Result<(), String> {
        (0..ops).try_for_each(|number| self.one(number))?;
        self.drain()?;
        self.inspect()?;
        self.clear_up()
    }

    /// Runs operation `number`, unless it is to be skipped. Requests may still be under way when it returns.
    pub fn one(&mut self, number: usize) -> Result<(), String> {
        self.rng = self.base.fork(number as u64);
        self.inspect()?;
        if !self.in_doubt {
            self.clear_up()?;
        }
        if self.in_doubt || self.setup.skip.contains(&number) { Ok(()) } else { self.act() }
    }

    fn act(&mut self) -> Result<(), String> {
        self.disk.hold(self.setup.overlap);
        self.hot = self.hot.filter(|hot| hot.ops > 0).map(|hot| Hot { ops: hot.ops - 1, ..hot });
        let mut mix = self.setup.mix.clone();
        if self.hot.is_some() {
            // Punched holes, flushes and trims free the units that the slow read is reading, so that they are reused or
            // discarded.
            (mix.zero, mix.pool_sync, mix.trim) = (mix.zero * 2, mix.pool_sync * 2 + 2, mix.trim * 3);
        }
        let weights = [
            mix.write,
            mix.read,
            mix.sync,
            mix.zero,
            mix.turn,
            mix.create,
            mix.copy,
            mix.delete,
            mix.resize,
            mix.rollback,
            mix.rename,
            mix.pool_sync,
            mix.reopen,
            mix.grow,
            mix.scrub,
            mix.stare,
            mix.trim,
        ];
        let mut drawn = self.rng.below(weights.iter().sum());
        let mut kind = 0;
        while drawn >= weights[kind] {
            drawn -= weights[kind];
            kind += 1;
        }
        // Without volumes the only possible operation is to create one. With many requests under way, time has to pass
        // first.
        if self.model.volumes().is_empty() {
            kind = 5;
        } else if kind < 4 && self.pending.len() >= MAX_PENDING {
            kind = 4;
        }
        match kind {
            0 => self.write(),
            1 => self.read(),
            2 => self.sync(),
            3 => self.zero(),
            4 => self.go_on(),
            5 => self.create(),
            6 => self.copy(),
            7 => self.delete(),
            8 => self.resize(),
            9 => self.rollback(),
            10 => self.rename(),
            11 => self.flush_pool(),
            12 if self.is_degraded() => self.go_on(),
            12 => self.reopen(),
            13 => self.grow(),
            14 => self.scrub(),
            15 => self.stare(),
            _ => self.trim(),
        }
    }

    fn pick(&mut self, snapshots: bool) -> Option<Target> {
        self.pick_of(snapshots, 0)
    }

    /// Picks a volume that is not empty.
    fn pick_sized(&mut self, snapshots: bool) -> Option<Target> {
        self.pick_of(snapshots, 1)
    }

    fn pick_of(&mut self, snapshots: bool, least: u64) -> Option<Target> {
        let mut all: Vec<Target> = (self.model.volumes().iter())
            .filter(|(name, volume)| {
                (snapshots || !volume.snapshot) && volume.size >= least && !self.is_out_of_reach(name, volume)
            })
            .map(|(name, volume)| Target {
                id: volume.id,
                family: volume.family,
                name: name.clone(),
                size: volume.size,
                max: volume.max.map(|max| self.limit_of(name, max)),
            })
            .collect();
        if all.is_empty() {
            return None;
        }
        if let Some(hot) = self.hot
            && all.iter().any(|one| one.family == hot.family)
            && self.rng.percent(80)
        {
            all.retain(|one| one.family == hot.family);
        }
        // In a crowd of hundreds the six newest volumes get most operations. If all got equally many, operations would
        // never overlap.
        if all.len() > self.setup.crowd as usize / 2 && self.setup.crowd > 0 && self.rng.percent(80) {
            all.sort_by_key(|one| std::cmp::Reverse(one.id));
            all.truncate(6);
        }
        let at = self.rng.below(all.len() as u64) as usize;
        all.into_iter().nth(at)
    }

    /// Returns true if a call under way may need the volume for itself, or may change its name before it is opened.
    fn is_out_of_reach(&self, name: &str, volume: &Volume) -> bool {
        match self.changing() {
            Some(change @ (Change::Delete { name: gone } | Change::Rollback { name: gone, .. })) => {
                gone == name && self.wants_quiet(change)
            }
            Some(Change::Rename { name: old, .. }) => {
                // A rename also changes the names of the volume's snapshots.
                let of_it =
                    name.strip_prefix(old.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('@'));
                of_it && !self.files.contains_key(&volume.id)
            }
            _ => false,
        }
    }

    /// Returns the largest end of a write: `max`, or the new maximum while a call is lowering it.
    fn limit_of(&self, name: &str, max: u64) -> u64 {
        match self.changing() {
            Some(Change::Limit { name: limited, max: new }) if limited == name => max.min(*new),
            _ => max,
        }
    }

    /// Draws a range of a volume: mostly one whole block, sometimes many, sometimes less than one.
    fn range(&mut self, target: &Target) -> (u64, u64) {
        let size = target.size;
        let align = if self.setup.disk.logical_block == 512 && self.rng.percent(30) { SECTOR as u64 } else { BLOCK };
        let long = self.rng.percent(self.setup.long);
        let (from, size) = self.part(size);
        // Half of the other requests go to the first four units, so that writes overlap earlier ones.
        let end = if !long && self.rng.percent(50) { size.min(4 * self.setup.unit_bytes) } else { size };
        let most = match self.rng.below(6) {
            _ if long => 256 << 10,
            0 => 3 * self.setup.unit_bytes,
            1 => 4 * BLOCK,
            _ => BLOCK.max(align),
        };
        let align = if target.max.is_some() { BLOCK } else { align.min(size) };
        let hot = self.hot.filter(|hot| hot.family == target.family && hot.pos < target.size);
        let pos = match hot {
            Some(hot) if self.rng.percent(70) => hot.pos / align * align,
            _ => from + self.rng.below(end) / align * align,
        };
        let len = self.rng.between(1, most.div_ceil(align).min(64)) * align;
        (pos, len.min(target.size - pos))
    }

    /// Returns the first byte and the length of the part that I/O goes to: the whole volume, or one of a few distant
    /// parts of a huge volume.
    fn part(&mut self, size: u64) -> (u64, u64) {
        let most = self.setup.max_volume_bytes;
        if size / PARTS <= most {
            return (0, size);
        }
        let from = match self.rng.below(PARTS + 1) {
            PARTS => size - most,
            part => part * (size / PARTS),
        };
        (from / BLOCK * BLOCK, most)
    }

    /// Draws a range beyond the end of a volume that grows: at the end, behind a gap, or across the end. Returns `None`
    /// if the volume may not grow.
    fn range_beyond(&mut self, target: &Target) -> Option<(u64, u64)> {
        let (size, max) = (target.size, target.max?);
        if size > 0 && self.rng.percent(40) {
            return None;
        }
        let reach = self.model.volume(target.id).map_or(size, |volume| volume.reach());
        let from = if self.rng.percent(60) { reach } else { size };
        let gap = match self.rng.below(10) {
            0..6 => 0,
            6 => self.rng.between(1, 8) * BLOCK,
            7 => self.rng.below(3 * self.setup.unit_bytes / BLOCK) * BLOCK,
            _ => 0,
        };
        let back = if self.rng.percent(25) { self.rng.between(1, 4) * BLOCK } else { 0 };
        let pos = (from + gap).saturating_sub(back);
        let blocks = if self.rng.percent(self.setup.long / 2 + 5) { 64 } else { 4 };
        let len = (self.rng.between(1, blocks) * BLOCK).min(max.saturating_sub(pos));
        (len > 0).then_some((pos, len))
    }

    fn write(&mut self) -> Result<(), String> {
        let Some(target) = self.pick(false) else { return Ok(()) };
        if target.max.is_some() && self.rng.percent(self.setup.long / 6) {
            return self.append(&target);
        }
        let beyond = self.range_beyond(&target);
        if beyond.is_none() && target.size == 0 {
            return self.go_on();
        }
        let (pos, len) = beyond.unwrap_or_else(|| self.range(&target));
        let (sector, sectors) = (pos / SECTOR as u64, len / SECTOR as u64);
        // Users rarely have two writes to one range under way; the runs do it now and then.
        if self.model.is_being_written(target.id, sector..sector + sectors) && !self.rng.percent(self.setup.twice) {
            return self.go_on();
        }
        let dsync = self.rng.percent(15);
        self.write_to(&target, (pos, len), dsync)
    }

    /// Submits several long writes, each beginning where the one before ends, at the end of a volume that grows.
    fn append(&mut self, target: &Target) -> Result<(), String> {
        for _ in 0..self.rng.between(2, 6) {
            let Some(pos) = self.model.volume(target.id).map(Volume::reach) else { break };
            let len = (64 * BLOCK).min(target.max.unwrap_or(0).saturating_sub(pos));
            if len == 0 || self.pending.len() >= MAX_PENDING {
                break;
            }
            self.write_to(target, (pos, len), false)?;
        }
        Ok(())
    }

    fn write_to(&mut self, target: &Target, (pos, len): (u64, u64), dsync: bool) -> Result<(), String> {
        let Target { id, ref name, max, .. } = *target;
        let (sector, sectors) = (pos / SECTOR as u64, len / SECTOR as u64);
        let op = self.op();
        let value = self.counters.next_value;
        self.counters.next_value += 1;
        let mut data = vec![0; len as usize];
        fill_all(self.setup.seed, value, id, sector, &mut data);
        let how = if dsync { " (DSYNC)" } else { "" };
        self.note(format!("request {op}: write {value} to '{name}' ({id}), sectors {sector} +{sectors}{how}"));
        self.record(Event::Write { op, volume: id, sector, sectors, value, dsync });
        let doing = pending(id, Doing::Write { grows: max.is_some(), dsync }, pos, len);
        self.submit(name, Want::Write(data, dsync), doing, op)
    }

    fn zero(&mut self) -> Result<(), String> {
        let Some(target) = self.pick_sized(false) else { return Ok(()) };
        let (pos, mut len) = self.range(&target);
        let Target { id, name, size, .. } = target;
        if self.rng.percent(30) {
            len = (len + 2 * self.setup.unit_bytes).min(size - pos);
        } else if self.rng.percent(self.setup.huge / 5) {
            len = size - pos;
        }
        let (sector, sectors) = (pos / SECTOR as u64, len / SECTOR as u64);
        if self.model.is_being_written(id, sector..sector + sectors) {
            return self.go_on();
        }
        let mode = if self.rng.percent(70) { FallocateMode::PunchHole } else { FallocateMode::ZeroRange };
        let op = self.op();
        self.note(format!("request {op}: {mode:?} of '{name}' ({id}), sectors {sector} +{sectors}"));
        self.record(Event::Write { op, volume: id, sector, sectors, value: 0, dsync: false });
        self.submit(&name, Want::Zero(mode, len), pending(id, Doing::Zero, pos, len), op)
    }

    fn read(&mut self) -> Result<(), String> {
        let Some(target) = self.pick_sized(true) else { return Ok(()) };
        let (pos, len) = self.range(&target);
        let Target { id, name, .. } = target;
        let sector = pos / SECTOR as u64;
        let (op, since) = (self.op(), self.model.begin_read());
        self.note(format!("request {op}: read '{name}' ({id}), sectors {sector} +{}", len / SECTOR as u64));
        self.submit(&name, Want::Read(len as usize), pending(id, Doing::Read { since, slow: false }, pos, len), op)
    }

    /// Submits a read that the disk holds for long, and sends most of the next operations to the same range.
    ///
    /// Half of the time, if the volume has no clone, it makes a clone instead of reading. Volume and clone share units
    /// at first. After one of them has written to a unit, the other owns the old unit alone and then writes it in
    /// place.
    fn stare(&mut self) -> Result<(), String> {
        let Some(target) = self.pick_sized(true) else { return Ok(()) };
        let shares = |one: &Volume| !one.snapshot && one.id != target.id && one.family == target.family;
        if self.rng.percent(50) && !self.model.volumes().values().any(shares) && !self.is_crowded() {
            let (name, id) = self.new_name();
            self.hot = Some(Hot { family: target.family, pos: 0, ops: 20 });
            return self.change(Change::Copy { source: target.name, name, id, snapshot: false });
        }
        let (pos, _) = self.range(&target);
        let (pos, len) = (pos / BLOCK * BLOCK, BLOCK.min(target.size - pos / BLOCK * BLOCK));
        let Target { id, name, family, .. } = target;
        let (op, since) = (self.op(), self.model.begin_read());
        self.disk.hold_next_read(self.rng.between(100, 1500));
        self.note(format!("request {op}: slow read of '{name}' ({id}), sectors {} +{}", pos / 512, len / 512));
        self.hot = Some(Hot { family, pos, ops: self.rng.between(10, 60) });
        self.submit(&name, Want::Read(len as usize), pending(id, Doing::Read { since, slow: true }, pos, len), op)?;
        (0..self.engines.len()).try_for_each(|engine| self.step(engine))
    }

    fn sync(&mut self) -> Result<(), String> {
        let Some(Target { id, name, .. }) = self.pick(false) else { return Ok(()) };
        let op = self.op();
        self.note(format!("request {op}: flush '{name}' ({id})"));
        self.record(Event::Sync { op });
        self.submit(&name, Want::Sync, pending(id, Doing::Sync, 0, 0), op)
    }

    /// Lets time pass: steps engines and calls drawn at random.
    pub(super) fn go_on(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.between(1, 12) {
            let number = self.rng.below(self.steppable() as u64) as usize;
            self.step(number)?;
        }
        Ok(())
    }

    fn new_name(&mut self) -> (String, u32) {
        let id = self.counters.next_volume;
        self.counters.next_volume += 1;
        // There are few names, so that names of deleted volumes are used again.
        let names = ["a", "b", "data", "db-1", "x.y_z", "root", "swap"];
        let free = names.iter().find(|name| !self.model.volumes().contains_key(**name));
        let name = match free {
            Some(name) if self.rng.percent(70) => (*name).to_string(),
            _ => format!("v{id}"),
        };
        (name, id)
    }

    fn is_crowded(&self) -> bool {
        self.model.volumes().len() >= self.setup.max_volumes
    }

    fn new_size(&mut self) -> u64 {
        if self.setup.huge > 0 && self.rng.percent(self.setup.huge) {
            return *self.rng.pick(&HUGE);
        }
        let most = self.setup.max_volume_bytes / BLOCK;
        let blocks = if self.rng.percent(20) { self.rng.between(1, 8) } else { self.rng.between(most / 2, most) };
        // With sectors of 512 bytes, a quarter of the volumes end within a block.
        let short = if self.setup.disk.logical_block == 512 && self.rng.percent(25) { self.rng.below(8) } else { 0 };
        blocks * BLOCK - short * SECTOR as u64
    }

    fn create(&mut self) -> Result<(), String> {
        if self.is_crowded() {
            return self.delete();
        }
        let (name, id) = self.new_name();
        let size = self.new_size();
        if self.setup.growing > 0 && self.rng.percent(self.setup.growing) {
            let max = size.next_multiple_of(BLOCK);
            let size = if self.rng.percent(60) { 0 } else { self.rng.below(max / BLOCK + 1) * BLOCK };
            return self.change(Change::Create { name, id, size, max: Some(max) });
        }
        self.change(Change::Create { name, id, size, max: None })
    }

    fn copy(&mut self) -> Result<(), String> {
        let Some(source) = self.pick(true) else { return Ok(()) };
        if self.is_crowded() {
            return self.delete();
        }
        if self.rng.percent(20) {
            return self.copy_together();
        }
        let (name, id) = self.new_name();
        let snapshot = self.rng.percent(60);
        let of_a_volume = snapshot && !self.model.volumes()[&source.name].snapshot;
        let name = if of_a_volume && self.rng.percent(50) { format!("{}@s{id}", source.name) } else { name };
        self.change(Change::Copy { source: source.name, name, id, snapshot })
    }

    /// Snapshots several volumes at one moment; each snapshot has its volume's name and a suffix.
    fn copy_together(&mut self) -> Result<(), String> {
        let room = self.setup.max_volumes.saturating_sub(self.model.volumes().len()).max(1);
        let all = self.model.volumes().iter().filter(|(name, one)| !one.snapshot && !self.is_out_of_reach(name, one));
        let mut names: Vec<String> = all.map(|(name, _)| name.clone()).collect();
        let most = self.rng.between(2, 5) as usize;
        while names.len() > most.min(room) {
            names.swap_remove(self.rng.below(names.len() as u64) as usize);
        }
        if names.is_empty() {
            return self.go_on();
        }
        let of = |source: String| {
            let id = self.counters.next_volume;
            self.counters.next_volume += 1;
            (source.clone(), format!("{source}@s{id}"), id)
        };
        let copies = names.into_iter().map(of).collect();
        self.change(Change::Together { copies })
    }

    fn delete(&mut self) -> Result<(), String> {
        match self.pick(true) {
            Some(target) => self.change(Change::Delete { name: target.name }),
            None => Ok(()),
        }
    }

    fn resize(&mut self) -> Result<(), String> {
        let Some(target) = self.pick(false) else { return Ok(()) };
        let size = self.new_size();
        let Some(max) = target.max else { return self.change(Change::Resize { name: target.name, size }) };
        let size = size.next_multiple_of(BLOCK);
        if self.rng.percent(40) {
            let reach = self.model.volume(target.id).map_or(0, |volume| volume.reach());
            return self.change(Change::Limit { name: target.name, max: size.max(reach).max(BLOCK) });
        }
        let size = if self.rng.percent(20) { 0 } else { size.min(max) };
        self.change(Change::Resize { name: target.name, size })
    }

    fn rollback(&mut self) -> Result<(), String> {
        let Some(target) = self.pick(false) else { return Ok(()) };
        let family = self.model.volumes()[&target.name].family;
        let of_family = self.model.volumes().iter().filter(|(_, one)| one.snapshot && one.family == family);
        let snapshots: Vec<String> = of_family.map(|(name, _)| name.clone()).collect();
        if snapshots.is_empty() {
            return Ok(());
        }
        let snapshot = self.rng.pick(&snapshots).clone();
        self.change(Change::Rollback { name: target.name, snapshot })
    }

    fn rename(&mut self) -> Result<(), String> {
        let Some(target) = self.pick(true) else { return Ok(()) };
        let (new, _) = self.new_name();
        if new == target.name {
            return Ok(());
        }
        self.change(Change::Rename { name: target.name, new })
    }
}

fn pending(volume: u32, what: Doing, pos: u64, len: u64) -> Pending {
    Pending { volume, what, pos, len, may_fail: false, given_back: 0 }
}
