//! Flushes, and changes that must be durable before their reply, as the device sees them.
#![allow(unsafe_code)] // being a driver

mod rig;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, RqList, RqQueue, RqTable};
use sheave_blk::{Device, DeviceError};
use sheave_drivers::fault::{self, FaultKind, FaultPlan};
use sheave_iomap::RawFile;
use sheave_serve::{Address, Allow, Export, Exports, Listener, Server, ServerOptions, VhostUser};
use sheave_vhost_front::Options;

use rig::{options, reply, request, rig_with};

const PATIENCE: Duration = Duration::from_secs(20);

/// A device with a volatile cache and without FUA.
#[derive(Debug)]
struct Volatile;

#[derive(Debug)]
struct VolatileQueue(RqQueue);

// SAFETY: D7: its queues accept every operation that its capabilities name.
unsafe impl Driver for Volatile {
    fn limits(&self) -> Limits {
        Limits::default().max_discard_sectors(1 << 16).max_write_zeroes_sectors(1 << 16)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().volatile_cache(true).discard(true).write_zeroes(true)
    }

    fn size_bytes(&self) -> u64 {
        rig::SIZE
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(VolatileQueue(RqQueue::with_depth(open.depth))))
    }
}

// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched at all.
unsafe impl HwQueue for VolatileQueue {
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        while let Some(rq) = list.pop() {
            self.0.push(rq);
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.0.complete_all(done);
    }

    fn next_event(&self) -> NextEvent {
        if self.0.is_empty() { NextEvent::Idle } else { NextEvent::Ready }
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.0.complete_all(done);
    }
}

#[test]
fn flushes_and_fua_reach_the_device_before_their_replies() {
    let disk = Device::from_driver("volatile", Box::new(Volatile));
    // The fault layer above counts the flushes.
    let plan = FaultPlan::new(1).with(FaultKind::DroppedFlush, 1.0);
    let (device, flushes) = fault::over("counted", &disk, &plan).expect("a device");
    let backend = rig::Device(Arc::new(RawFile::new(device)));
    let Some(rig) = rig_with(Box::new(backend), options()) else { return };
    let mut client = rig.client();
    let mut ask = |command: u16, fua: u8, len: u32| {
        let mut bytes = request(command, 3, 0, len);
        bytes[5] = fua;
        bytes.resize(bytes.len() + if command == 1 { len as usize } else { 0 }, 7);
        let before = flushes.total();
        client.write_all(&bytes).expect("sent");
        assert_eq!(reply(&mut client), (0, 3), "{command}");
        flushes.total() - before
    };
    // Whole blocks, a part of one, and several with parts.
    for (command, len) in [1, 4, 6].into_iter().flat_map(|command| [4096, 100, 5000].map(|len| (command, len))) {
        assert_eq!(ask(command, 0, len), 0, "{command} of {len} bytes without FUA");
        assert!(ask(command, 1, len) > 0, "{command} of {len} bytes with FUA");
    }
    assert_eq!(ask(1, 0, 4096), 0);
    assert!(ask(3, 0, 0) > 0, "a flush");
    rig.server.stop().expect("it ends");
}

#[test]
fn a_guest_decides_by_its_write_cache_what_is_durable_when() {
    let disk = Device::from_driver("volatile", Box::new(Volatile));
    let plan = FaultPlan::new(1).with(FaultKind::DroppedFlush, 1.0);
    let (device, flushes) = fault::over("counted", &disk, &plan).expect("a device");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v");
    let export = Export {
        name: "disk".into(),
        description: String::new(),
        read_only: false,
        allow: Allow::All,
        backend: Box::new(rig::Device(Arc::new(RawFile::new(device)))),
        vhost_user: Some(VhostUser {
            listener: Listener::bind(&Address::Unix(path.clone())).expect("it listens"),
            queues: None,
            in_order: false,
        }),
    };
    let server = match Server::start(Exports::new(vec![export]), Vec::new(), options(), Box::new(|_| {})) {
        Ok(server) => server,
        Err(error) => return sheave_testkit::skip(&error.to_string()),
    };
    let mut driver = Options { queues: 2, ..Options::default() }.connect(&path).expect("attached");
    let data = driver.memory().alloc(4096, 4096).expect("room");
    let write = |driver: &mut sheave_vhost_front::Driver, queue: u16| {
        let before = flushes.total();
        let token = driver.queue(queue).write(8, data, 4096).expect("submitted");
        driver.queue(queue).finish(token, PATIENCE).expect("written");
        flushes.total() - before
    };
    for queue in [0, 1] {
        assert_eq!(write(&mut driver, queue), 0, "it may stay in the cache");
    }
    let before = flushes.total();
    let token = driver.queue(0).flush().expect("submitted");
    driver.queue(0).finish(token, PATIENCE).expect("flushed");
    assert!(flushes.total() > before);
    let before = flushes.total();
    driver.front().set_write_cache(false).expect("switched off");
    assert!(flushes.total() > before, "what was written before is durable now");
    for queue in [0, 1] {
        assert!(write(&mut driver, queue) > 0, "it is durable");
    }
    driver.front().set_write_cache(true).expect("switched on");
    assert_eq!(write(&mut driver, 1), 0);
    server.stop().expect("it ends");
}

#[test]
fn a_read_that_fails_is_no_data_and_harms_no_other() {
    let disk = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let plan = FaultPlan::new(7).with(FaultKind::Error, 1.0);
    let (device, errors) = fault::over("bad", &disk, &plan).expect("a device");
    let Some(rig) = rig_with(Box::new(rig::Device(Arc::new(RawFile::new(device)))), options()) else { return };
    let mut client = rig.client();
    let asked: Vec<u8> = (0..100).flat_map(|cookie| request(0, cookie, cookie << 12, 4096)).collect();
    client.write_all(&asked).expect("sent");
    let replies: std::collections::BTreeMap<u64, u32> =
        (0..100).map(|_| reply(&mut client)).map(|(error, cookie)| (cookie, error)).collect();
    assert!(errors.total() > 0 && replies.values().all(|&error| error == 5), "{replies:?}");
    assert_eq!((replies.len(), replies.keys().next_back()), (100, Some(&99)), "each is answered as itself");
    rig.server.stop().expect("it ends");
}

/// The beginning of a reply promises all its data.
#[test]
fn a_long_read_that_fails_within_its_reply_ends_the_connection() {
    const LEN: usize = 8 << 20;
    let disk = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let plan = FaultPlan::new(7).with(FaultKind::Error, 0.01);
    let (device, _) = fault::over("bad", &disk, &plan).expect("a device");
    let options = ServerOptions { reactors: 1, server_bytes: 1 << 20, ..options() };
    let Some(rig) = rig_with(Box::new(rig::Device(Arc::new(RawFile::new(device)))), options) else { return };
    // While others hold memory there is none for such a read, which is then read in thousands of pieces.
    let mut other = rig.client();
    other.write_all(&request(1, 1, 0, 4096)).expect("sent");
    let failed = (0..10).find_map(|_| {
        let mut client = rig.client();
        client.write_all(&request(0, 7, 0, LEN as u32)).expect("sent");
        let (error, _) = reply(&mut client);
        let mut data = Vec::new();
        let ended = || std::io::Read::read_to_end(&mut client, &mut data).map_or(true, |len| len < LEN);
        (error == 0).then(ended)
    });
    assert_eq!(failed, Some(true), "the first piece fails seldom, and one of all always does");
    assert!(rig.heard("its device has failed within a long read"));
    rig.server.stop().expect("it ends");
}

#[test]
fn a_request_that_did_not_end_in_time_says_so() {
    let Some(rig) = rig::rig_of("null:size=64M,latency=60s,timeout=200ms", options()) else { return };
    let mut client = rig::extended(&rig);
    client.write_all(&rig::extended_request(0, 0, 7, 0, 4096)).expect("sent");
    let mut head = [0; 32];
    std::io::Read::read_exact(&mut client, &mut head).expect("a reply");
    let mut text = vec![0; u64::from_be_bytes(head[24..].try_into().expect("eight")) as usize];
    std::io::Read::read_exact(&mut client, &mut text).expect("its text");
    assert_eq!(text[..4], 5u32.to_be_bytes(), "the protocol has EIO for it");
    assert!(String::from_utf8_lossy(&text).contains("did not end in time"), "{text:?}");
    rig.server.stop().expect("it ends");
}

#[test]
fn what_is_read_only_is_not_changed() {
    let locked = |read_only: bool, spec: &str| {
        let device = sheave_drivers::open_device(spec).expect("a device");
        let backend = Box::new(rig::Device(Arc::new(RawFile::new(device))));
        rig::rig_export(read_only, backend, options())
    };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    std::fs::File::create(&path).and_then(|file| file.set_len(rig::SIZE)).expect("a file");
    // An export that is configured as read-only, and a device that cannot be written, such as a snapshot.
    let specs = [(true, "ram:size=64M".to_owned()), (false, format!("file:{},readonly=on", path.display()))];
    for (read_only, spec) in specs {
        let Some(rig) = locked(read_only, &spec) else { return };
        let mut told = [0; 18 + 10];
        let mut asks = rig.connect();
        asks.write_all(&[vec![0, 0, 0, 3], rig::option(1, b"x")].concat()).expect("sent");
        std::io::Read::read_exact(&mut asks, &mut told).expect("an export");
        assert_eq!(told[27] & 2, 2, "{spec}: READ_ONLY is told");
        let mut client = rig.client();
        for command in [1, 4, 6] {
            let mut bytes = request(command, 3, 0, 4096);
            bytes.resize(bytes.len() + if command == 1 { 4096 } else { 0 }, 7);
            client.write_all(&bytes).expect("sent");
            assert_eq!(reply(&mut client), (1, 3), "{spec}: EPERM for {command}");
        }
        rig.server.stop().expect("it ends");
    }
}
