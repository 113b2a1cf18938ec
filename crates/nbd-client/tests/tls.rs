//! TLS with servers of other projects: I/O, and the errors when client and server do not agree.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rig::{EIO, ETIMEDOUT, FLAGS, MIB, filled, is_listening, registry, results, ring};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sheave::op;
use sheave_conformance::Suite;
use sheave_nbd::wire;
use sheave_testkit::certificates::Authority;

/// A server that ends with its test.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &str, socket: &Path, args: &[&str]) -> Option<Peer> {
    let path = sheave_testkit::require(program)?;
    let _ = std::fs::remove_file(socket);
    let child = Command::new(path).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut peer = Peer(child.expect("it starts"));
    let from = Instant::now();
    while !is_listening(socket) {
        let ended = peer.0.try_wait().expect("asked");
        assert!(ended.is_none() && from.elapsed() < Duration::from_secs(30), "{program} {args:?}: {ended:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(peer)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Returns a spec with the authority, and with the client's certificate if the directory has one.
fn spec(socket: &Path, dir: &Path, own: bool, keys: &str) -> String {
    let own = match own {
        true => format!(",cert={0}/client-cert.pem,key={0}/client-key.pem", dir.display()),
        false => String::new(),
    };
    format!("nbd:unix:{},ca={}/ca-cert.pem,tls-hostname=localhost{own}{keys}", socket.display(), dir.display())
}

fn nbdkit(socket: &Path, tls: &str, authority: &Authority, more: &[&str]) -> Option<Peer> {
    let certificates = format!("--tls-certificates={}", authority.server().display());
    let args = ["-f", "-U", text(socket), tls, &certificates];
    start("nbdkit", socket, &[args.as_slice(), more, &["memory", "16M"]].concat())
}

/// Writes distinct data, flushes it and reads it again, in lengths that end within records and that fill many records.
/// Repeats this after the connection was lost.
fn holds_data(spec: &str, cut: &mut dyn FnMut()) {
    let device = registry().open(spec).expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    let sizes = [512usize, 4096, 16_384, 20_480, 262_144, 1 << 20];
    for round in 0..3u8 {
        for (number, len) in sizes.iter().enumerate() {
            let buf = filled(*len, round * 16 + number as u8 + 1);
            ring.push(op::write(fd, buf).offset(number as u64 * (2 << 20))).expect("room");
        }
        assert!(results(&mut ring, sizes.len() as u32).iter().all(|done| done.1 > 0));
        ring.push(op::fsync(fd)).expect("room");
        assert_eq!(results(&mut ring, 1)[0].1, 0);
        if round == 1 {
            cut();
        }
        for (number, len) in sizes.iter().enumerate() {
            ring.push(op::read(fd, filled(*len, 0xee)).offset(number as u64 * (2 << 20)).user_data(number as u64))
                .expect("room");
        }
        ring.submit_and_wait(sizes.len() as u32).expect("submitted");
        for _ in sizes {
            let done = ring.pop().expect("it was waited for");
            let (number, res) = (done.user_data as usize, done.res);
            assert_eq!(res, sizes[number] as i32);
            let buf = done.into_buf().expect("its buffer");
            let expected = round * 16 + number as u8 + 1;
            assert!(buf.iter().all(|byte| *byte == expected), "{number} of round {round}");
        }
    }
}

#[test]
fn nbdkit_with_tls_passes_the_suite_and_is_connected_to_again() {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let (socket, file) = (dir.path().join("s"), dir.path().join("image"));
    std::fs::File::create(&file).and_then(|file| file.set_len(16 << 20)).expect("made");
    let certificates = format!("--tls-certificates={}", authority.server().display());
    let args = ["-f", "-U", text(&socket), "--tls=require", &certificates, "file", text(&file)];
    let Some(peer) = start("nbdkit", &socket, &args) else { return };
    let with = spec(&socket, &authority.server(), false, "");
    let mut peer = Some(peer);
    holds_data(&with, &mut || {
        drop(peer.take());
        peer = start("nbdkit", &socket, &args);
    });
    let known = registry().open(&with).expect("opened").extents(0).expect("it tells");
    assert!(!known.is_empty() && known.iter().any(|extent| extent.zero), "{known:?}");
    Suite::new(move || registry().open(&with)).run().assert_passed();
}

#[test]
fn qemu_nbd_with_tls_wants_a_certificate_and_gets_it() {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let (socket, file) = (dir.path().join("s"), dir.path().join("image"));
    std::fs::File::create(&file).and_then(|file| file.set_len(16 << 20)).expect("made");
    let creds = format!("tls-creds-x509,id=t,endpoint=server,verify-peer=yes,dir={}", authority.server().display());
    let args =
        ["-k", text(&socket), "-t", "--shared=8", "-f", "raw", "--object", &creds, "--tls-creds", "t", text(&file)];
    let Some(_peer) = start("qemu-nbd", &socket, &args) else { return };
    let client = authority.issue("client", "a client");
    holds_data(&spec(&socket, &client, true, ",multi_conn=assume"), &mut || {});
    let why = registry().open(&spec(&socket, &client, false, "")).expect_err("no certificate").to_string();
    assert!(why.contains("cert=PATH and key=PATH"), "{why}");
}

#[test]
fn mismatched_settings_are_named_with_their_fix() {
    let (dir, authority, other) = (tempfile::tempdir().expect("a directory"), Authority::new(), Authority::new());
    let socket = dir.path().join("s");
    let Some(peer) = nbdkit(&socket, "--tls=require", &authority, &[]) else { return };
    let (right, wrong) = (authority.server(), other.server());
    let why = |spec: String| registry().open(&spec).expect_err("refused").to_string();
    let clear = format!("nbd:unix:{}", socket.display());
    for (spec, says) in [
        (clear.clone(), "it wants TLS"),
        (clear, "tls=require"),
        (spec(&socket, &wrong, false, ""), "issued by none of the authorities in the file of ca="),
        (spec(&socket, &right, false, "").replace("=localhost", "=other.example"), "not for other.example, but for"),
        (spec(&socket, &right, false, "").replace("=localhost", "=other.example"), "tls-hostname=NAME"),
    ] {
        let why = why(spec);
        assert!(why.contains(says), "{why}, not: {says}");
    }
    drop(peer);
    let Some(peer) = nbdkit(&socket, "--tls=off", &authority, &[]) else { return };
    let why = why(spec(&socket, &right, false, ""));
    assert!(why.contains("TLS is required, and it refuses it") && why.contains("tls=off"), "{why}");
    let device = registry().open(&spec(&socket, &right, false, ",tls=allow")).expect("opened");
    assert!(device.notices()[0].contains("it offers no TLS"), "{:?}", device.notices());
    drop((device, peer));
}

#[test]
fn a_server_that_was_secure_is_not_connected_to_in_the_clear() {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let socket = dir.path().join("s");
    let Some(peer) = nbdkit(&socket, "--tls=on", &authority, &[]) else { return };
    let device = registry().open(&spec(&socket, &authority.server(), false, ",tls=allow,timeout=1s")).expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    ring.push(op::write(fd, filled(4096, 1))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
    drop(peer);
    let Some(_peer) = nbdkit(&socket, "--tls=off", &authority, &[]) else { return };
    // On a busy machine the time of the first reads may be over before a connection was tried.
    let from = Instant::now();
    while !device.notices().iter().any(|text| text.contains("TLS is required, and it refuses it")) {
        assert!(from.elapsed() < Duration::from_secs(30), "{:?}", device.notices());
        ring.push(op::read(fd, filled(4096, 0xee))).expect("room");
        let res = results(&mut ring, 1)[0].1;
        assert!(res == -rig::ETIMEDOUT || res == -EIO, "{res}");
    }
}

/// Starts a server with TLS that answers writes of a MiB with simple replies as soon as one byte of each write has
/// arrived. It receives nothing more of them; the data that waits in its socket shows their number. All connections
/// except the first answer reads.
fn hasty(listener: &UnixListener, config: &Arc<ServerConfig>) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        let (stream, config) = (stream.expect("accepted"), config.clone());
        std::thread::spawn(move || hasty_one(stream, config, number == 0));
    }
}

fn hasty_one(mut plain: UnixStream, config: Arc<ServerConfig>, is_first: bool) -> std::io::Result<()> {
    let answer = |option: u32, kind: u32, data: &[u8]| {
        let head = [option.to_be_bytes(), kind.to_be_bytes(), (data.len() as u32).to_be_bytes()].concat();
        [wire::OPTION_REPLY_MAGIC.to_be_bytes().as_slice(), &head, data].concat()
    };
    let option = |stream: &mut dyn Read| -> std::io::Result<u32> {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
        stream.read_exact(&mut vec![0; number(12) as usize])?;
        Ok(number(8))
    };
    plain.write_all(&[wire::INIT_MAGIC.to_be_bytes(), wire::OPTION_MAGIC.to_be_bytes()].concat())?;
    plain.write_all(&[0, 3])?;
    plain.read_exact(&mut [0; 4])?;
    assert_eq!(option(&mut plain)?, wire::opt::STARTTLS);
    plain.write_all(&answer(wire::opt::STARTTLS, wire::rep::ACK, b""))?;
    let session = ServerConnection::new(config).expect("a session");
    let mut stream = StreamOwned::new(session, plain);
    loop {
        let asked = option(&mut stream)?;
        if asked != wire::opt::GO {
            stream.write_all(&answer(asked, wire::rep::ERR_UNSUP, b""))?;
            continue;
        }
        let export = [[0; 2].as_slice(), &(64 * MIB as u64).to_be_bytes(), &FLAGS.to_be_bytes()].concat();
        stream.write_all(&[answer(asked, wire::rep::INFO, &export), answer(asked, wire::rep::ACK, b"")].concat())?;
        break;
    }
    loop {
        let mut head = [0; 28];
        stream.read_exact(&mut head)?;
        let mut cookie = u64::from_be_bytes(head[8..16].try_into().expect("eight bytes"));
        let reply =
            |cookie: u64| [&wire::SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes()].concat();
        if !is_first {
            stream.write_all(&[reply(cookie), vec![7; 4096]].concat())?;
            continue;
        }
        let (mut before, mut waits) = (u64::MAX, 0);
        while before != waits {
            before = waits;
            std::thread::sleep(Duration::from_millis(100));
            waits = rustix::io::ioctl_fionread(&stream.sock)?;
        }
        for _ in 0..=waits as usize / (MIB + 4096) {
            stream.write_all(&reply(cookie))?;
            cookie += (1 << 16) + 1;
        }
        loop {
            std::thread::park();
        }
    }
}

#[test]
fn a_connection_that_takes_nothing_more_is_replaced_though_all_that_was_sent_was_answered() {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let (socket, keys) = (dir.path().join("s"), authority.server());
    let chain = sheave_nbd::tls::certificates(&keys.join("server-cert.pem")).expect("read");
    let key = sheave_nbd::tls::key(&keys.join("server-key.pem")).expect("read");
    let config = ServerConfig::builder_with_provider(Arc::new(sheave_nbd::tls::provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key);
    let config = Arc::new(config.expect("a certificate"));
    let listener = UnixListener::bind(&socket).expect("listening");
    std::thread::spawn(move || hasty(&listener, &config));
    let device = registry().open(&spec(&socket, &keys, false, ",connections=1,timeout=2s")).expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    // More than the socket takes.
    for number in 0..24 {
        ring.push(op::write(fd, filled(MIB, 1)).offset(number * MIB as u64).user_data(number)).expect("room");
    }
    let written = results(&mut ring, 24);
    assert!(written.iter().any(|done| done.1 == MIB as i32), "{written:?}");
    assert!(written.iter().any(|done| done.1 == -ETIMEDOUT), "the others wait behind what is stuck: {written:?}");
    ring.push(op::read(fd, filled(4096, 0xee)).user_data(99)).expect("room");
    assert_eq!(results(&mut ring, 1), [(99, 4096)], "{:?}", device.notices());
}
