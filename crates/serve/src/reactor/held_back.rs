//! The connections of a reactor with a request that a limit holds back.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Reactor;

/// How often those that are held back are asked whether they have hung up.
const HANG_UPS: Duration = Duration::from_secs(1);

impl Reactor {
    /// A connection has a request that is held back.
    pub(super) fn hold_back(&mut self, until: Instant, number: usize) {
        self.held_back.push((until, number));
        self.hang_ups_at.get_or_insert_with(|| Instant::now() + HANG_UPS);
    }

    /// Lets requests begin whose time has come.
    pub(super) fn begin_held_back(&mut self, now: Instant) {
        let due = self.held_back.extract_if(.., |(until, _)| *until <= now).collect();
        self.let_begin(due, now);
    }

    /// Lets all requests begin. The connections are asked: a request that was charged in this turn is not in the list
    /// yet.
    pub(super) fn begin_all_held_back(&mut self) {
        self.held_back.clear();
        let conns = self.conns.iter().enumerate();
        let all = conns.filter_map(|(number, conn)| Some((conn.as_ref()?.held_back_until()?, number))).collect();
        self.let_begin(all, Instant::now());
    }

    /// Who was held back first is the first to go on, so that what has come due goes round among the clients.
    fn let_begin(&mut self, mut due: Vec<(Instant, usize)>, now: Instant) {
        due.sort_unstable_by(|one, other| other.cmp(one));
        for (until, number) in due {
            // It may have ended meanwhile.
            if let Some(Some(conn)) = self.conns.get_mut(number)
                && conn.held_back_until() == Some(until)
            {
                conn.let_begin(now);
                // The last that is pushed is the first that goes on.
                self.touched.push(number);
            }
        }
    }

    /// Ends the connections whose clients have hung up, which nothing else tells of those that are not received from;
    /// and looks who has moved up, as clients of this reactor or of another one have ended.
    pub(super) fn look_for_hang_ups(&mut self, now: Instant) {
        let socket = |&(_, number): &(Instant, usize)| Some((number, self.conns.get(number)?.as_ref()?.socket()));
        let look = |(number, socket)| (number, PollFd::from_borrowed_fd(socket, PollFlags::RDHUP));
        let (numbers, mut looks): (Vec<_>, Vec<_>) = self.held_back.iter().filter_map(socket).map(look).unzip();
        // Where the kernel cannot say now, it is asked the next time.
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
