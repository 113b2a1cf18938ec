//! Waiting for descriptors, and signals on eventfds.
//!
//! A watch is a poll that stays armed: each time the descriptor becomes ready it has a CQE, and a last one when it
//! ends. A signal is a write to an eventfd that has a CQE only if it fails, so that it ends no wait.
//!
//! Invariant E1: `in_flight` (I2) does not count signals, except for a moment when the kernel has taken only a part of
//! what was prepared. A signal that fails is recognised by its `user_data`, and ends no operation.

use std::os::fd::RawFd;

use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::Fd;

use super::KernelRing;
use super::prep::Full;

/// Number that a signal adds to the counter of its eventfd.
static ONE: u64 = 1;

impl KernelRing {
    /// Prepares a watch: a CQE each time `fd` becomes readable or its peer closes, until it is cancelled or fails. The
    /// last CQE has no flag for more. The descriptor's data is not read: a further CQE comes with the next wake-up, not
    /// because data is still there.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_watch(&mut self, fd: RawFd, user_data: u64) -> Result<(), Full> {
        let events = (libc::POLLIN | libc::POLLRDHUP) as u32;
        self.push(opcode::PollAdd::new(Fd(fd), events).multi(true).build(), user_data)?;
        self.multishot = true;
        Ok(())
    }

    /// Prepares a signal: adds 1 to the eventfd `fd`, without waiting. All signals have the same `user_data`, which no
    /// other operation may have; a CQE comes only if one fails. The eventfd must be non-blocking: the kernel otherwise
    /// refuses with `-EAGAIN`, as it does when the counter is full. No signal stays in the kernel, whatever `fd` is.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_signal(&mut self, fd: RawFd, user_data: u64) -> Result<(), Full> {
        debug_assert!(self.signal.is_none_or(|signal| signal == user_data), "E1: all signals have one number");
        let one: *const u64 = &raw const ONE;
        let entry = opcode::Write::new(Fd(fd), one.cast(), size_of::<u64>() as u32).rw_flags(libc::RWF_NOWAIT);
        self.signal = None;
        let pushed = self.push(entry.build().flags(Flags::SKIP_SUCCESS), user_data);
        (self.signal, self.multishot) = (Some(user_data), true);
        pushed?;
        self.signals += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::KringOpts;

    const SOON: Option<Duration> = Some(Duration::from_millis(20));

    fn ring() -> Option<KernelRing> {
        KernelRing::new(8, KringOpts::default()).ok()
    }

    fn counted(fd: &impl std::os::fd::AsFd) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::read(fd, &mut bytes) {
            Ok(_) => u64::from_ne_bytes(bytes),
            Err(_) => 0,
        }
    }

    #[test]
    fn a_watch_has_a_completion_for_each_wake_up_until_it_is_cancelled() {
        let Some(mut ring) = ring() else { return };
        let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        ring.prep_watch(bell.as_raw_fd(), 7).expect("room");
        ring.enter(0, None).expect("sent");
        for _ in 0..3 {
            rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("rung");
            ring.enter(1, Some(Duration::from_secs(5))).expect("waited");
            let mut events = Vec::new();
            ring.reap_into(&mut events);
            assert_eq!(events.len(), 1, "one wake-up, one completion, although nobody reads the counter");
            assert_eq!((events[0].user_data, io_uring::cqueue::more(events[0].flags)), (7, true));
            assert_eq!(ring.in_flight(), 1);
        }
        ring.prep_cancel(7, 8).expect("room");
        ring.enter(2, Some(Duration::from_secs(5))).expect("waited");
        let mut last = Vec::new();
        ring.reap(|user_data, _, flags| last.push((user_data, io_uring::cqueue::more(flags))));
        last.sort_unstable();
        assert_eq!((last, ring.in_flight()), (vec![(7, false), (8, false)], 0));
    }

    #[test]
    fn a_signal_arrives_without_a_completion() {
        let Some(mut ring) = ring() else { return };
        let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        for _ in 0..3 {
            ring.prep_signal(bell.as_raw_fd(), 9).expect("room");
        }
        ring.enter(0, None).expect("sent");
        assert_eq!((counted(&bell), ring.ready(), ring.in_flight()), (3, 0, 0));
    }

    #[test]
    #[should_panic(expected = "the number of signals")]
    fn no_other_operation_has_the_number_of_signals() {
        let mut ring = ring().expect("the number of signals, where there are no kernel rings");
        let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        ring.prep_signal(bell.as_raw_fd(), 9).expect("room");
        let _ = ring.prep_cancel(7, 9);
    }

    #[test]
    fn a_signal_that_nobody_takes_fails_at_once_and_counts_for_nothing() {
        let Some(mut ring) = ring() else { return };
        let full = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        let blocking = eventfd(0, EventfdFlags::empty()).expect("an eventfd");
        rustix::io::write(&blocking, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        ring.prep_watch(bell.as_raw_fd(), 7).expect("room");
        for fd in [full.as_raw_fd(), blocking.as_raw_fd()] {
            ring.prep_signal(fd, 9).expect("room");
        }
        ring.enter(0, None).expect("sent");
        ring.enter(2, SOON).expect("waited");
        let mut failed = Vec::new();
        ring.reap(|user_data, res, _| failed.push((user_data, res)));
        assert_eq!((failed, ring.in_flight()), (vec![(9, -libc::EAGAIN), (9, -libc::EAGAIN)], 1));
    }
}
