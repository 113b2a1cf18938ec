//! The bio: one I/O to one device, with its vectors.
//!
//! Owns the layout of a bio, its operation and its flags. Does not own the storage and recycling of bios
//! ([`bio_set`](crate::bio_set)), nor their conversion to requests ([`hctx`](crate::hctx)).
//!
//! A bio is two cache lines: a header and four inline vectors. If it has more than [`BIO_INLINE_VECS`], they are in a
//! table on the heap, and the bio is never cached.
//!
//! Invariants:
//! - I1: the memory that `vecs` describe stays valid and unaliased until `end_io` was called for the bio. The submitter
//!   promises this; the ring keeps owned buffers for it.
//! - I2: for reads and writes `bytes` is the sum of the lengths of the vectors; discards and flushes have no vectors.
//! - I3: a bio with `remaining > 0` has that many children in flight and has not ended.

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;

use crate::hctx::flush::Step;

/// Number of vectors that a bio holds without a table.
pub const BIO_INLINE_VECS: usize = 4;

/// log2 of the bytes in a sector, the unit of all device addresses.
pub const SECTOR_SHIFT: u32 = 9;

/// Operation of a request. The values index statistics. A driver fails an operation that it does not support with
/// `NotSupp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Op {
    /// Device to memory.
    #[default]
    Read = 0,
    /// Memory to device.
    Write = 1,
    /// Makes every completed write durable.
    Flush = 2,
    /// Declares the range's content as unneeded. Later reads of the range may return anything.
    Discard = 3,
    /// Makes the range read as zeroes.
    WriteZeroes = 4,
}

/// Number of operations.
pub const NR_OPS: usize = 5;

impl Op {
    /// All operations, in the order of their values.
    pub const ALL: [Op; NR_OPS] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

    /// Returns the operation with this value.
    pub fn from_u8(value: u8) -> Op {
        Self::ALL[usize::from(value) % NR_OPS]
    }

    /// Returns the lower-case name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write-zeroes",
        }
    }

    /// Returns true if the operation moves data between memory and device.
    #[inline]
    pub fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

/// The write is durable when it completes, even across power loss.
pub const BIO_FUA: u16 = 1 << 0;
/// The device's cache is flushed before this write.
pub const BIO_PREFLUSH: u16 = 1 << 1;
/// The bio may return to the owner's cache. Set only on bios with inline vectors that are not from the reserve.
pub const BIO_CACHEABLE: u16 = 1 << 3;
/// The bio is from the reserve and returns there.
pub const BIO_RESERVE: u16 = 1 << 4;
/// The bio waits or has waited for a request, since `waited_from`.
pub(crate) const BIO_WAITED: u16 = 1 << 2;
/// The bio must not be merged with neighbours.
pub const BIO_NOMERGE: u16 = 1 << 5;
/// The bio is counted in `remaining` of its parent.
pub const BIO_CHILD: u16 = 1 << 6;
/// The bio itself has ended, and waits for `remaining` children.
pub const BIO_WAITS: u16 = 1 << 7;
/// The bio is a flush that was not sent to all hardware contexts yet. `sector` is the mask of those left.
pub const BIO_SPREADING: u16 = 1 << 8;

/// The bio has or had children, or an error of its own, so it ends on the slow path.
pub const BIO_SLOW: u16 = 1 << 10;
/// The bio is a flush by the owner of the device. It ends with the device's own result, even after the owner's
/// [alarm](crate::flush_alarm) was triggered.
pub const BIO_OWNER: u16 = 1 << 11;
/// The bio was given to a plain record that could not do without one. Its end is reported by `EndIo::end_plain`.
pub(crate) const BIO_PLAIN: u16 = 1 << 12;
/// The bio is I/O of a stacked driver to a device below, or a piece of such I/O. `owner` holds the driver's hardware
/// context and its level, `cookie` the driver's token.
pub(crate) const BIO_STACKED: u16 = 1 << 13;
/// Flags that a submitter may set.
pub(crate) const BIO_USER: u16 = BIO_FUA | BIO_PREFLUSH | BIO_NOMERGE | BIO_OWNER;

/// A bio with any of these flags ends on the slow path.
pub(crate) const BIO_SLOW_END: u16 = BIO_CHILD | BIO_WAITS | BIO_SLOW | BIO_PLAIN | BIO_STACKED;

/// A piece of memory for I/O, as passed to [`IoCtx::submit`](crate::ctx::IoCtx::submit).
///
/// The maker promises that the memory may be used for I/O, and only the maker can say until when. A `BVec` is therefore
/// not passed beyond the block layer: drivers and files get a [`Segment`], which has the same address and length and
/// cannot be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct BVec {
    pub(crate) base: usize,
    pub(crate) len: usize,
}

/// Address and length of a piece of memory of an I/O, for code that moves its bytes. The layout is that of `iovec`, so
/// that a driver can pass a bio's segments to the kernel unchanged. A segment does not keep the memory valid: it is
/// valid only until the I/O has ended.
///
/// ```compile_fail,E0308
/// # use sheave_blk::{ctx::{BioSpec, IoCtx}, request::RqTable};
/// # fn again(ctx: &mut IoCtx, spec: &BioSpec, rqs: &RqTable<'_>) {
/// // A driver cannot submit I/O on memory that it was shown, because that may be freed by then.
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

    /// Returns true if the length is 0.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps at most the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Removes and returns the first `len` bytes, or all if there are fewer.
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
    /// Makes a vector of `len` bytes at the address `base`.
    ///
    /// # Safety
    /// While any I/O has this vector, a copy or a part of it, the memory must stay valid for reads and writes, and
    /// nothing else may access it; for an I/O that writes to a device, others may read it.
    #[allow(unsafe_code)] // Devices write to where it points.
    #[inline(always)]
    pub const unsafe fn new(base: usize, len: usize) -> BVec {
        BVec { base, len }
    }

    /// Returns the vector's address and length.
    #[inline(always)]
    pub const fn segment(&self) -> Segment {
        Segment { base: self.base, len: self.len }
    }

    /// Returns the address and length of each vector.
    #[inline(always)]
    #[allow(unsafe_code)] // Casts vectors to segments, which have the same layout.
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

    /// Returns true if the length is 0.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps at most the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Removes and returns the first `len` bytes, or all if there are fewer.
    #[inline]
    pub fn take_front(&mut self, len: usize) -> BVec {
        let front = BVec { base: self.base, len: self.len.min(len) };
        self.base += front.len;
        self.len -= front.len;
        front
    }
}

/// Index of a bio in its [`BioSet`](crate::bio_set::BioSet). Made only by the block layer, because a set uses the
/// number without a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct BioId(pub(crate) u32);

impl BioId {
    pub(crate) const NONE: BioId = BioId(u32::MAX);
    /// Marks a plain record without a bio. The record itself contains its memory and its owner.
    pub(crate) const PLAIN: BioId = BioId(u32::MAX - 1);

    /// Returns true unless this is [`BioId::NONE`].
    #[inline]
    pub fn is_some(self) -> bool {
        self.0 != u32::MAX
    }
}

/// Vectors of a bio that do not fit inline.
// A boxed vector is one word in the bio and not three, which keeps the bio at two cache lines.
#[allow(clippy::box_collection)]
pub(crate) type VecTable = Box<Vec<BVec>>;

/// Buffer index of an I/O whose memory is in no registered buffer.
pub const NO_FIXED_BUF: u16 = u16::MAX;

/// Fields of a bio that are the same for every I/O of a kind, so that one store copies them.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct BioAttrs {
    pub(crate) op: Op,
    pub(crate) status: Status,
    pub(crate) flags: u16,
    /// Attached device that the bio was sent to: an index in the ring's table.
    pub(crate) bdev: u16,
    /// Partition that the bio is accounted to; 0 is the whole device.
    pub(crate) part: u16,
    pub(crate) nr_vecs: u16,
    /// Index of the registered buffer that contains the only vector, or [`NO_FIXED_BUF`].
    pub(crate) fixed_buf: u16,
    /// Number of children in flight.
    pub(crate) remaining: u16,
    /// True while the bio is in use, and so in no list of free bios.
    pub(crate) live: bool,
    /// Step of the bio's flush sequence. Only `hctx::flush` changes it.
    pub(crate) step: Step,
}

impl BioAttrs {
    /// Returns the attributes of a bio that was just taken.
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
            step: Step::Start,
        }
    }
}

/// One I/O to one device. Callers fill a bio through [`IoCtx`](crate::ctx::IoCtx).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Bio {
    /// Next bio of the list that holds this one.
    pub(crate) next: BioId,
    /// Number chosen by the submitter, passed back on completion.
    pub(crate) owner: u32,
    pub(crate) sector: u64,
    pub(crate) attrs: BioAttrs,
    pub(crate) bytes: u32,
    pub(crate) parent: BioId,
    /// Vectors of a bio with more than [`BIO_INLINE_VECS`].
    pub(crate) table: Option<VecTable>,
    pub(crate) inline: [BVec; BIO_INLINE_VECS],
    /// The submitter's user data. Valid for a plain record (`BIO_PLAIN`) and a stacked driver's I/O (`BIO_STACKED`).
    pub(crate) cookie: u64,
    /// Start of the wait. Valid with `BIO_WAITED`.
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

    /// Sets the fields one by one, which is faster than clearing both cache lines. Leaves out the inline vectors, which
    /// count only up to `nr_vecs`, and `cookie` and `waited_from`, which are valid only with certain flags.
    #[inline(always)]
    pub(crate) fn init(&mut self, attrs: &BioAttrs, owner: u32, sector: u64, bytes: u32) {
        self.next = BioId::NONE;
        self.owner = owner;
        self.sector = sector;
        self.attrs = *attrs;
        self.bytes = bytes;
        self.parent = BioId::NONE;
    }

    /// Returns the segments of the bio's memory.
    #[inline]
    pub fn segments(&self) -> &[Segment] {
        BVec::segments(self.vecs())
    }

    /// Returns the vectors of the bio's memory.
    #[inline]
    pub(crate) fn vecs(&self) -> &[BVec] {
        match &self.table {
            None => &self.inline[..usize::from(self.nr_vecs).min(BIO_INLINE_VECS)],
            Some(table) => table,
        }
    }

    /// Returns the index of the registered buffer that contains the only vector.
    #[inline]
    pub fn fixed_buf(&self) -> Option<u16> {
        (self.fixed_buf != NO_FIXED_BUF && self.nr_vecs == 1).then_some(self.fixed_buf)
    }

    /// Returns the length on the device in bytes.
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns the operation.
    #[inline]
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the first sector after the bio.
    #[inline]
    pub(crate) fn end_sector(&self) -> u64 {
        // Saturating: a submitter may pass any sector, and a sum that wrapped would lie within the device.
        self.sector.saturating_add(u64::from(self.bytes >> SECTOR_SHIFT))
    }
}

const _: () = assert!(size_of::<Bio>() == 128, "a bio is two cache lines");
