//! One call: its parameters, replies and errors.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use sheave_base::peer::Peer;

use crate::channel::Channel;

/// Rights of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The peer may call methods that change nothing.
    ReadOnly,
    /// The peer may call all methods.
    Admin,
}

/// A received call. Unknown fields are ignored, because the protocol demands that.
#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    pub(crate) method: String,
    #[serde(default)]
    pub(crate) parameters: Option<Map<String, Value>>,
    #[serde(default)]
    pub(crate) more: bool,
    #[serde(default)]
    pub(crate) oneway: bool,
    #[serde(default)]
    pub(crate) upgrade: bool,
}

/// Failure of a call, as reported to the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Failed {
    /// An error of the interface `org.varlink.service`, for calls that match no method.
    Service {
        /// Name without the interface.
        error: &'static str,
        /// Name and value of its only parameter.
        parameter: Option<(&'static str, String)>,
    },
    /// An error of the called interface.
    Own {
        /// Name with the interface.
        error: String,
        /// Parameters according to the definition.
        parameters: Value,
    },
}

impl Failed {
    /// Returns the error for a parameter that is missing, unknown or invalid.
    #[must_use]
    pub fn parameter(name: impl Into<String>) -> Failed {
        Failed::Service { error: "InvalidParameter", parameter: Some(("parameter", name.into())) }
    }

    /// Returns the error for a method that does not exist.
    #[must_use]
    pub fn no_method(method: &str) -> Failed {
        Failed::Service { error: "MethodNotFound", parameter: Some(("method", method.into())) }
    }

    /// Returns the error for a call that must be made with `more`.
    #[must_use]
    pub fn expected_more() -> Failed {
        Failed::Service { error: "ExpectedMore", parameter: None }
    }

    /// Returns the error for a method that the peer's role does not permit.
    #[must_use]
    pub fn forbidden() -> Failed {
        Failed::Service { error: "PermissionDenied", parameter: None }
    }

    fn message(&self) -> Value {
        match self {
            Failed::Service { error, parameter } => {
                let parameters: Map<String, Value> =
                    parameter.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
                json!({ "error": format!("org.varlink.service.{error}"), "parameters": parameters })
            }
            Failed::Own { error, parameters } => json!({ "error": error, "parameters": parameters }),
        }
    }
}

/// The reason to stop handling a call.
#[derive(Debug)]
pub enum CallError {
    /// An error that is reported to the caller.
    Failed(Failed),
    /// The caller has disconnected.
    Gone(io::Error),
}

impl From<Failed> for CallError {
    fn from(failed: Failed) -> CallError {
        CallError::Failed(failed)
    }
}

/// Reports the progress of a call from another thread than the one that handles it.
#[derive(Debug)]
pub struct Teller {
    channel: Channel,
    tells: bool,
    send: Duration,
}

impl Teller {
    /// Sends an intermediate reply, if the caller requested several.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Gone`] if the caller does not receive it in time, or has disconnected.
    pub fn progress<T: Serialize>(&self, parameters: &T) -> Result<(), CallError> {
        if !self.tells {
            let gone = self.channel.is_gone();
            return if gone { Err(CallError::Gone(io::ErrorKind::BrokenPipe.into())) } else { Ok(()) };
        }
        write(&self.channel, &json!({ "parameters": parameters, "continues": true }), self.send)
    }
}

/// A call that is being handled.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) channel: &'a Channel,
    pub(crate) parameters: Map<String, Value>,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) more: bool,
    pub(crate) oneway: bool,
    pub(crate) send: Duration,
    /// Rights of the caller.
    pub role: Role,
    /// Process and user of the caller at the time it connected.
    pub peer: Peer,
    /// Name of the method, with its interface.
    pub method: String,
}

impl Call<'_> {
    /// Parses the parameters.
    ///
    /// # Errors
    ///
    /// Returns `InvalidParameter` with the first parameter that is wrong.
    pub fn parameters<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        serde_json::from_value(Value::Object(self.parameters.clone()))
            .map_err(|error| Failed::parameter(error.to_string()))
    }

    /// Returns the beginning of the parameters as JSON, for a log.
    #[must_use]
    pub fn what(&self) -> String {
        Value::Object(self.parameters.clone()).to_string().chars().take(512).collect()
    }

    /// Returns true if the caller asked for several replies.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        self.more
    }

    /// Takes the descriptor that was passed with the call.
    ///
    /// # Errors
    ///
    /// Returns `InvalidParameter` unless there is exactly one.
    pub fn take_fd(&mut self) -> Result<OwnedFd, Failed> {
        match (self.fds.pop(), self.fds.len()) {
            (Some(fd), 0) => Ok(fd),
            _ => Err(Failed::parameter("exactly one descriptor must come with this call")),
        }
    }

    /// Takes all descriptors that were passed with the call, in order.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// Checks that the caller is an administrator.
    ///
    /// # Errors
    ///
    /// Returns `PermissionDenied` otherwise.
    pub fn admin_only(&self) -> Result<(), Failed> {
        if self.role == Role::Admin { Ok(()) } else { Err(Failed::forbidden()) }
    }

    /// Returns a handle that reports progress from another thread. It must not be used after the call has ended.
    ///
    /// # Errors
    ///
    /// Returns an error if the descriptor of the socket cannot be duplicated.
    pub fn teller(&self) -> io::Result<Teller> {
        let channel = Channel::new(self.channel.stream().try_clone()?, 0)?;
        Ok(Teller { channel, tells: self.more && !self.oneway, send: self.send })
    }

    /// Returns true if the caller has disconnected, so that nobody receives the result.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.channel.is_gone()
    }

    /// Sends an intermediate reply. Does nothing if the caller did not request several.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Gone`] if the caller does not receive it in time, or has disconnected.
    pub fn progress<T: Serialize>(&self, parameters: &T) -> Result<(), CallError> {
        if !self.more || self.oneway {
            return if self.is_gone() { Err(CallError::Gone(io::ErrorKind::BrokenPipe.into())) } else { Ok(()) };
        }
        write(self.channel, &json!({ "parameters": parameters, "continues": true }), self.send)
    }

    /// Sends the only or last reply.
    pub(crate) fn finish(&self, outcome: Result<Value, Failed>) -> Result<(), CallError> {
        match outcome {
            _ if self.oneway => Ok(()),
            Ok(parameters) => write(self.channel, &json!({ "parameters": parameters }), self.send),
            Err(failed) => write(self.channel, &failed.message(), self.send),
        }
    }
}

fn write(channel: &Channel, message: &Value, within: Duration) -> Result<(), CallError> {
    let bytes = serde_json::to_vec(message).map_err(|error| CallError::Gone(error.into()))?;
    channel.send(&bytes, &[], within).map_err(CallError::Gone)
}
