//! Setup of the peer's ring. Missing features are left out; a measurement decides about deferred task work.
//!
//! * I3. A feature that the kernel lacks is left out without an error; only io_uring itself is required.
#![allow(unsafe_code)] // Registering takes raw pointers.

use std::fs::File;
use std::io::{Error, Result as IoResult};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;

use super::rings::{self, Params, Rings};
use super::{Enter, IORING_ENTER_REGISTERED_RING, KernelRing};
use crate::engine::Engine;
use crate::error::LoadError;
use crate::verify::block;

/// Options of the peer.
pub struct Setup<'a> {
    /// The file to read and write; `None` for NOPs.
    pub file: Option<File>,
    /// Largest number of I/Os in flight.
    pub depth: u32,
    /// Number of SQEs per enter in the measurement that decides about deferred task work.
    pub batch: u32,
    /// Size of an I/O in bytes.
    pub bs: u32,
    /// True to set the ring up with IOPOLL.
    pub poll: bool,
    /// Limits of the kernel's workers. If they are set, NOPs run in workers (IOSQE_ASYNC).
    pub workers: Option<Workers<'a>>,
}

/// Limits of the kernel's workers.
#[derive(Clone, Copy)]
pub struct Workers<'a> {
    /// Largest number of workers of each kind (bound and unbound).
    pub limit: u32,
    /// CPUs that the workers run on; empty for all CPUs.
    pub cpus: &'a [usize],
}

const REGISTER_BUFFERS: u32 = 0;
const REGISTER_FILES: u32 = 2;
const REGISTER_IOWQ_AFF: u32 = 17;
const REGISTER_IOWQ_MAX_WORKERS: u32 = 19;
const REGISTER_RING_FDS: u32 = 20;

/// `struct io_uring_rsrc_update` of the UAPI.
#[repr(C)]
struct RsrcUpdate {
    offset: u32,
    resv: u32,
    data: u64,
}

impl KernelRing {
    /// Sets up a ring. For NOPs it uses deferred task work only if that is faster on this machine.
    pub fn new(mut setup: Setup<'_>) -> Result<Self, LoadError> {
        let file = setup.file.take();
        let rings = match &file {
            // I/O on a file sleeps. Deferred task work interrupts the submitting thread less often.
            Some(_) => match build(&setup, true, true)? {
                Some(rings) => Some(rings),
                None => build(&setup, false, true)?,
            },
            None => match (build(&setup, true, false)?, build(&setup, false, false)?) {
                (Some(deferred), Some(plain)) => Some(faster(&setup, deferred, plain)?),
                (deferred, plain) => deferred.or(plain),
            },
        };
        let rings = rings.ok_or_else(|| LoadError::run("this kernel's io_uring refuses every way to set a ring up"))?;
        Self::over(&setup, rings, file)
    }

    /// Makes the peer from a ring: adds the buffers, the file and the prepared SQEs.
    fn over(setup: &Setup<'_>, rings: Rings, file: Option<File>) -> Result<Self, LoadError> {
        let len = (setup.depth as usize) * (setup.bs as usize);
        let mut buffers = Buf::zeroed(len, 4096).map_err(|err| {
            LoadError::run(format!("no memory for the peer's buffers: {err}")).fix("use a smaller --depth or --bs")
        })?;
        let mut fixed_buffers = false;
        if let Some(file) = &file {
            register(&rings, REGISTER_FILES, &mut [file.as_raw_fd()]).map_err(|err| {
                LoadError::run(format!("the kernel does not register the file with the peer's ring: {err}"))
            })?;
            // The buffers are written now, so that page faults are not measured.
            block::fill_plain(&mut buffers);
            let region = libc::iovec { iov_base: buffers.as_mut_ptr().cast(), iov_len: len };
            fixed_buffers = register(&rings, REGISTER_BUFFERS, &mut [region]).is_ok();
        }
        if let Some(workers) = setup.workers {
            limit_workers(&rings, workers)?;
        }
        let enter = enter_by_index(&rings, setup.poll && file.is_some());
        let (nop, base) = (file.is_none(), buffers.as_ptr() as u64);
        let mut ring = Self { rings, buffers, base, _file: file, nop, bs: setup.bs, opcodes: [0; 2], enter, queued: 0 };
        ring.prefill(fixed_buffers, setup.workers.is_some());
        Ok(ring)
    }
}

/// Sets up the ring itself, with the most modern features that the kernel has (I3). Returns `None` if `defer` is set
/// and the kernel has no deferred task work.
fn build(setup: &Setup<'_>, defer: bool, file: bool) -> Result<Option<Rings>, LoadError> {
    let mut flags = rings::SETUP_CQSIZE;
    if setup.poll && file {
        flags |= rings::SETUP_IOPOLL;
    }
    let single =
        rings::SETUP_SINGLE_ISSUER | if defer { rings::SETUP_DEFER_TASKRUN } else { rings::SETUP_COOP_TASKRUN };
    // Deferred task work requires the single issuer.
    let least = if defer { single } else { 0 };
    for more in [single | rings::SETUP_NO_SQARRAY, single, least] {
        let cq_entries = setup.depth.next_power_of_two() * 2;
        match Rings::new(setup.depth, Params::new(cq_entries, flags | more)) {
            Ok(rings) => return Ok(Some(rings)),
            Err(err) if err.raw_os_error() == Some(libc::EINVAL) => {}
            Err(err) => {
                return Err(LoadError::run(format!("no kernel io_uring to compare with: {err}"))
                    .fix("`sheave doctor` tells what forbids it; leave --compare out to measure Sheave alone"));
            }
        }
    }
    Ok(None)
}

/// Calls `io_uring_register` with an array of arguments.
fn register<T>(rings: &Rings, what: u32, arguments: &mut [T]) -> IoResult<i64> {
    // SAFETY: the kernel reads, and for some calls writes, the elements of the slice, which lives across the call. The
    // memory and files that the elements name outlive the ring (I1 of the module above).
    let result = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            rings.fd(),
            what,
            arguments.as_mut_ptr(),
            arguments.len() as libc::c_uint,
        )
    };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// Sets the largest number of the kernel's workers, and their CPUs.
fn limit_workers(rings: &Rings, workers: Workers<'_>) -> Result<(), LoadError> {
    // The two numbers are for bound and unbound workers; NOPs run on one of these kinds.
    register(rings, REGISTER_IOWQ_MAX_WORKERS, &mut [workers.limit; 2])
        .map_err(|err| LoadError::run(format!("the kernel does not take a limit for its workers: {err}")))?;
    if workers.cpus.is_empty() {
        return Ok(());
    }
    let mut mask = [0_u8; 512];
    for cpu in workers.cpus {
        if let Some(byte) = mask.get_mut(cpu / 8) {
            *byte |= 1 << (cpu % 8);
        }
    }
    register(rings, REGISTER_IOWQ_AFF, &mut mask)
        .map_err(|err| LoadError::run(format!("the kernel does not place its workers: {err}")))?;
    Ok(())
}

/// Registers the ring with its own thread, so that an enter needs no lookup of the descriptor. Without that feature it
/// uses the descriptor (I3).
fn enter_by_index(rings: &Rings, polls: bool) -> Enter {
    let mut update = [RsrcUpdate { offset: u32::MAX, resv: 0, data: rings.fd() as u64 }];
    match register(rings, REGISTER_RING_FDS, &mut update) {
        Ok(1) => Enter { fd: update[0].offset as i32, flags: IORING_ENTER_REGISTERED_RING, polls },
        _ => Enter { fd: rings.fd(), flags: 0, polls },
    }
}

/// Returns the ring that does more NOPs, judged by the better of three short turns of each.
fn faster(setup: &Setup<'_>, deferred: Rings, plain: Rings) -> Result<Rings, LoadError> {
    const TURNS: usize = 3;
    let (mut deferred, mut plain) = (KernelRing::over(setup, deferred, None)?, KernelRing::over(setup, plain, None)?);
    let (mut with, mut without) = (0, 0);
    for _ in 0..TURNS {
        with = with.max(nops(&mut deferred, setup.batch)?);
        without = without.max(nops(&mut plain, setup.batch)?);
    }
    let best = if with >= without { deferred } else { plain };
    Ok(best.rings)
}

/// Returns the number of NOPs that a ring does in 20 ms.
fn nops(ring: &mut KernelRing, batch: u32) -> Result<u64, LoadError> {
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
