//! Shared by the unit tests of the operations: a ring on a virtual clock, and SQEs filled by hand.
#![allow(unsafe_code)] // SQEs carry addresses.

use std::sync::Mutex;
use std::time::Duration;

use sheave_base::clock::{Clock, VirtualClock};
use sheave_drivers::open_device;

use crate::builder::RingBuilder;
use crate::sqe::{Sqe, opcode};
use crate::{Fd, Ring};

/// A ring with one device attached, a registered table of that device and an empty entry, and a clock that stands
/// still.
pub(crate) struct Rig {
    pub(crate) ring: Ring,
    pub(crate) time: VirtualClock,
    pub(crate) device: Fd,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::of(Ring::builder().entries(32).cq_entries(64), "null:size=1M")
    }

    /// Makes a rig whose requests stay in the device until the clock has advanced.
    pub(crate) fn slow() -> Rig {
        Rig::of(Ring::builder().entries(32), "null:size=1M,latency=1s")
    }

    pub(crate) fn of(builder: RingBuilder, spec: &str) -> Rig {
        let (clock, time) = Clock::virtual_clock();
        let mut ring = builder.clock(clock).build().expect("a ring");
        let device = ring.attach(&open_device(spec).expect("a device")).expect("attached");
        ring.register_files(&[device, Fd::NONE]).expect("registered");
        Rig { ring, time, device }
    }

    /// Submits the SQEs at once. Returns user data and result of all CQEs that are there then.
    pub(crate) fn run(&mut self, sqes: &[Sqe]) -> Vec<(u64, i32)> {
        for sqe in sqes {
            // SAFETY: the addresses in the tests are of memory that `keep` keeps, or wrong; only timespecs and bytes of
            // `Rig::read` are ever accessed, and those live for ever.
            assert!(unsafe { self.ring.push_sqe(sqe) }, "the SQ has room");
        }
        assert_eq!(self.ring.submit().expect("submitted"), sqes.len() as u32);
        self.reap()
    }

    pub(crate) fn reap(&mut self) -> Vec<(u64, i32)> {
        self.ring.reap();
        self.ring.completions().map(|c| (c.user_data, c.res)).collect()
    }

    /// Advances the clock, then returns the CQEs.
    pub(crate) fn after(&mut self, span: Duration) -> Vec<(u64, i32)> {
        self.time.advance(span);
        self.reap()
    }

    /// Returns a read of one block.
    pub(crate) fn read(&self, user_data: u64) -> Sqe {
        let addr = keep(vec![0; 128]).next_multiple_of(512);
        Sqe { opcode: opcode::READ, fd: self.device.raw(), addr, len: 512, user_data, ..Sqe::default() }
    }
}

/// Makes the memory permanent, reachable for leak checkers. Returns its address.
fn keep(mut words: Vec<i64>) -> u64 {
    static KEPT: Mutex<Vec<Vec<i64>>> = Mutex::new(Vec::new());
    let addr = words.as_mut_ptr() as u64;
    KEPT.lock().expect("no test panics here").push(words);
    addr
}

/// Returns the address of a permanent timespec.
pub(crate) fn timespec(sec: i64, nsec: i64) -> u64 {
    keep(vec![sec, nsec])
}

pub(crate) fn nop(user_data: u64) -> Sqe {
    Sqe { opcode: opcode::NOP, user_data, ..Sqe::default() }
}

pub(crate) fn timeout(user_data: u64, ms: i64) -> Sqe {
    let addr = timespec(ms / 1000, ms % 1000 * 1_000_000);
    Sqe { opcode: opcode::TIMEOUT, fd: -1, addr, len: 1, user_data, ..Sqe::default() }
}

pub(crate) fn link_timeout(user_data: u64, ms: i64) -> Sqe {
    Sqe { opcode: opcode::LINK_TIMEOUT, ..timeout(user_data, ms) }
}

pub(crate) fn with(sqe: Sqe, flags: u8) -> Sqe {
    Sqe { flags: sqe.flags | flags, ..sqe }
}
