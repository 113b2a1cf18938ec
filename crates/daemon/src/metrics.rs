//! `/metrics`: counters and gauges of the daemon over HTTP, as OpenMetrics text for who asks for that, else in the
//! older text format of Prometheus.
//!
//! A page that is asked for is made then, from what reports tell; nothing is counted for it. Whoever reaches the
//! address can read it. A peer has two seconds for its question and the answer, and there are few at a time.

mod detail;
mod families;
mod page;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use sheave_base::sync::atomic::{AtomicUsize, Ordering};

use self::families::page;
use crate::daemon::Daemon;
use crate::failure::Failure;

/// Bytes of a question.
const MAX_QUESTION: usize = 8 << 10;
/// How long a peer may take.
const PEER: Duration = Duration::from_secs(2);
/// Peers at a time.
const MAX_PEERS: usize = 8;

/// The server of the page.
pub struct Metrics {
    thread: JoinHandle<()>,
    /// Closed to end it.
    ends: UnixStream,
}

impl Metrics {
    /// Begins.
    pub fn start(daemon: &Arc<Daemon>, address: &str) -> Result<Metrics, Failure> {
        let failed = |error: io::Error| {
            Failure::run(format!("cannot serve metrics at {address}: {error}"))
                .fix("choose an address that this machine has, and a free port, such as 127.0.0.1:9100")
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (ends, told) = UnixStream::pair().map_err(failed)?;
        let daemon = daemon.clone();
        let thread = std::thread::spawn(move || serve(&daemon, &listener, &told));
        Ok(Metrics { thread, ends })
    }

    /// Ends it, so that nobody but the caller has the daemon.
    pub fn stop(self) {
        drop(self.ends);
        // A thread that has panicked has said so.
        let _ = self.thread.join();
    }
}

fn serve(daemon: &Daemon, listener: &TcpListener, told: &UnixStream) {
    let peers = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        loop {
            let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(told, PollFlags::IN)];
            // A failure is looked for by the accept below.
            let _ = rustix::event::poll(&mut polled, None);
            if !polled[1].revents().is_empty() {
                return;
            }
            match listener.accept() {
                // Relaxed: a number, that only this thread raises.
                Ok((stream, _)) if peers.load(Ordering::Relaxed) < MAX_PEERS => {
                    peers.fetch_add(1, Ordering::Relaxed);
                    let peers = &peers;
                    scope.spawn(move || {
                        // Who breaks off has what it wanted.
                        let _ = answer(daemon, stream);
                        peers.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    });
}

fn answer(daemon: &Daemon, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let until = Instant::now() + PEER;
    let mut question = Vec::new();
    while !question.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || question.len() > MAX_QUESTION {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => question.extend_from_slice(&bytes[..got]),
        }
    }
    let is_ours = question.starts_with(b"GET /metrics ") || question.starts_with(b"GET /metrics?");
    let head = String::from_utf8_lossy(&question).to_ascii_lowercase();
    let mut lines = head.lines();
    let is_open = lines.any(|line| line.starts_with("accept:") && line.contains("application/openmetrics-text"));
    let (status, page) =
        if is_ours { ("200 OK", page(daemon, is_open)) } else { ("404 Not Found", "see /metrics\n".into()) };
    let kind = match (is_ours, is_open) {
        (true, true) => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        (true, false) => "text/plain; version=0.0.4; charset=utf-8",
        (false, _) => "text/plain",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.len()
    );
    stream.set_write_timeout(Some(PEER))?;
    stream.write_all(&[head.as_bytes(), page.as_bytes()].concat())
}
