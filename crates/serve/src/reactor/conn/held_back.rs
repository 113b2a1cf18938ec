//! Requests that the export's rate limit holds back until their time, and the reactor's list of their connections.
//!
//! A connection that is held back has no receive under way that would report a hang-up, so the reactor polls these
//! sockets from time to time.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sheave_nbd::session::{Command, Request};

use super::{Charge, Conn, Ending, Stage};
use crate::limit::Bucket;
use crate::reactor::Reactor;

/// Interval between polls for hang-ups.
const HANG_UPS: Duration = Duration::from_secs(1);

impl Conn {
    /// Returns true if the export's limit lets a request begin now. Otherwise keeps the request until its time.
    pub(super) fn admits(&mut self, request: &Request) -> bool {
        let Stage::Transmission(chosen) = &self.life.stage else { return true };
        let paid = std::mem::replace(&mut self.charge, Charge::Due);
        if matches!(paid, Charge::Paid) || !chosen.bucket.limits() {
            return true;
        }
        let now = Instant::now();
        let bytes = if matches!(request.command, Command::Read | Command::Write) { request.len } else { 0 };
        let Some((until, place)) = Bucket::charge(&chosen.bucket, bytes, now) else { return true };
        self.charge = Charge::HeldBack { until, since: now, told: false, place };
        self.life.deferred = Some(*request);
        false
    }

    /// Returns the time at which the held-back request may begin.
    pub(in crate::reactor) fn held_back_until(&self) -> Option<Instant> {
        match self.charge {
            Charge::HeldBack { until, .. } if self.ending == Ending::No => Some(until),
            _ => None,
        }
    }

    /// Returns the same as [`Conn::held_back_until`], but only once for each request.
    pub(in crate::reactor) fn newly_held_back(&mut self) -> Option<Instant> {
        let until = self.held_back_until()?;
        let Charge::HeldBack { told, .. } = &mut self.charge else { return None };
        if std::mem::replace(told, true) { None } else { Some(until) }
    }

    /// Updates and returns the time of the held-back request, which is earlier if clients before it have gone.
    fn still_held_back(&mut self) -> Option<Instant> {
        if let Charge::HeldBack { until, place, .. } = &mut self.charge {
            *until = place.begins().unwrap_or(*until);
        }
        self.held_back_until()
    }

    /// Ends the wait of the held-back request.
    fn let_begin(&mut self, now: Instant) {
        match std::mem::replace(&mut self.charge, Charge::Paid) {
            Charge::HeldBack { since, place, .. } => {
                place.begin();
                self.tally.throttled(now.saturating_duration_since(since));
            }
            other => self.charge = other,
        }
    }
}

impl Reactor {
    /// Adds a connection to the list of those held back.
    pub(in crate::reactor) fn hold_back(&mut self, until: Instant, number: usize) {
        self.held_back.push((until, number));
        self.hang_ups_at.get_or_insert_with(|| Instant::now() + HANG_UPS);
    }

    /// Begins the requests whose time has come.
    pub(in crate::reactor) fn begin_held_back(&mut self, now: Instant) {
        let due = self.held_back.extract_if(.., |(until, _)| *until <= now).collect();
        self.let_all_begin(due, now);
    }

    /// Begins all held-back requests. Looks at the connections, not at the list: a request that was charged in this
    /// turn is not in the list yet.
    pub(in crate::reactor) fn begin_all_held_back(&mut self) {
        self.held_back.clear();
        let conns = self.conns.iter().enumerate();
        let all = conns.filter_map(|(number, conn)| Some((conn.as_ref()?.held_back_until()?, number))).collect();
        self.let_all_begin(all, Instant::now());
    }

    /// Begins requests, the longest held back first, so that clients whose requests are due take turns.
    fn let_all_begin(&mut self, mut due: Vec<(Instant, usize)>, now: Instant) {
        due.sort_unstable_by(|one, other| other.cmp(one));
        for (until, number) in due {
            // The request may have ended with its client, and the number may belong to another one.
            if let Some(Some(conn)) = self.conns.get_mut(number)
                && conn.held_back_until() == Some(until)
            {
                conn.let_begin(now);
                // `touched` is a stack: the last connection that is pushed proceeds first.
                self.touched.push(number);
            }
        }
    }

    /// Ends connections whose clients have hung up. Updates the times of the others: requests before theirs, of this
    /// reactor or of another one, may be gone.
    pub(in crate::reactor) fn look_for_hang_ups(&mut self, now: Instant) {
        let socket = |&(_, number): &(Instant, usize)| Some((number, self.conns.get(number)?.as_ref()?.fd.as_fd()));
        let look = |(number, socket)| (number, PollFd::from_borrowed_fd(socket, PollFlags::RDHUP));
        let (numbers, mut looks): (Vec<_>, Vec<_>) = self.held_back.iter().filter_map(socket).map(look).unzip();
        // A failed poll finds no hang-up; the next one, a second later, will.
        let _ = poll(&mut looks, Some(&Timespec::default()));
        let hung_up = numbers.into_iter().zip(looks).filter(|(_, look)| !look.revents().is_empty());
        for number in hung_up.map(|(number, _)| number).collect::<Vec<_>>() {
            if let Some(Some(conn)) = self.conns.get_mut(number) {
                conn.hang_up();
                self.touched.push(number);
            }
        }
        let conns = &mut self.conns;
        self.held_back.retain_mut(|(until, number)| {
            let still = conns.get_mut(*number).and_then(|conn| conn.as_mut()?.still_held_back());
            still.inspect(|at| *until = *at).is_some()
        });
        self.hang_ups_at = (!self.held_back.is_empty()).then(|| now + HANG_UPS);
    }
}
