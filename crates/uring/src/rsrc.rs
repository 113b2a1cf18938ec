//! Resources: the ring's files (its `fd` table and the registered table) and its registered buffers.
//!
//! Owns the tables and their update while in use. A detached file or a replaced buffer stays until the last request
//! that uses it has ended. Requests keep no counter for that: the table looks for the requests that use an entry when
//! the entry changes.
//!
//! Invariants:
//! - I1: an open file is closed (and leaves its grace) when no table names it and no request uses it.
//! - I2: a buffer's memory is freed only after no request in flight can touch it.
//! - I3: an `fd` names one file for the life of the ring: each file in a place of the table has its own generation.

pub(crate) mod contained;

use sheave_base::buf::Buf;
use sheave_base::identity;
use sheave_iomap::Kiocb;
use sheave_iomap::dio::OpenFile;

use crate::file_work::FileWork;
use crate::task_work::RingHandle;

/// An entry of one ring's file table. Not a descriptor of the process.
///
/// Names only the file that [`Ring::attach`](crate::Ring::attach) returned it for: after
/// [`Ring::detach`](crate::Ring::detach), and in any other ring, it gives `EBADF`, whatever was attached since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fd {
    /// Index in the table in the lower [`INDEX_BITS`], generation of the place above them.
    raw: i32,
    /// Number of the ring, or 0 for none.
    ring: u64,
}

impl Fd {
    /// Names nothing: an empty entry of the registered table. An operation on it gives `EBADF`.
    pub const NONE: Fd = Fd { raw: -1, ring: 0 };

    /// Returns the `fd` for SQEs that are filled by hand for the same ring. A detached `Fd` is refused there, too; an
    /// `Fd` of another ring is not, because an SQE does not say which ring its `fd` is of.
    #[inline]
    pub const fn raw(self) -> i32 {
        self.raw
    }
}

impl Fd {
    #[inline]
    pub(crate) const fn ring(self) -> u64 {
        self.ring
    }
}

impl From<Fd> for i32 {
    fn from(fd: Fd) -> i32 {
        fd.raw
    }
}

/// An entry of the registered table ([`Ring::register_files`](crate::Ring::register_files)). Names whatever is
/// registered there when the operation starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedFile(
    /// Index of the entry.
    pub u32,
);

/// Target of an operation: an [`Fd`] or a [`FixedFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileRef {
    pub(crate) fd: i32,
    /// The ring that `fd` belongs to; 0 for none, or for an index of the registered table.
    pub(crate) ring: u64,
    pub(crate) is_fixed: bool,
}

impl From<Fd> for FileRef {
    #[inline]
    fn from(fd: Fd) -> FileRef {
        FileRef { fd: fd.raw, ring: fd.ring, is_fixed: false }
    }
}

impl From<FixedFile> for FileRef {
    #[inline]
    fn from(FixedFile(index): FixedFile) -> FileRef {
        FileRef { fd: index as i32, ring: 0, is_fixed: true }
    }
}

/// Bits of an `fd` that hold the index. The generation is above them, and the sign bit stays clear.
const INDEX_BITS: u32 = 20;
pub(crate) const MAX_FILES: usize = 1 << INDEX_BITS;
/// Generations of a place. A place that has used all of them stays empty, so no number ever names two files.
const GENERATIONS: u32 = 1 << (31 - INDEX_BITS);

/// Entry of the file table.
#[derive(Debug)]
enum Registered {
    File(OpenFile),
    /// Another ring, or this one: a target of MSG_RING.
    Ring(RingHandle),
}

#[derive(Debug)]
struct Slot {
    entry: Registered,
    /// Number of files that had the place before (I3).
    generation: u32,
    /// The file's own `fd` still names it.
    attached: bool,
    /// Number of entries of the registered table that name the file.
    registered: u32,
    /// Batches of completion work and syncs that the file's requests wait for.
    work: FileWork,
}

#[derive(Debug)]
pub(crate) struct FileTable {
    ring: u64,
    slots: Vec<Option<Slot>>,
    /// Generation of the next file in each place.
    generations: Vec<u32>,
    fixed: Vec<Option<u32>>,
    /// True if a sweep may find a slot to close.
    closing: bool,
    /// Files in a section of their grace, until the end of the batch.
    inside: Vec<u32>,
    version: u64,
}

impl Default for FileTable {
    fn default() -> FileTable {
        FileTable {
            ring: identity::unique(),
            slots: Vec::new(),
            generations: Vec::new(),
            fixed: Vec::new(),
            closing: false,
            inside: Vec::new(),
            version: 0,
        }
    }
}

impl FileTable {
    /// Returns the number of the ring, as its [`Fd`]s have it.
    #[inline(always)]
    pub(crate) fn ring_number(&self) -> u64 {
        self.ring
    }

    /// Returns the `fd` for an SQE of this ring: that of `Fd::NONE` if the `Fd` belongs to another ring.
    #[inline]
    pub(crate) fn raw(&self, fd: Fd) -> i32 {
        if fd.ring == self.ring { fd.raw } else { Fd::NONE.raw }
    }

    /// Returns the place for the next file; `None` if all places are in use or used up.
    fn free_place(&self) -> Option<usize> {
        let is_free = |at: &usize| self.slots[*at].is_none() && self.generations[*at] < GENERATIONS;
        let free = (0..self.slots.len()).find(is_free);
        free.or_else(|| (self.slots.len() < MAX_FILES).then_some(self.slots.len()))
    }

    pub(crate) fn has_room(&self) -> bool {
        self.free_place().is_some()
    }

    /// Returns a number that changes with every change of the files that an SQE can name.
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    fn add(&mut self, entry: Registered, work: FileWork) -> Option<Fd> {
        let at = self.free_place()?;
        self.version += 1;
        if at == self.slots.len() {
            self.slots.push(None);
            self.generations.push(0);
        }
        let generation = self.generations[at];
        self.generations[at] += 1;
        self.slots[at] = Some(Slot { entry, generation, attached: true, registered: 0, work });
        Some(Fd { raw: (generation << INDEX_BITS) as i32 | at as i32, ring: self.ring })
    }

    /// Adds a file. `slots` is the number of request slots of the ring.
    pub(crate) fn add_file(&mut self, file: OpenFile, slots: u32) -> Option<Fd> {
        let work = if file.is_identity() { FileWork::default() } else { FileWork::with_room(slots) };
        self.add(Registered::File(file), work)
    }

    pub(crate) fn add_ring(&mut self, ring: RingHandle) -> Option<Fd> {
        self.add(Registered::Ring(ring), FileWork::default())
    }

    /// Returns the slot that a request names.
    #[inline]
    pub(crate) fn resolve_any(&self, fd: i32, fixed: bool) -> Option<usize> {
        if fixed {
            return Some((*self.fixed.get(fd as u32 as usize)?)? as usize);
        }
        // A negative `fd` has a generation that no file reaches, and so names nothing.
        let at = fd as u32 as usize % MAX_FILES;
        let slot = self.slots.get(at)?.as_ref()?;
        (slot.attached && slot.generation == fd as u32 >> INDEX_BITS).then_some(at)
    }

    /// Returns the slot that an operation names, if it holds a file.
    #[inline]
    pub(crate) fn resolve(&self, fd: i32, fixed: bool) -> Option<usize> {
        let at = self.resolve_any(fd, fixed)?;
        self.get(at).map(|_| at)
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&OpenFile> {
        match &self.slots.get(at)?.as_ref()?.entry {
            Registered::File(file) => Some(file),
            Registered::Ring(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut OpenFile> {
        match &mut self.slots.get_mut(at)?.as_mut()?.entry {
            Registered::File(file) => Some(file),
            Registered::Ring(_) => None,
        }
    }

    /// Returns the number of places, free ones included.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the batches of completion work and syncs of a file.
    pub(crate) fn work(&mut self, at: usize) -> Option<&mut FileWork> {
        self.slots.get_mut(at)?.as_mut().map(|slot| &mut slot.work)
    }

    /// Begins a section of the file's grace, if it has one, until the end of the batch.
    #[inline]
    pub(crate) fn enter(&mut self, at: usize) {
        if self.get(at).is_some_and(OpenFile::enter) {
            self.inside.push(at as u32);
        }
    }

    /// Ends all open sections, at the end of a batch.
    #[inline]
    pub(crate) fn leave(&mut self) {
        while let Some(at) = self.inside.pop() {
            if let Some(file) = self.get(at as usize) {
                file.leave();
            }
        }
    }

    /// Leaves the graces of all files. Called when all I/O, with its completion work, has ended.
    pub(crate) fn leave_graces(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            if let Registered::File(file) = &mut slot.entry {
                file.leave_grace();
            }
        }
    }

    /// Uncounts an I/O of a file that has ended; only a sync may follow.
    #[inline(always)]
    pub(crate) fn uncount(&self, at: u32, kiocb: &mut Kiocb) {
        if let Some(file) = self.get(at as usize) {
            file.uncount(kiocb);
        }
    }

    /// Uncounts `ios` I/Os of a file that have ended and whose kiocbs have these flags.
    #[inline]
    pub(crate) fn uncount_many(&self, at: u32, flags: u16, ios: u32) {
        if let Some(file) = self.get(at as usize) {
            file.uncount_many(flags, ios);
        }
    }

    pub(crate) fn ring(&self, at: usize) -> Option<&RingHandle> {
        match &self.slots.get(at)?.as_ref()?.entry {
            Registered::Ring(ring) => Some(ring),
            Registered::File(_) => None,
        }
    }

    /// Returns how many entries are handles of this ring.
    pub(crate) fn handles_of(&self, handle: &RingHandle) -> usize {
        let same = |slot: &&Slot| matches!(&slot.entry, Registered::Ring(ring) if ring.same(handle));
        self.slots.iter().flatten().filter(same).count()
    }

    pub(crate) fn pos(&self, at: usize) -> u64 {
        self.get(at).map_or(0, |file| file.pos)
    }

    pub(crate) fn advance_pos(&mut self, at: usize, bytes: u64) {
        if let Some(Some(Slot { entry: Registered::File(file), .. })) = self.slots.get_mut(at) {
            file.pos += bytes;
        }
    }

    /// Detaches the `fd`. Returns false if there was none. [`FileTable::sweep`] drops the file once it is unused.
    pub(crate) fn detach(&mut self, fd: Fd) -> bool {
        let Some(at) = self.resolve_any(self.raw(fd), false) else { return false };
        let Some(slot) = &mut self.slots[at] else { return false };
        slot.attached = false;
        self.version += 1;
        self.closing = true;
        true
    }

    /// Replaces the registered table, with an empty entry for each [`Fd::NONE`]. `Err` is the index that names no file.
    pub(crate) fn register(&mut self, fds: &[Fd]) -> Result<(), usize> {
        let is_bad = |fd: &Fd| *fd != Fd::NONE && self.resolve_any(self.raw(*fd), false).is_none();
        if let Some(at) = fds.iter().position(is_bad) {
            return Err(at);
        }
        self.unregister();
        self.fixed = vec![None; fds.len()];
        for (at, fd) in fds.iter().enumerate() {
            self.set_fixed(at, *fd)?;
        }
        Ok(())
    }

    /// Returns the number of entries of the registered table.
    pub(crate) fn registered(&self) -> usize {
        self.fixed.len()
    }

    /// Changes one entry of the registered table; [`Fd::NONE`] empties it. Requests in flight keep their file.
    pub(crate) fn set_fixed(&mut self, at: usize, fd: Fd) -> Result<(), usize> {
        let new = match fd {
            Fd::NONE => None,
            fd => Some(self.resolve_any(self.raw(fd), false).ok_or(at)? as u32),
        };
        let entry = self.fixed.get_mut(at).ok_or(at)?;
        self.version += 1;
        let old = std::mem::replace(entry, new);
        if let Some(Some(slot)) = new.map(|new| self.slots[new as usize].as_mut()) {
            slot.registered += 1;
        }
        if let Some(Some(slot)) = old.map(|old| self.slots[old as usize].as_mut()) {
            slot.registered -= 1;
            self.closing = true;
        }
        Ok(())
    }

    pub(crate) fn unregister(&mut self) {
        for at in 0..self.fixed.len() {
            // Emptying an entry within the table always succeeds.
            let _ = self.set_fixed(at, Fd::NONE);
        }
        self.fixed.clear();
    }

    /// Returns true if a sweep may find something to close.
    #[inline]
    pub(crate) fn wants_sweep(&self) -> bool {
        self.closing
    }

    /// Closes the files that no table names and no request uses. Returns the devices to detach (numbers in the block
    /// layer).
    pub(crate) fn sweep(&mut self, in_use: impl Fn(usize) -> bool) -> Vec<u16> {
        self.closing = false;
        let mut devices = Vec::new();
        for at in 0..self.slots.len() {
            let Some(slot) = &self.slots[at] else { continue };
            if slot.attached || slot.registered > 0 {
                continue;
            }
            if in_use(at) {
                self.closing = true;
                continue;
            }
            if let Registered::File(file) = &slot.entry {
                devices.push(file.bdev);
            }
            self.slots[at] = None;
            self.version += 1;
        }
        devices
    }
}

#[derive(Debug)]
struct RegBuf {
    base: u64,
    len: u64,
    /// The memory, if the ring owns it.
    owned: Option<Buf>,
}

#[derive(Debug, Default)]
pub(crate) struct BufTable {
    bufs: Vec<Option<RegBuf>>,
    /// Address and length of each buffer, zeroes for none. Kept apart from `bufs`, so that pushes and submissions touch
    /// few cache lines.
    ranges: Vec<(u64, u64)>,
    /// Replaced buffers that are still used.
    retired: Vec<Retired>,
    version: u64,
}

/// A buffer that was replaced while it was used.
#[derive(Debug)]
struct Retired {
    buf: RegBuf,
    /// Number of slots that still use it.
    slots: u32,
    /// True until a sweep finds no plain record that uses it.
    records: bool,
}

impl Retired {
    fn is_used(&self) -> bool {
        self.slots > 0 || self.records
    }
}

impl BufTable {
    /// Returns a number that changes with every change of the buffers that an SQE can name.
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns true if `[addr, addr + len)` lies within the buffer.
    #[inline(always)]
    pub(crate) fn covers(&self, index: u16, addr: u64, len: u64) -> bool {
        match self.bufs.get(usize::from(index)) {
            Some(Some(buf)) => len <= buf.len && addr.wrapping_sub(buf.base) <= buf.len - len,
            _ => false,
        }
    }

    /// Does [`covers`](Self::covers) with fewer loads. `len` must not be 0.
    #[inline(always)]
    pub(crate) fn covers_some(&self, index: u16, addr: u64, len: u64) -> bool {
        debug_assert!(len > 0, "a range without bytes would lie in a buffer that is not there");
        let range = self.ranges.get(usize::from(index));
        range.is_some_and(|&(base, bytes)| len <= bytes && addr.wrapping_sub(base) <= bytes - len)
    }

    /// Returns the address of a buffer; 0 if there is none.
    #[inline(always)]
    pub(crate) fn base(&self, index: u16) -> u64 {
        self.ranges.get(usize::from(index)).map_or(0, |&(base, _)| base)
    }

    pub(crate) fn len(&self) -> usize {
        self.bufs.len()
    }

    pub(crate) fn range(&self, index: u16) -> Option<(u64, u64)> {
        self.bufs.get(usize::from(index))?.as_ref().map(|buf| (buf.base, buf.len))
    }

    pub(crate) fn get(&self, index: u16) -> Option<&Buf> {
        self.bufs.get(usize::from(index))?.as_ref()?.owned.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u16) -> Option<&mut Buf> {
        self.bufs.get_mut(usize::from(index))?.as_mut()?.owned.as_mut()
    }

    pub(crate) fn resize(&mut self, len: usize) {
        self.version += 1;
        self.bufs.resize_with(len, || None);
        self.ranges.resize(len, (0, 0));
    }

    /// Replaces a buffer (or none). The old one is returned, or kept while `slots` slots and, with `records`, plain
    /// records still use it.
    pub(crate) fn replace(
        &mut self,
        index: u16,
        new: Option<(u64, u64, Option<Buf>)>,
        slots: u32,
        records: bool,
    ) -> Option<Buf> {
        let new = new.map(|(base, len, owned)| RegBuf { base, len, owned });
        let slot = self.bufs.get_mut(usize::from(index))?;
        self.version += 1;
        self.ranges[usize::from(index)] = new.as_ref().map_or((0, 0), |buf| (buf.base, buf.len));
        let old = std::mem::replace(slot, new)?;
        let old = Retired { buf: old, slots, records };
        if !old.is_used() {
            return old.buf.owned;
        }
        self.retired.push(old);
        None
    }

    /// Returns true if a sweep may find a replaced buffer to free.
    #[inline]
    pub(crate) fn wants_sweep(&self) -> bool {
        self.retired.iter().any(|old| old.records)
    }

    /// Frees replaced buffers that are unused. `in_use` returns true if plain records use an address range.
    pub(crate) fn sweep(&mut self, in_use: impl Fn(u64, u64) -> bool) {
        self.retired.retain_mut(|old| {
            old.records = old.records && in_use(old.buf.base, old.buf.len);
            old.is_used()
        });
    }

    /// Ends the use of a replaced buffer by a request with this address.
    pub(crate) fn put_retired(&mut self, addr: u64) {
        let holds = |old: &Retired| old.slots > 0 && addr >= old.buf.base && addr - old.buf.base < old.buf.len;
        if let Some(at) = self.retired.iter().position(holds) {
            self.retired[at].slots -= 1;
            if !self.retired[at].is_used() {
                self.retired.swap_remove(at);
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
