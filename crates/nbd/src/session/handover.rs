//! The state of the transmission phase as plain data, and requests as the client has sent them, for the process that
//! takes over the connection.
//!
//! Owns [`SessionState`] and its checks. Does not own the bytes of the client that were not consumed. Called by the
//! owner of a connection, which puts a request that the next process is to process before those bytes
//! ([`Session::encode`]).

use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32, U64};

use super::{CONTEXT_BYTES, Command, Incoming, Refused, Request, STATUS_PAYLOAD_HEAD, Session};
use crate::catalog::MAX_CONTEXTS;
use crate::handshake::{Mode, Negotiated};
use crate::wire::{
    CompactRequest, EXTENDED_REQUEST_MAGIC, Errno, ExtendedRequest, MAX_PAYLOAD, REQUEST_MAGIC, cflag, cmd,
};

/// The reason of a refusal that another process has decided on.
const REFUSED_BEFORE: &str = "the request was refused before the server was upgraded";

/// A refused request whose data is being skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// Bytes of data that have not been received yet.
    pub left: u64,
    pub cookie: u64,
    pub offset: u64,
    /// Number of the error in the protocol.
    pub errno: u32,
}

/// The state of the transmission phase, without what was negotiated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    pub skip: Option<Skip>,
    /// True if no request follows.
    pub ended: bool,
}

impl Session {
    /// Returns the state for another process. If the payload of a write is being received, the state is that before the
    /// request: the other process gets the request again ([`Session::encode`]), and the payload from its start.
    #[must_use]
    pub fn state(&self) -> SessionState {
        match self.incoming {
            Incoming::Header | Incoming::Payload { .. } => SessionState::default(),
            Incoming::Skip { left, refused: Refused { cookie, offset, errno, .. } } => {
                let skip = Skip { left, cookie, offset, errno: errno as u32 };
                SessionState { skip: Some(skip), ended: false }
            }
            Incoming::Ended => SessionState { skip: None, ended: true },
        }
    }

    /// Continues the transmission phase of another process. After an impossible state or negotiation the session has
    /// ended, and the connection is to be closed.
    #[must_use]
    pub fn restored(negotiated: &Negotiated, state: &SessionState) -> Session {
        let contexts = if negotiated.mode == Mode::Simple { 0 } else { MAX_CONTEXTS };
        let incoming = match (state.skip, state.ended) {
            _ if negotiated.contexts.len() > contexts => None,
            (None, false) => Some(Incoming::Header),
            (Some(skip), false) => skipping(skip),
            (_, true) => None,
        };
        Session { incoming: incoming.unwrap_or(Incoming::Ended), ..Session::new(negotiated) }
    }

    /// Returns the header of a request as a client would send it. Parsed by a session with the same negotiation, it
    /// gives an equal request. For a BLOCK_STATUS, the payload that names contexts follows the header if the request
    /// names only some of them. The payload of a write is not included.
    #[must_use]
    pub fn encode(&self, request: &Request) -> Vec<u8> {
        let (flags, cookie, offset) = (request.flags, U64::new(request.cookie), U64::new(request.offset));
        let command = U16::new(match request.command {
            Command::Read => cmd::READ,
            Command::Write => cmd::WRITE,
            Command::Flush => cmd::FLUSH,
            Command::Trim => cmd::TRIM,
            Command::Cache => cmd::CACHE,
            Command::WriteZeroes => cmd::WRITE_ZEROES,
            Command::BlockStatus => cmd::BLOCK_STATUS,
        });
        if self.mode != Mode::Extended {
            // The length of a request of this session came from 32 bits.
            let len = U32::new(u32::try_from(request.len).unwrap_or(u32::MAX));
            let (magic, flags) = (U32::new(REQUEST_MAGIC), U16::new(flags));
            return CompactRequest { magic, flags, command, cookie, offset, len }.as_bytes().to_vec();
        }
        let header = |flags: u16, len: u64| {
            let (magic, flags, len) = (U32::new(EXTENDED_REQUEST_MAGIC), U16::new(flags), U64::new(len));
            ExtendedRequest { magic, flags, command, cookie, offset, len }.as_bytes().to_vec()
        };
        if request.command != Command::BlockStatus || request.contexts == self.contexts {
            return header(flags, request.len);
        }
        let payload = STATUS_PAYLOAD_HEAD + CONTEXT_BYTES * u64::from(request.contexts.count_ones());
        let mut bytes = header(flags | cflag::PAYLOAD_LEN, payload);
        bytes.extend_from_slice(&request.len.to_be_bytes());
        let named = (0..u32::BITS).filter(|number| request.contexts & 1 << number != 0);
        named.for_each(|number| bytes.extend_from_slice(&number.to_be_bytes()));
        bytes
    }
}

/// Returns None if no refused request can be in this state.
fn skipping(Skip { left, cookie, offset, errno }: Skip) -> Option<Incoming> {
    let errno = Errno::of_number(errno)?;
    let refused = Refused { cookie, offset, errno, why: REFUSED_BEFORE };
    (1..=u64::from(MAX_PAYLOAD)).contains(&left).then_some(Incoming::Skip { left, refused })
}

#[cfg(test)]
mod tests;
