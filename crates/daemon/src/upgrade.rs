//! Upgrade of a running daemon: a new process takes over everything from the old one, and clients notice a short pause.
//!
//! `sheave upgrade` starts the new process, and passes one end of a socket pair to each. On it they speak in this
//! order:
//!
//! 1. The new process says who it is ([`Said::Hello`]), gets stdout and stderr of the old one ([`Said::Welcome`]),
//!    reads the configuration and does all else that can be done before it has the pools ([`Said::Ready`]).
//! 2. The old one stops beginning requests, waits until those under way have ended, takes everything apart, closes its
//!    pools and passes descriptors and state over ([`Said::Parcel`], [`Said::Fds`]). If the requests do not end in
//!    time, it goes on as before ([`Said::Refused`]).
//! 3. The new one opens pools and exports on these descriptors, and then owns them ([`Said::Taken`]). If something does
//!    not open, it gives up ([`Said::Failed`]), and the old one puts everything together again.
//!
//! Invariants:
//! - P1. Exactly one process owns the pools at any moment. Until `Taken` is in the socket this is the old one; from
//!   then on it is the new one. Sending `Taken` either succeeds, or fails because the old process has shut the socket
//!   down or has died. The old process shuts it down before it gives up waiting, looks for `Taken` once more, and ends
//!   the new process before it opens a pool again.
//! - P2. The locks of the pools never lapse: they belong to open file descriptions that both processes have.
//! - P3. The old process takes nothing apart while a request is under way, and the new one begins none before it owns
//!   the pools. So a request is done by one of them, once.
//! - P4. A new process that cannot say `Taken` because the old one has died owns the pools, since nobody else can.
//! - P5. What the other process says is decoded as the input of a peer. The old process ends nothing before the new one
//!   has said a state version and a process id that it can work with.

pub(crate) mod blob;
pub(crate) mod give;
pub mod plan;
pub mod protocol;
pub(crate) mod take;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use sheave_varlink::channel::{Channel, MAX_FDS};

use crate::failure::Failure;

/// Version of the state that a process hands over. A process takes over this version and older ones.
pub const STATE_VERSION: u32 = 1;
/// Time that the old process waits for requests under way to end.
pub const DRAIN: Duration = Duration::from_secs(5);
/// Time that the old process waits for the new one to open everything.
const TAKE: Duration = Duration::from_secs(30);
/// Time for a message to arrive that the other process sends without waiting for anything.
const PROMPT: Duration = Duration::from_secs(10);
/// Longest message.
const MESSAGE_BYTES: usize = 64 << 10;
/// Most descriptors that are passed over.
const MOST_FDS: u32 = 1 << 20;

/// A message of one process to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    /// The new process has started.
    Hello {
        pid: u32,
        /// The newest state version that it takes over.
        state: u32,
    },
    /// The old process goes on as before.
    Refused { cause: String },
    /// The old process, with its stdout and stderr.
    Welcome { pid: u32 },
    /// The new process waits for the state.
    Ready {},
    /// The state, whose memfd comes with the message. `fds` is the number of descriptors that follow, `paused_us` the
    /// time for which clients have waited so far.
    Parcel { fds: u32, paused_us: u64 },
    /// Some of the descriptors.
    Fds {},
    /// The new process owns everything.
    Taken {},
    /// The new process could not open something, and has let go of everything.
    Failed { cause: String },
}

/// The socket between the two processes.
pub(crate) struct Line(Channel);

impl Line {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Line> {
        Channel::new(stream, MESSAGE_BYTES).map(Line)
    }

    pub(crate) fn say(&self, said: &Said, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.send(&serde_json::to_vec(said)?, fds, PROMPT)
    }

    /// Waits for the next message. An end of the connection is an error.
    pub(crate) fn hear(&mut self, within: Duration) -> io::Result<(Said, Vec<OwnedFd>)> {
        let received = self.0.receive(Some(within), PROMPT)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((serde_json::from_slice(&received.bytes)?, received.fds))
    }

    /// Sends descriptors, a few with each message.
    pub(crate) fn pass(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        fds.chunks(MAX_FDS).try_for_each(|some| self.say(&Said::Fds {}, some))
    }

    /// Receives so many descriptors.
    pub(crate) fn take(&mut self, many: u32) -> io::Result<Vec<OwnedFd>> {
        if many > MOST_FDS {
            return Err(io::Error::other(format!("{many} descriptors are more than a daemon has")));
        }
        let mut fds = Vec::new();
        while fds.len() < many as usize {
            let (Said::Fds {}, some) = self.hear(PROMPT)? else {
                return Err(io::Error::other("another message came in the place of descriptors"));
            };
            if some.is_empty() {
                return Err(io::Error::other("a descriptor was lost: this process may have no more (ulimit -n)"));
            }
            fds.extend(some);
        }
        match fds.len() == many as usize {
            true => Ok(fds),
            false => Err(io::Error::other("more descriptors came than were announced")),
        }
    }

    /// Ends the connection in both directions. What has arrived can still be received (P1).
    pub(crate) fn shut(&self) {
        // Fails if the other process is gone.
        let _ = self.0.stream().shutdown(std::net::Shutdown::Both);
    }
}

/// Waits for the end of a process, at most for `within`. Returns true if it has ended.
pub(crate) fn has_ended(process: &OwnedFd, within: Duration) -> bool {
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    let mut polled = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(&within)).is_ok_and(|many| many > 0)
}

/// Returns the failure for an error of the connection.
pub(crate) fn broken(what: &str, error: &io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the other process has ended".to_owned(),
        io::ErrorKind::TimedOut => "it has not answered in time".to_owned(),
        _ => error.to_string(),
    };
    Failure::run(format!("{what}: {why}"))
}
