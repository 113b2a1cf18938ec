//! Vulnerabilities of other servers by CVE number: each has a test here, against a running server.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheave_iomap::{File, RawFile};
use sheave_nbd::Extent;
use sheave_serve::{Backend, NoStatus, Question, ServerOptions};

use rig::{Rig, extended_request, is_closed, option, options, request, rig, rig_with};

const ABORT: u32 = 2;
const STARTTLS: u32 = 5;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const LIST_META_CONTEXT: u32 = 9;
const SET_META_CONTEXT: u32 = 10;
const EXTENDED_HEADERS: u32 = 11;
const ACK: u32 = 1;
const ERR_UNSUP: u32 = 0x8000_0001;
const ERR_INVALID: u32 = 0x8000_0003;
const ERR_UNKNOWN: u32 = 0x8000_0006;

/// Connects a client that has greeted the server.
fn greeted(rig: &Rig) -> UnixStream {
    let mut stream = rig.connect();
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    stream.write_all(&[0, 0, 0, 3]).expect("sent");
    stream
}

/// Sends an option. Returns the types of its replies, of which the last one ends it.
fn ask(stream: &mut UnixStream, number: u32, data: &[u8]) -> Vec<u32> {
    stream.write_all(&option(number, data)).expect("sent");
    let mut kinds = Vec::new();
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).expect("a reply");
        let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
        stream.read_exact(&mut vec![0; field(16) as usize]).expect("its data");
        assert_eq!(field(8), number, "the option that it answers");
        kinds.push(field(12));
        if field(12) == ACK || field(12) >= 1 << 31 {
            return kinds;
        }
    }
}

/// Returns a string after its length.
fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// Returns the data of INFO and GO.
fn go(name: &str) -> Vec<u8> {
    [string(name), vec![0, 0]].concat()
}

/// A backend with an extent that is longer than 32 bits can say, and longer than any question.
#[derive(Debug)]
struct Endless(Arc<dyn File>);

impl Backend for Endless {
    fn file(&self) -> &Arc<dyn File> {
        &self.0
    }

    fn extents(&self, _: &Question) -> Result<Vec<Extent>, NoStatus> {
        Ok(vec![Extent { len: 512, status: 3 }, Extent { len: u64::MAX - 512, status: 0 }])
    }
}

/// Connects a client that may ask for the extents of 8 GiB.
fn curious(rig: &Rig, headers: u32) -> UnixStream {
    let mut stream = greeted(rig);
    assert_eq!(ask(&mut stream, headers, b""), [ACK]);
    let queries = [string("x"), 1u32.to_be_bytes().to_vec(), string("base:allocation")].concat();
    assert_eq!(ask(&mut stream, SET_META_CONTEXT, &queries).last(), Some(&ACK));
    assert_eq!(ask(&mut stream, GO, &go("x")).last(), Some(&ACK));
    stream
}

fn endless() -> Option<Rig> {
    let device = sheave_drivers::open_device("null:size=8G").expect("a device");
    rig_with(Box::new(Endless(Arc::new(RawFile::new(device)))), options())
}

/// Asserts that the server still answers valid questions.
fn serves(rig: Rig) {
    let mut client = curious(&rig, STRUCTURED_REPLY);
    client.write_all(&request(3, 9, 0, 0)).expect("sent");
    client.read_exact(&mut [0; 16]).expect("a flush is answered");
    rig.server.stop().expect("it ends");
}

/// nbdkit opened its backend for every connection, before anything was negotiated.
#[test]
fn cve_2019_14850_who_only_connects_opens_nothing() {
    let Some(rig) = rig(options()) else { return };
    let silent: Vec<UnixStream> = (0..40).map(|_| rig.connect()).collect();
    let until = Instant::now() + Duration::from_secs(10);
    while rig.server.clients().len() < silent.len() {
        assert!(Instant::now() < until, "they are not taken");
    }
    assert_eq!(rig.server.exports()[0].clients, 0);
    rig.serves();
    drop(silent);
    rig.server.stop().expect("it ends");
}

/// nbdkit kept what a third party between client and server had sent before STARTTLS. At an address without TLS the
/// option is refused and changes nothing; `tls_attacks.rs` tests addresses with TLS.
#[test]
fn cve_2021_3716_options_before_starttls_change_nothing_after_it() {
    let Some(rig) = rig(options()) else { return };
    let mut stream = greeted(&rig);
    assert_eq!(ask(&mut stream, STRUCTURED_REPLY, b""), [ACK]);
    assert_eq!(ask(&mut stream, STARTTLS, b""), [ERR_UNSUP]);
    assert_eq!(ask(&mut stream, GO, &go("x")).last(), Some(&ACK));
    rig.serves();
    rig.server.stop().expect("it ends");
}

/// nbdkit asserted that the extents of a plugin fit into 32 bits when it cut them to the question.
#[test]
fn cve_2025_47711_an_extent_longer_than_32_bits_is_cut_to_the_question() {
    let Some(rig) = endless() else { return };
    let mut client = curious(&rig, STRUCTURED_REPLY);
    client.write_all(&request(7, 1, 0, 0xffff_fe00)).expect("sent");
    let mut told = [0; 20 + 4 + 16];
    client.read_exact(&mut told).expect("two extents");
    let field = |at: usize| u32::from_be_bytes(told[at..at + 4].try_into().expect("four"));
    assert_eq!((field(24), field(32)), (512, 0xffff_fe00 - 512), "the question and no more");
    let mut client = curious(&rig, EXTENDED_HEADERS);
    client.write_all(&extended_request(7, 0, 1, 0, 8 << 30)).expect("sent");
    let mut told = [0; 32 + 8 + 32];
    client.read_exact(&mut told).expect("two extents");
    let field = |at: usize| u64::from_be_bytes(told[at..at + 8].try_into().expect("eight"));
    assert_eq!((field(40), field(56)), (512, (8 << 30) - 512), "the question and no more");
    serves(rig);
}

/// nbdkit's filter for block sizes rounded the length of a question up to 2^32, which is 0 in 32 bits.
#[test]
fn cve_2025_47712_a_question_that_overflows_when_it_is_rounded_is_answered() {
    let Some(rig) = endless() else { return };
    let mut client = curious(&rig, STRUCTURED_REPLY);
    for len in [u32::MAX, u32::MAX - 510, 0xffff_f001] {
        client.write_all(&request(7, 1, 0, len)).expect("sent");
        let mut head = [0; 20];
        client.read_exact(&mut head).expect("a reply");
        let bytes = u32::from_be_bytes(head[16..].try_into().expect("four"));
        assert!((1..1 << 17).contains(&bytes), "{bytes} bytes for {len}");
        client.read_exact(&mut vec![0; bytes as usize]).expect("extents, or an error");
    }
    let mut client = curious(&rig, EXTENDED_HEADERS);
    for (offset, len) in [(512, u64::MAX - 511), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        client.write_all(&extended_request(7, 0, 1, offset, len)).expect("sent");
        let mut head = [0; 32];
        client.read_exact(&mut head).expect("a reply");
        let bytes = u64::from_be_bytes(head[24..].try_into().expect("eight"));
        let mut text = vec![0; bytes as usize];
        client.read_exact(&mut text).expect("its text");
        assert_eq!(text[..4], 22u32.to_be_bytes(), "EINVAL for {len} bytes at {offset}");
    }
    serves(rig);
}

/// QEMU copied names of any length to its stack.
#[test]
fn cve_2017_15118_a_name_longer_than_a_string_may_be_is_refused() {
    let Some(rig) = rig(options()) else { return };
    let mut stream = greeted(&rig);
    assert_eq!(ask(&mut stream, STRUCTURED_REPLY, b""), [ACK]);
    for bytes in [4096, 4097, 5000, 30_000] {
        let expected = if bytes <= 4096 { ERR_UNKNOWN } else { ERR_INVALID };
        for number in [INFO, GO] {
            assert_eq!(ask(&mut stream, number, &go(&"x".repeat(bytes))), [expected], "{bytes} bytes");
        }
        let queries = [string(&"x".repeat(bytes)), vec![0; 4]].concat();
        assert_eq!(ask(&mut stream, LIST_META_CONTEXT, &queries), [expected], "{bytes} bytes");
    }
    // EXPORT_NAME has no error reply: the server has to close.
    stream.write_all(&option(1, "x".repeat(4097).as_bytes())).expect("sent");
    assert!(is_closed(&mut stream));
    rig.serves();
    rig.server.stop().expect("it ends");
}

/// QEMU continued handshakes while its server was being stopped, and crashed.
#[test]
fn cve_2024_7409_a_server_that_ends_amid_handshakes_ends() {
    for round in 0..10 {
        let Some(rig) = rig(ServerOptions { max_clients: 64, ..options() }) else { return };
        let socket = rig.socket.clone();
        let mut silent: Vec<UnixStream> = (0..20).map(|_| rig.connect()).collect();
        silent[..5].iter_mut().for_each(|stream| stream.write_all(&[0, 0, 0, 3, b'I', b'H']).expect("sent"));
        std::thread::scope(|scope| {
            // More clients connect while the server ends.
            scope.spawn(move || {
                let mut all = Vec::new();
                for _ in 0..200 {
                    // The server may be gone.
                    let Ok(mut stream) = UnixStream::connect(&socket) else { continue };
                    let _ = stream.write_all(&[vec![0, 0, 0, 3], option(ABORT, b""), option(GO, &go("x"))].concat());
                    all.push(stream);
                }
            });
            std::thread::sleep(Duration::from_millis(round));
            let from = Instant::now();
            rig.server.stop().expect("it ends");
            assert!(from.elapsed() < Duration::from_secs(5), "nobody in a handshake is waited for");
        });
        silent.iter_mut().for_each(|stream| assert!(is_closed(stream)));
    }
}

/// nbd-server added one to the length of a name that was `u32::MAX`, and wrote to memory of no bytes.
#[test]
fn cve_2022_26495_the_length_of_a_name_does_not_overflow() {
    let Some(rig) = rig(options()) else { return };
    let mut stream = greeted(&rig);
    assert_eq!(ask(&mut stream, STRUCTURED_REPLY, b""), [ACK]);
    for number in [INFO, GO, LIST_META_CONTEXT, SET_META_CONTEXT] {
        for len in [u32::MAX, u32::MAX - 1, 1 << 31, i32::MAX as u32] {
            let data = [&len.to_be_bytes(), b"x\0\0\0\0\0\0".as_slice()].concat();
            assert_eq!(ask(&mut stream, number, &data), [ERR_INVALID], "option {number}, a name of {len} bytes");
        }
    }
    assert_eq!(ask(&mut stream, GO, &go("x")).last(), Some(&ACK), "and the handshake goes on");
    rig.serves();
    rig.server.stop().expect("it ends");
}

/// nbd-server read a name of the length that the client gave to its stack.
#[test]
fn cve_2022_26496_a_name_longer_than_its_option_is_refused() {
    let Some(rig) = rig(options()) else { return };
    let mut stream = greeted(&rig);
    for number in [INFO, GO] {
        for (len, behind) in [(1024u32, 8), (4096, 100), (30_000, 20_000), (5, 4)] {
            let data = [len.to_be_bytes().to_vec(), vec![b'x'; behind]].concat();
            assert_eq!(ask(&mut stream, number, &data), [ERR_INVALID], "{len} bytes, of which {behind} came");
        }
        // The option announces as many information requests as 16 bits can, and has none.
        let data = [string("x"), vec![0xff, 0xff]].concat();
        assert_eq!(ask(&mut stream, number, &data), [ERR_INVALID]);
    }
    assert_eq!(ask(&mut stream, GO, &go("x")).last(), Some(&ACK), "and the handshake goes on");
    rig.serves();
    rig.server.stop().expect("it ends");
}
