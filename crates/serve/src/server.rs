//! A server: its reactors, its start and its end.

use std::sync::mpsc;
use std::thread::JoinHandle;

use sheave_base::sync::Arc;
use sheave_uring::{IoWq, RingHandle};

use crate::error::ServeError;
use crate::export::Exports;
use crate::listen::Listener;
use crate::reactor::Reactor;
use crate::shared::{Notices, ServerOptions, Shared};

/// A running server. Dropping it ends it.
pub struct Server {
    threads: Vec<(JoinHandle<()>, RingHandle)>,
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
        let mut server = Server { threads: Vec::new(), shared: Arc::new(shared) };
        for number in 0..reactors {
            let (shared, io_wq) = (server.shared.clone(), io_wq.clone());
            let (tell, told) = mpsc::sync_channel(1);
            let run = move || match Reactor::new(shared, &io_wq) {
                Ok(reactor) => {
                    // Who started the thread waits for this.
                    let _ = tell.send(Ok(reactor.handle()));
                    reactor.run();
                }
                Err(error) => _ = tell.send(Err(error)),
            };
            let builder = std::thread::Builder::new().name(format!("sheave-serve-{number}"));
            let thread = builder.spawn(run).map_err(ServeError::Thread)?;
            let handle = told.recv().unwrap_or(Err(ServeError::Panicked))?;
            server.threads.push((thread, handle));
        }
        Ok(server)
    }

    /// The address of an export for clients.
    #[must_use]
    pub fn uri(&self, export: &str) -> Option<String> {
        self.shared.listeners.first().map(|listener| listener.uri(export))
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
        let ends = self.threads.drain(..).map(|(thread, _)| thread.join());
        let panicked = ends.filter(Result::is_err).count();
        if panicked == 0 { Ok(()) } else { Err(ServeError::Panicked) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Who wants to know calls `stop`.
        let _ = self.end();
    }
}
