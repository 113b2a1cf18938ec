//! Requests that the export's rate limit holds back until their time, and the reactor's list of their sessions.
//!
//! An NBD connection that is held back has no receive under way that would report a hang-up, so the reactor polls these
//! sockets from time to time.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sheave_base::sync::Arc;

use super::Reactor;
use crate::limit::{Bucket, Waits};

/// Interval between polls for hang-ups.
const HANG_UPS: Duration = Duration::from_secs(1);

/// Tells whether a session's next request has been charged to the export's rate limit, and whether it may begin. The
/// session keeps the request itself.
#[derive(Debug, Default)]
pub(super) enum Charge {
    /// Not charged yet, or there is no such request.
    #[default]
    Due,
    /// Charged at `since`, and held back until `until`.
    HeldBack {
        until: Instant,
        since: Instant,
        /// True if the request is in the reactor's list of those held back.
        told: bool,
        /// Its place in the limit's queue. Dropping it moves the requests behind it up.
        place: Waits,
    },
    /// Charged, and may begin.
    Paid,
}

impl Charge {
    /// Returns true if the limit lets a request of `bytes` bytes begin now. Otherwise the caller keeps the request
    /// until its time.
    #[inline]
    pub(super) fn admits(&mut self, bucket: &Arc<Bucket>, bytes: u64) -> bool {
        let paid = std::mem::take(self);
        matches!(paid, Charge::Paid) || !bucket.limits() || self.charge(bucket, bytes)
    }

    #[cold]
    fn charge(&mut self, bucket: &Arc<Bucket>, bytes: u64) -> bool {
        let now = Instant::now();
        let Some((until, place)) = Bucket::charge(bucket, bytes, now) else { return true };
        *self = Charge::HeldBack { until, since: now, told: false, place };
        false
    }

    /// Returns the time at which the held-back request may begin.
    #[inline]
    pub(super) fn held_back_until(&self) -> Option<Instant> {
        match self {
            Charge::HeldBack { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Returns the same as [`Charge::held_back_until`], but only once for each request.
    fn newly_held_back(&mut self) -> Option<Instant> {
        let Charge::HeldBack { until, told, .. } = self else { return None };
        if std::mem::replace(told, true) { None } else { Some(*until) }
    }

    /// Updates and returns the time of the held-back request, which is earlier if requests before it have gone.
    fn still_held_back(&mut self) -> Option<Instant> {
        let Charge::HeldBack { until, place, .. } = self else { return None };
        *until = place.begins().unwrap_or(*until);
        Some(*until)
    }

    /// Ends the wait of the held-back request. Returns the time for which the request was held back.
    fn let_begin(&mut self, now: Instant) -> Option<Duration> {
        match std::mem::replace(self, Charge::Paid) {
            Charge::HeldBack { since, place, .. } => {
                place.begin();
                Some(now.saturating_duration_since(since))
            }
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Reactor {
    /// Adds a session to the list of those held back, if its request was charged just now.
    pub(super) fn note_held_back(&mut self, number: usize) {
        let charge = self.sessions[number].as_mut().and_then(|session| session.charge());
        if let Some(until) = charge.and_then(Charge::newly_held_back) {
            self.held_back.push((until, number));
            self.hang_ups_at.get_or_insert_with(|| Instant::now() + HANG_UPS);
        }
    }

    /// Begins the requests whose time has come.
    pub(super) fn begin_held_back(&mut self, now: Instant) {
        let due = self.held_back.extract_if(.., |(until, _)| *until <= now).collect();
        self.let_all_begin(due, now);
    }

    /// Begins all held-back requests. Looks at the sessions, not at the list: a request that was charged in this turn
    /// is not in the list yet.
    pub(super) fn begin_all_held_back(&mut self) {
        self.held_back.clear();
        let sessions = self.sessions.iter_mut().enumerate();
        let all = sessions.filter_map(|(number, session)| {
            let until = session.as_mut()?.charge()?.held_back_until()?;
            Some((until, number))
        });
        let all = all.collect();
        self.let_all_begin(all, Instant::now());
    }

    /// Begins requests, the longest held back first, so that clients whose requests are due take turns.
    fn let_all_begin(&mut self, mut due: Vec<(Instant, usize)>, now: Instant) {
        due.sort_unstable_by(|one, other| other.cmp(one));
        for (until, number) in due {
            // The request may have ended with its client, and the number may belong to another one.
            if let Some(Some(session)) = self.sessions.get_mut(number)
                && let Some(charge) = session.charge()
                && charge.held_back_until() == Some(until)
            {
                let waited = charge.let_begin(now);
                waited.into_iter().for_each(|waited| session.throttled(waited));
                // `touched` is a stack: the last session that is pushed proceeds first.
                self.touched.push(number);
            }
        }
    }

    /// Ends connections whose clients have hung up. Updates the times of the others: requests before theirs, of this
    /// reactor or of another one, may be gone.
    pub(super) fn look_for_hang_ups(&mut self, now: Instant) {
        let socket = |&(_, number): &(Instant, usize)| {
            let socket = self.sessions.get(number)?.as_ref()?.socket()?;
            Some((number, PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)))
        };
        let (numbers, mut looks): (Vec<_>, Vec<_>) = self.held_back.iter().filter_map(socket).unzip();
        // A failed poll finds no hang-up; the next one, a second later, will.
        let _ = poll(&mut looks, Some(&Timespec::default()));
        let hung_up = numbers.into_iter().zip(looks).filter(|(_, look)| !look.revents().is_empty());
        for number in hung_up.map(|(number, _)| number).collect::<Vec<_>>() {
            if let Some(Some(session)) = self.sessions.get_mut(number) {
                session.hang_up();
                self.touched.push(number);
            }
        }
        let sessions = &mut self.sessions;
        self.held_back.retain_mut(|(until, number)| {
            let session = sessions.get_mut(*number).and_then(Option::as_mut);
            let still = session.and_then(|session| session.charge()).and_then(Charge::still_held_back);
            still.inspect(|at| *until = *at).is_some()
        });
        self.hang_ups_at = (!self.held_back.is_empty()).then(|| now + HANG_UPS);
    }
}
