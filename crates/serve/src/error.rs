//! Why a server cannot be, with the cause and the fix.

use std::io;

use sheave_uring::RingError;
use thiserror::Error;

/// A server that does not start, or did not end as it should.
#[derive(Debug, Error)]
pub enum ServeError {
    /// An address makes no sense.
    #[error("'{text}' is no address to listen on. Write unix:PATH or tcp:HOST:PORT")]
    Address {
        /// As given.
        text: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}. {fix}")]
    Listen {
        /// The address.
        address: String,
        /// What to do.
        fix: String,
        /// Why.
        source: io::Error,
    },
    /// Somebody listens there.
    #[error("{address} is in use: another server answers there. End it, or choose another address")]
    InUse {
        /// The address.
        address: String,
    },
    /// Something else has the socket's path.
    #[error("{path} is there and is no socket. Choose another path, or remove it")]
    NotASocket {
        /// The path.
        path: String,
    },
    /// A reactor's ring cannot be made.
    #[error("serving needs io_uring, and a ring for it cannot be made: {0}")]
    Ring(#[source] RingError),
    /// The kernel has io_uring, but not what a server needs of it.
    #[error("serving needs io_uring with lists of receive buffers, which Linux has since 5.19: {0}")]
    OldKernel(String),
    /// A thread cannot be made.
    #[error("cannot start a thread: {0}. Raise the limit of processes (ulimit -u)")]
    Thread(#[source] io::Error),
    /// There is no such export.
    #[error("there is no export '{name}'. 'sheave export list' shows those there are")]
    NoExport {
        /// As asked for.
        name: String,
    },
    /// There is an export of that name.
    #[error("there is an export '{name}' already. Choose another name, or remove that one first")]
    ExportExists {
        /// As asked for.
        name: String,
    },
    /// It has clients.
    #[error("the export '{name}' has clients: {clients}. Disconnect them first, or use --force, which does")]
    ExportInUse {
        /// Its name.
        name: String,
        /// How many.
        clients: u32,
    },
    /// What clients of it had begun does not end.
    #[error(
        "the export '{name}' was taken out, and requests of its clients have not ended yet. Look at its device, and \
         try again"
    )]
    StillEnding {
        /// Its name.
        name: String,
    },
    /// There is no such client.
    #[error("there is no client {id}. 'sheave client list' shows those there are")]
    NoClient {
        /// As asked for.
        id: u64,
    },
    /// A file for TLS cannot be used.
    #[error("{path}: {why}. {fix}")]
    Tls {
        /// The file.
        path: String,
        /// Why.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// Names of clients without certificates to take them from.
    #[error(
        "names of clients that are allowed come from their certificates: say which authority (CA) has issued these, too"
    )]
    TlsNamesWithoutCa,
    /// A reactor has panicked.
    #[error("a reactor has ended by a bug; its clients were dropped")]
    Panicked,
}
