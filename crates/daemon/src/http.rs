//! The HTTP server of the daemon: answers `GET` for a few pages, which are rendered on request.
//!
//! Owns the sockets and their limits. A [`Site`] defines the pages.
//!
//! One thread accepts connections and reads the requests of all peers, so a slow peer costs one descriptor and 8 KiB
//! and blocks nobody. A complete request gets a thread that renders and sends the response.
//!
//! * H1. A peer has two seconds from connecting until its response begins, and two for receiving it. A request has at
//!   most 8 KiB.
//! * H2. At most 64 peers are connected without a complete request. One more replaces the peer whose request has been
//!   incomplete for longest.
//! * H3. At most eight responses are rendered or sent at a time. When a request finds all eight taken, it waits, and
//!   the response that has been sent for longest is aborted once it has had a tenth of a second.
//! * H4. A loopback address answers only requests whose `Host` is a loopback address or `localhost`. A web page from
//!   elsewhere whose domain resolves to this machine gets nothing (DNS rebinding).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use sheave_serve::{Address, Listener};

use crate::daemon::{Daemon, locked};
use crate::failure::{self, Failure};

/// Maximum size of a request.
const MAX_QUESTION: usize = 8 << 10;
/// Time limit of a peer for its request, and for receiving the response (H1).
const PEER: Duration = Duration::from_secs(2);
/// Maximum number of peers with incomplete requests (H2).
const MAX_ASKING: usize = 64;
/// Maximum number of responses at a time (H3).
const MAX_ANSWERS: usize = 8;
/// Time after which a response may be aborted in favour of another (H3).
const SENT: Duration = Duration::from_millis(100);
/// Response to a request that H4 refuses.
const NOT_HERE: &str = "ask by an address of this machine, such as 127.0.0.1";

/// The pages at an address.
#[derive(Clone, Copy)]
pub struct Site {
    /// Name in error messages.
    pub name: &'static str,
    /// Renders the response to a request.
    pub answer: fn(&Daemon, &Question<'_>) -> Answer,
}

/// The parts of a request on which responses depend.
pub struct Question<'a> {
    /// Path without the query.
    pub path: &'a str,
    /// The `Host` header.
    pub host: Option<&'a str>,
    /// The `Accept` header.
    pub accept: &'a str,
}

/// A response.
pub struct Answer {
    /// Status code and reason.
    pub status: &'static str,
    /// Media type.
    pub kind: &'static str,
    /// Additional header lines, each with its CRLF.
    pub head: &'static str,
    pub body: Vec<u8>,
}

impl Answer {
    /// A response of one sentence, for a request that gets no page.
    pub fn refused(status: &'static str, why: &str) -> Answer {
        Answer { status, kind: "text/plain; charset=utf-8", head: "", body: format!("{why}\n").into() }
    }
}

/// A running HTTP server.
pub struct Http {
    thread: JoinHandle<()>,
    /// Closing it stops the thread.
    ends: UnixStream,
    address: SocketAddr,
    /// The socket, which an upgrade hands over.
    _bound: Listener,
}

impl Http {
    /// Binds a host and port.
    pub fn bind(address: &str) -> Result<Listener, Failure> {
        Listener::bind(&Address::Tcp(address.to_owned())).map_err(|error| {
            failure::serve(error)
                .fix("choose an address that this machine has, and a free port, such as 127.0.0.1:9100")
        })
    }

    /// Serves a site.
    pub fn start(daemon: &Arc<Daemon>, bound: Listener, site: Site) -> Result<Http, Failure> {
        let failed = |error: io::Error| Failure::run(format!("cannot serve {}: {error}", site.name));
        let listener = TcpListener::from(bound.try_clone().map_err(failed)?);
        listener.set_nonblocking(true).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let (ends, told) = UnixStream::pair().map_err(failed)?;
        let daemon = daemon.clone();
        let thread = std::thread::spawn(move || serve(&daemon, &listener, site, &told));
        Ok(Http { thread, ends, address: at, _bound: bound })
    }

    /// Address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the thread, which holds a reference to the daemon.
    pub fn stop(self) {
        drop(self.ends);
        // A panic of the thread was already reported.
        let _ = self.thread.join();
    }
}

/// A peer whose request is not yet answered.
struct Asker {
    stream: TcpStream,
    /// Bytes received so far.
    said: Vec<u8>,
    came: Instant,
}

/// State of a peer's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// Incomplete.
    Part,
    /// Complete.
    Whole,
    /// The peer disconnected, or its request is too long.
    Over,
}

impl Asker {
    fn is_whole(&self) -> bool {
        self.said.windows(4).any(|end| end == b"\r\n\r\n")
    }

    /// Reads what has arrived.
    fn hear(&mut self) -> Heard {
        let mut bytes = [0; 1024];
        while !self.is_whole() {
            if self.said.len() > MAX_QUESTION {
                return Heard::Over;
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Heard::Over,
                Ok(got) => self.said.extend_from_slice(&bytes[..got]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Part,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Heard::Over,
            }
        }
        Heard::Whole
    }
}

/// Responses that are being rendered or sent, by number.
#[derive(Default)]
struct Answers {
    last: u64,
    all: BTreeMap<u64, Sending>,
}

/// A response that is being rendered or sent.
struct Sending {
    /// Shutting it down aborts the response.
    stream: TcpStream,
    /// Time at which sending began; `None` while it is rendered.
    since: Option<Instant>,
}

impl Answers {
    /// Reserves a slot for a response. Returns its number, or `None` if all are taken.
    fn take(&mut self, stream: TcpStream) -> Option<u64> {
        if self.all.len() >= MAX_ANSWERS {
            return None;
        }
        self.last += 1;
        self.all.insert(self.last, Sending { stream, since: None });
        Some(self.last)
    }

    /// Aborts the response that has been sent for longest, if it has had its minimum time (H3).
    fn end_longest(&mut self, now: Instant) {
        let sent = self.all.values().filter_map(|sending| Some((sending.since?, &sending.stream)));
        if let Some((since, stream)) = sent.min_by_key(|(since, _)| *since)
            && now.duration_since(since) >= SENT
        {
            // The thread that sends it then frees its slot at once.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A slot for a response, which is freed on drop.
struct Place<'a> {
    answers: &'a Mutex<Answers>,
    number: u64,
    /// Wakes the thread that reads requests.
    wakes: &'a UnixStream,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        locked(self.answers).all.remove(&self.number);
        // A failed wake-up only delays that thread until its next timeout.
        let _ = { self.wakes }.write(&[0]);
    }
}

fn serve(daemon: &Daemon, listener: &TcpListener, site: Site, told: &UnixStream) {
    let answers = Mutex::new(Answers::default());
    let Ok((wakes, woken)) = UnixStream::pair() else { return };
    let _ = (wakes.set_nonblocking(true), woken.set_nonblocking(true));
    let mut askers: Vec<Asker> = Vec::new();
    let mut accepts_from = Instant::now();
    std::thread::scope(|scope| {
        loop {
            if is_told(listener, told, &woken, &askers, accepts_from) {
                return;
            }
            if Instant::now() >= accepts_from && !accept(listener, &mut askers) {
                accepts_from = Instant::now() + SENT;
            }
            let now = Instant::now();
            let (mut left, mut whole) = (Vec::new(), Vec::new());
            for mut asker in askers.drain(..) {
                match asker.hear() {
                    // H1.
                    _ if now.duration_since(asker.came) >= PEER => {}
                    Heard::Whole => whole.push(asker),
                    Heard::Part => left.push(asker),
                    Heard::Over => {}
                }
            }
            for asker in whole {
                let place = asker.stream.try_clone().ok().and_then(|stream| locked(&answers).take(stream));
                let Some(number) = place else {
                    locked(&answers).end_longest(now);
                    left.push(asker);
                    continue;
                };
                let place = Place { answers: &answers, number, wakes: &wakes };
                // If no thread can be started, the peer is disconnected and its slot freed; it may try again.
                _ = std::thread::Builder::new().spawn_scoped(scope, move || {
                    // An error here means that the peer disconnected.
                    let _ = converse(daemon, site, &place, asker);
                });
            }
            // Oldest first: first in line for a slot, and first to be replaced (H2).
            left.sort_by_key(|asker| asker.came);
            askers = left;
        }
    });
}

/// Waits until a peer connects, sends something or runs out of time. Returns true if the server is to stop.
fn is_told(
    listener: &TcpListener,
    told: &UnixStream,
    woken: &UnixStream,
    askers: &[Asker],
    accepts_from: Instant,
) -> bool {
    let now = Instant::now();
    let accepts = now >= accepts_from;
    let mut polled = vec![PollFd::new(told, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
    polled.extend(accepts.then(|| PollFd::new(listener, PollFlags::IN)));
    let asking = askers.iter().filter(|asker| !asker.is_whole());
    polled.extend(asking.map(|asker| PollFd::new(&asker.stream, PollFlags::IN)));
    let waits = polled.len() < askers.len() + 2 + usize::from(accepts);
    let mut until = askers.iter().map(|asker| asker.came + PEER).min();
    if waits || !accepts {
        until = until.into_iter().chain([now + SENT]).min();
    }
    let left = until.map(|until| Timespec::try_from(until.saturating_duration_since(now)).unwrap_or_default());
    // On failure the calls that follow find nothing to do.
    let _ = rustix::event::poll(&mut polled, left.as_ref());
    let is_told = !polled[0].revents().is_empty();
    let mut bytes = [0; 64];
    while { woken }.read(&mut bytes).is_ok_and(|got| got > 0) {}
    is_told
}

/// Accepts waiting connections (H2). Returns false if accepting failed and should be paused for a moment.
fn accept(listener: &TcpListener, askers: &mut Vec<Asker>) -> bool {
    for _ in 0..MAX_ASKING {
        match listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                if askers.len() >= MAX_ASKING {
                    let gives_way = askers.iter().position(|asker| !asker.is_whole());
                    askers.remove(gives_way.unwrap_or(0));
                }
                let mut asker = Asker { stream, said: Vec::new(), came: Instant::now() };
                // The request usually arrives with the connection, and a peer with a complete request is not replaced.
                asker.hear();
                askers.push(asker);
            }
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    true
}

fn converse(daemon: &Daemon, site: Site, place: &Place<'_>, asker: Asker) -> io::Result<()> {
    let Asker { mut stream, said, .. } = asker;
    let is_local = stream.local_addr()?.ip().to_canonical().is_loopback();
    let answer = answer(daemon, site, &String::from_utf8_lossy(&said), is_local);
    let tells_body = !said.starts_with(b"HEAD ");
    let Answer { status, kind, head, body } = answer;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{head}Connection: close\r\n\r\n"
    );
    if let Some(sending) = locked(place.answers).all.get_mut(&place.number) {
        sending.since = Some(Instant::now());
    }
    stream.set_nonblocking(false)?;
    tell(&mut stream, &[head.as_bytes(), if tells_body { &body } else { &[] }].concat())
}

fn answer(daemon: &Daemon, site: Site, asked: &str, is_local: bool) -> Answer {
    match parse(asked) {
        None => {
            let refused = Answer::refused("405 Method Not Allowed", "pages are only read: GET or HEAD");
            Answer { head: "Allow: GET, HEAD\r\n", ..refused }
        }
        // H4.
        Some(question) if is_local && !question.host.is_some_and(names_this_machine) => {
            Answer::refused("403 Forbidden", NOT_HERE)
        }
        Some(question) => (site.answer)(daemon, &question),
    }
}

/// Returns true if `host` is `localhost` or a loopback address, with or without a port (H4).
fn names_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Sends a response within the time limit.
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

/// Parses a request; returns `None` unless its method is `GET` or `HEAD`.
fn parse(asked: &str) -> Option<Question<'_>> {
    let mut lines = asked.split("\r\n");
    let asked = lines.next()?;
    let target = asked.strip_prefix("GET ").or_else(|| asked.strip_prefix("HEAD "))?.split(' ').next()?;
    let mut question = Question { path: target.split('?').next()?, host: None, accept: "" };
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
    use std::sync::mpsc::RecvTimeoutError;

    use super::*;

    #[test]
    fn slow_readers_hit_the_same_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let mut reader = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut stream, _) = listener.accept().expect("a peer");
        // Reads a little every tenth of a second: no single write blocks for long, but the response is never received
        // completely.
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
        let question = parse(asked).expect("it is a GET");
        assert_eq!((question.path, question.host, question.accept), ("/metrics", Some("a:1"), "b"));
        for no_get in ["POST / HTTP/1.1\r\n\r\n", "", "GET", "get / HTTP/1.1\r\n\r\n"] {
            assert!(parse(no_get).is_none(), "{no_get}");
        }
    }

    #[test]
    fn names_of_this_machine_are_known() {
        for host in ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:9180", "127.9.9.9:1", "[::1]:80", "[::1]"] {
            assert!(names_this_machine(host), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:9180", "localhost.evil.example", "10.0.0.1:80", "127.0.0.1.evil.example"]
        {
            assert!(!names_this_machine(host), "{host}");
        }
    }

    /// H3: responses that nobody reads are aborted; those being rendered, or just begun, are not.
    #[test]
    fn the_answer_that_is_sent_for_longest_gives_way_once_it_has_had_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let mut answers = Answers::default();
        let mut peers: Vec<TcpStream> = (0..MAX_ANSWERS)
            .map(|_| {
                let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
                answers.take(listener.accept().expect("a peer").0).expect("a place");
                peer
            })
            .collect();
        let more = peers[0].try_clone().expect("a descriptor");
        assert!(answers.take(more).is_none(), "more answers than places");
        let now = Instant::now();
        let is_ended = |peer: &mut TcpStream| {
            peer.set_nonblocking(true).expect("set");
            peer.read(&mut [0]).is_ok_and(|got| got == 0)
        };
        answers.end_longest(now + PEER);
        assert!(!peers.iter_mut().any(is_ended), "one ended that was being made");
        for (number, sending) in answers.all.values_mut().enumerate().skip(1) {
            sending.since = Some(now - SENT * u32::from(number == 3) + SENT / 2 - Duration::from_millis(number as u64));
        }
        answers.end_longest(now - SENT / 4);
        assert!(!peers.iter_mut().any(is_ended), "one ended that had just begun");
        answers.end_longest(now + SENT);
        let ended: Vec<usize> = (0..MAX_ANSWERS).filter(|&at| is_ended(&mut peers[at])).collect();
        assert_eq!(ended, [3], "the longest");
    }

    /// H2: a peer with a complete request keeps its place; the oldest of the others is replaced.
    #[test]
    fn the_oldest_peer_without_a_whole_question_gives_way() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        listener.set_nonblocking(true).expect("set");
        let connect = |says: &[u8]| {
            let mut peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
            peer.write_all(says).expect("sent");
            peer
        };
        let mut askers = Vec::new();
        let mut peers = vec![connect(b"GET / HTTP/1.1\r\n\r\n")];
        for _ in 1..MAX_ASKING {
            peers.push(connect(b"GET / HT"));
        }
        let hear_all = |askers: &mut Vec<Asker>, many: usize| {
            let until = Instant::now() + Duration::from_secs(20);
            let mut came = 0;
            while came < many && Instant::now() < until {
                let before: Vec<_> =
                    askers.iter().map(|asker: &Asker| asker.stream.peer_addr().expect("a peer")).collect();
                assert!(accept(&listener, askers));
                came +=
                    askers.iter().filter(|asker| !before.contains(&asker.stream.peer_addr().expect("a peer"))).count();
                askers.iter_mut().for_each(|asker| assert_ne!(asker.hear(), Heard::Over));
            }
            assert_eq!(came, many);
        };
        hear_all(&mut askers, MAX_ASKING);
        peers.push(connect(b"GET /metrics HTTP/1.1\r\n\r\n"));
        hear_all(&mut askers, 1);
        let is_there = |peer: &TcpStream| {
            let address = peer.local_addr().expect("an address");
            askers.iter().any(|asker| asker.stream.peer_addr().is_ok_and(|other| other == address))
        };
        let there: Vec<bool> = peers.iter().map(is_there).collect();
        assert_eq!(askers.len(), MAX_ASKING);
        assert!(there[0] && !there[1] && there[2..].iter().all(|there| *there), "{there:?}");
        let whole: Vec<bool> = askers.iter().map(Asker::is_whole).collect();
        assert!(whole[0] && whole[MAX_ASKING - 1] && !whole[1..MAX_ASKING - 1].iter().any(|whole| *whole), "{whole:?}");
    }

    #[test]
    fn a_question_has_a_bound() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        listener.set_nonblocking(true).expect("set");
        let mut peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        peer.write_all(&[b'x'; MAX_QUESTION + 2048]).expect("sent");
        let mut askers = Vec::new();
        let until = Instant::now() + Duration::from_secs(20);
        while askers.is_empty() {
            assert!(accept(&listener, &mut askers) && Instant::now() < until);
        }
        while askers[0].hear() == Heard::Part {
            assert!(Instant::now() < until, "it takes any number of bytes");
        }
        assert_eq!(askers[0].hear(), Heard::Over);
    }
}
