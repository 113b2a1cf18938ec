//! What the unit tests of the operations share: a ring on a virtual clock, and SQEs filled by hand.
#![allow(unsafe_code)] // SQEs carry addresses.

use std::sync::Mutex;
use std::time::Duration;

use sheave_base::clock::{Clock, VirtualClock};
use sheave_drivers::open_device;

use crate::builder::RingBuilder;
use crate::sqe::{Sqe, opcode};
use crate::{Fd, Ring};

/// A ring with one device attached, a registered table of that device and an empty place, and time that stands.
pub(crate) struct Rig {
    pub(crate) ring: Ring,
    pub(crate) time: VirtualClock,
    pub(crate) device: Fd,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::of(Ring::builder().entries(32).cq_entries(64), "null:size=1M")
    }

    /// Its requests stay in the device until the time has come.
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

    /// Submits the SQEs in one go, and gives all CQEs that are there then: user data and result.
    pub(crate) fn run(&mut self, sqes: &[Sqe]) -> Vec<(u64, i32)> {
        for sqe in sqes {
            // SAFETY: the addresses in the tests are of memory that `keep` keeps, or wrong; only timespecs and bytes of
            // `Rig::read` are ever accessed, and those live for ever.
            assert!(unsafe { self.ring.push_sqe(sqe) }, "the SQ has room");
        }
        assert_eq!(self.ring.submit().expect("submitted"), sqes.len() as u32);
        self.reap()
    }

    /// All CQEs that are there.
    pub(crate) fn reap(&mut self) -> Vec<(u64, i32)> {
        self.ring.reap();
        self.ring.completions().map(|c| (c.user_data, c.res)).collect()
    }

    /// Lets time pass, then gives the CQEs.
    pub(crate) fn after(&mut self, span: Duration) -> Vec<(u64, i32)> {
        self.time.advance(span);
        self.reap()
    }

    /// A read of one block.
    pub(crate) fn read(&self, user_data: u64) -> Sqe {
        let addr = keep(vec![0; 128]).next_multiple_of(512);
        Sqe { opcode: opcode::READ, fd: self.device.raw(), addr, len: 512, user_data, ..Sqe::default() }
    }
}

/// Memory that lives for ever, and is no leak: its address.
fn keep(mut words: Vec<i64>) -> u64 {
    static KEPT: Mutex<Vec<Vec<i64>>> = Mutex::new(Vec::new());
    let addr = words.as_mut_ptr() as u64;
    KEPT.lock().expect("no test panics here").push(words);
    addr
}

/// A timespec that lives for ever.
pub(crate) fn timespec(sec: i64, nsec: i64) -> u64 {
    keep(vec![sec, nsec])
}

pub(crate) fn nop(user_data: u64) -> Sqe {
    Sqe { opcode: opcode::NOP, user_data, ..Sqe::default() }
}

/// A TIMEOUT of so many ms.
pub(crate) fn timeout(user_data: u64, ms: i64) -> Sqe {
    let addr = timespec(ms / 1000, ms % 1000 * 1_000_000);
    Sqe { opcode: opcode::TIMEOUT, fd: -1, addr, len: 1, user_data, ..Sqe::default() }
}

pub(crate) fn link_timeout(user_data: u64, ms: i64) -> Sqe {
    Sqe { opcode: opcode::LINK_TIMEOUT, ..timeout(user_data, ms) }
}

/// An SQE like this one, with these flags.
pub(crate) fn with(sqe: Sqe, flags: u8) -> Sqe {
    Sqe { flags: sqe.flags | flags, ..sqe }
}
