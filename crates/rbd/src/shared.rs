//! What all rings and claims of a device share: the open image, what the spec said, the way to the keeper.
//!
//! Owns the end of a device (R3), and what a claim is: the image's exclusive lock, which Ceph keeps.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sheave::drivers::Claim;
use sheave::{DeviceError, Errno, Op, Status};

use crate::desk::{Desk, Order};
use crate::librbd::Image;
use crate::spec::Target;

/// How long who drops a device waits for the image to be closed; then that goes on by itself.
const CLOSE: Duration = Duration::from_secs(5);

/// What all rings and claims of a device share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) target: Target,
    pub(crate) desk: Arc<Desk>,
    pub(crate) size: u64,
    pub(crate) zeroes: bool,
    /// Whether the image has the exclusive lock.
    pub(crate) lockable: bool,
    /// None once all have gone.
    pub(crate) image: Option<Arc<Image>>,
    /// Ends when the keeper has.
    pub(crate) keeper: Mutex<Receiver<()>>,
}

/// The exclusive lock, for as long as somebody claims the device.
struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        let (done, is_done) = sync_channel(0);
        self.0.desk.ask(Order::Unlock(done));
        // Disconnected when it is done.
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
        // Who only looks takes the lock, too: so no writer comes meanwhile, and one that has died is put out by Ceph. A
        // device that was opened to read can only look who has the lock.
        let locks = !self.target.read_only;
        let (answer, answers) = sync_channel(0);
        self.desk.ask(if locks { Order::Lock(answer) } else { Order::Look(answer) });
        let answer = answers.recv_timeout(self.target.lock);
        // A lock that comes from now on is let go of.
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
    /// Asks the cluster whether a claim has the lock still, for as long as a request may take.
    pub(crate) fn still_owns(&self) -> Result<(), Status> {
        let (answer, answers) = sync_channel(0);
        self.desk.ask(Order::Owns(answer));
        match answers.recv_timeout(self.target.timeout) {
            // The lock was taken away: as for writes while another client has it.
            Ok(Err(libc::EROFS)) => Err(Status::Conflict),
            Ok(Err(errno)) => {
                self.desk.failed(Op::Read, errno);
                Err(Status::from_errno(Errno(errno)))
            }
            Ok(Ok(())) => Ok(()),
            // Another asks at the same time, and has the answer.
            Err(RecvTimeoutError::Disconnected) => Err(Status::Busy),
            Err(RecvTimeoutError::Timeout) => Err(Status::Timeout),
        }
    }
}

impl Drop for Shared {
    /// The last queue and the last claim have gone (R3).
    fn drop(&mut self) {
        self.image = None;
        self.desk.ask(Order::Close);
        let keeper = self.keeper.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if keeper.recv_timeout(CLOSE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("{}: the cluster does not answer; it is closed in the background", self.target.words());
        }
    }
}
