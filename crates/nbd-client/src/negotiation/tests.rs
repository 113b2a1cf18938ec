//! The handshake against our server's side, against one written out by hand, and against random bytes.

use proptest::prelude::*;
use sheave_nbd::handshake::{self, Handshake, Mode, Tls};
use sheave_nbd::wire::{self, opt, rep, tflag};
use sheave_nbd::{Catalog, ExportInfo};

use super::{Agreed, Export, MAX_REPLY, Negotiation, Wish};

struct One;

impl Catalog for One {
    fn find(&self, name: &[u8]) -> Option<ExportInfo> {
        (name == b"disk").then(|| ExportInfo {
            id: 0,
            name: "disk".into(),
            description: String::new(),
            size: 5 << 30,
            read_only: false,
            fast_zero: true,
            min_block: 512,
            preferred_block: 8192,
        })
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each("disk", "");
    }

    fn exports(&self) -> usize {
        1
    }

    fn contexts(&self, _: u32, _: &mut dyn FnMut(&str)) {}

    fn context(&self, _: u32, _: &[u8]) -> Option<u64> {
        None
    }
}

/// Runs the handshake with our server, a few bytes at a time.
fn with_ours(name: &str, tls: Tls, bytes_at_a_time: usize) -> Result<Export, String> {
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    let mut server = Handshake::new(tls, &mut to_client);
    let mut client = Negotiation::new(name, Wish::Off, true);
    let (mut arrived, mut chosen) = (Vec::new(), None);
    for _ in 0..100_000 {
        while chosen.is_none() {
            let (used, step) = server.step(&to_server, &One, &mut to_client);
            to_server.drain(..used);
            match step {
                handshake::Step::Negotiated(negotiated) => chosen = Some(negotiated),
                handshake::Step::More | handshake::Step::Close => break,
                _ => {}
            }
        }
        let many = bytes_at_a_time.min(to_client.len());
        arrived.extend(to_client.drain(..many));
        let (used, export) = client.step(&arrived, &mut to_server)?;
        arrived.drain(..used);
        if let Some(Agreed::Export(export)) = export {
            assert!(chosen.is_some() && arrived.is_empty() && to_client.is_empty());
            assert_eq!(chosen.expect("it is there").mode, export.mode);
            return Ok(export);
        }
    }
    panic!("it does not come to an end");
}

#[test]
fn with_our_server_it_comes_to_extended_headers_in_pieces_of_any_size() {
    for bytes in [1, 2, 3, 7, 20, 10_000] {
        let export = with_ours("disk", Tls::Off, bytes).expect("an export");
        assert_eq!((export.size, export.mode), (5 << 30, Mode::Extended));
        assert_eq!((export.min_block, export.preferred_block), (512, 8192));
        assert_eq!(export.name.as_deref(), Some("disk"));
        assert!(export.has(tflag::SEND_FLUSH) && export.has(tflag::SEND_FUA) && export.has(tflag::CAN_MULTI_CONN));
    }
}

#[test]
fn a_refusal_names_cause_and_fix() {
    let unknown = with_ours("other", Tls::Off, 1000).expect_err("no such export");
    assert!(unknown.contains("no export 'other'") && unknown.contains("nbdinfo --list"), "{unknown}");
    let tls = with_ours("disk", Tls::Required, 1000).expect_err("TLS");
    assert!(tls.contains("wants TLS") && tls.contains("tls=require") && tls.contains("ca=PATH"), "{tls}");
}

fn greeting(flags: u16) -> Vec<u8> {
    [wire::INIT_MAGIC.to_be_bytes().as_slice(), &wire::OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()].concat()
}

fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    [option, kind, data.len() as u32].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
    bytes.extend(data);
    bytes
}

/// Feeds all messages, one after the other.
fn feed(script: &[Vec<u8>]) -> Result<Option<Export>, String> {
    let (mut client, mut out) = (Negotiation::new("x", Wish::Off, false), Vec::new());
    let mut export = None;
    for bytes in script {
        let (used, found) = client.step(bytes, &mut out)?;
        assert_eq!(used, bytes.len());
        export = found;
    }
    Ok(export.map(|agreed| match agreed {
        Agreed::Export(export) => export,
        Agreed::Tls => panic!("nobody asked for TLS"),
    }))
}

fn told(size: u64, flags: u16) -> Vec<u8> {
    [0u16.to_be_bytes().as_slice(), &size.to_be_bytes(), &flags.to_be_bytes()].concat()
}

fn blocks(min: u32, preferred: u32, max: u32) -> Vec<u8> {
    [3u16.to_be_bytes().as_slice(), &min.to_be_bytes(), &preferred.to_be_bytes(), &max.to_be_bytes()].concat()
}

#[test]
fn older_servers_serve_an_export_by_the_options_they_support() {
    let no = |option| answer(option, rep::ERR_UNSUP, b"");
    let simple = [
        greeting(3),
        no(opt::EXTENDED_HEADERS),
        no(opt::STRUCTURED_REPLY),
        answer(opt::GO, rep::INFO, &told(1 << 20, 1)),
        answer(opt::GO, rep::ACK, b""),
    ];
    let export = feed(&simple).expect("understood").expect("chosen");
    assert_eq!((export.mode, export.size, export.max_payload), (Mode::Simple, 1 << 20, 32 << 20));
    let by_name = [
        greeting(1),
        no(opt::EXTENDED_HEADERS),
        answer(opt::STRUCTURED_REPLY, rep::ACK, b""),
        no(opt::GO),
        [(1u64 << 21).to_be_bytes().as_slice(), &5u16.to_be_bytes(), &[0; 124]].concat(),
    ];
    let export = feed(&by_name).expect("understood").expect("chosen");
    assert_eq!((export.mode, export.size, export.flags), (Mode::Structured, 2 << 20, 5));
    let no_options = [greeting(2), [(1u64 << 22).to_be_bytes().as_slice(), &1u16.to_be_bytes()].concat()];
    assert_eq!(feed(&no_options).expect("understood").expect("chosen").size, 4 << 20);
}

#[test]
fn a_server_or_export_that_cannot_be_used_is_refused() {
    let until_go = [greeting(3), answer(opt::EXTENDED_HEADERS, rep::ACK, b"")];
    let with = |rest: &[Vec<u8>]| feed(&[until_go.as_slice(), rest].concat()).map(|_| ());
    let ack = answer(opt::GO, rep::ACK, b"");
    let info = |data: &[u8]| answer(opt::GO, rep::INFO, data);
    let good = [info(&told(1 << 20, 1)), info(&blocks(512, 4096, 1 << 20)), ack.clone()];
    with(&good).expect("a good one");
    for (wrong, says) in [
        (vec![ack.clone()], "size and abilities"),
        (vec![info(&told(1 << 20, 0)), ack.clone()], "size and abilities"),
        (vec![info(&told(1 << 63, 1)), ack.clone()], "8 EiB"),
        (vec![info(&told(1 << 20, 1)), info(&blocks(3, 4096, 1 << 20)), ack.clone()], "power of two"),
        (vec![info(&told(1 << 20, 1)), info(&blocks(0, 4096, 1 << 20)), ack.clone()], "power of two"),
        (vec![info(&told(1 << 20, 1)), info(&blocks(1 << 17, 1 << 17, 1 << 20)), ack.clone()], "power of two"),
        (vec![info(&told(1 << 20, 1)), info(&blocks(4096, 4096, 1024)), ack.clone()], "power of two"),
        (vec![info(&told(1 << 20, 1)[..5])], "wrong length"),
        (vec![info(&[])], "nothing of its export"),
        (vec![answer(opt::LIST, rep::ACK, b"")], "no answer to what it was asked"),
        (vec![answer(opt::GO, rep::SERVER, b"")], "no answer to what it was asked"),
        (vec![answer(opt::GO, (1 << 31) + 2, b"by\x1b[31mpolicy")], "by [31mpolicy"),
        (vec![answer(opt::GO, rep::ERR_SHUTDOWN, b"")], "about to end"),
    ] {
        let why = with(&wrong).expect_err("refused");
        assert!(why.contains(says), "{why}");
    }
    let many = vec![info(&told(1 << 20, 1)); 100];
    assert!(with(&many).expect_err("refused").contains("does not come to an end"));
    assert!(feed(&[b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()]).expect_err("refused").contains("does not speak NBD"));
    let mut old = greeting(0);
    old[8..16].copy_from_slice(&super::OLDSTYLE.to_be_bytes());
    assert!(feed(&[old]).expect_err("refused").contains("old form"));
}

/// Runs a client that wants TLS and the context for holes on `clear`, and on `records` after TLS begins.
fn secure(wish: Wish, clear: &[Vec<u8>], records: &[Vec<u8>]) -> Result<Export, String> {
    let (mut client, mut out) = (Negotiation::new("x", wish, true), Vec::new());
    let mut script: Vec<&Vec<u8>> = clear.iter().collect();
    let mut at = 0;
    while let Some(bytes) = script.get(at) {
        at += 1;
        match client.step(bytes, &mut out)? {
            (_, Some(Agreed::Export(export))) => return Ok(export),
            (_, Some(Agreed::Tls)) => {
                assert!(!export_was_asked(&out), "N2: nothing is said of the export in the clear");
                client.secured(&mut out);
                script.extend(records);
            }
            (used, None) => assert_eq!(used, bytes.len()),
        }
    }
    Err("no more".into())
}

fn export_was_asked(said: &[u8]) -> bool {
    said.windows(4).any(|word| word == opt::GO.to_be_bytes())
}

fn context(number: u32, name: &str) -> Vec<u8> {
    answer(opt::SET_META_CONTEXT, rep::META_CONTEXT, &[&number.to_be_bytes(), name.as_bytes()].concat())
}

/// Returns the answers of a server with structured replies, with `contexts` for the metadata context.
fn rest(contexts: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let begin = [answer(opt::EXTENDED_HEADERS, rep::ERR_UNSUP, b""), answer(opt::STRUCTURED_REPLY, rep::ACK, b"")];
    let end = [answer(opt::GO, rep::INFO, &told(1 << 20, 1)), answer(opt::GO, rep::ACK, b"")];
    [begin.as_slice(), contexts, &end].concat()
}

#[test]
fn tls_is_the_first_that_is_agreed_and_what_cannot_have_it_is_refused() {
    let yes = [greeting(3), answer(opt::STARTTLS, rep::ACK, b"")];
    let no = |kind| [greeting(3), answer(opt::STARTTLS, kind, b"not here")];
    let rest = rest(&[answer(opt::SET_META_CONTEXT, rep::ACK, b"")]);
    for wish in [Wish::Require, Wish::Allow] {
        let export = secure(wish, &yes, &rest).expect("an export");
        assert!(export.secure && export.allocation.is_none());
    }
    for kind in [rep::ERR_UNSUP, rep::ERR_POLICY, rep::ERR_INVALID] {
        let why = secure(Wish::Require, &no(kind), &[]).expect_err("refused");
        assert!(why.contains("TLS is required") && why.contains("not here") && why.contains("tls=off"), "{why}");
        let clear = [no(kind).as_slice(), &rest].concat();
        assert!(!secure(Wish::Allow, &clear, &[]).expect("an export").secure);
    }
    let why = secure(Wish::Require, &[greeting(2)], &[]).expect_err("refused");
    assert!(why.contains("too old"), "{why}");
    // N2: an attacker appends these answers in the clear, so that they count as sent within TLS.
    let pipelined = [greeting(3), [yes[1].clone(), rest[0].clone()].concat()];
    for wish in [Wish::Require, Wish::Allow] {
        let why = secure(wish, &pipelined, &rest).expect_err("refused");
        assert!(why.contains("in the clear behind"), "{why}");
    }
}

#[test]
fn the_context_that_tells_of_holes_is_taken_under_its_number_and_no_other() {
    let ack = answer(opt::SET_META_CONTEXT, rep::ACK, b"");
    let clear = |contexts: &[Vec<u8>]| {
        let all = [&[greeting(3), answer(opt::STARTTLS, rep::ERR_UNSUP, b"")], rest(contexts).as_slice()].concat();
        secure(Wish::Allow, &all, &[])
    };
    assert_eq!(clear(&[context(9, "base:allocation"), ack.clone()]).expect("an export").allocation, Some(9));
    assert_eq!(clear(&[answer(opt::SET_META_CONTEXT, rep::ERR_UNSUP, b"")]).expect("an export").allocation, None);
    for wrong in [
        vec![context(9, "qemu:dirty")],
        vec![context(9, "base:allocation"), context(8, "base:allocation")],
        vec![answer(opt::SET_META_CONTEXT, rep::META_CONTEXT, b"abc")],
    ] {
        let why = clear(&wrong).expect_err("refused");
        assert!(why.contains("not asked for"), "{why}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic_it_or_make_it_wait_for_more_than_a_reply(
        heads in prop::collection::vec((0u32..12, any::<u32>(), 0u32..40), 0..8),
        noise in prop::collection::vec(any::<u8>(), MAX_REPLY + 20..MAX_REPLY + 64),
        flags in any::<u16>(),
        wish in prop::sample::select(vec![Wish::Off, Wish::Allow, Wish::Require]),
    ) {
        let mut input = greeting(flags);
        for (option, kind, len) in heads {
            let kind = if kind & 1 == 0 { kind % 5 } else { kind };
            input.extend(answer(option, kind, &vec![kind as u8; len as usize]));
        }
        input.extend(noise);
        let (mut client, mut out, mut at) = (Negotiation::new("x", wish, true), Vec::new(), 0);
        loop {
            match client.step(&input[at..], &mut out) {
                Ok((0, None)) => {
                    prop_assert!(input.len() - at < MAX_REPLY + 20, "N1");
                    break;
                }
                Ok((used, None)) => at += used,
                Ok((used, Some(Agreed::Tls))) => {
                    client.secured(&mut out);
                    at += used;
                }
                Ok((_, Some(Agreed::Export(_)))) | Err(_) => break,
            }
            prop_assert!(out.len() < 1 << 16);
        }
    }
}
