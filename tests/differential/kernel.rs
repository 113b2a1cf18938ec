//! The kernel's io_uring as a [`Target`]: raw SQEs on a real file.
//!
//! The ring has the setup whose behaviour Sheave imitates: SUBMIT_ALL, one issuer, completions run by the waiter.
#![allow(unsafe_code)] // Raw SQEs are pushed as bytes; the memory they name is owned here or by the program's image.

use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, squeue, types};
use sheave_base::buf::Buf;

use crate::abi::RawSqe;
use crate::blockdev::BlockDev;
use crate::program::{ARENA_BYTES, FIXED_BYTES, FIXED_FILES, Places, Shape};
use crate::run::{Bytes, Cqe, Target};

const _: () = assert!(size_of::<squeue::Entry>() == 64);

/// The target: one kernel ring after the other on the same device and memory.
///
/// K1: `arena` and `fixed` outlive every ring (they are declared after it).
pub struct Kernel {
    name: String,
    ring: Option<IoUring>,
    pub device: BlockDev,
    arena: Buf,
    fixed: [Buf; 2],
}

impl Kernel {
    pub fn new(device: BlockDev) -> Self {
        let buf = |len: u64| Buf::zeroed(len as usize, 4096).expect("memory for the test");
        let kind = if device.is_block_device { "loop device" } else { "file" };
        Kernel {
            name: format!("kernel io_uring on a {kind}"),
            ring: None,
            device,
            arena: buf(ARENA_BYTES),
            fixed: FIXED_BYTES.map(buf),
        }
    }

    fn ring(&mut self) -> &mut IoUring {
        self.ring.as_mut().expect("the ring is open between open and close")
    }

    fn enter(&mut self, min_complete: u32, patience: Duration) {
        const GETEVENTS: u32 = 1;
        const EXT_ARG: u32 = 8;
        let time = types::Timespec::from(patience);
        let args = types::SubmitArgs::new().timespec(&time);
        let submitter = self.ring().submitter();
        // SAFETY: `args` is what EXT_ARG takes and lives until the call returns.
        let _ = unsafe { submitter.enter(0, min_complete, GETEVENTS | EXT_ARG, Some(&args)) };
    }
}

/// Returns the reason if this machine does not permit io_uring.
pub fn available() -> Result<(), String> {
    builder(8, 16).map(drop).map_err(|error| format!("io_uring_setup: {error}"))
}

fn builder(entries: u32, cq_entries: u32) -> std::io::Result<IoUring> {
    IoUring::builder()
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(cq_entries)
        .build(entries)
}

impl Target for Kernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&mut self, shape: Shape, bytes: &Bytes) -> Places {
        self.device.write_all(&bytes.device);
        self.arena.copy_from_slice(&bytes.arena);
        self.fixed[0].copy_from_slice(&bytes.fixed[0]);
        self.fixed[1].copy_from_slice(&bytes.fixed[1]);
        let ring = builder(shape.entries, shape.cq_entries).expect("a kernel ring");
        let device_fd = self.device.file.as_raw_fd();
        let ring_fd = ring.as_raw_fd();
        let files: Vec<i32> = FIXED_FILES.iter().map(|&used| if used { device_fd } else { -1 }).collect();
        ring.submitter().register_files(&files).expect("register files");
        let vecs =
            [0, 1].map(|n| libc::iovec { iov_base: self.fixed[n].as_mut_ptr().cast(), iov_len: self.fixed[n].len() });
        // SAFETY: the buffers outlive the ring (K1).
        unsafe { ring.submitter().register_buffers(&vecs) }.expect("register buffers");
        self.ring = Some(ring);
        Places {
            arena: self.arena.as_ptr() as u64,
            fixed: [self.fixed[0].as_ptr() as u64, self.fixed[1].as_ptr() as u64],
            device_fd,
            ring_fd,
        }
    }

    fn submit(&mut self, sqes: &[RawSqe]) -> u32 {
        let ring = self.ring();
        let mut queue = ring.submission();
        for sqe in sqes {
            // SAFETY: an entry is 64 bytes of plain data in the kernel's layout, which is what `bytes` gives.
            let entry = unsafe { std::mem::transmute::<[u8; 64], squeue::Entry>(sqe.bytes()) };
            // SAFETY: what the SQE points to belongs to this target (K1) or to the image of the running program.
            unsafe { queue.push(&entry) }.expect("batches fit into the SQ");
        }
        drop(queue);
        // Completions that overflow must not be flushed here, so no GETEVENTS.
        // SAFETY: no argument is passed.
        let done = unsafe { ring.submitter().enter::<libc::sigset_t>(sqes.len() as u32, 0, 0, None) };
        done.map_or(0, |n| n as u32)
    }

    fn reap(&mut self, out: &mut Vec<Cqe>, patience: Duration) {
        let seen = out.len();
        for (min_complete, patience) in [(0, Duration::ZERO), (1, patience), (0, Duration::ZERO)] {
            self.enter(min_complete, patience);
            let batch = self.ring().completion();
            out.extend(batch.map(|c| Cqe { user_data: c.user_data(), res: c.result(), flags: c.flags() }));
            if out.len() > seen {
                return;
            }
        }
    }

    fn overflowed(&mut self) -> bool {
        self.ring().submission().cq_overflow()
    }

    fn close(&mut self) -> Bytes {
        self.ring = None;
        Bytes {
            arena: self.arena.to_vec(),
            fixed: [self.fixed[0].to_vec(), self.fixed[1].to_vec()],
            device: self.device.read_all(),
        }
    }
}

/// Returns true if this process may use the realtime I/O class: it has CAP_SYS_ADMIN or CAP_SYS_NICE.
pub fn may_be_realtime() -> bool {
    const ADMIN_OR_NICE: u64 = 1 << 21 | 1 << 23;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & ADMIN_OR_NICE != 0)
}
