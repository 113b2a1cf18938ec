//! A queue of a virtio-blk driver: requests become descriptors, and used entries become completions.
//!
//! Owns the free descriptors, the requests in flight and the three eventfds of one queue. Does not own the connection:
//! [`crate::Driver`] tells the back-end about the queue. A queue can go to a thread of its own.
//!
//! - Q1: descriptors are taken from lists in this process, and never from shared memory, which the back-end could have
//!   changed.
//! - Q2: each head in a used entry must be one in flight, and with IN_ORDER the entries follow the order of submission;
//!   else [`Error::Ring`] names the rule that the back-end has broken.
//! - Q3: a descriptor is free again only when its request was used.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::features;
use crate::memory::{GuestMemory, Region, full_fence};
use crate::ring::{self, DESCRIPTOR_LEN, Descriptor, INDIRECT, NEXT, Ring, WRITE};

/// Status of a request that ended well.
pub const STATUS_OK: u8 = 0;
/// Status of a request that failed.
pub const STATUS_IOERR: u8 = 1;
/// Status of a request that the device does not support.
pub const STATUS_UNSUPP: u8 = 2;
/// Content of a status byte that the back-end has not written.
pub const STATUS_UNWRITTEN: u8 = 0xFF;

/// Number of bytes of a serial number.
pub const ID_LEN: u32 = 20;

/// Bytes of each request for what is not data: header at 0, status at 16, range or serial number at 32.
const SLOT_LEN: usize = 64;
const HEADER_LEN: u32 = 16;
const STATUS_AT: usize = 16;
const EXTRA_AT: usize = 32;
const RANGE_LEN: u32 = 16;

/// A kind of request, with its number in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of the specification.
pub enum Operation {
    Read,
    Write,
    Flush,
    GetId,
    Discard,
    WriteZeroes,
    /// Any number. The back-end writes the data of the request if the flag is true.
    Other(u32, bool),
}

impl Operation {
    /// Returns the number in the header of a request.
    pub fn number(self) -> u32 {
        match self {
            Operation::Read => 0,
            Operation::Write => 1,
            Operation::Flush => 4,
            Operation::GetId => 8,
            Operation::Discard => 11,
            Operation::WriteZeroes => 13,
            Operation::Other(number, _) => number,
        }
    }

    fn is_written_by_the_back_end(self) -> bool {
        matches!(self, Operation::Read | Operation::GetId | Operation::Other(_, true))
    }
}

/// A piece of the data of a request: guest address and number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Guest address.
    pub address: u64,
    /// Number of bytes.
    pub len: u32,
}

/// A piece of a chain, for requests of any form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Guest address.
    pub address: u64,
    /// Number of bytes.
    pub len: u32,
    /// True if the back-end writes the piece.
    pub writable: bool,
}

/// A request in flight: the number of its first descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u16);

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The request.
    pub token: Token,
    /// Status byte, [`STATUS_UNWRITTEN`] if the back-end has not written it.
    pub status: u8,
    /// Number of bytes that the back-end claims to have written. An in-order back-end tells it for the last request of
    /// a batch only; it is 0 for the others.
    pub len: u32,
}

/// A request in flight, at the number of its head.
#[derive(Debug, Clone, Copy, Default)]
struct InFlight {
    /// Number of descriptors in the table of the queue; 0 if none is in flight.
    descriptors: u16,
    last: u16,
}

/// A queue of the driver.
#[derive(Debug)]
pub struct DriverQueue {
    number: u16,
    ring: Ring,
    memory: GuestMemory,
    kick: std::fs::File,
    call: std::fs::File,
    err: std::fs::File,
    event_idx: bool,
    in_order: bool,
    indirect: bool,
    /// Region and offset of the slots and of the indirect tables.
    own: Arc<Region>,
    slots: usize,
    tables: usize,
    most_pieces: usize,
    /// Number of the next free descriptor, at the number of each free one.
    links: Vec<u16>,
    free_head: u16,
    free: u16,
    in_flight: Vec<InFlight>,
    /// Heads in the order of submission, with IN_ORDER.
    order: VecDeque<u16>,
    /// Index of the avail ring that the back-end sees after the next [`DriverQueue::publish`], and the one of the last
    /// kick.
    avail_index: u16,
    kicked_index: u16,
    used_index: u16,
    pieces: Vec<Piece>,
    ready: VecDeque<Completion>,
    /// Guest address and length of the memory that calls with bytes of the caller use.
    bounce: (u64, usize),
}

impl DriverQueue {
    pub(crate) fn new(
        number: u16,
        size: u16,
        most_pieces: usize,
        negotiated: u64,
        memory: &GuestMemory,
    ) -> Result<Self> {
        let ring = Ring::alloc(memory, size)?;
        let slots_len = u64::from(size) * SLOT_LEN as u64;
        let tables_len = u64::from(size) * most_pieces as u64 * DESCRIPTOR_LEN;
        let address = memory.alloc(slots_len + tables_len, 64)?;
        let (own, slots) = memory.find(address, slots_len + tables_len).ok_or(Error::NoRoom(slots_len))?;
        // Non-blocking like QEMU's and Cloud Hypervisor's, so that each back-end sees the same driver: some make the
        // eventfds non-blocking, which both ends share.
        let event = || {
            let made = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
            made.map(std::fs::File::from).map_err(|error| Error::system("cannot make an eventfd", error))
        };
        let mut queue = DriverQueue {
            number,
            ring,
            memory: memory.clone(),
            kick: event()?,
            call: event()?,
            err: event()?,
            event_idx: false,
            in_order: false,
            indirect: false,
            own,
            slots,
            tables: slots + slots_len as usize,
            most_pieces,
            links: Vec::new(),
            free_head: 0,
            free: size,
            in_flight: Vec::new(),
            order: VecDeque::new(),
            avail_index: 0,
            kicked_index: 0,
            used_index: 0,
            pieces: Vec::new(),
            ready: VecDeque::new(),
            bounce: (0, 0),
        };
        queue.restart(negotiated);
        Ok(queue)
    }

    /// Forgets all requests and clears the ring, as a guest does that starts again. The back-end must have stopped the
    /// queue.
    pub fn restart(&mut self, negotiated: u64) {
        let size = self.ring.size();
        self.event_idx = negotiated & features::EVENT_IDX != 0;
        self.in_order = negotiated & features::IN_ORDER != 0;
        self.indirect = negotiated & features::INDIRECT_DESC != 0;
        self.links = (0..size).map(|at| (at + 1) % size).collect();
        (self.free_head, self.free) = (0, size);
        self.in_flight = vec![InFlight::default(); usize::from(size)];
        self.order.clear();
        (self.avail_index, self.kicked_index, self.used_index) = (0, 0, 0);
        self.ready.clear();
        self.ring.clear();
        if !self.event_idx {
            self.ring.set_avail_flags(ring::NO_INTERRUPT);
        }
    }

    /// Returns the number of the queue.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns the memory of the ring, to read and write any field.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Returns guest memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Returns the eventfd for kicks.
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Returns the eventfd for calls.
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// Returns the eventfd for errors.
    pub fn err_fd(&self) -> BorrowedFd<'_> {
        self.err.as_fd()
    }

    /// Waits until the back-end has reported that the queue is broken. Returns false if it has not in time.
    pub fn is_broken(&self, timeout: Duration) -> Result<bool> {
        is_ready(&self.err, timeout)
    }

    /// Chooses between descriptors in an indirect table and descriptors in the table of the queue. The default is
    /// indirect where that is negotiated.
    pub fn set_indirect(&mut self, on: bool) {
        self.indirect = on;
    }

    /// Returns the number of free descriptors.
    pub fn free_descriptors(&self) -> u16 {
        self.free
    }

    /// Returns the requests in flight.
    pub fn in_flight(&self) -> Vec<Token> {
        let heads = 0..self.ring.size();
        heads.filter(|head| self.in_flight[usize::from(*head)].descriptors > 0).map(Token).collect()
    }

    /// Returns the index of the used ring up to which completions were reaped.
    pub fn reaped_index(&self) -> u16 {
        self.used_index
    }

    /// Adds a request. The back-end sees it after [`DriverQueue::kick`]. It writes the data of a read and the serial
    /// number, and reads other data.
    #[inline]
    pub fn submit(&mut self, operation: Operation, sector: u64, data: &[Segment]) -> Result<Token> {
        let head = self.free_head;
        let slot = self.slot(head);
        self.write_header(slot, operation.number(), sector);
        let base = self.own.guest_address() + slot as u64;
        let writable = operation.is_written_by_the_back_end();
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        pieces.push(Piece { address: base, len: HEADER_LEN, writable: false });
        pieces.extend(data.iter().map(|data| Piece { address: data.address, len: data.len, writable }));
        pieces.push(Piece { address: base + STATUS_AT as u64, len: 1, writable: true });
        let submitted = self.submit_chain(&pieces);
        self.pieces = pieces;
        submitted
    }

    /// Adds a read of `len` bytes at `sector` into guest memory.
    pub fn read(&mut self, sector: u64, address: u64, len: u32) -> Result<Token> {
        self.submit(Operation::Read, sector, &[Segment { address, len }])
    }

    /// Adds a write of `len` bytes of guest memory at `sector`.
    pub fn write(&mut self, sector: u64, address: u64, len: u32) -> Result<Token> {
        self.submit(Operation::Write, sector, &[Segment { address, len }])
    }

    /// Adds a flush.
    pub fn flush(&mut self) -> Result<Token> {
        self.submit(Operation::Flush, 0, &[])
    }

    /// Adds a discard of one range.
    pub fn discard(&mut self, sector: u64, sectors: u32) -> Result<Token> {
        self.submit_range(Operation::Discard, sector, sectors, 0)
    }

    /// Adds a write of zeroes to one range. The back-end may deallocate the range if `unmap` is true.
    pub fn write_zeroes(&mut self, sector: u64, sectors: u32, unmap: bool) -> Result<Token> {
        self.submit_range(Operation::WriteZeroes, sector, sectors, u32::from(unmap))
    }

    /// Adds a discard or a write of zeroes with any flags. For several ranges, write them into guest memory, 16 bytes
    /// each, and call [`DriverQueue::submit`].
    pub fn submit_range(&mut self, operation: Operation, sector: u64, sectors: u32, flags: u32) -> Result<Token> {
        let extra = self.slot(self.free_head) + EXTRA_AT;
        let map = self.own.mapping();
        map.u64_at(extra).store(sector, Relaxed);
        map.u32_at(extra + 8).store(sectors, Relaxed);
        map.u32_at(extra + 12).store(flags, Relaxed);
        let address = self.own.guest_address() + extra as u64;
        self.submit(operation, 0, &[Segment { address, len: RANGE_LEN }])
    }

    /// Adds a request for the serial number, which [`DriverQueue::id`] returns afterwards.
    pub fn get_id(&mut self) -> Result<Token> {
        let extra = self.slot(self.free_head) + EXTRA_AT;
        self.own.mapping().fill(extra, ID_LEN as usize, 0);
        let address = self.own.guest_address() + extra as u64;
        self.submit(Operation::GetId, 0, &[Segment { address, len: ID_LEN }])
    }

    /// Returns the serial number that a completed request has brought: the bytes before the first NUL.
    pub fn id(&self, token: Token) -> String {
        let mut bytes = [0; ID_LEN as usize];
        self.own.mapping().read(self.slot(token.0) + EXTRA_AT, &mut bytes);
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    fn slot(&self, head: u16) -> usize {
        self.slots + usize::from(head) * SLOT_LEN
    }

    /// Returns the guest address that [`DriverQueue::submit`] would use for the header of the next request. The byte
    /// for its status is 16 bytes behind.
    pub fn next_header_address(&self) -> u64 {
        self.own.guest_address() + self.slot(self.free_head) as u64
    }

    #[inline]
    fn write_header(&self, slot: usize, number: u32, sector: u64) {
        let map = self.own.mapping();
        map.u64_at(slot).store(u64::from(number), Relaxed);
        map.u64_at(slot + 8).store(sector, Relaxed);
        map.u8_at(slot + STATUS_AT).store(STATUS_UNWRITTEN, Relaxed);
    }

    /// Adds a chain of any form. The status in its completion is the byte 16 bytes behind
    /// [`DriverQueue::next_header_address`], also if the chain ends elsewhere.
    #[inline]
    pub fn submit_chain(&mut self, pieces: &[Piece]) -> Result<Token> {
        let needed = if self.indirect { 1 } else { pieces.len() };
        if self.free < needed as u16 || needed > usize::from(self.ring.size()) || needed == 0 {
            return Err(Error::QueueFull { free: self.free, needed });
        }
        let head = self.free_head;
        let last = if self.indirect { self.write_table(head, pieces)? } else { self.write_chain(head, pieces) };
        self.free_head = self.links[usize::from(last)];
        self.free -= needed as u16;
        self.in_flight[usize::from(head)] = InFlight { descriptors: needed as u16, last };
        if self.in_order {
            self.order.push_back(head);
        }
        self.ring.set_avail_entry(self.avail_index, head);
        self.avail_index = self.avail_index.wrapping_add(1);
        Ok(Token(head))
    }

    /// Writes a chain into the table of the queue. Returns its last descriptor.
    fn write_chain(&self, head: u16, pieces: &[Piece]) -> u16 {
        let mut at = head;
        for (n, piece) in pieces.iter().enumerate() {
            let next = self.links[usize::from(at)];
            let is_last = n + 1 == pieces.len();
            self.ring.set_descriptor(at, descriptor(piece, if is_last { None } else { Some(next) }));
            if is_last {
                return at;
            }
            at = next;
        }
        at
    }

    /// Writes a chain into the indirect table of a head. Returns the head, which is the only descriptor.
    fn write_table(&self, head: u16, pieces: &[Piece]) -> Result<u16> {
        if pieces.len() > self.most_pieces {
            return Err(Error::TooManyPieces { pieces: pieces.len(), most: self.most_pieces });
        }
        let table = self.tables + usize::from(head) * self.most_pieces * DESCRIPTOR_LEN as usize;
        for (n, piece) in pieces.iter().enumerate() {
            let next = (n + 1 < pieces.len()).then_some(n as u16 + 1);
            ring::write_descriptor(&self.own, table + n * DESCRIPTOR_LEN as usize, descriptor(piece, next));
        }
        let address = self.own.guest_address() + table as u64;
        let len = (pieces.len() as u64 * DESCRIPTOR_LEN) as u32;
        self.ring.set_descriptor(head, Descriptor { address, len, flags: INDIRECT, next: 0 });
        Ok(head)
    }

    /// Shows the back-end all requests that were added, without a kick.
    #[inline]
    pub fn publish(&mut self) {
        self.ring.set_avail_index(self.avail_index);
    }

    /// Shows the back-end all requests that were added, and kicks if it wants that. Returns true if it kicked.
    #[inline]
    pub fn kick(&mut self) -> Result<bool> {
        self.publish();
        full_fence();
        let (old, new) = (self.kicked_index, self.avail_index);
        let wanted = if self.event_idx {
            ring::passes(self.ring.avail_event(), old, new)
        } else {
            self.ring.used_flags() & ring::NO_NOTIFY == 0 && old != new
        };
        self.kicked_index = new;
        if wanted {
            self.kick_always()?;
        }
        Ok(wanted)
    }

    /// Kicks, whether the back-end wants that or not.
    pub fn kick_always(&self) -> Result<()> {
        match (&self.kick).write_all(&1u64.to_ne_bytes()) {
            // The counter is full, so the back-end has a kick in any case.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            written => written.map_err(|error| Error::system("cannot kick", error)),
        }
    }

    /// Passes all completions that have arrived to `each`. Returns their number.
    #[inline]
    pub fn reap(&mut self, mut each: impl FnMut(Completion)) -> Result<usize> {
        let mut count = self.ready.len();
        self.ready.drain(..).for_each(&mut each);
        let index = self.ring.used_index();
        let pending = index.wrapping_sub(self.used_index);
        if pending > self.ring.size() {
            let why = format!("its used index went from {} to {index}, by more than its size", self.used_index);
            return self.broken(why);
        }
        while self.used_index != index {
            let (head, len) = self.ring.used_entry(self.used_index);
            let known = u16::try_from(head).ok().filter(|head| {
                self.in_flight.get(usize::from(*head)).is_some_and(|in_flight| in_flight.descriptors > 0)
            });
            let Some(head) = known else {
                return self.broken(format!("used entry {} names {head}, which is not in flight", self.used_index));
            };
            let mut passed = 0;
            if self.in_order {
                // One entry can stand for a batch: for all requests up to the one that it names.
                while let Some(earlier) = self.order.pop_front() {
                    passed += 1;
                    if earlier == head {
                        break;
                    }
                    each(self.completed(earlier, 0));
                }
            } else {
                passed += 1;
            }
            if passed > index.wrapping_sub(self.used_index) {
                return self.broken(format!("head {head} was used before earlier requests, in spite of IN_ORDER"));
            }
            each(self.completed(head, len));
            self.used_index = self.used_index.wrapping_add(passed);
            count += usize::from(passed);
        }
        Ok(count)
    }

    fn broken<T>(&self, why: String) -> Result<T> {
        Err(Error::Ring { queue: self.number, why })
    }

    #[inline]
    fn completed(&mut self, head: u16, len: u32) -> Completion {
        let InFlight { descriptors, last } = std::mem::take(&mut self.in_flight[usize::from(head)]);
        if !self.in_order {
            self.links[usize::from(last)] = self.free_head;
            self.free_head = head;
        }
        // With IN_ORDER the free descriptors stay a circle, which the specification demands.
        self.free += descriptors;
        let status = self.own.mapping().u8_at(self.slot(head) + STATUS_AT).load(Relaxed);
        Completion { token: Token(head), status, len }
    }

    /// Asks for a call with the next used entry. Returns true if there is an entry already; no call may come then.
    #[inline]
    pub fn arm(&mut self) -> bool {
        if self.event_idx {
            self.ring.set_used_event(self.used_index);
        } else {
            self.ring.set_avail_flags(0);
        }
        full_fence();
        self.ring.used_index() != self.used_index
    }

    /// Asks for no calls. With EVENT_IDX nothing is to do: calls stop when the used index has passed the event.
    #[inline]
    pub fn disarm(&mut self) {
        if !self.event_idx {
            self.ring.set_avail_flags(ring::NO_INTERRUPT);
        }
    }

    /// Waits for a call, without limit of time, unless there are completions.
    pub fn wait(&mut self) -> Result<()> {
        if self.ready.is_empty() && !self.arm() {
            self.take_call()?;
        }
        self.disarm();
        Ok(())
    }

    /// Waits for a call until the deadline, unless there are completions. Returns false if the time is up.
    pub fn wait_until(&mut self, deadline: Instant) -> Result<bool> {
        let mut came = !self.ready.is_empty() || self.arm();
        if !came && self.called(deadline.saturating_duration_since(Instant::now()))? {
            came = true;
        }
        self.disarm();
        Ok(came)
    }

    /// Waits for a call and takes it, whether there are completions or not. Returns false if none came in time.
    pub fn called(&self, timeout: Duration) -> Result<bool> {
        let came = is_ready(&self.call, timeout)?;
        if came {
            self.take_call()?;
        }
        Ok(came)
    }

    /// Waits for a call, and takes it.
    fn take_call(&self) -> Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.call, PollFlags::IN)], None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(Error::system("cannot wait for a call", error)),
            }
        }
        (&self.call).read(&mut [0; 8]).map(drop).map_err(|error| Error::system("cannot take a call", error))
    }

    /// Kicks, and waits until one request has completed. Completions of other requests are kept for
    /// [`DriverQueue::reap`].
    pub fn complete(&mut self, token: Token, timeout: Duration) -> Result<Completion> {
        let deadline = Instant::now() + timeout;
        self.kick()?;
        let mut kept = VecDeque::new();
        loop {
            self.reap(|completion| kept.push_back(completion))?;
            if let Some(at) = kept.iter().position(|completion| completion.token == token) {
                let found = kept.remove(at);
                self.ready = kept;
                return found.ok_or(Error::Timeout("the completion was lost"));
            }
            if !self.wait_until(deadline)? {
                self.ready = kept;
                return Err(Error::Timeout("a request did not complete"));
            }
        }
    }

    /// Kicks, and waits until all requests in flight have completed. Returns all completions, in their order.
    pub fn complete_all(&mut self, timeout: Duration) -> Result<Vec<Completion>> {
        let deadline = Instant::now() + timeout;
        self.kick()?;
        let mut all = Vec::new();
        loop {
            self.reap(|completion| all.push(completion))?;
            if self.in_flight.iter().all(|in_flight| in_flight.descriptors == 0) {
                return Ok(all);
            }
            if !self.wait_until(deadline)? {
                return Err(Error::Timeout("requests did not complete"));
            }
        }
    }

    /// Reads bytes at `sector`, and waits for them.
    pub fn read_bytes(&mut self, sector: u64, len: usize, timeout: Duration) -> Result<Vec<u8>> {
        let address = self.bounce(len)?;
        let token = self.read(sector, address, len as u32)?;
        self.finish(token, timeout)?;
        Ok(self.memory.read(address, len))
    }

    /// Writes bytes at `sector`, and waits until they are written.
    pub fn write_bytes(&mut self, sector: u64, bytes: &[u8], timeout: Duration) -> Result<()> {
        let address = self.bounce(bytes.len())?;
        self.memory.write(address, bytes);
        let token = self.write(sector, address, bytes.len() as u32)?;
        self.finish(token, timeout).map(drop)
    }

    /// Returns the guest address of memory for at least `len` bytes.
    fn bounce(&mut self, len: usize) -> Result<u64> {
        if self.bounce.1 < len {
            self.bounce = (self.memory.alloc(len as u64, 4096)?, len);
        }
        Ok(self.bounce.0)
    }

    /// Completes one request, and returns an error unless its status is OK.
    pub fn finish(&mut self, token: Token, timeout: Duration) -> Result<Completion> {
        let completion = self.complete(token, timeout)?;
        if completion.status == STATUS_OK { Ok(completion) } else { Err(Error::Status(completion.status)) }
    }
}

/// Waits until an eventfd has a count. Returns false if it has none in time.
fn is_ready(fd: &std::fs::File, timeout: Duration) -> Result<bool> {
    let timeout = Timespec::try_from(timeout).map_err(|_| Error::Timeout("the timeout is too long"))?;
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::system("cannot wait for an eventfd", error)),
        }
    }
}

#[inline]
fn descriptor(piece: &Piece, next: Option<u16>) -> Descriptor {
    let flags = if piece.writable { WRITE } else { 0 } | if next.is_some() { NEXT } else { 0 };
    Descriptor { address: piece.address, len: piece.len, flags, next: next.unwrap_or(0) }
}

#[cfg(test)]
mod tests;
