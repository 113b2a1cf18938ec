//! NBD clients of a server that hands over to the next one: each request is answered once, with the right bytes,
//! whatever the client was doing (H1).

#[path = "rig/certificates.rs"]
mod certificates;
mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sheave_blk::device::Device as DiskDevice;
use sheave_drivers::fault::{self, FaultKind, FaultOps, FaultPlan};
use sheave_iomap::File;
use sheave_nbd::Extent;
use sheave_serve::{Backend, Client, NoStatus, Question, ServeError, ServerOptions};
use sheave_testkit::certificates::Authority;

use certificates::tls;
use rig::handover::{Moving, Plan, WITHIN, file};
use rig::talker::{FLUSH, FORMS, Form, GOODBYE, READ, STATUS, TRIM, Talker, choice, pattern};
use rig::{Ends, SIZE, option, options, reply, request};

/// The offset of a range that no device of these tests has.
const BEYOND: u64 = SIZE;
/// Time in which a server has read what was sent to it.
const READ_IT: Duration = Duration::from_millis(5);

fn ram(options: ServerOptions) -> Option<Moving> {
    Plan::spec("ram:size=64M", options).start()
}

fn one_reactor() -> ServerOptions {
    ServerOptions { reactors: 1, ..options() }
}

/// A device in memory that takes this time for reads, or for everything else.
fn slow(ops: FaultOps, time: Duration) -> DiskDevice {
    let disk = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let plan = FaultPlan { ops, delay_time: time, ..FaultPlan::new(1).with(FaultKind::Delay, 1.0) };
    fault::over("slow", &disk, &plan).expect("a device").0
}

/// Waits until `is` returns true.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns what reports say of a client, without its counts and its reactor.
fn is_known_as(client: &Client) -> (u64, String, Option<String>, Duration) {
    // Times are handed over in milliseconds.
    let since = client.since.duration_since(std::time::UNIX_EPOCH).expect("now");
    (client.id, client.peer.clone(), client.export.clone(), Duration::from_millis(since.as_millis() as u64))
}

#[test]
fn clients_go_on_across_twenty_handovers_with_their_numbers_and_their_counts() {
    let Some(mut moving) = ram(options()) else { return };
    let mut talkers = FORMS.map(|form| moving.talker(form));
    let known: Vec<_> = moving.server.clients().iter().map(is_known_as).collect();
    let mut counts = moving.server.exports()[0].counts;
    for round in 0..20u64 {
        for (number, talker) in talkers.iter_mut().enumerate() {
            let (seed, offset) = (round * 8 + number as u64, (number as u64) << 20);
            talker.fill(seed, offset, 64 << 10);
            // Asked for before the handover, and received after it.
            let read = talker.ask(READ, offset, 64 << 10);
            let flush = talker.ask(FLUSH, 0, 0);
            talker.send(&[read, flush].concat());
        }
        until("all were read", || moving.server.exports()[0].counts.flushes == 3 * (round + 1));
        until("all were counted", || moving.server.exports()[0].counts.reads == 3 * (2 * round + 1));
        let before = (moving.server.exports()[0].counts, moving.server.clients());
        moving.hand_over();
        let after = (moving.server.exports()[0].counts, moving.server.clients());
        assert_eq!(after.0, before.0, "round {round}");
        assert_eq!(after.1.iter().map(is_known_as).collect::<Vec<_>>(), known, "round {round}");
        assert!(after.1.iter().zip(&before.1).all(|(after, before)| after.counts == before.counts), "round {round}");
        assert!(after.0.reads > counts.reads, "counts grow");
        counts = after.0;
        for (number, talker) in talkers.iter_mut().enumerate() {
            let seed = round * 8 + number as u64;
            talker.take_all(|asked| pattern(seed, asked.offset, asked.len as usize));
            talker.has(seed, (number as u64) << 20, 64 << 10);
        }
    }
    let (each, last) = (counts, moving.server.clients().iter().map(|client| client.id).max());
    until("all were counted", || moving.server.exports()[0].counts.reads == 120);
    let all = moving.server.exports()[0].counts;
    assert_eq!((all.writes, all.reads, all.flushes, all.errors), (60, 120, 60, 0), "{each:?}");
    // The counts of clients that have left stay, here and in the next server.
    drop(talkers);
    until("they are gone", || moving.server.clients().is_empty());
    assert_eq!(moving.server.exports()[0].counts, all);
    moving.hand_over();
    assert_eq!(moving.server.exports()[0].counts, all);
    let _next = moving.talker(Form::Simple);
    assert!(moving.server.clients()[0].id > last.expect("there were some"), "no number is used twice");
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

/// Asks for everything that the protocol has in the 64 KiB from `base` on, says goodbye, and returns the bytes.
fn everything(talker: &mut Talker, seed: u64, base: u64) -> Vec<u8> {
    let has_contexts = talker.form != Form::Simple;
    [
        talker.ask(READ, base + (32 << 10), 4096),
        talker.write(base, &pattern(seed, base, 4096)),
        talker.ask(FLUSH, 0, 0),
        if has_contexts { talker.ask(STATUS, base, 64 << 10) } else { talker.ask(FLUSH, 0, 0) },
        talker.write(BEYOND, &[9; 600]),
        talker.ask(TRIM, base + (48 << 10), 4096),
        talker.ask(READ, base + (36 << 10), 512),
        talker.ask(GOODBYE, 0, 0),
    ]
    .concat()
}

#[test]
fn a_stream_that_is_cut_at_any_byte_goes_on_at_this_byte() {
    const CLIENTS: usize = 128;
    const OLD: u64 = 77;
    let Some(mut moving) = ram(options()) else { return };
    moving.talker(Form::Simple).fill(OLD, 0, CLIENTS << 16);
    let mut seed = 1000;
    for form in FORMS {
        let len = everything(&mut moving.talker(form), 0, 0).len();
        let cuts: Vec<usize> = (0..=len).collect();
        // A sample of the cuts in the payloads is enough for two of the forms.
        let near = |cut: &usize| form == Form::Structured || *cut < 100 || *cut > 4000 || cut.is_multiple_of(97);
        let cuts: Vec<usize> = cuts.into_iter().filter(near).collect();
        for cuts in cuts.chunks(CLIENTS) {
            seed += 1;
            let mut talkers: Vec<_> = cuts.iter().map(|_| moving.talker(form)).collect();
            let said: Vec<_> = talkers
                .iter_mut()
                .enumerate()
                .map(|(at, talker)| everything(talker, seed, (at as u64) << 16))
                .collect();
            for ((talker, said), cut) in talkers.iter_mut().zip(&said).zip(cuts) {
                talker.send(&said[..*cut]);
            }
            std::thread::sleep(READ_IT);
            moving.hand_over();
            for ((talker, said), cut) in talkers.iter_mut().zip(&said).zip(cuts) {
                talker.send(&said[*cut..]);
                talker.take_all(|asked| pattern(OLD, asked.offset, asked.len as usize));
                assert!(talker.is_at_its_end(), "{form:?}, cut at {cut}");
            }
            let mut reader = moving.talker(form);
            (0..cuts.len() as u64).for_each(|at| reader.has(seed, at << 16, 4096));
        }
    }
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_long_write_that_is_cut_anywhere_is_whole() {
    const LEN: usize = 1 << 20;
    const CLIENTS: usize = 16;
    let Some(mut moving) = ram(options()) else { return };
    let mut cuts: Vec<usize> = (0..32).chain([LEN + 27, LEN + 28, LEN + 40, LEN + 56]).collect();
    // Around the number of missing bytes from which on they are received directly, and around growths of the memory.
    let edges = [4 << 10, 16 << 10, 64 << 10, 256 << 10, LEN - (16 << 10), LEN - 4096];
    cuts.extend(edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1, edge + 28, edge + 29]));
    cuts.extend((0..20).map(|at| at * 52_361 + 100));
    for (round, cuts) in cuts.chunks(CLIENTS).enumerate() {
        let form = FORMS[round % 3];
        let seed = round as u64 + 1;
        let mut talkers: Vec<_> = cuts.iter().map(|_| moving.talker(form)).collect();
        let mut all = Vec::new();
        for (at, talker) in talkers.iter_mut().enumerate() {
            let offset = (at as u64) << 20;
            let said = [talker.write(offset, &pattern(seed, offset, LEN)), talker.ask(FLUSH, 0, 0)].concat();
            let cut = cuts[at].min(said.len());
            talker.send(&said[..cut]);
            all.push(said[cut..].to_vec());
        }
        std::thread::sleep(READ_IT);
        // Twice, so that what one server has put back is put back again.
        moving.hand_over();
        moving.hand_over();
        for ((talker, rest), cut) in talkers.iter_mut().zip(&all).zip(cuts) {
            talker.send(&rest[..rest.len() / 2]);
            std::thread::sleep(Duration::from_millis(1));
            talker.send(&rest[rest.len() / 2..]);
            talker.take_all(|_| Vec::new());
            assert!(talker.asked.is_empty(), "{form:?}, cut at {cut}");
        }
        let counts = moving.server.exports()[0].counts;
        assert_eq!(counts.writes % CLIENTS as u64, (cuts.len() % CLIENTS) as u64, "each is done once");
        talkers.iter_mut().enumerate().for_each(|(at, talker)| talker.has(seed, (at as u64) << 20, LEN));
    }
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_handshake_that_is_cut_at_any_byte_goes_on_at_this_byte() {
    let Some(mut moving) = ram(ServerOptions { max_clients: 4096, ..options() }) else { return };
    moving.talker(Form::Simple).fill(5, 0, 4096);
    let queries = b"\0\0\0\x01x\0\0\0\x01\0\0\0\x0fbase:allocation";
    let asks = |talker: &mut Talker| {
        let status = if talker.form == Form::Simple { Vec::new() } else { talker.ask(STATUS, 0, 4096) };
        [talker.ask(READ, 0, 512), status, talker.ask(GOODBYE, 0, 0)].concat()
    };
    // EXPORT_NAME behind everything that can be selected before it, and an option that is refused and skipped.
    let head = [vec![0, 0, 0, 3], option(99, b"what is this?"), option(8, b""), option(10, queries)].concat();
    let by_name = [head, option(1, b"x")].concat();
    let all = [(Form::Structured, by_name)].into_iter().chain(FORMS.map(|form| (form, choice(form).0)));
    for (form, said) in all {
        // The reference is a client that nothing happens to.
        let talk = |moving: &Moving| Talker::on(moving.connect(), form);
        let mut undisturbed = talk(&moving);
        let goodbye = undisturbed.ask(GOODBYE, 0, 0);
        undisturbed.send(&[said.clone(), goodbye].concat());
        let mut expected = Vec::new();
        undisturbed.stream.read_to_end(&mut expected).expect("an end");
        drop(undisturbed);
        let mut clients: Vec<_> = (0..=said.len()).map(|_| talk(&moving)).collect();
        for (cut, client) in clients.iter_mut().enumerate() {
            client.send(&said[..cut]);
        }
        std::thread::sleep(READ_IT);
        moving.hand_over();
        for (cut, client) in clients.iter_mut().enumerate() {
            client.send(&said[cut..]);
            let mut got = vec![0; expected.len()];
            client.stream.read_exact(&mut got).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
            assert!(got == expected, "cut at {cut}: {got:?}");
            let requests = asks(client);
            client.send(&requests);
            client.take_all(|asked| pattern(5, asked.offset, asked.len as usize));
            assert!(client.is_at_its_end(), "cut at {cut}");
        }
    }
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn who_reads_no_replies_gets_each_of_them_once_from_the_next_server() {
    const OLD: u64 = 3;
    let Some(mut moving) = ram(options()) else { return };
    moving.talker(Form::Simple).fill(OLD, 0, 32 << 20);
    for (round, form) in FORMS.into_iter().enumerate() {
        // Large reads, of which one at a time is read, small ones, which all are, and a mix with answers of all sizes.
        let mut talkers: Vec<_> = (0..4).map(|_| moving.talker(form)).collect();
        let lens =
            [vec![256 << 10; 64], vec![4096; 480], [4 << 20, 512, 1 << 20, 64 << 10].repeat(4), vec![16 << 20; 2]];
        for (talker, lens) in talkers.iter_mut().zip(&lens) {
            // The first read shows that the device completes at once.
            let first = talker.ask(READ, 0, 64 << 10);
            talker.send(&first);
            talker.take_all(|asked| pattern(OLD, asked.offset, asked.len as usize));
            let mut said = Vec::new();
            for (at, len) in lens.iter().enumerate() {
                let offset = (at as u64 * 331 * 4096) % (16 << 20);
                said.extend(talker.ask(READ, offset, *len));
                if at % 16 == 0 {
                    said.extend(talker.ask(FLUSH, 0, 0));
                }
            }
            talker.send(&said);
        }
        std::thread::sleep(READ_IT);
        for _ in 0..=round {
            let from = Instant::now();
            moving.hand_over();
            assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
        }
        for talker in &mut talkers {
            // Some replies, and then another handover.
            for _ in 0..3 {
                let (asked, answer) = talker.answer().expect("a reply");
                let expected = pattern(OLD, asked.offset, if asked.command == READ { asked.len as usize } else { 0 });
                assert!(answer.data == expected, "{form:?}: {asked:?}");
            }
        }
        moving.hand_over();
        for talker in &mut talkers {
            talker.take_all(|asked| pattern(OLD, asked.offset, asked.len as usize));
            talker.has(OLD, 4096, 4096);
        }
    }
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_refused_write_behind_reads_that_wait_is_skipped_and_they_are_read() {
    let Some(mut moving) = ram(options()) else { return };
    moving.talker(Form::Simple).fill(6, 0, 16 << 20);
    for form in FORMS {
        let mut talker = moving.talker(form);
        let first = talker.ask(READ, 0, 64 << 10);
        talker.send(&first);
        talker.take_all(|asked| pattern(6, asked.offset, asked.len as usize));
        let reads: Vec<u8> = (0..16).flat_map(|at| talker.ask(READ, at << 20, 1 << 20)).collect();
        let (refused, flush) = (talker.write(BEYOND, &[0x25; 5000]), talker.ask(FLUSH, 0, 0));
        talker.send(&[reads, refused[..1000].to_vec()].concat());
        std::thread::sleep(READ_IT);
        moving.hand_over();
        moving.hand_over();
        talker.send(&[refused[1000..].to_vec(), flush].concat());
        talker.take_all(|asked| pattern(6, asked.offset, asked.len as usize));
        talker.has(6, 0, 4096);
    }
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

/// Sends as much of these bytes as the server takes now. Returns the rest.
fn send_some(stream: &mut UnixStream, mut bytes: Vec<u8>) -> Vec<u8> {
    stream.set_write_timeout(Some(Duration::from_millis(30))).expect("set");
    while let Ok(sent) = stream.write(&bytes) {
        bytes.drain(..sent);
        if bytes.is_empty() {
            break;
        }
    }
    stream.set_write_timeout(None).expect("set");
    bytes
}

/// A long read for which there is no memory is read in pieces, and its reply has begun: it is finished before.
#[test]
fn a_read_in_pieces_is_finished_and_its_client_goes_on() {
    const LEN: usize = 12 << 20;
    let limits = ServerOptions { server_bytes: 64 << 20, stall: Duration::from_secs(3600), ..one_reactor() };
    let Some(mut moving) = ram(limits) else { return };
    moving.talker(Form::Simple).fill(4, 0, 16 << 20);
    // Writes that are not complete hold all memory.
    let mut holders = Vec::new();
    for at in 0..4 {
        let (mut talker, offset) = (moving.talker(Form::Simple), (16 << 20) + (at << 22));
        let write = talker.write(offset, &pattern(5, offset, 32 << 20));
        let rest = send_some(&mut talker.stream, write[..write.len() - 1].to_vec());
        let last = write.last().copied();
        holders.push((talker, rest.into_iter().chain(last).collect::<Vec<u8>>()));
    }
    let mut talker = moving.talker(Form::Structured);
    let said = [talker.ask(READ, 8, LEN as u32), talker.ask(READ, 4096, 512), talker.ask(READ, 0, 1 << 20)].concat();
    talker.send(&said);
    std::thread::sleep(Duration::from_millis(20));
    let taker = std::thread::spawn(move || {
        let mut head = [0; 1 << 20];
        talker.stream.read_exact(&mut head).expect("it has begun");
        std::thread::sleep(Duration::from_millis(100));
        let mut rest = vec![0; 28 + LEN - head.len()];
        talker.stream.read_exact(&mut rest).expect("it is finished");
        assert!([&head[28..], &rest].concat() == pattern(4, 8, LEN), "it is whole");
        talker.asked.remove(&1);
        talker
    });
    moving.hand_over();
    let mut talker = taker.join().expect("no panic");
    talker.take_all(|asked| pattern(4, asked.offset, asked.len as usize));
    std::thread::scope(|scope| {
        for (talker, rest) in &mut holders {
            scope.spawn(|| {
                talker.send(rest);
                talker.take_all(|_| Vec::new());
            });
        }
    });
    talker.has(4, 0, 16 << 20);
    // All four write the same bytes where they overlap.
    talker.has(5, 16 << 20, 44 << 20);
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_request_that_takes_too_long_keeps_the_server_as_it_was() {
    let time = Duration::from_millis(1000);
    let Some(mut moving) = Plan::of(slow(FaultOps::Read, time), options()).start() else { return };
    let (mut stuck, mut other) = (moving.talker(Form::Structured), moving.talker(Form::Simple));
    other.fill(6, 0, 1 << 20);
    let number = moving.server.clients()[0].id;
    let said = [stuck.ask(READ, 0, 4096), stuck.ask(FLUSH, 0, 0)].concat();
    stuck.send(&said);
    assert_eq!(stuck.answer().expect("a reply").0.command, FLUSH);
    // Another client is within a write, and one within its handshake.
    let half = other.write(1 << 20, &pattern(6, 1 << 20, 512 << 10));
    other.send(&half[..100_000]);
    let mut third = moving.connect();
    third.write_all(&[0, 0, 0, 3, b'I']).expect("sent");
    std::thread::sleep(READ_IT);
    for _ in 0..3 {
        let from = Instant::now();
        let busy = moving.server.suspend(Duration::from_millis(60)).expect_err("a read is under way");
        assert!(from.elapsed() < time / 3, "{:?}", from.elapsed());
        let ServeError::Busy { what } = &busy else { panic!("{busy}") };
        assert!(what.contains(&format!("client {number}: 1 request")), "{busy}");
        assert_eq!(what.matches("client").count(), 1, "{busy}");
    }
    // All go on as before: those that were disturbed, the one that waits, and new ones.
    other.send(&half[100_000..]);
    other.take_all(|_| Vec::new());
    third.write_all(&option(1, b"x")[1..]).expect("sent");
    third.read_exact(&mut [0; 18 + 10]).expect("an export");
    moving.talker(Form::Simple).fill(6, 2 << 20, 4096);
    stuck.take_all(|asked| pattern(6, asked.offset, asked.len as usize));
    moving.hand_over();
    for talker in [&mut stuck, &mut other] {
        let read = talker.ask(READ, 1 << 20, 4096);
        talker.send(&read);
        talker.take_all(|asked| pattern(6, asked.offset, asked.len as usize));
    }
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn who_takes_nothing_and_waits_is_served_on_after_a_handover_that_failed() {
    let Some(moving) = Plan::of(slow(FaultOps::Write, Duration::from_millis(400)), one_reactor()).start() else {
        return;
    };
    let mut lazy = moving.talker(Form::Structured);
    let said: Vec<u8> = (0..40).flat_map(|at| lazy.ask(READ, at << 18, 1 << 20)).collect();
    lazy.send(&said);
    let mut slow = moving.talker(Form::Simple);
    for round in 0..20u64 {
        let write = slow.write(0, &[round as u8; 512]);
        slow.send(&write);
        // The write is under way, and the replies of the other are cut off: these go on in the middle.
        assert!(moving.server.suspend(Duration::from_millis(15)).is_err(), "round {round}");
        if round % 4 == 0 {
            slow.take_all(|_| Vec::new());
            let (asked, answer) = lazy.answer().expect("a reply");
            assert!(answer.data == vec![0; asked.len as usize]);
        }
    }
    slow.take_all(|_| Vec::new());
    // Its first block has the last write.
    lazy.take_all(|asked| if asked.offset == 0 { vec![0; 1 << 20] } else { vec![0; asked.len as usize] });
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

/// A backend whose answers wait for permission.
#[derive(Debug)]
struct Thoughtful {
    file: Arc<dyn File>,
    may: Arc<AtomicBool>,
}

impl Backend for Thoughtful {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn reads_for_status(&self, _: u64) -> bool {
        true
    }

    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        while !self.may.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(vec![Extent { len: question.len, status: 0 }])
    }
}

#[test]
fn a_question_that_is_being_answered_is_waited_for() {
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let may = Arc::new(AtomicBool::new(false));
    let asked = may.clone();
    let plan = Plan::with(options(), move || Box::new(Thoughtful { file: file(&device), may: asked.clone() }));
    let Some(mut moving) = plan.start() else { return };
    let mut talker = moving.talker(Form::Extended);
    let said = [talker.ask(STATUS, 0, 4096), talker.ask(STATUS, 4096, 4096), talker.ask(READ, 0, 512)].concat();
    talker.send(&said);
    std::thread::sleep(READ_IT);
    let busy = moving.server.suspend(Duration::from_millis(50)).expect_err("a question is open");
    assert!(busy.to_string().contains("a question about the status of a range"), "{busy}");
    may.store(true, Ordering::Relaxed);
    moving.hand_over();
    talker.take_all(|asked| vec![0; asked.len as usize]);
    moving.stop().server.stop().expect("it ends");
}

/// A backend with many contexts, each of which has a long answer.
#[derive(Debug)]
struct Long(Arc<dyn File>);

impl Backend for Long {
    fn file(&self) -> &Arc<dyn File> {
        &self.0
    }

    fn context(&self, name: &[u8]) -> Option<u64> {
        str::from_utf8(name).ok()?.strip_prefix("n:")?.parse().ok()
    }

    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        Ok((0..4096u32).map(|number| Extent { len: question.len / 4096, status: number & 1 }).collect())
    }
}

#[test]
fn long_answers_that_nobody_takes_do_not_keep_a_server_from_its_handover() {
    const ANSWER: usize = 32 * (20 + 4 + 8 * 4096);
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let plan = Plan::with(one_reactor(), move || Box::new(Long(file(&device))));
    let Some(mut moving) = plan.start() else { return };
    let mut stream = moving.connect();
    let names: Vec<u8> = (0..32).flat_map(|number| format!("\0\0\0\x04n:{number:02}").into_bytes()).collect();
    let queries = [b"\0\0\0\x01x\0\0\0\x20".as_slice(), &names].concat();
    let said = [vec![0, 0, 0, 3], option(8, b""), option(10, &queries), option(1, b"x")].concat();
    stream.write_all(&said).expect("sent");
    stream.read_exact(&mut vec![0; 18 + 20 + 32 * (20 + 4 + 4) + 20 + 10]).expect("an export");
    // Two questions behind a read that fills the socket.
    let asks = [request(READ, 1, 0, 8 << 20), request(STATUS, 2, 0, 32 << 20), request(STATUS, 3, 0, 32 << 20)];
    stream.write_all(&asks.concat()).expect("sent");
    std::thread::sleep(Duration::from_millis(100));
    moving.hand_over();
    stream.read_exact(&mut vec![0; 28 + (8 << 20)]).expect("the data");
    let mut answers = vec![0; 2 * ANSWER];
    stream.read_exact(&mut answers).expect("both answers");
    for (at, chunk) in answers.chunks(ANSWER / 32).enumerate() {
        assert_eq!(chunk[8..16], (at as u64 / 32 + 2).to_be_bytes());
        assert_eq!((chunk[5] == 1, chunk[20..24] == (at as u32 % 32).to_be_bytes()), (at % 32 == 31, true));
    }
    stream.write_all(&request(FLUSH, 4, 0, 0)).expect("sent");
    assert_eq!(reply(&mut stream), (0, 4));
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_request_that_a_limit_holds_back_is_answered_by_the_next_server() {
    let Some(mut moving) = ram(one_reactor()) else { return };
    moving.talker(Form::Simple).fill(8, 0, 64 << 10);
    moving.server.set_limit("x", Some("iops=1,burst=1s".parse().expect("a limit"))).expect("set");
    let mut talkers: Vec<_> = (0..8).map(|_| moving.talker(Form::Structured)).collect();
    for talker in &mut talkers {
        let said = [talker.ask(READ, 0, 4096), talker.ask(READ, 8192, 4096)].concat();
        talker.send(&said);
    }
    std::thread::sleep(READ_IT);
    moving.hand_over();
    let from = Instant::now();
    for talker in &mut talkers {
        talker.take_all(|asked| pattern(8, asked.offset, asked.len as usize));
    }
    assert!(from.elapsed() < Duration::from_secs(3), "no limit holds in the next server: {:?}", from.elapsed());
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_write_that_a_limit_has_let_begin_is_not_charged_again() {
    let Some(mut moving) = ram(one_reactor()) else { return };
    let mut talkers: Vec<_> = (0..4).map(|_| moving.talker(Form::Simple)).collect();
    let mut rests = Vec::new();
    for (at, talker) in talkers.iter_mut().enumerate() {
        let write = talker.write((at as u64) << 20, &pattern(2, (at as u64) << 20, 64 << 10));
        talker.send(&write[..30_000]);
        rests.push(write[30_000..].to_vec());
    }
    std::thread::sleep(READ_IT);
    // One request, and then one each second.
    moving.plan.limit = Some("iops=1,burst=1s".parse().expect("a limit"));
    moving.hand_over();
    let from = Instant::now();
    talkers.iter_mut().zip(&rests).for_each(|(talker, rest)| talker.send(rest));
    talkers.iter_mut().for_each(|talker| talker.take_all(|_| Vec::new()));
    assert!(from.elapsed() < Duration::from_millis(900), "{:?}", from.elapsed());
    moving.plan.limit = None;
    moving.hand_over();
    talkers.iter_mut().enumerate().for_each(|(at, talker)| talker.has(2, (at as u64) << 20, 64 << 10));
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn clients_without_a_place_and_those_that_nobody_has_accepted_are_served_by_the_next_server() {
    let Some(mut moving) = ram(ServerOptions { max_clients: 2, ..one_reactor() }) else { return };
    let (mut one, mut two) = (moving.talker(Form::Simple), moving.talker(Form::Structured));
    let mut waits = moving.connect();
    waits.write_all(&[vec![0, 0, 0, 3], option(1, b"x")].concat()).expect("sent");
    std::thread::sleep(Duration::from_millis(20));
    moving.server.suspend(WITHIN).expect("nothing is under way");
    let mut late = moving.connect();
    late.write_all(&[vec![0, 0, 0, 3], option(1, b"x")].concat()).expect("sent");
    let moved = moving.take_out_of_suspended();
    assert_eq!(moved.parcel.state.clients.len(), 3, "one waits at the door");
    moving.go_on(moved);
    one.fill(1, 0, 4096);
    two.has(1, 0, 4096);
    for (gone, stream) in [(one, &mut waits), (two, &mut late)] {
        drop(gone);
        stream.read_exact(&mut [0; 18 + 10]).expect("a place");
        stream.write_all(&request(FLUSH, 7, 0, 0)).expect("sent");
        assert_eq!(reply(stream), (0, 7));
    }
    let numbers: Vec<_> = moving.server.clients().iter().map(|client| client.id).collect();
    assert_eq!(numbers, [3, 4]);
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn clients_that_connect_all_the_time_are_all_served() {
    let Some(mut moving) = ram(options()) else { return };
    let socket = moving.socket.clone();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut served = 0u64;
                    while !ends.load(Ordering::Relaxed) {
                        let mut stream = UnixStream::connect(&socket).expect("somebody listens");
                        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
                        stream
                            .write_all(&[vec![0, 0, 0, 3], option(1, b"x"), request(FLUSH, 7, 0, 0)].concat())
                            .expect("sent");
                        stream.read_exact(&mut [0; 18 + 10]).expect("an export");
                        assert_eq!(reply(&mut stream), (0, 7));
                        served += 1;
                    }
                    served
                })
            })
            .collect();
        let ended = Ends(&ends);
        for round in 0..60 {
            if round % 3 == 0 {
                moving.server.suspend(WITHIN).expect("suspended");
                moving.server.resume();
            }
            moving.hand_over_to(1 + round % 3);
        }
        drop(ended);
        let served: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        assert!(served > 60, "{served}");
    });
    assert!(moving.notices.lock().expect("nobody panics").is_empty());
    moving.stop().server.stop().expect("it ends");
}

/// Connects a client in the transmission phase over TLS.
fn secured(moving: &Moving, authority: &Authority) -> StreamOwned<ClientConnection, UnixStream> {
    let mut stream = moving.connect();
    stream.write_all(&[vec![0, 0, 0, 3], option(5, b"")].concat()).expect("sent");
    stream.read_exact(&mut [0; 18 + 20]).expect("an acknowledgement");
    let mut roots = RootCertStore::empty();
    let path = authority.anonymous().join("ca-cert.pem");
    roots.add(CertificateDer::from_pem_file(path).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = StreamOwned::new(ClientConnection::new(Arc::new(config), name).expect("a client"), stream);
    client.write_all(&option(1, b"x")).expect("sent");
    client.read_exact(&mut [0; 10]).expect("an export");
    client
}

#[test]
fn clients_with_tls_get_their_replies_and_an_end_and_others_go_on() {
    let authority = Authority::new();
    let mut plan = Plan::of(slow(FaultOps::Read, Duration::from_millis(200)), options());
    plan.tls = Some(tls(&authority, false));
    let Some(mut moving) = plan.start() else { return };
    let mut plain = moving.talker(Form::Structured);
    plain.fill(9, 0, 64 << 10);
    let mut with = secured(&moving, &authority);
    let mut lazy = secured(&moving, &authority);
    let mut begins = moving.connect();
    begins.write_all(&[vec![0, 0, 0, 3], option(5, b"")].concat()).expect("sent");
    begins.read_exact(&mut [0; 18 + 20]).expect("an acknowledgement");
    assert_eq!(moving.server.clients_with_tls(), 2);
    // Reads take longer than clients have to take their replies.
    let reads = [request(READ, 1, 0, 4096), request(READ, 2, 4096, 32 << 10)].concat();
    with.write_all(&reads).expect("sent");
    lazy.write_all(&(0..8).flat_map(|at| request(READ, at, 0, 4 << 20)).collect::<Vec<_>>()).expect("sent");
    let read = plain.ask(READ, 0, 4096);
    plain.send(&read);
    std::thread::sleep(READ_IT);
    moving.hand_over();
    let mut all = Vec::new();
    with.read_to_end(&mut all).expect("replies, and the end of TLS");
    assert_eq!(all.len(), 16 + 4096 + 16 + (32 << 10));
    let second = if all[15] == 2 { 16 } else { 16 + 4096 + 16 };
    assert!(all[second..second + (32 << 10)] == pattern(9, 4096, 32 << 10));
    assert!(!rig::is_closed(&mut begins) || moving.server.clients().len() == 1);
    plain.take_all(|asked| pattern(9, asked.offset, asked.len as usize));
    plain.has(9, 4096, 4096);
    assert_eq!(moving.server.clients().len(), 1);
    assert!(moving.heard("it did not take its replies"), "the lazy one");
    assert_eq!(moving.notices.lock().expect("nobody panics").len(), 1);
    drop(lazy);
    // TLS goes on to be offered.
    let mut next = secured(&moving, &authority);
    next.write_all(&request(FLUSH, 3, 0, 0)).expect("sent");
    next.read_exact(&mut [0; 16]).expect("a reply");
    drop(next);
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn who_has_chosen_no_export_needs_the_listener_that_it_came_to() {
    let Some(mut moving) = ram(options()) else { return };
    let mut talker = moving.talker(Form::Simple);
    let mut chooses = moving.connect();
    chooses.read_exact(&mut [0; 18]).expect("a greeting");
    let mut moved = moving.take_out();
    moved.parcel.state.clients.iter_mut().for_each(|client| client.listener = "unix:/elsewhere".into());
    moving.go_on(moved);
    // Its listener might have asked for TLS.
    assert!(rig::is_closed(&mut chooses));
    assert!(moving.heard("nobody listens at its address any more"));
    talker.fill(1, 0, 4096);
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn what_is_not_suspended_is_not_taken_out() {
    let Some(mut moving) = Plan::of(slow(FaultOps::All, Duration::from_millis(100)), options()).start() else { return };
    let mut talker = moving.talker(Form::Simple);
    let write = talker.write(0, &[1; 4096]);
    talker.send(&write);
    std::thread::sleep(READ_IT);
    let moved = moving.take_out_of_suspended();
    assert_eq!(moved.parcel.state.clients, [], "it was in use");
    talker.take_all(|_| Vec::new());
    assert!(talker.is_at_its_end(), "it ends like the clients of a server that ends");
    moving.go_on(moved);
    moving.stop().server.stop().expect("it ends");
}
