//! Waits for I/O in flight: the volumes concerned, the time limit, and the error if the I/O does not end.
//!
//! Owns the waits of a pool for the graces of its volumes. A thread that needs a lock or a change which depends on such
//! a grace waits here too, because the I/O in question may be on its own rings.
//!
//! - P1: a wait runs the rings of its own thread, so that no thread waits for I/O that only it can end.
//! - P2: every other wait ends when the I/O ends, when it is cancelled, or after [`OpenOptions::longest_wait`]. In the
//!   last case the volume's grace can name the thread with the I/O.
//! - P3: a volume's changes wait for that volume's I/O alone. Changes of the pool as a whole wait for [`Everyone`].
//! - P4: only time in which the I/O could have ended counts. If a process was stopped or a machine was paused, the
//!   clock is far ahead afterwards while no I/O has moved: that time does not count.
//!
//! Called by writes, holes, changes of the table, and checkpoints.
//!
//! [`OpenOptions::longest_wait`]: crate::OpenOptions::longest_wait

use std::sync::TryLockError;
use std::time::{Duration, Instant};

use sheave_base::grace::{Holder, Ticket, own};
use sheave_base::status::Status;
use sheave_base::sync::MutexGuard;
use sheave_base::wait;
use sheave_iomap::completion_plan::MayBlock;

use super::inner::{LOOK_EVERY, PoolInner};
use crate::error::PoolError;
use crate::state::State;
use crate::state::everyone::Everyone;
use crate::state::table::VolumeCore;

/// Time between two attempts to take a lock, on a thread with rings of its own.
const NAP: Duration = Duration::from_micros(200);
/// Longest time that counts for one pause between two looks (P4). A running thread looks every [`LOOK_EVERY`].
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The time that a thread has waited for I/O of others (P4).
#[derive(Debug)]
pub(crate) struct Waited {
    looked: Instant,
    waited: Duration,
}

impl Waited {
    pub(crate) fn since(now: Instant) -> Waited {
        Waited { looked: now, waited: Duration::ZERO }
    }

    /// Called at each look: counts the time since the last one. Returns the rest of a wait of at most `longest`.
    pub(crate) fn left(&mut self, longest: Duration, now: Instant) -> Duration {
        self.waited += now.saturating_duration_since(self.looked).min(LONGEST_PAUSE);
        self.looked = now;
        longest.saturating_sub(self.waited)
    }
}

impl Everyone {
    /// Waits until all of this I/O has ended. Returns false after `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        self.graces().all(|(grace, ticket)| grace.wait(ticket, until.saturating_duration_since(Instant::now())))
    }
}

impl PoolInner {
    /// Waits until every I/O of a volume that may have used its old map has ended.
    pub(crate) fn wait_for_io(&self, core: &VolumeCore, may_block: &MayBlock) -> Result<(), Status> {
        self.wait_for_ticket(core, core.top.grace().start(), &mut Waited::since(Instant::now()), may_block)
    }

    /// Does the same for several volumes, within the time of one wait (P2). The error names the volume whose I/O has
    /// not ended.
    pub(crate) fn wait_for_io_of<'a>(
        &self,
        cores: impl Iterator<Item = &'a VolumeCore>,
        may_block: &MayBlock,
    ) -> Result<(), (&'a VolumeCore, Status)> {
        let tickets: Vec<_> = cores.map(|core| (core, core.top.grace().start())).collect();
        let mut waited = Waited::since(Instant::now());
        tickets.into_iter().try_for_each(|(core, ticket)| {
            self.wait_for_ticket(core, ticket, &mut waited, may_block).map_err(|status| (core, status))
        })
    }

    fn wait_for_ticket(
        &self,
        core: &VolumeCore,
        ticket: Ticket,
        waited: &mut Waited,
        may_block: &MayBlock,
    ) -> Result<(), Status> {
        loop {
            let left = waited.left(self.longest_wait, Instant::now());
            if core.top.grace().wait(ticket, left.min(LOOK_EVERY)) {
                return Ok(());
            }
            if may_block.is_cancelled() {
                return Err(Status::Canceled);
            }
            if left.is_zero() {
                return Err(Status::Timeout);
            }
        }
    }

    /// Returns the error for a change of a volume whose I/O has not ended in time.
    pub(crate) fn io_goes_on(&self, name: &str, core: &VolumeCore) -> PoolError {
        let holders = core.top.grace().holders();
        let who = match &holders[..] {
            [] => format!("I/O to it did not end within {} seconds", self.longest_wait.as_secs_f64()),
            holders => holders.iter().map(Holder::to_string).collect::<Vec<_>>().join("; "),
        };
        PoolError::Busy {
            what: format!("volume '{name}'"),
            who,
            fix: "Let that thread reap or drain its ring, and try again".into(),
        }
    }

    /// Sleeps until the pool changes, but at most [`LOOK_EVERY`].
    pub(crate) fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if own::has_own() {
            // P1: the lock is not held, because completions on these rings take it.
            drop(state);
            own::complete_own();
            state = self.lock();
        }
        self.sleep(state)
    }

    /// Takes the lock that allows one change of the table at a time.
    pub(crate) fn structural(&self) -> MutexGuard<'_, ()> {
        // P1: the holder of the lock may be waiting for this thread's I/O.
        while own::has_own() {
            match self.structural.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::WouldBlock) => {
                    own::complete_own();
                    std::thread::sleep(NAP);
                }
                Err(TryLockError::Poisoned(_)) => break,
            }
        }
        wait::lock(&self.structural)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_ran_does_not_count() {
        let longest = Duration::from_secs(30);
        let from = Instant::now();
        let mut waited = Waited::since(from);
        assert_eq!(waited.left(longest, from + LOOK_EVERY), longest - LOOK_EVERY);
        // The process was stopped for ten minutes.
        let woken = from + Duration::from_secs(600);
        assert_eq!(waited.left(longest, woken), longest - LOOK_EVERY - LONGEST_PAUSE);
        // The wait still ends, one look at a time.
        let looks = (1..).find(|&looks| waited.left(longest, woken + looks * LOOK_EVERY).is_zero());
        assert_eq!(looks, Some(((longest - LOOK_EVERY - LONGEST_PAUSE).as_millis() / LOOK_EVERY.as_millis()) as u32));
    }
}
