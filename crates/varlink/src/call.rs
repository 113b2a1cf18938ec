//! One call: its parameters, its replies, its errors.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use sheave_base::peer::Peer;

use crate::channel::Channel;

/// What a peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look.
    ReadOnly,
    /// Everything.
    Admin,
}

/// A call as it came over the socket. Fields that are not known are ignored, as the protocol wants it.
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

/// Why a call failed, as its caller is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Failed {
    /// The interface `org.varlink.service` has errors for what fits no method.
    Service {
        /// Its name without the interface.
        error: &'static str,
        /// The one parameter: name and value.
        parameter: Option<(&'static str, String)>,
    },
    /// An error of the interface itself.
    Own {
        /// With its interface.
        error: String,
        /// As the definition has them.
        parameters: Value,
    },
}

impl Failed {
    /// A parameter is missing, superfluous, or makes no sense.
    #[must_use]
    pub fn parameter(name: impl Into<String>) -> Failed {
        Failed::Service { error: "InvalidParameter", parameter: Some(("parameter", name.into())) }
    }

    /// There is no such method.
    #[must_use]
    pub fn no_method(method: &str) -> Failed {
        Failed::Service { error: "MethodNotFound", parameter: Some(("method", method.into())) }
    }

    /// The call wants `more`.
    #[must_use]
    pub fn expected_more() -> Failed {
        Failed::Service { error: "ExpectedMore", parameter: None }
    }

    /// The peer's role does not have it.
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

/// What ends the handling of a call before its time.
#[derive(Debug)]
pub enum CallError {
    /// The caller is told.
    Failed(Failed),
    /// The caller is gone.
    Gone(io::Error),
}

impl From<Failed> for CallError {
    fn from(failed: Failed) -> CallError {
        CallError::Failed(failed)
    }
}

/// Tells a caller how far a call is, beside the thread that handles it.
#[derive(Debug)]
pub struct Teller {
    channel: Channel,
    tells: bool,
    send: Duration,
}

impl Teller {
    /// Sends a reply after which others follow, to a caller that takes several.
    ///
    /// # Errors
    ///
    /// [`CallError::Gone`]: the caller does not take it in time, or has closed.
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
    /// What the caller may do.
    pub role: Role,
    /// The caller, as it was when it connected.
    pub peer: Peer,
    /// The method, with its interface.
    pub method: String,
}

impl Call<'_> {
    /// Its parameters.
    ///
    /// # Errors
    ///
    /// `InvalidParameter`, which names the first that does not fit.
    pub fn parameters<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        serde_json::from_value(Value::Object(self.parameters.clone()))
            .map_err(|error| Failed::parameter(error.to_string()))
    }

    /// Its parameters in short, for a log.
    #[must_use]
    pub fn what(&self) -> String {
        Value::Object(self.parameters.clone()).to_string().chars().take(512).collect()
    }

    /// Whether the caller takes several replies.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        self.more
    }

    /// Takes the descriptor that came with the call.
    ///
    /// # Errors
    ///
    /// `InvalidParameter` unless there is exactly one.
    pub fn take_fd(&mut self) -> Result<OwnedFd, Failed> {
        match (self.fds.pop(), self.fds.len()) {
            (Some(fd), 0) => Ok(fd),
            _ => Err(Failed::parameter("exactly one descriptor must come with this call")),
        }
    }

    /// Takes all descriptors that came with the call, in order.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// Refuses a caller that may only look.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`.
    pub fn admin_only(&self) -> Result<(), Failed> {
        if self.role == Role::Admin { Ok(()) } else { Err(Failed::forbidden()) }
    }

    /// A way to tell the caller how far it is from another thread, which must have ended before the call does.
    ///
    /// # Errors
    ///
    /// When there is no descriptor to be had.
    pub fn teller(&self) -> io::Result<Teller> {
        let channel = Channel::new(self.channel.stream().try_clone()?, 0)?;
        Ok(Teller { channel, tells: self.more && !self.oneway, send: self.send })
    }

    /// Whether the caller has gone, and nobody waits for what comes of it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.channel.is_gone()
    }

    /// Sends a reply after which others follow. For a caller that does not take several it is nothing.
    ///
    /// # Errors
    ///
    /// [`CallError::Gone`]: the caller does not take it in time, or has closed.
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
