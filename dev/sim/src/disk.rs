//! A simulated disk: a block driver over an image in memory, with a volatile cache, cut at will.
//!
//! Owns [`SimDisk`], its driver and its hardware queues: requests arrive and end in this module. [`media`] decides
//! which data is durable and what a crash leaves. A request that arrives waits for a seeded number of polls, so the
//! requests of one ring end in any order; of two rings, the one that is polled first gets its requests first. The disk
//! holds some requests for so long that much else happens meanwhile. Only one of the threads that use the disk runs at
//! a time ([`threads`](crate::threads)).
//!
//! The faults atlas, for a disk that keeps its promises (no [`Lie`]):
//!
//! | effect of a crash on a write that no flush has covered | volumes must |
//! |---|---|
//! | keep it, lose it, tear it between sectors of 512 B | survive, with nothing wrong to be seen |
//! | apply it after one that ended later, on the same sectors | survive |
//! | **errors of single requests** ([`Errors`]) | |
//! | a read fails; a write fails and takes effect, or not, or later by a crash | report it, serve nothing else, go on |
//! | a flush fails and the cache drops what it covered | report it; never call that data durable |
//! | a write finds the file system of the disk full, and is done in part | report it; flush, delete, close, open |
//! | **faults that never occur** | |
//! | loss or tearing of data that a flush or FUA covered | may rely on it |
//! | **faults in the modes for damage only** ([`Cut::misdirected`], [`corrupt`](crate::corrupt)) | |
//! | write it elsewhere; change a metadata block later | detect and name it, never act on its contents |
//!
//! The outcomes for volumes on a disk that breaks a promise ([`Lie`]) are in [`broken`](crate::broken).
//!
//! Volumes cannot tell two kinds of damage from a crash: damage to the journal's last commit, and damage to the newest
//! superblock while its twin is not durable (from a checkpoint to the next flush). Both are the youngest durable state.
//!
//! Invariant I1: the log has every step in the order in which the disk took it; its length is the disk's time.

pub mod cut;
mod host;
pub mod image;
pub mod left;
pub mod lie;
pub mod media;
mod memory;
mod options;

pub use cut::{Cut, Fate, Loose};
pub use image::{Image, PAGE, SECTOR};
pub use left::Left;
pub use lie::Lie;
pub use media::{Media, Step};
pub use options::{DiskOptions, Errors, Failures};

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use sheave_base::lasting::Lasting;
use sheave_base::status::Status;
use sheave_base::sync::{Arc, Mutex, MutexGuard};
use sheave_blk::bio::Op;
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::linear::concatenate;
use sheave_blk::request::{DoneList, RQ_FUA, Rq, RqList, RqQueue, RqTable};
use sheave_blk::{Device, DeviceError};
use sheave_vol::PoolError;
use sheave_vol::format::JOURNAL_START;

use crate::threads::pause;
use sheave_base::rng::{Rng, mix};

const DEPTH: u16 = 64;
/// Numbers of ticks for which a slow request may be held.
const HELD: [u64; 5] = [20, 50, 100, 300, 1000];
/// Misdirected writes per thousand, on a disk that [misdirects](Lie::Misdirects).
const MISDIRECTED: u64 = 80;
/// Most misdirected writes land at most this many blocks from their target.
const NEAR_BLOCKS: u64 = 40;
/// Number of steps of which one, on average, has a copy of the recent changes.
const LEFT_EVERY: u64 = 6;
const BLOCK_SECTORS: u64 = (PAGE / SECTOR) as u64;
/// The size of every member but the last is a multiple of this.
const MEMBER_BYTES: u64 = 1 << 20;

struct State {
    media: Media,
    log: Vec<Step>,
    next_id: u64,
    rng: Rng,
    /// Requests that arrived and have not ended.
    held: usize,
    /// Number of flushes that still succeed, and the number of flushes that fail after them.
    failing: (u32, u32),
    /// Number of ticks that have passed. Held requests count their time in ticks. Unused while `holds` is false.
    ticks: u64,
    holds: bool,
    /// Number of ticks for which the next read is held.
    next_read: Option<u64>,
    /// The full file system in which the disk is a file, if it is one.
    host: Option<host::Host>,
    failures: Failures,
    /// The recent changes of the pool on this disk. `left` has copies of them, each by the step that it precedes.
    recent: Option<Arc<Lasting>>,
    left: BTreeMap<usize, Left>,
}

impl State {
    fn step(&mut self, step: Step) {
        // Not before each step, because a run has thousands.
        if let Some(recent) = &self.recent
            && mix(self.log.len() as u64).is_multiple_of(LEFT_EVERY)
        {
            self.left.insert(self.log.len(), Left::of(recent));
        }
        self.media.step(&step);
        self.log.push(step); // I1
    }
}

impl State {
    /// Takes space for a write from the full file system, and truncates `data` to the part that gets space. Returns
    /// `None` if all of the data gets space. Otherwise returns true if a part of `data` is left. `frees` is the
    /// percentage of refusals after which other users free some space.
    fn find_space(&mut self, sector: u64, data: &mut Vec<u8>, frees: u64) -> Option<bool> {
        let got = self.host.as_mut()?.take(sector, data.len());
        if got == data.len() {
            return None;
        }
        data.truncate(got);
        if self.rng.percent(frees) {
            let pages = self.rng.between(1, 128);
            self.host.as_mut()?.free(pages);
        }
        Some(got > 0)
    }

    /// Returns true if the flush that ends now fails. Called once for each flush.
    fn flush_fails(&mut self) -> bool {
        let (good, count) = &mut self.failing;
        match (*good, *count) {
            (_, 0) => false,
            (0, _) => {
                *count -= 1;
                true
            }
            _ => {
                *good -= 1;
                false
            }
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "disk after {} steps", self.log.len())
    }
}

/// A simulated disk. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    options: Arc<DiskOptions>,
    /// The disks that it is made of, the spare one last.
    parts: Arc<Vec<Device>>,
    device: Option<Device>,
    /// True if the pool has the spare disk.
    grown: bool,
}

impl SimDisk {
    /// Returns a disk with `image` as its content, all of it durable.
    #[must_use]
    pub fn new(image: Image, options: DiskOptions) -> SimDisk {
        let rng = Rng::new(options.seed).fork(0xd15c);
        let media = Media::new(image, options.lie);
        let state = Arc::new(Mutex::new(State {
            media,
            log: Vec::new(),
            next_id: 0,
            rng,
            held: 0,
            ticks: 0,
            holds: false,
            next_read: None,
            host: None,
            failures: Failures::default(),
            failing: (0, 0),
            recent: None,
            left: BTreeMap::new(),
        }));
        let parts = Arc::new(Vec::new());
        let mut disk = SimDisk { state, options: Arc::new(options), parts, device: None, grown: false };
        let device = |member| Device::from_driver("sim:", Box::new(member));
        // All drivers are made before the disk has a device. A driver that held this device would keep itself alive
        // once the device is extended.
        let mut devices: Vec<Device> = disk.members().map(device).collect();
        let spare = disk.spare_member().map(device);
        disk.device = match devices.as_slice() {
            [one] => Some(one.clone()),
            many => concatenate("sim:", many).ok(),
        };
        devices.extend(spare);
        disk.parts = Arc::new(devices);
        disk
    }

    fn base_bytes(&self) -> u64 {
        self.lock().media.current().size_bytes() - self.options.spare
    }

    fn members(&self) -> impl Iterator<Item = Member> + '_ {
        let (bytes, count) = (self.base_bytes(), self.options.members.max(1));
        let each = bytes / count / MEMBER_BYTES * MEMBER_BYTES;
        (0..count).map(move |at| Member {
            disk: self.clone(),
            start: at * each,
            bytes: if at + 1 < count { each } else { bytes - at * each },
        })
    }

    fn spare_member(&self) -> Option<Member> {
        let bytes = self.options.spare;
        (bytes > 0).then(|| Member { disk: self.clone(), start: self.base_bytes(), bytes })
    }

    /// Returns the spare disk, unless the pool has it already.
    #[must_use]
    pub fn spare(&self) -> Option<Device> {
        self.parts.last().filter(|_| self.options.spare > 0 && !self.grown).cloned()
    }

    /// Records that the pool now uses the spare disk, or the space by which the disk was extended.
    pub fn has_grown(&mut self) {
        self.grown = true;
    }

    /// Returns the disk of a pool that has the spare disk: this disk with the spare one joined to it.
    pub fn joined(&self) -> Result<SimDisk, PoolError> {
        let device = sheave_vol::join("sim:", &self.parts)?;
        Ok(SimDisk { device: Some(device), grown: true, ..self.clone() })
    }

    /// Returns the disk as a device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device.clone().expect("`new` has made it; only the drivers inside have none")
    }

    /// Returns the number of steps that the disk has taken, which is its time.
    #[must_use]
    pub fn time(&self) -> usize {
        self.lock().log.len()
    }

    /// Returns the number of requests that arrived and have not ended.
    #[must_use]
    pub fn held(&self) -> usize {
        self.lock().held
    }

    /// Lets `good` more flushes succeed and the next `count` fail. As with kernels and disks, the cache drops what a
    /// failed flush covered: readers see the data until the power goes, and no later flush makes it durable.
    pub fn fail_flushes(&self, good: u32, count: u32) {
        self.lock().failing = (good, count);
    }

    /// Leaves the file system that holds the disk with `room` free pages, if [`DiskOptions::host`] is set.
    pub fn fill_host(&self, room: u64) {
        let state = &mut *self.lock();
        if self.options.host.is_some() {
            state.host = Some(host::Host::new(state.media.current(), room));
        }
    }

    /// Sets whether other users of the file system take at once what the disk gives back to it.
    pub fn share_host(&self, has_others: bool) {
        if let Some(host) = &mut self.lock().host {
            host.set_others(has_others);
        }
    }

    #[must_use]
    pub fn failures(&self) -> Failures {
        self.lock().failures
    }

    /// Sets whether slow requests are held. When set to false, those that are held end soon: the simulator's own thread
    /// would otherwise wait for them for ever.
    pub fn hold(&self, holds: bool) {
        self.lock().holds = holds;
    }

    /// Holds the next read that arrives for `ticks` ticks.
    pub fn hold_next_read(&self, ticks: u64) {
        self.lock().next_read = Some(ticks);
    }

    /// Lets one tick pass for held requests.
    pub fn tick(&self) {
        self.lock().ticks += 1;
    }

    #[must_use]
    pub fn log(&self) -> Vec<Step> {
        self.lock().log.clone()
    }

    /// Returns the contents that readers see now.
    #[must_use]
    pub fn image(&self) -> Image {
        self.lock().media.current().clone()
    }

    /// Returns the contents left if the power goes now.
    #[must_use]
    pub fn crash(&self, rng: &mut Rng) -> (Image, Cut) {
        self.lock().media.crash(rng)
    }

    /// Gives the disk memory for recent changes of its pool, with what the death of a process has left in it.
    #[must_use]
    pub fn with_recent(self, left: Option<&Left>) -> SimDisk {
        let recent = Lasting::in_memory(left::NUMBERS).expect("memory");
        left.iter().for_each(|left| left.put(&recent));
        self.lock().recent = Some(Arc::new(recent));
        self
    }

    /// Returns the memory for recent changes, if there is any.
    #[must_use]
    pub fn recent(&self) -> Option<Arc<Lasting>> {
        self.lock().recent.clone()
    }

    /// Returns what the death of the process would have left in that memory before some of the steps, and now.
    #[must_use]
    pub fn left(&self) -> BTreeMap<usize, Left> {
        let state = self.lock();
        let mut left = state.left.clone();
        left.extend(state.recent.as_ref().map(|recent| (state.log.len(), Left::of(recent))));
        left
    }

    /// Returns the writes that are not durable.
    #[must_use]
    pub fn loose(&self) -> Vec<Loose> {
        self.lock().media.loose()
    }

    /// Returns the contents left if the power goes now and one of the loose writes landed at the sector that `to`
    /// returns. Used where damage must be detected.
    #[must_use]
    pub fn misdirect(&self, rng: &mut Rng, to: impl Fn(&mut Rng) -> u64) -> (Image, Cut) {
        let state = self.lock();
        let mut cut = Cut::draw(&state.media.loose(), rng);
        if !cut.fates.is_empty() {
            cut.misdirected = Some((rng.below(cut.fates.len() as u64) as usize, to(rng)));
        }
        (state.media.crash_as(&cut), cut)
    }

    fn draws_pause(&self) -> bool {
        let pauses = self.options.pauses;
        self.lock().rng.percent(pauses)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the state panics")
    }
}

/// One of the disks that a simulated disk is made of.
#[derive(Debug)]
struct Member {
    disk: SimDisk,
    /// First byte within the whole.
    start: u64,
    bytes: u64,
}

#[allow(unsafe_code)] // Whoever makes a driver vouches for the memory of its requests.
// SAFETY: D7: the limits and the size are those of the disk to which its queues send requests.
unsafe impl Driver for Member {
    fn limits(&self) -> Limits {
        Limits::default()
            .logical_block(self.disk.options.logical_block)
            .max_sectors(256)
            .max_segments(64)
            .max_discard_sectors(4096)
            .max_write_zeroes_sectors(4096)
            .queue_depth(DEPTH)
    }

    fn lasting(&self) -> Option<[u64; 2]> {
        Some([1, self.start])
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .fua(self.disk.options.fua)
            .volatile_cache(true)
            .discard(true)
            .write_zeroes(true)
            .polled(true)
            .direct_io(true)
            .sparse(self.disk.options.host.is_some())
    }

    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn open_hctx(&self, _: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        let held = RqQueue::with_depth(DEPTH);
        let sectors = self.start / SECTOR as u64..(self.start + self.bytes) / SECTOR as u64;
        Ok(Box::new(SimQueue { disk: self.disk.clone(), sectors, held, due: Vec::new(), polls: 0 }))
    }
}

/// A request that a hardware queue holds.
#[derive(Clone, Copy, Debug)]
struct Due {
    tag: u16,
    id: u64,
    /// Number of the poll in which the request ends.
    poll: u64,
    /// Number of the first tick in which the request may end.
    tick: u64,
    /// Set if the file system was full when the request arrived. True if a part of the request is done nevertheless.
    refused: Option<bool>,
}

/// One ring's path to the disk.
#[derive(Debug)]
struct SimQueue {
    disk: SimDisk,
    /// The sectors of this queue's member within the whole disk.
    sectors: Range<u64>,
    held: RqQueue,
    due: Vec<Due>,
    polls: u64,
}

impl SimQueue {
    /// Takes a request: its effect is logged, and its end scheduled.
    fn come(&mut self, rq: Rq, rqs: &RqTable<'_>) {
        let state = &mut *self.disk.lock();
        let request = rqs.get(&rq);
        let sector = self.sectors.start + request.sector;
        let id = state.next_id;
        state.next_id += 1;
        let data = match request.op {
            Op::Flush => {
                state.step(Step::Flush { id, sectors: self.sectors.clone() });
                None
            }
            Op::Write => Some(memory::gather(rqs, &rq)),
            Op::WriteZeroes => Some(vec![0; request.bytes as usize]),
            Op::Discard => Some(discarded(state, sector, request.bytes)),
            _ => None,
        };
        let mut refused = None;
        if let Some(mut data) = data {
            let fua = request.flags & RQ_FUA != 0;
            if request.op != Op::Discard {
                refused = state.find_space(sector, &mut data, self.disk.options.host.unwrap_or(0));
            } else if let Some(host) = &mut state.host {
                host.give_back(sector, data.len());
            }
            let lies = state.holds && self.disk.options.lie == Some(Lie::Misdirects);
            let sector =
                if lies && request.op == Op::Write { self.misdirected(state, sector, data.len()) } else { sector };
            state.step(Step::Write { id, sector, data: data.into(), fua });
        }
        state.held += 1;
        let delay = state.rng.below(self.disk.options.max_delay + 1);
        let slow = (state.holds && state.rng.percent(self.disk.options.slow)).then(|| *state.rng.pick(&HELD));
        let asked = if request.op == Op::Read { state.next_read.take() } else { None };
        let tick = asked.or(slow).map_or(0, |ticks| state.ticks + ticks);
        self.due.push(Due { tag: rq.tag(), id, poll: self.polls + 1 + delay, tick, refused });
        self.held.push(rq);
    }

    /// Returns the sector at which a write to `sector` lands. Rarely this is another one, near by or anywhere on the
    /// same member.
    fn misdirected(&self, state: &mut State, sector: u64, bytes: usize) -> u64 {
        let last = self.sectors.end - (bytes / SECTOR) as u64;
        if state.rng.below(1000) >= MISDIRECTED {
            return sector;
        }
        let blocks = (last - self.sectors.start) / BLOCK_SECTORS;
        let near = (sector - self.sectors.start) / BLOCK_SECTORS + state.rng.between(1, NEAR_BLOCKS);
        let block = if state.rng.percent(70) && near <= blocks { near } else { state.rng.below(blocks + 1) };
        state.failures.misdirected += 1;
        self.sectors.start + block * BLOCK_SECTORS
    }

    /// Ends a request with its result.
    fn end(&self, due: Due, rq: Rq, rqs: &RqTable<'_>, done_list: &mut DoneList) {
        let state = &mut *self.disk.lock();
        let request = rqs.get(&rq);
        state.held -= 1;
        if let Some(done) = due.refused {
            state.step(Step::Fail { id: due.id, done });
            state.failures.refused += 1;
            done_list.push(rq, Status::NoSpc);
            return;
        }
        let sector = self.sectors.start + request.sector;
        let journal = JOURNAL_START..JOURNAL_START + self.disk.options.journal;
        let in_journal = journal.contains(&(sector * SECTOR as u64));
        let chance = self.disk.options.errors.chance(request.op, in_journal);
        if state.holds && chance > 0 && state.rng.below(1000) < chance {
            if request.op != Op::Read {
                let done = state.rng.percent(50);
                state.step(Step::Fail { id: due.id, done });
            }
            state.failures.count(request.op, request.flags & RQ_FUA != 0);
            done_list.push(rq, Status::IoErr);
            return;
        }
        if request.op == Op::Read {
            let mut bytes = vec![0; request.bytes as usize];
            state.media.current().read(sector, &mut bytes);
            memory::scatter(rqs, &rq, &bytes);
        } else if request.op == Op::Flush && state.flush_fails() {
            state.step(Step::Fail { id: due.id, done: false });
            state.failures.count(Op::Flush, false);
            done_list.push(rq, Status::IoErr);
            return;
        } else {
            state.step(Step::End { id: due.id });
        }
        done_list.push(rq, Status::Ok);
    }

    /// Ends the requests that are due in this poll, or all of them if `all`.
    fn end_due(&mut self, all: bool, rqs: &RqTable<'_>, done: &mut DoneList) {
        let (ticks, holds) = {
            let state = self.disk.lock();
            (state.ticks, state.holds)
        };
        let is_ready = |due: &Due| all || (due.poll <= self.polls && (due.tick <= ticks || !holds));
        let mut ready: Vec<Due> = self.due.extract_if(.., |due| is_ready(due)).collect();
        ready.sort_by_key(|due| (due.poll, due.id));
        for due in ready {
            if let Some(rq) = self.held.remove(due.tag) {
                self.end(due, rq, rqs, done);
            }
        }
    }
}

/// Returns the bytes of a discarded range: those it held, zeroes, or bytes that no write put there.
fn discarded(state: &mut State, sector: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    match state.rng.below(3) {
        0 => state.media.current().read(sector, &mut bytes),
        1 => {}
        _ => bytes.fill(0xdc),
    }
    bytes
}

#[allow(unsafe_code)] // Whoever makes a driver vouches for the memory of its requests.
// SAFETY: D1 to D6: what the disk holds is in its table by token, and ends there once, after its bytes were moved.
unsafe impl HwQueue for SimQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        while let Some(rq) = list.pop() {
            self.come(rq, rqs);
        }
    }

    fn poll(&mut self, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        if !self.due.is_empty() {
            if self.disk.draws_pause() {
                pause();
            }
            self.polls += 1;
            self.end_due(false, rqs, done);
        }
    }

    fn next_event(&self) -> NextEvent {
        if self.due.is_empty() { NextEvent::Idle } else { NextEvent::Ready }
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.end_due(true, rqs, done);
    }
}

#[cfg(test)]
mod tests;
