//! The HTTP that the daemon speaks: `GET` of a few pages, made when they are asked for.
//!
//! Owns sockets and their bounds. What is asked for, and what is answered, a [`Site`] knows.
//!
//! One thread accepts and reads the questions of all peers, so that a peer which says little and takes its time costs a
//! descriptor and 8 KiB, and keeps nobody out. A whole question gets a thread that makes the answer and sends it.
//!
//! * H1. A peer has two seconds to ask and be heard, and two for taking the answer; a question is at most 8 KiB.
//! * H2. 64 peers ask at a time. One that comes when there are as many takes the place of the one that has been asking
//!   for longest without an end to its question.
//! * H3. Eight answers are made or sent at a time. A question that finds none free waits, and takes the place of the
//!   answer that has been sent for longest, once that has had a tenth of a second.
//! * H4. An address of this machine alone answers only who asks for it by such an address or as `localhost`: a page
//!   from elsewhere, whose name somebody lets point here, gets nothing (DNS rebinding).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::daemon::{Daemon, locked};
use crate::failure::Failure;

/// Bytes of a question.
const MAX_QUESTION: usize = 8 << 10;
/// How long a peer may take for either of both ways (H1).
const PEER: Duration = Duration::from_secs(2);
/// Peers that ask at a time (H2).
const MAX_ASKING: usize = 64;
/// Answers at a time (H3).
const MAX_ANSWERS: usize = 8;
/// How long an answer may be sent before it gives way (H3).
const SENT: Duration = Duration::from_millis(100);
/// Questions of a peer that breaks H4 get this.
const NOT_HERE: &str = "ask by an address of this machine, such as 127.0.0.1";

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

/// A peer that asks.
struct Asker {
    stream: TcpStream,
    /// What it has said.
    said: Vec<u8>,
    came: Instant,
}

/// Whether a peer is to be heard on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// Its question has no end yet.
    Part,
    /// It has asked.
    Whole,
    /// It has closed, or said too much.
    Over,
}

impl Asker {
    fn is_whole(&self) -> bool {
        self.said.windows(4).any(|end| end == b"\r\n\r\n")
    }

    /// Takes what has come.
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

/// The answers that are made or sent, by number.
#[derive(Default)]
struct Answers {
    last: u64,
    all: BTreeMap<u64, Sending>,
}

/// One of them.
struct Sending {
    /// Closed to end it.
    stream: TcpStream,
    /// Since when it is sent; not yet, while it is made.
    since: Option<Instant>,
}

impl Answers {
    /// A place for an answer, if one is free.
    fn take(&mut self, stream: TcpStream) -> Option<u64> {
        if self.all.len() >= MAX_ANSWERS {
            return None;
        }
        self.last += 1;
        self.all.insert(self.last, Sending { stream, since: None });
        Some(self.last)
    }

    /// Ends the answer that has been sent for longest, if it has had its time (H3).
    fn end_longest(&mut self, now: Instant) {
        let sent = self.all.values().filter_map(|sending| Some((sending.since?, &sending.stream)));
        if let Some((since, stream)) = sent.min_by_key(|(since, _)| *since)
            && now.duration_since(since) >= SENT
        {
            // Its thread gives the place back at once.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The place of an answer, which goes back when the thread that makes it ends.
struct Place<'a> {
    answers: &'a Mutex<Answers>,
    number: u64,
    /// Wakes the thread that hears.
    wakes: &'a UnixStream,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        locked(self.answers).all.remove(&self.number);
        // It looks at most a moment later without.
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
                // Without a thread the peer is dropped with its place, and asks again.
                _ = std::thread::Builder::new().spawn_scoped(scope, move || {
                    // Who breaks off has what it wanted.
                    let _ = converse(daemon, site, &place, asker);
                });
            }
            // Those who came first are first in turn, and the first to give way.
            left.sort_by_key(|asker| asker.came);
            askers = left;
        }
    });
}

/// Waits until somebody comes, says something or has had its time; true when it is told to end.
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
    // A failure is looked for by the calls that follow.
    let _ = rustix::event::poll(&mut polled, left.as_ref());
    let is_told = !polled[0].revents().is_empty();
    let mut bytes = [0; 64];
    while { woken }.read(&mut bytes).is_ok_and(|got| got > 0) {}
    is_told
}

/// Takes those who have come (H2); false when it is better to wait a moment.
fn accept(listener: &TcpListener, askers: &mut Vec<Asker>) -> bool {
    for _ in 0..MAX_ASKING {
        match listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                if askers.len() >= MAX_ASKING {
                    let gives_way = askers.iter().position(|asker| !asker.is_whole());
                    askers.remove(gives_way.unwrap_or(0));
                }
                let mut asker = Asker { stream, said: Vec::new(), came: Instant::now() };
                // The question mostly comes with the peer, which then gives way to nobody.
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

/// What is asked; `None` for what is neither `GET` nor `HEAD`.
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
mod tests;
