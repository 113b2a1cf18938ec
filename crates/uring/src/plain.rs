//! Plain records: reads and writes of one piece of memory that go from SQE to CQE without a request slot.
//!
//! Owns the fast path of submission. The properties that the SQEs of a run share (file, operation, buffer, length) are
//! looked up and checked once; the device then gets the SQEs as records of its block layer
//! ([`request`](sheave_blk::request)), each with the SQE's user data. [`complete`](crate::complete) turns ended records
//! into CQEs, many at a time.
//!
//! An SQE that is not plain (flags, chains, drains, an end of the file, a busy device, a mapping with completion work)
//! stays in the SQ and goes through `prep` and `issue` of the table of operations, which check in the kernel's order. A
//! run that stops early is therefore never an error.
//!
//! Invariants:
//! - I1: a record ends once, with one CQE; [`Core::records`](crate::core::Core::records) is the number in flight.
//! - I2: the ring stores nothing for a record. When a file or a registered buffer changes, its users are found by a
//!   walk over the records ([`IoCtx::any_plain`](sheave_blk::ctx::IoCtx::any_plain)).
//! - I3: a record cannot be cancelled, because a device has it. Cancels therefore do not search records, as they do not
//!   search issued slots.

use sheave_blk::ctx::lane::Alone;
use sheave_iomap::dio::MappedRun;

use crate::core::Core;
use crate::plain_run::{Known, Plain, PlainOwner};
use crate::ring::inner::Inner;

/// Prepares and issues the plain reads and writes that come next in the SQ, at most `most`. Called only while no chain
/// or drain is open. Returns the number of SQEs taken.
#[inline(never)]
pub(crate) fn submit_run(ring: &mut Inner, most: u32) -> u32 {
    // Without promised bios the run would stop at once. Checked first, so that its look-ups do not count in what the
    // lab compares.
    #[cfg(sheave_lab)]
    if !ring.io.bios().promises() {
        return 0;
    }
    let (most, owned) = ring.core.owned.sq.look(ring.core.queues.sq_at(), most);
    if !ring.core.knows_next() {
        let Some(plain) = ring.core.next_plain() else { return 0 };
        let Some(file) = ring.core.files.get(plain.file as usize) else { return 0 };
        if !file.is_identity() {
            return submit_mapped_run(ring, plain, most, owned);
        }
        let version = ring.core.tables_version();
        // A program that cycles through its registered buffers would otherwise get a run for each I/O.
        let mixed = ring.core.known.as_ref().is_some_and(|last| last.is_of(version) && last.has_other_buffer(&plain));
        let plain = if mixed { plain.mixed() } else { plain };
        let Some(known) = Known::new(version, plain, file) else { return 0 };
        ring.core.known = Some(known);
    }
    let Inner { io, core, .. } = ring;
    let Some(known) = &mut core.known else { return 0 };
    let taken = if known.is_mixed() {
        known.submit_mixed(io, &core.queues, &core.bufs, most)
    } else {
        known.submit(io, &core.queues, most, owned)
    };
    core.took_records(taken);
    taken
}

impl Inner {
    /// Sends the only pending SQE to its driver at once if it matches the last run. Called on a quiet ring.
    #[inline(always)]
    pub(crate) fn send_next_alone(&mut self) -> Alone {
        self.send_alone::<false>()
    }

    /// Sends the only pending SQE of a ring whose operations may own memory. Separate from
    /// [`send_next_alone`](Self::send_next_alone), so that rings without such operations do not pay for the look-up.
    #[inline(never)]
    pub(crate) fn send_next_owned_alone(&mut self) -> Alone {
        if self.core.available() == 0 {
            return Alone::No;
        }
        let (_, owned) = self.core.owned.sq.look(self.core.queues.sq_at(), 1);
        if owned { self.send_alone::<true>() } else { self.send_alone::<false>() }
    }

    #[inline(always)]
    fn send_alone<const OWNED: bool>(&mut self) -> Alone {
        let Inner { io, core, .. } = self;
        let version = core.tables_version();
        let Some(known) = core.known.as_ref().filter(|known| known.is_of(version)) else { return Alone::No };
        let Some((way, sectors, run, one)) = known.alone(core.queues.sq_peek(), OWNED) else { return Alone::No };
        let sending = Sending(core);
        let alone = way.send_alone(io, sectors, run, one, &mut *sending.0);
        // The driver did not panic: the cases below do the accounting.
        std::mem::forget(sending);
        match alone {
            Alone::No => return alone,
            Alone::Sent => core.records += 1,
            Alone::Ended if OWNED => core.last_was_owned(),
            Alone::Ended => {}
        }
        core.queues.sq_skip(1);
        core.queues.sq_advance();
        alone
    }
}

/// Panic guard around a driver call with one I/O: if the driver panics, the panic propagates and the I/O counts as in
/// flight.
struct Sending<'a>(&'a mut Core);

impl Drop for Sending<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.took_records(1);
        self.0.queues.sq_advance();
        self.0.quiet.stir();
    }
}

/// Prepares and issues the plain reads and writes that come next for a file with mappings. Returns the number taken.
/// Not inlined, so that raw devices do not pay for it.
#[inline(never)]
fn submit_mapped_run(ring: &mut Inner, plain: Plain, most: u32, owned: bool) -> u32 {
    let Inner { io, core, .. } = ring;
    core.files.enter(plain.file as usize);
    let Some(file) = core.files.get(plain.file as usize) else { return 0 };
    let Some(run) = MappedRun::start(io, file, plain.iocb_flags, plain.fixed_buf) else { return 0 };
    let Some(owner) = PlainOwner::new(plain.file, run.count_flags(), owned) else { return 0 };
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

    /// Returns a number that changes with every change of the files or buffers that SQEs can name.
    #[inline(always)]
    fn tables_version(&self) -> u64 {
        self.files.version() + self.bufs.version()
    }

    /// True if the next SQE is of the kind in `known`, and `known` is current.
    #[inline(always)]
    fn knows_next(&self) -> bool {
        let next = self.queues.sq_row(0, 1).first();
        let known = self.known.as_ref().zip(next).is_some_and(|(known, next)| known.is_kind_of(next));
        known && self.known.as_ref().is_some_and(|known| known.is_of(self.tables_version()))
    }

    /// Returns the properties that the next SQE shares with those like it.
    #[inline(always)]
    fn next_plain(&self) -> Option<Plain> {
        Plain::of(self.queues.sq_row(0, 1).first()?, &self.files, &self.bufs)
    }
}
