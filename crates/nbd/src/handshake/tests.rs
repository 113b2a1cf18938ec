//! Tests of the handshake, byte by byte according to the protocol specification.

use super::*;

pub(super) struct Two;

fn info(id: u32, name: &str) -> ExportInfo {
    ExportInfo {
        id,
        name: name.into(),
        description: "a disk".into(),
        size: 1 << 20,
        read_only: id == 1,
        fast_zero: true,
        min_block: 512,
        preferred_block: 4096,
    }
}

impl Catalog for Two {
    fn find(&self, name: &[u8]) -> Option<ExportInfo> {
        match name {
            b"" | b"one" => Some(info(0, "one")),
            b"two" => Some(info(1, "two")),
            _ => None,
        }
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each("one", "a disk");
        each("two", "");
    }

    fn exports(&self) -> usize {
        2
    }

    fn contexts(&self, _: u32, each: &mut dyn FnMut(&str)) {
        each("base:allocation");
        each("qemu:dirty-bitmap:x");
    }

    /// Finds the listed contexts and `n:0` to `n:99`, which are not listed.
    fn context(&self, _: u32, name: &[u8]) -> Option<u64> {
        match name {
            b"base:allocation" => Some(1000),
            b"qemu:dirty-bitmap:x" => Some(1001),
            _ => str::from_utf8(name).ok()?.strip_prefix("n:")?.parse().ok().filter(|number| *number < 100),
        }
    }
}

struct Ending;

impl Catalog for Ending {
    fn find(&self, name: &[u8]) -> Option<ExportInfo> {
        Two.find(name)
    }

    fn list(&self, _: &mut dyn FnMut(&str, &str)) {}

    fn exports(&self) -> usize {
        0
    }

    fn contexts(&self, _: u32, _: &mut dyn FnMut(&str)) {}

    fn context(&self, _: u32, _: &[u8]) -> Option<u64> {
        None
    }

    fn is_ending(&self) -> bool {
        true
    }
}

/// Encodes an option.
pub(super) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Encodes a reply to an option.
fn reply(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let head = [0x0003_e889_0455_65a9u64.to_be_bytes().as_slice(), &number.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head, (data.len() as u32).to_be_bytes().as_slice(), data].concat()
}

/// Returns a handshake after the client's flags.
pub(super) fn begun(flags: u32) -> Handshake {
    begun_with(Tls::Off, flags)
}

fn begun_with(tls: Tls, flags: u32) -> Handshake {
    let mut handshake = Handshake::new(tls, &mut Vec::new());
    assert_eq!(handshake.step(&flags.to_be_bytes(), &Two, &mut Vec::new()), (4, Step::Done));
    handshake
}

/// Sends one option. Returns the step and the reply.
fn send(handshake: &mut Handshake, bytes: &[u8]) -> (Step, Vec<u8>) {
    let mut out = Vec::new();
    let (used, step) = handshake.step(bytes, &Two, &mut out);
    assert!(step == Step::Close || used == bytes.len());
    (step, out)
}

fn ask(handshake: &mut Handshake, number: u32, data: &[u8]) -> Vec<u8> {
    let (step, out) = send(handshake, &option(number, data));
    assert!(matches!(step, Step::Done | Step::Searched), "option {number}: {step:?}");
    out
}

/// Returns the type of the first reply.
fn only_kind(out: &[u8]) -> u32 {
    u32::from_be_bytes([out[12], out[13], out[14], out[15]])
}

pub(super) fn go(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat();
    data.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|kind| data.extend_from_slice(&kind.to_be_bytes()));
    data
}

pub(super) fn queries(export: &str, queries: &[&str]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let mut data = string(export);
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend_from_slice(&string(query)));
    data
}

#[test]
fn the_greeting() {
    let mut out = Vec::new();
    Handshake::new(Tls::Off, &mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn unknown_flags_of_the_client_end_it() {
    for flags in [4u32, 1 << 16, u32::MAX] {
        let mut handshake = Handshake::new(Tls::Off, &mut Vec::new());
        assert_eq!(handshake.step(&flags.to_be_bytes(), &Two, &mut Vec::new()).1, Step::Close, "{flags:#x}");
    }
}

#[test]
fn export_name_with_and_without_zeroes() {
    for (flags, zeroes) in [(1u32, 124), (3, 0), (0, 124)] {
        let (step, out) = send(&mut begun(flags), &option(opt::EXPORT_NAME, b"two"));
        let Step::Negotiated(chosen) = step else { panic!("{step:?}") };
        assert_eq!((chosen.export.id, chosen.mode), (1, Mode::Simple));
        // HAS_FLAGS, READ_ONLY, FLUSH, FUA, MULTI_CONN, CACHE
        let expected = [&(1u64 << 20).to_be_bytes(), [0x05, 0x0f].as_slice(), &vec![0; zeroes]].concat();
        assert_eq!(out, expected);
    }
}

#[test]
fn export_name_can_only_close() {
    for name in ["three".to_owned(), "x".repeat(4097)] {
        assert_eq!(send(&mut begun(3), &option(opt::EXPORT_NAME, name.as_bytes())), (Step::Close, Vec::new()));
    }
    let mut extended = begun(3);
    ask(&mut extended, opt::EXTENDED_HEADERS, b"");
    assert_eq!(send(&mut extended, &option(opt::EXPORT_NAME, b"one")).0, Step::Close);
}

#[test]
fn abort_is_acknowledged_and_its_data_ignored() {
    let (step, out) = send(&mut begun(3), &option(opt::ABORT, b"bye"));
    assert_eq!((step, out), (Step::Close, reply(opt::ABORT, 1, b"")));
}

#[test]
fn a_list_of_the_exports() {
    let expected = [reply(3, 2, b"\0\0\0\x03onea disk"), reply(3, 2, b"\0\0\0\x03two"), reply(3, 1, b"")];
    assert_eq!(ask(&mut begun(3), opt::LIST, b""), expected.concat());
    assert_eq!(only_kind(&ask(&mut begun(3), opt::LIST, b"x")), rep::ERR_INVALID);
}

#[test]
fn tls_and_what_nobody_knows_are_not_supported() {
    let mut client = begun(3);
    assert_eq!(only_kind(&ask(&mut client, opt::STARTTLS, b"")), rep::ERR_UNSUP);
    assert_eq!(only_kind(&ask(&mut client, opt::STARTTLS, b"x")), rep::ERR_INVALID);
    for unknown in [0, 4, 12, u32::MAX] {
        assert_eq!(only_kind(&ask(&mut client, unknown, b"abc")), rep::ERR_UNSUP, "{unknown}");
    }
    // The following option is processed normally.
    assert_eq!(only_kind(&ask(&mut client, opt::LIST, b"")), rep::SERVER);
}

#[test]
fn info_and_go_tell_of_the_export() {
    let sizes = b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0";
    let export = [b"\0\0".as_slice(), &(1u64 << 20).to_be_bytes(), b"\x0d\x6d"].concat();
    let expected = |option| {
        let parts: [&[u8]; 4] = [&export, sizes, b"\0\x01one", b"\0\x02a disk"];
        let told = parts.iter().map(|part| reply(option, 3, part)).chain([reply(option, 1, b"")]);
        told.collect::<Vec<_>>().concat()
    };
    let mut client = begun(3);
    assert_eq!(ask(&mut client, opt::INFO, &go("", &[1, 2, 3, 77])), expected(opt::INFO));
    let (step, out) = send(&mut client, &option(opt::GO, &go("one", &[2, 1])));
    assert_eq!(out, expected(opt::GO));
    assert!(matches!(step, Step::Negotiated(chosen) if chosen.export.id == 0));
}

#[test]
fn who_asks_for_block_sizes_of_its_export_keeps_to_them() {
    let chosen = |before: &[Vec<u8>], last: Vec<u8>| {
        let mut client = begun_with(Tls::Allowed, 3);
        for option in before {
            send(&mut client, option);
            if option.len() == 16 {
                client.tls_started();
            }
        }
        let Step::Negotiated(chosen) = send(&mut client, &last).0 else { panic!() };
        chosen.keeps_to_blocks
    };
    let info = |name, kinds: &[u16]| option(opt::INFO, &go(name, kinds));
    let goes = |kinds: &[u16]| option(opt::GO, &go("one", kinds));
    assert!(chosen(&[], goes(&[info::BLOCK_SIZE])) && chosen(&[], goes(&[1, 2, info::BLOCK_SIZE])));
    assert!(!chosen(&[], goes(&[])) && !chosen(&[], goes(&[1, 2])));
    // EXPORT_NAME itself cannot ask for information, but an INFO before it can.
    assert!(!chosen(&[], option(opt::EXPORT_NAME, b"one")));
    assert!(chosen(&[info("one", &[info::BLOCK_SIZE])], option(opt::EXPORT_NAME, b"one")));
    // Only the last INFO counts, for the same export, and not if it was sent in the clear.
    assert!(!chosen(&[info("one", &[info::BLOCK_SIZE])], goes(&[])));
    assert!(!chosen(&[info("two", &[info::BLOCK_SIZE])], option(opt::EXPORT_NAME, b"one")));
    let in_the_clear = [info("one", &[info::BLOCK_SIZE]), option(opt::STARTTLS, b"")];
    assert!(!chosen(&in_the_clear, option(opt::EXPORT_NAME, b"one")));
}

#[test]
fn info_and_go_refuse_wrong_lengths_and_names() {
    // CVE-2022-26495 and -26496 of nbd-server: lengths of names that exceed the data or overflow.
    let mut huge = go("one", &[]);
    huge[..4].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut many = go("one", &[1]);
    let at = many.len() - 4;
    many[at..at + 2].copy_from_slice(&u16::MAX.to_be_bytes());
    let wrong = [Vec::new(), vec![0; 5], huge, many, go("one", &[])[..8].to_vec(), [go("one", &[]), vec![0]].concat()];
    for option in [opt::INFO, opt::GO] {
        for data in &wrong {
            assert_eq!(only_kind(&ask(&mut begun(3), option, data)), rep::ERR_INVALID, "{data:?}");
        }
        assert_eq!(only_kind(&ask(&mut begun(3), option, &go("three", &[]))), rep::ERR_UNKNOWN);
        // CVE-2017-15118 of QEMU: a name longer than the maximum length of strings.
        assert_eq!(only_kind(&ask(&mut begun(3), option, &go(&"x".repeat(4097), &[]))), rep::ERR_INVALID);
        assert_eq!(only_kind(&ask(&mut begun(3), option, &go(&"x".repeat(4096), &[]))), rep::ERR_UNKNOWN);
    }
}

#[test]
fn modes_and_the_flags_that_go_with_them() {
    let chosen = |options: &[u32]| {
        let mut client = begun(3);
        for &number in options {
            assert_eq!(ask(&mut client, number, b""), reply(number, 1, b""));
        }
        match send(&mut client, &option(opt::GO, &go("one", &[]))).0 {
            Step::Negotiated(chosen) => *chosen,
            other => panic!("{other:?}"),
        }
    };
    let simple = chosen(&[]);
    assert_eq!((simple.mode, simple.flags() & tflag::SEND_DF), (Mode::Simple, 0));
    let structured = chosen(&[opt::STRUCTURED_REPLY]);
    assert_eq!((structured.mode, structured.flags() & tflag::SEND_DF), (Mode::Structured, tflag::SEND_DF));
    let extended = chosen(&[opt::STRUCTURED_REPLY, opt::EXTENDED_HEADERS]);
    assert_eq!((extended.mode, extended.flags() & tflag::BLOCK_STATUS_PAYLOAD), (Mode::Extended, 0));
    let mut client = begun(3);
    ask(&mut client, opt::EXTENDED_HEADERS, b"");
    assert_eq!(only_kind(&ask(&mut client, opt::STRUCTURED_REPLY, b"")), rep::ERR_EXT_HEADER_REQD);
    assert_eq!(only_kind(&ask(&mut client, opt::EXTENDED_HEADERS, b"")), rep::ERR_INVALID, "a second time");
    for number in [opt::STRUCTURED_REPLY, opt::EXTENDED_HEADERS] {
        assert_eq!(only_kind(&ask(&mut client, number, b"x")), rep::ERR_INVALID);
    }
}

#[test]
fn contexts_are_listed_and_selected() {
    let mut client = begun(3);
    for number in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        assert_eq!(only_kind(&ask(&mut client, number, &queries("one", &[]))), rep::ERR_INVALID, "structured first");
    }
    ask(&mut client, opt::STRUCTURED_REPLY, b"");
    let base = |option, id: u32| reply(option, 4, &[&id.to_be_bytes(), b"base:allocation".as_slice()].concat());
    let dirty = |option, id: u32| reply(option, 4, &[&id.to_be_bytes(), b"qemu:dirty-bitmap:x".as_slice()].concat());
    let (list, set) = (opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT);
    let both = [base(list, 0), dirty(list, 0), reply(list, 1, b"")].concat();
    assert_eq!(ask(&mut client, list, &queries("one", &[])), both);
    assert_eq!(ask(&mut client, list, &queries("one", &["qemu:", "base:allocation"])), both);
    let first = [base(list, 0), reply(list, 1, b"")].concat();
    assert_eq!(ask(&mut client, list, &queries("one", &["base:", "x-unknown:y"])), first);
    assert_eq!(ask(&mut client, set, &queries("one", &["base:", "x-unknown:y"])), reply(set, 1, b""), "no wildcards");
    let second = [dirty(set, 0), reply(set, 1, b"")].concat();
    assert_eq!(ask(&mut client, set, &queries("one", &["qemu:dirty-bitmap:x"])), second);
    assert_eq!(only_kind(&ask(&mut client, set, &queries("three", &["base:allocation"]))), rep::ERR_UNKNOWN);
    let Step::Negotiated(chosen) = send(&mut client, &option(opt::GO, &go("one", &[]))).0 else { panic!() };
    assert_eq!(chosen.contexts, [] as [u64; 0], "a SET that failed leaves nothing selected");
}

#[test]
fn contexts_that_are_not_told_are_found_by_their_names() {
    let mut client = begun(3);
    ask(&mut client, opt::STRUCTURED_REPLY, b"");
    let (list, set) = (opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT);
    let told = |option, id: u32, name: &str| reply(option, 4, &[&id.to_be_bytes(), name.as_bytes()].concat());
    let (step, out) = send(&mut client, &option(list, &queries("one", &["n:7", "n:100", "n:7"])));
    assert_eq!((step, out), (Step::Done, [told(list, 0, "n:7"), reply(list, 1, b"")].concat()));
    let mixed = queries("one", &["n:3", "base:allocation", "base:"]);
    let (step, out) = send(&mut client, &option(list, &mixed));
    let both = [told(list, 0, "base:allocation"), told(list, 0, "n:3"), reply(list, 1, b"")].concat();
    assert_eq!((step, out), (Step::Searched, both), "each once, and the search is told");
    // The client gets indices as IDs; the numbers of the catalog are kept in that order.
    let several = queries("one", &["n:9", "qemu:dirty-bitmap:x", "n:100", "n:9", "base:allocation"]);
    let names = [(0, "n:9"), (1, "qemu:dirty-bitmap:x"), (2, "base:allocation")];
    let expected: Vec<_> = names.iter().map(|(id, name)| told(set, *id, name)).chain([reply(set, 1, b"")]).collect();
    assert_eq!(ask(&mut client, set, &several), expected.concat());
    let Step::Negotiated(chosen) = send(&mut client, &option(opt::GO, &go("one", &[]))).0 else { panic!() };
    assert_eq!(chosen.contexts, [9, 1001, 1000]);
}

#[test]
fn a_client_selects_no_more_contexts_than_there_are_bits() {
    let names: Vec<String> = (0..33).map(|number| format!("n:{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (many, contexts) in [(32, 32), (33, 0)] {
        let mut client = begun(3);
        ask(&mut client, opt::STRUCTURED_REPLY, b"");
        let out = ask(&mut client, opt::SET_META_CONTEXT, &queries("one", &names[..many]));
        assert_eq!(only_kind(&out), if many == 32 { rep::META_CONTEXT } else { rep::ERR_TOO_BIG });
        let Step::Negotiated(chosen) = send(&mut client, &option(opt::GO, &go("one", &[]))).0 else { panic!() };
        assert_eq!(chosen.contexts.len(), contexts);
    }
}

/// An export with more contexts than one reply lists.
struct Many;

impl Catalog for Many {
    fn find(&self, name: &[u8]) -> Option<ExportInfo> {
        Two.find(name)
    }

    fn list(&self, _: &mut dyn FnMut(&str, &str)) {}

    fn exports(&self) -> usize {
        1
    }

    fn contexts(&self, _: u32, each: &mut dyn FnMut(&str)) {
        (0..100_000).for_each(|number| each(&format!("n:{number:06}")));
    }

    fn context(&self, _: u32, _: &[u8]) -> Option<u64> {
        None
    }
}

#[test]
fn an_answer_with_contexts_is_bounded() {
    let mut client = begun(3);
    ask(&mut client, opt::STRUCTURED_REPLY, b"");
    let mut out = Vec::new();
    client.step(&option(opt::LIST_META_CONTEXT, &queries("one", &["n:"])), &Many, &mut out);
    assert_eq!(out.len(), crate::catalog::MAX_LISTED * (20 + 4 + 8) + 20);
}

#[test]
fn contexts_of_another_export_do_not_count() {
    for (export, contexts) in [("one", 1), ("two", 0)] {
        let mut client = begun(3);
        ask(&mut client, opt::EXTENDED_HEADERS, b"");
        ask(&mut client, opt::SET_META_CONTEXT, &queries("one", &["base:allocation"]));
        let Step::Negotiated(chosen) = send(&mut client, &option(opt::GO, &go(export, &[]))).0 else { panic!() };
        assert_eq!(chosen.contexts.len(), contexts);
        assert_eq!(chosen.flags() & tflag::BLOCK_STATUS_PAYLOAD != 0, contexts != 0);
    }
}

#[test]
fn queries_that_make_no_sense_are_refused() {
    let mut client = begun(3);
    ask(&mut client, opt::STRUCTURED_REPLY, b"");
    let whole = queries("one", &["base:allocation"]);
    let mut huge = whole.clone();
    huge[11..15].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut wrong: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    wrong.extend([huge, [whole, vec![0]].concat(), queries("one", &["nocolon"])]);
    for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        for data in &wrong {
            assert_eq!(only_kind(&ask(&mut client, option, data)), rep::ERR_INVALID, "{data:?}");
        }
        let many = queries("one", &["a:b"; 129]);
        assert_eq!(only_kind(&ask(&mut client, option, &many)), rep::ERR_TOO_BIG);
        let mut counted = queries("one", &[]);
        counted[7..11].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(only_kind(&ask(&mut client, option, &counted)), rep::ERR_TOO_BIG);
    }
}

#[test]
fn long_options_are_skipped_and_huge_ones_end_it() {
    let mut client = begun(3);
    let long = option(opt::LIST_META_CONTEXT, &vec![0; MAX_OPTION_BYTES as usize + 1]);
    let mut out = Vec::new();
    let (used, step) = client.step(&long, &Two, &mut out);
    assert_eq!((used, step, only_kind(&out)), (16, Step::Done, rep::ERR_TOO_BIG));
    let (used, step) = client.step(&long[16..], &Two, &mut Vec::new());
    assert_eq!((used, step), (long.len() - 16, Step::Done));
    assert_eq!(only_kind(&ask(&mut client, opt::STRUCTURED_REPLY, b"")), rep::ACK);
    let huge = [b"IHAVEOPT".as_slice(), &opt::GO.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
    assert_eq!(client.step(&huge, &Two, &mut Vec::new()).1, Step::Close);
}

#[test]
fn what_was_said_before_tls_does_not_count() {
    // CVE-2021-3716 of nbdkit: an attacker in the middle inserts options before STARTTLS, without the client's
    // knowledge.
    let mut client = begun_with(Tls::Allowed, 3);
    ask(&mut client, opt::STRUCTURED_REPLY, b"");
    ask(&mut client, opt::SET_META_CONTEXT, &queries("one", &["base:allocation"]));
    let (step, out) = send(&mut client, &option(opt::STARTTLS, b""));
    assert_eq!((step, out), (Step::StartTls, reply(opt::STARTTLS, rep::ACK, b"")));
    client.tls_started();
    let (step, _) = send(&mut client, &option(opt::GO, &go("one", &[])));
    let Step::Negotiated(chosen) = step else { panic!("{step:?}") };
    assert_eq!((chosen.mode, chosen.contexts), (Mode::Simple, vec![]));
}

#[test]
fn nothing_is_taken_between_starttls_and_tls() {
    // Bytes after STARTTLS were sent in the clear: they are not answered, and are not data received through TLS (H3).
    for tls in [Tls::Allowed, Tls::Required] {
        let mut client = begun_with(tls, 3);
        let first = option(opt::STARTTLS, b"");
        let injected = [first.clone(), option(opt::LIST, b""), option(opt::GO, &go("one", &[]))].concat();
        let mut out = Vec::new();
        assert_eq!(client.step(&injected, &Two, &mut out), (first.len(), Step::StartTls));
        assert_eq!(out, reply(opt::STARTTLS, rep::ACK, b""));
        out.clear();
        assert_eq!(client.step(&injected[first.len()..], &Two, &mut out), (0, Step::StartTls));
        assert_eq!(out, b"");
    }
}

#[test]
fn where_tls_is_required_nothing_is_answered_without() {
    let set = queries("one", &["base:allocation"]);
    let (lists, sets) = (opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT);
    let go = go("one", &[]);
    let none = Vec::new();
    let options =
        [(opt::LIST, &none), (opt::INFO, &go), (opt::GO, &go), (8, &none), (11, &none), (lists, &set), (sets, &set)];
    for (number, data) in options.into_iter().chain([(4, &none), (77, &none)]) {
        let mut client = begun_with(Tls::Required, 3);
        let words = b"this server wants TLS first";
        assert_eq!(ask(&mut client, number, data), reply(number, rep::ERR_TLS_REQD, words), "option {number}");
        assert_eq!(send(&mut client, &option(opt::STARTTLS, b"")).0, Step::StartTls, "option {number}");
        client.tls_started();
        assert_ne!(only_kind(&send(&mut client, &option(number, data)).1), rep::ERR_TLS_REQD, "option {number}");
    }
    // EXPORT_NAME has no error reply.
    assert_eq!(send(&mut begun_with(Tls::Required, 3), &option(opt::EXPORT_NAME, b"one")), (Step::Close, vec![]));
    let (step, out) = send(&mut begun_with(Tls::Required, 3), &option(opt::ABORT, b""));
    assert_eq!((step, out), (Step::Close, reply(opt::ABORT, rep::ACK, b"")));
}

#[test]
fn tls_begins_once() {
    let mut client = begun_with(Tls::Allowed, 3);
    assert_eq!(only_kind(&ask(&mut client, opt::STARTTLS, b"x")), rep::ERR_INVALID);
    assert_eq!(send(&mut client, &option(opt::STARTTLS, b"")).0, Step::StartTls);
    client.tls_started();
    assert_eq!(only_kind(&ask(&mut client, opt::STARTTLS, b"")), rep::ERR_INVALID);
    // With `Allowed`, a client may do without TLS.
    assert!(matches!(send(&mut begun_with(Tls::Allowed, 3), &option(opt::GO, &go("one", &[]))).0, Step::Negotiated(_)));
}

#[test]
fn a_client_that_is_not_fixed_newstyle_may_only_name_an_export() {
    assert_eq!(send(&mut begun(0), &option(opt::LIST, b"")).0, Step::Close);
    assert_eq!(send(&mut begun(3), b"IHAVENOTxxxxxxxx").0, Step::Close);
}

#[test]
fn options_of_one_handshake_are_bounded() {
    let mut client = begun(3);
    for _ in 0..MAX_OPTIONS + 2 * EXPORT_OPTIONS {
        ask(&mut client, opt::STRUCTURED_REPLY, b"");
    }
    assert_eq!(send(&mut client, &option(opt::STRUCTURED_REPLY, b"")).0, Step::Close);
}

#[test]
fn a_server_that_ends_says_so() {
    let mut client = begun(3);
    let mut out = Vec::new();
    assert_eq!(client.step(&option(opt::GO, &go("one", &[])), &Ending, &mut out).1, Step::Done);
    assert_eq!(only_kind(&out), rep::ERR_SHUTDOWN);
    assert_eq!(client.step(&option(opt::EXPORT_NAME, b"one"), &Ending, &mut out).1, Step::Close);
}
