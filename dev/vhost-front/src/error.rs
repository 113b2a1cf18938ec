//! The errors of the front-end and of the driver.

use std::io;

/// An error of the front-end or of the driver. Each message names the cause, and the fix where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{action}: {source}")]
    System {
        /// The action that failed, such as "cannot connect to /run/s".
        action: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The back-end closed the connection.
    #[error("the back-end closed the connection {0}: its log has the reason")]
    Closed(&'static str),
    /// Nothing arrived before the timeout.
    #[error("the back-end did not answer in time: {0}")]
    Timeout(&'static str),
    /// The back-end answered a message with a code other than 0 (REPLY_ACK).
    #[error("the back-end refused {request} with code {code}: its log has the reason")]
    Refused {
        /// Name of the message.
        request: &'static str,
        /// Payload of the reply.
        code: u64,
    },
    /// A reply of the back-end is malformed, or belongs to another message.
    #[error("the back-end's reply to {request} is wrong: {why}")]
    Reply {
        /// Name of the message.
        request: &'static str,
        /// The difference from the specification.
        why: String,
    },
    /// A feature that an operation needs was not negotiated.
    #[error("{0} is not negotiated: the back-end does not offer the feature, or the front-end did not ask for it")]
    NotNegotiated(&'static str),
    /// Guest memory is used up.
    #[error("no region of guest memory has {0} free bytes: give the driver a larger region")]
    NoRoom(u64),
    /// The descriptor table is used up.
    #[error("the queue has {free} free descriptors and the request needs {needed}: reap completions first")]
    QueueFull {
        /// Number of free descriptors.
        free: u16,
        /// Number of descriptors that the request needs.
        needed: usize,
    },
    /// A request has more pieces than an indirect table holds.
    #[error("the request has {pieces} pieces and an indirect table holds {most}: raise Options::most_pieces")]
    TooManyPieces {
        /// Number of descriptors that the request needs.
        pieces: usize,
        /// Number of descriptors in a table.
        most: usize,
    },
    /// The back-end wrote something into a used ring that no request explains.
    #[error("the back-end broke queue {queue}: {why}")]
    Ring {
        /// Number of the queue.
        queue: u16,
        /// The broken rule.
        why: String,
    },
    /// The back-end completed a request with a status other than OK.
    #[error("the request ended with status {0}")]
    Status(u8),
}

impl Error {
    pub(crate) fn system(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::System { action: action.into(), source: source.into() }
    }
}

/// The result of most calls.
pub type Result<T> = std::result::Result<T, Error>;
