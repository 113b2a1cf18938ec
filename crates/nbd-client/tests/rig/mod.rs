//! A server that dies on command and then loses all unflushed data, and access to it through a ring.
//!
//! It serves one export from memory, in two copies: `cache` has what was written, `stable` what was flushed or written
//! with FUA. A death closes every connection and resets `cache` to `stable`; the next connection finds the server
//! restarted. So a test can compare the data that a flush has covered with the data that was kept.
#![allow(dead_code)] // Each test program uses a part.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use sheave::drivers::Registry;
use sheave::{Buf, Device, DeviceError, Fd, Ring};
use sheave_nbd::handshake::{Mode, Negotiated};
use sheave_nbd::session::{Command, Session, Step};
use sheave_nbd::wire::{self, cflag, opt, rep, tflag};
use sheave_nbd::{Errno, ExportInfo};
use tempfile::TempDir;

pub const MIB: usize = 1 << 20;
pub const EIO: i32 = 5;
pub const ENODEV: i32 = 19;
pub const ETIMEDOUT: i32 = 110;
/// The abilities of the export, unless a test sets others.
pub const FLAGS: u16 = tflag::HAS_FLAGS
    | tflag::SEND_FLUSH
    | tflag::SEND_FUA
    | tflag::SEND_TRIM
    | tflag::SEND_WRITE_ZEROES
    | tflag::CAN_MULTI_CONN;

/// The moment at which the server dies, counted in bytes of all its connections since its start or its last death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    Sent(u64),
    Received(u64),
}

#[derive(Debug)]
pub struct State {
    pub stable: Vec<u8>,
    pub cache: Vec<u8>,
    pub size: u64,
    pub flags: u16,
    pub mode: Mode,
    pub name: String,
    /// The next deaths, in order.
    pub dies: VecDeque<Dies>,
    /// True if the server receives requests, and answers none.
    pub silent: bool,
    /// Number of connections, from the first on, whose requests are received and not answered.
    pub deaf: u64,
    /// True if the server accepts connections, and sends nothing.
    pub mute: bool,
    /// Number of further requests that are answered with a wrong cookie.
    pub lies: u32,
    /// Function that makes the bytes which are sent for the next request instead of an answer.
    pub forged: Option<fn(&sheave_nbd::Request) -> Vec<u8>>,
    /// Number of writes that are answered as soon as the header of the first has arrived. The cookies of the others are
    /// guessed. After that the connection receives nothing more.
    pub hasty: u64,
    /// True if the server refuses connections.
    pub away: bool,
    /// True if the test has dropped the server.
    gone: bool,
    pub deaths: u64,
    pub connections: u64,
    pub requests: u64,
    pub flushes: u64,
    /// Number of requests with FUA.
    pub fuas: u64,
    pub sent: u64,
    pub received: u64,
    streams: Streams,
}

type Streams = Arc<Mutex<Vec<UnixStream>>>;

impl State {
    /// Loses all data that is not stable, and closes all connections.
    pub fn die(&mut self) {
        self.cache = self.stable.clone();
        self.deaths += 1;
        self.hang_up();
        (self.sent, self.received) = (0, 0);
    }

    /// Closes all connections, without losing data.
    pub fn hang_up(&mut self) {
        hang_up(&self.streams);
    }

    fn dies_now(&mut self) -> bool {
        let now = match self.dies.front() {
            Some(Dies::Sent(at)) => self.sent >= *at,
            Some(Dies::Received(at)) => self.received >= *at,
            None => false,
        };
        if now {
            self.dies.pop_front();
            self.die();
        }
        now
    }

    /// Sends, up to the byte at which the server dies.
    fn send(&mut self, stream: &mut UnixStream, bytes: &[u8]) -> bool {
        let mut many = bytes.len();
        if let Some(Dies::Sent(at)) = self.dies.front() {
            many = many.min(at.saturating_sub(self.sent) as usize);
        }
        let sent = stream.write_all(&bytes[..many]).is_ok();
        self.sent += many as u64;
        sent && !self.dies_now()
    }
}

fn hang_up(streams: &Streams) {
    for stream in streams.lock().expect("nobody panics with it").drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

pub struct Server {
    pub path: PathBuf,
    streams: Streams,
    state: Arc<Mutex<State>>,
    _dir: TempDir,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Drop for Server {
    /// Ends the accepting thread, which has the descriptors, because one test process makes thousands of servers.
    fn drop(&mut self) {
        self.state().gone = true;
        // Wakes the thread that accepts, which then sees `gone`.
        let _ = UnixStream::connect(&self.path);
    }
}

impl Server {
    pub fn start(bytes: usize, mode: Mode) -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nbd");
        let listener = UnixListener::bind(&path).expect("bound");
        let streams = Streams::default();
        let state = Arc::new(Mutex::new(State {
            stable: vec![0; bytes],
            cache: vec![0; bytes],
            size: bytes as u64,
            flags: FLAGS,
            mode,
            name: "disk".into(),
            dies: VecDeque::new(),
            silent: false,
            deaf: 0,
            mute: false,
            lies: 0,
            forged: None,
            hasty: 0,
            away: false,
            gone: false,
            deaths: 0,
            connections: 0,
            requests: 0,
            flushes: 0,
            fuas: 0,
            sent: 0,
            received: 0,
            streams: streams.clone(),
        }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), state) = (stream, shared.clone()) else { return };
                let number = {
                    let mut state = lock(&state);
                    if state.gone {
                        return;
                    }
                    state.connections += 1;
                    if state.away {
                        continue;
                    }
                    let streams = state.streams.clone();
                    streams.lock().expect("no panic").push(stream.try_clone().expect("a descriptor"));
                    state.connections
                };
                std::thread::spawn(move || {
                    let _ = serve(stream, &state, number);
                });
            }
        });
        Server { path, streams, state, _dir: dir }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Closes all connections, even one that waits for its client to receive.
    pub fn hang_up(&self) {
        hang_up(&self.streams);
    }

    pub fn spec(&self, keys: &str) -> String {
        format!("nbd:unix:{},export=disk{keys}", self.path.display())
    }

    pub fn open(&self, keys: &str) -> Result<Device, DeviceError> {
        registry().open(&self.spec(keys))
    }

    /// Serves a port of 127.0.0.1 as well. Returns the port, and the connections that were accepted there.
    pub fn front(&self) -> (u16, Arc<Mutex<Vec<TcpStream>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listening");
        let port = listener.local_addr().expect("an address").port();
        let (path, accepted) = (self.path.clone(), Arc::new(Mutex::new(Vec::new())));
        let all = accepted.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.expect("accepted");
                let far = UnixStream::connect(&path).expect("connected");
                let ends = || (near.try_clone().expect("a descriptor"), far.try_clone().expect("a descriptor"));
                let ((mut from, mut to), (mut back, mut answers)) = (ends(), ends());
                all.lock().expect("nobody panics with it").push(near);
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
            }
        });
        (port, accepted)
    }
}

/// Returns the standard kinds of devices, and `nbd`.
pub fn registry() -> Registry {
    let mut registry = Registry::standard();
    sheave_nbd_client::register(&mut registry).expect("a free name");
    registry
}

/// Returns a ring with the device, or `None`, with a message, if there is no kernel ring.
pub fn ring(device: &Device) -> Option<(Ring, Fd)> {
    let mut ring = Ring::builder().entries(128).build().expect("a ring");
    match ring.attach(device) {
        Ok(fd) => Some((ring, fd)),
        Err(error) => {
            sheave_testkit::skip(&format!("no kernel ring here: {error}"));
            None
        }
    }
}

/// Returns true if a server listens at this socket; the file may exist before that. A connection would show it too, but
/// some servers serve only one client.
pub fn is_listening(socket: &Path) -> bool {
    const ACCEPTS: &str = "00010000";
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("the kernel tells of its sockets");
    let path = socket.to_str().expect("a path in UTF-8");
    sockets.lines().any(|line| line.ends_with(path) && line.split_whitespace().nth(3) == Some(ACCEPTS))
}

pub fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len, 4096).expect("memory");
    buf.iter_mut().for_each(|at| *at = byte);
    buf
}

/// Submits, and waits for `many` operations. Returns their results by user data.
pub fn results(ring: &mut Ring, many: u32) -> Vec<(u64, i32)> {
    ring.submit_and_wait(many).expect("submitted");
    let mut all: Vec<(u64, i32)> = std::iter::from_fn(|| ring.pop()).map(|done| (done.user_data, done.res)).collect();
    all.sort_unstable();
    all
}

/// Receives the client's next bytes, up to the byte at which the server dies.
fn more(stream: &mut UnixStream, state: &Mutex<State>, input: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 64 << 10];
    let most = match lock(state).dies.front() {
        Some(Dies::Received(_)) => 1,
        _ => buffer.len(),
    };
    let many = stream.read(&mut buffer[..most]).ok().filter(|&many| many > 0)?;
    let mut state = lock(state);
    state.received += many as u64;
    if state.dies_now() {
        return None;
    }
    input.extend_from_slice(&buffer[..many]);
    Some(())
}

fn take(stream: &mut UnixStream, state: &Mutex<State>, input: &mut Vec<u8>, many: usize) -> Option<Vec<u8>> {
    while input.len() < many {
        more(stream, state, input)?;
    }
    Some(input.drain(..many).collect())
}

fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    [option, kind, data.len() as u32].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
    bytes.extend(data);
    bytes
}

/// Returns a chunk of a structured reply.
pub fn chunk(request: &sheave_nbd::Request, done: bool, kind: u16, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let mut bytes = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(u16::from(done).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(request.cookie.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Returns the server's answer to an option.
fn options(state: &State, option: u32) -> Vec<u8> {
    match option {
        opt::EXTENDED_HEADERS if state.mode == Mode::Extended => answer(option, rep::ACK, b""),
        opt::STRUCTURED_REPLY if state.mode != Mode::Simple => answer(option, rep::ACK, b""),
        opt::GO => {
            let export = [[0; 2].as_slice(), &state.size.to_be_bytes(), &state.flags.to_be_bytes()].concat();
            let name = [1u16.to_be_bytes().as_slice(), state.name.as_bytes()].concat();
            let all =
                [answer(option, rep::INFO, &export), answer(option, rep::INFO, &name), answer(option, rep::ACK, b"")];
            all.concat()
        }
        _ => answer(option, rep::ERR_UNSUP, b""),
    }
}

fn serve(mut stream: UnixStream, state: &Mutex<State>, number: u64) -> Option<()> {
    let mut input = Vec::new();
    if lock(state).mute {
        let _ = stream.read(&mut [0; 1]);
        return None;
    }
    let greeting = [wire::INIT_MAGIC.to_be_bytes(), wire::OPTION_MAGIC.to_be_bytes()].concat();
    lock(state).send(&mut stream, &[greeting, vec![0, 3]].concat()).then_some(())?;
    take(&mut stream, state, &mut input, 4)?;
    loop {
        let head = take(&mut stream, state, &mut input, 16)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
        take(&mut stream, state, &mut input, number(12) as usize)?;
        let mut state = lock(state);
        let said = options(&state, number(8));
        state.send(&mut stream, &said).then_some(())?;
        if number(8) == opt::GO {
            break;
        }
    }
    let mut session = {
        let state = lock(state);
        let export = ExportInfo {
            id: 0,
            name: state.name.clone(),
            description: String::new(),
            size: state.size,
            read_only: state.flags & tflag::READ_ONLY != 0,
            fast_zero: false,
            min_block: 1,
            preferred_block: 4096,
        };
        Session::new(&Negotiated { export, mode: state.mode, contexts: Vec::new(), keeps_to_blocks: true })
    };
    let deaths = lock(state).deaths;
    loop {
        let (used, step) = session.next(&input);
        input.drain(..used);
        match step {
            Step::More => more(&mut stream, state, &mut input)?,
            Step::Request(request) if request.command == Command::Write && lock(state).hasty > 0 => {
                return answer_early(&mut lock(state), &mut stream, &session, &request);
            }
            Step::Request(request) => {
                let len = if request.command == Command::Write { request.len as usize } else { 0 };
                let data = take(&mut stream, state, &mut input, len)?;
                session.received(len as u64);
                let mut state = lock(state);
                if state.deaths != deaths {
                    return None;
                }
                if number <= state.deaf {
                    continue;
                }
                carry_out(&mut state, &mut stream, &session, &request, &data).then_some(())?;
            }
            Step::Refused(refused) => {
                let mut out = Vec::new();
                session.refused(&refused, &mut out);
                lock(state).send(&mut stream, &out).then_some(())?;
            }
            Step::Disconnect | Step::Broken(_) => return None,
            _ => {}
        }
    }
}

/// Answers writes before their data has arrived, and does not receive it: the connection stays open.
fn answer_early(
    state: &mut State,
    stream: &mut UnixStream,
    session: &Session,
    request: &sheave_nbd::Request,
) -> Option<()> {
    let mut out = Vec::new();
    for next in 0..std::mem::take(&mut state.hasty) {
        let cookie = request.cookie + next * ((1 << 16) + 1);
        session.done(&sheave_nbd::Request { cookie, ..*request }, &mut out);
    }
    state.send(stream, &out).then_some(())
}

fn carry_out(
    state: &mut State,
    stream: &mut UnixStream,
    session: &Session,
    request: &sheave_nbd::Request,
    data: &[u8],
) -> bool {
    state.requests += 1;
    if state.silent {
        return true;
    }
    if let Some(forge) = state.forged.take() {
        let said = forge(request);
        return state.send(stream, &said);
    }
    let range = request.offset as usize..(request.offset + request.len) as usize;
    let mut out = Vec::new();
    let mut answered = *request;
    if state.lies > 0 {
        state.lies -= 1;
        answered.cookie ^= 0x5555;
    }
    match request.command {
        Command::Read => {
            let mut place = [0; sheave_nbd::reply::MAX_READ_HEADER];
            let len = session.read_header(&answered, &mut place);
            out.extend_from_slice(&place[place.len() - len..]);
            out.extend_from_slice(&state.cache[range]);
        }
        Command::Write | Command::Trim | Command::WriteZeroes | Command::Flush => {
            match request.command {
                Command::Write => state.cache[range.clone()].copy_from_slice(data),
                Command::Flush => {
                    state.flushes += 1;
                    state.stable = state.cache.clone();
                }
                _ => state.cache[range.clone()].fill(0),
            }
            if request.has(cflag::FUA) {
                state.fuas += 1;
                let now = state.cache[range.clone()].to_vec();
                state.stable[range].copy_from_slice(&now);
            }
            session.done(&answered, &mut out);
        }
        _ => session.failed(&answered, Errno::Inval, "not here", &mut out),
    }
    state.send(stream, &out)
}
