//! Requests that a limit of the export holds back until their time has come.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use sheave_nbd::session::{Command, Request};

use super::{Charge, Conn, Ending, Stage};
use crate::limit::Bucket;

impl Conn {
    /// Whether the limit of the export lets a request begin now; keeps it otherwise, until its time has come.
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

    /// When the request that a limit holds back may begin.
    pub(in crate::reactor) fn held_back_until(&self) -> Option<Instant> {
        match self.charge {
            Charge::HeldBack { until, .. } if self.ending == Ending::No => Some(until),
            _ => None,
        }
    }

    /// The same, once for each request.
    pub(in crate::reactor) fn newly_held_back(&mut self) -> Option<Instant> {
        let until = self.held_back_until()?;
        let Charge::HeldBack { told, .. } = &mut self.charge else { return None };
        if std::mem::replace(told, true) { None } else { Some(until) }
    }

    /// The same, when others that were before it may have gone.
    pub(in crate::reactor) fn still_held_back(&mut self) -> Option<Instant> {
        if let Charge::HeldBack { until, place, .. } = &mut self.charge {
            *until = place.begins().unwrap_or(*until);
        }
        self.held_back_until()
    }

    /// The request that a limit holds back may begin.
    pub(in crate::reactor) fn let_begin(&mut self, now: Instant) {
        match std::mem::replace(&mut self.charge, Charge::Paid) {
            Charge::HeldBack { since, place, .. } => {
                place.begin();
                self.tally.throttled(now.saturating_duration_since(since));
            }
            other => self.charge = other,
        }
    }

    /// Its socket, to see whether the client has hung up: nothing is received from it while it is held back.
    pub(in crate::reactor) fn socket(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
