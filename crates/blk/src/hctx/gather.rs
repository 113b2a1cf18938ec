//! The straight way of plain reads and writes: from values to a bio and its request, with nothing looked up twice.
//!
//! Owns what the I/Os of one lane share. Does the same as `Hctx::add` and `Hctx::gather` do for any bio, for those that
//! surely need nothing else; everything that turns out otherwise is handed to them.

use sheave_base::clock::CoarseTs;

use super::Hctx;
use crate::bio::{BIO_FUA, BIO_PREFLUSH, BVec, BioAttrs, NO_FIXED_BUF, Op, SECTOR_SHIFT};
use crate::ctx::Core;
use crate::ctx::lane::PlainKind;
use crate::request::RqAttrs;
use crate::tag_set::TagInfo;

/// What the plain I/Os of the lane that is open share. It lives in the hardware context and not on the stack: there it
/// is copied as a whole, in one store, and takes no registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gather {
    bio: BioAttrs,
    rq: RqAttrs,
    info: TagInfo,
    /// Longer ones go the long way; with FUA or PREFLUSH all of them.
    max_bytes: u32,
    /// The batch's time stamp.
    time: CoarseTs,
    /// First sector and end of the request gathered last, or no sectors: a hint where to try a merge.
    start: u64,
    end: u64,
    /// What all but the last three was made from.
    kind: (u16, PlainKind),
}

impl Default for Gather {
    fn default() -> Self {
        Gather {
            bio: BioAttrs::new(0),
            rq: RqAttrs::default(),
            info: TagInfo::default(),
            max_bytes: 0,
            time: CoarseTs::default(),
            start: u64::MAX,
            end: u64::MAX,
            // No bio has all flags, so the first lane is another.
            kind: (0, PlainKind { op: Op::Read, flags: u16::MAX, fixed_buf: NO_FIXED_BUF }),
        }
    }
}

impl Hctx {
    /// Begins a lane of I/Os of this kind.
    #[inline]
    pub(crate) fn start_lane(&mut self, part: u16, kind: PlainKind) {
        if self.lane.kind == (part, kind) {
            (self.lane.start, self.lane.end, self.lane.time) = (u64::MAX, u64::MAX, self.time_of_last());
        } else {
            self.start_other_lane(part, kind);
        }
    }

    /// The cache of bios has changed: this is the mark of its bios from now on.
    pub(crate) fn set_cacheable(&mut self, cacheable: u16) {
        self.cacheable = cacheable;
        self.lane = Gather::default();
    }

    #[inline(never)]
    fn start_other_lane(&mut self, part: u16, kind: PlainKind) {
        let PlainKind { op, flags, fixed_buf } = kind;
        self.lane = Gather {
            bio: BioAttrs { op, part, fixed_buf, nr_vecs: 1, ..BioAttrs::new(self.cacheable | flags) },
            rq: RqAttrs { op, flags: flags as u8 & self.inherited, nr_segs: 1, merged: 0, part },
            info: TagInfo::new(op, part),
            max_bytes: if flags & (BIO_FUA | BIO_PREFLUSH) == 0 { self.plain_bytes } else { 0 },
            time: self.time_of_last(),
            kind: (part, kind),
            ..Gather::default()
        };
    }

    /// The time of the request gathered last. A lane asks for the time when it is due only
    /// ([`Plug::is_time_due`](crate::plug::Plug::is_time_due)), and what others have gathered before counts too.
    #[inline]
    fn time_of_last(&self) -> CoarseTs {
        self.gathered.last().map_or_else(CoarseTs::default, |last| self.rqs[last].start)
    }

    /// Takes a plain I/O, whose bio it makes; false when no bio is free.
    #[inline(always)]
    pub(crate) fn add_plain(&mut self, core: &mut Core, owner: u32, sector: u64, bytes: u32, vec: BVec) -> bool {
        let Some(id) = core.bios.take_plain(&self.lane.bio, owner, sector, bytes, vec) else {
            return false;
        };
        if self.stalled || bytes > self.lane.max_bytes {
            self.add_slow(core, id);
            (self.lane.start, self.lane.end, self.lane.time) = (u64::MAX, u64::MAX, self.time_of_last());
            return true;
        }
        let end = sector + u64::from(bytes >> SECTOR_SHIFT);
        if (sector == self.lane.end || end == self.lane.start) && self.try_merge(core, id, sector, bytes) {
            (self.lane.start, self.lane.end) = (self.lane.start.min(sector), self.lane.end.max(end));
            return true;
        }
        let Some(tag) = self.tags.take(core.plug.hint()) else {
            self.wait(core, id);
            return true;
        };
        self.tags.set_info(tag, self.lane.info);
        if core.plug.is_time_due(self.gathered.len()) && core.stats {
            self.lane.time = core.plug.now(&core.clock);
        }
        self.rqs[tag].fill(id, sector, bytes, &self.lane.rq, self.lane.time);
        (self.lane.start, self.lane.end) = (sector, end);
        self.gathered.push(tag);
        if self.gathered.is_full() {
            self.flush(core);
        }
        true
    }

    /// Ends a lane: what it gathered goes to the driver with the plug, or now when none is open.
    #[inline]
    pub(crate) fn end_lane(&mut self, core: &mut Core) {
        core.plug.dirty |= self.bit;
        if !core.plug.is_open() {
            self.flush_gathered(core);
            self.end_plug();
        }
    }
}
