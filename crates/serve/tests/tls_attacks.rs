//! TLS clients that break the rules of TLS, or those of NBD inside it.

#[path = "rig/certificates.rs"]
mod certificates;
mod rig;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sheave_iomap::RawFile;
use sheave_serve::{ServerOptions, Tls};

use sheave_testkit::certificates::Authority;

use certificates::tls;
use rig::{Device, Rig, SIZE, is_closed, listener, option, options, request, rig_at};

const STARTTLS: u32 = 5;

fn server(tls: Tls, options: ServerOptions) -> Option<Rig> {
    let (dir, unix) = listener();
    unix.set_tls(Some(tls));
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    rig_at(dir, vec![unix], false, Box::new(Device(Arc::new(RawFile::new(device)))), options)
}

/// Connects a client that has sent STARTTLS and received its acknowledgement.
fn asked(rig: &Rig) -> UnixStream {
    let mut stream = rig.connect();
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    stream.write_all(&[vec![0, 0, 0, 3], option(STARTTLS, b"")].concat()).expect("sent");
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[12..16], 1u32.to_be_bytes(), "an acknowledgement");
    stream
}

type Client = StreamOwned<ClientConnection, UnixStream>;

/// Connects a client that begins TLS with its next byte.
fn secured(rig: &Rig, authority: &Authority) -> Client {
    let path = authority.anonymous().join("ca-cert.pem");
    let mut roots = RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(path).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).expect("a client"), asked(rig))
}

/// Connects a client in the transmission phase.
fn chosen(rig: &Rig, authority: &Authority) -> Client {
    let mut client = secured(rig, authority);
    client.write_all(&option(1, b"x")).expect("sent");
    let mut export = [0; 10];
    client.read_exact(&mut export).expect("an export");
    assert_eq!(export[..8], SIZE.to_be_bytes());
    client
}

fn read_back(client: &mut Client, cookie: u64, offset: u64, len: usize) -> Vec<u8> {
    client.write_all(&request(0, cookie, offset, len as u32)).expect("sent");
    let mut bytes = vec![0; 16 + len];
    client.read_exact(&mut bytes).expect("a reply");
    assert_eq!(bytes[4..16], [&[0; 4], cookie.to_be_bytes().as_slice()].concat());
    bytes.split_off(16)
}

#[test]
fn writes_and_reads_of_all_lengths_come_through() {
    let authority = Authority::new();
    let Some(rig) = server(tls(&authority, true), options()) else { return };
    let mut client = chosen(&rig, &authority);
    for (cookie, len) in [512, 4096, 16384, 16896, 65536, 1 << 20, 8 << 20].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..len).map(|at| (at as u64 * 7 + cookie as u64).to_le_bytes()[at % 3]).collect();
        client.write_all(&[request(1, 9, 512, len as u32), bytes.clone()].concat()).expect("sent");
        client.read_exact(&mut [0; 16]).expect("a reply");
        assert!(read_back(&mut client, cookie as u64, 512, len) == bytes, "{len}");
    }
    // A goodbye is answered by the end of TLS (close_notify), not only by a closed socket.
    client.write_all(&request(2, 0, 0, 0)).expect("sent");
    assert_eq!(client.read(&mut [0; 16]).expect("the end of TLS"), 0);
    assert!(rig.notices.lock().expect("nobody panics").is_empty());
    rig.server.stop().expect("it ends");
}

#[test]
fn what_is_sent_in_the_clear_behind_starttls_ends_the_connection() {
    // The class of CVE-2021-3716 (nbdkit) and of the STARTTLS attacks on mail servers: a third party between client and
    // server adds bytes in the clear. They must not count before TLS, nor as if they had come through TLS.
    let authority = Authority::new();
    for required in [true, false] {
        let Some(rig) = server(tls(&authority, required), options()) else { return };
        for injected in [option(3, b""), option(7, b"\0\0\0\x01x\0\0"), vec![b'I'], vec![0x16, 3, 1]] {
            rig.notices.lock().expect("nobody panics").clear();
            let mut stream = rig.connect();
            stream.write_all(&[vec![0, 0, 0, 3], option(STARTTLS, b""), injected].concat()).expect("sent");
            let mut all = Vec::new();
            // A reset counts as an end.
            let _ = stream.read_to_end(&mut all);
            assert!(all.len() <= 18 + 20, "something was answered: {} bytes", all.len());
            assert!(rig.heard("it sent something in the clear after STARTTLS"));
        }
        // Sent a little later, the bytes are parsed as TLS, which they are not.
        let mut stream = asked(&rig);
        stream.write_all(&[option(3, b""), option(7, b"\0\0\0\x01x\0\0")].concat()).expect("sent");
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        // The reply is a TLS alert at most.
        assert!(all.len() <= 7 && all.first().is_none_or(|kind| *kind == 0x15), "{all:?}");
        assert!(rig.heard("TLS: "));
        read_back(&mut chosen(&rig, &authority), 1, 0, 512);
        rig.server.stop().expect("it ends");
    }
}

#[test]
fn who_stalls_in_the_handshake_of_tls_is_dropped_in_time() {
    let authority = Authority::new();
    // Long enough for the handshake of TLS on a busy machine.
    let handshake = Duration::from_secs(4);
    let Some(rig) = server(tls(&authority, true), ServerOptions { handshake, ..options() }) else { return };
    let from = Instant::now();
    let mut silent = asked(&rig);
    // One client sends the first bytes of a message that never ends; one completes the TLS handshake and then sends
    // nothing.
    let mut slow = asked(&rig);
    slow.write_all(&[0x16, 3, 1, 0x02, 0, 1, 0, 1, 0xfc, 3, 3]).expect("sent");
    let mut mute = secured(&rig, &authority);
    mute.conn.complete_io(&mut mute.sock).expect("TLS begins");
    assert!(is_closed(&mut silent) && is_closed(&mut slow));
    let end = mute.read(&mut [0; 1]);
    assert!(matches!(&end, Ok(0)) || end.is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof));
    assert!(from.elapsed() >= handshake);
    assert!(rig.heard("it did not choose an export in time"));
    rig.server.stop().expect("it ends");
}

#[test]
fn who_leaves_in_any_byte_of_tls_harms_nobody() {
    let authority = Authority::new();
    let Some(rig) = server(tls(&authority, true), options()) else { return };
    let mut hello = Vec::new();
    let mut client = secured(&rig, &authority);
    client.conn.write_tls(&mut hello).expect("a hello");
    drop(client);
    for cut in (0..hello.len()).step_by(7) {
        // Once cut off, and once with a wrong byte.
        let mut stream = asked(&rig);
        stream.write_all(&hello[..cut]).expect("sent");
        drop(stream);
        let mut wrong = hello.clone();
        wrong[cut] ^= 0x80;
        let mut stream = asked(&rig);
        // Fails if the server has closed the connection before everything is sent.
        let _ = stream.write_all(&wrong);
        drop(stream);
    }
    // Also in the middle of a record of a write, and with many reads in flight whose replies are not received.
    let mut client = chosen(&rig, &authority);
    let mut record = Vec::new();
    client.conn.writer().write_all(&[request(1, 1, 0, 8192), vec![5; 8192]].concat()).expect("room");
    client.conn.write_tls(&mut record).expect("a record");
    client.sock.write_all(&record[..record.len() / 2]).expect("sent");
    drop(client);
    let mut client = chosen(&rig, &authority);
    let reads: Vec<u8> = (0..256).flat_map(|cookie| request(0, cookie, cookie << 16, 65536)).collect();
    client.write_all(&reads).expect("sent");
    drop(client);
    assert_eq!(read_back(&mut chosen(&rig, &authority), 3, 0, 8192), vec![0; 8192], "half a write changes nothing");
    rig.server.stop().expect("it ends");
}

#[test]
fn a_record_that_somebody_has_changed_ends_the_connection() {
    let authority = Authority::new();
    let Some(rig) = server(tls(&authority, true), options()) else { return };
    let mut client = chosen(&rig, &authority);
    let mut record = Vec::new();
    client.conn.writer().write_all(&[request(1, 1, 0, 512), vec![5; 512]].concat()).expect("room");
    client.conn.write_tls(&mut record).expect("a record");
    let last = record.len() - 20;
    record[last] ^= 1;
    client.sock.write_all(&record).expect("sent");
    assert!(client.read(&mut [0; 1]).is_err(), "an alert, and the end");
    assert!(rig.heard("TLS: cannot decrypt peer's message"));
    assert_eq!(read_back(&mut chosen(&rig, &authority), 3, 0, 512), vec![0; 512]);
    rig.server.stop().expect("it ends");
}

#[test]
fn who_does_not_take_records_holds_up_nobody_else_and_no_more_than_its_part() {
    let authority = Authority::new();
    let options = ServerOptions { client_bytes: 1 << 20, reactors: 1, ..options() };
    let Some(rig) = server(tls(&authority, true), options) else { return };
    let mut deaf = chosen(&rig, &authority);
    let reads: Vec<u8> = (0..400).flat_map(|cookie| request(0, cookie, cookie << 16, 65536)).collect();
    deaf.write_all(&reads).expect("sent");
    for cookie in 0..50 {
        read_back(&mut chosen(&rig, &authority), cookie, cookie << 12, 4096);
    }
    // Once the client receives the records, they are complete.
    let mut reply = vec![0; 16 + 65536];
    for cookie in 0..400u64 {
        deaf.read_exact(&mut reply).expect("a reply");
        assert!(reply[4..8] == [0; 4] && reply[8..16] < 400u64.to_be_bytes()[..], "{cookie}");
    }
    rig.server.stop().expect("it ends");
}

/// A client that sends close_notify, or only shuts down its half of the socket, is dropped.
#[test]
fn who_closes_its_half_is_let_go() {
    let authority = Authority::new();
    let Some(rig) = server(tls(&authority, true), options()) else { return };
    for says_so in [true, false] {
        let mut client = chosen(&rig, &authority);
        let reads: Vec<u8> = (0..64).flat_map(|cookie| request(0, cookie, cookie << 16, 65536)).collect();
        client.write_all(&reads).expect("sent");
        if says_so {
            client.conn.send_close_notify();
            client.conn.write_tls(&mut client.sock).expect("sent");
        }
        client.sock.shutdown(std::net::Shutdown::Write).expect("half of it");
        // There may be replies or none, and then the end.
        assert!(is_closed(&mut client.sock), "{says_so}");
        let until = Instant::now() + Duration::from_secs(30);
        while !rig.server.clients().is_empty() {
            assert!(Instant::now() < until, "it is still there: {says_so}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    read_back(&mut chosen(&rig, &authority), 1, 0, 512);
    rig.server.stop().expect("it ends");
}
