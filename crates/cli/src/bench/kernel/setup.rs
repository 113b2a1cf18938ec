//! Setting up the peer's ring: features by falling back, task work by trial.
//!
//! * I3. A feature that the kernel lacks is left out, never an error; only io_uring itself is required.
#![allow(unsafe_code)] // Registering the ring and the buffers takes raw pointers.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::IoUring;
use sheave::base::buf::Buf;

use super::{Enter, IORING_ENTER_REGISTERED_RING, KernelRing};
use crate::bench::engine::Engine;
use crate::failure::Failure;

/// What the peer shall do.
pub struct Setup {
    /// The file to read and write; none for a NOP.
    pub file: Option<File>,
    /// I/Os in flight at most.
    pub depth: u32,
    /// SQEs of one enter; for the trial.
    pub batch: u32,
    /// Bytes of an I/O.
    pub bs: u32,
    /// Set the ring up with IOPOLL.
    pub poll: bool,
}

const IORING_REGISTER_RING_FDS: libc::c_uint = 20;

/// `struct io_uring_rsrc_update` of the UAPI.
#[repr(C)]
struct RsrcUpdate {
    offset: u32,
    resv: u32,
    data: u64,
}

impl KernelRing {
    /// Sets a ring up, with deferred task work or without, whichever makes NOPs faster here.
    pub fn new(setup: Setup) -> Result<Self, Failure> {
        let defer = match setup.file {
            // I/O that sleeps: deferred task work spares the submitting thread the interruptions.
            Some(_) => build(&setup, true)?.is_some(),
            None => match (Self::with_task_work(&setup, true, None)?, Self::with_task_work(&setup, false, None)?) {
                (Some(mut deferred), Some(mut plain)) => trial(&mut deferred, &mut plain, setup.batch)?,
                (deferred, _) => deferred.is_some(),
            },
        };
        let file = match &setup.file {
            Some(file) => Some(
                file.try_clone().map_err(|err| Failure::run(format!("cannot share the file with the peer: {err}")))?,
            ),
            None => None,
        };
        Self::with_task_work(&setup, defer, file)?
            .ok_or_else(|| Failure::run("the kernel set a ring up once and then refused the same setup"))
    }

    /// A ring with or without deferred task work; `None` when this kernel lacks what is asked.
    fn with_task_work(setup: &Setup, defer: bool, file: Option<File>) -> Result<Option<Self>, Failure> {
        let Some(ring) = build(setup, defer)? else { return Ok(None) };
        let len = (setup.depth as usize) * (setup.bs as usize);
        let mut buffers = Buf::zeroed(len, 4096).map_err(|err| {
            Failure::run(format!("no memory for the peer's buffers: {err}")).fix("use a smaller --depth or --bs")
        })?;
        let mut fixed_buffers = false;
        if let Some(file) = &file {
            ring.submitter().register_files(&[file.as_raw_fd()]).map_err(|err| {
                Failure::run(format!("the kernel does not register the file with the peer's ring: {err}"))
            })?;
            // Touched now, so that the run does not take the page faults; different bytes, so that no layer below
            // gets to treat them as zeroes.
            for (at, byte) in buffers.iter_mut().enumerate() {
                *byte = (at % 251) as u8;
            }
            let region = libc::iovec { iov_base: buffers.as_mut_ptr().cast(), iov_len: len };
            // SAFETY: I1, the buffers outlive the ring.
            fixed_buffers = unsafe { ring.submitter().register_buffers(&[region]) }.is_ok();
        }
        let enter = enter_by_index(&ring, setup.poll && file.is_some());
        let nop = file.is_none();
        Ok(Some(Self { ring, buffers, _file: file, nop, bs: setup.bs, fixed_buffers, enter, queued: 0 }))
    }
}

/// Builds the ring itself, from most to least modern (I3).
fn build(setup: &Setup, defer: bool) -> Result<Option<IoUring>, Failure> {
    let mut last = None;
    for (single, no_array) in [(true, true), (true, false), (false, false)] {
        if defer && !single {
            continue; // Deferred task work needs the single issuer.
        }
        let mut builder = IoUring::builder();
        if single {
            builder.setup_single_issuer();
        }
        if no_array {
            builder.setup_no_sqarray();
        }
        if defer {
            builder.setup_defer_taskrun();
        } else if single {
            builder.setup_coop_taskrun();
        }
        if setup.poll && setup.file.is_some() {
            builder.setup_iopoll();
        }
        builder.setup_cqsize(setup.depth.next_power_of_two() * 2);
        match builder.build(setup.depth) {
            Ok(ring) => return Ok(Some(ring)),
            Err(err) if err.raw_os_error() == Some(libc::EINVAL) => last = Some(err),
            Err(err) => {
                return Err(Failure::run(format!("no kernel io_uring to compare with: {err}")).fix(
                    "`sheave doctor` tells what forbids it; without --compare the run needs none for null: and ram:",
                ));
            }
        }
    }
    debug_assert!(last.is_some(), "each turn of the loop returns or leaves its error");
    Ok(None)
}

/// Registers the ring with its own thread, so that an enter needs no look-up of the descriptor (I3).
fn enter_by_index(ring: &IoUring, polls: bool) -> Enter {
    let fd = ring.as_raw_fd();
    let mut update = RsrcUpdate { offset: u32::MAX, resv: 0, data: fd as u64 };
    // SAFETY: the call reads and writes one `update`, which lives across it.
    let registered =
        unsafe { libc::syscall(libc::SYS_io_uring_register, fd, IORING_REGISTER_RING_FDS, &raw mut update, 1u32) };
    if registered == 1 {
        return Enter { fd: update.offset as i32, flags: IORING_ENTER_REGISTERED_RING, polls };
    }
    Enter { fd, flags: 0, polls }
}

/// True when `deferred` makes NOPs at least as fast as `plain`: the better of three short turns each.
fn trial(deferred: &mut KernelRing, plain: &mut KernelRing, batch: u32) -> Result<bool, Failure> {
    const TURNS: usize = 3;
    let mut best = [0u64; 2];
    for _ in 0..TURNS {
        best[0] = best[0].max(nops(deferred, batch)?);
        best[1] = best[1].max(nops(plain, batch)?);
    }
    Ok(best[0] >= best[1])
}

/// How many NOPs a ring does in 20 ms.
fn nops(ring: &mut KernelRing, batch: u32) -> Result<u64, Failure> {
    const TURN: Duration = Duration::from_millis(20);
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < TURN {
        for slot in 0..batch {
            ring.prep(slot, false, 0);
        }
        let mut left = batch;
        while left > 0 {
            ring.submit(left)?;
            left -= ring.reap(|_, _| {}).min(left);
        }
        done += u64::from(batch);
    }
    Ok(done)
}
