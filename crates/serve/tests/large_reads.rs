//! Large reads: those of memory one at a time, so that the data is in the cache when it is sent; those of a disk all at
//! once.

mod rig;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use sheave_serve::ServerOptions;
use sheave_testkit::under_sanitizer;

use rig::{options, reply, request, rig, rig_of};

const LARGE: u32 = 4 << 20;

/// Returns the peak memory of this process in KiB.
fn peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = text.lines().find(|line| line.starts_with("VmHWM:")).expect("a field");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn large_reads_from_memory_run_one_at_a_time() {
    let Some(rig) = rig(ServerOptions { reactors: 1, ..ServerOptions::default() }) else { return };
    let mut client = rig.client();
    let mut data = vec![0; LARGE as usize];
    for at in 0..16u64 {
        client
            .write_all(&[request(1, at, at << 22, LARGE), vec![at as u8 + 1; LARGE as usize]].concat())
            .expect("sent");
        assert_eq!(reply(&mut client), (0, at));
    }
    // The first read shows that the device completes at once.
    client.write_all(&request(0, 99, 0, LARGE)).expect("sent");
    assert_eq!(reply(&mut client), (0, 99));
    client.read_exact(&mut data).expect("data");
    let before = peak();
    let reads: Vec<u8> = (0..16).flat_map(|cookie| request(0, cookie, cookie << 22, LARGE)).collect();
    // Requests behind the large reads do not wait for them; the goodbye does.
    let small = [request(1, 50, 0, 512), vec![77; 512], request(5, 51, 0, 512), request(2, 0, 0, 0)].concat();
    client.write_all(&[reads, small].concat()).expect("sent");
    let mut order = Vec::new();
    for _ in 0..18 {
        let (error, cookie) = reply(&mut client);
        assert_eq!(error, 0);
        order.push(cookie);
        if cookie < 16 {
            client.read_exact(&mut data).expect("data");
            let first = if cookie == 0 { 512 } else { 0 };
            assert!(data[first..].iter().all(|byte| u64::from(*byte) == cookie + 1), "the data of read {cookie}");
        }
    }
    assert!(order[..4].contains(&50) && order[..4].contains(&51), "small requests wait for large ones: {order:?}");
    assert_eq!(client.read(&mut [0]).expect("an end"), 0);
    let grown = peak() - before;
    assert!(grown < 24 << 10 || under_sanitizer(), "{grown} KiB for 64 MiB of reads");
    rig.server.stop().expect("it ends");
}

#[test]
fn large_reads_from_a_disk_run_concurrently() {
    let Some(rig) = rig_of("null:size=64M,latency=1s", options()) else { return };
    let mut client = rig.client();
    let mut data = vec![0; 256 << 10];
    for round in 0..2 {
        let from = Instant::now();
        let reads: Vec<u8> = (0..16).flat_map(|cookie| request(0, cookie, cookie << 18, 256 << 10)).collect();
        client.write_all(&reads).expect("sent");
        for _ in 0..16 {
            assert_eq!(reply(&mut client).0, 0);
            client.read_exact(&mut data).expect("data");
        }
        assert!(from.elapsed() < Duration::from_secs(8), "round {round}: {:?}", from.elapsed());
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn who_leaves_while_some_wait_harms_nobody() {
    let Some(rig) = rig(options()) else { return };
    for _ in 0..20 {
        let mut client = rig.client();
        let reads: Vec<u8> = (0..64).flat_map(|cookie| request(0, cookie, (cookie % 16) << 22, 1 << 20)).collect();
        client.write_all(&request(0, 99, 0, 1 << 20)).expect("sent");
        client.read_exact(&mut vec![0; 16 + (1 << 20)]).expect("a reply");
        client.write_all(&reads).expect("sent");
        client.read_exact(&mut [0; 16]).expect("the head of a reply");
    }
    rig.serves();
    let from = Instant::now();
    while rig.server.clients().len() > 1 {
        assert!(from.elapsed() < Duration::from_secs(10), "they are still there");
        std::thread::sleep(Duration::from_millis(5));
    }
    rig.server.stop().expect("it ends");
}
