//! The calling side of a connection.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

use crate::channel::Channel;

/// Maximum length of a reply. It is larger than that of a call, because lists of volumes can be long.
const MESSAGE_BYTES: usize = 64 << 20;
/// Time limit for sending a message, and for receiving one that has begun.
const MESSAGE: Duration = Duration::from_secs(30);
/// Interval between two calls of `goes_on` while no reply comes.
const LOOK: Duration = Duration::from_millis(500);

/// Failure of a call.
#[derive(Debug, Error)]
pub enum ClientError {
    /// An I/O error on the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server sent an invalid reply.
    #[error("the server sends what is no reply: {0}")]
    Protocol(#[from] serde_json::Error),
    /// An error reply of the server.
    #[error("{error}: {parameters}")]
    Refused {
        /// Name with the interface.
        error: String,
        /// Parameters according to the definition.
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
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    ///
    /// Returns an error if nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Client> {
        Ok(Client { channel: Channel::new(UnixStream::connect(path)?, MESSAGE_BYTES)?, patience: None })
    }

    /// Sets the time within which a reply must begin. It is unlimited by default.
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.patience = patience;
    }

    /// Returns the process at the other end.
    #[must_use]
    pub fn peer_pid(&self) -> Option<u32> {
        Some(sheave_base::peer::peer(self.channel.stream()).ok()?.pid?.get())
    }

    /// Returns the user of the process at the other end.
    #[must_use]
    pub fn peer_uid(&self) -> Option<u32> {
        Some(sheave_base::peer::peer(self.channel.stream()).ok()?.uid)
    }

    /// Calls a method with a single reply.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn call<T: Serialize>(&mut self, method: &str, parameters: &T) -> Result<Value, ClientError> {
        let message = json!({ "method": method, "parameters": parameters });
        self.channel.send(&serde_json::to_vec(&message)?, &[], MESSAGE)?;
        Ok(self.reply()?.0)
    }

    /// Calls a method with several replies. `each` is called with all but the last, which is returned. An error of
    /// `each` ends the call.
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

    /// Same as [`Client::call_more`], for replies that may be rare: `goes_on` is called after each reply, and twice a
    /// second while no reply comes.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; `Interrupted` if `goes_on` returned false.
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

    /// Sends a call that may have several replies.
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
                // A timeout within a reply is an error; before it begins, the wait continues.
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
