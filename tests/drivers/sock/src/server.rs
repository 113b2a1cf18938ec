//! The other end of the socket: serves bytes in memory, or fails as configured.
//!
//! Owns a thread for each connection, which ends with the connection; the listener ends with the server.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::wire::{Asked, Command, REQUEST, Replied};

/// The way in which a server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// Never fails.
    Never,
    /// Closes its first connection after it has sent this many bytes; later connections work.
    DiesAt(u64),
    /// Stops answering on its first connection after it has sent this many bytes.
    StallsAt(u64),
    /// Answers a read with its cookie's bits inverted.
    Lies,
    /// Never fails, and answers this many requests with one call.
    Gathers(usize),
}

#[derive(Debug)]
struct Inner {
    bytes: Mutex<Vec<u8>>,
    fails: Fails,
    connections: AtomicU64,
    requests: AtomicU64,
    ends: AtomicBool,
    streams: Mutex<Vec<UnixStream>>,
}

/// A server, which ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
    path: std::path::PathBuf,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Server {
    /// Listens at a path.
    ///
    /// # Errors
    ///
    /// Returns the error of the system.
    pub fn start(path: &Path, size: usize, fails: Fails) -> std::io::Result<Server> {
        let listener = UnixListener::bind(path)?;
        let inner = Arc::new(Inner {
            bytes: Mutex::new(vec![0; size]),
            fails,
            connections: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let of = inner.clone();
        let accept = move || {
            let mut threads = Vec::new();
            for stream in listener.incoming().flatten() {
                // SeqCst: a flag of a test; it is read after the connection that wakes this loop.
                if of.ends.load(Ordering::SeqCst) {
                    break;
                }
                // SeqCst: a counter of a test.
                let number = of.connections.fetch_add(1, Ordering::SeqCst);
                if let Ok(copy) = stream.try_clone() {
                    lock(&of.streams).push(copy);
                }
                let of = of.clone();
                threads.push(std::thread::spawn(move || _ = of.serve(stream, number)));
            }
            lock(&of.streams).iter().for_each(|stream| _ = stream.shutdown(std::net::Shutdown::Both));
            threads.into_iter().for_each(|thread| _ = thread.join());
        };
        let thread = std::thread::Builder::new().spawn(accept)?;
        Ok(Server { inner, thread: Some(thread), path: path.to_owned() })
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> u64 {
        // SeqCst: a counter of a test.
        self.inner.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of requests received so far.
    pub fn requests(&self) -> u64 {
        // SeqCst: a counter of a test.
        self.inner.requests.load(Ordering::SeqCst)
    }

    /// Closes all connections, as if the server had died; new ones can be made.
    pub fn hang_up(&self) {
        lock(&self.inner.streams).drain(..).for_each(|stream| _ = stream.shutdown(std::net::Shutdown::Both));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SeqCst: a flag of a test; see the loop.
        self.inner.ends.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn serve(&self, mut stream: UnixStream, number: u64) -> std::io::Result<()> {
        let mut sent = 0;
        let (mut held, mut replies) = (0, Vec::new());
        loop {
            let mut head = [0; REQUEST];
            stream.read_exact(&mut head)?;
            let Some(asked) = Asked::from_bytes(&head) else { return Ok(()) };
            let mut data = vec![0; if asked.command == Command::Write { asked.len as usize } else { 0 }];
            stream.read_exact(&mut data)?;
            // SeqCst: a counter of a test.
            self.requests.fetch_add(1, Ordering::SeqCst);
            replies.extend(self.answer(asked, &data));
            held += 1;
            if matches!(self.fails, Fails::Gathers(many) if held < many) {
                continue;
            }
            sent = self.send(&mut stream, &replies, sent, number)?;
            held = 0;
            replies.clear();
        }
    }

    fn answer(&self, asked: Asked, data: &[u8]) -> Vec<u8> {
        let mut all = lock(&self.bytes);
        let (at, len) = (asked.at as usize, asked.len as usize);
        let cookie =
            if self.fails == Fails::Lies && asked.command == Command::Read { !asked.cookie } else { asked.cookie };
        let Some(here) = all.get_mut(at..at.saturating_add(len)) else {
            return Replied { cookie, errno: 28 }.to_bytes().to_vec();
        };
        let mut reply = Replied { cookie, errno: 0 }.to_bytes().to_vec();
        match asked.command {
            Command::Read => reply.extend_from_slice(here),
            Command::Write => here.copy_from_slice(data),
            Command::Flush => {}
        }
        reply
    }

    /// Sends a reply, or the part of it that this server sends. Returns the number of bytes that the connection has
    /// sent.
    fn send(&self, stream: &mut UnixStream, reply: &[u8], sent: u64, number: u64) -> std::io::Result<u64> {
        let most = match self.fails {
            Fails::DiesAt(most) | Fails::StallsAt(most) if number == 0 => most,
            _ => u64::MAX,
        };
        let part = reply.len().min((most - sent) as usize);
        stream.write_all(&reply[..part])?;
        if part < reply.len() {
            // SeqCst: a flag of a test.
            while matches!(self.fails, Fails::StallsAt(_)) && !self.ends.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            stream.shutdown(std::net::Shutdown::Both)?;
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        Ok(sent + reply.len() as u64)
    }
}
