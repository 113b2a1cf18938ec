//! A thread that runs a task periodically, until it is stopped.

use std::io;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// The thread.
pub(crate) struct Ticker {
    thread: JoinHandle<()>,
    /// Closing it stops the thread.
    ends: UnixStream,
}

impl Ticker {
    /// Runs `work` at once, and again after each `pause`.
    pub(crate) fn start(name: &str, pause: Duration, mut work: impl FnMut() + Send + 'static) -> io::Result<Ticker> {
        let (ends, told) = UnixStream::pair()?;
        let pause = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        let run = move || {
            loop {
                work();
                // Readable means that the other end was closed.
                if matches!(rustix::event::poll(&mut [PollFd::new(&told, PollFlags::IN)], Some(&pause)), Ok(1..)) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Ticker { thread, ends })
    }

    /// Stops the thread, after waiting for the task in progress.
    pub(crate) fn stop(self) {
        drop(self.ends);
        // A panic of the thread was already reported.
        let _ = self.thread.join();
    }
}
