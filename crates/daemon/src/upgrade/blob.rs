//! The state that an old daemon passes to a new one, in a sealed memfd: a header, a JSON object, and bytes of clients.
//!
//! All numbers are little-endian (docs/reference/upgrade-state.md):
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 7 | `SHEAVEUP` |
//! | 8 to 11 | state version |
//! | 12 to 15 | zeroes |
//! | 16 to 23 | length of the JSON object, in bytes |
//! | 24 to 31 | length of the bytes of clients |
//! | 32 | the JSON object ([`Blob`]), then the bytes |
//!
//! Owns this form. It is decoded as the input of a peer: version and lengths are checked first, fields that are missing
//! get their default, and an index that leads nowhere is an error of its user alone.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};
use sheave_serve::handover::State;

use super::STATE_VERSION;
use crate::api::types::{AddExport, UpgradePlan};

const MAGIC: &[u8; 8] = b"SHEAVEUP";
const HEADER: usize = 32;
/// Largest state. Clients have at most `ServerOptions::server_bytes` in flight; the rest is small.
const MOST_BYTES: u64 = 2 << 30;

/// The JSON object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Blob {
    /// Version of the program that made it.
    pub(crate) package: String,
    /// When the first daemon of the row was started, in milliseconds since 1970.
    pub(crate) started: u64,
    /// Clients, and counters of exports. Descriptors from 0 on are theirs.
    pub(crate) server: State,
    /// Number of those descriptors.
    pub(crate) server_fds: u32,
    /// Listening sockets. Their descriptors follow, in order.
    pub(crate) listeners: Vec<Listening>,
    /// Addresses of the listeners of NBD that the daemon was given, and has not bound itself.
    pub(crate) passed: Vec<String>,
    /// Files of pools and exports, and locks. Their descriptors follow, in order.
    pub(crate) files: Vec<OpenFile>,
    /// Names of the pools that are open.
    pub(crate) pools: Vec<String>,
    /// Names of the exports that are served.
    pub(crate) exports: Vec<String>,
    /// What the daemon served when it was suspended, in the form of the reply of `PlanUpgrade`.
    pub(crate) served: Option<UpgradePlan>,
    /// Exports that were added while the daemon ran.
    pub(crate) added: Vec<Added>,
    /// Limits that were set while the daemon ran, by the name of their export; none removes the limit.
    pub(crate) limits: Vec<(String, Option<String>)>,
    /// Latency above which an I/O is slow, if it was set while the daemon ran.
    pub(crate) slow_limit_ns: Option<u64>,
}

/// A listening socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listening {
    /// Address as configured.
    pub(crate) asked_for: String,
    /// Address with the port that was bound.
    pub(crate) address: String,
    /// True if the path is removed with the socket.
    pub(crate) owns_path: bool,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenFile {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
}

/// Purpose of an open file ([`sheave_drivers::host::InheritedKind`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    File,
    Lock,
    Exclusive,
}

/// An export that was added while the daemon ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Added {
    pub(crate) export: AddExport,
    pub(crate) limit: Option<String>,
}

impl Blob {
    /// Writes the state into a memfd that nobody can change any more.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<OwnedFd> {
        let json = serde_json::to_vec(self)?;
        let mut all = Vec::with_capacity(HEADER + json.len() + bytes.len());
        all.extend_from_slice(MAGIC);
        all.extend_from_slice(&STATE_VERSION.to_le_bytes());
        all.extend_from_slice(&[0; 4]);
        all.extend_from_slice(&(json.len() as u64).to_le_bytes());
        all.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        all.extend_from_slice(&json);
        all.extend_from_slice(bytes);
        let fd = rustix::fs::memfd_create("sheave-upgrade", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let file = File::from(fd);
        file.write_all_at(&all, 0)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok(file.into())
    }

    /// Reads the state from a memfd, and the bytes of clients after it.
    pub(crate) fn read(fd: OwnedFd) -> io::Result<(Blob, Vec<u8>)> {
        // Without the seals, the sender could change what was checked.
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SEALS) {
            return Err(io::Error::other("the state is not sealed"));
        }
        let file = File::from(fd);
        let len = file.metadata()?.len();
        if len > MOST_BYTES {
            return Err(io::Error::other(format!("the state has {len} bytes, at most {MOST_BYTES}")));
        }
        let mut all = vec![0; len as usize];
        file.read_exact_at(&mut all, 0)?;
        let (blob, bytes) = Blob::decode(&all)?;
        let bytes = bytes.len();
        Ok((blob, all.split_off(all.len() - bytes)))
    }

    /// Decodes the state. Returns it, and the bytes of clients.
    pub(crate) fn decode(all: &[u8]) -> io::Result<(Blob, &[u8])> {
        let wrong = |what: &str| io::Error::other(format!("the state {what}"));
        if all.len() < HEADER || &all[..8] != MAGIC {
            return Err(wrong("has no header"));
        }
        let word = |at: usize| u32::from_le_bytes([all[at], all[at + 1], all[at + 2], all[at + 3]]);
        let number = |at: usize| usize::try_from(u64::from(word(at)) | u64::from(word(at + 4)) << 32);
        if word(8) == 0 || word(8) > STATE_VERSION {
            return Err(wrong(&format!("has the version {}, and this program reads 1 to {STATE_VERSION}", word(8))));
        }
        let (Ok(json), Ok(bytes)) = (number(16), number(24)) else { return Err(wrong("is cut off")) };
        if json.checked_add(bytes) != Some(all.len() - HEADER) {
            return Err(wrong("is cut off, or has bytes that it does not name"));
        }
        let (json, bytes) = all[HEADER..].split_at(json);
        Ok((serde_json::from_slice(json)?, bytes))
    }
}

const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

#[cfg(test)]
mod tests;
