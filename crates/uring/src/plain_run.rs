//! What plain reads and writes of a run have in common, whose record one is, and whether an SQE is like the others.
//!
//! Owns no state of a ring: it is given the files, the buffers and the queues, and keeps what it found for the next
//! run.

use sheave_blk::bio::NO_FIXED_BUF;
use sheave_blk::ctx::IoCtx;
use sheave_blk::ctx::lane::{BufferedIo, PlainIo, PlainRunOf, RunItem};
use sheave_iomap::dio::open_file::COUNT_FLAGS;
use sheave_iomap::dio::run::Bounds;
use sheave_iomap::dio::{MAX_RW_COUNT, MappedRun, OpenFile, Places, PlainWay};
use sheave_iomap::kiocb::{IOCB_COUNTED, IOCB_WRITE};

use crate::queues::Queues;
use crate::rsrc::{BufTable, FileTable};
use crate::sqe::{IOSQE_FIXED_FILE, Sqe, opcode};
use crate::user_memory::{FIRST_PAGE, USER_END, plain_io};

#[cfg(all(test, not(shuttle)))]
mod tests;

/// Whose record it is, as the block layer keeps it: the file, and where it is counted in the file's grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainOwner(pub(crate) u32);

/// The record owns memory: its cookie is a key of the ring's table of owned memory.
const OWNED: u32 = 1 << COUNT_BITS;
const FILE_SHIFT: u32 = COUNT_BITS + 1;

/// Where the bits of [`COUNT_FLAGS`] begin; an owner has them lowest, then [`OWNED`], then the file.
const COUNT_SHIFT: u32 = COUNT_FLAGS.trailing_zeros();
const COUNT_BITS: u32 = COUNT_FLAGS.count_ones();
const _: () = assert!(COUNT_FLAGS >> COUNT_SHIFT == (1 << COUNT_BITS) - 1, "the flags lie together");

impl PlainOwner {
    /// `None` for a file beyond those that an owner can name.
    #[inline(always)]
    pub(crate) fn new(file: u32, count_flags: u16, owned: bool) -> Option<PlainOwner> {
        let owned = u32::from(owned) * OWNED;
        let owner = PlainOwner(file << FILE_SHIFT | owned | u32::from(count_flags >> COUNT_SHIFT));
        (owner.file() == file).then_some(owner)
    }

    #[inline(always)]
    pub(crate) fn file(self) -> u32 {
        self.0 >> FILE_SHIFT
    }

    #[inline(always)]
    pub(crate) fn is_owned(self) -> bool {
        self.0 & OWNED != 0
    }

    /// The owner as a record keeps it, with the bit that says whether its operation owns the memory.
    #[inline(always)]
    fn with(self, owned: bool) -> u32 {
        self.0 | (u32::from(owned) * OWNED)
    }

    /// The flags that a kiocb has that is counted there.
    #[inline(always)]
    pub(crate) fn count_flags(self) -> u16 {
        (self.0 as u16) << COUNT_SHIFT & COUNT_FLAGS
    }

    #[inline(always)]
    pub(crate) fn is_counted(self) -> bool {
        self.count_flags() & IOCB_COUNTED != 0
    }
}

/// All of the second word of an SQE's [kind](Sqe::kind) but its registered buffer.
const BUFFERS_ALIKE: u64 = !0xffff;

/// What was looked up and checked for a run on a raw device, and serves the next one of its kind.
///
/// Invariants:
/// - N1: it is what a look at the tables would find, as long as their version is the one that is noted.
/// - N2: `alike` is for a device of `sectors`.
/// - N3: after a try that found no room for all SQEs that it looked at, the next one looks at no more than were sent
///   since that try began, or one. So the comparisons for a batch grow with its length alone, however often a busy
///   device refuses the next SQE.
#[derive(Debug)]
pub(crate) struct Known {
    version: u64,
    plain: Plain,
    way: PlainWay,
    owner: PlainOwner,
    sectors: u64,
    /// What the SQEs of the run before were like, with their length.
    alike: Option<Alike>,
    /// What the SQEs of the last mixed run were like: those name a registered buffer each ([`Known::submit_mixed`]).
    alike_mixed: Option<Alike>,
    /// How many SQEs a try looks at, at most (N3).
    look_ahead: u32,
}

impl Known {
    /// For a raw device, by tables of this version.
    pub(crate) fn new(version: u64, plain: Plain, file: &OpenFile) -> Option<Known> {
        let way = PlainWay::new(file, plain.iocb_flags, plain.fixed_buf)?;
        let owner = PlainOwner::new(plain.file, 0, false)?;
        Some(Known { version, plain, way, owner, sectors: 0, alike: None, alike_mixed: None, look_ahead: u32::MAX })
    }

    /// Whether SQEs of its kind and of the other one differ in nothing but the registered buffer that they name.
    #[inline(always)]
    pub(crate) fn has_other_buffer(&self, other: &Plain) -> bool {
        let second = (self.plain.kind.1 ^ other.kind.1) & BUFFERS_ALIKE;
        other.fixed_buf != NO_FIXED_BUF && self.plain.kind.0 == other.kind.0 && second == 0
    }

    /// Whether it is of tables of this version.
    #[inline(always)]
    pub(crate) fn is_of(&self, version: u64) -> bool {
        self.version == version
    }

    #[inline(always)]
    pub(crate) fn is_mixed(&self) -> bool {
        self.plain.is_mixed()
    }

    /// Whether an SQE is of its kind, whatever its length.
    #[inline(always)]
    pub(crate) fn is_kind_of(&self, sqe: &Sqe) -> bool {
        let (first, second) = sqe.kind();
        self.plain.kind == (first, second & self.plain.kind_mask)
    }

    /// What sends one SQE alone to its driver, on a device of so many sectors; `None` when it is not like those of the
    /// run before.
    #[inline(always)]
    pub(crate) fn alone(&self, sqe: &Sqe, owned: bool) -> Option<(PlainWay, u64, PlainRunOf, PlainIo)> {
        let alike = self.alike.as_ref().filter(|alike| alike.is(sqe))?;
        let run = PlainRunOf { owner: self.owner.with(owned), bytes: alike.len as u32 };
        Some((self.way, self.sectors, run, plain_io(sqe, sqe.off)))
    }

    /// Submits the SQEs that are plain, so many at most; how many.
    #[inline(always)]
    pub(crate) fn submit(&mut self, io: &mut IoCtx, queues: &Queues, most: u32, owned: bool) -> u32 {
        self.submit_like::<false, _>(io, queues, most, owned, Alike::first_of, plain_io)
    }

    /// Submits SQEs that are plain, so many at most, of which each may name another registered buffer; how many.
    #[inline(never)]
    pub(crate) fn submit_mixed(&mut self, io: &mut IoCtx, queues: &Queues, bufs: &BufTable, most: u32) -> u32 {
        let first_of = |alike: &Alike, sqes: &[Sqe]| alike.first_mixed_of(sqes, bufs);
        self.submit_like::<true, _>(io, queues, most, false, first_of, |sqe, place| BufferedIo {
            io: plain_io(sqe, place),
            fixed_buf: sqe.buf_index,
        })
    }

    /// Submits the SQEs that are alike as `first_of` counts them, made I/O by `io_of`.
    #[inline(always)]
    fn submit_like<const MIXED: bool, I: RunItem>(
        &mut self,
        io: &mut IoCtx,
        queues: &Queues,
        most: u32,
        owned: bool,
        first_of: impl Fn(&Alike, &[Sqe]) -> usize,
        io_of: impl Fn(&Sqe, u64) -> I + Copy,
    ) -> u32 {
        let Some(mut run) = self.way.start(io) else { return 0 };
        if self.sectors != run.sectors() {
            (self.sectors, self.alike, self.alike_mixed) = (run.sectors(), None, None); // N2
        }
        let mut taken = 0;
        while taken < most {
            let sqes = queues.sq_row(taken, (most - taken).min(self.look_ahead));
            let Some(bytes) = sqes.first().map(|sqe| sqe.len) else { break };
            let known = if MIXED { &mut self.alike_mixed } else { &mut self.alike };
            let alike = match known {
                Some(alike) if alike.len == u64::from(bytes) => alike,
                _ => {
                    *known = self.plain.alike(bytes, |len| run.bounds(len));
                    let Some(alike) = known else { break };
                    alike
                }
            };
            let many = first_of(alike, sqes);
            #[cfg(all(test, not(shuttle)))]
            tests::compared(many, sqes.len());
            let sqes = &sqes[..many];
            let from = |at: usize| sqes.get(at..).unwrap_or_default().iter().map(move |sqe| io_of(sqe, sqe.off));
            let sent = run.submit_run(PlainRunOf { owner: self.owner.with(owned), bytes }, sqes.len(), from);
            taken += sent as u32;
            if sent == 0 || sent < many {
                if sent < many {
                    self.look_ahead = (sent as u32).max(1); // N3
                }
                break;
            }
            self.look_ahead = self.look_ahead.saturating_add(sent as u32);
        }
        run.finish();
        taken
    }
}

/// What the plain reads or writes of a run have in common, whatever their length.
#[derive(Debug)]
pub(crate) struct Plain {
    kind: (u64, u64),
    /// What of the second word of an SQE's kind counts.
    kind_mask: u64,
    /// Where the memory must lie: its first address and its bytes.
    memory: (u64, u64),
    /// The longest I/O.
    max_len: u32,
    pub(crate) fixed_buf: u16,
    pub(crate) iocb_flags: u16,
    pub(crate) file: u32,
}

impl Plain {
    /// Of an SQE and those like it, which name these files and buffers.
    #[inline(always)]
    pub(crate) fn of(first: &Sqe, files: &FileTable, bufs: &BufTable) -> Option<Plain> {
        let write = matches!(first.opcode, opcode::WRITE | opcode::WRITE_FIXED);
        let fixed = matches!(first.opcode, opcode::READ_FIXED | opcode::WRITE_FIXED);
        let rare = u32::from(first.flags & !IOSQE_FIXED_FILE) | u32::from(first.ioprio) | u32::from(first.personality);
        if !(write || fixed || first.opcode == opcode::READ) || rare | first.splice_fd_in as u32 != 0 {
            return None;
        }
        let (fixed_buf, memory) = match fixed.then(|| bufs.range(first.buf_index)) {
            None => (NO_FIXED_BUF, (FIRST_PAGE, USER_END - FIRST_PAGE)),
            Some(range) => (first.buf_index, range?),
        };
        let iocb_flags = u16::from(write) * IOCB_WRITE;
        let file = files.resolve(first.fd, first.flags & IOSQE_FIXED_FILE != 0)? as u32;
        let max_len = memory.1.min(u64::from(MAX_RW_COUNT)) as u32;
        Some(Plain { kind: first.kind(), kind_mask: u64::MAX, memory, max_len, fixed_buf, iocb_flags, file })
    }

    /// Of SQEs that name registered buffers, each its own: what one has been found to be, but for the buffer.
    pub(crate) fn mixed(self) -> Plain {
        let kind = (self.kind.0, self.kind.1 & BUFFERS_ALIKE);
        let memory = (FIRST_PAGE, USER_END - FIRST_PAGE);
        Plain { kind, kind_mask: BUFFERS_ALIKE, memory, max_len: MAX_RW_COUNT, fixed_buf: NO_FIXED_BUF, ..self }
    }

    #[inline(always)]
    pub(crate) fn is_mixed(&self) -> bool {
        self.kind_mask != u64::MAX
    }

    /// What all SQEs of this length are like, which are within these bounds; `None` when there can be none.
    #[inline(always)]
    fn alike(&self, len: u32, bounds: impl Fn(u32) -> Option<Bounds>) -> Option<Alike> {
        if len > self.max_len {
            return None;
        }
        let (base, bytes) = self.memory;
        Some(Alike { kind: self.kind, len: len.into(), base, last: bytes - u64::from(len), bounds: bounds(len)? })
    }

    /// Submits the SQEs that are alike and plain, so many at most, to a file with mappings; how many. A few at a time:
    /// first all are checked, then all mapped, then all sent. So looking one up does not wait for the memory that the
    /// one before is looked up in.
    #[inline(always)]
    pub(crate) fn submit_mapped(
        self,
        queues: &Queues,
        owner: PlainOwner,
        mut run: MappedRun<'_>,
        most: u32,
        places: &mut Places,
    ) -> u32 {
        let mut taken = 0;
        while taken < most {
            let sqes = queues.sq_row(taken, (most - taken).min(run.look_ahead() as u32));
            let Some(Sqe { len: bytes, .. }) = sqes.first().copied() else { break };
            let Some(alike) = self.alike(bytes, |len| run.bounds(len)) else { break };
            let (many, bits) = alike.positions(sqes, places);
            let mapped = run.map(&mut places[..many], bytes, bits);
            let (sqes, places) = (&sqes[..mapped], &places[..mapped]);
            let from = |at: usize| {
                let (sqes, places) = (sqes.get(at..).unwrap_or_default(), places.get(at..).unwrap_or_default());
                sqes.iter().zip(places).map(|(sqe, place)| plain_io(sqe, *place))
            };
            let sent = run.submit_run(PlainRunOf { owner: owner.0, bytes }, mapped, from);
            taken += sent as u32;
            if sent == 0 || sent < mapped {
                break;
            }
        }
        run.finish(taken);
        taken
    }
}

/// What an SQE of a run is like.
#[derive(Clone, Copy, Debug)]
struct Alike {
    kind: (u64, u64),
    len: u64,
    /// Where its memory lies: the first address, and the last one's distance from that.
    base: u64,
    last: u64,
    bounds: Bounds,
}

impl Alike {
    /// Whether this is one: it differs only in what plain ones may differ in, and is within what the run is.
    #[inline(always)]
    fn is(&self, sqe: &Sqe) -> bool {
        self.is_aligned_or_not(sqe) && self.bounds.aligned(sqe.off, sqe.addr)
    }

    /// How many of these SQEs, from the first on, are like it. By itself, since its loop wants all registers.
    #[inline(never)]
    fn first_of(&self, sqes: &[Sqe]) -> usize {
        sqes.iter().take_while(|sqe| self.is(sqe)).count()
    }

    /// Whether this SQE is of the run, but for the registered buffer that it names: that may be another one, in which
    /// its memory must lie.
    #[inline(always)]
    fn is_mixed(&self, sqe: &Sqe, bufs: &BufTable) -> bool {
        debug_assert_eq!(self.kind.1, 0, "a plain one has nothing beside its buffer there");
        sqe.kind().0 == self.kind.0
            && (sqe.personality, sqe.splice_fd_in) == (0, 0)
            && sqe.len_and_op_flags() == self.len
            && sqe.pad2 == 0
            && self.bounds.reach(sqe.off)
            && self.bounds.aligned(sqe.off, sqe.addr)
            && bufs.covers_some(sqe.buf_index, sqe.addr, self.len)
    }

    /// [`first_of`](Self::first_of), of SQEs of which each may name another registered buffer.
    #[inline(never)]
    fn first_mixed_of(&self, sqes: &[Sqe], bufs: &BufTable) -> usize {
        sqes.iter().take_while(|sqe| self.is_mixed(sqe, bufs)).count()
    }

    #[inline(always)]
    fn is_aligned_or_not(&self, sqe: &Sqe) -> bool {
        sqe.kind() == self.kind
            && sqe.len_and_op_flags() == self.len
            && sqe.pad2 == 0
            && sqe.addr.wrapping_sub(self.base) <= self.last
            && self.bounds.reach(sqe.off)
    }

    /// Puts the positions of the first of these that are like it into `to`; how many, and all bits that they have set.
    /// By itself, since its loop wants all registers.
    #[inline(never)]
    fn positions(&self, sqes: &[Sqe], to: &mut Places) -> (usize, u64) {
        // The memory of all is aligned as the first address is, and the distances from it.
        let (mut many, mut pos_bits, mut addr_bits) = (0, 0, self.base);
        for (sqe, to) in sqes.iter().zip(to) {
            if !self.is_aligned_or_not(sqe) {
                break;
            }
            *to = sqe.off;
            (pos_bits, addr_bits) = (pos_bits | sqe.off, addr_bits | sqe.addr.wrapping_sub(self.base));
            many += 1;
        }
        if !self.bounds.aligned(pos_bits, addr_bits) {
            many = sqes.iter().take_while(|sqe| self.is(sqe)).count();
        }
        (many, pos_bits)
    }
}
