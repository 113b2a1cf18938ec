//! A server: its reactors, its start and its end.

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
use crate::limit::Limit;
use crate::listen::Listener;
use crate::reactor::Reactor;
use crate::shared::{Notice, Notices, Order, ServerOptions, Shared};

/// How long taking out an export waits for what its clients have begun.
const TAKE_WAIT: Duration = Duration::from_secs(30);
/// How often it looks whether somebody still has the export.
const TAKE_LOOK: Duration = Duration::from_millis(1);
/// How long the start or end of a trace waits for reactors.
const TRACE_WAIT: Duration = Duration::from_secs(5);

/// A running server. Dropping it ends it.
pub struct Server {
    threads: Vec<(JoinHandle<Result<(), ServeError>>, RingHandle)>,
    /// By reactor.
    recorders: Vec<Arc<FlightRecorder>>,
    /// What counts the I/O of their rings, by reactor.
    queues: Vec<Arc<IoGroup>>,
    shared: Arc<Shared>,
}

impl Server {
    /// Starts the reactors. When this returns, clients are served.
    ///
    /// # Errors
    ///
    /// Why it cannot be; then nothing runs.
    pub fn start(
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
                Ok(reactor) => {
                    // Who started the thread waits for this.
                    let _ = tell.send(Ok((reactor.handle(), reactor.recorder(), reactor.queue())));
                    let served = reactor.run();
                    if let Err(error) = &served {
                        let what = format!("the server ends, for a reactor cannot go on: {error}");
                        (notices.notices)(&Notice::Server(&what));
                        // Nobody serves its clients: the process ends as if somebody had asked for it.
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
                    // The thread has the listeners until its end; a caller that ends at once would leave their paths.
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

    /// The address of an export for clients.
    #[must_use]
    pub fn uri(&self, export: &str) -> Option<String> {
        self.shared.listeners.first().map(|listener| listener.uri(export))
    }

    /// What is served, in order.
    #[must_use]
    pub fn exports(&self) -> Vec<ExportStatus> {
        self.shared.exports.status()
    }

    /// The device under each export, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<ExportDevice> {
        self.shared.exports.devices()
    }

    /// What counts the I/O of each export, in order. Who reads it holds up no export.
    #[must_use]
    pub fn io_groups(&self) -> Vec<(String, Arc<IoGroup>)> {
        self.shared.exports.io_groups()
    }

    /// What counts the I/O of the ring of each reactor. Who reads it holds up no reactor.
    #[must_use]
    pub fn queues(&self) -> &[Arc<IoGroup>] {
        &self.queues
    }

    /// The addresses at which it is served.
    #[must_use]
    pub fn listeners(&self) -> &[Listener] {
        &self.shared.listeners
    }

    /// The slow I/Os that reactors keep, the oldest first, from the numbers on that an earlier reading gave as its next
    /// ones, one for each reactor; those that are not given are 0.
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

    /// From which latency on I/O is slow, whatever is usual.
    #[must_use]
    pub fn slow_limit(&self) -> Duration {
        self.recorders.first().map_or(Duration::MAX, |recorder| Duration::from_nanos(recorder.limit_ns()))
    }

    /// Sets it, for all reactors; they go by it a second later at most.
    pub fn set_slow_limit(&self, limit: Duration) {
        self.recorders.iter().for_each(|recorder| recorder.set_limit(limit));
    }

    /// Who is connected.
    #[must_use]
    pub fn clients(&self) -> Vec<Client> {
        self.shared.clients.list()
    }

    /// Serves one more.
    ///
    /// # Errors
    ///
    /// [`ServeError::ExportExists`].
    pub fn add_export(&self, export: Export) -> Result<(), ServeError> {
        if self.shared.exports.has(&export.name) {
            return Err(ServeError::ExportExists { name: export.name });
        }
        self.shared.exports.put(export);
        Ok(())
    }

    /// Takes an export out: no client gets it any more, with `force` those that have it are dropped, and the server
    /// has let go of its file when this returns. Its name and its place among the others are kept until
    /// [`Server::put_export`] or [`Server::forget_export`].
    ///
    /// # Errors
    ///
    /// [`ServeError::NoExport`]; [`ServeError::ExportInUse`], and then nothing has changed;
    /// [`ServeError::StillEnding`], and then it is out, and this can be called again.
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
        // Somebody may look at it for a report, or list its contexts to a client that has not chosen it.
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
        self.shared.exports.put(export);
    }

    /// Forgets an export that was taken out.
    pub fn forget_export(&self, name: &str) {
        self.shared.exports.forget(name);
    }

    /// Sets which export clients get that name none, from now on; those that have one keep it.
    pub fn set_default_export(&self, default: DefaultExport) {
        self.shared.exports.set_default(default);
    }

    /// Sets who may open exports, from now on. Returns the clients that have one of these exports and could not open it
    /// any more: they keep it.
    pub fn set_allowed(&self, allowed: &BTreeMap<&str, Allow>) -> Vec<Client> {
        self.shared.exports.set_allowed(allowed);
        let may = |client: &Client| {
            let allow = client.export.as_ref().and_then(|export| allowed.get(export.as_str()));
            allow.is_none_or(|allow| allow.admits(&client.who))
        };
        self.clients().into_iter().filter(|client| !may(client)).collect()
    }

    /// Limits how fast an export may be, for all its clients together, from now on; `None` ends that. The limit stays
    /// with the name of the export until that is forgotten.
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

    /// Sets how fast several exports may be, from now on, and returns how many of them there are.
    pub fn set_limits(&self, limits: &BTreeMap<&str, Option<Limit>>) -> usize {
        let found = self.shared.exports.set_limits(limits);
        for reactor in (0..self.threads.len()).filter(|_| found > 0) {
            self.shared.order(reactor, Order::Limits);
        }
        found
    }

    /// Whether each reactor answers within this time.
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

    /// How many reactors there are: [`Server::trace`] takes a trace for each.
    #[must_use]
    pub fn reactors(&self) -> usize {
        self.threads.len()
    }

    /// Has the reactors write the requests that end on devices to these traces, one each in order, and to none where
    /// there are too few. They do when this returns; false: one that is busy does so later.
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

    /// Drops a client.
    ///
    /// # Errors
    ///
    /// [`ServeError::NoClient`].
    pub fn disconnect(&self, client: u64) -> Result<(), ServeError> {
        let reactor = self.shared.clients.reactor_of(client).ok_or(ServeError::NoClient { id: client })?;
        self.shared.order(reactor, Order::Disconnect { client });
        Ok(())
    }

    /// Ends it: takes no more clients and no more requests, finishes those under way, and waits for all of that. The
    /// exports' files are used by nobody when this returns.
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
        // All of them have ended before one is told of.
        ends.into_iter().try_for_each(|end| end.unwrap_or(Err(ServeError::Panicked)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Who wants to know calls `stop`.
        let _ = self.end();
    }
}
