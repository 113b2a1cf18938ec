//! Sheave's ring as an engine of the loops.
//!
//! SQEs are written in place. An SQ entry keeps its previous content, so one round of NOPs writes the common fields of
//! all SQEs into every entry. Afterwards only the fields that differ between I/Os are written: direction, offset,
//! address, slot.
//!
//! * I1. The memory of the buffers belongs to the ring when registered, else to `_buffers`, which is dropped after
//!   the ring (field order); the ring waits for its I/O when it is dropped. So `base` stays valid for the ring's life.
//! * I2. The ring has an SQ entry and a CQ entry for each slot (engine I2).
#![allow(unsafe_code)] // SQEs carry raw addresses; a slot's buffer is a part of one large one.

use sheave::{Buf, Fd, Ring, RingBuilder};
use sheave_uring::RingError;
use sheave_uring::sqe::{IOSQE_FIXED_FILE, RWF_DSYNC, Sqe, opcode};

use crate::engine::Engine;
use crate::error::LoadError;
use crate::looper::{Driven, Looper, Until};
use crate::pace::Pace;
use crate::pattern::Pattern;
use crate::verify::{Checked, Checker, Pass, block};

/// Largest number of bios of a ring.
const MAX_BIOS: u32 = 65_536;

/// Setup and use of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOpts {
    /// Largest number of I/Os in flight.
    pub depth: u32,
    /// Size of an I/O in bytes.
    pub bs: u32,
    /// True to poll for completions.
    pub poll: bool,
    /// True if the ring keeps statistics.
    pub stats: bool,
    /// True if the buffers are registered with the ring.
    pub fixed_buffers: bool,
    /// True if writes are durable when they end.
    pub dsync: bool,
    /// The `ioprio` of each I/O; 0 means none. An I/O with a priority is submitted through the ring's general path,
    /// with all its checks.
    pub ioprio: u16,
}

impl EngineOpts {
    /// Returns the builder of a ring with these options; `pieces` is the largest number of bios of one I/O.
    pub fn ring(&self, pieces: u32) -> RingBuilder {
        let entries = self.depth.next_power_of_two();
        Ring::builder()
            .entries(entries)
            .in_flight((2 * entries).max(self.depth.saturating_mul(pieces)).min(MAX_BIOS))
            .polled(self.poll)
            .iopoll(self.poll)
            .stats(self.stats)
    }
}

/// A Sheave ring with one buffer per slot.
pub struct SheaveEngine {
    ring: Ring,
    _buffers: Option<Buf>,
    /// Buffer of the first slot (I1).
    base: *mut u8,
    bs: u32,
    /// Opcode of a read, and opcode of a write.
    opcodes: [u8; 2],
    /// True if writes are durable when they end.
    dsync: bool,
    /// True if every I/O is a NOP.
    nops: bool,
}

impl SheaveEngine {
    /// Makes a ring on the calling thread; `attach` attaches the file or device. `pieces` is the largest number of bios
    /// of one I/O: with fewer bios the ring would end some I/Os short.
    pub fn new(
        attach: impl FnOnce(&mut Ring) -> Result<Fd, RingError>,
        pieces: u32,
        opts: &EngineOpts,
    ) -> Result<Self, LoadError> {
        Self::built(opts.ring(pieces), attach, opts)
    }

    /// Same as [`SheaveEngine::new`], with the caller's builder, which comes from [`EngineOpts::ring`].
    pub fn built(
        builder: RingBuilder,
        attach: impl FnOnce(&mut Ring) -> Result<Fd, RingError>,
        opts: &EngineOpts,
    ) -> Result<Self, LoadError> {
        let fail = |what: &str, err: RingError| LoadError::run(format!("{what}: {err}"));
        let mut ring = builder.build().map_err(|err| fail("cannot set a ring up", err))?;
        let fd = attach(&mut ring).map_err(|err| fail("cannot attach the device to a ring", err))?;
        ring.register_files(&[fd]).map_err(|err| fail("cannot register the device with the ring", err))?;
        let mut buffers = Buf::zeroed(opts.depth as usize * opts.bs as usize, 4096).map_err(|err| {
            LoadError::run(format!("no memory for the buffers: {err}")).fix("use a smaller --depth or --bs")
        })?;
        // The buffers are written now, so that page faults are not measured.
        block::fill_plain(&mut buffers);
        let base = buffers.as_mut_ptr();
        let mut own = Some(buffers);
        if opts.fixed_buffers
            && let Some(buffers) = own.take()
        {
            ring.register_buffers(vec![buffers]).map_err(|err| fail("cannot register the buffers", err))?;
        }
        let template = Sqe { flags: IOSQE_FIXED_FILE, fd: 0, len: opts.bs, ioprio: opts.ioprio, ..Sqe::default() };
        let opcodes = match opts.fixed_buffers {
            true => [opcode::READ_FIXED, opcode::WRITE_FIXED],
            false => [opcode::READ, opcode::WRITE],
        };
        prefill(&mut ring, &template)?;
        Ok(Self { ring, _buffers: own, base, bs: opts.bs, opcodes, dsync: opts.dsync, nops: false })
    }

    /// Sends NOPs instead of reads and writes, so that the ring alone is measured, without any device.
    #[must_use]
    pub fn with_nops(mut self) -> Self {
        self.opcodes = [opcode::NOP; 2];
        self.nops = true;
        self
    }

    /// Returns the ring, for use between runs of the loop.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    #[inline]
    fn address(&self, slot: u32) -> *mut u8 {
        self.base.wrapping_add(slot as usize * self.bs as usize)
    }
}

/// Writes `template` into every entry of an empty SQ, with a round of NOPs.
fn prefill(ring: &mut Ring, template: &Sqe) -> Result<(), LoadError> {
    let fail = |err: RingError| LoadError::run(format!("the ring does not even do NOPs: {err}"));
    let entries = ring.sq_space();
    for _ in 0..entries {
        // A NOP ignores the file and the length. A NOP with a priority is refused, which also leaves its entry
        // unchanged.
        let nop = Sqe { opcode: opcode::NOP, ..*template };
        // SAFETY: a NOP uses no address.
        let pushed = unsafe { ring.push_sqe(&nop) };
        debug_assert!(pushed, "as many as there is space for");
    }
    ring.submit_and_wait(entries).map_err(fail)?;
    for _ in ring.completions() {}
    Ok(())
}

impl Driven for SheaveEngine {
    fn run(looper: &mut Looper<Self>, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        looper.turns(pattern, until, pace)
    }
}

impl Checked for SheaveEngine {
    fn pass(checker: &mut Checker<Self>, pass: Pass, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        checker.pass(pass, until, pace)
    }
}

impl Engine for SheaveEngine {
    fn expected(&self) -> i32 {
        if self.nops { 0 } else { self.bs as i32 }
    }

    #[inline]
    fn prep(&mut self, slot: u32, write: bool, offset: u64) {
        let address = self.address(slot) as u64;
        // SAFETY: the buffer lives as long as the ring (I1), and nobody touches it while the slot is in flight.
        let Some(sqe) = (unsafe { self.ring.get_sqe() }) else {
            debug_assert!(false, "I2: the SQ has an entry for each slot");
            return;
        };
        sqe.opcode = self.opcodes[usize::from(write)];
        sqe.off = offset;
        sqe.addr = address;
        sqe.user_data = u64::from(slot);
        if self.dsync {
            sqe.op_flags = if write { RWF_DSYNC } else { 0 };
        }
    }

    #[inline]
    fn submit(&mut self, wait: u32) -> Result<(), LoadError> {
        let submitted = if wait > 0 { self.ring.submit_and_wait(wait) } else { self.ring.submit() };
        match submitted {
            Ok(_) => Ok(()),
            // Too much is in flight. The loop reaps and then calls again for the rest.
            Err(RingError::Busy) => Ok(()),
            Err(err) => Err(LoadError::run(format!("the ring refuses to submit: {err}"))),
        }
    }

    #[inline]
    fn reap(&mut self, mut done: impl FnMut(u32, i32)) -> u32 {
        self.ring.for_each_cqe(|cqe| done(cqe.user_data as u32, cqe.res))
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        let address = self.address(slot);
        // SAFETY: I1; a free slot's bytes are in no request's hands, and `self` is borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(address, self.bs as usize) }
    }
}
