//! A server, and clients that write the bytes of the protocol themselves.
#![allow(dead_code)] // Each program of tests uses a part.

pub mod handover;
pub mod talker;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sheave_iomap::{File, RawFile};
use sheave_serve::{Address, Allow, Backend, Export, Exports, Listener, Notice, ServeError, Server, ServerOptions};

pub const SIZE: u64 = 64 << 20;

#[derive(Debug)]
pub struct Device(pub Arc<dyn File>);

impl Backend for Device {
    fn file(&self) -> &Arc<dyn File> {
        &self.0
    }
}

/// A server of a device in memory.
pub struct Rig {
    pub server: Server,
    pub socket: PathBuf,
    pub notices: Arc<Mutex<Vec<String>>>,
    _dir: Arc<tempfile::TempDir>,
}

pub fn rig(options: ServerOptions) -> Option<Rig> {
    rig_of("ram:size=64M", options)
}

/// Starts a server of the device of a spec. `None` without io_uring.
pub fn rig_of(spec: &str, options: ServerOptions) -> Option<Rig> {
    let device = sheave_drivers::open_device(spec).expect("a device");
    rig_with(Box::new(Device(Arc::new(RawFile::new(device)))), options)
}

/// Starts a server of a backend.
pub fn rig_with(backend: Box<dyn Backend>, options: ServerOptions) -> Option<Rig> {
    rig_export(false, backend, options)
}

/// Starts a server of a backend, read-only or not.
pub fn rig_export(read_only: bool, backend: Box<dyn Backend>, options: ServerOptions) -> Option<Rig> {
    let (dir, listener) = listener();
    rig_at(dir, vec![listener], read_only, backend, options)
}

/// Makes a listening socket in a directory of its own.
pub fn listener() -> (Arc<tempfile::TempDir>, Listener) {
    let dir = Arc::new(tempfile::tempdir().expect("a directory"));
    let listener = Listener::bind(&Address::Unix(dir.path().join("s"))).expect("it listens");
    (dir, listener)
}

/// Starts a server of a backend at these sockets. The first one is `s` in the directory.
pub fn rig_at(
    dir: Arc<tempfile::TempDir>,
    listeners: Vec<Listener>,
    read_only: bool,
    backend: Box<dyn Backend>,
    options: ServerOptions,
) -> Option<Rig> {
    let socket = dir.path().join("s");
    let export = Export {
        name: "x".into(),
        description: String::new(),
        read_only,
        allow: Allow::All,
        backend,
        vhost_user: None,
    };
    let notices = Arc::new(Mutex::new(Vec::new()));
    let heard = notices.clone();
    let hear = Box::new(move |notice: &Notice<'_>| heard.lock().expect("nobody panics").push(notice.to_string()));
    match Server::start(Exports::new(vec![export]), listeners, options, hear) {
        Ok(server) => Some(Rig { server, socket, notices, _dir: dir }),
        Err(error @ (ServeError::Ring(_) | ServeError::OldKernel(_))) => {
            sheave_testkit::skip(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn options() -> ServerOptions {
    ServerOptions { reactors: 2, ..ServerOptions::default() }
}

impl Rig {
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("it answers");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        stream
    }

    /// Connects a client in the transmission phase.
    pub fn client(&self) -> UnixStream {
        self.try_client().expect("a greeting and an export")
    }

    /// Connects a client in the transmission phase. Fails if the server drops it before.
    pub fn try_client(&self) -> std::io::Result<UnixStream> {
        let mut stream = self.connect();
        stream.read_exact(&mut [0; 18])?;
        stream.write_all(&[vec![0, 0, 0, 3], option(1, b"x")].concat())?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        assert_eq!(export[..8], SIZE.to_be_bytes());
        Ok(stream)
    }

    /// Asserts that the server still serves a new client.
    pub fn serves(&self) {
        let mut client = self.client();
        for cookie in 0..20u64 {
            let bytes = vec![cookie as u8; 4096];
            client.write_all(&[request(1, cookie, cookie << 12, 4096), bytes.clone()].concat()).expect("sent");
            assert_eq!(reply(&mut client), (0, cookie));
            client.write_all(&request(0, cookie, cookie << 12, 4096)).expect("sent");
            assert_eq!(reply(&mut client), (0, cookie));
            let mut back = vec![0; 4096];
            client.read_exact(&mut back).expect("data");
            assert!(back == bytes);
        }
    }

    /// Returns true if a notice contains `words`, waiting for it up to thirty seconds.
    pub fn heard(&self, words: &str) -> bool {
        let until = Instant::now() + Duration::from_secs(30);
        while !self.notices.lock().expect("nobody panics").iter().any(|notice| notice.contains(words)) {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

pub fn request(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let head = [0x2560_9513u32.to_be_bytes().as_slice(), &[0, 0], &command.to_be_bytes()].concat();
    [&head, cookie.to_be_bytes().as_slice(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Receives a simple reply. Returns its error and cookie.
pub fn reply(stream: &mut UnixStream) -> (u32, u64) {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).expect("a reply");
    let error = u32::from_be_bytes(bytes[4..8].try_into().expect("four"));
    (error, u64::from_be_bytes(bytes[8..].try_into().expect("eight")))
}

/// Returns how often a backend was `looked` at, on behalf of another client that has just begun, before this client had
/// ten reads answered.
pub fn looked_before_ten_reads(client: &mut UnixStream, looked: &AtomicUsize) -> usize {
    while looked.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_micros(100));
    }
    for cookie in 0..10 {
        client.write_all(&request(0, cookie, 0, 512)).expect("sent");
        assert_eq!(reply(client), (0, cookie));
        client.read_exact(&mut [0; 512]).expect("data");
    }
    looked.load(Ordering::Relaxed)
}

/// Returns true if the server closes the connection within the read timeout.
pub fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = Vec::new();
    // A reset counts as an end.
    !matches!(stream.read_to_end(&mut rest), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Connects a client that has negotiated extended headers.
pub fn extended(rig: &Rig) -> UnixStream {
    let mut stream = rig.connect();
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    stream.write_all(&[vec![0, 0, 0, 3], option(11, b"")].concat()).expect("sent");
    stream.read_exact(&mut [0; 20]).expect("an acknowledgement");
    stream.write_all(&option(7, b"\0\0\0\0\0\0")).expect("sent");
    stream.read_exact(&mut [0; 20 + 12 + 20 + 14 + 20]).expect("an export");
    stream
}

/// Returns a request with 64-bit lengths.
pub fn extended_request(command: u16, flags: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
    let head = [0x21e4_1c71u32.to_be_bytes().as_slice(), &flags.to_be_bytes(), &command.to_be_bytes()].concat();
    [&head, cookie.to_be_bytes().as_slice(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

impl Rig {
    /// Asserts that requests of a new client are answered.
    pub fn serves_alone(&self, len: u32) {
        let mut client = self.client();
        for cookie in 0..50 {
            client.write_all(&request(0, cookie, cookie << 12, len)).expect("sent");
            assert_eq!(reply(&mut client), (0, cookie));
            client.read_exact(&mut vec![0; len as usize]).expect("data");
        }
    }
}

/// Sets its flag when it is dropped, also by a panic: threads that run until then end.
pub struct Ends<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns true if something has arrived.
pub fn has_bytes(stream: &UnixStream) -> bool {
    rustix::io::ioctl_fionread(stream).expect("a socket") > 0
}
