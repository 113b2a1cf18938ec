//! Plain records: reads and writes of one piece of memory that go from SQE to CQE without a slot of the ring.
//!
//! Owns the fast path of submission: what the SQEs of a run (one file, operation, buffer and length) have in common is
//! looked up and checked once, and the device gets them as records of its block layer
//! ([`request`](sheave_blk::request)), each with the SQE's user data. Their ends come back to
//! [`complete`](crate::complete) in rows.
//!
//! What is not plain (flags, chains, drains, memory that the ring owns, an end of the file, a busy device, a mapping
//! with completion work) is left in the SQ and goes by the table's `prep` and `issue`, which check in the kernel's
//! order. So stopping means nothing but "not this way".
//!
//! Invariants:
//! - I1: a record ends once, with one CQE; [`Core::records`](crate::core::Core::records) is how many are in flight.
//! - I2: nothing is stored for a record in the ring. Who uses a file or a registered buffer is found by a walk over the
//!   records ([`IoCtx::any_plain`](sheave_blk::ctx::IoCtx::any_plain)), when it is changed.
//! - I3: a record cannot be cancelled: a device has it. So a cancel need not find it, as with a slot that is issued.

use sheave_blk::bio::NO_FIXED_BUF;
use sheave_blk::ctx::IoCtx;
use sheave_blk::ctx::lane::{Alone, PlainRunOf};
use sheave_iomap::dio::open_file::COUNT_FLAGS;
use sheave_iomap::dio::run::Bounds;
use sheave_iomap::dio::{MAX_RW_COUNT, MappedRun, OpenFile, Places, PlainWay};
use sheave_iomap::kiocb::{IOCB_COUNTED, IOCB_WRITE};

use crate::core::Core;
use crate::queues::Queues;
use crate::ring::inner::Inner;
use crate::sqe::{IOSQE_FIXED_FILE, Sqe, opcode};
use crate::user_memory::{FIRST_PAGE, USER_END, plain_io};

/// Whose record it is, as the block layer keeps it: the file, and where it is counted in the file's grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainOwner(pub(crate) u32);

/// Where the bits of [`COUNT_FLAGS`] begin; an owner has them lowest.
const COUNT_SHIFT: u32 = COUNT_FLAGS.trailing_zeros();
const COUNT_BITS: u32 = COUNT_FLAGS.count_ones();
const _: () = assert!(COUNT_FLAGS >> COUNT_SHIFT == (1 << COUNT_BITS) - 1, "the flags lie together");

impl PlainOwner {
    /// `None` for a file beyond those that an owner can name.
    #[inline(always)]
    fn new(file: u32, count_flags: u16) -> Option<PlainOwner> {
        let owner = PlainOwner(file << COUNT_BITS | u32::from(count_flags >> COUNT_SHIFT));
        (owner.file() == file).then_some(owner)
    }

    #[inline(always)]
    pub(crate) fn file(self) -> u32 {
        self.0 >> COUNT_BITS
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

/// Prep and issue, in one go, of the plain reads and writes that come next in the SQ, at most so many, for a ring with
/// no chain or drain open; how many it took.
#[inline(never)]
pub(crate) fn submit_run(ring: &mut Inner, most: u32) -> u32 {
    if !ring.core.knows_next() {
        let Some(plain) = Plain::next(&ring.core) else { return 0 };
        let Some(file) = ring.core.files.get(plain.file as usize) else { return 0 };
        if !file.is_identity() {
            return submit_mapped_run(ring, plain, most);
        }
        let Some(known) = Known::new(&ring.core, plain, file) else { return 0 };
        ring.core.known = Some(known);
    }
    let Inner { io, core, .. } = ring;
    let Some(known) = &mut core.known else { return 0 };
    let taken = known.submit(io, &core.queues, most);
    core.took_records(taken);
    taken
}

/// The only SQE that waits goes to its driver at once, if it is like those before it. For a quiet ring.
#[inline(always)]
pub(crate) fn submit_alone(ring: &mut Inner) -> Alone {
    let Inner { io, core, .. } = ring;
    let (Some(known), sqe) = (&core.known, core.queues.sq_peek()) else { return Alone::No };
    let Some(alike) = &known.alike else { return Alone::No };
    if known.version != core.tables_version() || !alike.is(sqe) {
        return Alone::No;
    }
    let run = PlainRunOf { owner: known.owner.0, bytes: alike.len as u32 };
    let (way, sectors, one) = (known.way, known.sectors, plain_io(sqe, sqe.off));
    let alone = way.send_alone(io, sectors, run, one, core);
    match alone {
        Alone::No => return alone,
        Alone::Sent => core.records += 1,
        Alone::Ended => {}
    }
    core.queues.sq_skip(1);
    core.queues.sq_advance();
    alone
}

/// The same as [`submit_run`] for a file with mappings; by itself, so that raw devices do not pay for it.
#[inline(never)]
fn submit_mapped_run(ring: &mut Inner, plain: Plain, most: u32) -> u32 {
    let Inner { io, core, .. } = ring;
    core.files.enter(plain.file as usize);
    let Some(file) = core.files.get(plain.file as usize) else { return 0 };
    let Some(run) = MappedRun::start(io, file, plain.iocb_flags, plain.fixed_buf) else { return 0 };
    let Some(owner) = PlainOwner::new(plain.file, run.count_flags()) else { return 0 };
    let taken = plain.submit_mapped(&core.queues, owner, run, most, &mut core.scratch.places);
    core.took_records(taken);
    taken
}

impl Core {
    #[inline(always)]
    fn took_records(&mut self, taken: u32) {
        self.queues.sq_skip(taken);
        self.records += taken;
    }

    /// Another number after every change of the files and buffers that SQEs name.
    #[inline(always)]
    fn tables_version(&self) -> u64 {
        self.files.version() + self.bufs.version()
    }

    /// Whether the next SQE is of the kind that is known.
    #[inline(always)]
    fn knows_next(&self) -> bool {
        let next = self.queues.sq_row(0, 1).first();
        let known = self.known.as_ref().zip(next).is_some_and(|(known, next)| known.plain.kind == next.kind());
        known && self.known.as_ref().is_some_and(|known| known.version == self.tables_version())
    }
}

/// What was looked up and checked for a run on a raw device, and serves the next one of its kind.
///
/// Invariants:
/// - N1: it is what a look at the tables would find, as long as their version is the one that is noted.
/// - N2: `alike` is for a device of `sectors`.
#[derive(Debug)]
pub(crate) struct Known {
    version: u64,
    plain: Plain,
    way: PlainWay,
    owner: PlainOwner,
    sectors: u64,
    /// What the SQEs of the run before were like, with their length.
    alike: Option<Alike>,
}

impl Known {
    fn new(core: &Core, plain: Plain, file: &OpenFile) -> Option<Known> {
        let way = PlainWay::new(file, plain.iocb_flags, plain.fixed_buf)?;
        let owner = PlainOwner::new(plain.file, 0)?;
        Some(Known { version: core.tables_version(), plain, way, owner, sectors: 0, alike: None })
    }

    /// Submits the SQEs that are plain, so many at most; how many.
    #[inline(always)]
    fn submit(&mut self, io: &mut IoCtx, queues: &Queues, most: u32) -> u32 {
        let Some(mut run) = self.way.start(io) else { return 0 };
        if self.sectors != run.sectors() {
            (self.sectors, self.alike) = (run.sectors(), None); // N2
        }
        let mut taken = 0;
        while taken < most {
            let sqes = queues.sq_row(taken, most - taken);
            let Some(bytes) = sqes.first().map(|sqe| sqe.len) else { break };
            let alike = match &self.alike {
                Some(alike) if alike.len == u64::from(bytes) => alike,
                _ => {
                    self.alike = self.plain.alike(bytes, |len| run.bounds(len));
                    let Some(alike) = &self.alike else { break };
                    alike
                }
            };
            let sqes = alike.first_of(sqes);
            let from = |at: usize| sqes.get(at..).unwrap_or_default().iter().map(|sqe| plain_io(sqe, sqe.off));
            let sent = run.submit_run(PlainRunOf { owner: self.owner.0, bytes }, sqes.len(), from);
            taken += sent as u32;
            if sent == 0 || sent < sqes.len() {
                break;
            }
        }
        run.finish();
        taken
    }
}

/// What the plain reads or writes of a run have in common, whatever their length.
#[derive(Debug)]
struct Plain {
    kind: (u64, u64),
    /// Where the memory must lie: its first address and its bytes.
    memory: (u64, u64),
    /// The longest I/O.
    max_len: u32,
    fixed_buf: u16,
    iocb_flags: u16,
    file: u32,
}

impl Plain {
    /// Of the next SQE and those like it.
    #[inline(always)]
    fn next(core: &Core) -> Option<Plain> {
        let first = core.queues.sq_row(0, 1).first()?;
        let write = matches!(first.opcode, opcode::WRITE | opcode::WRITE_FIXED);
        let fixed = matches!(first.opcode, opcode::READ_FIXED | opcode::WRITE_FIXED);
        let rare = u32::from(first.flags & !IOSQE_FIXED_FILE) | u32::from(first.ioprio) | u32::from(first.personality);
        if !(write || fixed || first.opcode == opcode::READ) || rare | first.splice_fd_in as u32 != 0 {
            return None;
        }
        let (fixed_buf, memory) = match fixed.then(|| core.bufs.range(first.buf_index)) {
            None => (NO_FIXED_BUF, (FIRST_PAGE, USER_END - FIRST_PAGE)),
            Some(range) => (first.buf_index, range?),
        };
        let iocb_flags = u16::from(write) * IOCB_WRITE;
        let file = core.files.resolve(first.fd, first.flags & IOSQE_FIXED_FILE != 0)? as u32;
        let max_len = memory.1.min(u64::from(MAX_RW_COUNT)) as u32;
        Some(Plain { kind: first.kind(), memory, max_len, fixed_buf, iocb_flags, file })
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
    fn submit_mapped(
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
    /// The first of these SQEs, as far as they are alike.
    #[inline(always)]
    fn first_of<'a>(&self, sqes: &'a [Sqe]) -> &'a [Sqe] {
        let many = sqes.iter().take_while(|sqe| self.is(sqe)).count();
        &sqes[..many]
    }

    /// Whether this is one: it differs only in what plain ones may differ in, and is within what the run is.
    #[inline(always)]
    fn is(&self, sqe: &Sqe) -> bool {
        self.is_aligned_or_not(sqe) && self.bounds.aligned(sqe.off, sqe.addr)
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
