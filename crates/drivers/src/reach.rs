//! External resources that a device opens by the names in its spec.
//!
//! Owns their kinds. [`Registry::reaches`](crate::Registry::reaches) lists those of a spec and of all devices below it
//! before anything is opened: for a program that opens specs of other users, and must not lend them its own rights.

use std::fmt;
use std::path::PathBuf;

/// A resource that is opened by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// A file or block device that holds the data. A file may be created or enlarged.
    Data(PathBuf),
    /// A file that is only read, such as a certificate.
    Reads(PathBuf),
    /// A unix socket to connect to.
    Socket(PathBuf),
    /// A server or cluster on the network, by the name in the spec.
    Network(String),
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reach::Data(path) => write!(f, "the file {}", path.display()),
            Reach::Reads(path) => write!(f, "the file {}", path.display()),
            Reach::Socket(path) => write!(f, "the socket {}", path.display()),
            Reach::Network(name) => write!(f, "{name}, over the network"),
        }
    }
}
