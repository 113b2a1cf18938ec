//! Fast path of plain reads and writes: fills requests from parameters that were looked up once per lane.
//!
//! Owns the making of requests on a lane, whose I/Os share an [`OpenLane`]. An I/O of a run becomes a plain record: a
//! request without a bio ([`request`](crate::request)). It gets the bio that was promised to it when a neighbour merges
//! with it, or when its request is taken apart. A single I/O of a submitter that wants a bio gets one here if it surely
//! fits in one request. All other I/Os go through `Hctx::add`.
//!
//! Invariants: I1 to I3 of the parent, and
//! - G1: the bio of every plain record in flight is promised ([`BioSet`](crate::bio_set::BioSet), I9) from
//!   [`Hctx::add_run`] until the record ends or gets its bio.
//! - G2: when a run begins, and before each chunk of at most [`CHECK_EVERY`](crate::plug::CHECK_EVERY) requests, the
//!   age of the stamp is checked, so that it is within the plug's limit there. It may exceed the limit within a chunk.

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;

use super::Hctx;
use crate::bio::{BIO_FUA, BIO_PLAIN, BIO_PREFLUSH, BVec, BioAttrs, BioId, SECTOR_SHIFT};
use crate::driver::{HwEnv, Started};
use crate::end_io::{EndIo, PlainEnd};
use crate::merge;
use crate::plain_io::{Alone, LaneId, OpenLane, PlainIo, PlainKind, PlainRunOf, RunItem};
use crate::request::{PLUG_LONG, PLUG_MAX, RQ_NOMERGE, Rq, RqHead, RqList, RqTable};
use crate::ring_core::Core;
use crate::stats::Split;

impl Hctx {
    /// Begins a lane for I/Os of `kind`.
    #[inline]
    pub(crate) fn start_lane(&mut self, core: &mut Core, part: u16, kind: PlainKind) {
        if self.lane.id != LaneId::new(part, kind) {
            self.start_other_lane(part, kind);
        }
        self.restart_lane(core);
    }

    /// Reopens the lane that was open last. If requests are gathered it checks the age of the stamp with the cycle
    /// counter, because any time may have passed since the last of them (G2). If none are, the first request reads the
    /// clock.
    #[inline(always)]
    pub(crate) fn restart_lane(&mut self, core: &mut Core) {
        self.lane.forget_place();
        if self.counts && !core.plug.is_time_due(self.gathered.end()) {
            self.lane.time = core.plug.now(&core.clock);
        }
    }

    /// Sets the flag of bios that may be cached. Called when the bio cache is replaced.
    #[cfg(sheave_lab)]
    pub(crate) fn set_cacheable(&mut self, cacheable: u16) {
        self.cacheable = cacheable;
        self.lane = OpenLane::default();
    }

    #[inline(never)]
    fn start_other_lane(&mut self, part: u16, kind: PlainKind) {
        let PlainKind { op, flags, fixed_buf } = kind;
        self.lane = OpenLane {
            bio: BioAttrs { op, part, fixed_buf, nr_vecs: 1, ..BioAttrs::new(self.cacheable | flags) },
            head: RqHead {
                op,
                flags: flags as u8 & RQ_NOMERGE,
                nr_segs: 1,
                merged_or_buf: fixed_buf,
                part,
                bio_head: BioId::PLAIN,
                ..RqHead::default()
            },
            info: self.tags.info_of(op, part),
            max_bytes: if flags & (BIO_FUA | BIO_PREFLUSH) == 0 { self.plain_bytes } else { 0 },
            id: LaneId::new(part, kind),
            ..OpenLane::default()
        };
    }

    /// Makes a bio of a plain I/O and adds it. Returns false if no bio is free.
    #[inline(always)]
    pub(crate) fn add_plain(&mut self, core: &mut Core, owner: u32, sector: u64, vec: BVec) -> bool {
        let Ok(bytes) = u32::try_from(vec.len) else { return core.refuse(owner) };
        let Some(id) = core.bios.take_plain(&self.lane.bio, owner, sector, bytes, vec) else {
            return false;
        };
        if self.stalled || bytes > self.lane.max_bytes {
            self.add_slow(core, id);
            self.restart_lane(core);
            return true;
        }
        let end = sector + u64::from(bytes >> SECTOR_SHIFT);
        if (sector == self.lane.end || end == self.lane.start) && self.try_merge(core, id, sector, bytes) {
            (self.lane.start, self.lane.end) = (self.lane.start.min(sector), self.lane.end.max(end));
            return true;
        }
        let Some(tag) = self.send_long(core).then(|| self.tags.take(core.plug.hint())).flatten() else {
            self.wait(core, id);
            return true;
        };
        self.tags.set_info(tag, self.lane.info);
        self.read_time_if_due(core);
        let head = RqHead { bytes, merged_or_buf: 0, generation: self.epoch, start: self.lane.time, ..self.lane.head };
        self.rqs[tag].fill(id, sector, &head);
        (self.lane.start, self.lane.end) = (sector, end);
        self.push_lane(core, tag);
        true
    }

    #[inline(always)]
    fn read_time_if_due(&mut self, core: &mut Core) {
        if core.plug.is_time_due(self.gathered.end()) && self.counts {
            self.lane.time = core.plug.now(&core.clock);
        }
    }

    #[inline(always)]
    fn push_lane(&mut self, core: &mut Core, tag: u16) {
        self.gathered.push(tag);
        if self.gathered.is_full() {
            self.flush(core);
        }
    }

    /// Returns the partition and kind of the lane that is or was last open.
    #[inline(always)]
    pub(crate) fn lane_id(&self) -> LaneId {
        self.lane.id
    }

    /// Sends one plain I/O to the driver at once, as a record with a time stamp of its own. The caller has no plug
    /// open, and the lane is the one that was open last.
    ///
    /// The driver may end it within the call. The record then was in no list: it counts as in flight only for the time
    /// of the call, and its busy time is added afterwards. A panic of the driver reaches the caller; the I/O is then in
    /// flight, and the next poll fails it.
    #[inline(always)]
    pub(crate) fn send_alone(
        &mut self,
        core: &mut Core,
        run: PlainRunOf,
        shift: u64,
        io: PlainIo,
        end: &mut impl EndIo,
    ) -> Alone {
        debug_assert!(!core.plug.is_open(), "what is gathered must go before it");
        if run.bytes > self.lane.max_bytes || self.gathered.end() != 0 {
            return Alone::No;
        }
        if self.stalled || core.bios.promisable() == 0 {
            return Alone::No;
        }
        let Some(tag) = self.tags.take_alone(self.lane.info) else { return Alone::No };
        let start = if self.counts { core.clock.coarse() } else { CoarseTs::default() };
        let rq = &mut self.rqs[tag];
        rq.fill_plain(&self.lane.head, io.sector + shift, io.base, io.cookie);
        // Stored in the record, and not in the lane's head before the copy: a copy with loads wider than the stores
        // just before it must wait until those have left the store buffer.
        (rq.bytes, rq.tail_or_owner, rq.generation, rq.start) = (run.bytes, run.owner, self.epoch, start);
        if let Err(gate) = self.start_dispatch(core, 0) {
            self.count_alone(core, tag, start);
            self.begin_held(core, gate, &[tag], start);
            self.hold_back(core, &mut RqList::of(tag), gate);
            return Alone::Sent;
        }
        let sending = Sending { hctx: self, core };
        let (hctx, lent) = (&mut *sending.hctx, &mut *sending.core);
        let mut env = HwEnv { kring: lent.kring.ring.as_mut(), clock: &lent.clock, hctx: hctx.hw.index() };
        let mut table = RqTable { rqs: hctx.rqs.all(), bios: &lent.bios };
        let started = hctx.hw.queue_mut().queue_rq(Rq::new(tag), &mut table, &mut env, &mut hctx.done);
        std::mem::forget(sending);
        self.shared.end_dispatch();
        match started {
            Started::Ended(rq, Status::Ok) if end.end_one(PlainEnd { cookie: io.cookie, bytes: run.bytes }) => {
                let ended = rq.into_tag();
                debug_assert_eq!(ended, tag, "D2: a driver gives back the token that it got");
                self.rqs[tag].bio_head = BioId::NONE; // C1 of `complete`
                self.epoch = self.epoch.wrapping_add(1);
                if self.counts {
                    let now = core.clock.coarse().max(start);
                    let latency_ns = now.ns_since(start);
                    self.add_alone(start, now);
                    let head = RqHead { tail_or_owner: run.owner, bytes: run.bytes, ..self.lane.head };
                    let split = Split::in_driver(latency_ns);
                    self.count_run(tag, &head, &split, now, (1, run.bytes.into()), end);
                    self.trace_alone(core, tag, (latency_ns, now), end);
                    core.look_if_due(now, end);
                }
                self.tags.free_alone(tag);
                Alone::Ended
            }
            Started::Taken => {
                self.count_alone(core, tag, start);
                self.begin_alone(start);
                Alone::Sent
            }
            Started::Ended(rq, status) => self.end_later(core, rq, status, start),
            Started::Refused(rq) => {
                self.count_alone(core, tag, start);
                self.begin_alone(start);
                self.refuse(core, &mut RqList::of(rq.into_tag()));
                Alone::Sent
            }
        }
    }

    /// Counts a request that was sent alone as in flight, as a flush of the plug does.
    #[inline(always)]
    fn count_alone(&mut self, core: &mut Core, tag: u16, start: CoarseTs) {
        self.stamps.send_one(tag, start);
        self.count_sent(core);
    }

    /// [`Hctx::count_alone`] without the stamp, for a caller that no longer has the tag.
    #[inline(always)]
    fn count_sent(&mut self, core: &mut Core) {
        core.bios.promise(1);
        core.active |= self.bit;
        self.in_driver += 1;
    }

    /// Leaves to the next poll a request that was sent alone and has failed, or whose owner has no room.
    #[cold]
    fn end_later(&mut self, core: &mut Core, rq: Rq, status: Status, start: CoarseTs) -> Alone {
        self.count_alone(core, rq.tag(), start);
        self.begin_alone(start);
        self.done.push(rq, status);
        Alone::Sent
    }

    /// Adds at most `most` plain I/Os as records, while there are tags, and bios to promise. Returns the number added.
    /// `from(n)` returns an iterator over the I/Os from number `n` on; it may produce the same one twice.
    #[inline(always)]
    pub(crate) fn add_run<I>(
        &mut self,
        core: &mut Core,
        run: PlainRunOf,
        shift: u64,
        most: usize,
        from: impl Fn(usize) -> I + Copy,
    ) -> usize
    where
        I: Iterator<Item: RunItem>,
    {
        self.kick(core);
        if self.stalled || run.bytes > self.lane.max_bytes {
            return 0;
        }
        self.lane.head.bytes = run.bytes;
        self.lane.head.tail_or_owner = run.owner;
        self.lane.head.generation = self.epoch;
        // `add_row` compares each sector with the start of the I/O before it, here the last one of the gathered
        // request.
        self.lane.start = self.lane.end.wrapping_sub(u64::from(run.bytes >> SECTOR_SHIFT));
        let mut taken = 0;
        loop {
            let room = (most - taken).min(core.bios.promisable() as usize);
            if self.is_last_long() && !self.goes_on(core, run, shift, from(taken)) {
                return taken;
            }
            let room = if run.bytes < PLUG_LONG { room } else { room.min(1) };
            if room == 0 || !self.tags.ensure(core.plug.hint()) {
                return taken;
            }
            self.read_time_if_due(core);
            let (many, neighbour) = self.add_row(core, shift, room, from(taken));
            taken += many;
            if self.gathered.is_full() {
                self.flush(core);
            }
            if neighbour {
                taken += self.add_neighbours(core, run, shift, from(taken).take(most - taken).map(RunItem::io));
            }
            if taken == most || self.stalled {
                return taken;
            }
        }
    }

    /// Called if the last gathered request is long. Returns true if the run can go on: its next I/O is adjacent to that
    /// request, or the request was passed to the driver.
    #[cold]
    fn goes_on(
        &mut self,
        core: &mut Core,
        run: PlainRunOf,
        shift: u64,
        mut ios: impl Iterator<Item = impl RunItem>,
    ) -> bool {
        let (lane, sectors) = (&self.lane, u64::from(run.bytes >> SECTOR_SHIFT));
        let is_beside = |sector: u64| sector == lane.end || sector + sectors == lane.start;
        ios.next().is_some_and(|item| is_beside(item.io().sector + shift)) || self.send_long(core)
    }

    /// Adds at most `most` I/Os of a run that share a stamp and have consecutive tags. Returns the number added, and
    /// true if the next I/O is adjacent to the one before it.
    #[inline(always)]
    fn add_row(
        &mut self,
        core: &mut Core,
        shift: u64,
        most: usize,
        ios: impl Iterator<Item = impl RunItem>,
    ) -> (usize, bool) {
        let Hctx { lane, gathered, rqs, tags, .. } = self;
        lane.head.start = lane.time;
        let (head, tag_info) = (&lane.head, lane.info);
        let sectors = u64::from(head.bytes >> SECTOR_SHIFT);
        // The sectors of two adjacent I/Os differ by `sectors`, up or down. With `sectors` added the difference is 0 or
        // `2 * sectors`, so one mask tests both. If `sectors` is not a power of two, the mask accepts further values,
        // which `add_neighbours` rejects.
        let apart = !(2 * sectors);
        let most = most.min(core.plug.until_due(gathered.end()));
        #[cfg(sheave_lab)]
        let before = gathered.end();
        let places = gathered.room();
        let row = tags.row(most.min(places.len()));
        let rqs = rqs.row(row.first, row.len());
        let (mut last, mut neighbour) = (lane.start, false);
        let mut many = 0;
        for (((rq, place), info), item) in rqs.iter_mut().zip(places).zip(row.infos()).zip(ios) {
            let (io, fixed_buf) = (item.io(), item.fixed_buf());
            let sector = io.sector + shift;
            if sector.wrapping_add(sectors.wrapping_sub(last)) & apart == 0 {
                neighbour = true;
                break;
            }
            #[cfg(sheave_lab)]
            if core.stats && !core.plug.is_time_due(before + many) {
                core.plug.read_for_one(&core.clock);
            }
            rq.fill_plain(head, sector, io.base, io.cookie);
            if let Some(fixed_buf) = fixed_buf {
                rq.head.merged_or_buf = fixed_buf;
            }
            info.set(tag_info);
            *place = row.first + many as u16;
            last = sector;
            many += 1;
        }
        tags.took(many as u32);
        gathered.pushed(many);
        core.bios.promise(many as u32);
        (lane.start, lane.end) = (last, last.wrapping_add(sectors));
        (many, neighbour)
    }

    /// Merges I/Os of a run with the last gathered request: all that follow it in sequence, or one before it. Returns
    /// their number. If 0, the first I/O is treated as not adjacent.
    #[inline(never)]
    fn add_neighbours(
        &mut self,
        core: &mut Core,
        run: PlainRunOf,
        shift: u64,
        ios: impl Iterator<Item = PlainIo>,
    ) -> usize {
        let attrs = BioAttrs { flags: self.lane.bio.flags | BIO_PLAIN, ..self.lane.bio };
        let mut ios = ios.map(|io| PlainIo { sector: io.sector + shift, ..io }).peekable();
        let mut many = 0;
        if let (Some(last), Some(&io)) = (self.gathered.last(), ios.peek()) {
            let (rq, sector, limits) = (&self.rqs[last], io.sector, self.queue.limits());
            if rq.end_sector() == sector {
                let most = merge::room_behind(rq, &attrs, run.bytes, limits);
                many = self.add_behind(core, last, &attrs, run, ios.take(most as usize));
            } else if merge::is_adjacent(rq, sector, run.bytes)
                && merge::fits(rq, &attrs, sector, run.bytes, limits)
                && let Some(id) = take_plain_bio(core, &attrs, run, io)
            {
                self.make_bio(core, last);
                merge::link(&mut self.rqs[last], &mut core.bios, id);
                (self.lane.start, self.lane.end) = (sector, sector + u64::from(run.bytes >> SECTOR_SHIFT));
                many = 1;
            }
        }
        if many == 0 {
            self.lane.forget_place();
        }
        many
    }

    /// Appends consecutive I/Os to the last gathered request while bios are free. Returns the number appended.
    #[inline(never)]
    fn add_behind(
        &mut self,
        core: &mut Core,
        last: u16,
        attrs: &BioAttrs,
        run: PlainRunOf,
        ios: impl Iterator<Item = PlainIo>,
    ) -> usize {
        let sectors = u64::from(run.bytes >> SECTOR_SHIFT);
        let mut end = self.rqs[last].end_sector();
        let mut tail = BioId::NONE;
        let mut many = 0;
        for io in ios {
            if io.sector != end {
                break;
            }
            let Some(id) = take_plain_bio(core, attrs, run, io) else { break };
            if many == 0 {
                self.make_bio(core, last);
                tail = self.rqs[last].bio_tail();
            }
            core.bios[tail].next = id;
            tail = id;
            end += sectors;
            many += 1;
        }
        if many > 0 {
            self.rqs[last].grew_behind(tail, many as u32, run.bytes);
            (self.lane.start, self.lane.end) = (end - sectors, end);
        }
        many
    }

    /// Gives a plain record the bio that was promised to it (G1). Requests with a bio are left alone.
    pub(super) fn make_bio(&mut self, core: &mut Core, tag: u16) {
        let rq = &mut self.rqs[tag];
        let Some(vec) = rq.plain_vec() else { return };
        // `RQ_NOMERGE` is the only request flag that is also a bio flag. The time that the record was held back is not
        // passed on: `stamp_waiting` measures the bio's wait anew.
        let flags = self.cacheable | u16::from(rq.flags & RQ_NOMERGE) | BIO_PLAIN;
        let (op, part, fixed_buf) = (rq.op, rq.part, rq.merged_or_buf);
        let attrs = BioAttrs { op, part, fixed_buf, nr_vecs: 1, ..BioAttrs::new(flags) };
        let id = core.bios.take_promised(&attrs, rq.tail_or_owner, rq.sector, rq.bytes, vec);
        core.bios[id].cookie = rq.cookie;
        rq.merged_or_buf = 0;
        rq.set_bio(id);
    }

    /// Ends the lane. Its requests go to the driver with the plug, or now if none is open.
    #[inline]
    pub(crate) fn end_lane(&mut self, core: &mut Core) {
        core.plug.dirty |= self.bit;
        if !core.plug.is_open() {
            self.flush_gathered(core);
            self.end_plug();
        }
    }
}

/// Guard for the call of `Hctx::send_alone`. Catching a panic there costs too much for a single I/O. A panic therefore
/// reaches the ring's caller, and this guard's drop stops the driver and counts the request as in flight.
struct Sending<'a> {
    hctx: &'a mut Hctx,
    core: &'a mut Core,
}

impl Drop for Sending<'_> {
    #[cold]
    fn drop(&mut self) {
        self.hctx.shared.end_dispatch();
        self.hctx.hw.stop();
        self.hctx.count_sent(self.core);
        self.hctx.begin_alone(self.core.clock.coarse());
        self.core.broken |= self.hctx.bit;
    }
}

/// Takes a bio for a plain I/O that shares a request with others.
#[inline(always)]
fn take_plain_bio(core: &mut Core, attrs: &BioAttrs, run: PlainRunOf, io: PlainIo) -> Option<BioId> {
    let vec = BVec { base: io.base, len: run.bytes as usize };
    let id = core.bios.take_plain(attrs, run.owner, io.sector, run.bytes, vec)?;
    core.bios[id].cookie = io.cookie;
    Some(id)
}

const _: () = assert!(PLUG_MAX <= u8::MAX as usize, "a list counts in bytes");
