//! Files and registered buffers: replacement while they are in use, and the release of the old ones.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, Mapping, MappingKind};
use sheave_uring::sqe::{IOSQE_ASYNC, IOSQE_FIXED_FILE, IOSQE_IO_DRAIN, Sqe, opcode};
use sheave_uring::{Completion, Fd, FixedFile, Ring, RingError, prep};

use crate::support::{Puppet, buf, fsync, push, reaped, ring, run, rw};
use crate::watch::Watch;

const EBADF: i32 = -9;
const EFAULT: i32 = -14;

fn let_go(ring: &mut Ring, puppet: &Puppet) -> Vec<(u64, i32)> {
    puppet.script().finish = u32::MAX;
    ring.reap();
    ring.reap();
    puppet.script().finish = 0;
    reaped(ring)
}

/// Returns true if the ring has the device open: its hardware queue holds the script.
fn is_open(puppet: &Puppet, device: &sheave_blk::Device) -> bool {
    // One reference is the puppet's, one the driver's in the device.
    let _ = device;
    Arc::strong_count(&puppet.script) > 2
}

#[test]
fn a_detached_file_stays_until_its_last_request_has_ended() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut ring = ring();
    let fd = ring.attach(&device).unwrap();
    ring.push(prep::read(fd, buf(4096)).user_data(1)).unwrap();
    ring.push(prep::read(fd, buf(4096)).user_data(2).drain()).unwrap();
    ring.submit().unwrap();
    ring.detach(fd).unwrap();
    assert!(is_open(&puppet, &device));
    assert!(matches!(ring.detach(fd), Err(RingError::BadFd(_))), "it is detached once");
    assert_eq!(run_one(&mut ring, fsync(fd, 3)), None, "new requests wait behind the drain");
    assert_eq!(let_go(&mut ring, &puppet), [(1, 4096), (2, EBADF), (3, EBADF)], "what starts later finds no file");
    assert!(!is_open(&puppet, &device), "now it is closed");
    let again = ring.attach(&device).unwrap();
    puppet.script().finish = u32::MAX;
    assert_eq!(run(&mut ring, &[fsync(again, 4)]), [(4, 0)]);
}

fn run_one(ring: &mut Ring, sqe: Sqe) -> Option<(u64, i32)> {
    push(ring, &[sqe]);
    ring.submit().unwrap();
    reaped(ring).first().copied()
}

#[test]
fn a_file_that_both_tables_name_goes_with_the_last_of_them() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut ring = ring();
    let fd = ring.attach(&device).unwrap();
    ring.register_files(&[Fd::NONE, fd, fd]).unwrap();
    let fixed = |index: i32| Sqe { flags: IOSQE_FIXED_FILE, ..fsync(index, 1) };
    assert_eq!(
        run(&mut ring, &[fixed(0), fixed(1), fixed(2), fixed(3), fixed(-1)])
            .iter()
            .map(|cqe| cqe.1)
            .collect::<Vec<_>>(),
        [EBADF, EBADF, EBADF, 0, 0]
    );
    ring.detach(fd).unwrap();
    assert_eq!(run(&mut ring, &[fsync(fd, 1)]), [(1, EBADF)]);
    assert_eq!(run(&mut ring, &[fixed(1)]), [(1, 0)], "the registered table still names it");
    ring.update_file(1, Fd::NONE).unwrap();
    assert!(is_open(&puppet, &device));
    ring.update_file(2, Fd::NONE).unwrap();
    assert!(!is_open(&puppet, &device));
}

#[test]
fn a_registered_file_is_replaced_while_requests_use_it() {
    let (old, new) = (Puppet::new().holding(), Puppet::new().holding());
    let (old_device, new_device) = (old.device(), new.device());
    let mut ring = ring();
    let (old_fd, new_fd) = (ring.attach(&old_device).unwrap(), ring.attach(&new_device).unwrap());
    ring.register_files(&[old_fd]).unwrap();
    ring.push(prep::read(FixedFile(0), buf(512)).user_data(1)).unwrap();
    ring.submit().unwrap();
    ring.update_file(0, new_fd).unwrap();
    ring.detach(old_fd).unwrap();
    ring.push(prep::read(FixedFile(0), buf(512)).user_data(2)).unwrap();
    ring.submit().unwrap();
    assert_eq!((old.script().seen.len(), new.script().seen.len()), (1, 1), "each went where the table said then");
    assert!(is_open(&old, &old_device), "the old file has a request");
    assert_eq!(let_go(&mut ring, &old), [(1, 512)]);
    assert!(!is_open(&old, &old_device));
    assert_eq!(let_go(&mut ring, &new), [(2, 512)]);
    ring.unregister_files();
    ring.detach(new_fd).unwrap();
    assert!(!is_open(&new, &new_device));
}

#[test]
fn a_wrong_registration_changes_nothing_and_names_what_is_wrong() {
    let mut ring = ring();
    let fd = ring.attach(&Puppet::new().device()).unwrap();
    ring.register_files(&[fd]).unwrap();
    let gone = ring.attach(&Puppet::new().device()).unwrap();
    ring.detach(gone).unwrap();
    assert!(matches!(ring.register_files(&[Fd::NONE, gone]), Err(RingError::BadFd(bad)) if bad == gone));
    let fixed = Sqe { flags: IOSQE_FIXED_FILE, ..fsync(0, 1) };
    assert_eq!(run(&mut ring, &[fixed]), [(1, 0)], "the table is as it was");
    assert!(matches!(ring.update_file(0, gone), Err(RingError::BadFd(bad)) if bad == gone));
    let error = ring.update_file(1, fd).unwrap_err();
    assert!(error.to_string().contains("no entry 1"), "{error}");
    assert_eq!(run(&mut ring, &[fixed]), [(1, 0)]);
    assert!(matches!(ring.update_buffer(0, None), Err(RingError::BadBuffer(0))));
    for fd in [Fd::NONE, gone] {
        assert!(matches!(ring.detach(fd), Err(RingError::BadFd(_))));
    }
}

/// Returns a ring with one registered buffer of 4 KiB, and a device that holds requests.
fn with_buffer() -> (Ring, Puppet, Fd, Watch) {
    let puppet = Puppet::new().holding();
    let mut ring = Ring::builder().entries(8).build().unwrap();
    let fd = ring.attach(&puppet.device()).unwrap();
    let memory = buf(4096);
    let watch = Watch::new(&memory);
    ring.register_buffers(vec![memory]).unwrap();
    (ring, puppet, fd, watch)
}

fn new_buffer(byte: u8) -> (Buf, Watch) {
    let mut memory = buf(4096);
    memory[0] = byte;
    let watch = Watch::new(&memory);
    (memory, watch)
}

#[test]
fn a_replaced_buffer_lives_until_its_last_request_has_ended() {
    let (mut ring, puppet, fd, old) = with_buffer();
    for n in 0..3 {
        ring.push(prep::read_fixed(fd, 0, 0..512).offset(n * 4096).user_data(n)).unwrap();
    }
    ring.submit().unwrap();
    assert!(ring.buffer(0).is_none() && ring.buffer_mut(0).is_none(), "in use");
    let (memory, new) = new_buffer(7);
    assert!(ring.update_buffer(0, Some(memory)).unwrap().is_none(), "a buffer in use is not given back");
    assert_eq!(ring.buffer(0).expect("nobody uses the new one")[0], 7);
    ring.push(prep::write_fixed(fd, 0, 512..1024).offset(1 << 20).user_data(3)).unwrap();
    ring.submit().unwrap();
    puppet.script().finish = 2;
    ring.reap();
    ring.reap();
    assert!(!old.is_freed(), "one request is left");
    puppet.script().finish = 1;
    ring.reap();
    ring.reap();
    assert!(old.is_freed(), "it went with the last");
    assert_eq!(reaped(&mut ring), [(0, 512), (1, 512), (2, 512)]);
    assert!(ring.buffer(0).is_none() && !new.is_freed());
    assert_eq!(let_go(&mut ring, &puppet), [(3, 512)]);
    let back = ring.update_buffer(0, None).unwrap().expect("idle, so it is given back");
    assert_eq!(back[0], 7);
    assert_eq!(run(&mut ring, &[Sqe { user_data: 4, ..fixed(fd, 1 << 24) }]), [(4, EFAULT)], "the place is empty");
}

/// A file whose `map` fails until a worker has called `map_blocking`, which blocks until the test releases it.
#[derive(Debug)]
struct Slow {
    device: Device,
    known: AtomicBool,
    let_go: Mutex<mpsc::Receiver<()>>,
}

impl File for Slow {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        if self.known.load(Relaxed) { Ok(Mapping::new(MappingKind::Mapped, pos, len, pos)) } else { Err(Status::Again) }
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        self.let_go.lock().unwrap().recv_timeout(Duration::from_secs(20)).expect("the test lets it go");
        self.known.store(true, Relaxed);
        self.map(pos, len, intent)
    }
}

#[test]
fn a_buffer_that_is_replaced_while_a_worker_maps_for_it_is_still_written_to() {
    let device = open_device("ram:size=1M").unwrap();
    for flags in [0, IOSQE_ASYNC] {
        let (go, let_go) = mpsc::channel();
        let slow = Slow { device: device.clone(), known: AtomicBool::new(false), let_go: Mutex::new(let_go) };
        let mut ring = Ring::builder().entries(8).build().unwrap();
        let fd = ring.attach_file(Arc::new(slow)).unwrap();
        let raw = ring.attach(&device).unwrap();
        let (memory, old) = new_buffer(7);
        ring.register_buffers(vec![memory]).unwrap();
        let (addr, _) = ring.buffer_range(0).unwrap();
        push(&mut ring, &[Sqe { flags, ..rw(opcode::WRITE_FIXED, fd, 0, addr, 512, 1) }]);
        ring.submit().unwrap();
        let (memory, new) = new_buffer(1);
        assert!(ring.update_buffer(0, Some(memory)).unwrap().is_none(), "a buffer in use is not given back");
        assert_eq!(ring.buffer(0).expect("nobody uses the new one")[0], 1);
        assert!(!old.is_freed());
        go.send(()).unwrap();
        ring.drain();
        assert_eq!(reaped(&mut ring), [(1, 512)], "flags {flags}");
        ring.reap();
        assert!(old.is_freed() && !new.is_freed());
        ring.push(prep::read(raw, buf(512))).unwrap();
        ring.submit_and_wait(1).unwrap();
        let read = ring.pop().and_then(Completion::into_buf).expect("its memory");
        assert_eq!(read[0], 7, "flags {flags}");
    }
}

fn fixed(fd: Fd, addr: u64) -> Sqe {
    rw(opcode::READ_FIXED, fd, 0, addr, 512, 0)
}

#[test]
fn new_registrations_and_the_end_of_a_ring_wait_as_well() {
    let (mut ring, _puppet, fd, old) = with_buffer();
    ring.push(prep::read_fixed(fd, 0, 0..4096)).unwrap();
    ring.submit().unwrap();
    let (memory, new) = new_buffer(1);
    ring.register_buffers(vec![memory, buf(512)]).unwrap();
    assert!(!old.is_freed());
    ring.push(prep::read_fixed(fd, 0, 0..4096)).unwrap();
    ring.submit().unwrap();
    ring.register_buffers(Vec::new()).unwrap();
    assert!(!old.is_freed() && !new.is_freed());
    assert_eq!(ring.buffer_range(0), None);
    drop(ring);
    assert!(old.is_freed() && new.is_freed());
}

#[test]
fn who_has_not_begun_looks_at_the_table_when_it_does() {
    let (mut ring, puppet, fd, old) = with_buffer();
    let (old_addr, _) = ring.buffer_range(0).unwrap();
    let (memory, new) = new_buffer(1);
    let new_addr = memory.as_ptr() as u64;
    let behind = |user_data, addr| Sqe { flags: IOSQE_IO_DRAIN, user_data, ..fixed(fd, addr) };
    push(&mut ring, &[Sqe { user_data: 1, ..fixed(fd, old_addr) }, behind(2, old_addr), behind(3, new_addr)]);
    ring.submit().unwrap();
    assert!(ring.update_buffer(0, Some(memory)).unwrap().is_none());
    puppet.script().finish = 1;
    ring.reap();
    ring.reap();
    assert!(old.is_freed(), "only the first used it: the others had not begun");
    assert_eq!(reaped(&mut ring), [(1, 512), (2, EFAULT)], "the second names memory that is registered no more");
    assert_eq!(ring.in_flight(), 1, "the third names the new buffer and has begun");
    assert!(ring.update_buffer(0, None).unwrap().is_none(), "so that this is in use");
    assert!(!new.is_freed());
    assert_eq!(let_go(&mut ring, &puppet), [(3, 512)]);
    assert!(new.is_freed());
}

#[test]
fn a_typed_request_outside_of_its_buffer_is_refused() {
    let (mut ring, _puppet, fd, _) = with_buffer();
    for (index, range) in
        [(0, 0..4097), (0, 4096..4608), (0, usize::MAX - 1..usize::MAX), (1, 0..512), (u16::MAX, 0..1)]
    {
        ring.push(prep::read_fixed(fd, index, range)).unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(reaped(&mut ring), [(0, EFAULT)]);
    }
}
