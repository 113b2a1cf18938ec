//! Operations of drivers on the ring's kernel ring: each ends once, holds its requests, and outlives no memory.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::{EventfdFlags, eventfd};
use sheave_kring::{KernelRing, KringOpts};

use super::super::ops::{Came, Ops, What};
use super::*;

mod beside;
mod random;

const ECANCELED: i32 = -125;
const ETIME: i32 = -62;

type Fd = Arc<OwnedFd>;
type Hook = Arc<dyn Fn(&mut Polled<'_>, &mut Seen) + Send + Sync>;
type Hears = Arc<dyn Fn(&mut Polled<'_>, &mut Seen, &OpEnd<'_>) + Send + Sync>;

/// Record of the calls that a driver has seen, for its test.
#[derive(Debug, Default)]
struct Seen {
    ids: Vec<RequestId>,
    tokens: Vec<OpToken>,
    /// Token, result, more, data.
    ends: Vec<(OpToken, i32, bool, Vec<u8>)>,
    polls: u32,
    refused: Vec<Refused>,
    /// True once the queue has been dropped.
    gone: bool,
}

/// A driver that consists of closures. Its requests wait.
#[derive(Clone)]
struct Does {
    wants: Option<KernelUse>,
    commit: Option<Hook>,
    poll: Option<Hook>,
    hears: Option<Hears>,
    seen: Arc<Mutex<Seen>>,
}

impl std::fmt::Debug for Does {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Does")
    }
}

#[derive(Debug)]
struct Queue(Does);

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.seen.lock().expect("nobody panics with it").gone = true;
    }
}

fn driver(operations: u16) -> Does {
    let wants = Some(KernelUse::new(operations));
    Does { wants, commit: None, poll: None, hears: None, seen: Arc::default() }
}

impl Does {
    fn on_commit(mut self, hook: impl Fn(&mut Polled<'_>, &mut Seen) + Send + Sync + 'static) -> Does {
        self.commit = Some(Arc::new(hook));
        self
    }

    fn on_poll(mut self, hook: impl Fn(&mut Polled<'_>, &mut Seen) + Send + Sync + 'static) -> Does {
        self.poll = Some(Arc::new(hook));
        self
    }

    fn on_end(mut self, hook: impl Fn(&mut Polled<'_>, &mut Seen, &OpEnd<'_>) + Send + Sync + 'static) -> Does {
        self.hears = Some(Arc::new(hook));
        self
    }

    fn seen(&self) -> sheave_base::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("nobody panics with it")
    }
}

impl SafeDriver for Does {
    fn limits(&self) -> Limits {
        Limits::default().max_sectors(256).queue_depth(8)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn kernel(&self) -> Option<KernelUse> {
        self.wants
    }

    fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        Ok(Box::new(Queue(self.clone())))
    }
}

impl SafeQueue for Queue {
    fn start(&mut self, rq: &mut Request<'_>) -> Step {
        assert!(rq.sector() != 1000, "told to panic");
        self.0.seen().ids.push(rq.id());
        Step::Wait
    }

    fn commit(&mut self, rqs: &mut Polled<'_>) {
        if let Some(hook) = &self.0.commit {
            hook(rqs, &mut self.0.seen());
        }
    }

    fn poll(&mut self, rqs: &mut Polled<'_>) {
        let mut seen = self.0.seen();
        seen.polls += 1;
        if let Some(hook) = &self.0.poll {
            hook(rqs, &mut seen);
        }
    }

    fn op_ended(&mut self, rqs: &mut Polled<'_>, end: OpEnd<'_>) {
        let mut seen = self.0.seen();
        seen.ends.push((end.token, end.res, end.more, end.data.to_vec()));
        if let Some(hook) = &self.0.hears {
            hook(rqs, &mut seen, &end);
        }
    }
}

/// Makes a rig, or returns `None` where there is no kernel ring.
fn rig(of: &Does) -> Option<Rig> {
    if let Err(error) = KernelRing::new(8, KringOpts::default()) {
        eprintln!("SKIPPED: {error}");
        return None;
    }
    Some(Rig::new(&with_timeout("does", of.clone(), Vec::new(), Duration::from_secs(30))))
}

/// Polls and sleeps until the condition holds.
#[track_caller]
fn until(rig: &mut Rig, what: &str, mut is: impl FnMut(&Rig) -> bool) {
    let start = Instant::now();
    loop {
        rig.poll();
        if is(rig) {
            return;
        }
        assert!(start.elapsed() < LONG, "never: {what}");
        rig.ctx.wait(1, Some(Duration::from_millis(200)));
    }
}

fn pair() -> (UnixStream, Fd) {
    let (near, far) = UnixStream::pair().expect("a pair");
    (near, Arc::new(OwnedFd::from(far)))
}

/// Receives into all of the memory of the first request that has arrived.
fn receive_first(rqs: &mut Polled<'_>, seen: &mut Seen, fd: &Fd) {
    let id = seen.ids[0];
    let Some(rq) = rqs.get(id) else { return };
    let (mut memory, bytes) = (Vec::new(), rq.bytes() as usize);
    rqs.memory(id, 0..bytes, &mut memory).expect("all of it");
    let holds = [id];
    let transfer = Transfer::new(TransferKind::ReceiveAll, fd, &memory, &holds);
    // SAFETY: the request is held, and nothing else accesses its memory.
    seen.tokens.push(unsafe { rqs.transfer(transfer) }.expect("room"));
}

#[test]
fn data_comes_straight_into_the_memory_of_a_request_that_ends_after_it() {
    let (mut near, far) = pair();
    let driver = driver(4).on_commit(move |rqs, seen| {
        receive_first(rqs, seen, &far);
        assert!(rqs.end(seen.ids[0], Status::Ok), "it had no verdict before");
        assert!(!rqs.end(seen.ids[0], Status::Medium), "and has one now");
    });
    let Some(mut rig) = rig(&driver) else { return };
    rig.send(Op::Read, 0, BLOCK, 9);
    for _ in 0..20 {
        rig.poll();
        rig.ctx.wait(1, Some(Duration::from_millis(1)));
    }
    assert!(rig.ended.is_empty(), "the kernel still writes to its memory");
    near.write_all(&[7; BLOCK / 2]).expect("sent");
    rig.ctx.wait(1, Some(Duration::from_millis(10)));
    rig.poll();
    assert!(rig.ended.is_empty(), "half of it is not all of it");
    near.write_all(&[8; BLOCK / 2]).expect("sent");
    assert_eq!(rig.wait_all(), [Status::Ok]);
    assert!(rig.memory[0][..BLOCK / 2].iter().all(|&byte| byte == 7));
    assert!(rig.memory[0][BLOCK / 2..].iter().all(|&byte| byte == 8));
    assert_eq!(driver.seen().ends.iter().map(|end| (end.1, end.2)).collect::<Vec<_>>(), [(BLOCK as i32, false)]);
}

#[test]
fn a_ring_that_goes_waits_for_the_kernel_and_then_drops_the_driver() {
    let (_near, far) = pair();
    for whole in [true, false] {
        let fd = far.clone();
        let driver = driver(8).on_commit(move |rqs, seen| {
            receive_first(rqs, seen, &fd);
            seen.tokens.push(rqs.timer(Duration::from_secs(1000)).expect("room"));
            seen.tokens.push(rqs.watch(&fd).expect("room"));
        });
        let Some(mut rig) = rig(&driver) else { return };
        let beside = rig.ctx.attach(&open_device("ram:size=1M").expect("a ram device")).expect("attached");
        rig.send(Op::Read, 0, BLOCK, 9);
        rig.poll();
        rig.ctx.commit();
        assert!(!driver.seen().gone && rig.ended.is_empty());
        let start = Instant::now();
        if whole {
            drop(rig); // asserts that the request has ended
        } else {
            let (bdev, ended) = (rig.bdev, &mut rig.ended);
            rig.ctx.detach(bdev, &mut |owner, status| ended.push((owner, status)));
            assert_eq!(rig.ended, [(0, Status::Canceled)]);
            assert!(rig.ctx.device(beside).is_some());
        }
        assert!(driver.seen().gone && start.elapsed() < LONG, "{:?}", start.elapsed());
        assert!(driver.seen().ends.is_empty(), "a driver that shuts down is not called any more");
        assert_eq!(Arc::strong_count(&far), 1 + 1, "nothing is open but by this test and its closure");
    }
}

#[test]
fn a_driver_that_panics_leaves_nothing_in_the_kernel() {
    let (mut near, far) = pair();
    let driver = driver(4).on_commit(move |rqs, seen| receive_first(rqs, seen, &far));
    let Some(mut rig) = rig(&driver) else { return };
    rig.send(Op::Read, 0, BLOCK, 9);
    rig.poll();
    rig.send(Op::Read, 1000, BLOCK, 9);
    let start = Instant::now();
    assert_eq!(rig.wait_all(), [Status::IoErr; 2]);
    assert!(start.elapsed() < Duration::from_secs(5), "at once, and not when it is overdue");
    near.write_all(&[7; BLOCK]).expect("sent");
    rig.poll();
    assert!(rig.memory[0].iter().all(|&byte| byte == 9), "the kernel has given its memory back");
    assert_eq!(rig.run(Op::Read, 8, BLOCK, 0).0, Status::IoErr, "it is not called again");
}

#[test]
fn a_request_that_is_overdue_ends_when_its_operation_was_cancelled() {
    let (_near, far) = pair();
    let driver = driver(4).on_commit(move |rqs, seen| receive_first(rqs, seen, &far));
    if rig(&driver).is_none() {
        return;
    }
    let device = with_timeout("slow", driver.clone(), Vec::new(), Duration::from_millis(50));
    let mut rig = Rig::new(&device);
    let start = Instant::now();
    rig.send(Op::Read, 0, BLOCK, 9);
    assert_eq!(rig.wait_all(), [Status::Timeout]);
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(driver.seen().ends.iter().map(|end| end.1).collect::<Vec<_>>(), [ECANCELED], "the driver hears of it");
}

#[test]
fn a_watch_has_an_idle_driver_polled_and_costs_nothing_meanwhile() {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"));
    let watched = bell.clone();
    let driver = driver(2).on_poll(move |rqs, seen| {
        if seen.tokens.is_empty() {
            seen.tokens.push(rqs.watch(&watched).expect("room"));
        }
        let mut count = [0; 8];
        if rustix::io::read(&*watched, &mut count).is_ok() {
            seen.ids.clear();
            seen.refused.extend((0..u64::from_ne_bytes(count)).map(|_| Refused::Ended));
        }
    });
    let Some(mut rig) = rig(&driver) else { return };
    rig.poll();
    for round in 1..=3 {
        let before = driver.seen().polls;
        let ringer = bell.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            rustix::io::write(&*ringer, &1u64.to_ne_bytes()).expect("rung");
        });
        let start = Instant::now();
        while driver.seen().refused.len() < round {
            assert!(start.elapsed() < LONG, "it was not heard");
            rig.ctx.wait(1, Some(LONG));
            rig.poll();
        }
        assert!(start.elapsed() < LONG / 2, "the ring slept through it");
        thread.join().expect("rung");
        let polls = driver.seen().polls - before;
        assert!(polls < 20, "{polls} polls for one event: the ring did not sleep");
    }
    // Events of a watch are reported by polls of the driver, never by `op_ended`.
    let token = driver.seen().tokens[0];
    let driver_poll = driver.seen().polls;
    assert!(driver_poll > 0 && driver.seen().ends.is_empty(), "events of a watch are polls");
    let _ = token;
}

#[test]
fn a_watch_that_is_cancelled_ends() {
    let (_near, far) = pair();
    let driver = driver(1).on_commit(move |rqs, seen| match seen.tokens.first() {
        None => seen.tokens.push(rqs.watch(&far).expect("room")),
        Some(&token) => {
            assert_eq!(rqs.watch(&far), Err(Refused::TooMany), "no more than it asked for");
            assert!(!rqs.has_room() && rqs.cancel(token) && rqs.cancel(token), "until it has ended");
        }
    });
    let Some(mut rig) = rig(&driver) else { return };
    rig.send(Op::Write, 0, BLOCK, 0);
    rig.poll();
    rig.ctx.commit();
    rig.send(Op::Write, 64, BLOCK, 0);
    let seen = driver.clone();
    until(&mut rig, "the end of the watch", |_| !seen.seen().ends.is_empty());
    assert_eq!(driver.seen().ends.iter().map(|end| end.1).collect::<Vec<_>>(), [ECANCELED]);
}

#[test]
fn a_watch_that_is_cancelled_by_the_poll_that_it_caused_ends_and_leaves_its_place() {
    let (mut near, far) = pair();
    let ready = Arc::new(Mutex::new(false));
    let go = ready.clone();
    let driver = driver(1)
        .on_poll(move |rqs, seen| match seen.tokens.as_slice() {
            [] => seen.tokens.push(rqs.watch(&far).expect("room")),
            &[token] if *go.lock().expect("nobody panics with it") => assert!(rqs.cancel(token)),
            _ => {}
        })
        .on_end(|rqs, seen, _| seen.tokens.push(rqs.timer(Duration::from_millis(1)).expect("the only place is free")));
    let Some(mut rig) = rig(&driver) else { return };
    rig.poll();
    rig.ctx.commit();
    near.write_all(&[1]).expect("sent");
    *ready.lock().expect("nobody panics with it") = true;
    // The watch fires before the next poll.
    rig.ctx.wait(1, Some(LONG));
    let seen = driver.clone();
    until(&mut rig, "both ends", |_| seen.seen().ends.len() >= 2);
    let ends: Vec<i32> = driver.seen().ends.iter().map(|end| end.1).take(2).collect();
    assert_eq!(ends, [ECANCELED, ETIME]);
}

#[test]
fn a_stale_token_does_not_match_the_next_operation_of_its_slot() {
    let driver = driver(1)
        .on_commit(|rqs, seen| seen.tokens.push(rqs.timer(Duration::from_millis(1)).expect("room")))
        .on_end(|rqs, seen, end| {
            if seen.tokens.len() == 1 {
                assert!(!rqs.cancel(end.token), "it has ended");
                // The new timer gets the same slot.
                seen.tokens.push(rqs.timer(Duration::from_millis(50)).expect("room"));
                assert!(seen.tokens[0] != seen.tokens[1] && !rqs.cancel(end.token), "it is another one's slot now");
            } else {
                assert!(rqs.end(seen.ids[0], Status::Ok));
            }
        });
    let Some(mut rig) = rig(&driver) else { return };
    assert_eq!(rig.run(Op::Write, 0, BLOCK, 0).0, Status::Ok);
    assert_eq!(driver.seen().ends.iter().map(|end| end.1).collect::<Vec<_>>(), [ETIME; 2], "neither was cancelled");
}

#[test]
fn a_completion_or_cancellation_of_an_earlier_use_of_a_slot_does_nothing() {
    let Ok(mut kring) = KernelRing::new(8, KringOpts::default()) else { return };
    let mut ops = Ops::new(1, 3, 1, None);
    let event = |user_data: u64, res, flags| sheave_blk::driver::KernelEvent {
        tag: user_data as u16,
        kind: (user_data >> 32) as u8,
        res,
        flags,
        generation: (user_data >> 40) as u32,
    };
    let completed = |ops: &mut Ops, kring: &mut KernelRing| {
        kring.enter(1, Some(LONG)).expect("entered");
        let mut came = Vec::new();
        kring.reap(|user_data, res, flags| came.push((user_data, res, flags)));
        came.iter()
            .map(|&(user_data, res, flags)| (user_data, ops.came(&event(user_data, res, flags))))
            .collect::<Vec<_>>()
    };
    let first = ops.timer(&mut kring, Duration::from_millis(1).into()).expect("room");
    let came = completed(&mut ops, &mut kring);
    assert_eq!(came[0].1, Some(Came::Result { slot: 0, more: false }));
    ops.release(0, |_| {});
    let stale = came[0].0;
    let second = ops.timer(&mut kring, Duration::from_millis(60).into()).expect("room");
    assert!(first != second && !ops.cancel(&mut kring, first));
    assert_eq!(ops.came(&event(stale, 0, 0)), None, "a late completion finds nothing");
    assert_eq!(ops.in_kernel(), 1);
    // A cancellation that was prepared before the slot was used again does not end the second timer.
    kring.prep_cancel(stale, 99).expect("room");
    let start = Instant::now();
    let mut came = completed(&mut ops, &mut kring);
    while came.iter().all(|(_, came)| came.is_none()) {
        came = completed(&mut ops, &mut kring);
    }
    assert!(start.elapsed() >= Duration::from_millis(50), "the second timer was cancelled in place of the first");
    ops.release(0, |_| {});
}

#[test]
fn what_finds_the_submission_queue_full_is_sent_later_or_not_at_all() {
    let Ok(mut kring) = KernelRing::new(8, KringOpts::default()) else { return };
    let (mut ops, (_near, far)) = (Ops::new(1, 0, 3, None), pair());
    ops.refuse = true;
    let tokens: Vec<OpToken> =
        (0..3).map(|_| ops.plain(&mut kring, What::Watch, far.clone()).expect("kept until there is room")).collect();
    assert!(ops.plain(&mut kring, What::Watch, far.clone()).is_none(), "as many as were asked for");
    assert!(ops.has_unsent() && ops.in_kernel() == 0 && kring.pending() == 0);
    assert!(ops.cancel(&mut kring, tokens[1]));
    assert_eq!((ops.take_aborted(), ops.take_aborted()), (Some(1), None), "the kernel never has it");
    ops.release(1, |_| {});
    ops.send(&mut kring);
    assert_eq!(ops.in_kernel(), 0);
    ops.refuse = false;
    ops.send(&mut kring);
    assert_eq!((ops.in_kernel(), kring.pending(), ops.has_unsent()), (2, 2, false));
    // A cancellation also waits for room, and its operation is cancelled once.
    ops.refuse = true;
    ops.cancel_all(&mut kring);
    assert_eq!((kring.pending(), ops.has_unsent()), (2, true));
    ops.refuse = false;
    ops.send(&mut kring);
    ops.cancel_all(&mut kring);
    assert_eq!((kring.pending(), ops.has_unsent()), (4, false));
    // The ring is lost before anything was sent.
    drop(kring);
    ops.lost();
    assert_eq!((ops.in_kernel(), ops.take_aborted(), ops.take_aborted()), (0, Some(0), Some(2)));
}

#[test]
fn a_multishot_receive_gives_every_byte_and_every_buffer_back() {
    let (mut near, far) = pair();
    let mut driver = driver(2).on_poll({
        let far = far.clone();
        move |rqs, seen| {
            if seen.tokens.is_empty() {
                seen.tokens.push(rqs.receive_any(&far).expect("room"));
            }
        }
    });
    driver.wants = Some(KernelUse::new(2).receive_buffers(4, 64));
    let driver = driver.on_end(move |rqs, seen, end| {
        // All buffers are in use. They go back to the kernel after this call, so the next receive finds some.
        if !end.more && end.res < 0 {
            assert_eq!(end.res, -105, "ENOBUFS");
            seen.tokens.push(rqs.receive_any(&far).expect("room"));
        }
    });
    let Some(mut rig) = rig(&driver) else { return };
    let sent: Vec<u8> = (0..5000u32).map(|at| (at * 7 / 3) as u8).collect();
    for piece in sent.chunks(700) {
        rig.poll();
        near.write_all(piece).expect("sent");
    }
    let bytes = |seen: &Seen| seen.ends.iter().flat_map(|end| end.3.iter().copied()).collect::<Vec<u8>>();
    let seen = driver.clone();
    until(&mut rig, "all bytes", |_| bytes(&seen.seen()).len() == 5000);
    assert_eq!(bytes(&driver.seen()), sent);
    assert!(driver.seen().ends.iter().any(|end| end.2), "several pieces of one operation");
    drop(near);
    until(&mut rig, "the end of the connection", |_| {
        seen.seen().ends.last().is_some_and(|end| (end.1, end.2) == (0, false))
    });
    // The buffer group is unregistered with the queue, so that the next queue of the ring can register one.
    let (device, ended) = (with_timeout("again", driver, Vec::new(), LONG), &mut rig.ended);
    rig.ctx.detach(rig.bdev, &mut |owner, status| ended.push((owner, status)));
    rig.bdev = rig.ctx.attach(&device).expect("buffers of its own");
}

#[test]
fn sockets_are_connected_and_files_are_read_and_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = UnixListener::bind(dir.path().join("sock")).expect("listening");
    let to = Address::from(&listener.local_addr().expect("an address"));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(dir.path().join("file"));
    let file: Fd = Arc::new(OwnedFd::from(file.expect("made")));
    let of = |rqs: &Polled<'_>, id, bytes| {
        let mut memory = Vec::new();
        rqs.memory(id, 0..bytes, &mut memory).expect("all of it");
        memory
    };
    // SAFETY: a call without memory.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    // SAFETY: a new descriptor.
    let socket: Fd = Arc::new(unsafe { std::os::fd::FromRawFd::from_raw_fd(socket) });
    let connects = socket.clone();
    let driver = driver(4)
        .on_commit(move |rqs, seen| {
            let id = *seen.ids.last().expect("one has come");
            let write = rqs.get(id).expect("held").op() == Op::Write;
            let memory = of(rqs, id, BLOCK);
            let kind = if write { TransferKind::WriteDurably(512) } else { TransferKind::Read(512) };
            // SAFETY: the request is held, and nothing else accesses its memory.
            let begun = unsafe { rqs.transfer(Transfer::new(kind, &file, &memory, &[id])) };
            seen.tokens.push(begun.expect("room"));
            if write {
                seen.tokens.push(rqs.connect(&connects, &to).expect("room"));
            }
        })
        .on_end(|rqs, seen, end| {
            if end.res == BLOCK as i32 {
                assert!(rqs.end(*seen.ids.last().expect("one has come"), Status::Ok));
            }
        });
    let Some(mut rig) = rig(&driver) else { return };
    assert_eq!(rig.run(Op::Write, 0, BLOCK, 5).0, Status::Ok);
    let (status, read) = rig.run(Op::Read, 0, BLOCK, 0);
    assert!(status.is_ok() && read.iter().all(|&byte| byte == 5));
    let mut written = Vec::new();
    std::fs::File::open(dir.path().join("file")).expect("opened").read_to_end(&mut written).expect("read");
    assert!(written.len() == 512 + BLOCK && written[512..].iter().all(|&byte| byte == 5));
    let seen = driver.clone();
    until(&mut rig, "the connection", |_| seen.seen().ends.iter().any(|end| end.1 == 0));
    assert!(listener.accept().is_ok());
}

#[test]
fn what_cannot_be_is_refused() {
    let (_near, far) = pair();
    let mut without = driver(1).on_commit({
        let far = far.clone();
        move |rqs, seen| {
            let refused = [rqs.watch(&far), rqs.timer(LONG), rqs.receive_any(&far)];
            seen.refused.extend(refused.into_iter().filter_map(Result::err));
        }
    });
    without.wants = None;
    let Some(mut rig) = rig(&without) else { return };
    rig.send(Op::Read, 0, BLOCK, 0);
    rig.poll();
    assert_eq!(without.seen().refused, [Refused::NoKernelRing; 3]);
    drop(rig);
    let with = driver(2).on_commit(move |rqs, seen| {
        let id = seen.ids[0];
        let mut memory = Vec::new();
        let mut refused = vec![rqs.receive_any(&far).err()];
        refused.push(rqs.memory(id, 0..BLOCK + 1, &mut memory).err());
        refused.push(rqs.memory(id, std::ops::Range { start: 2, end: 1 }, &mut memory).err());
        assert!(memory.is_empty());
        let nothing = Transfer::new(TransferKind::Send, &far, &[], &[]);
        // SAFETY: there is no memory.
        refused.push(unsafe { rqs.transfer(nothing) }.err());
        rqs.memory(id, 0..BLOCK, &mut memory).expect("all of it");
        assert!(rqs.end(id, Status::Ok));
        let holds = [id];
        let late = Transfer::new(TransferKind::Receive, &far, &memory, &holds);
        // SAFETY: the transfer is refused, because the request has ended.
        refused.push(unsafe { rqs.transfer(late) }.err());
        seen.refused.extend(refused.into_iter().flatten());
    });
    let mut rig = Rig::new(&device("with", with.clone()));
    assert_eq!(rig.run(Op::Read, 0, BLOCK, 0).0, Status::Ok);
    use Refused::{Ended, NoBuffers, OutOfRange};
    assert_eq!(with.seen().refused, [NoBuffers, OutOfRange, OutOfRange, OutOfRange, Ended]);
}

#[test]
fn a_descriptor_stays_open_while_an_operation_has_it() {
    let near = Arc::new(Mutex::new(None));
    let give = near.clone();
    let driver = driver(1).on_commit(move |rqs, seen| {
        let (here, far) = pair();
        seen.tokens.push(rqs.watch(&far).expect("room"));
        // The operation is prepared and not sent when the only other owner of the descriptor is dropped.
        drop(far);
        *give.lock().expect("nobody panics with it") = Some(here);
    });
    let Some(mut rig) = rig(&driver) else { return };
    rig.send(Op::Write, 0, BLOCK, 0);
    rig.poll();
    let mut here = near.lock().expect("nobody panics with it").take().expect("the batch was committed");
    here.write_all(&[1]).expect("the other end is open");
    let before = driver.seen().polls;
    rig.ctx.wait(1, Some(LONG));
    rig.poll();
    assert!(driver.seen().polls > before && driver.seen().ends.is_empty(), "it is readable, and no error");
}
