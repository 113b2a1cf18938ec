//! Rings and devices dropped in the middle of I/O: nothing hangs, nothing is used after it was freed, nothing leaks.
//! The address sanitizer checks this test (`cargo xtask asan`). It cannot see writes of the kernel, so the test also
//! checks that memory allocated in place of freed memory is not written to.

use std::time::Duration;

use sheave::{Buf, Device, Fd, Ring, op, open_device};
use sheave_base::rng::Rng;

/// Size of the devices.
const SIZE: u64 = 4 << 20;
const BLOCK: usize = 4096;
/// Number of registered buffers of a ring.
const FIXED: u16 = 4;

fn memory(blocks: u64) -> Buf {
    Buf::zeroed(blocks as usize * BLOCK, BLOCK).expect("memory")
}

/// A ring with I/O of all kinds in flight.
struct Busy {
    ring: Ring,
    fd: Fd,
    rng: Rng,
}

impl Busy {
    fn new(device: &Device, seed: u64) -> Busy {
        let mut rng = Rng::new(seed);
        let mut ring = Ring::builder().entries(32).cq_entries(64).polled(rng.percent(50)).build().expect("a ring");
        let fd = ring.attach(device).expect("attached");
        ring.register_files(&[fd]).expect("registered");
        ring.register_buffers((0..FIXED).map(|_| memory(4)).collect()).expect("registered");
        Busy { ring, fd, rng }
    }

    fn entry(&mut self) -> op::Entry {
        let (fd, rng) = (self.fd, &mut self.rng);
        let index = rng.below(u64::from(FIXED)) as u16;
        let at = rng.below(SIZE / BLOCK as u64 - 64) * BLOCK as u64;
        let entry: op::Entry = match rng.below(10) {
            0 => op::read(fd, memory(1)).offset(at).into(),
            // Large enough for a memory mapping of its own.
            1 => op::read(fd, memory(64)).offset(at).into(),
            2 => op::write(fd, memory(1)).offset(at).into(),
            3 => op::readv(fd, vec![memory(1), memory(2)]).offset(at).into(),
            4 => op::writev(fd, (0..8).map(|_| memory(1)).collect()).offset(at).into(),
            5 => op::read_fixed(fd, index, 0..BLOCK).offset(at).into(),
            6 => op::write_fixed(fd, index, BLOCK..3 * BLOCK).offset(at).into(),
            7 => op::fsync(fd).into(),
            8 => op::punch_hole(fd, 0, BLOCK as u64).into(),
            _ => op::nop().into(),
        };
        match rng.below(8) {
            0 => entry.link(),
            1 => entry.hardlink(),
            2 => entry.drain(),
            3 => entry.run_async(),
            4 => entry.skip_success(),
            _ => entry,
        }
    }

    /// Pushes and submits; also replaces buffers and detaches the file while they are in use.
    fn work(&mut self) {
        for turn in 0..1 + self.rng.below(4) {
            for _ in 0..self.rng.below(33) {
                let entry = self.entry();
                if self.ring.push(entry).is_err() {
                    break;
                }
            }
            // Fails if too much is in flight. The pushed operations stay in the queue, and are dropped with the ring.
            let _ = self.ring.submit();
            if self.rng.percent(30) {
                let index = self.rng.below(u64::from(FIXED)) as u16;
                let new = self.rng.percent(50).then(|| memory(4));
                self.ring.update_buffer(index, new).expect("there is such a place");
            }
            if turn == 2 && self.rng.percent(30) {
                self.ring.detach(self.fd).expect("attached");
            }
            let reap = self.rng.below(8) as usize;
            let kept: Vec<_> = self.ring.completions().take(reap).collect();
            drop(kept);
        }
    }
}

/// Allocates buffers of the sizes that the dropped ring used, so that they probably get its freed memory. Asserts that
/// nothing writes to them.
fn assert_memory_is_left_alone(context: &str) {
    let mut canaries: Vec<Buf> = [1, 1, 2, 4, 64].iter().cycle().take(100).map(|blocks| memory(*blocks)).collect();
    canaries.iter_mut().for_each(|canary| canary.fill(0x77));
    std::thread::sleep(Duration::from_millis(3));
    let intact = canaries.iter().all(|canary| canary.iter().all(|byte| *byte == 0x77));
    assert!(intact, "{context}: memory was written to after the ring had gone");
}

/// Drops busy rings over devices of this spec. A device that is kept must be at rest.
fn drop_in_mid_io(spec: &str) {
    for seed in sheave_testkit::seeds(24) {
        let context = format!("{spec}, SHEAVE_SEED={seed}");
        let device = open_device(spec).unwrap_or_else(|error| panic!("{context}: {error}"));
        let mut busy = Busy::new(&device, seed);
        let device_goes_first = busy.rng.percent(50);
        let kept = (!device_goes_first).then(|| device.clone());
        drop(device);
        busy.work();
        drop(busy);
        assert_memory_is_left_alone(&context);
        let Some(device) = kept else { continue };
        assert_eq!(device.in_flight().total(), 0, "{context}: in flight without a ring");
        // The device outlives the ring, and serves the next one.
        let mut ring = Ring::builder().entries(4).build().expect("a ring");
        let fd = ring.attach(&device).expect("attached");
        ring.push(op::read(fd, memory(1))).map_err(|full| full.error).expect("room");
        ring.submit_and_wait(1).expect("submitted");
        let read = ring.completions().next().expect("completed");
        assert_eq!(read.res, BLOCK as i32, "{context}: the next ring's read");
    }
}

/// Runs the test on a file with these options, unless the kernel forbids io_uring.
fn over_a_file(options: &str) {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let spec = format!("file:{},size={SIZE}{options}", dir.path().join("disk").display());
    let device = open_device(&spec).expect("a device");
    let mut ring = Ring::builder().build().expect("a ring");
    if let Err(error) = ring.attach(&device) {
        return sheave_testkit::skip(&format!("no kernel ring here: {error}"));
    }
    drop(ring);
    drop_in_mid_io(&spec);
}

#[test]
fn a_ring_over_a_file_is_dropped() {
    over_a_file("");
}

#[test]
fn a_ring_over_a_cached_file_is_dropped() {
    over_a_file(",direct=off");
}

#[test]
fn a_ring_over_a_slow_device_is_dropped() {
    drop_in_mid_io(&format!("null:size={SIZE},latency=1ms"));
}

#[test]
fn a_ring_whose_requests_another_thread_has_is_dropped() {
    drop_in_mid_io(&format!("null:size={SIZE},latency=200us,complete=thread"));
}

#[test]
fn a_ring_that_shares_host_wide_tags_is_dropped() {
    drop_in_mid_io(&format!("null:size={SIZE},latency=200us,complete=thread,host_depth=4"));
}

#[test]
fn a_ring_over_a_part_of_a_device_is_dropped() {
    drop_in_mid_io(&format!("partition:start=1M,size={SIZE},over=null:size=16M"));
}

#[test]
fn a_ring_over_memory_is_dropped() {
    drop_in_mid_io(&format!("ram:size={SIZE}"));
}

#[test]
fn a_ring_over_a_device_that_delays_and_fails_is_dropped() {
    drop_in_mid_io(&format!("fault:seed=1,delay=0.5,delay_time=1ms,ops=write,over=ram:size={SIZE}"));
}

#[test]
fn a_ring_over_a_device_that_answers_no_write_is_dropped() {
    drop_in_mid_io(&format!("fault:seed=1,stuck=1,ops=write,over=ram:size={SIZE}"));
}

/// No code waits for such a ring, so the memory that its devices write to must never be used again.
#[test]
fn what_a_forgotten_ring_reads_into_stays_its_own() {
    if sheave_testkit::under_sanitizer() {
        return; // The sanitizer would report the forgotten memory as leaked.
    }
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let file = format!("file:{},size={SIZE}", dir.path().join("disk").display());
    for spec in [file.as_str(), "null:size=1M,latency=2ms,complete=thread"] {
        let device = open_device(spec).expect("a device");
        let mut ring = Ring::builder().entries(32).build().expect("a ring");
        let fd = match ring.attach(&device) {
            Ok(fd) => fd,
            Err(error) => return sheave_testkit::skip(&format!("no kernel ring here: {error}")),
        };
        for at in 0..32 {
            let blocks = if at % 2 == 0 { 1 } else { 64 };
            ring.push(op::read(fd, memory(blocks)).offset(at * BLOCK as u64)).map_err(|full| full.error).expect("room");
        }
        ring.submit().expect("submitted");
        std::mem::forget(ring);
        assert_memory_is_left_alone(spec);
    }
}
