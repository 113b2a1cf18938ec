//! Split virtqueues: descriptor chains out, used elements in.
//!
//! Owns the rings of one queue from its start to its stop, and the order of accesses to them. Does not own the meaning
//! of a chain ([`crate::block`]), nor the descriptors that carry kicks and interrupts. Called by the thread that owns
//! the queue.
//!
//! Invariants:
//! - Q1: a head is in flight from [`Queue::take`] to [`Queue::publish`], once. So at most `size` heads are in flight,
//!   and the elements of a batch fit into the used ring.
//! - Q2: the batch of a [`Queue::publish`] costs one release store of the index, and the chains of a batch one acquire
//!   load. Neither takes, uses nor publishes allocate, once the vectors of a [`Chain`] have grown.
//! - Q3: with IN_ORDER, used elements appear in the order in which their chains were taken; those that are completed
//!   earlier wait in `written`.

use std::sync::Arc;

use sheave_base::sync::atomic::{Ordering, fence};

use crate::inflight::{self, Slots};
use crate::memory::{GuestMemory, Place, Span, Window, any_broken};
use crate::wire::{AVAIL_NO_INTERRUPT, USED_NO_NOTIFY, desc, feature};
use crate::{Broken, Setup, block};

/// Maximum number of descriptors of a queue.
pub const MAX_SIZE: u16 = 1024;
/// Maximum number of pieces of memory in a chain.
pub const MAX_SPANS: usize = 2 * MAX_SIZE as usize;
/// Maximum number of entries of an indirect table of a smaller queue. A table may be longer than the queue's own, as
/// Linux makes them: the data segments that the device announces, the header and the status.
const LEAST_CHAIN: u16 = block::SEG_MAX as u16 + 2;

const DESCRIPTOR_BYTES: usize = 16;
/// Offset of the index in both rings, after the flags.
const INDEX: usize = 2;
/// Offset of the first entry in both rings.
const ENTRIES: usize = 4;
const AVAIL_ENTRY_BYTES: usize = 2;
const USED_ENTRY_BYTES: usize = 8;

/// True if a queue can have this number of descriptors.
pub(crate) fn is_size(size: u32) -> bool {
    size.is_power_of_two() && (2..=u32::from(MAX_SIZE)).contains(&size)
}

/// A descriptor chain. Reused from one [`Queue::take`] to the next, so that it allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    pub head: u16,
    /// Memory that the device reads, in the order of the chain; no span is empty.
    pub readable: Vec<Span>,
    /// Memory that the device writes, in the order of the chain; no span is empty.
    pub writable: Vec<Span>,
    /// Number of bytes in `readable` and in `writable`, as they were taken.
    pub(crate) readable_bytes: u64,
    pub(crate) writable_bytes: u32,
}

/// State of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    /// Belongs to the driver.
    Free,
    /// Was taken.
    Taken,
    /// Was completed, and waits for heads that were taken earlier (Q3).
    Waiting,
    /// Its used element is written, and the index does not count it yet.
    Used,
}

/// The rings of a queue, mapped.
struct Rings {
    descriptors: Window,
    avail: Window,
    used: Window,
}

impl Rings {
    fn new(setup: &Setup, memory: &GuestMemory) -> Result<Rings, Broken> {
        let size = usize::from(setup.size);
        // Both rings end with a number of two bytes, for EVENT_IDX.
        Ok(Rings {
            descriptors: memory.window(setup.descriptors, DESCRIPTOR_BYTES * size, 16)?,
            avail: memory.window(setup.available, ENTRIES + AVAIL_ENTRY_BYTES * size + 2, 2)?,
            used: memory.window(setup.used, ENTRIES + USED_ENTRY_BYTES * size + 2, 4)?,
        })
    }

    fn is_broken(&self) -> bool {
        [&self.descriptors, &self.avail, &self.used].iter().any(|window| window.is_broken())
    }
}

/// The heads that were taken, in order, for IN_ORDER (Q3).
struct Order {
    /// A ring of as many entries as the queue has.
    heads: Box<[u16]>,
    /// Number of heads that were taken, and of those whose elements are written.
    taken: u16,
    written: u16,
}

/// A split virtqueue that runs.
pub struct Queue {
    rings: Rings,
    /// `size - 1`; the size is a power of two.
    mask: u16,
    event_idx: bool,
    indirect: bool,
    /// Index of the next entry of the avail ring to take.
    last_avail: u16,
    /// Index of the avail ring when it was last loaded.
    seen_avail: u16,
    /// Index of the next used element to write; those from `published` on are not yet counted in the ring.
    next_used: u16,
    published: u16,
    /// Number of heads in flight (Q1).
    in_flight: u16,
    /// True if the last chain that was taken is one that an earlier back-end left in flight.
    took_again: bool,
    /// True until the first batch was published. An interrupt before a restart may have been lost, so that batch has
    /// one in any case.
    fresh: bool,
    /// True if the used ring has the flag that kicks are not needed; None if its flags are unknown.
    suppressed: Option<bool>,
    /// Index of the region that was found last.
    hint: usize,
    /// Number of broken mappings of the process at the last look.
    broken_seen: usize,
    heads: Box<[Head]>,
    /// Lengths of used elements that wait (Q3).
    written: Box<[u32]>,
    /// Heads whose elements are written and not yet counted.
    batch: Vec<u16>,
    /// Heads that an earlier back-end left in flight, the next one last.
    resubmit: Vec<u16>,
    order: Option<Order>,
    slots: Option<Slots>,
    memory: Arc<GuestMemory>,
    setup: Setup,
}

impl Queue {
    /// Starts a queue: translates the addresses of its rings, reads the used index, and finds the requests that an
    /// earlier back-end left in flight; [`Queue::take`] returns these first. The caller signals the call descriptor
    /// once, because an interrupt may have been lost with the earlier back-end.
    pub fn new(
        setup: &Setup,
        memory: Arc<GuestMemory>,
        features: u64,
        mut slots: Option<Slots>,
    ) -> Result<Queue, Broken> {
        if !is_size(u32::from(setup.size)) {
            return Err(Broken::QueueSize { size: u32::from(setup.size) });
        }
        let broken_seen = any_broken();
        let rings = Rings::new(setup, &memory)?;
        let size = usize::from(setup.size);
        // The index in the ring counts what the driver was told. That of the in-flight region may be older or wrong.
        let used = u16::from_le(rings.used.place().load_u16(INDEX, Ordering::Acquire)); // Pairs with nothing now.
        let mut resubmit = match &mut slots {
            Some(slots) => slots.recover(setup.size, used)?,
            None => Vec::new(),
        };
        resubmit.reverse();
        let last_avail = match &slots {
            Some(_) => used.wrapping_add(resubmit.len() as u16),
            None => setup.base,
        };
        let order =
            (features & feature::IN_ORDER != 0).then(|| Order { heads: vec![0; size].into(), taken: 0, written: 0 });
        let queue = Queue {
            rings,
            mask: setup.size - 1,
            event_idx: features & feature::RING_EVENT_IDX != 0,
            indirect: features & feature::RING_INDIRECT_DESC != 0,
            last_avail,
            seen_avail: last_avail,
            next_used: used,
            published: used,
            in_flight: 0,
            took_again: false,
            fresh: true,
            suppressed: None,
            hint: 0,
            broken_seen,
            heads: vec![Head::Free; size].into(),
            written: vec![0; if order.is_some() { size } else { 0 }].into(),
            batch: Vec::with_capacity(size),
            resubmit,
            order,
            slots,
            memory,
            // The addresses are needed again; the descriptors belong to the caller.
            setup: Setup { kick: None, call: None, err: None, ..setup.clone() },
        };
        queue.check_memory()?;
        Ok(queue)
    }

    /// Replaces the memory; the rings must lie in the new memory too. Requests in flight keep the spans they have.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), Broken> {
        self.rings = Rings::new(&self.setup, &memory)?;
        self.memory = memory;
        self.check_memory()
    }

    #[inline]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Returns the number of descriptors.
    pub fn size(&self) -> u16 {
        self.mask + 1
    }

    /// Returns the number of chains that can be taken. Looks at the ring with one acquire load.
    #[inline]
    pub fn available(&mut self) -> Result<u16, Broken> {
        let broken = any_broken();
        if broken != self.broken_seen {
            self.broken_seen = broken;
            self.check_memory()?;
        }
        // Pairs with the driver's barrier between its write of entries and descriptors, and that of the index.
        let avail = u16::from_le(self.rings.avail.place().load_u16(INDEX, Ordering::Acquire));
        let ready = avail.wrapping_sub(self.last_avail);
        if ready > self.size() {
            return Err(Broken::AvailIndex { avail, last: self.last_avail, size: self.size() });
        }
        self.seen_avail = avail;
        Ok(ready + self.resubmit.len() as u16)
    }

    #[cold]
    fn check_memory(&self) -> Result<(), Broken> {
        let slots = self.slots.as_ref().is_some_and(Slots::is_broken);
        if slots || self.rings.is_broken() || self.memory.is_broken() {
            return Err(Broken::CutOff);
        }
        Ok(())
    }

    /// Returns the cause of an error of this queue: memory that was cut off reads as zeroes, which look like a fault of
    /// the driver.
    #[cold]
    pub fn cause(&self, broken: Broken) -> Broken {
        self.check_memory().err().unwrap_or(broken)
    }

    /// Takes the next chain that the last look at the ring has seen; looks at the ring if none is left. Returns false
    /// if there is none.
    #[inline]
    pub fn take(&mut self, chain: &mut Chain) -> Result<bool, Broken> {
        let again = !self.resubmit.is_empty();
        let head = if again {
            self.resubmit.pop().expect("checked in the line above")
        } else {
            if self.last_avail == self.seen_avail && self.available()? == 0 {
                return Ok(false);
            }
            let head = self.avail_entry(self.last_avail);
            self.last_avail = self.last_avail.wrapping_add(1);
            if self.last_avail != self.seen_avail {
                // The next descriptor comes from the driver's processor. Its entry is read again when it is taken.
                let next = self.avail_entry(self.last_avail);
                self.rings.descriptors.place().prefetch(usize::from(next) * DESCRIPTOR_BYTES);
            }
            head
        };
        match self.heads.get_mut(usize::from(head)) {
            None => return Err(Broken::Head { head, size: self.size() }),
            Some(state @ Head::Free) => *state = Head::Taken,
            Some(_) => return Err(Broken::HeadTwice { head }),
        }
        if let Some(slots) = &mut self.slots
            && !again
        {
            slots.take(head);
        }
        if let Some(order) = &mut self.order {
            order.heads[usize::from(order.taken & self.mask)] = head;
            order.taken = order.taken.wrapping_add(1);
        }
        self.in_flight += 1;
        self.took_again = again;
        self.parse(head, chain)?;
        Ok(true)
    }

    /// Gives back the chain that was taken last, for which nothing was done. The next [`Queue::take`] returns it again,
    /// or, if this back-end ends before, the next one's.
    pub fn put_back(&mut self, chain: &Chain) {
        let head = chain.head;
        debug_assert_eq!(self.heads[usize::from(head)], Head::Taken, "Q1");
        self.heads[usize::from(head)] = Head::Free;
        self.in_flight -= 1;
        if let Some(order) = &mut self.order {
            order.taken = order.taken.wrapping_sub(1);
        }
        if self.took_again {
            self.resubmit.push(head);
            return;
        }
        self.last_avail = self.last_avail.wrapping_sub(1);
        self.seen_avail = self.last_avail;
        if let Some(slots) = &mut self.slots {
            slots.put_back(head);
        }
    }

    #[inline]
    fn avail_entry(&self, index: u16) -> u16 {
        let at = ENTRIES + AVAIL_ENTRY_BYTES * usize::from(index & self.mask);
        u16::from_le(self.rings.avail.place().load_u16(at, Ordering::Relaxed))
    }

    /// Follows the chain of a head. Each descriptor is copied once, and its copy is checked.
    #[inline]
    fn parse(&mut self, head: u16, chain: &mut Chain) -> Result<(), Broken> {
        chain.head = head;
        chain.readable.clear();
        chain.writable.clear();
        (chain.readable_bytes, chain.writable_bytes) = (0, 0);
        let Queue { rings, memory, hint, .. } = self;
        let first = Descriptor::load(rings.descriptors.place(), head);
        let indirect = match first.flags & desc::INDIRECT {
            0 => follow(rings.descriptors.place(), self.mask + 1, first, chain, memory, hint)?,
            _ => Some(first),
        };
        let Some(indirect) = indirect else { return Ok(()) };
        if !self.indirect {
            return Err(Broken::IndirectNotNegotiated { head });
        }
        if indirect.flags & desc::NEXT != 0 {
            return Err(Broken::IndirectNext { head });
        }
        let (len, limit) = (indirect.len, (self.mask + 1).max(LEAST_CHAIN));
        let count = len / DESCRIPTOR_BYTES as u32;
        if count == 0 || !len.is_multiple_of(DESCRIPTOR_BYTES as u32) || count > u32::from(limit) {
            return Err(Broken::IndirectLength { head, len, limit });
        }
        let table = memory.table(indirect.addr, len, hint)?;
        match follow(table, count as u16, Descriptor::load(table, 0), chain, memory, hint)? {
            None => Ok(()),
            Some(_) => Err(Broken::IndirectNested { head }),
        }
    }

    /// Adds a used element. The guest sees it after [`Queue::publish`].
    #[inline]
    pub fn used(&mut self, head: u16, written: u32) -> Result<(), Broken> {
        let state = match self.heads.get_mut(usize::from(head)) {
            Some(state @ Head::Taken) => state,
            _ => return Err(Broken::NotInFlight { head }),
        };
        if self.order.is_none() {
            *state = Head::Used;
            self.write_used(head, written);
            return Ok(());
        }
        *state = Head::Waiting;
        self.written[usize::from(head)] = written;
        self.write_waiting();
        Ok(())
    }

    /// Writes the elements of the heads that are complete and next in order (Q3).
    fn write_waiting(&mut self) {
        while let Some(order) = &mut self.order
            && order.written != order.taken
        {
            let head = order.heads[usize::from(order.written & self.mask)];
            if self.heads[usize::from(head)] != Head::Waiting {
                break;
            }
            order.written = order.written.wrapping_add(1);
            self.heads[usize::from(head)] = Head::Used;
            self.write_used(head, self.written[usize::from(head)]);
        }
    }

    #[inline]
    fn write_used(&mut self, head: u16, written: u32) {
        let used = self.rings.used.place();
        let at = ENTRIES + USED_ENTRY_BYTES * usize::from(self.next_used & self.mask);
        used.store_u32(at, u32::from(head).to_le());
        used.store_u32(at + 4, written.to_le());
        self.next_used = self.next_used.wrapping_add(1);
        self.batch.push(head);
        if let Some(slots) = &self.slots {
            slots.link(head);
        }
    }

    /// Publishes the used elements with one release store. Returns true if the guest wants an interrupt.
    #[inline]
    pub fn publish(&mut self) -> Result<bool, Broken> {
        if self.batch.is_empty() {
            return Ok(false);
        }
        let old = self.published;
        self.published = self.next_used;
        // Pairs with the driver's barrier between its read of the index, and those of the elements.
        self.rings.used.place().store_u16(INDEX, self.published.to_le(), Ordering::Release);
        inflight::step();
        if let Some(slots) = &self.slots {
            slots.published(&self.batch, self.published);
        }
        for head in self.batch.drain(..) {
            self.heads[usize::from(head)] = Head::Free;
            self.in_flight -= 1;
        }
        // Either the driver sees the index before it sleeps, or this load sees that it wants an interrupt: pairs with
        // the driver's barrier between its write of the event and its last look at the index.
        fence(Ordering::SeqCst);
        let avail = self.rings.avail.place();
        let wanted = if self.event_idx {
            let at = ENTRIES + AVAIL_ENTRY_BYTES * usize::from(self.size());
            let event = u16::from_le(avail.load_u16(at, Ordering::Relaxed));
            crosses(event, self.published, old)
        } else {
            u16::from_le(avail.load_u16(0, Ordering::Relaxed)) & AVAIL_NO_INTERRUPT == 0
        };
        Ok(std::mem::take(&mut self.fresh) || wanted)
    }

    /// Tells the guest that kicks are not needed, as long as the caller looks at the ring by itself. With EVENT_IDX the
    /// event of the last [`Queue::want_kicks`] lies in the past, which says the same.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        if !self.event_idx && self.suppressed != Some(true) {
            self.rings.used.place().store_u16(0, USED_NO_NOTIFY.to_le(), Ordering::Relaxed);
            self.suppressed = Some(true);
        }
    }

    /// Asks the guest for a kick when it adds a chain, and looks at the ring once more. Returns true if there is work
    /// already.
    #[inline]
    pub fn want_kicks(&mut self) -> Result<bool, Broken> {
        let used = self.rings.used.place();
        if self.event_idx {
            let at = ENTRIES + USED_ENTRY_BYTES * usize::from(self.size());
            used.store_u16(at, self.last_avail.to_le(), Ordering::Relaxed);
        } else if self.suppressed != Some(false) {
            used.store_u16(0, 0, Ordering::Relaxed);
            self.suppressed = Some(false);
        }
        // Either the driver sees the wish, or the look below sees its chain: pairs with the driver's barrier between
        // its write of the index and its read of the wish.
        fence(Ordering::SeqCst);
        Ok(self.available()? > 0)
    }

    /// Returns the index of the next entry of the avail ring, for the reply to GET_VRING_BASE.
    pub fn last_avail(&self) -> u16 {
        self.last_avail
    }

    /// Returns the number of chains that were taken and not yet published.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }
}

/// A descriptor, copied.
#[derive(Clone, Copy)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    #[inline(always)]
    fn load(table: Place<'_>, index: u16) -> Descriptor {
        let [addr, rest] = table.load_block(DESCRIPTOR_BYTES * usize::from(index));
        let (addr, rest) = (u64::from_le(addr), u64::from_le(rest));
        Descriptor { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
}

/// Adds the memory of descriptors to a chain, from `first` on through a table of `entries`. Returns the first that
/// refers to an indirect table, which is the last of its chain.
#[inline(always)]
fn follow(
    table: Place<'_>,
    entries: u16,
    first: Descriptor,
    chain: &mut Chain,
    memory: &GuestMemory,
    hint: &mut usize,
) -> Result<Option<Descriptor>, Broken> {
    let head = chain.head;
    let mut descriptor = first;
    // Number of descriptors that may still come, which ends loops.
    let mut left = entries;
    let mut writable = !chain.writable.is_empty();
    loop {
        let Descriptor { addr, len, flags, next } = descriptor;
        if flags & desc::INDIRECT != 0 {
            return Ok(Some(descriptor));
        }
        let spans = if flags & desc::WRITE != 0 {
            writable = true;
            chain.writable_bytes = chain.writable_bytes.checked_add(len).ok_or(Broken::TooLong { head })?;
            &mut chain.writable
        } else if writable {
            return Err(Broken::ReadableAfterWritable { head });
        } else {
            chain.readable_bytes += u64::from(len);
            &mut chain.readable
        };
        // A descriptor that crosses from one region into the next becomes a span for each region.
        let (mut at, mut rest) = (addr, len);
        while rest > 0 {
            let span = memory.find(at, rest, hint)?;
            if spans.len() == MAX_SPANS / 2 {
                return Err(Broken::TooManySpans { head });
            }
            spans.push(span);
            // Neither overflows: the span lies in a region, and is not longer than `rest`.
            rest -= span.len() as u32;
            at += span.len() as u64;
        }
        if flags & desc::NEXT == 0 {
            return Ok(None);
        }
        if next >= entries {
            return Err(Broken::Next { next, size: entries });
        }
        left -= 1;
        if left == 0 {
            return Err(Broken::Loop { head });
        }
        descriptor = Descriptor::load(table, next);
    }
}

/// True if the step of an index from `old` to `new` passes `event`.
#[inline]
fn crosses(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
pub(crate) mod tests;
