//! Places for clients: who gives way when all are taken and others wait.
//!
//! Nothing is accepted while all places are taken. A client that has chosen its export, and has had nothing to do for
//! [`ServerOptions::idle`](crate::ServerOptions::idle) since others wait, goes for the next; among those that could,
//! one of the peer that has most places. Who asks for something, even if seldom, stays.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Reactor;
use super::movement::Idle;
use crate::shares::Peer;

/// How often it is looked who waits for a place, while all are taken; and when one has given way.
const DOOR: Duration = Duration::from_secs(1);
const DOOR_AGAIN: Duration = Duration::from_millis(20);

impl Reactor {
    /// Looks from time to time who waits, while all places are taken.
    pub(super) fn watch_the_door(&mut self, is_full: bool) {
        if !is_full || self.ends_at.is_some() {
            self.door_at = None;
        } else if self.door_at.is_none() {
            // Not at once: who was silent before others came is given time from now on.
            let period = DOOR.min(self.shared.options.idle / 2).max(DOOR_AGAIN);
            self.door_at = Some(Instant::now() + period);
        }
    }

    /// Lets a client that has nothing to do give way, when somebody waits for its place.
    pub(super) fn look_at_the_door(&mut self, now: Instant) {
        self.door_at = None;
        let listeners = self.shared.listeners.iter();
        let mut looks: Vec<_> = listeners.map(|listener| PollFd::new(listener.socket(), PollFlags::IN)).collect();
        // Where the kernel cannot say now, it is asked the next time.
        let _ = poll(&mut looks, Some(&Timespec::default()));
        if looks.iter().all(|look| look.revents().is_empty()) {
            self.idle.clear();
            return;
        }
        self.idle.resize_with(self.conns.len(), Idle::default);
        let mut places = BTreeMap::<Peer, usize>::new();
        self.conns.iter().flatten().for_each(|conn| *places.entry(conn.peer()).or_default() += 1);
        let mut first = None;
        for (conn, idle) in self.conns.iter().zip(&mut self.idle) {
            let Some(conn) = conn else {
                *idle = Idle::default();
                continue;
            };
            let since = idle.look(conn.mark(), now);
            let Some(since) = since.filter(|since| *since + self.shared.options.idle <= now) else { continue };
            // Most places first, then the longest idle.
            let order = (usize::MAX - places[&conn.peer()], since, conn.number());
            first = Some(first.map_or(order, |first| order.min(first)));
        }
        if let Some((_, _, number)) = first
            && let Some(Some(conn)) = self.conns.get_mut(number)
        {
            conn.drop_client("others wait for its place, and it has nothing to do");
            self.idle[number] = Idle::default();
            self.later.push(number);
        }
    }
}
