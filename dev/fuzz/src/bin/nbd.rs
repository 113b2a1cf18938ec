//! Fuzzes the server's side of the NBD protocol: handshake, with and without TLS, and requests. The bytes after
//! STARTTLS stand for the decrypted bytes of the TLS connection.
#![no_main]

use sheave_nbd::handshake::{self, Handshake, Tls};
use sheave_nbd::session::{self, Session};
use sheave_nbd::{Catalog, ExportInfo};

struct One;

impl Catalog for One {
    fn find(&self, name: &[u8]) -> Option<ExportInfo> {
        name.is_empty().then(|| ExportInfo {
            id: 0,
            name: "x".into(),
            description: String::new(),
            size: 1 << 40,
            read_only: false,
            fast_zero: true,
            min_block: 512,
            preferred_block: 4096,
        })
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each("x", "");
    }

    fn exports(&self) -> usize {
        1
    }

    fn contexts(&self, _: u32, each: &mut dyn FnMut(&str)) {
        each("qemu:allocation-depth");
    }

    fn context(&self, _: u32, name: &[u8]) -> Option<u64> {
        (name == b"qemu:allocation-depth").then_some(7)
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((tls, data)) = data.split_first() else { return };
    let tls = [Tls::Off, Tls::Allowed, Tls::Required][usize::from(*tls) % 3];
    let mut out = Vec::new();
    let mut handshake = Handshake::new(tls, &mut out);
    let mut at = 0;
    let mut started = false;
    let chosen = loop {
        let (used, step) = handshake.step(&data[at..], &One, &mut out);
        at += used;
        match step {
            handshake::Step::Negotiated(chosen) => break chosen,
            handshake::Step::Done | handshake::Step::Searched => {}
            handshake::Step::StartTls => {
                assert!(tls != Tls::Off && !started);
                started = true;
                // No byte is consumed before TLS has begun, and no result of the negotiation before TLS is kept.
                let had = out.len();
                assert_eq!(handshake.step(&data[at..], &One, &mut out), (0, handshake::Step::StartTls));
                assert_eq!(out.len(), had);
                handshake.tls_started();
                let mut fresh = Handshake::new(Tls::Required, &mut Vec::new());
                fresh.step(&data[..4], &One, &mut Vec::new());
                fresh.tls_started();
                assert_eq!(handshake, fresh);
            }
            handshake::Step::More | handshake::Step::Close => return,
        }
    };
    assert!(started || tls != Tls::Required);
    let mut session = Session::new(&chosen);
    loop {
        let (used, step) = session.next(&data[at..]);
        at += used;
        match step {
            session::Step::Request(request) => {
                assert!(request.offset.checked_add(request.len).is_some_and(|end| end <= 1 << 40));
                session.done(&request, &mut out);
            }
            session::Step::Refused(refused) => session.refused(&refused, &mut out),
            session::Step::Skipped | session::Step::Payload => assert!(used > 0),
            session::Step::More | session::Step::Disconnect | session::Step::Broken(_) => return,
        }
    }
});
