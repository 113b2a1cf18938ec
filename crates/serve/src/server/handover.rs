//! The server's part of a handover: suspending it, taking its clients out, and going on with those of another process.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use super::Server;
use crate::clients::origin;
use crate::counts::IoCounts;
use crate::error::ServeError;
use crate::handover::{Fds, Moved, MovedStage, Parcel, StageState, time_of};
use crate::listen::Address;
use crate::reactor::suspend::Coming;
use crate::reactor::vhost::Restored;
use crate::shared::{Notice, Order};

/// Time for which replies are sent to clients that take none, before the rest is handed over.
const REPLIES: Duration = Duration::from_millis(20);
/// Time that a reactor has to resume, or to give its clients away: it does not wait for anybody then.
const ANSWER: Duration = Duration::from_secs(5);

impl Server {
    /// Returns the number of clients that use TLS, which cannot be handed over: their connections end.
    #[must_use]
    pub fn clients_with_tls(&self) -> usize {
        self.clients().iter().filter(|client| client.peer.contains(", TLS")).count()
    }

    /// Accepts no more clients and begins no more requests, and waits, at most for `within`, until none is under way.
    ///
    /// # Errors
    ///
    /// [`ServeError::Busy`]: requests have not ended in time. The server goes on as if nothing had happened.
    pub fn suspend(&self, within: Duration) -> Result<(), ServeError> {
        let (done, all) = mpsc::sync_channel(self.threads.len());
        let now = Instant::now();
        for reactor in 0..self.threads.len() {
            self.shared.order(reactor, Order::Suspend { done: done.clone(), cut_at: now + REPLIES.min(within / 2) });
        }
        for _ in &self.threads {
            if all.recv_timeout((now + within).saturating_duration_since(Instant::now())).is_err() {
                let what = match self.resume() {
                    busy if busy.is_empty() => String::from("the last one has just ended"),
                    busy => busy.join("; "),
                };
                return Err(ServeError::Busy { what });
            }
        }
        Ok(())
    }

    /// Goes on as before. Returns what was under way.
    pub fn resume(&self) -> Vec<String> {
        let (busy, all) = mpsc::sync_channel(self.threads.len());
        for reactor in 0..self.threads.len() {
            self.shared.order(reactor, Order::Resume { busy: busy.clone() });
        }
        self.threads.iter().filter_map(|_| all.recv_timeout(ANSWER).ok()).flatten().collect()
    }

    /// Takes all clients out of a suspended server, and ends it. No file of an export is in use when this returns.
    ///
    /// # Errors
    ///
    /// [`ServeError::Panicked`]; [`ServeError::Handover`] if there is no free descriptor. Clients are lost then.
    pub fn take_out(mut self) -> Result<Parcel, ServeError> {
        let (moved, all) = mpsc::sync_channel(self.threads.len());
        for reactor in 0..self.threads.len() {
            self.shared.order(reactor, Order::TakeOut { moved: moved.clone() });
        }
        let mut parcel = Parcel::default();
        let mut taken = Vec::new();
        for _ in &self.threads {
            taken.extend(all.recv_timeout(ANSWER).map_err(|_| ServeError::Panicked)?);
        }
        for client in taken {
            let known = self.shared.clients.get(client.id);
            let known = known.map_or((SystemTime::now(), 0, IoCounts::default()), |known| {
                (known.since, known.reactor, known.counts)
            });
            client.pack(known, &mut parcel).map_err(ServeError::Handover)?;
        }
        parcel.state.last_client = self.shared.clients.last();
        self.end()?;
        parcel.state.exports = self.shared.exports.kept_counts();
        self.pack_statistics(&mut parcel.state);
        Ok(parcel)
    }

    /// Begins to serve after [`Server::start_suspended`], and goes on with the clients of another process.
    pub fn go_on_with(&self, parcel: Parcel) {
        let Parcel { state, fds, bytes } = parcel;
        let (mut fds, parcel) = (Fds::new(fds), Parcel { state, fds: Vec::new(), bytes });
        self.shared.exports.add_counts(&parcel.state.exports);
        self.unpack_statistics(&parcel.state);
        self.shared.clients.go_on_after(parcel.state.last_client);
        let (mut fronts, mut numbers) = (Vec::new(), BTreeSet::new());
        for client in &parcel.state.clients {
            let id = client.id;
            let moved = Moved::unpack(client, &parcel, &mut fds).and_then(|moved| {
                let is_new = id == 0 || id <= parcel.state.last_client && numbers.insert(id);
                if is_new { Ok(moved) } else { Err("another client has its number".into()) }
            });
            if let Err(why) = moved.and_then(|moved| self.go_on_with_client(moved, client, &mut fronts)) {
                let what = format!("the connection of client {id} was not taken over: {why}");
                (self.shared.notices)(&Notice::Server(&what));
            }
        }
        self.resume();
        for export in self.shared.exports.with_devices() {
            let at = fronts.iter().position(|(of, _)| *of == export);
            let front = at.map(|at| Box::new(fronts.swap_remove(at).1));
            self.shared.serve_device(export, front);
        }
        for (_, Restored { known, .. }) in fronts {
            let what = format!("the front-end {} was not taken over: its device is gone", known.id);
            (self.shared.notices)(&Notice::Server(&what));
            self.shared.clients.left(known.id);
        }
    }

    fn go_on_with_client(
        &self,
        moved: Moved,
        client: &crate::handover::ClientState,
        fronts: &mut Vec<(u32, Restored)>,
    ) -> Result<(), String> {
        let Moved { id, fd, listener, unread, unsent, stage } = moved;
        let (since, origin) = (time_of(client.since), origin(&fd));
        let at: Vec<Address> = listener.parse().into_iter().collect();
        let is_at = |one: &crate::Listener| one.asked_for().to_string() == listener;
        let listener = self.shared.listeners.iter().position(is_at);
        let row = (id, since, &client.counts);
        match stage {
            // The listener decides whether such a client has to use TLS.
            MovedStage::Nbd(StageState::New | StageState::Handshake { .. }) if listener.is_none() => {
                return Err("nobody listens at its address any more".into());
            }
            // A client that had no place has no number either.
            MovedStage::Nbd(StageState::New) if id == 0 => {
                let (reactor, arrival) = self.shared.clients.came(0, fd, listener.unwrap_or_default(), at);
                self.shared.order(reactor, Order::Come(arrival));
            }
            _ if id == 0 => return Err("it has no number".into()),
            MovedStage::Nbd(stage) => {
                let at = listener.map_or(at, |listener| self.shared.listeners[listener].names());
                // The same reactor as before: a ring has room for few devices, and each client needs the one of its
                // export.
                let reactor = client.reactor % self.threads.len().max(1);
                let known = self.shared.clients.restored(row, origin, at, reactor, None);
                let coming = Coming { fd, known, listener, unread, unsent, stage };
                self.shared.order(reactor, Order::GoOn(Box::new(coming)));
            }
            MovedStage::FrontEnd { export, life, fds, resized, spoke } => {
                let number = self.shared.exports.id_of(&export).unwrap_or(u32::MAX);
                let (reactor, queues) = (self.shared.reactor_for(number, 0), life.queues.len());
                let known = self.shared.clients.restored(row, origin, at, reactor, Some(queues));
                let restored = Restored { socket: fd, known, life, unread: (unread, fds), resized, spoke };
                fronts.push((number, restored));
            }
        }
        Ok(())
    }
}
