//! Requests completed by another thread while the ring submits, polls, sleeps, walks for overdue requests, and is
//! dropped.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_base::sync::{Arc, Condvar, Mutex, thread};

use super::{TURNS, explore};
use crate::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Remote, RemoteRq, TimedOut};
use crate::limits::Limits;
use crate::request::{DoneList, RqList, RqTable};
use crate::support::Rig;
use crate::{Device, DeviceError};

/// Bios of the ring.
const BIOS: u32 = 3;
/// Status of each bio. All differ, so that a completion reported too early under a reused tag shows as another's
/// status.
const STATUSES: [Status; BIOS as usize] = [Status::Medium, Status::Ok, Status::Transport];
/// Sectors from one bio to the next, so that they do not merge.
const FAR: u64 = 16;
/// Longer than any timeout.
const LONG: Duration = Duration::from_secs(3600);

/// Requests that the driver passes to the completing thread.
#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<(Vec<(RemoteRq, Status)>, bool)>,
    changed: Condvar,
}

impl Inbox {
    /// Completes requests, the newest first, until the inbox is closed.
    fn complete_all(&self) {
        loop {
            let mut waiting = self.waiting.lock().expect("inbox");
            while waiting.0.is_empty() && !waiting.1 {
                waiting = self.changed.wait(waiting).expect("inbox");
            }
            let Some((rq, status)) = waiting.0.pop() else { return };
            drop(waiting);
            rq.complete(status);
        }
    }

    fn close(&self) {
        self.waiting.lock().expect("inbox").1 = true;
        self.changed.notify_all();
    }
}

#[derive(Debug)]
struct Elsewhere(Arc<Inbox>);

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: its queues take every request within the limits that it reports.
unsafe impl Driver for Elsewhere {
    fn limits(&self) -> Limits {
        Limits { queue_depth: 2, ..Limits::default() }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(ElsewhereQueue { inbox: self.0.clone(), remote: open.remote.clone() }))
    }
}

#[derive(Debug)]
struct ElsewhereQueue {
    inbox: Arc<Inbox>,
    remote: Remote,
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for ElsewhereQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        while let Some(rq) = list.pop() {
            let status = STATUSES[(rqs.get(&rq).sector / FAR) as usize];
            let rq = self.remote.send_out(rq);
            self.inbox.waiting.lock().expect("inbox").0.push((rq, status));
            self.inbox.changed.notify_one();
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn next_event(&self) -> NextEvent {
        NextEvent::Remote
    }

    /// Completes the request if the other thread has not taken it yet.
    fn timed_out(&mut self, tag: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        let mut waiting = self.inbox.waiting.lock().expect("inbox");
        let at = waiting.0.iter().position(|(rq, _)| rq.tag() == Some(tag));
        let taken = at.map(|at| waiting.0.swap_remove(at));
        drop(waiting);
        if let Some((rq, _)) = taken {
            rq.complete(Status::Timeout);
        }
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        // The completing thread ends the rest; its tokens keep alive all that they need.
    }
}

/// Reads through a driver whose requests another thread completes, with waits for `wanted`. Calls `hurry` before each
/// poll. Returns the status of each owner.
fn read_all(wanted: u32, hurry: impl Fn(&Rig)) -> Vec<(u32, Status)> {
    let inbox = Arc::new(Inbox::default());
    let completer = thread::spawn({
        let inbox = inbox.clone();
        move || inbox.complete_all()
    });
    let device = Device::from_driver("elsewhere", Box::new(Elsewhere(inbox.clone())));
    let mut rig = Rig::with(8, true, &[&device]);
    for owner in 0..BIOS {
        assert!(rig.read(u64::from(owner) * FAR / 8, owner));
    }
    for turn in 0.. {
        assert!(turn < TURNS, "the ring does not become idle: {} ended so far", rig.ended.len());
        hurry(&rig);
        rig.poll();
        if rig.ctx.is_idle() {
            break;
        }
        rig.ctx.wait(wanted, None);
        // A wait with a deadline may return at once in any schedule (I2 of `model`).
        thread::yield_now();
    }
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|(owner, _)| *owner);
    assert_eq!(device.stats().ios(), u64::from(BIOS), "each is counted once");
    drop(rig);
    inbox.close();
    completer.join().expect("completer");
    ended
}

#[test]
fn model_requests_that_another_thread_completes_end_once() {
    explore(|| {
        let expect: Vec<_> = (0..).zip(STATUSES).collect();
        assert_eq!(read_all(1, |_| ()), expect, "each bio ends once, as its own request did");
    });
}

#[test]
fn model_a_ring_that_waits_for_several_requests_of_another_thread_is_woken() {
    explore(|| {
        let expect: Vec<_> = (0..).zip(STATUSES).collect();
        assert_eq!(read_all(BIOS, |_| ()), expect, "each bio ends once, as its own request did");
    });
}

#[test]
fn model_a_request_that_is_overdue_ends_once_whoever_ends_it() {
    explore(|| {
        let ended = read_all(1, |rig| rig.time.advance(LONG));
        assert_eq!(ended.len(), BIOS as usize, "each bio ends once: {ended:?}");
        for ((owner, status), own) in ended.into_iter().zip(STATUSES) {
            assert!(status == own || status == Status::Timeout, "bio {owner} ended with {status:?}");
        }
    });
}
