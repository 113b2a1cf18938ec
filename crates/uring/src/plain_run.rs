//! Runs of plain reads and writes: the properties their SQEs share, the owner of their records, and the comparison of
//! an SQE with a run.
//!
//! Owns no state of a ring. Callers pass the files, the buffers and the queues; `Known` caches the look-ups for the
//! next run.

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

/// Owner of a record as the block layer stores it: the file, and the counter of the file's grace that counts the I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainOwner(pub(crate) u32);

/// Set if the operation owns its memory: the record's cookie is then a key of the ring's table of owned memory.
const OWNED: u32 = 1 << COUNT_BITS;
const FILE_SHIFT: u32 = COUNT_BITS + 1;

/// Position of [`COUNT_FLAGS`] in a kiocb's flags. An owner has those bits lowest, then [`OWNED`], then the file.
const COUNT_SHIFT: u32 = COUNT_FLAGS.trailing_zeros();
const COUNT_BITS: u32 = COUNT_FLAGS.count_ones();
const _: () = assert!(COUNT_FLAGS >> COUNT_SHIFT == (1 << COUNT_BITS) - 1, "the flags lie together");

impl PlainOwner {
    /// Returns `None` if `file` is too large for the bits of an owner.
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

    /// Returns the stored form of the owner, with the bit [`OWNED`] set if `owned`.
    #[inline(always)]
    fn with(self, owned: bool) -> u32 {
        self.0 | (u32::from(owned) * OWNED)
    }

    /// Returns the flags of a kiocb that is counted in this owner's counter.
    #[inline(always)]
    pub(crate) fn count_flags(self) -> u16 {
        (self.0 as u16) << COUNT_SHIFT & COUNT_FLAGS
    }

    #[inline(always)]
    pub(crate) fn is_counted(self) -> bool {
        self.count_flags() & IOCB_COUNTED != 0
    }
}

/// Mask for the second word of an SQE's [kind](Sqe::kind): excludes the registered buffer.
const BUFFERS_ALIKE: u64 = !0xffff;

/// Cached look-ups and checks of the last run on a raw device, for the next run of its kind.
///
/// Invariants:
/// - N1: the cached values equal a fresh look-up as long as the tables' version is `version`.
/// - N2: `alike` and `alike_mixed` are for a device of `sectors` sectors.
/// - N3: `look_ahead` limits how many SQEs are compared at a time. If a device takes fewer than were compared,
///   `look_ahead` becomes the number that it took (at least 1); each row taken as a whole adds its length. The
///   comparisons for a batch therefore grow with its length alone, however often a busy device refuses the next SQE.
#[derive(Debug)]
pub(crate) struct Known {
    version: u64,
    plain: Plain,
    way: PlainWay,
    owner: PlainOwner,
    sectors: u64,
    /// Pattern of the last run, for one length.
    alike: Option<Alike>,
    /// Pattern of the last mixed run, whose SQEs each name a registered buffer ([`Known::submit_mixed`]).
    alike_mixed: Option<Alike>,
    /// Maximum number of SQEs that the next try compares (N3).
    look_ahead: u32,
}

impl Known {
    /// Returns `None` unless `file` is a raw device. `version` is that of the tables `plain` was looked up in.
    pub(crate) fn new(version: u64, plain: Plain, file: &OpenFile) -> Option<Known> {
        let way = PlainWay::new(file, plain.iocb_flags, plain.fixed_buf)?;
        let owner = PlainOwner::new(plain.file, 0, false)?;
        Some(Known { version, plain, way, owner, sectors: 0, alike: None, alike_mixed: None, look_ahead: u32::MAX })
    }

    /// True if SQEs of the two kinds differ only in the registered buffer that they name.
    #[inline(always)]
    pub(crate) fn has_other_buffer(&self, other: &Plain) -> bool {
        let second = (self.plain.kind.1 ^ other.kind.1) & BUFFERS_ALIKE;
        other.fixed_buf != NO_FIXED_BUF && self.plain.kind.0 == other.kind.0 && second == 0
    }

    #[inline(always)]
    pub(crate) fn is_of(&self, version: u64) -> bool {
        self.version == version
    }

    #[inline(always)]
    pub(crate) fn is_mixed(&self) -> bool {
        self.plain.is_mixed()
    }

    /// Returns true if `sqe` is of this kind, whatever its length.
    #[inline(always)]
    pub(crate) fn is_kind_of(&self, sqe: &Sqe) -> bool {
        let (first, second) = sqe.kind();
        self.plain.kind == (first, second & self.plain.kind_mask)
    }

    /// Returns the target, the device's sectors, the run and the I/O for sending `sqe` alone. `None` if it does not
    /// match the last run.
    #[inline(always)]
    pub(crate) fn alone(&self, sqe: &Sqe, owned: bool) -> Option<(PlainWay, u64, PlainRunOf, PlainIo)> {
        let alike = self.alike.as_ref().filter(|alike| alike.is(sqe))?;
        let run = PlainRunOf { owner: self.owner.with(owned), bytes: alike.len as u32 };
        Some((self.way, self.sectors, run, plain_io(sqe, sqe.off)))
    }

    /// Submits the plain SQEs at the head of the SQ, at most `most`. Returns the number sent.
    #[inline(always)]
    pub(crate) fn submit(&mut self, io: &mut IoCtx, queues: &Queues, most: u32, owned: bool) -> u32 {
        self.submit_like::<false, _>(io, queues, most, owned, Alike::first_of, plain_io)
    }

    /// Submits plain SQEs that may each name another registered buffer, at most `most`. Returns the number sent.
    #[inline(never)]
    pub(crate) fn submit_mixed(&mut self, io: &mut IoCtx, queues: &Queues, bufs: &BufTable, most: u32) -> u32 {
        let first_of = |alike: &Alike, sqes: &[Sqe]| alike.first_mixed_of(sqes, bufs);
        self.submit_like::<true, _>(io, queues, most, false, first_of, |sqe, place| BufferedIo {
            io: plain_io(sqe, place),
            fixed_buf: sqe.buf_index,
        })
    }

    /// Submits the SQEs of the prefix that `first_of` finds to match the pattern, converted to I/Os by `io_of`.
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

/// Properties that the plain reads or writes of a run share, whatever their length.
#[derive(Debug)]
pub(crate) struct Plain {
    kind: (u64, u64),
    /// Mask of the bits of an SQE's second kind word that are compared.
    kind_mask: u64,
    /// Range in which the memory must lie: first address and bytes.
    memory: (u64, u64),
    max_len: u32,
    pub(crate) fixed_buf: u16,
    pub(crate) iocb_flags: u16,
    pub(crate) file: u32,
}

impl Plain {
    /// Returns the properties of `first` and all SQEs like it, or `None` if it is not plain.
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

    /// Drops the buffer from the comparison: for SQEs that each name their own registered buffer.
    pub(crate) fn mixed(self) -> Plain {
        let kind = (self.kind.0, self.kind.1 & BUFFERS_ALIKE);
        let memory = (FIRST_PAGE, USER_END - FIRST_PAGE);
        Plain { kind, kind_mask: BUFFERS_ALIKE, memory, max_len: MAX_RW_COUNT, fixed_buf: NO_FIXED_BUF, ..self }
    }

    #[inline(always)]
    pub(crate) fn is_mixed(&self) -> bool {
        self.kind_mask != u64::MAX
    }

    /// Returns the pattern of all SQEs of length `len` within `bounds`, or `None` if no such SQE can be valid.
    #[inline(always)]
    fn alike(&self, len: u32, bounds: impl Fn(u32) -> Option<Bounds>) -> Option<Alike> {
        if len > self.max_len {
            return None;
        }
        let (base, bytes) = self.memory;
        Some(Alike { kind: self.kind, len: len.into(), base, last: bytes - u64::from(len), bounds: bounds(len)? })
    }

    /// Submits the plain SQEs at the head of the SQ to a file with mappings, at most `most`. Returns the number sent.
    /// Works in small groups: checks all, then maps all, then sends all. The memory accesses of one look-up thus
    /// overlap those of the next.
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

/// Pattern that an SQE of a run must match.
#[derive(Clone, Copy, Debug)]
struct Alike {
    kind: (u64, u64),
    len: u64,
    /// Range of valid memory: the first address, and the largest distance of an I/O's address from it.
    base: u64,
    last: u64,
    bounds: Bounds,
}

impl Alike {
    /// True if `sqe` matches the pattern: it differs only in the fields that may differ, and lies within the bounds.
    #[inline(always)]
    fn is(&self, sqe: &Sqe) -> bool {
        self.is_aligned_or_not(sqe) && self.bounds.aligned(sqe.off, sqe.addr)
    }

    /// Returns the length of the prefix of `sqes` that matches. Not inlined: its loop needs all registers.
    #[inline(never)]
    fn first_of(&self, sqes: &[Sqe]) -> usize {
        sqes.iter().take_while(|sqe| self.is(sqe)).count()
    }

    /// True if `sqe` matches the pattern in everything but its registered buffer, and its memory lies in the buffer it
    /// names.
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

    /// Variant of [`first_of`](Self::first_of) for SQEs that may each name another registered buffer.
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

    /// Writes the positions of the matching prefix of `sqes` to `to`. Returns its length and the OR of all positions.
    /// Not inlined: its loop needs all registers.
    #[inline(never)]
    fn positions(&self, sqes: &[Sqe], to: &mut Places) -> (usize, u64) {
        // Alignment is tested once for all: an OR of the first address and of the distances from it is aligned only if
        // every address is.
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use sheave_base::buf::Buf;

    use crate::Ring;
    use crate::sqe::{Sqe, opcode};
    use crate::tests::Rig;

    thread_local! {
        /// Number of comparisons of an SQE with the known run, in the rings of this thread.
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts the comparisons for a prefix of `many` matching SQEs out of `of`: one more if a mismatch ended it.
    pub(super) fn compared(many: usize, of: usize) {
        COMPARED.set(COMPARED.get() + (many + 1).min(of));
    }

    const BATCH: usize = 1024;

    /// Returns the number of comparisons for a batch of one-block reads that are apart, on a device that takes four at
    /// a time.
    fn comparisons(sqe: impl Fn(&Rig, usize) -> Sqe) -> usize {
        let mut rig = Rig::of(Ring::builder().entries(BATCH as u32), "null:size=1G,latency=1ms,depth=4");
        let buffers = (0..2).map(|_| Buf::zeroed(4096, 4096).expect("memory")).collect();
        rig.ring.register_buffers(buffers).expect("registered");
        let sqes: Vec<Sqe> =
            (0..BATCH).map(|n| Sqe { off: n as u64 * 8192, user_data: n as u64, ..sqe(&rig, n) }).collect();
        COMPARED.set(0);
        let mut ended = rig.run(&sqes);
        while ended.len() < BATCH {
            let before = ended.len();
            ended.extend(rig.after(Duration::from_millis(1)));
            assert!(ended.len() > before, "{before} have ended, and no other ends");
        }
        assert!(ended.iter().all(|(_, res)| *res == 512));
        COMPARED.get()
    }

    #[test]
    fn a_batch_is_compared_about_once_however_little_of_it_the_device_takes() {
        let reads = comparisons(|rig, n| rig.read(n as u64));
        let mixed = comparisons(|rig, n| {
            let buf_index = n as u16 % 2;
            let (addr, _) = rig.ring.buffer_range(buf_index).expect("registered");
            Sqe { opcode: opcode::READ_FIXED, buf_index, addr, ..rig.read(n as u64) }
        });
        // One for each SQE before the device has refused any, and then one for each refused SQE.
        for many in [reads, mixed] {
            assert!((BATCH..=2 * BATCH).contains(&many), "{many} comparisons");
        }
    }
}
