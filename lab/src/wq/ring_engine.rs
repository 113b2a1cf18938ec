//! An engine over a ring whose NOPs run on workers.
//!
//! Invariant I1: the ring has an SQ entry, a CQ entry and a request slot for each slot of the loop (engine I2).
#![allow(unsafe_code)] // SQEs are pushed unchecked.

use sheave::Ring;
use sheave_uring::sqe::{IOSQE_ASYNC, Sqe, opcode};
use sheave_uring::{IoWq, RingError};

use sheave_load::LoadError;
use sheave_load::engine::Engine;
use sheave_load::looper::{Driven, Looper, Until};
use sheave_load::pace::Pace;
use sheave_load::pattern::Pattern;

pub struct RingEngine {
    ring: Ring,
}

impl RingEngine {
    /// Makes a ring on the calling thread over a shared pool.
    pub fn new(depth: u32, wq: &IoWq) -> Result<Self, LoadError> {
        let ring = Ring::builder().entries(depth.next_power_of_two()).io_wq(wq).build();
        Ok(Self { ring: ring.map_err(|err| LoadError::run(format!("cannot set a ring up: {err}")))? })
    }
}

impl Driven for RingEngine {
    fn run(looper: &mut Looper<Self>, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        looper.turns(pattern, until, pace)
    }
}

impl Engine for RingEngine {
    fn expected(&self) -> i32 {
        0
    }

    #[inline]
    fn prep(&mut self, slot: u32, _: bool, _: u64) {
        let sqe = Sqe { opcode: opcode::NOP, flags: IOSQE_ASYNC, user_data: u64::from(slot), ..Sqe::default() };
        // SAFETY: a NOP uses no address.
        let pushed = unsafe { self.ring.push_sqe(&sqe) };
        debug_assert!(pushed, "I1");
    }

    #[inline]
    fn submit(&mut self, wait: u32) -> Result<(), LoadError> {
        let submitted = if wait > 0 { self.ring.submit_and_wait(wait) } else { self.ring.submit() };
        match submitted {
            Ok(_) | Err(RingError::Busy) => Ok(()),
            Err(err) => Err(LoadError::run(format!("the ring refuses to submit: {err}"))),
        }
    }

    #[inline]
    fn reap(&mut self, mut done: impl FnMut(u32, i32)) -> u32 {
        let mut reaped = 0;
        for completion in self.ring.completions() {
            done(completion.user_data as u32, completion.res);
            reaped += 1;
        }
        reaped
    }

    fn buffer(&mut self, _: u32) -> &mut [u8] {
        &mut []
    }
}
