//! The driver against a correct server and against a faulty one: the suite for drivers, outages, missing answers, wrong
//! answers, an export that has changed, pools.

mod rig;

use std::time::{Duration, Instant};

use rig::{EIO, ENODEV, ETIMEDOUT, MIB, Server, chunk, filled, registry, results, ring};
use sheave::volumes::{CreateOptions, OpenOptions, Pool};
use sheave::{Buf, Ring, op};
use sheave_conformance::Suite;
use sheave_nbd::handshake::Mode;
use sheave_nbd::wire::tflag;

const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

#[test]
fn passes_the_suite_for_drivers() {
    for mode in MODES {
        let server = Server::start(8 * MIB, mode);
        let stalls = Server::start(8 * MIB, mode);
        if ring(&server.open("").expect("opened")).is_none() {
            return;
        }
        stalls.state().silent = true;
        let (spec, stuck) = (server.spec(""), stalls.spec(",timeout=200ms"));
        let report = Suite::new(move || registry().open(&spec)).stuck(move || registry().open(&stuck)).run();
        report.assert_passed();
        let delayed = format!("fault:seed=1,delay=0.2,delay_time=100us,over={}", server.spec(",connections=1"));
        Suite::new(move || registry().open(&delayed)).run().assert_passed();
    }
}

#[test]
fn requests_of_all_sizes_find_their_places_over_several_connections() {
    for (mode, keys) in MODES.into_iter().flat_map(|mode| [(mode, ""), (mode, ",connections=1")]) {
        let server = Server::start(64 * MIB, mode);
        let device = server.open(keys).expect("opened");
        let Some((mut ring, fd)) = ring(&device) else { return };
        let byte = |number: u64, at: usize| (number as usize * 31 + at * 7) as u8;
        let sizes: Vec<usize> = (0..60).map(|number| 512 << (number % 12)).collect();
        for (number, &len) in (0..).zip(&sizes) {
            let mut buf = Buf::zeroed(len, 4096).expect("memory");
            buf.iter_mut().enumerate().for_each(|(at, to)| *to = byte(number, at));
            ring.push(op::write(fd, buf).offset(number * MIB as u64).user_data(number)).expect("room");
        }
        let written = results(&mut ring, 60);
        assert!(written.iter().all(|&(number, res)| res as usize == sizes[number as usize]), "{written:?}");
        for (number, &len) in sizes.iter().enumerate().rev() {
            let number = number as u64;
            ring.push(op::read(fd, filled(len, 0xee)).offset(number * MIB as u64).user_data(number)).expect("room");
        }
        ring.submit_and_wait(60).expect("submitted");
        let mut seen = 0;
        while let Some(done) = ring.pop() {
            let (number, res) = (done.user_data, done.res as usize);
            assert_eq!(res, sizes[number as usize]);
            let buf = done.into_buf().expect("its buffer");
            assert!(buf.iter().enumerate().all(|(at, got)| *got == byte(number, at)), "{mode:?}{keys}: read {number}");
            seen += 1;
        }
        assert_eq!(seen, 60);
        let connections = server.state().connections;
        assert!(if keys.is_empty() { (2..=4).contains(&connections) } else { connections == 1 }, "{connections}");
    }
}

#[test]
fn an_outage_is_waited_for_and_told() {
    let server = Server::start(MIB, Mode::Structured);
    let device = server.open("").expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    ring.push(op::write(fd, filled(4096, 5))).expect("room");
    ring.push(op::fsync(fd).drain()).expect("room");
    assert_eq!(results(&mut ring, 2), [(0, 0), (0, 4096)]);
    {
        let mut state = server.state();
        state.away = true;
        state.die();
    }
    let from = Instant::now();
    for number in 0..8 {
        ring.push(op::read(fd, filled(4096, 0xee)).offset(number * 65536).user_data(number)).expect("room");
    }
    ring.submit().expect("submitted");
    // On a busy machine there may be fewer tries in the first of these times.
    let tries = loop {
        let _ = ring.wait(1, Some(Duration::from_millis(300)));
        assert!(ring.pop().is_none(), "nothing has ended");
        let tries = server.state().connections;
        if tries >= 3 {
            break tries;
        }
        assert!(from.elapsed() < Duration::from_secs(20), "{tries} tries");
    };
    assert!(tries < 60, "{tries} tries in {:?}: they come with a pause that grows", from.elapsed());
    server.state().away = false;
    let ended = results(&mut ring, 8);
    assert!(ended.iter().all(|&(_, res)| res == 4096), "{ended:?}");
    assert!(from.elapsed() >= Duration::from_millis(300));
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains("the connection was lost")), "{told:?}");
    assert!(told.iter().any(|text| text.contains("no connection could be made")), "{told:?}");
}

#[test]
fn a_server_that_stays_away_costs_a_timeout_and_no_more() {
    let server = Server::start(MIB, Mode::Structured);
    let device = server.open(",timeout=300ms").expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    server.state().away = true;
    server.state().die();
    for round in 0..3 {
        let from = Instant::now();
        ring.push(op::read(fd, filled(4096, 0xee)).user_data(round)).expect("room");
        assert_eq!(results(&mut ring, 1), [(round, -ETIMEDOUT)]);
        assert!(from.elapsed() >= Duration::from_millis(280) && from.elapsed() < Duration::from_secs(8));
    }
    server.state().away = false;
    ring.push(op::read(fd, filled(4096, 0xee))).expect("room");
    // The ring may be in a retry delay of up to a second, longer than the timeout.
    while results(&mut ring, 1) != [(0, 4096)] {
        ring.push(op::read(fd, filled(4096, 0xee))).expect("room");
    }
}

#[test]
fn a_server_that_says_nothing_costs_a_timeout_and_the_connection() {
    let server = Server::start(MIB, Mode::Structured);
    // Long enough for another connection and an answer on a busy machine.
    let device = server.open(",timeout=4s").expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    server.state().silent = true;
    ring.push(op::write(fd, filled(4096, 1)).user_data(1)).expect("room");
    assert_eq!(results(&mut ring, 1), [(1, -ETIMEDOUT)]);
    server.state().silent = false;
    ring.push(op::read(fd, filled(4096, 0xee)).user_data(2)).expect("room");
    assert_eq!(results(&mut ring, 1), [(2, 4096)]);
    assert_eq!(server.state().connections, 2);
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains("not answered in time")), "{told:?}");
}

#[test]
fn writes_that_are_answered_before_their_data_was_taken_end_and_cost_the_connection() {
    for mode in MODES {
        let server = Server::start(16 * MIB, mode);
        let device = server.open(",connections=1,timeout=2s").expect("opened");
        let Some((mut ring, fd)) = ring(&device) else { return };
        server.state().hasty = 16;
        for number in 0..16 {
            ring.push(op::write(fd, filled(MIB, 1)).offset(number * MIB as u64).user_data(number)).expect("room");
        }
        ring.submit().expect("submitted");
        for _ in 0..16 {
            let _ = ring.wait(1, Some(Duration::from_secs(30)));
            let done = ring.pop().expect("a request that the server has answered ends");
            assert!(done.res == MIB as i32 || done.res == -ETIMEDOUT, "{mode:?}: {}", done.res);
        }
        ring.push(op::read(fd, filled(4096, 0xee)).user_data(99)).expect("room");
        assert_eq!(results(&mut ring, 1), [(99, 4096)], "{mode:?}");
        assert_eq!(server.state().connections, 2, "{:?}", device.notices());
        let told = device.notices();
        assert!(told.iter().any(|text| text.contains("before it had taken its data")), "{told:?}");
    }
}

#[test]
fn a_handshake_that_does_not_go_on_is_given_up_and_told() {
    let server = Server::start(MIB, Mode::Structured);
    server.state().mute = true;
    let from = Instant::now();
    let error = server.open(",connect=200ms").expect_err("it says nothing");
    assert!(from.elapsed() < Duration::from_secs(5) && error.to_string().contains("Is the server there"), "{error}");
    server.state().mute = false;
    // On a busy machine the server may need longer.
    let mut tries = (0..100).map(|_| server.open(",connect=200ms,timeout=60s"));
    let device = tries.find_map(Result::ok).expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    server.state().mute = true;
    server.state().hang_up();
    ring.push(op::read(fd, filled(4096, 0xee))).expect("room");
    ring.submit().expect("submitted");
    let (words, from) = ("did not answer in time in the handshake", Instant::now());
    while !device.notices().iter().any(|text| text.contains(words)) {
        assert!(from.elapsed() < Duration::from_secs(30), "{:?}", device.notices());
        let _ = ring.wait(1, Some(Duration::from_millis(100)));
    }
    server.state().mute = false;
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
}

#[test]
fn a_reconnect_to_another_export_is_an_error_that_names_it() {
    type Change = fn(&mut rig::State);
    let changes: [(Change, &str); 3] = [
        (|state| state.size = 2 << 20, "it had 1048576 bytes and now has 2097152"),
        (|state| state.name = "other".into(), "it was called 'disk' and now 'other'"),
        (|state| state.flags &= !tflag::SEND_FLUSH, "abilities"),
    ];
    for (change, says) in changes {
        let server = Server::start(MIB, Mode::Structured);
        let device = server.open("").expect("opened");
        let Some((mut ring, fd)) = ring(&device) else { return };
        {
            let mut state = server.state();
            state.cache.resize(2 * MIB, 0);
            state.stable.resize(2 * MIB, 0);
            change(&mut state);
            state.hang_up();
        }
        for round in 0..3 {
            ring.push(op::read(fd, filled(4096, 0xee)).user_data(round)).expect("room");
            assert_eq!(results(&mut ring, 1), [(round, -ENODEV)], "{says}");
        }
        ring.push(op::write(fd, filled(4096, 1))).expect("room");
        assert_eq!(results(&mut ring, 1), [(0, -ENODEV)]);
        let told = device.notices();
        assert!(told.iter().any(|text| text.contains(says) && text.contains("another export")), "{told:?}");
        assert!(server.state().cache.iter().all(|byte| *byte == 0), "nothing was written to it");
    }
}

#[test]
fn a_server_that_lies_loses_the_connection_and_is_asked_again() {
    for mode in MODES {
        let server = Server::start(MIB, mode);
        let device = server.open("").expect("opened");
        let Some((mut ring, fd)) = ring(&device) else { return };
        server.state().lies = 3;
        ring.push(op::write(fd, filled(4096, 7))).expect("room");
        assert_eq!(results(&mut ring, 1), [(0, 4096)], "{mode:?}");
        assert_eq!(server.state().connections, 4);
        assert!(device.notices().iter().any(|text| text.contains("what nobody asked")));
    }
}

/// Reads 8 KiB at 64 KiB; the server answers with the bytes of `forge`. Returns the result, the data, and the number of
/// connections made.
fn forged_read(forge: fn(&sheave_nbd::Request) -> Vec<u8>) -> Option<(i32, Vec<u8>, u64)> {
    let server = Server::start(MIB, Mode::Structured);
    server.state().cache.fill(7);
    let device = server.open("").expect("opened");
    let (mut ring, fd) = ring(&device)?;
    server.state().forged = Some(forge);
    ring.push(op::read(fd, filled(8192, 0xee)).offset(65536)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let done = ring.pop().expect("it was waited for");
    let (res, connections) = (done.res, server.state().connections);
    Some((res, done.into_buf().expect("its buffer").to_vec(), connections))
}

#[test]
fn chunks_in_any_order_and_holes_make_a_read() {
    let Some((res, bytes, connections)) = forged_read(|asked| {
        let place = |offset: u64| (asked.offset + offset).to_be_bytes();
        let hole = chunk(asked, false, 2, &[&place(2048), &4096u32.to_be_bytes()]);
        let last = chunk(asked, false, 1, &[&place(6144), &[3; 2048]]);
        let first = chunk(asked, false, 1, &[&place(0), &[1; 2048]]);
        [last, first, hole, chunk(asked, true, 0, &[])].concat()
    }) else {
        return;
    };
    assert_eq!((res, connections), (8192, 1));
    assert!(bytes == [vec![1; 2048], vec![0; 4096], vec![3; 2048]].concat());
}

#[test]
fn a_read_that_is_answered_in_part_fails() {
    let Some((res, _, connections)) = forged_read(|asked| {
        let data = chunk(asked, false, 1, &[&asked.offset.to_be_bytes(), &[1; 8191]]);
        [data, chunk(asked, true, 0, &[])].concat()
    }) else {
        return;
    };
    assert_eq!((res, connections), (-EIO, 1));
}

#[test]
fn a_read_with_an_error_behind_its_data_fails() {
    let Some((res, _, _)) = forged_read(|asked| {
        let data = chunk(asked, false, 1, &[&asked.offset.to_be_bytes(), &[1; 8192]]);
        let error = [28u32.to_be_bytes().as_slice(), &[0; 2]].concat();
        [data, chunk(asked, true, (1 << 15) + 1, &[&error])].concat()
    }) else {
        return;
    };
    assert_eq!(res, -28);
}

#[test]
fn answers_that_break_the_protocol_cost_the_connection_and_the_read_is_asked_again() {
    let forgeries: [fn(&sheave_nbd::Request) -> Vec<u8>; 6] = [
        |asked| chunk(asked, true, 1, &[&(asked.offset - 1).to_be_bytes(), &[1; 8]]), // before its read
        |asked| chunk(asked, true, 1, &[&(asked.offset + 8190).to_be_bytes(), &[1; 8]]), // beyond its end
        |asked| chunk(asked, true, 2, &[&asked.offset.to_be_bytes(), &u32::MAX.to_be_bytes()]),
        |asked| {
            let twice = chunk(asked, false, 1, &[&asked.offset.to_be_bytes(), &[1; 512]]);
            [twice.clone(), twice].concat()
        },
        |asked| chunk(asked, true, 5, &[&[0; 12]]),
        |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    ];
    for (number, forge) in forgeries.into_iter().enumerate() {
        let Some((res, bytes, connections)) = forged_read(forge) else { return };
        assert_eq!((res, connections), (8192, 2), "{number}");
        assert!(bytes.iter().all(|byte| *byte == 7), "{number}: what was forged is gone");
    }
}

#[test]
fn a_ring_that_goes_takes_its_operations_back_first() {
    let server = Server::start(8 * MIB, Mode::Simple);
    let device = server.open("").expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    server.state().silent = true;
    let from = Instant::now();
    for number in 0..16 {
        ring.push(op::read(fd, filled(65536, 0xee)).offset(number * 131_072)).expect("room");
        ring.push(op::write(fd, filled(65536, 1)).offset((4 << 20) + number * 131_072)).expect("room");
    }
    ring.submit().expect("submitted");
    while server.state().requests == 0 && from.elapsed() < Duration::from_secs(10) {
        let _ = ring.wait(32, Some(Duration::from_millis(5)));
    }
    assert!(device.in_flight().total() > 0);
    drop(ring);
    assert!(from.elapsed() < Duration::from_secs(10), "{:?}", from.elapsed());
    assert_eq!(device.in_flight().total(), 0);
}

#[test]
fn connections_that_are_cut_all_the_time_lose_no_io() {
    for mode in MODES {
        let server = Server::start(8 * MIB, mode);
        let device = server.open("").expect("opened");
        let Some((mut ring, fd)) = ring(&device) else { return };
        for round in 0..40u8 {
            for number in 0..32 {
                let offset = number * 131_072;
                if number % 3 == 0 {
                    ring.push(op::write(fd, filled(65536, round)).offset(offset)).expect("room");
                } else {
                    ring.push(op::read(fd, filled(65536, 0xee)).offset(offset)).expect("room");
                }
            }
            ring.submit().expect("submitted");
            let _ = ring.wait(u32::from(round) % 32, Some(Duration::from_millis(20)));
            server.hang_up();
            let all = results(&mut ring, 32);
            assert!(all.len() <= 32 && all.iter().all(|&(_, res)| res == 65536), "{mode:?} {round}: {all:?}");
        }
        for number in (0..32u64).filter(|number| number % 3 == 0) {
            let at = number as usize * 131_072;
            assert!(server.state().cache[at..at + 65536].iter().all(|byte| *byte == 39), "{mode:?} {number}");
        }
    }
}

#[test]
fn a_server_without_multi_conn_gets_one_ring_and_the_second_is_told_why() {
    let server = Server::start(MIB, Mode::Structured);
    server.state().flags &= !tflag::CAN_MULTI_CONN;
    let device = server.open("").expect("opened");
    let Some((first, _)) = ring(&device) else { return };
    let mut second = Ring::builder().build().expect("a ring");
    let error = second.attach(&device).expect_err("no second one");
    let said = format!("{error} {:?}", std::error::Error::source(&error));
    assert!(said.contains("multi-conn") && said.contains("multi_conn=assume"), "{said}");
    drop(first);
    second.attach(&device).expect("the first has gone");
    let assumed = server.open(",multi_conn=assume").expect("opened");
    assert!(ring(&assumed).is_some() && ring(&assumed).is_some());
}

#[test]
fn a_device_announces_no_ability_that_its_server_lacks() {
    let server = Server::start(MIB, Mode::Structured);
    server.state().flags = tflag::HAS_FLAGS | tflag::READ_ONLY;
    let device = server.open("").expect("opened");
    let has = device.capabilities();
    assert!(has.read_only && !has.fua && !has.volatile_cache && !has.discard && !has.write_zeroes);
    server.state().flags = tflag::HAS_FLAGS;
    let device = server.open("").expect("opened");
    assert!(device.notices().iter().any(|text| text.contains("offers no flush")), "{:?}", device.notices());
    assert!(server.open(",readonly=on").expect("opened").capabilities().read_only);
}

#[test]
fn a_pool_on_the_device_survives_the_death_of_its_server() {
    let server = Server::start(64 * MIB, Mode::Extended);
    let device = server.open("").expect("opened");
    let Some((ring_here, _)) = ring(&device) else { return };
    drop(ring_here);
    Pool::create(&device, &CreateOptions::default()).expect("made");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
    let disk = pool.create_volume("disk", 16 << 20).expect("made");
    let mut ring = Ring::builder().entries(64).build().expect("a ring");
    let fd = ring.attach_file(std::sync::Arc::new(disk)).expect("attached");
    for round in 1..=5u8 {
        for number in 0..16 {
            ring.push(op::write(fd, filled(65536, round)).offset(number * 131_072)).expect("room");
        }
        assert!(results(&mut ring, 16).iter().all(|&(_, res)| res == 65536));
        ring.push(op::fsync(fd)).expect("room");
        assert_eq!(results(&mut ring, 1), [(0, 0)], "{round}");
        server.state().die(); // nothing but what was flushed is left
    }
    ring.push(op::read(fd, filled(65536, 0xee)).offset(131_072)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let read = ring.pop().and_then(|done| done.into_buf()).expect("its buffer");
    assert!(read.iter().all(|byte| *byte == 5));
    // A death with unflushed writes degrades the pool (V25, V28), so it never reports them as durable.
    ring.push(op::write(fd, filled(65536, 6))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 65536)]);
    server.state().die();
    ring.push(op::fsync(fd)).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, -EIO)]);
    assert!(pool.info().degraded.is_some());
    drop(ring);
    drop(pool);
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opened again");
    assert!(pool.info().degraded.is_none());
    pool.close().expect("closed");
}
