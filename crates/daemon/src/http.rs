//! The HTTP that the daemon speaks: `GET` of a few pages, made when they are asked for.
//!
//! Owns sockets and their bounds: a peer has two seconds for its question and for the answer, a question is at most
//! 8 KiB, and there are eight peers at a time. What is asked for, and what is answered, a [`Site`] knows.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use sheave_base::sync::atomic::{AtomicUsize, Ordering};

use crate::daemon::Daemon;
use crate::failure::Failure;

/// Bytes of a question.
const MAX_QUESTION: usize = 8 << 10;
/// How long a peer may take.
const PEER: Duration = Duration::from_secs(2);
/// Peers at a time.
const MAX_PEERS: usize = 8;

/// What an address answers.
#[derive(Clone, Copy)]
pub struct Site {
    /// What it is, for messages.
    pub name: &'static str,
    /// The answer to a question.
    pub answer: fn(&Daemon, &Question<'_>) -> Answer,
}

/// A question, as far as answers depend on it.
pub struct Question<'a> {
    /// What is asked for, without what follows a `?`.
    pub path: &'a str,
    /// The name under which the peer knows this machine.
    pub host: Option<&'a str>,
    /// The kinds of answers that the peer takes.
    pub accept: &'a str,
    /// It came to an address of this machine alone.
    pub is_local: bool,
}

/// An answer.
pub struct Answer {
    /// Number and words.
    pub status: &'static str,
    /// Media type.
    pub kind: &'static str,
    /// Further lines of its head, each with its end.
    pub head: &'static str,
    /// What was asked for.
    pub body: Vec<u8>,
}

impl Answer {
    /// A sentence instead of a page.
    pub fn refused(status: &'static str, why: &str) -> Answer {
        Answer { status, kind: "text/plain; charset=utf-8", head: "", body: format!("{why}\n").into() }
    }
}

/// A server of pages.
pub struct Http {
    thread: JoinHandle<()>,
    /// Closed to end it.
    ends: UnixStream,
    address: SocketAddr,
}

impl Http {
    /// Begins to listen at a host and port.
    pub fn start(daemon: &Arc<Daemon>, address: &str, site: Site) -> Result<Http, Failure> {
        let failed = |error: io::Error| {
            Failure::run(format!("cannot serve {} at {address}: {error}", site.name))
                .fix("choose an address that this machine has, and a free port, such as 127.0.0.1:9100")
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let (ends, told) = UnixStream::pair().map_err(failed)?;
        let daemon = daemon.clone();
        let thread = std::thread::spawn(move || serve(&daemon, &listener, site, &told));
        Ok(Http { thread, ends, address: at })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it, so that nobody but the caller has the daemon.
    pub fn stop(self) {
        drop(self.ends);
        // A thread that has panicked has said so.
        let _ = self.thread.join();
    }
}

fn serve(daemon: &Daemon, listener: &TcpListener, site: Site, told: &UnixStream) {
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
                    let place = Place(&peers);
                    // Without a thread the peer is dropped with its place, and asks again.
                    _ = std::thread::Builder::new().spawn_scoped(scope, move || {
                        let _place = place;
                        // Who breaks off has what it wanted.
                        let _ = converse(daemon, site, stream);
                    });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    });
}

/// The place of a peer.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Relaxed: as in `serve`.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn converse(daemon: &Daemon, site: Site, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let is_local = stream.local_addr()?.ip().to_canonical().is_loopback();
    let asked = hear(&mut stream)?;
    let answer = match parse(&asked, is_local) {
        Some(question) => (site.answer)(daemon, &question),
        None => Answer::refused("405 Method Not Allowed", "pages are only read: GET"),
    };
    let Answer { status, kind, head, body } = answer;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{head}Connection: close\r\n\r\n"
    );
    tell(&mut stream, &[head.as_bytes(), &body].concat())
}

/// Sends an answer, in the time for all of it.
fn tell(stream: &mut TcpStream, mut answer: &[u8]) -> io::Result<()> {
    let until = Instant::now() + PEER;
    while !answer.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        answer = &answer[stream.write(answer)?..];
    }
    Ok(())
}

/// The head of a question.
fn hear(stream: &mut TcpStream) -> io::Result<String> {
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
    Ok(String::from_utf8_lossy(&question).into_owned())
}

/// What is asked; `None` for what is no `GET`.
fn parse(asked: &str, is_local: bool) -> Option<Question<'_>> {
    let mut lines = asked.split("\r\n");
    let target = lines.next()?.strip_prefix("GET ")?.split(' ').next()?;
    let mut question = Question { path: target.split('?').next()?, host: None, accept: "", is_local };
    for (name, value) in lines.take_while(|line| !line.is_empty()).filter_map(|line| line.split_once(':')) {
        match name.to_ascii_lowercase().as_str() {
            "host" => question.host = Some(value.trim()),
            "accept" => question.accept = value.trim(),
            _ => {}
        }
    }
    Some(question)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::{Duration, Instant};

    use super::{parse, tell};

    #[test]
    fn who_reads_slowly_has_no_more_time_than_who_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let mut reader = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut stream, _) = listener.accept().expect("a peer");
        // It takes something every tenth of a second, so that no single write takes long, and never gets all of it.
        let (told, hears) = std::sync::mpsc::channel::<()>();
        let reads = std::thread::spawn(move || {
            let mut bytes = [0; 64 << 10];
            while hears.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
                assert!(reader.read(&mut bytes).is_ok_and(|got| got > 0), "the answer has no end");
            }
        });
        let from = Instant::now();
        assert!(tell(&mut stream, &vec![1; 256 << 20]).is_err());
        assert!(from.elapsed() < Duration::from_secs(20), "{:?}", from.elapsed());
        drop(told);
        reads.join().expect("no panic");
    }

    #[test]
    fn a_question_is_taken_apart() {
        let asked = "GET /metrics?x=1 HTTP/1.1\r\nHOST: a:1\r\naccept:  b \r\n\r\n";
        let question = parse(asked, true).expect("it is a GET");
        assert_eq!((question.path, question.host, question.accept), ("/metrics", Some("a:1"), "b"));
        for no_get in ["POST / HTTP/1.1\r\n\r\n", "", "GET", "get / HTTP/1.1\r\n\r\n"] {
            assert!(parse(no_get, true).is_none(), "{no_get}");
        }
    }
}
