//! Requests that another thread completes while the ring submits, polls, sleeps and goes away.

use sheave_base::status::Status;
use sheave_base::sync::{Arc, Condvar, Mutex, thread};

use super::{TURNS, assert_all_ended, explore};
use crate::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Remote, RemoteRq, TimedOut};
use crate::limits::Limits;
use crate::request::{DoneList, RqList, RqTable};
use crate::support::Rig;
use crate::{Device, DeviceError};

/// Bios of the ring.
const BIOS: u32 = 3;

/// What the driver hands to the completing thread.
#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<(Vec<RemoteRq>, bool)>,
    changed: Condvar,
}

impl Inbox {
    /// Completes what comes, the newest first, until there will be no more.
    fn complete_all(&self) {
        loop {
            let mut waiting = self.waiting.lock().expect("inbox");
            while waiting.0.is_empty() && !waiting.1 {
                waiting = self.changed.wait(waiting).expect("inbox");
            }
            let Some(rq) = waiting.0.pop() else { return };
            drop(waiting);
            rq.complete(Status::Ok);
        }
    }

    fn close(&self) {
        self.waiting.lock().expect("inbox").1 = true;
        self.changed.notify_all();
    }
}

#[derive(Debug)]
struct Elsewhere(Arc<Inbox>);

impl Driver for Elsewhere {
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

impl HwQueue for ElsewhereQueue {
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        while let Some(rq) = list.pop() {
            let rq = self.remote.send_out(rq);
            self.inbox.waiting.lock().expect("inbox").0.push(rq);
            self.inbox.changed.notify_one();
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn next_event(&self) -> NextEvent {
        NextEvent::Remote
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        // What is left is ended by the completing thread; its tokens keep what they need.
    }
}

#[test]
fn model_requests_that_another_thread_completes_end_once() {
    explore(|| {
        let inbox = Arc::new(Inbox::default());
        let completer = thread::spawn({
            let inbox = inbox.clone();
            move || inbox.complete_all()
        });
        let device = Device::from_driver("elsewhere", Box::new(Elsewhere(inbox.clone())));
        let mut rig = Rig::with(8, true, &[&device]);
        for owner in 0..BIOS {
            assert!(rig.read(u64::from(owner) * 2, owner));
        }
        for turn in 0.. {
            assert!(turn < TURNS, "the ring does not become idle: {} ended so far", rig.ended.len());
            rig.poll();
            if rig.ctx.is_idle() {
                break;
            }
            rig.ctx.wait(1, None);
        }
        assert_all_ended(&mut rig, BIOS);
        assert_eq!(device.stats().ios(), u64::from(BIOS), "each is counted once");
        drop(rig);
        inbox.close();
        completer.join().expect("completer");
    });
}
