//! Calls from the other end.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

use crate::channel::Channel;

/// A reply may be longer than a call: lists of volumes are.
const MESSAGE_BYTES: usize = 64 << 20;
/// How long a message may take, once it has begun, either way.
const MESSAGE: Duration = Duration::from_secs(30);
/// How often a call that waits for its replies is asked whether to go on.
const LOOK: Duration = Duration::from_millis(500);

/// Why a call has no result.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What came is no reply.
    #[error("the server sends what is no reply: {0}")]
    Protocol(#[from] serde_json::Error),
    /// The server refuses it.
    #[error("{error}: {parameters}")]
    Refused {
        /// With its interface.
        error: String,
        /// As the definition has them.
        parameters: Value,
    },
}

#[derive(Debug, Deserialize)]
struct Reply {
    #[serde(default)]
    parameters: Value,
    #[serde(default)]
    continues: bool,
    #[serde(default)]
    error: Option<String>,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    patience: Option<Duration>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    ///
    /// When nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Client> {
        Ok(Client { channel: Channel::new(UnixStream::connect(path)?, MESSAGE_BYTES)?, patience: None })
    }

    /// How long a reply may take to begin; at first as long as it wants.
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.patience = patience;
    }

    /// The process at the other end.
    #[must_use]
    pub fn peer_pid(&self) -> Option<u32> {
        Some(sheave_base::peer::peer(self.channel.stream()).ok()?.pid?.get())
    }

    /// The user of the process at the other end.
    #[must_use]
    pub fn peer_uid(&self) -> Option<u32> {
        Some(sheave_base::peer::peer(self.channel.stream()).ok()?.uid)
    }

    /// Calls, and takes the one reply.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn call<T: Serialize>(&mut self, method: &str, parameters: &T) -> Result<Value, ClientError> {
        let message = json!({ "method": method, "parameters": parameters });
        self.channel.send(&serde_json::to_vec(&message)?, &[], MESSAGE)?;
        Ok(self.reply()?.0)
    }

    /// Calls for several replies: `each` hears all but the last, and ends it by an error.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn call_more<T: Serialize>(
        &mut self,
        method: &str,
        parameters: &T,
        fds: &[BorrowedFd<'_>],
        each: &mut dyn FnMut(Value) -> io::Result<()>,
    ) -> Result<Value, ClientError> {
        self.ask_for_more(method, parameters, fds)?;
        loop {
            match self.reply()? {
                (parameters, true) => each(parameters)?,
                (parameters, false) => return Ok(parameters),
            }
        }
    }

    /// As `call_more` for replies that come as seldom as they want: `goes_on` is asked after each, and twice a second
    /// while there is none.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; `Interrupted` when it does not go on.
    pub fn call_more_while<T: Serialize>(
        &mut self,
        method: &str,
        parameters: &T,
        each: &mut dyn FnMut(Value) -> io::Result<()>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Value, ClientError> {
        let patience = self.patience.replace(LOOK);
        let ended = self.replies_while(method, parameters, each, goes_on);
        self.patience = patience;
        ended
    }

    /// Sends a call that several replies answer.
    fn ask_for_more<T: Serialize>(
        &mut self,
        method: &str,
        parameters: &T,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let message = json!({ "method": method, "parameters": parameters, "more": true });
        Ok(self.channel.send(&serde_json::to_vec(&message)?, fds, MESSAGE)?)
    }

    fn replies_while<T: Serialize>(
        &mut self,
        method: &str,
        parameters: &T,
        each: &mut dyn FnMut(Value) -> io::Result<()>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Value, ClientError> {
        self.ask_for_more(method, parameters, &[])?;
        loop {
            match self.reply() {
                Ok((parameters, true)) => each(parameters)?,
                Ok((parameters, false)) => return Ok(parameters),
                // One that has begun and does not end is a failure; else there is nothing to tell yet.
                Err(ClientError::Io(error)) if error.kind() == io::ErrorKind::TimedOut && !self.channel.has_begun() => {
                }
                Err(error) => return Err(error),
            }
            if !goes_on() {
                return Err(io::Error::from(io::ErrorKind::Interrupted).into());
            }
        }
    }

    fn reply(&mut self) -> Result<(Value, bool), ClientError> {
        let received = self.channel.receive(self.patience, MESSAGE)?;
        let received = received.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed"))?;
        let Reply { parameters, continues, error } = serde_json::from_slice(&received.bytes)?;
        match error {
            Some(error) => Err(ClientError::Refused { error, parameters }),
            None => Ok((parameters, continues)),
        }
    }
}
