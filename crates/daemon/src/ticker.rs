//! A thread that does something now and then, until it is told to end.

use std::io;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// The thread.
pub(crate) struct Ticker {
    thread: JoinHandle<()>,
    /// Closed to end it.
    ends: UnixStream,
}

impl Ticker {
    /// Does it at once, and again after each pause.
    pub(crate) fn start(name: &str, pause: Duration, mut work: impl FnMut() + Send + 'static) -> io::Result<Ticker> {
        let (ends, told) = UnixStream::pair()?;
        let pause = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        let run = move || {
            loop {
                work();
                // Readable: the other end is closed.
                if matches!(rustix::event::poll(&mut [PollFd::new(&told, PollFlags::IN)], Some(&pause)), Ok(1..)) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Ticker { thread, ends })
    }

    /// Ends it; what it does is done when this returns.
    pub(crate) fn stop(self) {
        drop(self.ends);
        // A thread that has panicked has said so.
        let _ = self.thread.join();
    }
}
