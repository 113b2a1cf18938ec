//! The state that all rings and claims of a device share: the open image, the spec, the orders for the keeper.
//!
//! Owns the end of a device (R3), and claims, which are the image's exclusive lock.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sheave::drivers::Claim;
use sheave::{DeviceError, Errno, Op, Status};

use crate::desk::{Desk, Order};
use crate::librbd::Image;
use crate::spec::Target;

/// Time for which dropping a device waits until the image is closed. After that it is closed in the background.
const CLOSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) target: Target,
    pub(crate) desk: Arc<Desk>,
    pub(crate) size: u64,
    pub(crate) zeroes: bool,
    /// True if the image has the feature exclusive-lock.
    pub(crate) lockable: bool,
    /// The open image; `None` once all queues and claims are dropped.
    pub(crate) image: Option<Arc<Image>>,
    /// Channel that is disconnected when the keeper has ended.
    pub(crate) keeper: Mutex<Receiver<()>>,
}

/// The exclusive lock that a claim holds.
struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        let (done, is_done) = sync_channel(0);
        self.0.desk.ask(Order::Unlock(done));
        // Disconnected when the lock is released.
        _ = is_done.recv_timeout(self.0.target.lock);
    }
}

impl Shared {
    pub(crate) fn image(&self) -> Option<Arc<Image>> {
        self.image.clone()
    }

    /// Claims the image against other clients of the cluster.
    pub(crate) fn claim(self: &Arc<Shared>) -> Result<Claim, DeviceError> {
        if self.target.snapshot.is_some() {
            return Ok(Claim::nothing());
        }
        if !self.lockable {
            self.desk.tell(format_args!(
                "it has no exclusive lock, so nothing keeps other clients from writing to it. `rbd feature enable {} \
                 exclusive-lock` gives it one",
                self.target.name()
            ));
            return Ok(Claim::nothing());
        }
        // A claim for reading takes the lock too, so that no writer can begin meanwhile and Ceph fences a dead one. A
        // device that was opened read-only cannot take the lock, and only checks that no other client has it.
        let locks = !self.target.read_only;
        let (answer, answers) = sync_channel(0);
        self.desk.ask(if locks { Order::Lock(answer) } else { Order::Look(answer) });
        let answer = answers.recv_timeout(self.target.lock);
        // If the lock is granted from now on, the keeper fails to send the answer and releases it.
        drop(answers);
        let who = match answer {
            Ok(Ok(())) if locks => return Ok(Claim::of(Held(self.clone()))),
            Ok(Ok(())) => return Ok(Claim::nothing()),
            Ok(Err(who)) => who,
            Err(_) => format!(
                "its exclusive lock was not to be had within {:?}. Who had it may be dead: Ceph takes the lock from it \
                 when it has not been heard of for osd_client_watch_timeout, 30 s by default",
                self.target.lock
            ),
        };
        Err(DeviceError::Claimed {
            what: self.target.words(),
            who,
            fix: format!(
                "Have it close the image, or wait until it is dead and try again; `rbd lock ls {}` shows it, lock= \
                 waits longer",
                self.target.name()
            ),
        })
    }
}

impl Shared {
    /// Queries the cluster if a claim still has its lock. Waits at most `timeout=`.
    pub(crate) fn still_owns(&self) -> Result<(), Status> {
        let (answer, answers) = sync_channel(0);
        self.desk.ask(Order::Owns(answer));
        match answers.recv_timeout(self.target.timeout) {
            // The lock was taken away. Writes fail with the same status while another client has it.
            Ok(Err(libc::EROFS)) => Err(Status::Conflict),
            Ok(Err(errno)) => {
                self.desk.failed(Op::Read, errno);
                Err(Status::from_errno(Errno(errno)))
            }
            Ok(Ok(())) => Ok(()),
            // Another thread asked at the same time, and its order replaced this one.
            Err(RecvTimeoutError::Disconnected) => Err(Status::Busy),
            Err(RecvTimeoutError::Timeout) => Err(Status::Timeout),
        }
    }
}

impl Drop for Shared {
    /// Called when the last queue and the last claim are dropped (R3).
    fn drop(&mut self) {
        // Released first, so that the keeper's reference is the last one, and the image is closed on its thread.
        self.image = None;
        self.desk.ask(Order::Close);
        let keeper = self.keeper.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if keeper.recv_timeout(CLOSE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("{}: the cluster does not answer; it is closed in the background", self.target.words());
        }
    }
}
