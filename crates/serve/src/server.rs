//! A server: its reactors, its start and its end.

mod carried;
mod handover;

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sheave_base::sync::Arc;
use sheave_base::trace::writer::TraceWriter;
use sheave_iomap::io_stats::IoGroup;
use sheave_iomap::slow::{FlightRecorder, SlowIo};
use sheave_uring::{IoWq, RingHandle};

use crate::allow::Allow;
use crate::clients::Client;
use crate::error::ServeError;
use crate::export::{DefaultExport, Export, ExportDevice, ExportStatus, Exports, SlowReading, SlowRequest};
use crate::handover::Parcel;
use crate::limit::Limit;
use crate::listen::Listener;
use crate::reactor::Reactor;
use crate::shared::{Notice, Notices, Order, ServerOptions, Shared};

/// Time that taking out an export waits for requests of its clients.
const TAKE_WAIT: Duration = Duration::from_secs(30);
/// Interval between looks whether the export is still referenced.
const TAKE_LOOK: Duration = Duration::from_millis(1);
/// Time that the start or the end of a trace waits for reactors.
const TRACE_WAIT: Duration = Duration::from_secs(5);

/// A running server. Dropping it ends the server.
pub struct Server {
    threads: Vec<(JoinHandle<Result<(), ServeError>>, RingHandle)>,
    /// Recorders of slow I/Os, by reactor.
    recorders: Vec<Arc<FlightRecorder>>,
    /// I/O counters of the rings, by reactor.
    queues: Vec<Arc<IoGroup>>,
    shared: Arc<Shared>,
}

impl Server {
    /// Starts the reactors. When this returns, clients are served.
    ///
    /// # Errors
    ///
    /// Fails if a ring or a thread cannot be made. Nothing runs then.
    pub fn start(
        exports: Exports,
        listeners: Vec<Listener>,
        options: ServerOptions,
        notices: Notices,
    ) -> Result<Server, ServeError> {
        Server::start_with(exports, listeners, options, notices, Parcel::default())
    }

    /// Starts the reactors, which go on with the clients of another process.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub fn start_with(
        exports: Exports,
        listeners: Vec<Listener>,
        options: ServerOptions,
        notices: Notices,
        parcel: Parcel,
    ) -> Result<Server, ServeError> {
        let server = Server::start_suspended(exports, listeners, options, notices)?;
        server.go_on_with(parcel);
        Ok(server)
    }

    /// Starts the reactors. They serve nobody until [`Server::go_on_with`] is called.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub fn start_suspended(
        exports: Exports,
        listeners: Vec<Listener>,
        options: ServerOptions,
        notices: Notices,
    ) -> Result<Server, ServeError> {
        let io_wq = IoWq::builder().build().map_err(ServeError::Ring)?;
        let reactors = options.reactors.max(1);
        let shared = Shared::new(exports, listeners, options, notices);
        let mut server =
            Server { threads: Vec::new(), recorders: Vec::new(), queues: Vec::new(), shared: Arc::new(shared) };
        for number in 0..reactors {
            let (shared, io_wq) = (server.shared.clone(), io_wq.clone());
            let notices = shared.clone();
            let (tell, told) = mpsc::sync_channel(1);
            let run = move || match Reactor::new(number, shared, &io_wq) {
                Ok(mut reactor) => {
                    reactor.begin_suspended();
                    // The thread that called `start` waits for this, so sending cannot fail.
                    let _ = tell.send(Ok((reactor.handle(), reactor.recorder(), reactor.queue())));
                    let served = reactor.run();
                    if let Err(error) = &served {
                        let what = format!("the server ends, for a reactor cannot go on: {error}");
                        (notices.notices)(&Notice::Server(&what));
                        // The clients of this reactor are not served any more, so the process ends as it does on a
                        // SIGTERM from outside.
                        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
                    }
                    served
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    Ok(())
                }
            };
            let builder = std::thread::Builder::new().name(format!("sheave-serve-{number}"));
            let thread = builder.spawn(run).map_err(ServeError::Thread)?;
            let (handle, recorder, queue) = match told.recv().unwrap_or(Err(ServeError::Panicked)) {
                Ok(begun) => begun,
                Err(error) => {
                    // The thread owns a reference to the listeners until its end. A caller that exits at once would
                    // leave their paths behind.
                    let _ = thread.join();
                    return Err(error);
                }
            };
            server.threads.push((thread, handle));
            server.recorders.extend(recorder);
            server.queues.extend(queue);
        }
        Ok(server)
    }

    /// Returns the URI of an export for clients; `None` without a listener.
    #[must_use]
    pub fn uri(&self, export: &str) -> Option<String> {
        self.shared.listeners.first().map(|listener| listener.uri(export))
    }

    /// Returns the status of each export, in order.
    #[must_use]
    pub fn exports(&self) -> Vec<ExportStatus> {
        self.shared.exports.status()
    }

    /// Returns the device under each export, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<ExportDevice> {
        self.shared.exports.devices()
    }

    /// Returns the I/O counters of each export, in order. Holding them does not keep an export from being taken out.
    #[must_use]
    pub fn io_groups(&self) -> Vec<(String, Arc<IoGroup>)> {
        self.shared.exports.io_groups()
    }

    /// Returns the I/O counters of each reactor's ring. Reading them does not hold up a reactor.
    #[must_use]
    pub fn queues(&self) -> &[Arc<IoGroup>] {
        &self.queues
    }

    /// Returns the sockets that the server listens on.
    #[must_use]
    pub fn listeners(&self) -> &[Listener] {
        &self.shared.listeners
    }

    /// Returns the slow I/Os that reactors have recorded, the oldest first. `from` has one number per reactor, from the
    /// `SlowReading::next` of an earlier reading; missing ones are 0.
    #[must_use]
    pub fn slow_ios(&self, from: &[u64]) -> SlowReading {
        let mut reading = SlowReading::default();
        for (reactor, recorder) in self.recorders.iter().enumerate() {
            let read = recorder.read(from.get(reactor).copied().unwrap_or(0));
            reading.next.push(read.next);
            reading.lost += read.lost;
            let slow = |io: SlowIo| SlowRequest { reactor, export: None, age: recorder.age(&io), io };
            reading.slow.extend(read.ios.into_iter().map(slow));
        }
        reading.slow.sort_by_key(|slow| slow.io.ended);
        self.shared.exports.name_slow(&mut reading.slow);
        reading
    }

    /// Returns the latency above which an I/O is recorded as slow, even if such latencies are usual.
    #[must_use]
    pub fn slow_limit(&self) -> Duration {
        self.recorders.first().map_or(Duration::MAX, |recorder| Duration::from_nanos(recorder.limit_ns()))
    }

    /// Sets that latency for all reactors, which use it within a second.
    pub fn set_slow_limit(&self, limit: Duration) {
        self.recorders.iter().for_each(|recorder| recorder.set_limit(limit));
    }

    /// Returns the connected clients.
    #[must_use]
    pub fn clients(&self) -> Vec<Client> {
        self.shared.clients.list()
    }

    /// Adds an export.
    ///
    /// # Errors
    ///
    /// [`ServeError::ExportExists`].
    pub fn add_export(&self, export: Export) -> Result<(), ServeError> {
        if self.shared.exports.has(&export.name) {
            return Err(ServeError::ExportExists { name: export.name });
        }
        self.serve_device(self.shared.exports.put(export));
        Ok(())
    }

    /// Takes an export out: no client gets it any more, its clients are dropped with `force`, and its file is closed by
    /// the server when this returns. Its name and its place among the others are kept until [`Server::put_export`] or
    /// [`Server::forget_export`].
    ///
    /// # Errors
    ///
    /// [`ServeError::NoExport`]. [`ServeError::ExportInUse`]: nothing has changed. [`ServeError::StillEnding`]: the
    /// export is out, and this can be called again.
    pub fn take_export(&self, name: &str, force: bool) -> Result<(), ServeError> {
        let (export, gone) = self.shared.exports.take(name, force)?;
        let (done, all) = mpsc::sync_channel(self.threads.len());
        for reactor in 0..self.threads.len() {
            self.shared.order(reactor, Order::Close { export, done: done.clone() });
        }
        let until = Instant::now() + TAKE_WAIT;
        for _ in &self.threads {
            let left = until.saturating_duration_since(Instant::now());
            all.recv_timeout(left).map_err(|_| ServeError::StillEnding { name: name.into() })?;
        }
        // A report may be using it, or a client that has not chosen it may be listing its contexts.
        while !gone.is_gone() {
            if Instant::now() >= until {
                return Err(ServeError::StillEnding { name: name.into() });
            }
            std::thread::sleep(TAKE_LOOK);
        }
        Ok(())
    }

    /// Puts an export that was taken out back in its place.
    pub fn put_export(&self, export: Export) {
        self.serve_device(self.shared.exports.put(export));
    }

    /// Tells the virtual machine that has attached an export that the size of the export has changed. Called after the
    /// size of its backend has changed; NBD clients learn of it when they connect.
    pub fn size_changed(&self, export: &str) {
        if let Some(export) = self.shared.exports.id_of(export) {
            self.shared.order(self.shared.reactor_for(export, 0), Order::Resized { export });
        }
    }

    /// Lets a reactor serve the vhost-user device of an export, if it has one.
    fn serve_device(&self, export: Option<u32>) {
        if let Some(export) = export {
            self.shared.serve_device(export, None);
        }
    }

    /// Removes the name and the place of an export that was taken out.
    pub fn forget_export(&self, name: &str) {
        self.shared.exports.forget(name);
    }

    /// Sets the default export, for clients that name none, from now on. Clients that have an export keep it.
    pub fn set_default_export(&self, default: DefaultExport) {
        self.shared.exports.set_default(default);
    }

    /// Sets the rules of exports, from now on. Returns the clients that have one of these exports and could no longer
    /// open it; they keep it.
    pub fn set_allowed(&self, allowed: &BTreeMap<&str, Allow>) -> Vec<Client> {
        self.shared.exports.set_allowed(allowed);
        let may = |client: &Client| {
            let allow = client.export.as_ref().and_then(|export| allowed.get(export.as_str()));
            allow.is_none_or(|allow| allow.admits(&client.who))
        };
        self.clients().into_iter().filter(|client| !may(client)).collect()
    }

    /// Sets the rate limit of an export, for all its clients together, from now on; `None` removes it. The limit stays
    /// with the name of the export until the name is forgotten.
    ///
    /// # Errors
    ///
    /// [`ServeError::NoExport`].
    pub fn set_limit(&self, export: &str, limit: Option<Limit>) -> Result<(), ServeError> {
        match self.set_limits(&BTreeMap::from([(export, limit)])) {
            0 => Err(ServeError::NoExport { name: export.into() }),
            _ => Ok(()),
        }
    }

    /// Sets the rate limits of several exports, from now on. Returns the number of names that were found.
    pub fn set_limits(&self, limits: &BTreeMap<&str, Option<Limit>>) -> usize {
        let found = self.shared.exports.set_limits(limits);
        for reactor in (0..self.threads.len()).filter(|_| found > 0) {
            self.shared.order(reactor, Order::Limits);
        }
        found
    }

    /// Returns true if each reactor answers within this time.
    #[must_use]
    pub fn is_alive(&self, within: Duration) -> bool {
        let (done, all) = mpsc::sync_channel(self.threads.len());
        for reactor in 0..self.threads.len() {
            self.shared.order(reactor, Order::Ping { done: done.clone() });
        }
        let until = Instant::now() + within;
        let answers = |_: &_| all.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok();
        self.threads.iter().all(answers)
    }

    /// Returns the number of reactors: [`Server::trace`] takes a trace for each.
    #[must_use]
    pub fn reactors(&self) -> usize {
        self.threads.len()
    }

    /// Lets reactors write the requests that end on devices to these traces, one per reactor in order; a reactor
    /// without one writes none. Returns true if all reactors have switched; a busy one switches later.
    #[must_use]
    pub fn trace(&self, traces: Vec<TraceWriter>) -> bool {
        let mut traces = traces.into_iter();
        let (done, all) = mpsc::sync_channel(self.threads.len());
        for reactor in 0..self.threads.len() {
            self.shared.order(reactor, Order::Trace { to: traces.next(), done: done.clone() });
        }
        let until = Instant::now() + TRACE_WAIT;
        let answers = |_: &_| all.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok();
        self.threads.iter().all(answers)
    }

    /// Disconnects a client.
    ///
    /// # Errors
    ///
    /// [`ServeError::NoClient`].
    pub fn disconnect(&self, client: u64) -> Result<(), ServeError> {
        let reactor = self.shared.clients.reactor_of(client).ok_or(ServeError::NoClient { id: client })?;
        self.shared.order(reactor, Order::Disconnect { client });
        Ok(())
    }

    /// Ends the server: takes no more clients and no more requests, finishes those under way, and waits for all of
    /// that. No file of an export is in use when this returns.
    ///
    /// # Errors
    ///
    /// [`ServeError::Panicked`].
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServeError> {
        self.shared.end();
        self.threads.iter().for_each(|(_, handle)| handle.wake());
        let ends: Vec<_> = self.threads.drain(..).map(|(thread, _)| thread.join()).collect();
        // All threads are joined before the first error is returned.
        ends.into_iter().try_for_each(|end| end.unwrap_or(Err(ServeError::Panicked)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The result is available from `stop` only.
        let _ = self.end();
    }
}
