//! Requests are counted, for each client and for each export.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sheave_serve::IoCounts;

use rig::{SIZE, options, reply, request, rig};

fn ask(client: &mut UnixStream, command: u16, offset: u64, len: u32) -> u32 {
    let data = if command == 1 { vec![7; len as usize] } else { Vec::new() };
    client.write_all(&[request(command, 9, offset, len), data].concat()).expect("sent");
    let (error, _) = reply(client);
    if command == 0 && error == 0 {
        client.read_exact(&mut vec![0; len as usize]).expect("data");
    }
    error
}

#[test]
fn requests_are_counted_for_the_client_and_for_the_export() {
    let Some(rig) = rig(options()) else { return };
    let mut one = rig.client();
    let mut other = rig.client();
    for (command, offset, len) in [(0, 0, 4096), (0, 4096, 65536), (1, 0, 8192), (3, 0, 0), (4, 0, 4096), (6, 0, 1024)]
    {
        assert_eq!(ask(&mut one, command, offset, len), 0, "command {command}");
    }
    // A hint; a request beyond the end, an unknown command, and a request across the end, which fail.
    assert_eq!(ask(&mut one, 5, 0, 4096), 0);
    assert_ne!(ask(&mut one, 0, SIZE, 4096), 0);
    assert_ne!(ask(&mut one, 99, 0, 0), 0);
    assert_ne!(ask(&mut one, 1, SIZE - 1, 512), 0);
    // Requests for parts of blocks count with the bytes that were asked for.
    assert_eq!((ask(&mut one, 0, 1, 512), ask(&mut one, 1, 7, 100), ask(&mut one, 6, 3, 1000)), (0, 0, 0));
    assert_eq!(ask(&mut other, 0, 0, 512), 0);
    let first = IoCounts {
        reads: 3,
        read_bytes: 69_632 + 512,
        writes: 2,
        written_bytes: 8192 + 100,
        flushes: 1,
        trims: 1,
        trimmed_bytes: 4096,
        zeroes: 2,
        zeroed_bytes: 1024 + 1000,
        others: 1,
        errors: 3,
        throttled: Duration::ZERO,
    };
    let second = IoCounts { reads: 1, read_bytes: 512, ..IoCounts::default() };
    let mut all = first;
    all += second;
    let counts: Vec<IoCounts> = rig.server.clients().iter().map(|client| client.counts).collect();
    assert_eq!(counts, [first, second]);
    assert_eq!(rig.server.exports()[0].counts, all);

    // The counts of a client that is gone stay with its export.
    drop(one);
    let until = Instant::now() + Duration::from_secs(20);
    while rig.server.clients().len() > 1 {
        assert!(Instant::now() < until, "the client is gone");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(rig.server.exports()[0].counts, all);
    assert_eq!(rig.server.exports()[0].clients, 1);
    assert_eq!(ask(&mut other, 0, 0, 512), 0);
    all += second;
    assert_eq!(rig.server.exports()[0].counts, all);
    rig.server.stop().expect("it ends");
}
