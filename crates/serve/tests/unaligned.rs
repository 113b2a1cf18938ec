//! Clients that did not negotiate block sizes access any bytes: they get exactly these, and destroy nothing that others
//! write to the same blocks.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheave_base::rng::Rng;
use sheave_drivers::fault::{self, FaultKind, FaultOps, FaultPlan};
use sheave_iomap::{File, RawFile};
use sheave_serve::{Allow, Export, ServerOptions};

use rig::{Device, Rig, SIZE, option, options, reply, request, rig, rig_of, rig_with};

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const FAST_ZERO: u16 = 16;

fn send(client: &mut UnixStream, command: u16, flags: u16, offset: u64, data: &[u8], len: u32) {
    let mut bytes = request(command, offset, offset, len);
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(data);
    client.write_all(&bytes).expect("sent");
}

/// Sends a request without data. Returns the error of its reply.
fn ask(client: &mut UnixStream, command: u16, flags: u16, offset: u64, len: u32) -> u32 {
    send(client, command, flags, offset, &[], len);
    let (error, cookie) = reply(client);
    assert_eq!(cookie, offset);
    error
}

fn write(client: &mut UnixStream, offset: u64, data: &[u8]) -> u32 {
    send(client, WRITE, 0, offset, data, data.len() as u32);
    reply(client).0
}

fn read(client: &mut UnixStream, offset: u64, len: usize) -> Vec<u8> {
    assert_eq!(ask(client, READ, 0, offset, len as u32), 0, "{len} bytes at {offset}");
    let mut data = vec![0; len];
    client.read_exact(&mut data).expect("data");
    data
}

/// Connects a client that has negotiated block sizes.
fn client_that_asks(rig: &Rig) -> UnixStream {
    let mut stream = rig.connect();
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    stream.write_all(&[vec![0, 0, 0, 3], option(7, b"\0\0\0\x01x\0\x01\0\x03")].concat()).expect("sent");
    stream.read_exact(&mut [0; 20 + 12 + 20 + 14 + 20]).expect("an export");
    stream
}

#[test]
fn any_bytes_are_read_written_and_zeroed_and_no_others() {
    const AREA: u64 = 300_000;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let specs = ["ram:size=64M".into(), "ram:size=64M,bs=4096".into(), format!("file:{}", path.display())];
    // A device that cannot zero gets written zeroes.
    let specs = specs.into_iter().chain(["ram:size=64M,bs=65536".into()]);
    for (spec, seed) in specs.flat_map(|spec| sheave_testkit::seeds(2).map(move |seed| (spec.clone(), seed))) {
        std::fs::File::create(&path).and_then(|file| file.set_len(SIZE)).expect("a file");
        let Some(rig) = rig_of(&spec, options()) else { return };
        let mut rng = Rng::new(seed);
        let mut client = rig.client();
        // Up to the last bytes of the export.
        let start = SIZE - AREA;
        let mut model = vec![0; AREA as usize];
        for step in 0..400 {
            let most = if rng.below(8) == 0 { 200_000 } else { 3000 };
            let from = rng.below(AREA - 1);
            let len = (1 + rng.below(most)).min(AREA - from);
            let range = from as usize..(from + len) as usize;
            let words = format!("{spec}, seed {seed}, step {step}: {len} bytes at {from}");
            let flags = if rng.below(4) == 0 { FUA } else { 0 };
            match rng.below(8) {
                0..3 => {
                    let data: Vec<u8> = (0..len).map(|at| (at + step) as u8 | 1).collect();
                    send(&mut client, WRITE, flags, start + from, &data, len as u32);
                    assert_eq!(reply(&mut client).0, 0, "{words}");
                    model[range].copy_from_slice(&data);
                }
                kind @ 3..5 => {
                    let flags = flags | if kind == 3 { NO_HOLE } else { 0 };
                    assert_eq!(ask(&mut client, ZEROES, flags, start + from, len as u32), 0, "{words}");
                    model[range].fill(0);
                }
                5 => {
                    assert_eq!(ask(&mut client, TRIM, flags, start + from, len as u32), 0, "{words}");
                    let now = read(&mut client, start, AREA as usize);
                    assert!(
                        now[..range.start] == model[..range.start] && now[range.end..] == model[range.end..],
                        "{words}"
                    );
                    model = now;
                }
                _ => assert!(read(&mut client, start + from, len as usize) == model[range], "{words}"),
            }
        }
        assert!(read(&mut client, start, AREA as usize) == model, "{spec}, seed {seed}");
        // A client that uses whole blocks reads the same.
        let mut other = client_that_asks(&rig);
        let from = start.next_multiple_of(65536);
        assert!(read(&mut other, from, (SIZE - from) as usize) == model[(from - start) as usize..]);
        rig.server.stop().expect("it ends");
    }
}

#[test]
fn a_long_write_at_an_odd_place_is_received_piece_by_piece() {
    let Some(rig) = rig(options()) else { return };
    let mut client = rig.client();
    let data: Vec<u8> = (0..(32u32 << 20)).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    assert_eq!(write(&mut client, 777, &data), 0);
    assert!(read(&mut client, 777, data.len()) == data);
    let around = [read(&mut client, 0, 777), read(&mut client, 777 + data.len() as u64, 5000)].concat();
    assert!(around.iter().all(|byte| *byte == 0));
    rig.server.stop().expect("it ends");
}

#[test]
fn a_client_that_asked_for_block_sizes_is_refused_parts_of_blocks() {
    let Some(rig) = rig(options()) else { return };
    let mut client = client_that_asks(&rig);
    for command in [READ, TRIM, ZEROES] {
        assert_eq!(ask(&mut client, command, 0, 512, 7), 22);
        assert_eq!(ask(&mut client, command, 0, 7, 512), 22);
    }
    assert_eq!(write(&mut client, 7, &[1; 512]), 22);
    assert_eq!(write(&mut client, 512, &[1; 512]), 0);
    rig.server.stop().expect("it ends");
}

#[test]
fn unaligned_requests_get_the_same_errors_as_aligned_ones() {
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let backend = Box::new(Device(Arc::new(RawFile::new(device))));
    let Some(rig) = rig::rig_export(true, backend, options()) else { return };
    let mut client = rig.client();
    assert_eq!(read(&mut client, 3, 7), [0; 7]);
    assert_eq!(write(&mut client, 3, &[1; 7]), 1, "EPERM");
    assert_eq!((ask(&mut client, TRIM, 0, 3, 7), ask(&mut client, ZEROES, 0, 3, 7)), (1, 1));
    rig.server.stop().expect("it ends");

    let Some(rig) = rig_of("ram:size=64M", options()) else { return };
    let mut client = rig.client();
    assert_eq!(write(&mut client, SIZE - 3, &[1; 4]), 28, "ENOSPC");
    assert_eq!(ask(&mut client, READ, 0, SIZE - 3, 4), 22);
    // Rewriting a block takes a read: it is not faster than a write.
    assert_eq!(write(&mut client, 0, &[1; 2048]), 0);
    assert_eq!(ask(&mut client, ZEROES, FAST_ZERO, 3, 1000), 95);
    assert_eq!(read(&mut client, 0, 2048), [1; 2048]);
    rig.server.stop().expect("it ends");
}

#[test]
fn an_edge_that_cannot_be_read_fails_the_write_and_holds_up_nobody() {
    let disk = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let plan = FaultPlan { ops: FaultOps::Read, ..FaultPlan::new(7).with(FaultKind::Error, 1.0) };
    let (device, _) = fault::over("bad", &disk, &plan).expect("a device");
    let Some(rig) = rig_with(Box::new(Device(Arc::new(RawFile::new(device)))), options()) else { return };
    let mut client = rig.client();
    for _ in 0..40 {
        assert_eq!(write(&mut client, 3, &[1; 700]), 5, "EIO");
        assert_eq!(ask(&mut client, ZEROES, 0, 3, 700), 5);
        assert_eq!(write(&mut client, 0, &[1; 1024]), 0, "whole blocks are not read");
    }
    rig.server.stop().expect("it ends");
}

/// Starts a server of a device in memory that delays operations of this kind. Returns also the device itself.
fn slow(ops: FaultOps, delay: Duration) -> Option<(Rig, Arc<dyn File>)> {
    let disk = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let plan = FaultPlan::new(1).with(FaultKind::Delay, 1.0);
    let plan = FaultPlan { ops, delay_time: delay, ..plan };
    let (device, _) = fault::over("slow", &disk, &plan).expect("a device");
    let file: Arc<dyn File> = Arc::new(RawFile::new(device));
    Some((rig_with(Box::new(Device(file.clone())), options())?, file))
}

/// Bytes that each of several clients of one export, on any reactor, writes in the same blocks.
const PART: usize = 100;
const CLIENTS: usize = 9;

#[test]
fn writers_of_parts_of_the_same_blocks_lose_nothing_of_each_other() {
    for ops in [FaultOps::All, FaultOps::Write] {
        let Some((rig, _)) = slow(ops, Duration::from_millis(5)) else { return };
        let mut clients: Vec<UnixStream> = (0..CLIENTS).map(|_| rig.client()).collect();
        for round in 1..=10u8 {
            for (number, client) in clients.iter_mut().enumerate() {
                let at = (number * PART) as u64;
                match (number + usize::from(round)) % 3 {
                    0 => send(client, ZEROES, 0, at, &[], PART as u32),
                    _ => send(client, WRITE, 0, at, &[round; PART], PART as u32),
                }
            }
            clients.iter_mut().for_each(|client| assert_eq!(reply(client).0, 0));
            let found = read(&mut clients[0], 0, CLIENTS * PART);
            for (number, part) in found.chunks(PART).enumerate() {
                let expected = if (number + usize::from(round)).is_multiple_of(3) { 0 } else { round };
                assert!(part.iter().all(|byte| *byte == expected), "{ops:?}, round {round}, client {number}: {part:?}");
            }
        }
        rig.server.stop().expect("it ends");
    }
}

#[test]
fn whole_blocks_that_are_written_beside_a_part_of_them_are_not_lost() {
    // If all operations are slow, a block is written between the read and the write of the part. If only writes are, it
    // is under way when the part is read.
    for (ops, whole_first) in [(FaultOps::All, false), (FaultOps::Write, true)] {
        let Some((rig, _)) = slow(ops, Duration::from_millis(40)) else { return };
        let mut parts = rig.client();
        // Some of these are on the other reactor.
        let mut others: Vec<UnixStream> = (0..8).map(|_| client_that_asks(&rig)).collect();
        for round in 1..=6u8 {
            let part = |parts: &mut UnixStream| send(parts, WRITE, 0, 1000, &[200; 4 * 512], 4 * 512);
            let all = |others: &mut [UnixStream]| {
                for (number, other) in others.iter_mut().enumerate() {
                    let (command, data) = match number % 4 {
                        0 => (ZEROES, vec![]),
                        _ => (WRITE, vec![round; 512]),
                    };
                    send(other, command, 0, number as u64 * 512, &data, 512);
                }
            };
            if whole_first {
                all(&mut others);
                std::thread::sleep(Duration::from_millis(5));
                part(&mut parts);
            } else {
                part(&mut parts);
                std::thread::sleep(Duration::from_millis(5));
                all(&mut others);
            }
            assert_eq!(reply(&mut parts).0, 0);
            others.iter_mut().for_each(|other| assert_eq!(reply(other).0, 0));
            let found = read(&mut parts, 0, 8 * 512);
            for (at, byte) in found.iter().enumerate() {
                let whole = if (at / 512).is_multiple_of(4) { 0 } else { round };
                let in_part = (1000..1000 + 4 * 512).contains(&at);
                // A byte that both have written has the value of either, and no other.
                assert!(*byte == whole || (in_part && *byte == 200), "{ops:?}, round {round}, byte {at}: {byte}");
            }
        }
        rig.server.stop().expect("it ends");
    }
}

#[test]
fn a_block_between_the_edges_of_zeroes_may_be_rewritten_meanwhile_and_is_zeroed_nevertheless() {
    const DELAY: Duration = Duration::from_millis(30);
    let Some((rig, _)) = slow(FaultOps::All, DELAY) else { return };
    let (mut zeroes, mut part) = (rig.client(), rig.client());
    for round in 0..7 {
        assert_eq!(write(&mut zeroes, 0, &[0xaa; 4096]), 0);
        send(&mut zeroes, ZEROES, 0, 100, &[], 3900);
        // The edges are read and written, and then the blocks between them are zeroed. Each round rewrites one of
        // these blocks at a later time.
        std::thread::sleep(DELAY * round + DELAY / 2);
        send(&mut part, WRITE, 0, 2100, &[7; 5], 5);
        assert_eq!((reply(&mut zeroes).0, reply(&mut part).0), (0, 0));
        let found = read(&mut part, 0, 4096);
        for (at, byte) in found.iter().enumerate() {
            let expected: &[u8] = match at {
                2100..2105 => &[0, 7],
                100..4000 => &[0],
                _ => &[0xaa],
            };
            assert!(expected.contains(byte), "round {round}, byte {at}: {byte}");
        }
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn two_exports_of_one_file_know_of_each_other() {
    let Some((rig, file)) = slow(FaultOps::Write, Duration::from_millis(20)) else { return };
    let again = Export {
        name: "y".into(),
        description: String::new(),
        read_only: false,
        allow: Allow::All,
        backend: Box::new(Device(file)),
        vhost_user: None,
    };
    rig.server.add_export(again).expect("added");
    let mut one = rig.client();
    let mut other = rig.connect();
    other.read_exact(&mut [0; 18]).expect("a greeting");
    other.write_all(&[vec![0, 0, 0, 3], option(1, b"y")].concat()).expect("sent");
    other.read_exact(&mut [0; 10]).expect("an export");
    for round in 1..=10u8 {
        send(&mut one, WRITE, 0, 0, &[round; 100], 100);
        send(&mut other, WRITE, 0, 100, &[round; 100], 100);
        assert_eq!((reply(&mut one).0, reply(&mut other).0), (0, 0));
        assert_eq!(read(&mut one, 0, 200), [round; 200], "round {round}");
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn who_hangs_up_while_it_rewrites_or_waits_holds_up_nobody() {
    let Some((rig, _)) = slow(FaultOps::All, Duration::from_millis(20)) else { return };
    let mut stays = rig.client();
    for round in 1..=5u8 {
        let leaves: Vec<UnixStream> = (0..6)
            .map(|_| {
                let mut client = rig.client();
                (0..30).for_each(|_| send(&mut client, WRITE, 0, 1, &[7; 5], 5));
                // Announced, and never sent in full.
                send(&mut client, WRITE, 0, 1, &[7; 5], 500);
                client
            })
            .collect();
        send(&mut stays, WRITE, 0, 300, &[round; 500], 500);
        drop(leaves);
        assert_eq!(reply(&mut stays).0, 0);
        assert_eq!(read(&mut stays, 300, 500), [round; 500]);
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn a_client_rewrites_a_few_blocks_at_a_time_and_all_are_answered() {
    let Some(rig) = rig(ServerOptions { reactors: 1, ..options() }) else { return };
    let mut client = rig.client();
    for cookie in 0..2000u64 {
        send(&mut client, WRITE, 0, cookie * 3, &[cookie as u8; 3], 3);
    }
    (0..2000).for_each(|_| assert_eq!(reply(&mut client).0, 0));
    let found = read(&mut client, 0, 6000);
    assert!(found.chunks(3).zip(0..2000u64).all(|(found, cookie)| found == [cookie as u8; 3]));
    assert_eq!(ask(&mut client, FLUSH, 0, 0, 0), 0);
    rig.server.stop().expect("it ends");
}

#[test]
fn a_client_rewrites_sixteen_blocks_at_a_time_and_no_more() {
    const DELAY: Duration = Duration::from_millis(40);
    let Some((rig, _)) = slow(FaultOps::Write, DELAY) else { return };
    let mut client = rig.client();
    let from = Instant::now();
    (0..64).for_each(|block| send(&mut client, WRITE, 0, block << 12, &[1; 3], 3));
    (0..64).for_each(|_| assert_eq!(reply(&mut client).0, 0));
    // Each rewrite makes all reactors look for changes, so the others of this client wait.
    assert!(from.elapsed() >= 4 * DELAY, "{:?}", from.elapsed());
    rig.server.stop().expect("it ends");
}
