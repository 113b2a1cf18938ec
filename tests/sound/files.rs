//! An `Fd` names one file of one ring, for ever: after that file is detached, or on another ring, it gives EBADF.
#![forbid(unsafe_code)]

use std::time::Duration;

use sheave::{Device, Fd, FixedFile, Ring, RingError, op, open_device};

use crate::{buf, ring, run};

const EBADF: i32 = -9;
const ECANCELED: i32 = -125;

fn ram() -> Device {
    open_device("ram:size=1M").expect("a device")
}

fn bytes_of(device: &Device) -> u8 {
    let mut ring = ring();
    let fd = ring.attach(device).expect("attached");
    ring.push(op::read(fd, buf(0xcc))).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let done = ring.completions().next().expect("it ended");
    done.into_buf().expect("its memory")[0]
}

/// Runs every operation and call that takes an `fd`; each must be refused.
fn is_refused_everywhere(ring: &mut Ring, fd: Fd) {
    let operations: [op::Entry; 9] = [
        op::read(fd, buf(0)).into(),
        op::write(fd, buf(0xee)).into(),
        op::writev(fd, vec![buf(0xee)]).into(),
        op::write_fixed(fd, 0, 0..4096).into(),
        op::fsync(fd).into(),
        op::punch_hole(fd, 0, 4096).into(),
        op::zero_range(fd, 0, 4096).into(),
        op::cancel(op::Cancel::file(fd)).into(),
        op::message(fd, 1, 2).into(),
    ];
    for operation in operations {
        let text = format!("{operation:?}");
        assert_eq!(run(ring, operation), EBADF, "{text}");
    }
    assert!(matches!(ring.detach(fd), Err(RingError::BadFd(bad)) if bad == fd));
    assert!(matches!(ring.register_files(&[fd]), Err(RingError::BadFd(_))));
    ring.register_files(&[Fd::NONE]).expect("an empty entry");
    assert!(matches!(ring.update_file(0, fd), Err(RingError::BadFd(_))));
    assert_eq!(ring.cancel(op::Cancel::file(fd)).map_err(|errno| -errno.0), Err(EBADF));
}

#[test]
fn a_detached_fd_does_not_name_what_was_attached_since() {
    let (a, b) = (ram(), ram());
    let mut ring = ring();
    ring.register_buffers(vec![buf(0xee)]).expect("registered");
    let old = ring.attach(&a).expect("attached");
    ring.detach(old).expect("it was attached");
    is_refused_everywhere(&mut ring, old);
    let new = ring.attach(&b).expect("attached");
    assert_ne!(old, new);
    is_refused_everywhere(&mut ring, old);
    assert_eq!(bytes_of(&b), 0, "the other device has what it had");
    assert_eq!(run(&mut ring, op::write(new, buf(0x11))), 4096);
    assert_eq!(bytes_of(&b), 0x11);
}

#[test]
fn an_fd_of_another_ring_names_nothing() {
    let (a, b) = (ram(), ram());
    let (mut one, mut other) = (ring(), ring());
    one.register_buffers(vec![buf(0xee)]).expect("registered");
    let theirs = other.attach(&a).expect("attached");
    is_refused_everywhere(&mut one, theirs);
    let own = one.attach(&b).expect("attached");
    assert_ne!(own, theirs, "though each is the first of its ring");
    is_refused_everywhere(&mut one, theirs);
    assert_eq!((bytes_of(&a), bytes_of(&b)), (0, 0));
    // A cancel by this fd does not hit operations on the file in its place either.
    one.push(op::timeout(Duration::from_secs(60)).link().user_data(1)).expect("room");
    one.push(op::read(own, buf(0)).user_data(2)).expect("room");
    one.submit().expect("submitted");
    assert_eq!(one.cancel(op::Cancel::file(theirs).and(op::Cancel::everything())).ok(), None);
    assert_eq!(one.cancel(op::Cancel::everything()), Ok(1));
    one.drain();
    assert_eq!(one.completions().map(|done| done.res).collect::<Vec<_>>(), [ECANCELED; 2]);
}

#[test]
fn an_operation_that_waits_while_its_file_is_detached_does_not_reach_the_next_one() {
    let (a, b) = (ram(), ram());
    let mut ring = ring();
    let old = ring.attach(&a).expect("attached");
    // The write is pushed, in a chain that has not reached it.
    ring.push(op::timeout(Duration::from_millis(20)).etime_success().link().user_data(1)).expect("room");
    ring.push(op::write(old, buf(0xee)).user_data(2)).expect("room");
    ring.submit().expect("submitted");
    ring.push(op::write(old, buf(0xee)).user_data(3)).expect("room");
    ring.detach(old).expect("it was attached");
    let new = ring.attach(&b).expect("attached");
    assert_ne!(old, new);
    ring.submit_and_wait(3).expect("submitted");
    let mut ended: Vec<_> = ring.completions().map(|done| (done.user_data, done.res)).collect();
    ended.sort_unstable();
    assert_eq!(ended[1..], [(2, EBADF), (3, EBADF)]);
    assert_eq!(bytes_of(&b), 0);
}

#[test]
fn no_fd_ever_comes_again() {
    let device = open_device("null:size=1M").expect("a device");
    let mut ring = ring();
    let stays = ring.attach(&device).expect("attached");
    let mut seen = std::collections::HashSet::from([stays]);
    for _ in 0..5000 {
        let fd = ring.attach(&device).expect("attached");
        assert!(fd.raw() >= 0 && seen.insert(fd), "{fd:?} has named another file");
        ring.detach(fd).expect("it was attached");
    }
    assert_eq!(run(&mut ring, op::read(stays, buf(0))), 4096);
}

#[test]
fn an_index_of_the_registered_table_names_what_is_there_now() {
    let (a, b) = (ram(), ram());
    let mut ring = ring();
    let (fa, fb) = (ring.attach(&a).expect("attached"), ring.attach(&b).expect("attached"));
    ring.register_files(&[fa]).expect("registered");
    assert_eq!(run(&mut ring, op::write(FixedFile(0), buf(1))), 4096);
    ring.update_file(0, fb).expect("registered");
    assert_eq!(run(&mut ring, op::write(FixedFile(0), buf(2))), 4096);
    for index in [1, u32::MAX, 1 << 20] {
        assert_eq!(run(&mut ring, op::write(FixedFile(index), buf(3))), EBADF, "{index}");
    }
    assert_eq!((bytes_of(&a), bytes_of(&b)), (1, 2));
}
