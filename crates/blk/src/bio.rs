//! The bio: one I/O towards one device, with its vectors.
//!
//! Owns the shape of a bio, its operation and its flags. Does not own where bios live or when they are recycled
//! ([`bio_set`](crate::bio_set)), nor how they become requests ([`hctx`](crate::hctx)).
//!
//! A bio is two cache lines: a header, and four inline vectors. More vectors than [`BIO_INLINE_VECS`] live in a table
//! on the heap; such a bio is never cached.
//!
//! Invariants:
//! - I1: the memory that `vecs` describe stays valid and unaliased until `end_io` was called for the bio. Whoever
//!   submits promises this; the ring keeps owned buffers for it.
//! - I2: `bytes` is the sum of the lengths of the vectors for reads and writes; discards and flushes carry none.
//! - I3: a bio with `remaining > 0` has that many children in flight and has not ended.

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;

/// How many vectors a bio holds without a table of its own.
pub const BIO_INLINE_VECS: usize = 4;

/// Bytes in a sector, the unit of all device addresses.
pub const SECTOR_SHIFT: u32 = 9;

/// What a request does. The values index statistics. A driver answers `NotSupp` to one that it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Op {
    /// Device to memory.
    #[default]
    Read = 0,
    /// Memory to device.
    Write = 1,
    /// Make every completed write durable.
    Flush = 2,
    /// The range's content is no longer needed; reading it gives anything (or zeroes, see limits).
    Discard = 3,
    /// The range reads as zeroes afterwards.
    WriteZeroes = 4,
}

/// How many operations there are.
pub const NR_OPS: usize = 5;

impl Op {
    /// Every operation, in the order of its value.
    pub const ALL: [Op; NR_OPS] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

    /// The operation with this value.
    pub fn from_u8(value: u8) -> Op {
        Self::ALL[usize::from(value) % NR_OPS]
    }

    /// Lower-case name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write-zeroes",
        }
    }

    /// Whether the operation moves data between memory and device.
    #[inline]
    pub fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

/// Durable on completion, even across power loss.
pub const BIO_FUA: u16 = 1 << 0;
/// Flush the device's cache before this write.
pub const BIO_PREFLUSH: u16 = 1 << 1;
/// May go back to the owner's cache; only bios with inline vectors from outside the reserve.
pub const BIO_CACHEABLE: u16 = 1 << 3;
/// Came from the reserve and returns there.
pub const BIO_RESERVE: u16 = 1 << 4;
/// Has waited for a request since its `waited_from`.
pub(crate) const BIO_WAITED: u16 = 1 << 2;
/// Must not be merged with neighbours.
pub const BIO_NOMERGE: u16 = 1 << 5;
/// Has a parent whose `remaining` counts it.
pub const BIO_CHILD: u16 = 1 << 6;
/// Ended itself and waits for `remaining` children.
pub const BIO_WAITS: u16 = 1 << 7;
/// A flush on its way to several queues: `sector` is the mask of those that still get one.
pub const BIO_SPREADING: u16 = 1 << 8;

/// Has or had children, or an error of its own: ends the slow way.
pub const BIO_SLOW: u16 = 1 << 10;
/// A flush of the owner of the device, who hears what the device says of it even when its
/// [alarm](crate::flush_alarm) rings.
pub const BIO_OWNER: u16 = 1 << 11;
/// Carries a plain record that could not stay one: its owner hears of its end by `EndIo::end_plain`.
pub(crate) const BIO_PLAIN: u16 = 1 << 12;
/// A stacked driver's I/O to a device below, or a piece of it: `owner` has the driver's hardware context and its level,
/// and `cookie` the driver's token.
pub(crate) const BIO_STACKED: u16 = 1 << 13;
/// The flags that a submitter may set.
pub(crate) const BIO_USER: u16 = BIO_FUA | BIO_PREFLUSH | BIO_NOMERGE | BIO_OWNER;

/// Bits that send a bio down the slow way on completion.
pub(crate) const BIO_SLOW_END: u16 = BIO_CHILD | BIO_WAITS | BIO_SLOW | BIO_PLAIN | BIO_STACKED;

/// A piece of memory that an I/O may use: what [`IoCtx::submit`](crate::ctx::IoCtx::submit) takes.
///
/// Whoever makes one promises that the memory may be used for I/O, and until when only its maker knows. So it goes down
/// to the block layer and no further: drivers and files are shown a [`Segment`] in its place, which says where the
/// memory is and cannot be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct BVec {
    pub(crate) base: usize,
    pub(crate) len: usize,
}

/// Where a piece of memory of an I/O is, for who moves its bytes; the layout is that of `iovec`, so that a driver can
/// hand a bio's pieces on as they are. It promises nothing: the memory is valid until the I/O has ended, whoever keeps
/// this longer.
///
/// ```compile_fail,E0308
/// # use sheave_blk::{ctx::{BioSpec, IoCtx}, request::RqTable};
/// # fn again(ctx: &mut IoCtx, spec: &BioSpec, rqs: &RqTable<'_>) {
/// // A driver cannot send I/O on memory that it has seen: that may be freed by then.
/// let seen: Vec<_> = rqs.segments(0).collect();
/// ctx.submit(spec, &seen, sheave_blk::bio::NO_FIXED_BUF);
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Segment {
    base: usize,
    len: usize,
}

const _: () = {
    let layout = (std::mem::offset_of!(Segment, base), std::mem::offset_of!(Segment, len));
    assert!(layout.0 == 0 && layout.1 == size_of::<usize>(), "drivers hand a slice of these to the kernel as it is");
    let same = (std::mem::offset_of!(BVec, base), std::mem::offset_of!(BVec, len));
    assert!(same.0 == 0 && same.1 == layout.1, "a slice of vectors is one of segments");
    assert!(size_of::<BVec>() == size_of::<Segment>() && align_of::<BVec>() == align_of::<Segment>());
};

impl Segment {
    /// Address of the first byte.
    #[inline(always)]
    pub const fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps the first `len` bytes at most.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Takes the first `len` bytes off, or all when it has fewer.
    #[inline]
    pub fn take_front(&mut self, len: usize) -> Segment {
        let front = Segment { base: self.base, len: self.len.min(len) };
        self.base += front.len;
        self.len -= front.len;
        front
    }
}

impl PartialEq<BVec> for Segment {
    fn eq(&self, vec: &BVec) -> bool {
        *self == vec.segment()
    }
}

impl BVec {
    /// `len` bytes from the address `base`.
    ///
    /// # Safety
    /// While any I/O has this vector, a copy or a part of it, the memory must stay valid for reads and writes, and
    /// nothing else may access it; for an I/O that writes to a device, others may read it.
    #[allow(unsafe_code)] // Devices write to where it points.
    #[inline(always)]
    pub const unsafe fn new(base: usize, len: usize) -> BVec {
        BVec { base, len }
    }

    /// Where it is.
    #[inline(always)]
    pub const fn segment(&self) -> Segment {
        Segment { base: self.base, len: self.len }
    }

    /// Where each of these is.
    #[inline(always)]
    #[allow(unsafe_code)] // Looks at the bytes of vectors as at those of segments, which have the same layout.
    pub const fn segments(vecs: &[BVec]) -> &[Segment] {
        // SAFETY: both have the same two fields in the same places (asserted above), and any value is valid.
        unsafe { std::slice::from_raw_parts(vecs.as_ptr().cast::<Segment>(), vecs.len()) }
    }

    /// Address of the first byte.
    #[inline(always)]
    pub const fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps the first `len` bytes at most.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Takes the first `len` bytes off, or all when it has fewer.
    #[inline]
    pub fn take_front(&mut self, len: usize) -> BVec {
        let front = BVec { base: self.base, len: self.len.min(len) };
        self.base += front.len;
        self.len -= front.len;
        front
    }
}

/// Names a bio of one [`BioSet`](crate::bio_set::BioSet). Only the block layer makes one, or takes one from a set: a
/// set trusts the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct BioId(pub(crate) u32);

impl BioId {
    /// No bio.
    pub(crate) const NONE: BioId = BioId(u32::MAX);
    /// Stands where a plain record has no bio: the record itself names its memory and its submitter.
    pub(crate) const PLAIN: BioId = BioId(u32::MAX - 1);

    /// Whether this is not [`BioId::NONE`].
    #[inline]
    pub fn is_some(self) -> bool {
        self.0 != u32::MAX
    }
}

/// The vectors of a bio that do not fit inline.
// A box of a vector: one word in the bio instead of three keeps it at two cache lines.
#[allow(clippy::box_collection)]
pub(crate) type VecTable = Box<Vec<BVec>>;

/// No registered buffer.
pub const NO_FIXED_BUF: u16 = u16::MAX;

/// The fields of a bio that are the same for every I/O of a kind: copied in one store. A bio has them as its own.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct BioAttrs {
    pub(crate) op: Op,
    pub(crate) status: Status,
    pub(crate) flags: u16,
    /// The device it was sent to (index in the ring's table).
    pub(crate) bdev: u16,
    /// Partition it is accounted to; 0 is the whole device.
    pub(crate) part: u16,
    pub(crate) nr_vecs: u16,
    /// Registered buffer that holds the only vector, or [`NO_FIXED_BUF`].
    pub(crate) fixed_buf: u16,
    /// Children still in flight.
    pub(crate) remaining: u16,
    /// It is in use, and in none of the places of free ones.
    pub(crate) live: bool,
}

impl BioAttrs {
    /// A bio that was just taken.
    pub(crate) const fn new(flags: u16) -> BioAttrs {
        BioAttrs {
            op: Op::Read,
            status: Status::Ok,
            flags,
            bdev: 0,
            part: 0,
            nr_vecs: 0,
            fixed_buf: NO_FIXED_BUF,
            remaining: 0,
            live: true,
        }
    }
}

/// One I/O towards one device. Fields are public inside the block layer; callers fill a bio through
/// [`IoCtx`](crate::ctx::IoCtx).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Bio {
    /// Link in whatever list holds the bio.
    pub(crate) next: BioId,
    /// The submitter's own number, given back on completion.
    pub(crate) owner: u32,
    /// First sector on the device.
    pub(crate) sector: u64,
    pub(crate) attrs: BioAttrs,
    /// Length in bytes.
    pub(crate) bytes: u32,
    pub(crate) parent: BioId,
    /// The table of a bio with more than [`BIO_INLINE_VECS`] vectors.
    pub(crate) table: Option<VecTable>,
    pub(crate) inline: [BVec; BIO_INLINE_VECS],
    /// The submitter's user data, of a plain record (`BIO_PLAIN`) and of a stacked driver's I/O (`BIO_STACKED`) alone.
    pub(crate) cookie: u64,
    /// When it began to wait, of one with `BIO_WAITED` alone.
    pub(crate) waited_from: CoarseTs,
}

impl std::ops::Deref for Bio {
    type Target = BioAttrs;

    #[inline(always)]
    fn deref(&self) -> &BioAttrs {
        &self.attrs
    }
}

impl std::ops::DerefMut for Bio {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut BioAttrs {
        &mut self.attrs
    }
}

impl Bio {
    pub(crate) const fn unused() -> Bio {
        Bio {
            next: BioId::NONE,
            owner: 0,
            sector: 0,
            attrs: BioAttrs { live: false, ..BioAttrs::new(0) },
            bytes: 0,
            parent: BioId::NONE,
            table: None,
            inline: [BVec { base: 0, len: 0 }; BIO_INLINE_VECS],
            cookie: 0,
            waited_from: CoarseTs(0),
        }
    }

    /// Resets the fields one by one, for that beats clearing both lines. The inline vectors need it not: `nr_vecs` says
    /// how many count; nor do the cookie and `waited_from`, which flags say that a bio has.
    #[inline(always)]
    pub(crate) fn init(&mut self, attrs: &BioAttrs, owner: u32, sector: u64, bytes: u32) {
        self.next = BioId::NONE;
        self.owner = owner;
        self.sector = sector;
        self.attrs = *attrs;
        self.bytes = bytes;
        self.parent = BioId::NONE;
    }

    /// Where the memory of the bio is.
    #[inline]
    pub fn segments(&self) -> &[Segment] {
        BVec::segments(self.vecs())
    }

    /// The memory of the bio.
    #[inline]
    pub(crate) fn vecs(&self) -> &[BVec] {
        match &self.table {
            None => &self.inline[..usize::from(self.nr_vecs).min(BIO_INLINE_VECS)],
            Some(table) => table,
        }
    }

    /// The registered buffer that holds the only vector.
    #[inline]
    pub fn fixed_buf(&self) -> Option<u16> {
        (self.fixed_buf != NO_FIXED_BUF && self.nr_vecs == 1).then_some(self.fixed_buf)
    }

    /// How many bytes the bio covers on the device.
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// What it does.
    #[inline]
    pub fn op(&self) -> Op {
        self.op
    }

    /// The first sector after the bio.
    #[inline]
    pub(crate) fn end_sector(&self) -> u64 {
        // Saturating: a submitter may name any sector, and one that wrapped would be inside the device again.
        self.sector.saturating_add(u64::from(self.bytes >> SECTOR_SHIFT))
    }
}

const _: () = assert!(size_of::<Bio>() == 128, "a bio is two cache lines");
