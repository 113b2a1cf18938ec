//! Sets up a kernel ring: the newest flags first, then fewer, down to those of Linux 5.6.
//!
//! Owns the ladder of flag sets, the requested sizes, and the record of the ring's features ([`KringFeatures`]).

use io_uring::IoUring;

use super::error::KringError;
use super::sys;

/// Number of slots in the table of registered files.
pub const FILE_SLOTS: u32 = 64;
/// Number of slots in the table of registered buffers.
pub const BUFFER_SLOTS: u32 = 1024;
/// Largest number of entries the kernel gives a submission queue.
const MAX_ENTRIES: u32 = 32768;
/// Number of completion queue entries per submission entry. It is large enough that completions do not overflow the
/// queue if they are reaped late.
const CQ_PER_SQ: u32 = 4;
/// Smallest number of entries of a completion queue.
const MIN_CQ: u32 = 256;
/// Largest number of entries the kernel gives a completion queue.
const MAX_CQ: u32 = 2 * MAX_ENTRIES;

/// Checks that this process may make kernel rings, without making one.
///
/// # Errors
///
/// [`Disabled`](KringError::Disabled), [`Forbidden`](KringError::Forbidden) or [`Missing`](KringError::Missing).
pub fn is_allowed() -> Result<(), KringError> {
    match sys::setup_nothing() {
        // Every kernel that can make rings returns this for a ring without entries.
        libc::EINVAL => may_enter(-1),
        errno => Err(KringError::from_setup(errno, false)),
    }
}

/// Tries `io_uring_enter` with nothing to submit and nothing to wait for, because some seccomp filters allow
/// `io_uring_setup` alone.
pub(super) fn may_enter(ring: i32) -> Result<(), KringError> {
    match sys::enter(ring, 0, 0, 0, sys::Patience::default()) {
        Err(errno @ (libc::EPERM | libc::EACCES | libc::ENOSYS)) => Err(KringError::from_setup(errno, false)),
        _ => Ok(()),
    }
}

/// Options of a kernel ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KringOpts {
    /// True to poll for completions instead of using interrupts. Only for block devices with poll queues, `O_DIRECT`,
    /// and reads and writes: the kernel returns `-EINVAL` for other operations, and ignores timeouts of `enter`.
    pub iopoll: bool,
    /// Features not to use, to behave as on an older kernel.
    pub avoid: KringAvoid,
}

/// Features not to use, to measure their effect or to behave as on an older kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KringAvoid {
    /// True to avoid the minimum wait of an enter (since 6.12).
    pub min_wait: bool,
    /// True to avoid a submission queue without an index array (since 6.6).
    pub no_sqarray: bool,
    /// True to avoid completions that run only within an enter (since 6.1).
    pub defer_taskrun: bool,
    /// True to avoid the promise of a single submitting thread (since 6.0).
    pub single_issuer: bool,
    /// True to avoid completions that do not interrupt the ring's thread (since 5.19).
    pub coop_taskrun: bool,
    /// True to avoid submissions that continue behind a bad SQE (since 5.18).
    pub submit_all: bool,
    /// True to avoid enters by a registered index (since 5.18).
    pub registered_ring: bool,
    /// True to avoid the timeout of an enter (since 5.11). Without it, a wait with a timeout takes a second system
    /// call. Also avoids all of the above except `registered_ring`.
    pub ext_arg: bool,
    /// True to avoid the table of registered files.
    pub file_table: bool,
    /// True to avoid the table of registered buffers.
    pub buffer_table: bool,
}

/// Features and sizes of a kernel ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KringFeatures {
    /// Number of entries of the submission queue.
    pub sq_entries: u32,
    /// Number of entries of the completion queue.
    pub cq_entries: u32,
    pub iopoll: bool,
    /// True if SQEs are consumed in order, without an index array.
    pub no_sqarray: bool,
    /// True if completions run only when the ring's owner enters.
    pub defer_taskrun: bool,
    /// True if the kernel relies on a single submitting thread.
    pub single_issuer: bool,
    /// True if completions do not interrupt the owner; a flag in the ring shows that some wait to be run.
    pub coop_taskrun: bool,
    /// True if a bad SQE does not stop the rest of its batch.
    pub submit_all: bool,
    /// True if enters use a registered index.
    pub registered_ring: bool,
    /// True if waits can have a timeout.
    pub ext_arg: bool,
    /// True if a wait for several completions can accept one after a while (since 6.12).
    pub min_wait: bool,
    /// True if the kernel keeps completions that find the queue full.
    pub nodrop: bool,
    /// True if an idle wait can be excluded from the iowait statistics.
    pub no_iowait: bool,
    /// Number of slots for registered files; 0 if the kernel refused the table.
    pub file_slots: u32,
    /// Number of slots for registered buffers; 0 if the kernel refused the table.
    pub buffer_slots: u32,
}

/// One set of flags of the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rung {
    no_sqarray: bool,
    defer_taskrun: bool,
    single_issuer: bool,
    coop_taskrun: bool,
    submit_all: bool,
}

/// Flag sets from the newest kernel to the oldest, one for each release that introduced a flag.
const LADDER: [Rung; 6] = {
    let full =
        Rung { no_sqarray: true, defer_taskrun: true, single_issuer: true, coop_taskrun: true, submit_all: true };
    let v6_1 = Rung { no_sqarray: false, ..full };
    let v6_0 = Rung { defer_taskrun: false, ..v6_1 };
    let v5_19 = Rung { single_issuer: false, ..v6_0 };
    let v5_18 = Rung { coop_taskrun: false, ..v5_19 };
    let v5_6 = Rung { submit_all: false, ..v5_18 };
    [full, v6_1, v6_0, v5_19, v5_18, v5_6]
};

impl Rung {
    /// Returns true if a kernel without the features in `avoid` would refuse this set of flags with EINVAL.
    fn refused_by(self, avoid: KringAvoid) -> bool {
        (self.no_sqarray && avoid.no_sqarray)
            || (self.defer_taskrun && avoid.defer_taskrun)
            || (self.single_issuer && avoid.single_issuer)
            || (self.coop_taskrun && avoid.coop_taskrun)
            // A kernel without timeouts has no SUBMIT_ALL either. Besides, a wait then sleeps in `poll`, which does not
            // run deferred task work.
            || (self.submit_all && (avoid.submit_all || avoid.ext_arg))
    }

    fn build(self, entries: u32, iopoll: bool) -> std::io::Result<IoUring> {
        let mut builder = IoUring::builder();
        let cq_entries = entries.saturating_mul(CQ_PER_SQ).clamp(MIN_CQ, MAX_CQ);
        builder.setup_clamp().setup_cqsize(cq_entries);
        if super::restrict::is_wanted() {
            builder.setup_r_disabled();
        }
        if iopoll {
            builder.setup_iopoll();
        }
        if self.no_sqarray {
            builder.setup_no_sqarray();
        }
        if self.defer_taskrun {
            builder.setup_defer_taskrun();
        }
        if self.single_issuer {
            builder.setup_single_issuer();
        }
        if self.coop_taskrun {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        if self.submit_all {
            builder.setup_submit_all();
        }
        builder.build(entries)
    }
}

/// Tries the flag sets in order until the kernel accepts one.
pub(super) fn build(entries: u32, opts: &KringOpts) -> Result<(IoUring, KringFeatures), KringError> {
    if entries == 0 || entries > MAX_ENTRIES {
        return Err(KringError::BadEntries { entries });
    }
    let mut errno = libc::EINVAL;
    for rung in LADDER {
        if rung.refused_by(opts.avoid) {
            continue;
        }
        match rung.build(entries, opts.iopoll) {
            Ok(ring) => {
                let features = describe(&ring, rung, opts);
                return Ok((ring, features));
            }
            Err(error) => errno = error.raw_os_error().unwrap_or(libc::EIO),
        }
        if errno != libc::EINVAL {
            break;
        }
    }
    Err(KringError::from_setup(errno, opts.iopoll))
}

fn describe(ring: &IoUring, rung: Rung, opts: &KringOpts) -> KringFeatures {
    let params = ring.params();
    KringFeatures {
        sq_entries: params.sq_entries(),
        cq_entries: params.cq_entries(),
        iopoll: opts.iopoll,
        no_sqarray: rung.no_sqarray,
        defer_taskrun: rung.defer_taskrun,
        single_issuer: rung.single_issuer,
        coop_taskrun: rung.coop_taskrun,
        submit_all: rung.submit_all,
        registered_ring: false,
        ext_arg: params.is_feature_ext_arg() && !opts.avoid.ext_arg,
        min_wait: params.is_feature_min_timeout() && !opts.avoid.ext_arg && !opts.avoid.min_wait,
        nodrop: params.is_feature_nodrop(),
        no_iowait: params.is_feature_no_iowait(),
        file_slots: if opts.avoid.file_table { 0 } else { FILE_SLOTS },
        buffer_slots: if opts.avoid.buffer_table { 0 } else { BUFFER_SLOTS },
    }
}
