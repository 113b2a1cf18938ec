//! The server: one thread that accepts, receives, reads and sends, over the calls of an [`Engine`].
//!
//! A connection has one operation in flight at any time, so it needs one buffer: the request comes into it, the
//! document replaces the request, and header and document leave in one send.
#![allow(unsafe_code)] // a descriptor that the kernel has opened

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sheave_base::buf::Buf;

use crate::Result;

/// Number of documents.
pub const DOCUMENTS: usize = 64;
/// Length of a document.
pub const BYTES: usize = 16 << 10;
/// The document begins here in a connection's buffer, aligned for every device, with the header right in front of it.
const BODY: usize = 4096;

/// The documents, one behind the other in a file.
pub struct Documents {
    pub path: PathBuf,
    pub file: File,
}

impl Documents {
    pub fn write(dir: &Path) -> Result<Documents> {
        let path = dir.join("documents");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        for number in 0..DOCUMENTS {
            file.write_all(&Documents::content(number))?;
        }
        // A dirty page cannot be dropped from the page cache.
        file.sync_all()?;
        Ok(Documents { path, file })
    }

    /// Returns where a document begins.
    pub fn start(number: usize) -> u64 {
        (number * BYTES) as u64
    }

    fn content(number: usize) -> Vec<u8> {
        (0..BYTES).map(|at| (at / 512 * 31 + at + number) as u8).collect()
    }

    /// Asks the server for each document, and compares the answer.
    pub fn check(&self, address: SocketAddr) -> Result<()> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        for number in 0..DOCUMENTS {
            // In one piece: `write!` would send several.
            stream.write_all(format!("GET /{number} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
            let mut answer = vec![0; header().len() + BYTES];
            stream.read_exact(&mut answer)?;
            if answer != [header().as_bytes(), &Documents::content(number)].concat() {
                return Err(format!("the answer for document {number} is wrong").into());
            }
        }
        Ok(())
    }

    fn drop_from_cache(&self, number: usize) -> Result<()> {
        Ok(rustix::fs::fadvise(
            self.file.as_fd(),
            Documents::start(number),
            NonZeroU64::new(BYTES as u64),
            rustix::fs::Advice::DontNeed,
        )?)
    }
}

fn header() -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n")
}

/// What an operation was, as its event names it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Accept,
    Recv,
    Read,
    Send,
}

/// The end of an operation: `res` is its result, `-errno` on failure.
#[derive(Clone, Copy)]
pub struct Event {
    pub token: u32,
    pub res: i32,
}

impl Event {
    pub fn token(kind: Kind, connection: usize) -> u32 {
        (connection as u32) << 2 | kind as u32
    }

    fn kind(&self) -> Kind {
        [Kind::Accept, Kind::Recv, Kind::Read, Kind::Send][self.token as usize & 3]
    }
}

/// Six calls of a ring. Operations are prepared, and sent by the next `wait`.
///
/// Memory that an operation uses is a connection's buffer, which stays where it is until the operation has ended and
/// after the engine has gone.
pub trait Engine: Sized {
    /// Makes a ring with at most `workers` workers, for so many connections.
    fn new(documents: &Documents, workers: u32, connections: u32) -> Result<Self>;
    fn accept(&mut self, listener: RawFd, token: u32) -> Result<()>;
    /// Receives what is there, at most all of `into`.
    fn recv(&mut self, socket: RawFd, into: &mut [u8], token: u32) -> Result<()>;
    /// Reads a whole document with `IOSQE_ASYNC`.
    fn read(&mut self, document: usize, into: &mut [u8], token: u32) -> Result<()>;
    fn send(&mut self, socket: RawFd, from: &[u8], token: u32) -> Result<()>;
    /// Sends what is prepared, waits until an operation has ended, and appends all that have.
    fn wait(&mut self, events: &mut Vec<Event>) -> Result<()>;
}

struct Connection {
    socket: Option<TcpStream>,
    buffer: Buf,
    /// The document that was asked for.
    document: usize,
}

pub fn serve<E: Engine>(
    engine: &mut E,
    listener: &TcpListener,
    documents: &Documents,
    most: u32,
    is_cold: bool,
    stop: &AtomicBool,
) -> Result<()> {
    let empty = || -> Result<Connection> {
        Ok(Connection { socket: None, buffer: Buf::zeroed(BODY + BYTES, BODY)?, document: 0 })
    };
    let mut connections: Vec<Connection> = (0..most).map(|_| empty()).collect::<Result<_>>()?;
    let (mut open, mut served, mut events) = (0, 0_u64, Vec::new());
    let header = header();
    let first = BODY - header.len();
    let mut accepts = true;
    engine.accept(listener.as_raw_fd(), Event::token(Kind::Accept, 0))?;
    while open > 0 || accepts {
        engine.wait(&mut events)?;
        for event in events.drain(..) {
            if event.kind() == Kind::Accept {
                accepts = !stop.load(Ordering::Acquire);
                if accepts {
                    engine.accept(listener.as_raw_fd(), Event::token(Kind::Accept, 0))?;
                }
                let socket = u32::try_from(event.res).map_err(|_| format!("accept: {}", event.res))?;
                // SAFETY: the kernel has just opened the descriptor for this accept.
                let socket = TcpStream::from(unsafe { OwnedFd::from_raw_fd(socket as RawFd) });
                socket.set_nodelay(true)?;
                let at =
                    connections.iter().position(|one| one.socket.is_none()).ok_or("more connections than asked")?;
                let Connection { socket: place, buffer, .. } = &mut connections[at];
                open += 1;
                engine.recv(place.insert(socket).as_raw_fd(), buffer, Event::token(Kind::Recv, at))?;
                continue;
            }
            let at = event.token as usize >> 2;
            let Connection { socket, buffer, document } = &mut connections[at];
            let fd = socket.as_ref().ok_or("an event of no connection")?.as_raw_fd();
            match event.kind() {
                Kind::Recv if event.res <= 0 => {
                    *socket = None;
                    open -= 1;
                }
                Kind::Recv => {
                    *document = asked(&buffer[..event.res as usize]).ok_or("no request that this server knows")?;
                    engine.read(*document, &mut buffer[BODY..], Event::token(Kind::Read, at))?;
                }
                Kind::Read => {
                    if event.res != BYTES as i32 {
                        return Err(format!("reading document {document}: {}", event.res).into());
                    }
                    buffer[first..BODY].copy_from_slice(header.as_bytes());
                    engine.send(fd, &buffer[first..], Event::token(Kind::Send, at))?;
                }
                _ => {
                    served += 1;
                    if is_cold && served.is_multiple_of(8) {
                        documents.drop_from_cache(*document)?;
                    }
                    engine.recv(fd, buffer, Event::token(Kind::Recv, at))?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the number of the document that a request asks for. A request comes in one piece: its client sends no more
/// than one before it has the answer.
fn asked(request: &[u8]) -> Option<usize> {
    let rest = request.strip_prefix(b"GET /")?;
    let path = rest.split(|byte| *byte == b' ').next()?;
    let number: usize = std::str::from_utf8(path).ok()?.parse().ok()?;
    (number < DOCUMENTS && request.ends_with(b"\r\n\r\n")).then_some(number)
}
