//! The state of a server as plain data, with which another process goes on: what an upgrade passes over.
//!
//! Owns the form of this data, [`State`], and the packing of descriptors and bytes beside it. Does not own the
//! transport, nor the moment: [`Server::suspend`](crate::Server::suspend) brings all sessions to a point where
//! everything about them is here, and [`Server::take_out`](crate::Server::take_out) collects it.
//!
//! Invariants:
//! - H1. Nothing is under way for a client that is handed over: each request that was taken from it was answered, or is
//!   a read of [`StageState::Transmission`], or is among its unread bytes again, with as much of its payload as has
//!   come; and each reply was sent, or is among its unsent bytes. So no request is lost, and none is done twice.
//! - H2. The data is decoded as the input of a peer: a client whose data makes no sense is dropped with the reason, and
//!   nothing else happens.

use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::SocketType;
use serde::{Deserialize, Serialize};
use sheave_nbd::handshake::{HandshakeState, Mode};
use sheave_nbd::session::SessionState;
use sheave_vhost::session::LifeState;

use crate::counts::IoCounts;

/// Descriptors and bytes of a server, and the data that refers to them.
#[derive(Debug, Default)]
pub struct Parcel {
    /// The data. A descriptor in it is an index of `fds`, a range of bytes lies in `bytes`.
    pub state: State,
    /// The descriptors.
    pub fds: Vec<OwnedFd>,
    /// Bytes of clients: what they sent and was not parsed, and replies that were not sent.
    pub bytes: Vec<u8>,
}

/// The data of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The number of the last client.
    pub last_client: u64,
    /// The clients.
    pub clients: Vec<ClientState>,
    /// Counters of the exports.
    pub exports: Vec<ExportState>,
    /// I/O counters of the reactors' rings, by reactor: pairs of an index and a number.
    pub queues: Vec<Vec<(u32, u64)>>,
    /// The slow I/Os that are kept, the oldest first.
    pub slow: Vec<SlowState>,
}

/// A slow I/O.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowState {
    /// Number of the reactor that recorded it.
    pub reactor: usize,
    /// The export.
    pub export: Option<String>,
    /// Time since it ended, in nanoseconds.
    pub age_ns: u64,
    /// The I/O as numbers.
    pub io: Vec<u64>,
}

/// Counters of an export, without those of the clients that are handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExportState {
    /// Its name.
    pub name: String,
    /// Counts of clients that are gone.
    pub counts: IoCounts,
    /// Number of refusals to clients.
    pub refused: u64,
    /// I/O counters of its file, with those of the first export of the file: pairs of an index and a number.
    pub io: Vec<(u32, u64)>,
}

/// A part of [`Parcel::bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Its first byte.
    pub at: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientState {
    /// Its number in reports.
    pub id: u64,
    /// The reactor that served it.
    pub reactor: usize,
    /// Its socket.
    pub fd: u32,
    /// The address that it connected to, as configured: the listener with that address has its TLS.
    pub listener: String,
    /// When it connected, in milliseconds since 1970.
    pub since: u64,
    /// Counts of its requests.
    pub counts: IoCounts,
    /// Bytes that it sent and that were not parsed.
    pub unread: Range,
    /// Replies that were not sent.
    pub unsent: Range,
    /// Its stage.
    pub stage: StageState,
}

/// The stage of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageState {
    /// An NBD client that has not got its greeting.
    New,
    /// An NBD client that has not chosen an export.
    Handshake {
        /// The options in effect.
        handshake: HandshakeState,
        /// Names of the exports whose numbers are in `handshake`.
        exports: Vec<(u32, String)>,
    },
    /// An NBD client that has chosen an export.
    Transmission {
        /// The export.
        export: String,
        /// The format of replies.
        mode: Mode,
        /// True if its requests are to be aligned to blocks.
        keeps_to_blocks: bool,
        /// The metadata contexts that it selected, by their numbers in the backend.
        contexts: Vec<u64>,
        /// The position in the stream of requests.
        session: SessionState,
        /// True if the first of the unread requests was charged to the limit of the export.
        paid: bool,
        /// Reads that have begun for the client, and for which nothing was done yet.
        #[serde(default)]
        reads: Vec<ReadState>,
    },
    /// A front-end that has attached the vhost-user device of an export.
    FrontEnd {
        /// The export.
        export: String,
        /// The state of the device.
        life: LifeState,
        /// Descriptors that came with the unread bytes.
        fds: Vec<u32>,
        /// True if it was not told of a new size.
        resized: bool,
        /// True if it has sent a message.
        spoke: bool,
    },
}

/// A read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadState {
    /// The number by which the client knows it.
    pub cookie: u64,
    /// Its flags.
    pub flags: u16,
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl StageState {
    /// Returns the export that the client uses.
    #[must_use]
    pub fn export(&self) -> Option<&str> {
        match self {
            StageState::New | StageState::Handshake { .. } => None,
            StageState::Transmission { export, .. } | StageState::FrontEnd { export, .. } => Some(export),
        }
    }
}

impl Parcel {
    /// Adds a descriptor. Returns its index.
    pub(crate) fn add_fd(&mut self, fd: OwnedFd) -> u32 {
        self.fds.push(fd);
        (self.fds.len() - 1) as u32
    }

    /// Adds bytes. Returns their place.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) -> Range {
        let range = Range { at: self.bytes.len() as u64, len: bytes.len() as u64 };
        self.bytes.extend_from_slice(bytes);
        range
    }

    /// Returns the bytes of a range, if the parcel has them.
    pub(crate) fn bytes_of(&self, range: Range) -> Option<&[u8]> {
        let start = usize::try_from(range.at).ok()?;
        let end = start.checked_add(usize::try_from(range.len).ok()?)?;
        self.bytes.get(start..end)
    }
}

/// A client that a reactor has taken out of its sessions, or is to serve.
pub(crate) struct Moved {
    pub(crate) id: u64,
    pub(crate) fd: OwnedFd,
    pub(crate) listener: String,
    pub(crate) unread: Vec<u8>,
    pub(crate) unsent: Vec<u8>,
    pub(crate) stage: MovedStage,
}

/// The stage of a client that moves, with its descriptors.
pub(crate) enum MovedStage {
    /// As in [`StageState`].
    Nbd(StageState),
    /// A front-end: export, state with descriptors in place, descriptors of unread bytes, and the two flags.
    FrontEnd { export: String, life: Box<sheave_vhost::session::Life>, fds: Vec<OwnedFd>, resized: bool, spoke: bool },
}

impl Moved {
    /// Packs the client into the parcel.
    pub(crate) fn pack(
        self,
        (since, reactor, counts): (SystemTime, usize, IoCounts),
        parcel: &mut Parcel,
    ) -> std::io::Result<()> {
        let stage = match self.stage {
            MovedStage::Nbd(stage) => stage,
            MovedStage::FrontEnd { export, life, fds, resized, spoke } => {
                let mut failed = None;
                let life = life.pack(&mut |fd| match fd.try_clone() {
                    Ok(fd) => parcel.add_fd(fd),
                    Err(error) => {
                        failed = Some(error);
                        u32::MAX
                    }
                });
                if let Some(error) = failed {
                    return Err(error);
                }
                let fds = fds.into_iter().map(|fd| parcel.add_fd(fd)).collect();
                StageState::FrontEnd { export, life, fds, resized, spoke }
            }
        };
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let (fd, unread, unsent) =
            (parcel.add_fd(self.fd), parcel.add_bytes(&self.unread), parcel.add_bytes(&self.unsent));
        let (id, listener) = (self.id, self.listener);
        parcel.state.clients.push(ClientState { id, reactor, fd, listener, since, counts, unread, unsent, stage });
        Ok(())
    }

    /// Unpacks a client. Takes its descriptors out of `fds`; fails, with the reason, if one is not there (H2).
    pub(crate) fn unpack(client: &ClientState, parcel: &Parcel, fds: &mut Fds) -> Result<Moved, String> {
        let missing = || String::from("one of its descriptors did not come");
        let bytes = |range| parcel.bytes_of(range).map(<[u8]>::to_vec).ok_or("some of its bytes did not come");
        let fd = fds.take(client.fd).ok_or_else(missing)?;
        if rustix::net::sockopt::socket_type(&fd) != Ok(SocketType::STREAM) {
            return Err("its descriptor is no connection".into());
        }
        let stage = match &client.stage {
            StageState::FrontEnd { export, life, fds: unread, resized, spoke } => {
                let life = life.unpack(&mut |index| fds.take(index).map(std::sync::Arc::new));
                let life = Box::new(life.map_err(|broken| broken.to_string())?);
                let unread: Option<Vec<_>> = unread.iter().map(|index| fds.take(*index)).collect();
                let (export, fds) = (export.clone(), unread.ok_or_else(missing)?);
                MovedStage::FrontEnd { export, life, fds, resized: *resized, spoke: *spoke }
            }
            other => MovedStage::Nbd(other.clone()),
        };
        let (unread, unsent) = (bytes(client.unread)?, bytes(client.unsent)?);
        Ok(Moved { id: client.id, fd, listener: client.listener.clone(), unread, unsent, stage })
    }
}

/// The descriptors of a parcel, each of which is taken once.
pub(crate) struct Fds(Vec<Option<OwnedFd>>);

impl Fds {
    pub(crate) fn new(fds: Vec<OwnedFd>) -> Fds {
        Fds(fds.into_iter().map(Some).collect())
    }

    fn take(&mut self, index: u32) -> Option<OwnedFd> {
        self.0.get_mut(usize::try_from(index).ok()?)?.take()
    }
}

/// Returns the time that is so many milliseconds after 1970.
pub(crate) fn time_of(since: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(since)).unwrap_or(UNIX_EPOCH)
}
