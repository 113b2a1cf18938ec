//! A program that has opened as many files as it may: what it has written to a volume can still be made durable.
//!
//! A program of its own, because the limit of descriptors applies to all threads of a process.

use std::fs::File;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sheave::volumes::{CreateOptions, OpenOptions, Pool};
use sheave::{Buf, Fd, Ring, op, open_device};

const MIB: u64 = 1 << 20;

/// Lowers the limit, and opens files until no more can be opened.
fn take_all_descriptors() -> Vec<File> {
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..getrlimit(Resource::Nofile) }).expect("lowered");
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn write_and_sync(ring: &mut Ring, fd: Fd, at: u64) {
    let mut buf = Buf::zeroed(4096, 4096).expect("memory");
    buf.fill(at as u8 + 1);
    ring.push(op::write(fd, buf).offset(at * 4096).link()).expect("room");
    ring.push(op::fsync(fd)).expect("room");
    ring.submit_and_wait(2).expect("submitted");
    for done in ring.completions() {
        done.result().expect("written and durable");
    }
}

#[test]
fn a_first_flush_needs_no_descriptor_that_others_have_taken() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let device = open_device(&format!("file:{},size=64M", file.path().display())).expect("a device");
    Pool::create(&device, &CreateOptions::default()).expect("a pool");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("it opens");
    pool.create_volume("v", 16 * MIB).expect("a volume");
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach_file(Arc::new(pool.open_volume("v").expect("the volume"))).expect("attached");

    let taken = take_all_descriptors();
    assert!(!taken.is_empty(), "there was something to take");
    write_and_sync(&mut ring, fd, 0);
    // The worker keeps what it has opened.
    write_and_sync(&mut ring, fd, 1);
    drop(taken);

    // The spare descriptors are there again when others have closed theirs.
    let ring_of_another = || {
        let mut ring = Ring::builder().entries(8).build().expect("a ring");
        let fd = ring.attach_file(Arc::new(pool.open_volume("v").expect("the volume"))).expect("attached");
        (ring, fd)
    };
    let (mut second, of_second) = ring_of_another();
    write_and_sync(&mut second, of_second, 2);
    let (mut third, of_third) = ring_of_another();
    let taken = take_all_descriptors();
    write_and_sync(&mut third, of_third, 3);
    drop(taken);
    drop((ring, second, third));
    pool.close().expect("closed");
}
