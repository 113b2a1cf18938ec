//! Errors of a server, each with its cause and its fix.

use std::io;

use sheave_uring::RingError;
use thiserror::Error;

/// Reason why a server does not start, does not do what it was told, or did not end as it should.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The address does not parse.
    #[error("'{text}' is no address to listen on. Write unix:PATH or tcp:HOST:PORT")]
    Address {
        /// The text that was given.
        text: String,
    },
    /// Listening on the address failed.
    #[error("cannot listen on {address}: {source}. {fix}")]
    Listen {
        /// The address.
        address: String,
        /// The fix.
        fix: String,
        /// The cause.
        source: io::Error,
    },
    /// Another server listens on the address.
    #[error("{address} is in use: another server answers there. End it, or choose another address")]
    InUse {
        /// The address.
        address: String,
    },
    /// The path of the socket exists and is no socket.
    #[error("{path} is there and is no socket. Choose another path, or remove it")]
    NotASocket {
        /// The path.
        path: String,
    },
    /// The ring of a reactor cannot be made, or has failed.
    #[error("serving needs io_uring, and a ring for it cannot be made: {0}")]
    Ring(#[source] RingError),
    /// The kernel has io_uring, but lacks an operation that a server needs.
    #[error("serving needs io_uring with lists of receive buffers, which Linux has since 5.19: {0}")]
    OldKernel(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}. Raise the limit of processes (ulimit -u)")]
    Thread(#[source] io::Error),
    /// No export has this name.
    #[error("there is no export '{name}'. 'sheave export list' shows those there are")]
    NoExport {
        /// The name.
        name: String,
    },
    /// An export of this name exists.
    #[error("there is an export '{name}' already. Choose another name, or remove that one first")]
    ExportExists {
        /// The name.
        name: String,
    },
    /// The export has clients.
    #[error("the export '{name}' has clients: {clients}. Disconnect them first, or use --force, which does")]
    ExportInUse {
        /// The name.
        name: String,
        /// Number of its clients.
        clients: u32,
    },
    /// Requests of its clients have not ended yet.
    #[error(
        "the export '{name}' was taken out, and requests of its clients have not ended yet. Look at its device, and \
         try again"
    )]
    StillEnding {
        /// The name.
        name: String,
    },
    /// No client has this number.
    #[error("there is no client {id}. 'sheave client list' shows those there are")]
    NoClient {
        /// The number.
        id: u64,
    },
    /// A file for TLS cannot be used.
    #[error("{path}: {why}. {fix}")]
    Tls {
        /// The file.
        path: String,
        /// The cause.
        why: String,
        /// The fix.
        fix: &'static str,
    },
    /// Names of clients are given, but no authority that issues their certificates.
    #[error(
        "names of clients that are allowed come from their certificates: say which authority (CA) has issued these, too"
    )]
    TlsNamesWithoutCa,
    /// Requests have not ended in the time that a handover waits for them.
    #[error("requests have not ended in time: {what}. Look at the devices, disconnect these clients, or try again")]
    Busy {
        /// The clients, and what they have under way.
        what: String,
    },
    /// A descriptor cannot be duplicated for a handover.
    #[error("descriptors cannot be handed over: {0}. Raise the limit (ulimit -n, LimitNOFILE)")]
    Handover(#[source] io::Error),
    /// A reactor has panicked.
    #[error("a reactor has ended by a bug; its clients were dropped")]
    Panicked,
}
