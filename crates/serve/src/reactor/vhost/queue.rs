//! A queue of a vhost-user device: requests out of its ring, results into it.
//!
//! Requests are taken until the ring is empty, then the guest is asked for a kick. While requests are taken, the guest
//! needs no kick, because the reactor looks at the ring again before it sleeps. Results are published together, with at
//! most one interrupt.
//!
//! Invariants:
//! - Q1. The memory that a request transfers stays mapped until the request has ended: the queue keeps the memory of
//!   its guest, and changes it only when the new one has all regions of the old one, or when nothing is under way.
//! - Q2. A request that was taken from the ring is finished. One that waits for the export's limit or for memory when
//!   the queue is to end or to change its memory goes back to the ring: nothing of it was done, and a guest that stops
//!   its queue again and again gets nothing beyond the limit.
//! - Q3. A queue takes at most [`BATCH`] requests, or [`BATCH_BYTES`], in a turn of the reactor's loop, however fast
//!   they end, so that other sessions have their turn.
//! - Q4. A queue uses its export's place in the ring only while it has requests: a ring has room for few devices, and
//!   an idle device leaves its place to others.

use std::fmt::Display;
use std::os::fd::OwnedFd;

use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU32, Ordering};
use sheave_kring::IoVec;
use sheave_nbd::session::{Command, Request};
use sheave_nbd::wire::{Errno, cflag};
use sheave_uring::Fd;
use sheave_vhost::block::{Code, Config, Kind, Parsed, Status};
use sheave_vhost::{Broken, Chain, GuestMemory, Span, block};

use super::{Begin, DeviceAt, QueueOrder, Told, Watch, serial_of};
use crate::counts::{Part, Tally};
use crate::export::Served;
use crate::limit::Bucket;
use crate::payload::{Payload, Shape};
use crate::reactor::held_back::Charge;
use crate::reactor::raw::{self, Kind as EventKind, Segments};
use crate::reactor::requests::{Answer, Io, NotOpened};
use crate::reactor::unaligned::Unaligned;
use crate::shared::Order;

/// Most bytes of a request: what the limits of segments in the configuration amount to, and no more than there is ever
/// memory for.
const MOST_BYTES: u64 = block::SEG_MAX as u64 * block::SIZE_MAX as u64;
/// Most requests, and most bytes of requests, that a queue begins in a turn of the loop.
const BATCH: u32 = 256;
const BATCH_BYTES: u64 = 8 << 20;

/// A request of the guest that is under way, by the head of its chain.
#[derive(Debug, Default)]
struct InFlight {
    /// None if no request with this head is under way.
    status: Option<Status>,
    /// Memory of the guest, if its place does not suit the device and the data goes through a payload.
    copied: Option<Box<[Span]>>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// Told to end. Ends when nothing is under way.
    Ends,
    /// The guest has broken the rules. Waits for the order to end.
    Broken,
}

/// The outcome of asking a guest for kicks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kicks {
    /// The guest kicks, or the queue takes no requests now.
    Armed,
    /// There is a request already.
    HasWork,
    /// The queue goes on in the next turn without a kick.
    Later,
}

/// A queue that runs.
pub(in crate::reactor) struct Queue {
    number: usize,
    device: DeviceAt,
    index: u16,
    ring: sheave_vhost::Queue,
    /// The chain that was taken last; that of `deferred` while there is one.
    chain: Chain,
    config: Config,
    kick: Arc<OwnedFd>,
    call: Option<Arc<OwnedFd>>,
    watch: Watch,
    export_id: u32,
    export: Arc<Served>,
    /// The export in the ring of the reactor, while there are requests (Q4).
    fd: Option<Fd>,
    /// Alignment that the device requires of memory, in bytes.
    align: usize,
    /// Bytes of a block of the device, a power of two.
    block: u64,
    bucket: Arc<Bucket>,
    tally: Arc<Tally>,
    writes_back: bool,
    is_enabled: bool,
    state: State,
    in_flight: Vec<InFlight>,
    /// Number of requests in the ring of the reactor.
    under_way: u32,
    /// A request that waits for the export's limit or for memory.
    deferred: Option<block::Request>,
    charge: Charge,
    /// True if results were added to the used ring and are not published.
    unpublished: bool,
    /// True if the ring is looked at before the reactor sleeps, so that the guest need not kick.
    awake: bool,
    /// Turn of the loop in which the queue has used up its part (Q3).
    had_its_turn: Option<u32>,
    /// Turn of the loop, and the requests and bytes that the queue has begun in it.
    begun: (u32, u32, u64),
    /// Memory to go on with when nothing is under way.
    next_memory: Option<Arc<GuestMemory>>,
    /// Number of requests under way, for reports.
    reported: Arc<AtomicU32>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("index", &self.index).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Queue {
    pub(super) fn new(number: usize, begin: Begin, io: &mut Io) -> Result<Queue, String> {
        let Begin { device, index, ring, size, config, kick, call, export_id, export, bucket, tally, peer, .. } = begin;
        if !raw::watch(&mut io.ring, &kick, EventKind::Watch, number) {
            return Err("the kernel does not watch its kick eventfd".into());
        }
        io.shares.enter(number, peer, export_id);
        let align = export.backend.file().device().limits().dma_alignment.max(1) as usize;
        let block = u64::from(export.backend.file().block_bytes());
        let reported = export.board().runs(index, io.number, size);
        let mut queue = Queue {
            number,
            device,
            index,
            ring,
            chain: Chain::default(),
            config,
            kick,
            call,
            watch: Watch::Armed,
            export_id,
            export,
            fd: None,
            align: align.next_power_of_two(),
            block,
            bucket,
            tally,
            writes_back: begin.writes_back,
            is_enabled: begin.is_enabled,
            state: State::Runs,
            in_flight: Vec::new(),
            under_way: 0,
            deferred: None,
            charge: Charge::Due,
            unpublished: false,
            awake: false,
            had_its_turn: None,
            begun: (0, 0, 0),
            next_memory: None,
            reported,
        };
        // The guest may have waited for an interrupt when an earlier back-end ended.
        queue.interrupt(io);
        Ok(queue)
    }

    fn counts(&self) -> &Part {
        self.tally.part(self.index.into())
    }

    pub(in crate::reactor) fn export(&self) -> u32 {
        self.export_id
    }

    /// Returns the charge for the request that waits for the limit.
    pub(in crate::reactor) fn charge(&mut self) -> Option<&mut Charge> {
        (self.state == State::Runs).then_some(&mut self.charge)
    }

    pub(in crate::reactor) fn throttled(&self, time: std::time::Duration) {
        self.counts().throttled(time);
    }

    fn tell(&self, io: &Io, told: Told) {
        let order = Order::Device { session: self.device.session, queue: self.index, told };
        io.shared.order(self.device.reactor, order);
    }

    /// Carries out an order of the device.
    pub(super) fn ordered(&mut self, io: &mut Io, order: QueueOrder) {
        match order {
            QueueOrder::Memory { memory, drain: true } => {
                self.next_memory = Some(memory);
                return self.put_back();
            }
            QueueOrder::Memory { memory, drain: false } => self.use_memory(io, memory),
            QueueOrder::Kick(kick) => {
                self.kick = kick;
                // The last event of the watch begins one of the new eventfd.
                if raw::unwatch(&mut io.ring, EventKind::Watch, self.number) {
                    self.watch = Watch::Ending;
                } else {
                    self.broken(io, &"the kernel does not watch its new kick eventfd");
                }
            }
            QueueOrder::Call(call) => {
                self.call = call;
                self.interrupt(io);
            }
            QueueOrder::Enable(is_enabled) => self.is_enabled = is_enabled,
            QueueOrder::WriteBack(writes_back) => self.writes_back = writes_back,
            QueueOrder::Config(config) => self.config = config,
            QueueOrder::End => {
                self.state = State::Ends;
                return self.put_back();
            }
        }
        self.tell(io, Told::Done);
    }

    fn use_memory(&mut self, io: &Io, memory: Arc<GuestMemory>) {
        if let Err(broken) = self.ring.set_memory(memory) {
            self.broken(io, &broken);
        }
    }

    /// Gives the request that waits back to the ring (Q2).
    fn put_back(&mut self) {
        if self.deferred.take().is_some() {
            self.ring.put_back(&self.chain);
        }
        self.charge = Charge::Due;
    }

    /// Goes on with the next memory once nothing uses the earlier one (Q1).
    fn change_memory(&mut self, io: &mut Io) {
        if self.under_way == 0
            && let Some(memory) = self.next_memory.take()
        {
            self.publish(io);
            self.use_memory(io, memory);
            self.tell(io, Told::Done);
        }
    }

    /// Takes no more requests, because the guest has broken the rules (G3).
    #[cold]
    fn broken(&mut self, io: &Io, why: &dyn Display) {
        if self.state == State::Runs {
            self.state = State::Broken;
            self.charge = Charge::Due;
            self.tell(io, Told::Broken(format!("queue {}: {why}", self.index)));
        }
    }

    /// Called when the kick eventfd was signaled, or its watch has ended.
    pub(in crate::reactor) fn kicked(&mut self, io: &mut Io, goes_on: bool) {
        if goes_on {
            return;
        }
        self.watch = Watch::No;
        if self.state == State::Runs {
            // The kernel ends a watch when it has no room for an event.
            if raw::watch(&mut io.ring, &self.kick, EventKind::Watch, self.number) {
                self.watch = Watch::Armed;
            } else {
                self.broken(io, &"the kernel does not watch its kick eventfd");
            }
        }
    }

    /// Takes requests and publishes results, as far as that goes now.
    pub(in crate::reactor) fn go_on(&mut self, io: &mut Io) {
        self.publish(io);
        self.change_memory(io);
        if let Err(broken) = self.take_requests(io) {
            self.broken(io, &self.ring.cause(broken));
        }
        self.publish(io);
        if self.state == State::Ends {
            self.watch.end(io, EventKind::Watch, self.number);
        }
    }

    fn takes_requests(&self) -> bool {
        self.state == State::Runs && self.is_enabled && self.next_memory.is_none()
    }

    fn take_requests(&mut self, io: &mut Io) -> Result<(), Broken> {
        if !self.takes_requests() || self.charge.held_back_until().is_some() {
            return Ok(());
        }
        if self.fd.is_none() && !self.attach(io)? {
            return Ok(());
        }
        if self.deferred.is_some() {
            self.begin_deferred(io)?;
        }
        if self.begun.0 != io.turn {
            self.begun = (io.turn, 0, 0);
        }
        while self.deferred.is_none() {
            if self.begun.1 >= BATCH || self.begun.2 >= BATCH_BYTES {
                self.had_its_turn = Some(io.turn);
                break;
            }
            if !self.ring.take(&mut self.chain)? {
                break;
            }
            self.begun.1 += 1;
            match block::parse(&mut self.chain, self.ring.memory(), &self.config)? {
                Parsed::Request(request) => self.request(io, &request)?,
                Parsed::Refused { head, status, code } => {
                    self.counts().failed();
                    self.answered(head, &status, code)?;
                }
            }
        }
        self.stays_awake(io);
        Ok(())
    }

    /// Attaches the export to the ring if there are requests (Q4). Returns false if nothing is to be taken.
    fn attach(&mut self, io: &mut Io) -> Result<bool, Broken> {
        if self.deferred.is_none() && self.ring.available()? == 0 {
            self.stays_awake(io);
            return Ok(false);
        }
        match io.open(self.export_id, &self.export) {
            Ok(fd) => self.fd = Some(fd),
            // Another device will have no requests soon.
            Err(NotOpened::Full(_)) => self.had_its_turn = Some(io.turn),
            Err(NotOpened::Fails(why)) => self.broken(io, &why),
        }
        Ok(self.fd.is_some())
    }

    /// Lets go of the export's place in the ring (Q4).
    fn detach(&mut self, io: &mut Io) {
        if self.fd.take().is_some() {
            io.leave(self.export_id);
        }
    }

    /// Has the reactor look at the ring before it sleeps.
    fn stays_awake(&mut self, io: &mut Io) {
        if !self.awake {
            self.awake = true;
            self.ring.suppress_kicks();
            io.awake.push(self.number);
        }
    }

    #[cold]
    fn begin_deferred(&mut self, io: &mut Io) -> Result<(), Broken> {
        self.deferred.take().map_or(Ok(()), |request| self.request(io, &request))
    }

    /// Answers or starts a request, or defers it until there is memory and the export's limit lets it begin.
    // Inlined where requests are taken: written to memory in between, a request would be read back before the stores
    // are done, which costs more than all checks.
    #[inline(always)]
    fn request(&mut self, io: &mut Io, request: &block::Request) -> Result<(), Broken> {
        let command = match request.kind {
            Kind::GetId => return self.tell_id(request),
            Kind::In => Command::Read,
            Kind::Out => Command::Write,
            Kind::Flush => Command::Flush,
            Kind::Discard => Command::Trim,
            Kind::WriteZeroes { .. } => Command::WriteZeroes,
        };
        let moves = matches!(command, Command::Read | Command::Write);
        if moves && request.len > MOST_BYTES {
            return self.fails(request);
        }
        if !self.charge.admits(&self.bucket, if moves { request.len } else { 0 }) {
            self.deferred = Some(*request);
            return Ok(());
        }
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        let flags = if changes && !self.writes_back { cflag::FUA } else { 0 };
        let cookie = u64::from(request.head);
        let asked = Request { command, flags, cookie, offset: request.offset, len: request.len, contexts: 0 };
        if request.len == 0 && command != Command::Flush {
            self.counts().done(command, 0);
            return self.answered(request.head, &request.status, Code::Ok);
        }
        let Some(fd) = self.fd else { return self.fails(request) };
        let is_aligned = (request.offset | request.len) & (self.block - 1) == 0;
        let slot = if !moves && is_aligned {
            io.begin_with(self.number, fd, asked, None)
        } else if is_aligned && let Some(segments) = self.segments(io, request.data(&self.chain)) {
            io.begin_with(self.number, fd, asked, Some(segments))
        } else {
            let Some(slot) = self.begin_copied(io, fd, request, asked)? else { return Ok(()) };
            slot
        };
        self.begun.2 += request.len.min(BATCH_BYTES);
        self.under_way += 1;
        self.in_flight(request.head).status = Some(request.status);
        match request.kind {
            // Blocks that are zeroed otherwise may become holes.
            Kind::WriteZeroes { unmap: false } if !io.take_zeroes(slot) => {
                io.forget(slot);
                self.under_way -= 1;
                self.in_flight(request.head).status = None;
                return self.fails(request);
            }
            _ if changes => io.begin_change(slot, self.export.locks()),
            _ => io.start(slot),
        }
        Ok(())
    }

    /// Returns the place of a request under way.
    #[inline(always)]
    fn in_flight(&mut self, head: u16) -> &mut InFlight {
        let head = usize::from(head);
        if head >= self.in_flight.len() {
            self.in_flight.resize_with(head + 1, InFlight::default);
        }
        &mut self.in_flight[head]
    }

    #[cold]
    fn tell_id(&mut self, request: &block::Request) -> Result<(), Broken> {
        block::write_id(self.ring.memory(), request.data(&self.chain), &serial_of(&self.export))?;
        self.answered(request.head, &request.status, Code::Ok)
    }

    /// Answers a request that cannot begin.
    #[cold]
    fn fails(&mut self, request: &block::Request) -> Result<(), Broken> {
        self.counts().failed();
        self.answered(request.head, &request.status, Code::IoError)
    }

    /// Returns the memory of a request of whole blocks for the ring; `None` if the device does not transfer to places
    /// like these.
    #[inline(always)]
    fn segments(&self, io: &mut Io, data: &[Span]) -> Option<Segments> {
        if let [one] = data {
            let (base, len) = one.iovec();
            return (base as usize & (self.align - 1) == 0).then_some(Segments::One(IoVec { base, len }));
        }
        self.many_segments(io, data)
    }

    #[inline(never)]
    fn many_segments(&self, io: &mut Io, data: &[Span]) -> Option<Segments> {
        // A device transfers whole blocks to each piece of memory.
        let (align, block) = (self.align - 1, self.block as usize - 1);
        if !data.iter().all(|span| span.iovec().0 as usize & align == 0 && span.len() & (block | align) == 0) {
            return None;
        }
        let mut vector = io.vector();
        vector.extend(data.iter().map(|span| {
            let (base, len) = span.iovec();
            IoVec { base, len }
        }));
        Some(Segments::Many(vector))
    }

    /// Begins a request whose data goes through a payload, or that begins or ends within a block. Returns `None` if
    /// there is no memory now, and the request is deferred, or if there is nothing to do.
    #[cold]
    fn begin_copied(
        &mut self,
        io: &mut Io,
        fd: Fd,
        request: &block::Request,
        asked: Request,
    ) -> Result<Option<u32>, Broken> {
        let unaligned = Unaligned::of(&asked, self.block);
        if asked.command == Command::Trim && unaligned.as_ref().is_some_and(|unaligned| unaligned.inner().1 == 0) {
            // Blocks that a trim covers in part are left alone.
            self.counts().done(asked.command, asked.len);
            return self.answered(request.head, &request.status, Code::Ok).map(|()| None);
        }
        let shape = match &unaligned {
            Some(unaligned) => unaligned.shape(&asked, self.align),
            None => Shape::whole(request.len as usize, self.align),
        };
        let Some(memory) = io.ask_whole(self.number, &shape) else {
            (self.deferred, self.charge) = (Some(*request), Charge::Paid);
            return Ok(None);
        };
        let Some(slot) = io.begin(self.number, fd, asked, &shape, memory) else {
            self.fails(request)?;
            return Ok(None);
        };
        if request.kind == Kind::Out
            && let Some((payload, ..)) = io.gathering(slot)
        {
            let copied = self.ring.memory().copy_from(request.data(&self.chain), data_of(payload, request.len));
            if copied.is_err() {
                io.forget(slot);
            }
            copied?;
        }
        if request.kind == Kind::In {
            let data = request.data(&self.chain).into();
            self.in_flight(request.head).copied = Some(data);
        }
        unaligned.into_iter().for_each(|unaligned| io.set_unaligned(slot, unaligned));
        Ok(Some(slot))
    }

    /// Called when a request has ended.
    #[inline(always)]
    pub(in crate::reactor) fn answer(&mut self, io: &mut Io, answer: Answer) {
        self.under_way -= 1;
        if let Err(broken) = self.end_request(io, answer) {
            self.broken(io, &broken);
        }
    }

    #[inline(always)]
    fn end_request(&mut self, io: &mut Io, answer: Answer) -> Result<(), Broken> {
        let Answer { request, payload, failed, .. } = answer;
        let head = request.cookie as u16;
        let ended = &mut self.in_flight[usize::from(head)];
        let Some(status) = ended.status.take() else { return Ok(()) };
        let code = match failed {
            None => Code::Ok,
            Some(failed) if failed.errno == Errno::NotSup => Code::Unsupported,
            Some(_) => Code::IoError,
        };
        if let Some(payload) = payload {
            self.end_copied(io, &request, payload, code)?;
        }
        match code {
            Code::Ok => self.counts().done(request.command, request.len),
            _ if self.ring.memory().is_cut_off() => return Err(Broken::CutOff),
            _ => self.counts().failed(),
        }
        self.answered(head, &status, code)
    }

    /// Copies what was read to the guest, and gives the payload back.
    #[cold]
    fn end_copied(&mut self, io: &mut Io, request: &Request, mut payload: Payload, code: Code) -> Result<(), Broken> {
        let spans = self.in_flight[request.cookie as u16 as usize].copied.take().unwrap_or_default();
        let is_read = request.command == Command::Read && code == Code::Ok;
        let copied = is_read.then(|| self.ring.memory().copy_to(&spans, data_of(&mut payload, request.len)));
        io.give_back(self.number, payload);
        copied.transpose().map(|_| ())
    }

    /// Adds the result of a request to the used ring.
    #[inline]
    fn answered(&mut self, head: u16, status: &Status, code: Code) -> Result<(), Broken> {
        let written = status.write(self.ring.memory(), code)?;
        self.unpublished = true;
        self.ring.used(head, written)
    }

    /// Shows the guest the results since the last call, and interrupts it if it wants that.
    fn publish(&mut self, io: &mut Io) {
        if std::mem::take(&mut self.unpublished) {
            // Relaxed: a number for reports.
            self.reported.store(self.under_way, Ordering::Relaxed);
            match self.ring.publish() {
                Ok(true) => self.interrupt(io),
                Ok(false) => {}
                Err(broken) => self.broken(io, &broken),
            }
        }
    }

    fn interrupt(&mut self, io: &mut Io) {
        if let Some(call) = &self.call
            && !raw::signal(&mut io.ring, call)
        {
            self.broken(io, &"the kernel does not take an interrupt of the guest");
        }
    }

    /// Returns true if the guest has made a request available, or has broken its ring, which is found out later.
    #[inline]
    pub(super) fn has_requests(&mut self, io: &Io) -> bool {
        let takes = self.takes_requests() && self.deferred.is_none() && !self.yields(io);
        takes && self.ring.available().is_ok_and(|many| many > 0)
    }

    /// Asks the guest for kicks.
    pub(super) fn want_kicks(&mut self, io: &mut Io) -> Kicks {
        // Relaxed: a number for reports.
        self.reported.store(self.under_way, Ordering::Relaxed);
        if self.yields(io) {
            return Kicks::Later;
        }
        self.awake = false;
        if !self.takes_requests() || self.deferred.is_some() {
            if self.under_way == 0 {
                self.detach(io);
            }
            return Kicks::Armed;
        }
        match self.ring.want_kicks() {
            Ok(false) => {
                if self.under_way == 0 {
                    self.detach(io);
                }
                Kicks::Armed
            }
            Ok(true) => Kicks::HasWork,
            Err(broken) => {
                self.broken(io, &broken);
                Kicks::Armed
            }
        }
    }

    /// Returns true if the queue has used up its part of this turn (Q3).
    pub(in crate::reactor) fn yields(&self, io: &Io) -> bool {
        let has_more = self.had_its_turn == Some(io.turn) && self.takes_requests();
        // The kernel did not take the end of the watch: the next turn tries again.
        has_more || (self.state == State::Ends && self.watch == Watch::Armed)
    }

    /// Returns true if the queue has ended and nothing of it is under way.
    pub(in crate::reactor) fn is_gone(&self) -> bool {
        self.state == State::Ends && self.under_way == 0 && self.watch == Watch::No
    }

    /// Tells the device that the queue has ended (G1).
    pub(in crate::reactor) fn leave(&mut self, io: &mut Io) {
        self.publish(io);
        self.detach(io);
        self.export.board().stopped(self.index);
        self.tell(io, Told::Ended { last_avail: self.ring.last_avail() });
    }
}

/// Returns the data of a payload.
fn data_of(payload: &mut Payload, len: u64) -> &mut [u8] {
    let start = payload.start();
    payload.bytes_mut(start, len as usize)
}
